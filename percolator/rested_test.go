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
		covered  restedBits
	}{
		{1, [3]Timestamp{change, change, 0}, nil, 3},
		{1, [3]Timestamp{change, change - 1, 0}, nil, 1},
		{1, [3]Timestamp{0, change, 0}, func(v *cellView) { v.failures[0] = format.Failure{Change: change, Parked: true} }, 3},
		{1, [3]Timestamp{0, change, 0}, func(v *cellView) { v.failures[0] = format.Failure{Change: change} }, 2},
		{1, [3]Timestamp{change, change, 0}, func(v *cellView) { v.ackLocked[2] = true }, 0},
		{1, [3]Timestamp{change, change, 0}, func(v *cellView) { v.later = true }, 0},
		// A run for another observer may be parked by a transaction that is not decided; a request for a replay is that observer's alone.
		{1, [3]Timestamp{change, change, 0}, func(v *cellView) { v.failureLocked[1], v.ackFree = true, []bool{true, false, true} }, 0},
		{1, [3]Timestamp{change, change, 0}, func(v *cellView) { v.failureLocked[1], v.ackFree = true, []bool{true, true, true} }, 1},
		// A weak notification may come late, below the eight that a look is shown.
		{seenVersions - 1, [3]Timestamp{change, change, 0}, nil, 3},
		{seenVersions, [3]Timestamp{oldest, oldest - 1, 0}, nil, 1},
		{seenVersions + 5, [3]Timestamp{newest, oldest, 0}, nil, 3},
	} {
		c := row(fmt.Sprint(i))
		v := &cellView{
			cell: c, registrations: registrations{names: []string{"o", "p", "foreign"}}, acks: test.acks[:], ackLocked: make([]bool, 3), failureLocked: make([]bool, 3),
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
		if test.notified >= seenVersions {
			require.Zero(t, wk.rested.covers(c, seen, now.Add(crowdedAge)), "case %d: a strong one may come late there", i)
		}
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
	v := &cellView{cell: row("r"), registrations: registrations{names: []string{"o", "foreign"}}, acks: []Timestamp{2, 0}, ackLocked: make([]bool, 2), failureLocked: make([]bool, 2), failures: make([]format.Failure, 2), change: 1}
	now := w.clock.Now()
	wk.rested.put(v.cell, 1, 1, now.Add(time.Minute), now)
	wk.rested.put(v.cell, 5, 1, now.Add(time.Hour), now)
	wk.rested.n = mostRested
	wk.skipUntilChanged(v)
	require.Equal(t, mostRested, wk.rested.n)
	require.NotZero(t, wk.rested.covers(v.cell, wk.signature(v), now))
	require.Zero(t, wk.rested.covers(v.cell, 1, now), "it would have been forgotten first")
	require.NotZero(t, wk.rested.covers(v.cell, 5, now))
	wk.rested.put(row("another"), 3, 1, now.Add(time.Hour), now)
	require.Equal(t, mostRested, wk.rested.n)
	require.Zero(t, wk.rested.covers(row("another"), 3, now), "there is none in its slot in whose place it could go")
	// What is over makes room for others of its slot.
	wk.rested.n = 2
	now = now.Add(2 * time.Hour)
	wk.rested.put(v.cell, 7, 1, now.Add(time.Hour), now)
	require.Equal(t, 2, wk.rested.n)
	require.NotZero(t, wk.rested.covers(v.cell, 7, now))
	// Of very many, each is remembered for longer.
	require.Less(t, wk.rested.age(1<<63), restedAge)
	wk.rested.n = mostRested
	require.Greater(t, wk.rested.age(1<<63), 2*restedAge)
}

// What lies in slots that a worker has lost takes no room.
func TestRememberedCellsOfLostSlots(t *testing.T) {
	t.Parallel()
	wk, w := idleWorker(t)
	give := func(kind shareKind, slots *slotSet) {
		all := shares{}
		for _, q := range wk.list {
			all[q] = []share{{kind: kind, slots: slots}}
		}
		wk.member.shares.Store(&all)
		wk.noteGained()
	}
	give(shareAll, nil)
	now := w.clock.Now()
	kept, lost := row("a"), row("b")
	for i, c := range []Cell{kept, lost, lost} {
		wk.rested.put(c, uint64(i), 1, now.Add(time.Hour), now)
	}
	var own slotSet
	own.add(rowstore.Slot("t", kept.Row))
	give(shareSlots, &own)
	require.Equal(t, 1, wk.rested.n)
	require.NotZero(t, wk.rested.covers(kept, 0, now))
	require.Zero(t, wk.rested.covers(lost, 1, now))
}

// What waits is known beside what is covered, until the first of them ends; and what is covered
// later takes the place of both.
func TestWaitingIsRememberedBesideCovered(t *testing.T) {
	t.Parallel()
	r, c, now := newRested(), row("r"), time.Unix(1e9, 0)
	for _, first := range []restedBits{1, 2 | waits} {
		seen := uint64(first)
		r.put(c, seen, first, now.Add(time.Hour), now)
		r.put(c, seen, 4|waits, now.Add(2*time.Hour), now)
		require.Equal(t, first|4|waits, r.covers(c, seen, now))
		require.Zero(t, r.covers(c, seen, now.Add(time.Hour)))
		require.Zero(t, r.covers(c, seen+100, now))
		require.Zero(t, r.covers(row("s"), seen, now))
		r.put(c, seen, 3, now.Add(2*time.Hour), now)
		require.Equal(t, restedBits(3), r.covers(c, seen, now.Add(time.Hour)))
		r.put(c, seen, 4|waits, now.Add(4*time.Hour), now.Add(3*time.Hour))
		require.Equal(t, 4|waits, r.covers(c, seen, now.Add(3*time.Hour)), "what was known before is over")
	}
	require.Zero(t, (&queue{index: 31}).bit())
	require.Zero(t, (&queue{index: 40}).bit())
}

// A prewrite that comes late puts its notification below those that a look is shown, if there are many. Its cell is known to wait for others then, but
// WaitIdle does not go by that, and the next look but a few finds it, though its client died before it rolled the cell forward.
func TestNotificationBelowThoseThatALookIsShown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o", "foreign")
	c := w.client()
	set(t, c.DB, rowB, "0")
	var rows saw
	wk := rowWorker(t, c, &rows)
	dead := w.client(withoutGroups())
	late := writes(t, dead, "1", rowA, rowB)
	_, err := late.StartTimestamp(t.Context())
	require.NoError(t, err)
	for range seenVersions {
		require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Notify(rowB) }))
	}
	require.Equal(t, []string{"b"}, dealt(t, wk, &rows))
	require.Empty(t, dealt(t, wk, &rows))
	left, err := (&idleLook{w: wk}).anyLeft(t.Context(), false)
	require.NoError(t, err)
	require.False(t, left)
	dead.wire.verdict(secondaries(rowA), die)
	_ = late.Commit(t.Context())
	require.Equal(t, []string{"a"}, dealt(t, wk, &rows))
	left, err = (&idleLook{w: wk}).anyLeft(t.Context(), false)
	require.NoError(t, err)
	require.True(t, left)
	w.takeForDead(dead)
	w.pass(crowdedAge)
	require.Equal(t, []string{"b"}, dealt(t, wk, &rows))
	require.Equal(t, "1", value(t, c, rowB))
}
