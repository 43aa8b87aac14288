package faultstore

import (
	"fmt"
	"time"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// CallKind is a kind of call that can have a fault.
type CallKind uint8

// The kinds of calls.
const (
	CallRead CallKind = 1 + iota
	CallApply
	CallGroup
	CallScan
	CallTables
	CallFlush
	CallDraw // of a timestamp, from the store's oracle
	CallSplit
	CallListen
	CallReadSnapshot
)

// lastCall is the last of the kinds.
const lastCall = CallReadSnapshot

var callNames = [...]string{"", "read", "apply", "group", "scan", "tables", "flush", "draw", "split", "listen", "read snapshot"}

// String names the kind.
func (k CallKind) String() string {
	if int(k) < len(callNames) {
		return callNames[k]
	}
	return fmt.Sprintf("call kind %d", uint8(k))
}

// FaultKind says what goes wrong with a call.
type FaultKind uint8

// The kinds of faults. Those of a row go wrong in Read, ReadSnapshot, Apply and Group only,
// Late, Twice and LoseOthers in Apply and Group; in other calls they do nothing.
const (
	// NoFault: nothing goes wrong.
	NoFault FaultKind = iota
	// Fail: the call does not reach the store, and its caller knows that. A Scan or
	// Tables may yield some rows or tables first (Fault.Rows).
	Fail
	// LoseReply: the call reached the store (Fault.Applied) or did not, and its caller
	// cannot tell. The error of an Apply or Group matches ErrAmbiguous.
	LoseReply
	// FailRow: one row, or group, of the batch (Fault.Row) fails for certain.
	FailRow
	// LoseRow: the outcome of one mutation or group of the batch (Fault.Row) is
	// unknown; Fault.Applied tells whether it was sent. A read row just fails.
	LoseRow
	// Delay: the call stands still for Fault.Delay before it reaches the store.
	Delay
	// Late: the caller is told that the outcome is unknown, and the call reaches the
	// store later: when Fault.Rows more calls of the wrapper have begun, or at
	// DeliverLate. With negative Fault.Rows it is sent at once, in a goroutine of its
	// own, for which Settle and Close wait.
	Late
	// Twice: the call reaches the store twice in a row, and the caller gets the second
	// answer, as with some drivers.
	Twice
	// CrashClient: the process dies, after the store did the call (Fault.Applied) or
	// before. From then on every call of this wrapper fails.
	CrashClient
	// CrashStore: the store crashes and restarts at once (see rowstore.Crasher). With
	// Fault.Applied it crashes after it did the call, whose reply is lost. Otherwise it
	// crashes before the call, which finds the restarted store.
	CrashStore
	// LoseOthers: one mutation or group of the batch (Fault.Row) is sent. The outcome of
	// all others is unknown; they were not sent.
	LoseOthers
)

// lastFault is the last of the kinds.
const lastFault = LoseOthers

var faultNames = [...]string{"no fault", "fail", "lose reply", "fail row", "lose row", "delay", "late", "twice", "crash client", "crash store", "lose others"}

// String names the kind.
func (k FaultKind) String() string {
	if int(k) < len(faultNames) {
		return faultNames[k]
	}
	return fmt.Sprintf("fault kind %d", uint8(k))
}

// Fault is what happens to one call. The zero value is no fault.
type Fault struct {
	Kind FaultKind
	// Applied tells whether the store did the call, for LoseReply, LoseRow,
	// CrashClient and CrashStore.
	Applied bool
	Row     int           // for FailRow, LoseRow and LoseOthers; taken modulo the length of the batch, so -1 is the last one
	Rows    int           // for Fail of a Scan or Tables, and for Late
	Delay   time.Duration // for Delay
	// Err, if not nil, is matched by the error of Fail and FailRow besides ErrInjected:
	// for example rowstore.ErrUnavailable.
	Err error
}

// row is the index of the row that goes wrong, of a batch of n.
func (f Fault) row(n int) int { return (f.Row%n + n) % n }

// String names the kind, and tells whether the call was applied where the kind alone does
// not.
func (f Fault) String() string {
	switch {
	case f.Kind != LoseReply && f.Kind != LoseRow && f.Kind != CrashClient && f.Kind != CrashStore:
		return f.Kind.String()
	case f.Applied:
		return f.Kind.String() + " after it"
	}
	return f.Kind.String() + " before it"
}

// Call tells a hook about a call. Its slices belong to the caller: a hook must neither
// change nor keep them. Rules get a copy, which they may keep.
type Call struct {
	Seq    uint64 // 1 for the first call of the wrapper
	Kind   CallKind
	Reads  []rowstore.RowRead      // CallRead
	Asks   []rowstore.SnapshotRead // CallReadSnapshot
	Muts   []rowstore.Mutation     // CallApply
	Opts   rowstore.ApplyOptions   // CallApply
	Groups []rowstore.Group        // CallGroup
	Range  rowstore.ScanRange      // CallScan
	N      int                     // CallDraw and CallSplit: how many

	// What the store has answered, for Rule.After.
	Rows          []rowstore.Row          // CallRead
	Answers       []rowstore.SnapshotRows // CallReadSnapshot
	Outcomes      []rowstore.Outcome      // CallApply
	GroupOutcomes []rowstore.GroupOutcome // CallGroup
	Timestamp     rowstore.Timestamp      // CallDraw
	Err           error

	f    *Store
	rule *Rule // that strikes it, or nil
}

// Rates are the probabilities, between 0 and 1, that a call has a fault of each
// kind; at most one strikes. Their sum is at most 1.
type Rates struct {
	Fail, LoseReply, FailRow, LoseRow, Delay, Late, Twice, CrashClient, CrashStore float64
	// MaxDelay is the longest Delay. Default 1 ms.
	MaxDelay time.Duration
}

// list has the rates in the order of the kinds, from Fail on.
func (r Rates) list() [9]float64 {
	return [...]float64{r.Fail, r.LoseReply, r.FailRow, r.LoseRow, r.Delay, r.Late, r.Twice, r.CrashClient, r.CrashStore}
}
