package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// A payload says the wake or more, and never nothing.
func TestPayloads(t *testing.T) {
	t.Parallel()
	p, other := &pusher{id: strings.Repeat("A", 26)}, &pusher{id: "B"}
	for _, table := range []string{"t", "a:b", "a/b%", "\x00\xff", strings.Repeat("x", maxTable)} {
		for _, n := range []int{0, 1, 256, 1024, 5000} {
			said := rowstore.Wake{Table: table}
			for i := range n {
				said.Slots = append(said.Slots, uint16(i)) //nolint:gosec // small
			}
			payload := p.payload(said)
			require.LessOrEqual(t, len(payload), maxPayload)
			if n == 5000 {
				said.Slots = nil // any row
			}
			got, own := other.parse(payload)
			require.Equal(t, said, got)
			require.False(t, own)
			_, own = p.parse(payload)
			require.True(t, own)
		}
	}
	got, _ := other.parse(p.payload(rowstore.Wake{}))
	require.Zero(t, got)
	for _, s := range []string{"", "t", "A:74", "A:7:", "A:74:0", "A:74:00", "A:74:0001:", "A:xx:0001", "A:74:zzzz", "::"} {
		got, own := other.parse(s)
		require.Zero(t, got, "%q", s)
		require.False(t, own)
	}
}

// Another store hears of each row, whatever its table is called, and of what a stranger
// announces.
func TestAnnouncementsNameEachRow(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	s, listens := openTest(t, with(direct, "schema", schema)), openTest(t, with(direct, "schema", schema))
	hear := earOf(ctx, t, listens).hear
	apply := func(table string, rows int) map[uint16]bool {
		var muts []rowstore.Mutation
		slots := map[uint16]bool{}
		for i := range rows {
			m := rowstore.Mutation{Table: table, Row: fmt.Sprint("r/", rows, "/", i)}
			for c := range 3 {
				m.Edits = append(m.Edits, rowstore.Put(rowstore.Notify, fmt.Sprint("c", c), 5, nil))
			}
			muts = append(muts, m)
			slots[rowstore.Slot(m.Table, m.Row)] = true
		}
		_, err := s.Apply(ctx, muts, rowstore.ApplyOptions{})
		require.NoError(t, err)
		return slots
	}
	for _, table := range []string{"t", "a:b", "/", "%2F", "\x00", "\xff\xfe", strings.Repeat("x", maxTable)} {
		for _, rows := range []int{1, 256, 1000, 1200} {
			missing := apply(table, rows)
			for len(missing) > 0 { // a call may be announced in parts
				w := hear()
				if w.Table != table {
					continue // the rest of what came before
				}
				if len(w.Slots) == 0 {
					require.Greater(t, rows, 1024, "so many mean any row, and fewer are named")
					break
				}
				for _, slot := range w.Slots {
					delete(missing, slot)
				}
			}
		}
	}
	// A stranger's message makes everybody look.
	conn := connect(ctx, t, direct)
	for _, garbage := range []string{"t", "", "a:b", strings.Repeat("x", maxPayload)} {
		_, err := conn.Exec(ctx, "SELECT pg_notify($1, $2)", newNames(schema).channel, garbage)
		require.NoError(t, err)
		for hear().Table != "" { // the rest of what came before
			continue
		}
	}
}

func TestPushEvery(t *testing.T) {
	t.Parallel()
	require.Equal(t, tellEvery, pushEvery(0))
	require.Equal(t, tellEvery, pushEvery(3))
	require.Equal(t, 8*time.Millisecond, pushEvery(20))
	require.Equal(t, mostEvery, pushEvery(1000))
}

// A session that listens is told apart by its name, which keeps what the program has chosen.
func TestNamesOfThoseWhoListen(t *testing.T) {
	t.Parallel()
	require.Equal(t, "percolator listens", nameOf(""))
	require.Equal(t, "orders percolator listens", nameOf("orders"))
	require.Len(t, nameOf(strings.Repeat("x", maxName-len(listensName)-1)), maxName)
	require.Equal(t, strings.Repeat("x", maxName-len(listensName)), nameOf(strings.Repeat("x", maxName-len(listensName))))
}

// ear hears what a store is told of.
type ear struct {
	t     *testing.T
	ctx   context.Context //nolint:containedctx // it is the test's
	heard chan rowstore.Wake
}

// earOf begins to listen to a store, and returns once it listens.
func earOf(ctx context.Context, t *testing.T, s *Store) *ear {
	t.Helper()
	e := &ear{t, ctx, make(chan rowstore.Wake, 10000)}
	waker, ok := rowstore.Unwrap[rowstore.Waker](s)
	require.True(t, ok)
	go func() {
		_ = waker.Listen(ctx, func(w rowstore.Wake) {
			select {
			case e.heard <- w:
			case <-ctx.Done(): // nobody may read it any more
			}
		})
	}()
	require.Zero(t, e.hear())
	return e
}

func (e *ear) hear() rowstore.Wake {
	e.t.Helper()
	select {
	case w := <-e.heard:
		return w
	case <-e.ctx.Done():
		require.FailNow(e.t, "nothing was announced")
		return rowstore.Wake{}
	}
}

// hearOf waits until each slot was named.
func (e *ear) hearOf(missing map[uint16]bool) {
	e.t.Helper()
	for len(missing) > 0 {
		for _, slot := range e.hear().Slots {
			delete(missing, slot)
		}
	}
}

// notifies writes a notification, and returns the slot that is announced.
func notifies(ctx context.Context, t *testing.T, s *Store, row string) uint16 {
	t.Helper()
	_, err := s.Apply(ctx, []rowstore.Mutation{{Table: "t", Row: row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "c", 5, nil)}}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	return rowstore.Slot("t", row)
}

// openAsClerk opens a store of a schema that is there, as a role that may do nothing but use it.
func openAsClerk(ctx context.Context, t *testing.T, direct, schema string) *Store {
	t.Helper()
	role := fmt.Sprintf("pusher%d", schemas.Add(1))
	atend.Do(t, func() { sqlDo(t, direct, "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	sqlDo(t, direct, "CREATE ROLE "+role+" LOGIN PASSWORD 'clerks secret'"+fmt.Sprintf("; "+grants, pgx.Identifier{schema}.Sanitize(), role))
	as := strings.Replace(direct, "postgres:"+testserver.PostgresPassword+"@", role+":clerks%20secret@", 1)
	return openTest(t, with(as, "schema", schema, "application_name", "orders"))
}

// A plain role counts the sessions that listen, its own and those of others. Beside many of them a store announces less often, and
// leaves nothing out, neither at Close. Who listens on the same store need not wait for that.
func TestAnnouncementsGoInGroups(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	listens := openTest(t, with(direct, "schema", schema))
	s := openAsClerk(ctx, t, direct, schema)
	const others = 12
	for range others {
		earOf(ctx, t, listens)
	}
	far, local := earOf(ctx, t, listens), earOf(ctx, t, s)
	n, err := s.plain.sessions(ctx)
	require.NoError(t, err)
	require.GreaterOrEqual(t, n, others+2) // other tests listen, too

	apply := func(row string) uint16 { return notifies(ctx, t, s, row) }
	// It learns that by itself, while it announces often.
	var never atomic.Bool
	every := &s.plain.pusher.every
	s.plain.pusher.everyOf = func(sessions int) time.Duration {
		if never.Load() {
			return time.Hour
		}
		return pushEvery(sessions)
	}
	for i := 0; time.Duration(every.Load()) == tellEvery; i++ {
		require.NoError(t, ctx.Err())
		apply(fmt.Sprint("first/", i))
	}
	require.GreaterOrEqual(t, time.Duration(every.Load()), pushEvery(others+2))
	missing := map[uint16]bool{}
	for i := range 100 {
		missing[apply(fmt.Sprint(i))] = true
	}
	far.hearOf(missing)
	// Of what comes right after an announcement the server hears much later, or by Close; this process does not wait. What another
	// process announces meanwhile is heard of again and again, and of this one announcement more at most.
	never.Store(true)
	every.Store(int64(time.Hour))
	another, more := openTest(t, with(direct, "schema", schema)), 0
	for i := range 50 {
		slot := apply(fmt.Sprint("late/", i))
		missing[slot] = true
		local.hearOf(map[uint16]bool{slot: true})
		beside := notifies(ctx, t, another, fmt.Sprint("beside/", i))
		for heard := false; !heard; {
			slots := far.hear().Slots
			if slices.ContainsFunc(slots, func(slot uint16) bool { return missing[slot] }) {
				more++
			}
			for _, slot := range slots {
				delete(missing, slot)
				heard = heard || slot == beside
			}
		}
	}
	require.LessOrEqual(t, more, 1)
	require.NotEmpty(t, missing)
	require.NoError(t, s.Close())
	far.hearOf(missing)
}

// Who listens in the same process hears of everything while the server does not answer an announcement, or the question how many listen.
func TestSilentServerHoldsUpNoLocalPush(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"announcement", "count"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			direct := testserver.Postgres(t)
			schema := fresh(t, direct)
			s := openTest(t, with(direct, "schema", schema))
			far, local := earOf(ctx, t, openTest(t, with(direct, "schema", schema))), earOf(ctx, t, s)
			// The server answers once the test has let go of a lock.
			held := int(schemas.Add(1))
			const wait = "SELECT pg_catalog.count(*) FROM (SELECT pg_catalog.pg_advisory_xact_lock(77, %d)) l"
			lock := connect(ctx, t, direct)
			_, err := lock.Exec(ctx, fmt.Sprintf("SELECT pg_catalog.pg_advisory_lock(77, %d)", held))
			require.NoError(t, err)
			waiting := func() bool {
				var n int
				require.NoError(t, lock.QueryRow(ctx, "SELECT count(*) FROM pg_locks WHERE classid = 77 AND objid = $1 AND NOT granted", held).Scan(&n))
				return n > 0
			}
			p := s.plain.pusher
			p.countWithin = time.Minute
			if q := fmt.Sprintf(wait, held); what == "count" {
				s.plain.q.sessions = query{sql: q, name: "count that waits", formats: binary1}
			} else {
				push := strings.Replace(s.plain.q.push.sql, "unnest($1::pg_catalog.text[]) w", "unnest($1::pg_catalog.text[]) w, ("+q+") l", 1)
				require.NotEqual(t, push, s.plain.q.push.sql)
				s.plain.q.push = query{sql: push, name: "push that waits", formats: binary1}
			}
			missing := map[uint16]bool{}
			apply := func(row string) {
				slot := notifies(ctx, t, s, row)
				missing[slot] = true
				local.hearOf(map[uint16]bool{slot: true})
			}
			for i := 0; !waiting(); i++ {
				apply(fmt.Sprint("before/", i))
			}
			for i := range 20 {
				apply(fmt.Sprint("meanwhile/", i))
			}
			if what == "count" { // nor does anybody else wait for that
				far.hearOf(missing)
			}
			require.True(t, waiting(), "the server has yet to answer")
			require.NoError(t, lock.Close(ctx))
			far.hearOf(missing)
		})
	}
}

// A role that may not count the sessions does not ask again soon, and announces as if they were few. After any other failure they are as many as before.
func TestFailedCounts(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	openTest(t, with(direct, "schema", schema))
	p := openAsClerk(ctx, t, direct, schema).plain.pusher
	asks := func(name, sql string) time.Duration {
		p.s.q.sessions = query{sql: sql, name: name, formats: binary1}
		return p.count()
	}
	p.every.Store(int64(time.Hour))
	require.LessOrEqual(t, asks("fails", "SELECT 1/0"), countEvery)
	require.Equal(t, time.Hour, time.Duration(p.every.Load()))
	require.Greater(t, asks("denied", "SELECT pg_catalog.count(*) FROM pg_catalog.pg_authid"), time.Minute)
	require.Equal(t, tellEvery, time.Duration(p.every.Load()))
	require.LessOrEqual(t, asks("counts", "SELECT 50::bigint"), countEvery)
	require.Equal(t, pushEvery(50), time.Duration(p.every.Load()))
}

// A signal that was left over, when there is nothing to announce any more, does not put the next announcement off.
func TestNothingIsAnnouncedAtNoCost(t *testing.T) {
	t.Parallel()
	s := openTest(t, with(testserver.Postgres(t), "schema", fresh(t, testserver.Postgres(t))))
	// It has no goroutines, which would announce by themselves.
	p := &pusher{s: s.plain, leaves: make(chan struct{}, 1), ctx: t.Context(), everyOf: pushEvery, countWithin: countWithin}
	p.every.Store(int64(time.Hour))
	p.out.Add(rowstore.Wake{Table: "t"})
	p.announce()
	require.Zero(t, p.failed.Load())
	require.Greater(t, time.Until(p.next), time.Minute)
	last, next := p.last, p.next
	p.announce()
	require.Equal(t, last, p.last)
	require.Equal(t, next, p.next)
}
