package percolator

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// wideCells are cells of one row.
func wideCells(row string, n int) []Cell {
	cells := make([]Cell, n)
	for i := range cells {
		cells[i] = Cell{"t", row, fmt.Sprintf("c%06d", i)}
	}
	return cells
}

// What a transaction that died has left in a row is more than one step of the store may hold. Whoever meets it resolves it.
func TestWideDeadTransactionWithinTheBytesOfAStep(t *testing.T) {
	t.Parallel()
	primary, value := row("a"), strings.Repeat("x", 200)
	cells := wideCells("wide", 1000)
	for name, meets := range map[string]func(t *testing.T, w *world, c *client, tx *Txn, committed bool){
		"scan": func(t *testing.T, _ *world, c *client, _ *Txn, committed bool) {
			read := begin(t, c)
			n := 0
			for row, err := range read.Scan(t.Context(), Range{Table: "t"}) {
				require.NoError(t, err)
				n += len(row.Columns)
			}
			require.Equal(t, committed, n == len(cells)+1, "%d cells", n)
		},
		"commit": func(t *testing.T, _ *world, c *client, _ *Txn, _ bool) {
			require.NoError(t, writes(t, c, "new", append([]Cell{row("b")}, cells...)...).Commit(t.Context()))
		},
		"validation": func(t *testing.T, _ *world, _ *client, tx *Txn, _ bool) {
			require.NoError(t, tx.Set(Cell{"other", "r", "v"}, []byte("1")))
			_ = tx.Commit(t.Context()) // it conflicts, or not; the locks are met in both cases
		},
		"collection": func(t *testing.T, w *world, c *client, _ *Txn, _ bool) {
			w.pass(2 * worldAge)
			_, err := w.collect(c, time.Second)
			require.NoError(t, err)
		},
	} {
		for _, committed := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/committed %v", name, committed), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, memstore.WithLimits(rowstore.Limits{Bytes: 32 << 10}))
				dead, c := w.client(withoutGroups()), w.client()
				tx := begin(t, c, WithIsolation(Serializable))
				for _, err := range tx.Scan(t.Context(), Range{Table: "t"}) {
					require.NoError(t, err)
				}
				at := commitPoint(primary)
				if committed {
					at = secondaries(primary)
				}
				dead.wire.verdict(at, die)
				_ = writes(t, dead, value, append([]Cell{primary}, cells...)...).Commit(t.Context())
				require.NoError(t, dead.drained(t.Context()))
				require.NotEmpty(t, w.versions(rowstore.Lock))
				w.pass(worldSession + time.Second)
				meets(t, w, c, tx, committed)
				require.NoError(t, c.drained(t.Context()))
				if name != "validation" {
					w.noLocks()
				}
			})
		}
	}
}

// Each call that resolves what a large transaction has left in wide rows is bounded.
func TestWideRowsOfADeadTransactionAreResolvedInPieces(t *testing.T) {
	t.Parallel()
	for _, committed := range []bool{true, false} {
		t.Run(fmt.Sprint("committed ", committed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			dead, c := w.client(withoutGroups()), w.client()
			cells := []Cell{row("a")}
			for i := range settleMost - 1 {
				cells = append(cells, wideCells(fmt.Sprintf("r%06d", i), 200)...)
			}
			at := commitPoint(cells[0])
			if committed {
				at = secondaries(cells[0])
			}
			dead.wire.verdict(at, die)
			_ = writes(t, dead, "dead", cells...).Commit(t.Context())
			require.NoError(t, dead.drained(t.Context()))
			w.pass(worldSession + time.Second)
			for _, err := range begin(t, c).Scan(t.Context(), Range{Table: "t"}) {
				require.NoError(t, err)
			}
			w.noLocks()
			largest := 0
			for _, x := range c.wire.sent(op(faultstore.CallApply)) {
				n := 0
				for i := range x.Muts {
					n += rowstore.SizeOf(&x.Muts[i]).Operations
				}
				largest = max(largest, n)
			}
			require.Less(t, largest, operationsOfLock*pieceBytes/128)
		})
	}
}

// Notifications with long names are removed within the bytes of a step, by a run and by a collection.
func TestNotificationsWithinTheBytesOfAStep(t *testing.T) {
	t.Parallel()
	w := newWorld(t, memstore.WithLimits(rowstore.Limits{Bytes: 32 << 10}))
	cell := Cell{"t", "r", strings.Repeat("c", 400)}
	w.observed("t", cell.Column, "o", "gone")
	c := w.client()
	for i := range mostCleared + 10 {
		set(t, c.DB, cell, fmt.Sprint(i))
	}
	require.NoError(t, c.RemoveObserver(t.Context(), "gone"))
	var s saw
	o := s.observer("o")
	o.Table, o.Column = "t", cell.Column
	wk := watching(t, c, o)
	require.Len(t, w.notified(cell), mostCleared+10)
	runs(t, wk, cell)
	for range 3 {
		rests(t, wk, cell)
	}
	require.Empty(t, w.notified(cell))
}
