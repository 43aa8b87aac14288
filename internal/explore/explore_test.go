package explore

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

var (
	limitFlag  = flag.Int("explore.limit", usualLimit, "schedules of each bounded program explored systematically, 0 for all")
	wholeFlag  = flag.Int("explore.whole", -1, "schedules, at most, of each program of two clients and at most one crash, which is to be explored to its end: 0 for all, -1 for the limit of the bounded ones")
	randomFlag = flag.Int("explore.random", usualRandom, "schedules of each bounded program explored at random")
	seedFlag   = flag.Uint64("explore.seed", 0, "seed of the random ones; 0 for a fresh one")
	leastFlag  = flag.Int("explore.least", 0, "fail if fewer distinct schedules were explored in all")
	onlyFlag   = flag.String("explore.only", "", "explore only programs whose names contain this")
)

// TestExplore explores every program. It is long because what a program was explored by
// decides what is counted and said of it.
func TestExplore(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	var mu sync.Mutex
	var complete, partly []string
	total := 0
	t.Run("program", func(t *testing.T) {
		for _, p := range programs() {
			if !strings.Contains(p.Name, *onlyFlag) {
				continue
			}
			t.Run(p.Name, func(t *testing.T) {
				t.Parallel()
				seen := Seen{}
				committed := 0 // of a few schedules at random, which crash, none may commit
				check := func(report Report, v *ViolationError) {
					t.Helper()
					t.Log(report)
					fail(t, p.Program, v)
					committed += report.Committed
					require.Positive(t, committed, "nothing was committed")
				}
				name, done, atRandom := "", false, *randomFlag
				switch p.how {
				case random:
					atRandom += *limitFlag
				case seldom:
					atRandom = 1 + (atRandom+*limitFlag)/100
				case whole, bounded, sparse:
					limit := *limitFlag
					if p.how == sparse {
						limit, atRandom = (limit+3)/4, (atRandom+3)/4
					}
					if p.how == whole && *wholeFlag >= 0 {
						limit = *wholeFlag
					}
					report, v := All(t, p.Program, limit, seen)
					check(report, v)
					require.True(t, report.Complete || limit > 0)
					name, done = fmt.Sprintf(" %d", report.Schedules), report.Complete
				}
				if !done {
					report, v := Random(t, p.Program, atRandom, seed, seen)
					check(report, v)
					name += fmt.Sprintf(" %d at random", report.Schedules)
				}
				name = p.Name + ":" + name
				mu.Lock()
				defer mu.Unlock()
				total += len(seen)
				if done {
					complete = append(complete, name)
				} else {
					partly = append(partly, name)
				}
			})
		}
	})
	if t.Failed() {
		return
	}
	slices.Sort(complete)
	slices.Sort(partly)
	t.Logf("explored completely: %d programs\n\t%s", len(complete), strings.Join(complete, "\n\t"))
	t.Logf("explored in part: %d programs\n\t%s", len(partly), strings.Join(partly, "\n\t"))
	t.Logf("%d distinct schedules, 0 violations", total)
	if *onlyFlag == "" {
		require.GreaterOrEqual(t, total, *leastFlag)
	}
}

// fail reports a violation by the shortest script that still shows it.
func fail(t *testing.T, p Program, v *ViolationError) {
	t.Helper()
	if v == nil {
		return
	}
	if len(v.Script) > 0 {
		v.Script = Reduce(t, p, v.Script)
		happened, err := Replay(t, p, v.Script)
		if err != nil {
			v.Err, v.Script = err, happened
		}
	}
	t.Fatal(v)
}

// A judge that finds nothing would let everything pass, so one that must find
// something is part of the suite: a client that reads at two snapshots.
func TestViolationIsFoundReducedAndReplayed(t *testing.T) {
	t.Parallel()
	torn := func(ctx context.Context, c *Client) {
		r := c.newRecord()
		for _, cell := range []percolator.Cell{a, b} {
			_ = c.DB.View(ctx, func(tx *percolator.Txn) error {
				r.start = startOf(ctx, tx)
				_, err := (&Txn{tx, c, r}).Read(ctx, cell)
				return err
			})
		}
	}
	p := Program{Name: "reads at two snapshots", Setup: prepared, Clients: clients{writer(a, b), torn}}
	report, v := All(t, p, 0, Seen{})
	require.NotNil(t, v, report.String())
	require.ErrorContains(t, v, "the newest version is")
	short := Reduce(t, p, v.Script)
	require.LessOrEqual(t, len(short), len(v.Script))
	happened, err := Replay(t, p, short)
	require.Error(t, err)
	again, err := Replay(t, p, happened)
	require.Equal(t, happened, again)
	require.ErrorContains(t, err, "the newest version is")
}

// touchRow changes a row by one call of the store.
func touchRow(ctx context.Context, c *Client, row string) {
	_, _ = c.DB.Store().Apply(ctx, []rowstore.Mutation{{Table: "x", Row: row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Mark, "v", 1, nil)}}}, rowstore.ApplyOptions{})
}

// The reduction explores one order of calls that do not touch the same things, and
// every order of those that do.
func TestReduction(t *testing.T) {
	t.Parallel()
	apart := Program{Name: "apart", Clients: clients{
		func(ctx context.Context, c *Client) { touchRow(ctx, c, "x") },
		func(ctx context.Context, c *Client) { touchRow(ctx, c, "y") },
	}}
	report, v := All(t, apart, 0, Seen{})
	require.Nil(t, v)
	require.True(t, report.Complete)
	require.Equal(t, 1, report.Schedules, "two rows apart")
	same := apart
	same.Clients = clients{
		func(ctx context.Context, c *Client) { touchRow(ctx, c, "x"); touchRow(ctx, c, "x") },
		func(ctx context.Context, c *Client) { touchRow(ctx, c, "x"); touchRow(ctx, c, "x") },
	}
	report, v = All(t, same, 0, Seen{})
	require.Nil(t, v)
	require.Equal(t, 6, report.Schedules, "two calls each on one row: 4 choose 2")
	require.Zero(t, report.Repeated)
}
