package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	neturl "net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// sections are the steps of each runbook, a block each.
func sections(t *testing.T) map[string][][]string {
	t.Helper()
	b, err := os.ReadFile("../../docs/runbooks.md")
	require.NoError(t, err)
	all := map[string][][]string{}
	for _, s := range regexp.MustCompile(`(?m)^## `).Split(string(b), -1)[1:] {
		title, text, _ := strings.Cut(s, "\n")
		all[title] = nil
		for _, m := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(text, -1) {
			all[title] = append(all[title], strings.Split(strings.TrimSpace(m[1]), "\n"))
		}
	}
	return all
}

// ward is a database that gets sick, and that runbooks mend.
type ward struct {
	*testing.T
	store *memstore.Store
	dir   string
	ahead atomic.Int64
	redis *goredis.Client // nil for one in memory
	url   string
}

// unclosed goes on to be used when a program closes it.
type unclosed struct{ *memstore.Store }

func (unclosed) Close() error             { return nil }
func (k unclosed) Unwrap() rowstore.Store { return k.Store }

func newWard(t *testing.T) *ward {
	w := &ward{T: t, dir: t.TempDir()}
	w.store = memstore.New(memstore.WithClock(func() time.Time { return time.Now().Add(time.Duration(w.ahead.Load())) }))
	return w
}

func (w *ward) open() *percolator.DB {
	w.Helper()
	opts := []percolator.Option{
		percolator.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))),
		percolator.WithSettings(percolator.Settings{CatalogLease: 50 * time.Millisecond, MaxTxnAge: 10 * time.Minute}),
	}
	if w.redis != nil {
		db, err := percolator.Open(w.Context(), w.url, opts...)
		require.NoError(w, err)
		return db
	}
	db, err := percolator.New(w.Context(), unclosed{w.store}, opts...)
	require.NoError(w, err)
	return db
}

func (w *ward) with(f func(db *percolator.DB)) {
	w.Helper()
	db := w.open()
	f(db)
	require.NoError(w, db.Close(context.WithoutCancel(w.Context())))
}

// work runs a worker with an observer until nothing is left.
func (w *ward) work(db *percolator.DB, o percolator.Observer) {
	w.Helper()
	worker := percolator.NewWorker(db, percolator.WorkerConfig{BreakAt: -1})
	require.NoError(w, worker.Observe(o))
	running, stop := context.WithCancel(w.Context())
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(running) }()
	require.NoError(w, worker.WaitIdle(w.Context()))
	stop()
	require.NoError(w, <-ended)
}

func (w *ward) set(db *percolator.DB, c percolator.Cell) {
	w.Helper()
	require.NoError(w, db.Update(w.Context(), func(tx *percolator.Txn) error { return tx.Set(c, []byte("new")) }))
}

// step runs the lines of a block, and says what they answered.
func (w *ward) step(lines []string) {
	w.Helper()
	for _, line := range lines {
		command, finds, _ := strings.Cut(line, "# finds ")
		words := strings.Fields(command)
		for i, word := range words {
			if strings.HasSuffix(word, ".backup") {
				words[i] = w.file(word)
			}
		}
		switch words[0] {
		case "percolator":
			w.ask(words[1:], strings.Fields(finds))
		case "redis-cli":
			var args []any
			for _, word := range words[1:] {
				args = append(args, word)
			}
			require.NoError(w, w.redis.Do(w.Context(), args...).Err(), line)
		default:
			require.Fail(w, "a command that the test cannot run", line)
		}
	}
}

func (w *ward) ask(args, finds []string) {
	w.Helper()
	opened := opener(func(context.Context, bool) (rowstore.Store, error) { return unclosed{w.store}, nil })
	if w.redis != nil {
		opened, args = nil, append([]string{"--store", w.url}, args...)
	}
	var status int
	var said string
	answered := func() bool {
		var out, errs strings.Builder
		status = run(w.Context(), args, strings.NewReader(""), &out, &errs, opened)
		said = fmt.Sprintf("percolator %s: %d\n%s%s", strings.Join(args, " "), status, out.String(), errs.String())
		w.Log(said)
		// After a failover the time of the oracle is ahead for some seconds, and stands.
		if slices.Contains(args, "--load") && strings.Contains(said, "(clock-") {
			return false
		}
		return !strings.Contains(said, "(slow)") // because others use the machine
	}
	if !answered() {
		require.Eventually(w, answered, time.Minute, 500*time.Millisecond, "the time of the oracle goes on, and the machine is not busy")
	}
	want := exitOK
	if len(finds) > 0 && finds[0] != "nothing" {
		want = exitFindings
	}
	if args[0] == "migrate" {
		require.Equal(w, want, status, said)
		return
	}
	if slices.Contains(args, "--load") && status == exitFindings {
		// That the machine of the test is slow is no matter of the runbook.
		require.Contains(w, said, "(commit-slow)")
		require.Contains(w, said, "\n1 finding\n")
		return
	}
	require.Equal(w, want, status, said)
	for _, code := range finds {
		if code == "nothing" {
			code = "nothing was found"
		} else {
			code = "(" + code + ")"
		}
		require.Contains(w, said, code)
	}
}

var (
	ship  = percolator.Observer{Name: "ship", Table: "order", Column: "state", Func: func(context.Context, *percolator.Txn, percolator.Cell) error { return nil }}
	links = percolator.Observer{Name: "links", Table: "page", Column: "body", Func: ship.Func}
)

// runbooks are how each section's database gets sick, and what people do between its steps.
var runbooks = map[string]struct {
	plant   func(w *ward)
	between map[int]func(w *ward) // before the block of that number
	after   func(w *ward)         // all blocks
}{
	"Erasing a customer": {plant: customers, after: func(w *ward) {
		rows := 0
		for row, err := range w.store.Scan(w.Context(), rowstore.ScanRange{Table: "order", Selectors: everything()}) {
			require.NoError(w, err)
			require.Equal(w, "bob/1", row.Row, "%+v", row)
			rows++
		}
		require.Equal(w, 1, rows)
	}},
	"A backlog grows": {plant: func(w *ward) {
		w.ahead.Store(int64(-5 * time.Minute))
		w.with(func(db *percolator.DB) {
			w.work(db, ship)
			w.set(db, cell("order", "17", "state"))
		})
		w.ahead.Store(0)
	}, between: map[int]func(w *ward){2: func(w *ward) { w.with(func(db *percolator.DB) { w.work(db, ship) }) }}},
	"A flood of parked runs": {plant: func(w *ward) {
		w.with(func(db *percolator.DB) {
			for i := range 100 {
				w.set(db, cell("page", fmt.Sprint(i), "body"))
			}
			broken := links
			broken.Func = func(context.Context, *percolator.Txn, percolator.Cell) error {
				return percolator.Park(errors.New("the service is gone"))
			}
			w.work(db, broken)
		})
	}, between: map[int]func(w *ward){3: func(w *ward) { w.with(func(db *percolator.DB) { w.work(db, links) }) }}},
	"A clock that jumped or stands still": {plant: func(w *ward) {
		w.with(func(db *percolator.DB) { w.set(db, cell("order", "17", "state")) })
		w.ahead.Store(int64(time.Hour))
		_, err := w.store.Oracle().Draw(w.Context(), 1)
		require.NoError(w, err)
		w.ahead.Store(0)
	}},
	"Garbage is not collected": {plant: func(w *ward) {
		w.ahead.Store(int64(-50 * time.Hour))
		w.with(func(db *percolator.DB) {
			w.set(db, cell("order", "17", "state"))
			_, err := db.Hold(w.Context(), "backup", 0, 96*time.Hour)
			require.NoError(w, err)
		})
		w.ahead.Store(0)
	}},
	"A rolling upgrade": {plant: func(w *ward) {
		healthy(w)
		w.lower()
	}, between: map[int]func(w *ward){1: func(w *ward) { w.with(func(db *percolator.DB) { w.work(db, ship) }) }}},
	"A restore": {plant: func(w *ward) {
		healthy(w)
		w.ask([]string{"backup", w.file("shop.backup")}, nil)
	}, between: map[int]func(w *ward){
		1: func(w *ward) { w.store = memstore.New() },
		2: func(w *ward) {
			w.with(func(db *percolator.DB) {
				require.NoError(w, db.View(w.Context(), func(tx *percolator.Txn) error {
					_, err := tx.Get(w.Context(), cell("order", "17", "state"))
					return err
				}))
			})
		},
	}},
}

// lower gives the database a catalog as a program of an earlier version has made it.
func (w *ward) lower() {
	w.Helper()
	read := rowstore.RowRead{Table: format.TableCatalog, Row: format.RowCatalog, Selectors: []rowstore.Selector{
		{Family: rowstore.Write, Column: format.ColumnConfig, To: oracle.Max, Limit: 1},
	}}
	rows, err := w.store.Read(w.Context(), []rowstore.RowRead{read})
	require.NoError(w, err)
	c, err := format.DecodeCatalog(rows[0].Versions[0].Value)
	require.NoError(w, err)
	c.Hinted, c.HintsFrom = false, 0
	b, err := c.Encode()
	require.NoError(w, err)
	ts, err := w.store.Oracle().Draw(w.Context(), 1)
	require.NoError(w, err)
	_, err = w.store.Apply(w.Context(), []rowstore.Mutation{{Table: read.Table, Row: read.Row, Edits: []rowstore.Edit{
		rowstore.Put(rowstore.Write, format.ColumnConfig, ts, b),
	}}}, rowstore.ApplyOptions{})
	require.NoError(w, err)
}

// file is where a file of a runbook lies.
func (w *ward) file(name string) string { return filepath.Join(w.dir, name) }

func healthy(w *ward) {
	w.with(func(db *percolator.DB) {
		w.work(db, ship)
		w.set(db, cell("order", "17", "state"))
		w.work(db, ship)
	})
}

// TestRunbooks runs the commands of each runbook, in their order.
func TestRunbooks(t *testing.T) {
	t.Parallel()
	all := sections(t)
	for title, r := range runbooks {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			require.NotEmpty(t, all[title])
			w := newWard(t)
			r.plant(w)
			for i, block := range all[title] {
				if r.between[i] != nil {
					r.between[i](w)
				}
				w.step(block)
			}
			if r.after != nil {
				r.after(w)
			}
		})
	}
	require.Len(t, all, 9)
	for title, blocks := range all {
		_, here := runbooks[title]
		require.True(t, here || title == "The server is full" || title == "A failover", "nothing runs the section %q", title)
		require.NotEmpty(t, blocks, title)
	}
}

// customers have orders, with history, which a worker goes on to look after.
func customers(w *ward) {
	w.with(func(db *percolator.DB) {
		w.work(db, ship)
		for range 2 {
			for _, row := range []string{"ann/1", "ann/2", "bob/1"} {
				w.set(db, cell("order", row, "state"))
			}
		}
	})
	db := w.open()
	worker := percolator.NewWorker(db, percolator.WorkerConfig{})
	require.NoError(w, worker.Observe(ship))
	running, stop := context.WithCancel(context.WithoutCancel(w.Context()))
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(running) }()
	atend.Do(w, func() {
		stop()
		require.NoError(w, <-ended)
		require.NoError(w, db.Close(context.WithoutCancel(w.Context())))
	})
}

func everything() (all []rowstore.Selector) {
	for _, f := range []rowstore.Family{rowstore.Lock, rowstore.Write, rowstore.Data, rowstore.Mark, rowstore.Notify} {
		all = append(all, rowstore.Selector{Family: f, Column: rowstore.AllColumns, To: oracle.Max})
	}
	return all
}

// TestFailoverOfRedis kills a primary, and follows the runbook with its replica.
func TestFailoverOfRedis(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	settings := map[string]string{"appendfsync": "always", "repl-diskless-sync-delay": "0"}
	one, two := testserver.NewRedis(t, settings), testserver.NewRedis(t, settings)
	client := func(url string) *goredis.Client {
		o, err := goredis.ParseURL(url)
		require.NoError(t, err)
		c := goredis.NewClient(o)
		atend.Do(t, func() { require.NoError(t, c.Close()) })
		return c
	}
	w := &ward{T: t, url: one.URL, redis: client(one.URL)}
	replica := client(two.URL)
	require.NoError(t, replica.Do(ctx, "REPLICAOF", one.Host, one.Port).Err())
	w.with(func(db *percolator.DB) {
		w.work(db, ship)
		w.set(db, cell("order", "17", "state"))
		w.work(db, ship)
	})
	require.Eventually(t, func() bool {
		n, err := w.redis.Do(ctx, "WAIT", 1, 1000).Int()
		require.NoError(t, err)
		return n == 1
	}, time.Minute, 10*time.Millisecond, "the replica has what was committed")
	w.ask([]string{"doctor"}, []string{"store"}) // which warns of what an asynchronous replica loses
	require.NoError(t, one.Kill())

	w.url, w.redis = two.URL, replica
	blocks := sections(t)["A failover"]
	require.Len(t, blocks, 3)
	for _, block := range blocks {
		w.step(block)
	}
	w.with(func(db *percolator.DB) {
		require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
			_, err := tx.Get(ctx, cell("order", "17", "state"))
			return err
		}))
		w.set(db, cell("order", "18", "state"))
	})
}

// TestDoctorOfRedis plants mistakes in a server of its own, and then runs the runbook of a server that is full.
func TestDoctorOfRedis(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	srv := testserver.NewRedis(t, map[string]string{"appendfsync": "always"})
	o, err := goredis.ParseURL(srv.URL)
	require.NoError(t, err)
	w := &ward{T: t, url: srv.URL, redis: goredis.NewClient(o)}
	atend.Do(t, func() { require.NoError(t, w.redis.Close()) })
	w.with(func(db *percolator.DB) { w.set(db, cell("order", "17", "state")) })
	w.ask([]string{"doctor"}, []string{"nothing"})
	config := func(name, value string) { require.NoError(t, w.redis.ConfigSet(ctx, name, value).Err()) }
	for _, c := range []struct{ name, wrong, right, code, words string }{
		{"appendfsync", "no", "always", "store", "appendfsync is no"},
		{"appendonly", "no", "yes", "store", "set appendonly to yes"},
		{"maxclients", "40", "10000", "store", "maxclients is 40"},
		{"maxmemory-policy", "allkeys-lru", "noeviction", "cannot-look", "set it to noeviction"},
	} {
		config(c.name, c.wrong)
		a := ask(t, srv.URL, "doctor")
		require.Equal(t, exitFindings, a.status, a.err)
		require.Contains(t, a.out, c.words)
		require.Contains(t, a.out, "("+c.code+")")
		config(c.name, c.right)
	}
	w.ask([]string{"doctor"}, []string{"nothing"})
	all := sections(t)
	used, err := w.redis.InfoMap(ctx, "memory").Result()
	require.NoError(t, err)
	most, err := strconv.Atoi(used["Memory"]["used_memory"])
	require.NoError(t, err)
	config("maxmemory", strconv.Itoa(most+most/20))
	a := ask(t, srv.URL, "doctor")
	require.Equal(t, exitFindings, a.status)
	require.Contains(t, a.out, "(maxmemory) are in use")
	config("maxmemory", strconv.Itoa(most/2))
	require.Len(t, all["The server is full"], 4)
	for _, block := range all["The server is full"] {
		w.step(block)
	}
}

// TestDoctorOfPostgres plants mistakes in a database, and in what its role may do.
func TestDoctorOfPostgres(t *testing.T) {
	t.Parallel()
	srv := testserver.NewPostgres(t, map[string]string{"fsync": "on"})
	db, err := percolator.Open(t.Context(), srv.URL)
	require.NoError(t, err)
	require.NoError(t, db.Close(t.Context()))
	sql := func(text string) { postgresDo(t, srv.URL, text) }
	sql(`CREATE ROLE clerk LOGIN PASSWORD 'secret'; GRANT USAGE ON SCHEMA percolator TO clerk;
		GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA percolator TO clerk; GRANT SELECT, USAGE, UPDATE ON ALL SEQUENCES IN SCHEMA percolator TO clerk`)
	as := strings.Replace(srv.URL, "postgres:"+testserver.PostgresPassword+"@", "clerk:secret@", 1)
	a := ask(t, as, "doctor")
	require.Equal(t, exitOK, a.status, a.out+a.err)
	for _, c := range []struct{ wrong, right, code, words string }{
		{"ALTER ROLE clerk SET statement_timeout = 5000", "ALTER ROLE clerk RESET statement_timeout", "store", "statement_timeout is 5000 ms"},
		{"ALTER ROLE clerk SET lock_timeout = 10", "ALTER ROLE clerk RESET lock_timeout", "store", "lock_timeout is 10 ms"},
		{"ALTER ROLE clerk SET idle_in_transaction_session_timeout = 10", "ALTER ROLE clerk RESET idle_in_transaction_session_timeout", "store", "loses its session"},
		{"ALTER ROLE clerk SET idle_session_timeout = '30s'", "ALTER ROLE clerk RESET idle_session_timeout", "store", "woken late"},
		{"ALTER ROLE clerk CONNECTION LIMIT 5", "ALTER ROLE clerk CONNECTION LIMIT -1", "store", "may open 16 connections, and the role"},
		{"REVOKE INSERT ON percolator.cell FROM clerk", "GRANT INSERT ON percolator.cell TO clerk", "store", "(cell)"},
		{"REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA percolator FROM PUBLIC", "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA percolator TO PUBLIC", "cannot-look", "GRANT EXECUTE ON ALL FUNCTIONS"},
		{"REVOKE SELECT ON percolator.meta FROM clerk", "GRANT SELECT ON percolator.meta TO clerk", "cannot-look", "permission denied"},
		{"UPDATE percolator.meta SET version = version - 1", "UPDATE percolator.meta SET version = version + 1", "format", "open the store once with a program of the newest version"},
	} {
		sql(c.wrong)
		a := ask(t, as, "doctor")
		require.Equal(t, exitFindings, a.status, "%s: %s%s", c.wrong, a.out, a.err)
		require.Contains(t, a.out, c.words)
		require.Contains(t, a.out, "("+c.code+")")
		require.NotContains(t, a.out+a.err, "secret")
		sql(c.right)
	}
	migrateByRoles(t, srv.URL, as, sql)
	pooler := testserver.NewPgBouncer(t, srv, testserver.PgBouncerOptions{})
	a = ask(t, pooler.URL, "doctor")
	require.Equal(t, exitFindings, a.status, a.err)
	require.Contains(t, a.out, "Give a direct connection with the parameter listen")
	a = ask(t, everystore.With(pooler.URL, "listen="+neturl.QueryEscape(srv.URL)), "doctor")
	require.Equal(t, exitOK, a.status, a.out+a.err)
	a = ask(t, as, "doctor", "--load", "--commits", "20")
	if strings.Contains(a.out, "(commit-slow)") { // this machine does much else
		require.Contains(t, a.out, "\n1 finding\n")
	} else {
		require.Equal(t, exitOK, a.status, a.out+a.err)
	}
	require.Contains(t, a.out, "20 commits of 4 clients")
	a = ask(t, as, "tables")
	require.NotContains(t, a.out, "percolator.doctor")
}

func postgresDo(t *testing.T, url, sql string) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close(t.Context())) }()
	_, err = c.PgConn().Exec(t.Context(), sql).ReadAll()
	require.NoError(t, err, sql)
}

// TestDoctorRefuses shows what stays an error.
func TestDoctorRefuses(t *testing.T) {
	t.Parallel()
	require.Equal(t, exitUsage, ask(t, "nope:", "doctor").status)
	require.Equal(t, exitUsage, ask(t, someLinks(t), "doctor", "--rows", "-1").status)
	require.Equal(t, exitNoStore, ask(t, "pebble:"+t.TempDir()+"/none", "doctor").status)
	a := ask(t, "redis://u:geheim@127.0.0.1:1", "doctor", "--json")
	require.Equal(t, exitFindings, a.status)
	require.Contains(t, a.out, `"code": "unavailable"`)
	require.NotContains(t, a.out, "geheim")
}
