package checker

import (
	"fmt"

	"github.com/percolate-go/percolate/percolator/oracle"
)

// History is what the clients of a database saw: their transactions, in any order.
type History []Txn

// Outcome says how a transaction ended, as far as its client knows. The zero value
// is Unknown, so a transaction that was never completed counts as unknown.
type Outcome uint8

// The outcomes.
const (
	Unknown   Outcome = iota // committed, not committed, or still under way
	Committed                // the commit was acknowledged
	Aborted                  // certainly not committed
)

// String returns the outcome's name.
func (o Outcome) String() string {
	switch o {
	case Unknown:
		return "unknown"
	case Committed:
		return "committed"
	case Aborted:
		return "aborted"
	}
	return fmt.Sprintf("Outcome(%d)", uint8(o))
}

// Isolation is the level that a transaction asked for.
type Isolation uint8

// The isolation levels.
const (
	SnapshotIsolation Isolation = iota
	Serializable
)

// String returns the level's name, as the JSON form has it.
func (i Isolation) String() string {
	switch i {
	case SnapshotIsolation:
		return "snapshot-isolation"
	case Serializable:
		return "serializable"
	}
	return fmt.Sprintf("Isolation(%d)", uint8(i))
}

// OpKind says what an Op does.
type OpKind uint8

// The kinds of operations. A key is either a register or a list through a whole
// history.
const (
	Read     OpKind = iota // of a register
	Write                  // of a register, or its deletion
	ReadList               // of a whole list
	Append                 // of one element to the end of a list
)

// Op is one operation of a transaction, in the order of the program.
//
// Values are integers that stand for what was stored. No two writes of a key should
// write the same value, and no two appends to a list the same element: only then
// does a value that was read tell who wrote it. CheckValues requires that. Without
// it, CheckTimestamps judges transactions of unknown outcome less sharply.
type Op struct {
	Kind   OpKind
	Locks  bool    // of a read: through GetForUpdate
	Absent bool    // Read: nothing was there; Write: the key was deleted
	Key    string  // in UTF-8; for a cell, its String
	Value  int64   // what was read, written or appended
	List   []int64 // ReadList: what was there, nil if nothing
}

// Run says that a transaction was the run of an observer.
type Run struct {
	// Observer is the observer's name.
	Observer string
	// Key is the observed key whose change made the observer run. The run saw the
	// newest change at its start timestamp. The operations should contain the read of
	// the key; it is judged like every other read.
	Key string
}

// Txn is one transaction of a history.
type Txn struct {
	// Process names the client. A process runs one transaction after another, never
	// two at once.
	Process int
	// Invoke and Complete are the times, in nanoseconds, when the transaction was
	// asked for and when its outcome was known, on a clock that all processes of the
	// history share. Complete is 0 if the outcome never became known.
	Invoke, Complete int64
	// Start and Commit are the timestamps. Each is 0 if nobody knows it (in the
	// history of another system, say). Commit is 0 also if nothing was written.
	Start, Commit oracle.Timestamp
	Outcome       Outcome
	Isolation     Isolation
	// AsOf says that the caller chose the snapshot, which may be an old one.
	AsOf bool
	Ops  []Op
	// Run is nil if the transaction is not an observer's run.
	Run *Run
	// Error is the error that the transaction ended with, for people.
	Error string
}

// Writes tells whether the transaction writes anything.
func (t *Txn) Writes() bool {
	for i := range t.Ops {
		if t.Ops[i].Kind == Write || t.Ops[i].Kind == Append {
			return true
		}
	}
	return false
}
