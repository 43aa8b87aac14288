package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

const (
	// ticksVariable holds the URL of the store of a process that runs a periodic.
	ticksVariable = "PERCOLATOR_TORTURE_TICKS"
	// ticksKills changes how many processes are killed.
	ticksKills = "PERCOLATOR_TORTURE_TICKS_KILLS"

	ticksProcesses = 8
	ticksEvery     = 250 * time.Millisecond
	ticksAKill     = 10 // ticks from one kill to the next: two and a half seconds, while the machine keeps up
	tableTicks     = "tick"
)

// openTicks opens a store by its URL.
func openTicks(ctx context.Context, url string) (*percolator.DB, error) {
	store, err := rowstore.Open(ctx, url)
	if err != nil {
		return nil, err
	}
	return percolator.New(ctx, store, percolator.WithLogger(slog.New(slog.DiscardHandler)),
		percolator.WithSettings(percolator.Settings{CatalogLease: 2 * time.Second}), percolator.WithSessionLease(sessionLease), percolator.WithLockExpiry(lockExpiry))
}

// ticksMain is a process that runs the periodic until its standard input ends. Each run writes a cell of its tick.
func ticksMain(url string) error {
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	db, err := openTicks(ctx, url)
	if err != nil {
		return err
	}
	w := percolator.NewWorker(db, percolator.WorkerConfig{MemberLease: time.Second})
	err = w.Every(percolator.Periodic{
		Name: "tick", Schedule: percolator.Interval(ticksEvery), Missed: percolator.Each(10_000),
		Func: func(_ context.Context, tx *percolator.Txn, tick time.Time) error {
			return tx.Set(percolator.Cell{Table: tableTicks, Row: fmt.Sprint(tick.UnixMilli()), Column: "by"}, fmt.Append(nil, os.Getpid()))
		},
	})
	if err == nil {
		err = w.Run(ctx)
	}
	return err
}

// Eight processes run one periodic, and one of them is killed all the time: each tick is committed exactly once.
func TestTicks(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	kills := 4
	if s := os.Getenv(ticksKills); s != "" {
		_, err := fmt.Sscan(s, &kills)
		require.NoError(t, err)
	}
	for name, url := range map[string]func(testing.TB) string{
		"redis":    func(t testing.TB) string { return testserver.NewRedis(t, nil).URL },
		"postgres": func(t testing.TB) string { return testserver.NewPostgres(t, nil).URL },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			torment(t, url(t), kills, rand.New(rand.NewPCG(seed, 1))) //nolint:gosec // a test
		})
	}
}

// torment kills a process after some ticks, and starts another in its place.
func torment(t *testing.T, url string, kills int, rng *rand.Rand) {
	t.Helper()
	db, err := openTicks(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close(context.Background())) })
	var processes []*exec.Cmd
	start := func() *exec.Cmd {
		c := exec.Command(os.Args[0]) //nolint:gosec // this program
		c.Env = append(os.Environ(), ticksVariable+"="+url)
		c.Stderr = os.Stderr
		_, err := c.StdinPipe() // it ends with this process
		require.NoError(t, err)
		require.NoError(t, c.Start())
		return c
	}
	end := func(c *exec.Cmd) {
		_ = c.Process.Kill()
		assert.EqualError(t, c.Wait(), "signal: killed", "the process had ended by itself")
	}
	for range ticksProcesses {
		processes = append(processes, start())
	}
	defer func() {
		for _, c := range processes {
			end(c)
		}
	}()
	seen := 0
	var ticks []committedTick
	for range kills {
		want := seen + ticksAKill
		require.Eventually(t, func() bool {
			ticks = committedTicks(t, db)
			seen = len(ticks)
			return seen >= want
		}, 2*time.Minute, 100*time.Millisecond)
		// The one that has run the last tick, if it is not dead already.
		i := slices.IndexFunc(processes, func(c *exec.Cmd) bool { return fmt.Sprint(c.Process.Pid) == ticks[seen-1].by })
		if i < 0 {
			i = rng.IntN(len(processes))
		}
		end(processes[i])
		processes[i] = start()
	}
	want := seen + ticksAKill
	require.Eventually(t, func() bool {
		ticks = committedTicks(t, db)
		return len(ticks) >= want
	}, 2*time.Minute, 100*time.Millisecond)
	by := map[string]int{}
	for i, tick := range ticks {
		require.Equal(t, ticks[0].at+int64(i)*ticksEvery.Milliseconds(), tick.at, "a tick is missing")
		versions := 0
		for _, err := range db.History(t.Context(), percolator.Cell{Table: tableTicks, Row: fmt.Sprint(tick.at), Column: "by"}, 0, 0) {
			require.NoError(t, err)
			versions++
		}
		require.Equal(t, 1, versions, "of tick %d", tick.at)
		by[tick.by]++
	}
	t.Logf("%d ticks, %d kills, ticks of each process: %v", len(ticks), kills, by)
	require.Greater(t, len(by), 1, "all ticks were of one process, so no kill mattered")
}

// committedTick is a tick, and the process that committed it.
type committedTick struct {
	at int64
	by string
}

func committedTicks(t *testing.T, db *percolator.DB) (ticks []committedTick) {
	t.Helper()
	require.NoError(t, db.View(t.Context(), func(tx *percolator.Txn) error {
		ticks = ticks[:0]
		for row, err := range tx.Scan(t.Context(), percolator.Range{Table: tableTicks}) {
			if err != nil {
				return err
			}
			tick := committedTick{by: string(row.Columns["by"])}
			if _, err := fmt.Sscan(row.Key, &tick.at); err != nil {
				return err
			}
			ticks = append(ticks, tick)
		}
		return nil
	}))
	return ticks
}
