package percolator

import (
	"errors"
	"fmt"
	"time"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Errors of reads and writes, matched with errors.Is.
var (
	// ErrNotFound: the cell has no value at the transaction's snapshot.
	ErrNotFound = errors.New("percolator: not found")
	// ErrInvalid: an argument breaks a rule (an empty name, say). Nothing was done.
	ErrInvalid = rowstore.ErrInvalid
	// ErrTooLarge: a name, a value or the whole transaction is over a limit.
	// Nothing was written.
	ErrTooLarge = rowstore.ErrTooLarge
	// ErrReadOnly: a write in a View, or in a transaction with WithAsOf.
	ErrReadOnly = errors.New("percolator: the transaction is read only")
	// ErrTxnDone: the transaction was committed or rolled back already.
	ErrTxnDone = errors.New("percolator: the transaction has ended")
	// ErrSnapshotTooOld: the snapshot, or the transaction that Outcome was asked
	// about, lies below the safe point, where history may have been collected.
	ErrSnapshotTooOld = errors.New("percolator: the snapshot is older than the safe point")
	// ErrSnapshotInFuture: WithAsOf names a snapshot that later commits could change.
	ErrSnapshotInFuture = errors.New("percolator: the snapshot is in the future")
	// ErrClosed: the DB, its store or its oracle was closed.
	ErrClosed = rowstore.ErrClosed
	// ErrOracleWentBack: the oracle handed out a timestamp that is not above one that it
	// had handed out before, or one that the data already has. It has lost its state, or
	// belongs to other data. Nothing can be read or written safely until the oracle is
	// above those timestamps again.
	ErrOracleWentBack = errors.New("percolator: the oracle went back; restore its state before you go on")
	// ErrCorrupt: stored data is damaged and cannot be decoded: a record of this library,
	// or what the backend keeps around it.
	ErrCorrupt = rowstore.ErrCorrupt
	// ErrFormat: a newer version of this library wrote the data, or a part of it, or
	// data of another kind is there. Nothing was changed. Upgrade this program.
	ErrFormat = rowstore.ErrFormat
	// ErrForeign: what is there is another application's. Nothing was changed. It matches
	// ErrFormat too; take another directory, prefix or schema.
	ErrForeign = rowstore.ErrForeign
	// ErrDenied: the store does not let this program in, or lets it not do this: a wrong
	// password, a missing permission, a certificate that one side does not accept.
	ErrDenied = rowstore.ErrDenied
	// ErrFull: the store has no room left for a write, on its disk or in its memory. Nothing was
	// written, and reads go on. It passes when somebody makes room.
	ErrFull = rowstore.ErrFull
	// ErrUnavailable: a server of the store is away: it restarts, cannot be reached, or another one takes over. Calls that certainly had no
	// effect were repeated for WithStorePatience before. Nothing was done: try again later.
	ErrUnavailable = rowstore.ErrUnavailable
	// ErrNoStore: there is no database, or no store, where one was to be opened as it is; see
	// WithExisting. Nothing was made.
	ErrNoStore = rowstore.ErrNoStore
)

// errDBClosed is ErrClosed of a DB.
var errDBClosed = fmt.Errorf("percolator: the DB is %w", ErrClosed)

// Errors of Commit, matched with errors.Is. They never blur: after ErrConflict
// and ErrTxnTooOld nothing was written, for certain.
var (
	// ErrConflict: another transaction was first; see ConflictError. The
	// transaction had no effect and may be run again from a new snapshot, which is
	// what Update does.
	ErrConflict = errors.New("percolator: conflict")
	// ErrTxnTooOld: more than MaxTxnAge has passed since the transaction began, or it
	// began below the safe point of a table; see TxnTooOldError. It had no effect.
	ErrTxnTooOld = errors.New("percolator: the transaction is too old to commit")
	// ErrUndetermined: the context ended, or too much time passed, before it could
	// be found out whether the transaction was committed; see UndeterminedError.
	ErrUndetermined = errors.New("percolator: it is not known whether the transaction was committed")
)

// ErrTraceLost: Outcome was asked about a cell that may not be the transaction's
// primary and that no longer holds a trace of it. The transaction may be committed or
// not.
var ErrTraceLost = errors.New("percolator: the cell has lost its trace of the transaction; ask by its primary")

// Errors of observers and workers, matched with errors.Is.
var (
	// ErrNotObserved: Notify on a column that no observer watches.
	ErrNotObserved = errors.New("percolator: no observer watches the column")
	// ErrObserverRemoved: an observer of the worker was taken out of the catalog by
	// RemoveObserver, so the worker has stopped. Another Worker's Run registers it again.
	ErrObserverRemoved = errors.New("percolator: the observer was removed")
	// ErrTooManyHops: a run was parked without a call, because as many runs of observers as Observer.MaxHops allows lie
	// before its change, each one set off by the one before. Observers set each other off without end.
	ErrTooManyHops = errors.New("percolator: too many runs of observers follow from one another")
	// ErrWorkerRunning: a second Run, or an Observe after Run.
	ErrWorkerRunning = errors.New("percolator: the worker has been started already")
)

// ConflictError says which cell another transaction was first on. It matches
// ErrConflict.
type ConflictError struct {
	Cell Cell
	// With is the timestamp of the version that stood in the way: the commit timestamp
	// of another transaction's write, the start timestamp of another transaction's lock,
	// or the timestamp of a mark. It is 0 if no single version did.
	With Timestamp
	// Reason says what happened, in a few words.
	Reason string
}

func (e *ConflictError) Error() string {
	s := fmt.Sprintf("%v on %v: %s", ErrConflict, e.Cell, e.Reason)
	if e.With != 0 {
		s += fmt.Sprintf(" (at %v)", e.With)
	}
	return s
}

// Is makes errors.Is(err, ErrConflict) hold.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// UndeterminedError names a transaction whose commit may or may not have
// happened. It matches ErrUndetermined; DB.OutcomeOf takes it and finds out.
type UndeterminedError struct {
	Start Timestamp
	// Primary is the cell that decides. It may be one of the library's own, with its
	// stored name. It is zero for a transaction that has only weak notifications, and
	// neither locks nor validated reads. Such a transaction leaves no record; it may be
	// repeated, at the cost of one run too many.
	Primary Cell
	Cause   error
}

func (e *UndeterminedError) Error() string {
	if e.Primary == (Cell{}) {
		return fmt.Sprintf("%v: transaction %d, of notifications alone: %v", ErrUndetermined, uint64(e.Start), e.Cause)
	}
	return fmt.Sprintf("%v: transaction %d, primary %v: %v", ErrUndetermined, uint64(e.Start), e.Primary, e.Cause)
}

// Is makes errors.Is(err, ErrUndetermined) hold.
func (e *UndeterminedError) Is(target error) bool { return target == ErrUndetermined }

func (e *UndeterminedError) Unwrap() error { return e.Cause }

// SnapshotTooOldError says how far a snapshot lies below the safe point. It
// matches ErrSnapshotTooOld.
type SnapshotTooOldError struct {
	Snapshot, SafePoint Timestamp
	// Table is the table whose safe point that is, if it has one of its own.
	Table string
}

func (e *SnapshotTooOldError) Error() string {
	if e.Table != "" {
		return fmt.Sprintf("%v: snapshot %v, safe point of table %q %v", ErrSnapshotTooOld, e.Snapshot, e.Table, e.SafePoint)
	}
	return fmt.Sprintf("%v: snapshot %v, safe point %v", ErrSnapshotTooOld, e.Snapshot, e.SafePoint)
}

// Is makes errors.Is(err, ErrSnapshotTooOld) hold.
func (e *SnapshotTooOldError) Is(target error) bool { return target == ErrSnapshotTooOld }

// TxnTooOldError says how old a transaction was when it tried to commit. It
// matches ErrTxnTooOld.
type TxnTooOldError struct {
	Start, Now Timestamp
	MaxTxnAge  time.Duration
	// SafePoint is not 0 if the transaction was young enough, and began below the safe point: what
	// conflicts with it may have been removed. Table is as in SnapshotTooOldError.
	SafePoint Timestamp
	Table     string
}

func (e *TxnTooOldError) Error() string {
	if e.SafePoint != 0 {
		below := SnapshotTooOldError{Snapshot: e.Start, SafePoint: e.SafePoint, Table: e.Table}
		return fmt.Sprintf("%v: %v", ErrTxnTooOld, &below)
	}
	return fmt.Sprintf("%v: it began at %v, %v ago; MaxTxnAge is %v", ErrTxnTooOld, e.Start, e.Now.Sub(e.Start), e.MaxTxnAge)
}

// Is makes errors.Is(err, ErrTxnTooOld) hold.
func (e *TxnTooOldError) Is(target error) bool { return target == ErrTxnTooOld }
