package percolator

import "sync/atomic"

// Stats are counts since the DB was opened, of this process alone. WithMetrics reports each field as a counter whose name is percolator. and the field's in small
// letters, with words joined by "_" (LocksMet: percolator.locks_met), but for these:
//
//   - OnePhase, Group and TwoPhase are commits.one_phase, commits.group and commits.two_phase.
//   - RolledBackSessionGone and RolledBackExpired are rolled_back.session_gone and rolled_back.expired.
//   - The words Observer, Notify, Timers and GC in front are followed by a dot: observer.runs, notify.scans, timers.fired, gc.hints_lost.
type Stats struct {
	Transactions uint64 // begun
	ReadOnly     uint64 // ended without anything to write: every View, and commits of nothing

	// Committed transactions, by the way they went.
	OnePhase uint64 // the timestamp drawn and everything written in one call
	Group    uint64 // prewrite, then all rows all or none
	TwoPhase uint64 // prewrite, then the primary, then the secondaries

	Conflicts    uint64 // commits that ended with ErrConflict
	Retries      uint64 // times that Update ran its function again
	Undetermined uint64 // commits that ended with ErrUndetermined
	Ambiguous    uint64 // replies lost at a commit point and resolved afterwards

	LocksMet              uint64 // locks of others that stood in the way
	RolledForward         uint64 // cells of others, after their commit point
	RolledBack            uint64 // cells of others, because their transaction was not committed
	RolledBackSessionGone uint64 // transactions rolled back or fenced because their session was gone
	RolledBackExpired     uint64 // transactions rolled back or fenced because their lock had expired

	ObserverRuns      uint64 // observer functions that committed
	ObserverConflicts uint64 // runs ended by a conflict, to be run again
	ObserverFailures  uint64 // errors and panics of observer functions
	ObserverCleared   uint64 // notifications cleared with nothing to do
	ObserverParked    uint64 // runs parked after MaxAttempts
	ObserverBroken    uint64 // times that a worker left an observer alone because nearly all its runs failed
	ObserverViews     uint64 // cells that were read to see what is to be done
	NotifyScans       uint64 // scans for notifications
	NotifyFound       uint64 // cells with notifications found by them

	TimersFired   uint64 // timers of the index that were due, and whose cells were notified
	TimersDropped uint64 // timers that were removed because nobody observes their columns

	GCRuns     uint64 // collections of all tables that ended without an error; those of GCOptions.Within do not count
	GCFailures uint64 // collections of all tables that failed, other than by the end of their context or by Close
	GCVersions uint64 // versions removed by any collection
	GCRead     uint64 // rows that collections have looked at, also those under way
	GCSearches uint64 // collections that looked for locks in all rows
	GCDamaged  uint64 // rows that collections could not read, each time
	// Hints of garbage that were lost because the store did not take them, or for lack of room. What
	// they named is collected with the next collection that looks at every row.
	GCHintsLost uint64
}

// counters are the running counts behind Stats.
type counters struct {
	transactions, readOnly              atomic.Uint64
	onePhase, group, twoPhase           atomic.Uint64
	conflicts, retries                  atomic.Uint64
	undetermined, ambiguous             atomic.Uint64
	locksMet, rolledForward, rolledBack atomic.Uint64
	sessionGone, expired                atomic.Uint64
	observerRuns, observerConflicts     atomic.Uint64
	observerFailures, observerCleared   atomic.Uint64
	observerParked, observerViews       atomic.Uint64
	observerBroken                      atomic.Uint64
	notifyScans, notifyFound            atomic.Uint64
	timersFired, timersDropped          atomic.Uint64
	gcRuns, gcFailures, gcVersions      atomic.Uint64
	gcRead, gcSearches, gcHintsLost     atomic.Uint64
	gcDamaged                           atomic.Uint64
}

// Stats returns the counts so far. It may be called at any time, also after
// Close.
func (db *DB) Stats() Stats {
	c := &db.count
	return Stats{
		Transactions: c.transactions.Load(), ReadOnly: c.readOnly.Load(),
		OnePhase: c.onePhase.Load(), Group: c.group.Load(), TwoPhase: c.twoPhase.Load(),
		Conflicts: c.conflicts.Load(), Retries: c.retries.Load(),
		Undetermined: c.undetermined.Load(), Ambiguous: c.ambiguous.Load(),
		LocksMet: c.locksMet.Load(), RolledForward: c.rolledForward.Load(), RolledBack: c.rolledBack.Load(),
		RolledBackSessionGone: c.sessionGone.Load(), RolledBackExpired: c.expired.Load(),
		ObserverRuns: c.observerRuns.Load(), ObserverConflicts: c.observerConflicts.Load(),
		ObserverFailures: c.observerFailures.Load(), ObserverCleared: c.observerCleared.Load(),
		ObserverParked: c.observerParked.Load(), ObserverViews: c.observerViews.Load(),
		ObserverBroken: c.observerBroken.Load(),
		NotifyScans:    c.notifyScans.Load(), NotifyFound: c.notifyFound.Load(),
		TimersFired: c.timersFired.Load(), TimersDropped: c.timersDropped.Load(),
		GCRuns: c.gcRuns.Load(), GCFailures: c.gcFailures.Load(), GCVersions: c.gcVersions.Load(),
		GCRead: c.gcRead.Load(), GCSearches: c.gcSearches.Load(), GCHintsLost: c.gcHintsLost.Load(),
		GCDamaged: c.gcDamaged.Load(),
	}
}
