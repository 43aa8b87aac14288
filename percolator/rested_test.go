package percolator

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// A cell is passed over only while a look would show any change that an observer of
// this worker has to see.
func TestCellsThatAreRemembered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o", "p", "foreign")
	wk := watching(t, w.client(), Observer{Name: "o", Func: nothing}, Observer{Name: "p", Func: nothing})
	const change, newest = Timestamp(100), Timestamp(200)
	notified := func(n int) (all []rowstore.Version) {
		for i := range n {
			all = append(all, rowstore.Version{Family: rowstore.Notify, Column: "v", TS: newest - Timestamp(i)})
		}
		return all
	}
	oldest := newest - seenVersions + 1 // of those that a look is shown
	for i, test := range []struct {
		notified int
		acks     [3]Timestamp
		change   func(v *cellView)
		covered  uint64
	}{
		{1, [3]Timestamp{change, change, 0}, nil, 3},
		{1, [3]Timestamp{change, change - 1, 0}, nil, 1},
		{1, [3]Timestamp{0, change, 0}, func(v *cellView) { v.failures[0] = format.Failure{Change: change, Parked: true} }, 3},
		{1, [3]Timestamp{0, change, 0}, func(v *cellView) { v.failures[0] = format.Failure{Change: change} }, 2},
		{1, [3]Timestamp{change, change, 0}, func(v *cellView) { v.ackLocked[2] = true }, 0},
		{1, [3]Timestamp{change, change, 0}, func(v *cellView) { v.later = true }, 0},
		// A weak notification may come late, below the eight that a look is shown.
		{seenVersions - 1, [3]Timestamp{change, change, 0}, nil, 3},
		{seenVersions, [3]Timestamp{oldest, oldest - 1, 0}, nil, 1},
		{seenVersions + 5, [3]Timestamp{newest, oldest, 0}, nil, 3},
	} {
		c := row(fmt.Sprint(i))
		v := &cellView{
			cell: c, registrations: registrations{names: []string{"o", "p", "foreign"}}, acks: test.acks[:], ackLocked: make([]bool, 3),
			failures: make([]format.Failure, 3), change: change, notified: notified(test.notified),
		}
		if test.change != nil {
			test.change(v)
		}
		wk.skipUntilChanged(v)
		seen := wk.signature(v)
		now := w.clock.Now()
		require.Equal(t, test.covered, wk.rested.covers(c, seen, now), "case %d", i)
		require.Zero(t, wk.rested.covers(c, seen, now.Add(restedAge)), "it is looked at again some time")
		for what, other := range map[string]*cellView{
			"a newer notification":   {cell: c, registrations: registrations{names: v.names}, notified: append([]rowstore.Version{{TS: newest + 1}}, v.notified...)},
			"another observer":       {cell: c, registrations: registrations{names: v.names[:2]}, notified: v.notified},
			"another cell":           {cell: row("x"), registrations: registrations{names: v.names}, notified: v.notified},
			"one of these, and less": {cell: c, registrations: registrations{names: v.names}, notified: v.notified[1:]},
		} {
			require.Zero(t, wk.rested.covers(other.cell, wk.signature(other), now), "%d: %s", i, what)
		}
	}
}

// However many cells wait for others, the memory of them is bounded.
func TestRememberedCellsAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o", "foreign")
	wk := watching(t, w.client(), Observer{Name: "o", Func: nothing})
	for i := range uint64(mostRested) {
		wk.rested.cells[i] = restedCell{until: w.clock.Now().Add(time.Hour).UnixNano()}
	}
	v := &cellView{cell: row("r"), registrations: registrations{names: []string{"o", "foreign"}}, acks: []Timestamp{2, 0}, ackLocked: make([]bool, 2), failures: make([]format.Failure, 2), change: 1}
	wk.skipUntilChanged(v)
	require.LessOrEqual(t, len(wk.rested.cells), mostRested)
	require.NotZero(t, wk.rested.covers(v.cell, wk.signature(v), w.clock.Now()))
}
