package percolator

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// A transaction of one cell more than a step may hold commits in pieces. Whichever of its calls
// its client dies at, and whether that call arrives or not, others find all of it or nothing, and
// no lock stays.
func TestKilledOneCellAboveTheLimit(t *testing.T) {
	t.Parallel()
	const most = 300 // more than a piece
	for name, fault := range map[string]verdict{"the call is lost": die, "the call arrives": dieAfter} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all, nothing := 0, 0
			for step := 0; ; step++ {
				w := newWorld(t)
				c, other := w.client(), w.client()
				c.step = rowstore.Limits{Operations: 4*most + 1}
				cells := make([]Cell, most+1)
				for i := range cells {
					cells[i] = row(fmt.Sprintf("%04d", i))
				}
				if step == 0 {
					set(t, c.DB, row("before"), "1")
					small := writes(t, c, "0", cells[:most]...)
					before := len(c.wire.sent(prewrites))
					require.NoError(t, small.Commit(t.Context()))
					require.Len(t, c.wire.sent(prewrites), before, "one cell less goes in one step")
				}
				tx := writes(t, c, "1", cells...)
				died := c.wire.AddRule(faultstore.Rule{Match: anyCall, Skip: step, Fault: fault})
				err := w.finish(commit(c, tx))
				if err == nil {
					require.NoError(t, c.drained(t.Context()))
				}
				if died.Struck() == 0 {
					require.NoError(t, err)
					require.Greater(t, step, 2*most/pieceRows)
					break
				}
				c.session.mu.Lock()
				joined := c.session.id != ""
				c.session.mu.Unlock()
				if joined {
					w.takeForDead(c)
				}
				seen := 0
				require.NoError(t, other.View(t.Context(), func(tx *Txn) error {
					for _, cell := range cells {
						switch v, err := tx.Get(t.Context(), cell); {
						case err == nil && string(v) == "1":
							seen++
						case err != nil && !errors.Is(err, ErrNotFound):
							return err
						}
					}
					return nil
				}))
				require.Contains(t, []int{0, len(cells)}, seen, "killed at call %d", step)
				if err == nil {
					require.Len(t, cells, seen, "it was acknowledged")
				}
				if seen > 0 {
					all++
				} else {
					nothing++
				}
				w.noLocks()
			}
			require.Greater(t, all, 1)
			require.Greater(t, nothing, 1)
		})
	}
}
