package percolator

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// A replay that somebody else has cancelled, and perhaps begun anew, is no more that of the first call, which asks for nothing more.
func TestScheduleR_BegunAnewBySomebodyElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.replays()
	c := w.client()
	o := newTold(t, c, "o", "t")
	set(t, c.DB, rowA, "1")
	require.True(t, o.run(rowA))
	_, err := c.loadCatalog(t.Context())
	require.NoError(t, err)
	report := &ReplayReport{}
	r := &replay{db: c.DB, record: c.replayOf("o", &Range{Table: "t"}, "v"), report: report}
	r.record.ID, err = c.Now(t.Context())
	require.NoError(t, err)
	next, err := c.Now(t.Context())
	require.NoError(t, err)
	for _, begun := range []bool{false, true} {
		if begun {
			other := r.record
			other.ID = next
			b, err := other.Encode()
			require.NoError(t, err)
			require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.put(Cell(other.Cell()), format.KindPut, b) }))
		}
		over, err := r.ask(t.Context())
		require.NoError(t, err)
		require.True(t, over)
		require.False(t, w.asked(rowA, "o"))
		require.Zero(t, report.Cells)
	}
	r.record.ID = next
	_, err = r.ask(t.Context())
	require.NoError(t, err)
	require.True(t, w.asked(rowA, "o"), "it is its own")
}

// sharded has a server for each first letter of a row.
type sharded struct{ rowstore.Store }

func (sharded) Shard(_, row string) string { return row[:1] }

// Cells of other rows that were hinted go with the first read alone, and only if their server has to answer that read anyway. One of a row that is read goes
// with it in any case.
func TestWhatGoesWithTheFirstRead(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	atend.Do(t, func() { _ = mem.Close() })
	hinted := []Cell{{"t", "a1", "x"}, {"t", "b1", "x"}, {"t", "a2", "x"}}
	for _, c := range []struct {
		store rowstore.Store
		first []Cell // that go with a read of a2/v, of which a2/x is no cell
	}{
		{sharded{mem}, []Cell{hinted[0], hinted[2]}}, {mem, hinted},
	} {
		a := &readAhead{hinted: append([]Cell(nil), hinted...)}
		db := &DB{store: c.store}
		require.Equal(t, c.first, a.take(db, []Cell{{"t", "a2", "v"}}))
		require.Len(t, a.hinted, len(hinted)-len(c.first))
		require.Empty(t, a.take(db, []Cell{{"t", "b2", "v"}}), "it is not the first read")
	}
	a := &readAhead{hinted: []Cell{{"t", "b1", "x"}, {"t", "b1", "y"}, {"t", "b2", "x"}}, begun: true}
	require.Equal(t, []Cell{{"t", "b1", "y"}}, a.take(&DB{store: sharded{mem}}, []Cell{{"t", "b1", "x"}}))
	require.Equal(t, []Cell{{"t", "b2", "x"}}, a.hinted)
}
