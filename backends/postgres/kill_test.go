package postgres

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	osexec "os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator"
)

const (
	// childVariable names the store that this binary writes to as the process that is killed.
	childVariable = "PERCOLATE_POSTGRES_CHILD"

	killAccounts = 8
	killDeposit  = 1000
	killTotals   = 3 // hot counters, so that calls wait for each other in the server
	killWriters  = 6 // of a process that is killed
	killStaying  = 3 // writers of the process that stays
)

// killBank is money that is moved, and what each writer has done: a number of its own, and totals of all writers.
type killBank struct{ db *percolator.DB }

func killCell(row string) percolator.Cell {
	return percolator.Cell{Table: "bank", Row: row, Column: "n"}
}

func accountCell(i int) percolator.Cell   { return killCell(fmt.Sprint("account", i)) }
func totalCell(i int) percolator.Cell     { return killCell(fmt.Sprint("total", i)) }
func ownCell(name string) percolator.Cell { return killCell("own/" + name) }

func openKillBank(ctx context.Context, dsn string) (*killBank, error) {
	s, err := OpenURL(ctx, dsn)
	if err != nil {
		return nil, err
	}
	db, err := percolator.New(ctx, s)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return &killBank{db}, nil
}

// numbers reads cells, which hold 0 where nothing was written.
func numbers(ctx context.Context, tx *percolator.Txn, cells ...percolator.Cell) (map[percolator.Cell]uint64, error) {
	values, err := tx.GetMany(ctx, cells...)
	if err != nil {
		return nil, err
	}
	all := map[percolator.Cell]uint64{}
	for c, v := range values {
		if v != nil {
			all[c] = binary.BigEndian.Uint64(v)
		}
	}
	return all, nil
}

func setNumber(tx *percolator.Txn, c percolator.Cell, n uint64) error {
	return tx.Set(c, binary.BigEndian.AppendUint64(nil, n))
}

// work counts up the writer's own number together with a total, and moves money in the same transaction, until
// done, which is told each number that was acknowledged and its timestamp, returns false. It fails if it reads another
// number than the one it was told last.
func (b *killBank) work(ctx context.Context, name string, done func(n uint64, at percolator.Timestamp) bool) error {
	own := ownCell(name)
	var last uint64
	err := b.db.View(ctx, func(tx *percolator.Txn) error {
		all, err := numbers(ctx, tx, own)
		last = all[own]
		return err
	})
	for n := last + 1; err == nil; n++ {
		from := rand.IntN(killAccounts)
		a, z, total := accountCell(from), accountCell((from+1+rand.IntN(killAccounts-1))%killAccounts), totalCell(rand.IntN(killTotals))
		var at percolator.Timestamp
		at, err = b.db.UpdateAt(ctx, func(tx *percolator.Txn) error {
			all, err := numbers(ctx, tx, own, a, z, total)
			if err != nil {
				return err
			}
			if all[own] != n-1 {
				return fmt.Errorf("the writer %s was told of %d and finds %d", name, n-1, all[own])
			}
			return errors.Join(setNumber(tx, own, n), setNumber(tx, total, all[total]+1), setNumber(tx, a, all[a]-1), setNumber(tx, z, all[z]+1))
		})
		if err == nil && !done(n, at) {
			return nil
		}
	}
	return err
}

// killChild writes until it is killed, and says on its standard output what was acknowledged: the writer, its number and
// the timestamp.
func killChild(dsn string) int {
	ctx := context.Background()
	b, err := openKillBank(ctx, dsn)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("open")
	var out sync.Mutex
	for w := range killWriters {
		go func() {
			err := b.work(ctx, killedName(w), func(n uint64, at percolator.Timestamp) bool {
				out.Lock()
				defer out.Unlock()
				fmt.Println(w, n, uint64(at))
				st := b.db.Stats()
				return st.Group+st.TwoPhase == 0
			})
			fmt.Fprintln(os.Stderr, "it ended, with", err, b.db.Stats())
			os.Exit(1)
		}()
	}
	select {}
}

func killedName(w int) string  { return fmt.Sprint("killed", w) }
func stayingName(w int) string { return fmt.Sprint("stays", w) }

// killTest is a process that stays, while others are killed.
type killTest struct {
	t      *testing.T
	rng    *rand.Rand
	bank   *killBank
	direct string // of the server
	dsn    string // as the processes reach it
	pooled bool   // by way of a pooler, whose sessions outlive the processes

	stop  atomic.Bool
	looks [2]atomic.Int64 // of each reader
	mu    sync.Mutex
	acked map[string]map[uint64]percolator.Timestamp // by writer and number
	last  map[string]uint64                          // the greatest number that is known to be there, by writer
	kills int
}

func (k *killTest) ack(name string, n uint64, at percolator.Timestamp) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.acked[name] == nil {
		k.acked[name] = map[uint64]percolator.Timestamp{}
	}
	k.acked[name][n] = at
	k.last[name] = max(k.last[name], n)
}

func (k *killTest) lastOf(name string) uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.last[name]
}

func killNames() (all []string) {
	for w := range killWriters {
		all = append(all, killedName(w))
	}
	for w := range killStaying {
		all = append(all, stayingName(w))
	}
	return all
}

// audit reads everything in one snapshot.
func (k *killTest) audit(ctx context.Context) error {
	names := killNames()
	var cells []percolator.Cell
	least := map[string]uint64{}
	for _, name := range names {
		cells = append(cells, ownCell(name))
		least[name] = k.lastOf(name)
	}
	for i := range killAccounts {
		cells = append(cells, accountCell(i))
	}
	for i := range killTotals {
		cells = append(cells, totalCell(i))
	}
	return k.bank.db.View(ctx, func(tx *percolator.Txn) error {
		all, err := numbers(ctx, tx, cells...)
		if err != nil {
			return err
		}
		at, err := tx.StartTimestamp(ctx)
		if err != nil {
			return err
		}
		var money, done, total uint64
		for i := range killAccounts {
			money += all[accountCell(i)]
		}
		for i := range killTotals {
			total += all[totalCell(i)]
		}
		for _, name := range names {
			n := all[ownCell(name)]
			if done += n; n < least[name] {
				return fmt.Errorf("the writer %s was told of %d before the snapshot at %d, which has %d", name, least[name], at, n)
			}
		}
		if money != killAccounts*killDeposit || done != total {
			return fmt.Errorf("the snapshot at %d: the accounts hold %d, and should %d; the writers counted %d, and the totals %d",
				at, money, killAccounts*killDeposit, done, total)
		}
		return nil
	})
}

// stay lets the process that stays write and read. The function that it returns ends that.
// failed is closed if somebody failed.
func (k *killTest) stay(ctx context.Context) (end func() error, failed <-chan struct{}) {
	g, ctx := errgroup.WithContext(ctx)
	for w := range killStaying {
		g.Go(func() error {
			return k.bank.work(ctx, stayingName(w), func(n uint64, at percolator.Timestamp) bool {
				k.ack(stayingName(w), n, at)
				return !k.stop.Load()
			})
		})
	}
	for r := range k.looks {
		g.Go(func() error {
			for !k.stop.Load() {
				if err := k.audit(ctx); err != nil {
					return err
				}
				k.looks[r].Add(1)
			}
			return nil
		})
	}
	return func() error {
		k.stop.Store(true)
		return g.Wait()
	}, ctx.Done()
}

// kill runs a process until it was told of so many commits, and some time more, and kills it. It returns the name of
// its sessions.
func (k *killTest) kill(after int) (app string) {
	t := k.t
	k.kills++
	app = fmt.Sprintf("killed %d of %s", k.kills, schemaOf(t, k.dsn))
	cmd := osexec.Command(os.Args[0]) //nolint:gosec // this binary
	cmd.Env = append(os.Environ(), childVariable+"="+with(k.dsn, "application_name", app))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	pipe, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	atend.Do(t, func() { _ = cmd.Process.Kill() }) // it has ended, unless the test failed
	lines := bufio.NewScanner(pipe)
	require.True(t, lines.Scan(), "the process says that it is open: %s", &stderr)
	require.Equal(t, "open", lines.Text())
	var killed *time.Timer
	for n := 0; ; n++ {
		if n == after {
			// At any moment, and not only when somebody has just been told of a commit.
			killed = time.AfterFunc(time.Duration(k.rng.IntN(20_000))*time.Microsecond, func() { _ = cmd.Process.Kill() })
		}
		var w int
		var own, ts uint64
		if !lines.Scan() {
			break
		}
		if c, _ := fmt.Sscan(lines.Text(), &w, &own, &ts); c != 3 {
			break // cut off by the kill
		}
		k.ack(killedName(w), own, percolator.Timestamp(ts))
	}
	require.ErrorContains(t, cmd.Wait(), "killed", "the process ended by itself: %s", &stderr)
	require.NotNil(t, killed)
	return app
}

// schemaOf is a short name of a store's schema.
func schemaOf(t testing.TB, dsn string) string {
	t.Helper()
	_, opts, err := splitURL(dsn)
	require.NoError(t, err)
	return newNames(opts.Schema).channel
}

// requireGone waits until nothing is left in the server of the sessions of a name: no lock, and no session, or if they are of a
// pooler none at work.
func (k *killTest) requireGone(ctx context.Context, watcher *pgx.Conn, app string) {
	k.t.Helper()
	eventually(ctx, k.t, func() error {
		var left string
		err := watcher.QueryRow(ctx, `SELECT coalesce(string_agg(concat_ws(' ', a.pid, a.state, a.wait_event, a.query), '; '), '') FROM pg_stat_activity a
			WHERE a.application_name = $1 AND (NOT $2 OR a.state <> 'idle')`, app, k.pooled).Scan(&left)
		if err == nil && left != "" {
			err = errors.New("these sessions are left: " + left)
		}
		return err
	})
	requireNoAdvisoryLocks(ctx, k.t, watcher, app)
}

// requireUnlocked waits until nobody has an advisory lock of the schema, nor waits for one.
func requireUnlocked(ctx context.Context, t *testing.T, watcher *pgx.Conn, n names) {
	t.Helper()
	eventually(ctx, t, func() error {
		var left int
		err := watcher.QueryRow(ctx, `SELECT count(*) FROM pg_locks l WHERE l.locktype = 'advisory'
			AND (l.classid::bigint IN ($1, $2) OR l.classid::bigint = $3 AND l.objid::bigint = $4)`,
			uint64(n.rows)>>32, uint64(n.xacts)>>32, uint64(n.clock)>>32, uint64(n.clock)&(1<<32-1)).Scan(&left) //nolint:gosec // as they are
		if err == nil && left > 0 {
			err = fmt.Errorf("%d locks are left", left)
		}
		return err
	})
}

// requireOthersGoOn waits until each of those who stay has done something that it began now.
func (k *killTest) requireOthersGoOn(ctx context.Context, failed <-chan struct{}) {
	k.t.Helper()
	now := func() (all []int64) {
		for w := range killStaying {
			all = append(all, int64(k.lastOf(stayingName(w)))) //nolint:gosec // small
		}
		for r := range k.looks {
			all = append(all, k.looks[r].Load())
		}
		return all
	}
	before := now()
	eventually(ctx, k.t, func() error {
		select {
		case <-failed:
			return nil // the end of the test says why
		default:
		}
		for i, n := range now() {
			if n < before[i]+2 {
				return fmt.Errorf("writer or reader %d has not gone on: %v, now %v", i, before, now())
			}
		}
		return nil
	})
}

// requireStored holds what is stored to what the processes that were killed have been told. One commit of each writer may have been
// under way.
func (k *killTest) requireStored(ctx context.Context) {
	require.NoError(k.t, k.bank.db.View(ctx, func(tx *percolator.Txn) error {
		for w := range killWriters {
			name := killedName(w)
			all, err := numbers(ctx, tx, ownCell(name))
			if err != nil {
				return err
			}
			n, told := all[ownCell(name)], k.lastOf(name)
			if n < told || n > told+1 {
				return fmt.Errorf("the writer %s was told of %d, and %d is stored", name, told, n)
			}
			k.mu.Lock()
			k.last[name] = n
			k.mu.Unlock()
		}
		return nil
	}))
}

// versionsOf returns the numbers that a cell has had, the oldest first, and their timestamps.
func (k *killTest) versionsOf(ctx context.Context, c percolator.Cell) (at []percolator.Timestamp) {
	var found []percolator.CellVersion
	for v, err := range k.bank.db.History(ctx, c, 0, 0) {
		require.NoError(k.t, err)
		found = append(found, v)
	}
	for i := range found {
		v := found[len(found)-1-i]
		require.EqualValues(k.t, i+1, binary.BigEndian.Uint64(v.Value), "each increment of %v is there once", c)
		at = append(at, v.Commit)
	}
	return at
}

// requireHistory holds the history of all counters to what was acknowledged.
func (k *killTest) requireHistory(ctx context.Context) (commits int) {
	all := map[percolator.Timestamp]bool{}
	for _, name := range killNames() {
		versions := k.versionsOf(ctx, ownCell(name))
		require.EqualValues(k.t, k.last[name], len(versions), name)
		for n, ts := range k.acked[name] {
			require.Equal(k.t, ts, versions[n-1], "the writer %s was told of %d", name, n)
		}
		for _, ts := range versions {
			require.False(k.t, all[ts], "two commits at %d", ts)
			all[ts] = true
		}
	}
	commits = len(all)
	for i := range killTotals {
		for _, ts := range k.versionsOf(ctx, totalCell(i)) {
			require.True(k.t, all[ts], "a commit at %d is of no writer", ts)
			delete(all, ts)
		}
	}
	require.Empty(k.t, all, "commits that no total counts")
	return commits
}

// Processes that commit in one phase are killed at any moment, and the server naps where a moment would be short: with the
// timestamp drawn, and before the commit. Another process reads and writes all the time.
func TestKilledInOnePhase(t *testing.T) {
	t.Parallel()
	direct := testserver.Postgres(t)
	bouncer := testserver.NewPgBouncer(t, testserver.SharedPostgres(t), testserver.PgBouncerOptions{}).URL
	for name, way := range map[string]struct {
		url    string
		params []string
	}{
		"Direct":      {direct, nil},
		"Uncoalesced": {direct, []string{"coalesce", "off"}},
		"PgBouncer":   {bouncer, []string{"coalesce", "off"}},
		"Explicit":    {direct, []string{"default_transaction_isolation", "serializable"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			schema := fresh(t, direct)
			k := &killTest{
				t: t, rng: rand.New(rand.NewPCG(seed, 0)), direct: direct, pooled: way.url == bouncer,
				dsn:   with(way.url, append(way.params, "schema", schema, "pool_max_conns", "8")...),
				acked: map[string]map[uint64]percolator.Timestamp{}, last: map[string]uint64{},
			}
			k.run(testContext(t), schema)
		})
	}
}

func (k *killTest) run(ctx context.Context, schema string) {
	t := k.t
	var err error
	k.bank, err = openKillBank(ctx, k.dsn)
	require.NoError(t, err)
	atend.Do(t, func() { require.NoError(t, k.bank.db.Close(context.WithoutCancel(ctx))) })
	require.NoError(t, k.bank.db.Update(ctx, func(tx *percolator.Txn) error {
		for i := range killAccounts {
			if err := setNumber(tx, accountCell(i), killDeposit); err != nil {
				return err
			}
		}
		return nil
	}))
	n := newNames(schema)
	sqlDo(t, k.direct, "SET search_path = pg_catalog, pg_temp;"+n.expand(dropFunctions)+nappingFunctions(n))
	watcher := connect(ctx, t, k.direct)

	end, failed := k.stay(ctx)
	kills := 3
	if testing.Short() {
		kills = 2
	}
	for range kills {
		app := k.kill(k.rng.IntN(60))
		k.requireGone(ctx, watcher, app)
		k.requireOthersGoOn(ctx, failed)
		k.requireStored(ctx)
	}
	require.NoError(t, end())
	stats := k.bank.db.Stats()
	require.Zero(t, stats.Group+stats.TwoPhase, "%+v", stats)
	requireUnlocked(ctx, t, watcher, n)
	commits := k.requireHistory(ctx)
	t.Logf("%d commits, %d and %d looks, %d kills", commits, k.looks[0].Load(), k.looks[1].Load(), kills)
}
