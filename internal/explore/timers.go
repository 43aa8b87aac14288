package explore

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
)

// timerSet is what a transaction has done to the timer of a cell. At most one for each cell counts, the last.
type timerSet struct {
	cell percolator.Cell
	due  percolator.Timestamp
	off  bool // it has cancelled the timer
}

// SetTimer sets the timer of a cell, to a time after the transaction's snapshot.
func (tx *Txn) SetTimer(cell percolator.Cell, ahead time.Duration) error {
	now, err := tx.Now(tx.c.ctx)
	if err != nil {
		return err
	}
	due := now.Add(ahead)
	tx.rec.timers = append(tx.rec.timers, timerSet{cell: cell, due: oracle.FromTime(due)})
	return tx.NotifyAt(cell, due)
}

// StopTimer takes the timer of a cell back.
func (tx *Txn) StopTimer(cell percolator.Cell) error {
	tx.rec.timers = append(tx.rec.timers, timerSet{cell: cell, off: true})
	return tx.CancelNotify(cell)
}

// committedTimer is such a thing that took effect.
type committedTimer struct {
	timerSet
	commit percolator.Timestamp
}

// at is the timestamp from which on a run sees the timer.
func (t *committedTimer) at() percolator.Timestamp { return max(t.due, t.commit) }

// timersOf lists what transactions that were committed have done to the timer of a cell, oldest first.
func (h *history) timersOf(cell percolator.Cell) (all []committedTimer) {
	for _, r := range h.records {
		// What the store has seen counts, also of runs of observers, whose records tell no outcome.
		commit, landed := h.fates[r.start]
		for i := len(r.timers) - 1; i >= 0 && landed; i-- {
			if r.timers[i].cell == cell {
				all = append(all, committedTimer{r.timers[i], commit})
				break
			}
		}
	}
	slices.SortFunc(all, func(a, b committedTimer) int { return cmp.Compare(a.commit, b.commit) })
	return all
}

// timerOf tells whether a run had a timer to see: it was due when the run began, later than the run before, and nobody has
// set or cancelled it before the run was committed.
func (h *history) timerOf(cell percolator.Cell, from percolator.Timestamp, r committedRun) bool {
	all := h.timersOf(cell)
	i := len(all) - 1
	for i >= 0 && all[i].commit >= r.commit {
		i-- // also what the run itself has set
	}
	if i < 0 || all[i].off {
		return false
	}
	return all[i].commit <= r.start && all[i].at() <= r.start && all[i].at() > from
}

// checkLastTimer makes sure that the timer that is left was seen. from is the start of the last run.
func (h *history) checkLastTimer(name string, cell percolator.Cell, from percolator.Timestamp) error {
	all := h.timersOf(cell)
	if len(all) == 0 {
		return nil
	}
	if last := &all[len(all)-1]; !last.off && last.at() > from {
		return fmt.Errorf("the timer of %v that was committed at %d and was due at %d led to no committed run of %q", cell, uint64(last.commit), uint64(last.due), name)
	}
	return nil
}
