package combine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/typed"
)

// processLease is that of the sessions and locks of the processes here. They are suspended for longer.
const processLease = 300 * time.Millisecond

// hasty makes cells idle while a process is suspended.
func hasty[T any](c *Combiner[T]) *Combiner[T] {
	c.freshFor, c.idleAfter, c.looksFor, c.idle = 20*time.Millisecond, 50*time.Millisecond, 1, 2
	return c
}

// adding is a process that adds to "marked", together with a row for each addition, and to "now" by AddNow. It says which ones were acknowledged, and which are
// not known.
var adding = everystore.NewRole("combine", func(ctx context.Context, url, name string) error {
	within := context.WithoutCancel(ctx)
	db, err := percolator.Open(within, url, percolator.WithSessionLease(processLease), percolator.WithLockExpiry(processLease))
	if err != nil {
		return err
	}
	c, err := New(db, "count", typed.Number[int]{}, Sum[int])
	if err != nil {
		return err
	}
	hasty(c)
	say := func(what string, err error) {
		switch {
		case err == nil:
			fmt.Println(what)
		case errors.Is(err, percolator.ErrUndetermined):
			fmt.Println("unknown", what)
		default:
			fmt.Println("failed", what, err)
		}
	}
	for i := 0; ctx.Err() == nil; i++ {
		say("added", db.Update(within, func(tx *percolator.Txn) error {
			return errors.Join(c.Add(within, tx, "marked", 1), tx.Set(percolator.Cell{Table: "mark", Row: name + strconv.Itoa(i), Column: "c"}, nil))
		}))
		say("now", c.AddNow(within, "now", 1))
	}
	return db.Close(within)
})

// TestSuspendedProcesses has two processes that add and combine, and suspends one of them again and again at a random moment, for longer than its leases last. The other one goes
// on meanwhile, and combines what the suspended one has left; and so does the first one afterwards. The values are exact.
func TestSuspendedProcesses(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64() //nolint:gosec // a seed that is printed
	t.Logf("seed %d", seed)
	everystore.URLs(t, func(t *testing.T, url string) {
		random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // as above
		processes := []*everystore.Process{adding.Start(t, url, "a")}
		if !everystore.Embedded(url) { // which has one process
			processes = append(processes, adding.Start(t, url, "b"))
		}
		for _, p := range processes {
			p.Await(t, "now", 3)
		}
		for range 4 {
			victim := random.IntN(len(processes))
			p, other := processes[victim], processes[(victim+1)%len(processes)]
			p.Await(t, "now", len(p.Said("now"))+random.IntN(4))
			p.Suspend(t)
			begun, atLeast := time.Now(), len(other.Said("now"))+4
			other.Until(t, func() bool {
				return time.Since(begun) > 4*processLease && (other == p || len(other.Said("now")) >= atLeast)
			}, "the other process adds nothing while one is suspended")
			before := len(p.Said("now"))
			p.Resume(t)
			p.Await(t, "now", before+4)
		}
		added, now, unknown := 0, 0, 0
		for _, p := range processes {
			p.End(t)
			added, now = added+len(p.Said("added")), now+len(p.Said("now"))
			for _, what := range p.Said("unknown") {
				if what == "now" {
					unknown++
				}
			}
			t.Logf("%d and %d acknowledged, %d unknown, %d failed", len(p.Said("added")), len(p.Said("now")), len(p.Said("unknown")), len(p.Said("failed")))
		}
		db, err := percolator.Open(t.Context(), url)
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close(context.WithoutCancel(t.Context()))) }()
		marks := 0
		require.NoError(t, db.View(t.Context(), func(tx *percolator.Txn) error {
			for row, err := range tx.Scan(t.Context(), percolator.Range{Table: "mark"}) {
				if err != nil {
					return err
				}
				require.True(t, strings.HasPrefix(row.Key, "a") || strings.HasPrefix(row.Key, "b"))
				marks++
			}
			return nil
		}))
		c := eager(counter(t, db), 1)
		require.GreaterOrEqual(t, marks, added)
		for range 2 { // as it was left, and combined
			require.Equal(t, marks, get(t, c, "marked"))
			n := get(t, c, "now")
			require.GreaterOrEqual(t, n, now)
			require.LessOrEqual(t, n, now+unknown)
			for _, key := range []string{"marked", "now"} {
				_, err := c.Combine(t.Context(), key)
				require.NoError(t, err)
			}
		}
		require.Equal(t, 1, cells(t, c, "marked"))
		require.Equal(t, 1, cells(t, c, "now"))
	})
}
