package percolator

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// A push makes those workers look whose slots it names, or all if it names none.
func TestPushConcernsOwners(t *testing.T) {
	t.Parallel()
	dbs, taps := clients(t, 2, false)
	var calls atomic.Int64
	workers := make([]*Worker, len(dbs))
	for i, db := range dbs {
		workers[i] = startWorker(t, db, WorkerConfig{}, counting("o", "v", &calls))
	}
	for _, w := range workers {
		idle(t, w)
	}
	q := func(w *Worker) *queue { return w.list[0] }
	require.Eventually(t, func() bool {
		for _, w := range workers {
			if all := w.member.shares.Load(); all == nil || all.at(q(w), w.now()).kind != shareSlots {
				return false
			}
		}
		return true
	}, patience, time.Millisecond, "both have a part")
	for i := range 100 {
		row := fmt.Sprint(i)
		at := rowstore.Wake{Table: "t", Slots: []uint16{rowstore.Slot("t", row)}}
		require.NotEqual(t, workers[0].concerned(at), workers[1].concerned(at), "each row concerns one of them")
		for _, w := range workers {
			require.Equal(t, w.owns(q(w), Cell{"t", row, "v"}, w.now()), len(w.concerned(at)) == 1)
			require.Empty(t, w.concerned(rowstore.Wake{Table: "another", Slots: at.Slots}))
		}
	}
	// What another worker owns makes nobody look, and everything is run.
	before := [2]int64{taps[0].scans.Load(), taps[1].scans.Load()}
	const changes = 50
	for i := range changes {
		require.NoError(t, dbs[i%2].Update(t.Context(), func(tx *Txn) error { return tx.Set(Cell{"t", fmt.Sprint(i), "v"}, nil) }))
		require.Eventually(t, func() bool { return calls.Load() > int64(i) }, patience, time.Millisecond, "change %d is run", i)
	}
	scans := taps[0].scans.Load() - before[0] + taps[1].scans.Load() - before[1]
	require.GreaterOrEqual(t, scans, int64(1))
	t.Logf("%d scans for %d changes", scans, changes)
	require.EqualValues(t, changes, calls.Load())
}

// A wake of a row that somebody else owns still ends the wait for a lock, which may be
// anybody's.
func TestPushOfOthersResumesWhatIsLocked(t *testing.T) {
	t.Parallel()
	dbs, _ := clients(t, 1, false)
	w := NewWorker(dbs[0], WorkerConfig{})
	require.NoError(t, w.Observe(Observer{Name: "o", Table: "t", Column: "v", Func: func(context.Context, *Txn, Cell) error { return nil }}))
	w.member.shares.Store(&shares{w.list[0]: {{kind: shareNone}}})
	w.pauseJob(&pausedJob{job: job{Cell{"t", "r", "v"}, w.list[0].o}, q: w.list[0], until: dbs[0].clock.Now().Add(time.Hour), locked: true})
	w.stopping = true // nothing is to run
	require.Len(t, w.locked["t"], 1)
	w.kick(rowstore.Wake{Table: "t", Slots: []uint16{1}})
	require.Empty(t, w.locked["t"], "it is no longer left alone")
	require.Empty(t, w.kicks["t"], "it does not look")
	w.kick(rowstore.Wake{Table: "t"})
	require.Len(t, w.kicks["t"], 1)
}

// What a push told of while it was another worker's is looked at as soon as it comes to be this
// worker's own, before all else that does.
func TestPushesBeforeAHandover(t *testing.T) {
	t.Parallel()
	wk, w := idleWorker(t)
	give := func(kind shareKind) {
		all := shares{}
		for _, q := range wk.list {
			all[q] = []share{{kind: kind}}
		}
		wk.member.shares.Store(&all)
		wk.noteGained()
	}
	a := wk.asked["t"]
	tell := func(slots ...uint16) { wk.kick(rowstore.Wake{Table: "t", Slots: slots}) }
	for range 3 {
		give(shareNone)
		a.takeGained()
		tell(9, 5)
		require.Empty(t, a.take(), "it is another worker's")
		w.clock.advance(wk.toldFor() - 1)
		tell(70)
		w.clock.advance(1)
		tell(70, 71)
		give(shareAll)
		require.Equal(t, []uint16{5, 9, 70, 71}, a.take())
		require.NotNil(t, a.takeGained())
		tell(4)
		require.Equal(t, []uint16{4}, a.take())
		give(shareNone)
		w.clock.advance(2 * wk.toldFor())
		give(shareAll)
		require.Empty(t, a.take())
		require.Empty(t, wk.kicks["t"])
	}
}
