// Package rowstore defines the seam between Percolator's protocol and a database: the
// row-transactional store. It is the document for authors of backends. The protocol
// above asks a database for no more than Bigtable gave the original (Peng and Dabek,
// OSDI 2010, section 2.1): atomic reads and conditional changes of one row, and ordered
// scans.
//
// Wrappers of stores are in the packages below: coalesce, router, faultstore and otelstore.
// Package memstore is the reference that every backend is compared with.
//
// # The model
//
// A table is a set of rows in the byte order of their keys. A row is a set of
// versions, each at an address (family, column, timestamp) with a value. Tables,
// rows and columns are named by strings of any bytes, never empty. A table or a
// row exists while it holds a version; nothing creates it. Timestamps lie
// between 1 and [oracle.Max], both included; a range of timestamps is closed at
// both ends, and one whose From lies above its To is empty.
//
// How a backend lays this out in its database is its own business. Each [Family] says
// what a backend may rely on.
//
// # Rules for every method
//
//   - All methods may be called concurrently.
//   - The caller does not change the slices that it passes until the call returns, and
//     the store does not keep them afterwards. What a store returns belongs to the
//     caller.
//   - A nil value and an empty one are the same.
//   - Each method honours its context: it returns soon after the context ended.
//     If the context ended before the call, the method does nothing.
//   - A bad argument gives an error that matches [ErrInvalid]. One that is over a limit
//     of the store gives an error that matches [ErrTooLarge]. Both come before anything
//     is written. [CheckReads], [CheckBatch], [CheckGroups] and [CheckScan] find bad
//     arguments, the same way for every backend.
//   - After Close every method returns an error that matches [ErrClosed]. A draw from
//     the store's oracle returns one that matches [oracle.ErrClosed], and may match
//     ErrClosed as well.
//   - Where several errors apply, a context that ended before the call wins over
//     Close. Whether bad arguments win over either is up to the store. An error of a
//     call under way matches the context's error if that is what ended the call,
//     ErrClosed if Close ended it, and besides either [ErrAmbiguous], if the call may
//     have changed something.
//   - Reads go to a primary server, never to a replica. An answer comes from a request
//     that left after the caller asked: a later call never gets the answer of an earlier
//     one.
//   - Once an Apply or Group has returned, every later Read, Scan, Apply or Group,
//     from any client, sees what it did.
package rowstore

import (
	"context"
	"errors"
	"iter"

	"github.com/percolate-go/percolate/percolator/oracle"
)

// Timestamp addresses a version; see package oracle.
type Timestamp = oracle.Timestamp

// AssignedTimestamp stands for the timestamp that the store assigns, in the edits of a
// [Group] with AssignTimestamp and in the selectors of a [SnapshotRead]. It is no timestamp
// itself: no oracle hands it out, and elsewhere it is invalid.
const AssignedTimestamp Timestamp = 1 << 63

// Family is the kind of a version. The numbers are stored by backends and never
// change.
type Family uint8

const (
	// Lock holds prewrites that are not yet decided, at their start timestamps.
	// A column has at most one version at a time. The caller puts one only under the
	// condition Absent of Lock, or at the same timestamp as the one that is there, which
	// replaces its value.
	Lock Family = 1
	// Write holds committed versions, at their commit timestamps. A column may
	// have very many. Most reads want the newest.
	Write Family = 2
	// Data holds values too long to travel inside Lock and Write, at the start
	// timestamp. Such a version is written once and never overwritten with
	// another value.
	Data Family = 3
	// Mark holds the mark: no transaction whose start is at or below it may
	// prewrite this column. A column has at most one version, the greatest: a Put
	// removes a lower one, and a Put below an existing one changes nothing.
	Mark Family = 4
	// Notify holds hints that an observer should run. Few rows have any. A Scan
	// that selects only Notify costs in proportion to the notifications in its
	// range, or at worst in its table, never to the rows. A column may have several.
	Notify Family = 5
)

// AllColumns, as the column of a Selector, means every column of the row.
const AllColumns = ""

// Selector selects versions of one family: those of Column whose timestamps lie in
// [From, To], newest first, at most Limit for each column (0 means all).
type Selector struct {
	Family   Family
	Column   string // AllColumns selects every column, each with its own Limit
	From, To Timestamp
	Limit    int
}

// RowRead asks for the versions of one row that any of the Selectors selects.
type RowRead struct {
	Table, Row string
	Selectors  []Selector // at least one
}

// Version is one version of a row.
type Version struct {
	Family Family
	Column string
	TS     Timestamp
	Value  []byte
}

// Row is the answer to a RowRead, or one step of a Scan.
type Row struct {
	Table, Row string
	// Versions is the union of what the selectors select, each version once, in the
	// order of family, then column (bytes), then timestamp, newest first. Empty
	// where nothing matched: an absent row is no error.
	Versions []Version
	// Hint says that the row may be notified and was not read: Versions is empty, and the caller
	// looks by itself. Only a Scan that asks for [ScanRange.Hints] has such rows.
	Hint bool
	// Err is the failure of this row alone: in a merged or routed batch, one dead
	// server does not fail the reads of other servers' rows. It is always nil in a Scan.
	Err error
}

// ConditionKind says what a Condition asks for.
type ConditionKind uint8

const (
	// IfAbsent: no version of Family in Column has a timestamp at or above TS.
	// Family is Write, Mark, Notify or Lock.
	IfAbsent ConditionKind = 1
	// IfAbsentAt: no Lock of Column stands exactly at TS.
	IfAbsentAt ConditionKind = 2
	// IfPresent: a Lock of Column stands exactly at TS.
	IfPresent ConditionKind = 3
	// IfIncarnation: the store's incarnation is Incarnation (see Deferrer). A store without
	// deferred batches has the incarnation "".
	IfIncarnation ConditionKind = 4
)

// Condition is one requirement on a row. Make them with [Absent], [AbsentAt],
// [Present] and [SameIncarnation].
type Condition struct {
	Kind        ConditionKind
	Family      Family
	Column      string
	TS          Timestamp
	Incarnation string
}

// Absent requires that column has no version of family at or above from, which
// may be 0 for none at all.
func Absent(family Family, column string, from Timestamp) Condition {
	return Condition{Kind: IfAbsent, Family: family, Column: column, TS: from}
}

// AbsentAt requires that column has no Lock exactly at ts.
func AbsentAt(column string, ts Timestamp) Condition {
	return Condition{Kind: IfAbsentAt, Family: Lock, Column: column, TS: ts}
}

// Present requires that column has a Lock exactly at ts.
func Present(column string, ts Timestamp) Condition {
	return Condition{Kind: IfPresent, Family: Lock, Column: column, TS: ts}
}

// SameIncarnation requires that the store's incarnation is still the given one, which an
// Outcome told. A store without deferred batches always has the incarnation "".
func SameIncarnation(incarnation string) Condition {
	return Condition{Kind: IfIncarnation, Incarnation: incarnation}
}

// EditKind says what an Edit does.
type EditKind uint8

const (
	// DoPut writes the version (Family, Column, TS) with Value, and replaces an existing
	// one. For Mark see the family.
	DoPut EditKind = 1
	// DoDelete removes the version (Family, Column, TS). It may be absent.
	DoDelete EditKind = 2
	// DoDeleteRange removes the versions of Family in Column from TS to To.
	DoDeleteRange EditKind = 3
)

// Edit is one change of a row. Make them with [Put], [Delete] and [DeleteRange].
type Edit struct {
	Kind   EditKind
	Family Family
	Column string
	TS     Timestamp // for DoDeleteRange the lower end, which may be 0
	To     Timestamp // DoDeleteRange only: the upper end, included
	Value  []byte    // DoPut only
}

// Put writes a version.
func Put(family Family, column string, ts Timestamp, value []byte) Edit {
	return Edit{Kind: DoPut, Family: family, Column: column, TS: ts, Value: value}
}

// Delete removes a version.
func Delete(family Family, column string, ts Timestamp) Edit {
	return Edit{Kind: DoDelete, Family: family, Column: column, TS: ts}
}

// DeleteRange removes the versions in [from, to].
func DeleteRange(family Family, column string, from, to Timestamp) Edit {
	return Edit{Kind: DoDeleteRange, Family: family, Column: column, TS: from, To: to}
}

// Mutation changes one row. If every condition holds, all edits happen; otherwise none
// does. The conditions are judged before any edit. A mutation without conditions always
// applies; one without edits is a check.
//
// No two edits of a mutation touch the same version, so their order does not matter. For
// the same reason a column has no other edit of family Mark beside a Put of it, no two
// Puts of family Lock, and no DeleteRange beside a Put at AssignedTimestamp of the same
// family.
type Mutation struct {
	Table, Row string
	Conditions []Condition
	Edits      []Edit
}

// ApplyOptions belong to a batch.
type ApplyOptions struct {
	// Deferred allows a store that is a Deferrer to make the batch durable later: no
	// later than the next Flush, or the next undeferred Apply or Group that changes anything. Every other
	// store ignores it.
	Deferred bool
	// AssignTimestamp asks a store for timestamps of its own oracle, one for each
	// mutation. They are drawn after the whole batch was applied and can be seen by every
	// Read. So the commit timestamp comes with the prewrites. A store that saves no round
	// trip by it ignores AssignTimestamp, and leaves Outcome.Timestamp 0.
	AssignTimestamp bool
	// Urgent marks a small batch that others wait for: it renews a lease or the expiry of
	// a lock. If it is late, other clients take its owner for dead. A wrapper never queues
	// it behind batches that are not urgent. A store without a queue ignores Urgent.
	Urgent bool
	// Bulk marks one of many batches of a large piece of work, such as a transaction of
	// a million cells. The caller sends few at a time. A wrapper never merges it with other
	// batches, and lets none wait for it. A store without a queue ignores Bulk.
	Bulk bool
}

// Outcome says what became of a mutation.
type Outcome struct {
	// Applied: every condition held, and all edits happened.
	Applied bool
	// Failed is the index of the first condition that did not hold, in the mutation's
	// order. It counts only if not Applied and Err is nil.
	Failed int
	// Broke is the version that broke that condition: the newest one that IfAbsent
	// or IfAbsentAt forbids, with its value. So the caller can resolve a lock without
	// reading again. It is zero for IfPresent and IfIncarnation.
	Broke Version
	// Incarnation is the store's incarnation as of this mutation. A Deferrer sets it in
	// every outcome, whether the mutation applied or not; every other store leaves it
	// "".
	Incarnation string
	// Timestamp was given to this mutation alone, if ApplyOptions.AssignTimestamp asked
	// for one and the mutation was applied; otherwise it is 0.
	Timestamp Timestamp
	// Err is the failure of this mutation alone. If it matches ErrAmbiguous, the mutation
	// may have been applied. Otherwise it certainly was not.
	Err error
}

// ScanRange names rows from From on, which is included, up to To, which is not.
type ScanRange struct {
	Table     string
	From, To  string     // "" is the start, or the end, of the table
	Reverse   bool       // from the end of the range to its start
	Selectors []Selector // at least one; a row in which none matches is not visited
	// Limit is the greatest number of rows that the caller will take, 0 for all. A
	// store visits no more.
	Limit int
	// Slots asks for the rows in some slots ([Slot]) alone, ascending and apart. It is only for
	// a [SlotScanner], and for Selectors of Notify alone. The rows then come in the order of
	// their slots, and those of one slot in byte order. From is the first row of the slot
	// Slots[0].First; To is "" and Reverse false. Empty means all rows, in byte order.
	Slots []SlotRange
	// Hints allows a scan of Slots to visit rows that it has not read, as hints ([Row.Hint]), if
	// that saves requests. It visits each row that it would visit otherwise, and perhaps some
	// in which nothing matches. A hint tells nothing but where to look, so it must never be
	// a reason to leave a row alone. A store may ignore this. One that gives hints remembers them
	// for some minutes, and reads a row before it visits that row again for the same
	// notification: what does not go away costs one vain look.
	Hints bool
	// Snapshot, if not nil, has the scan draw the timestamp at which it reads, or tell how old its rows may be. It
	// is only for a [SnapshotScanner], and for no Slots. It belongs to the scan until that has ended.
	Snapshot *ScanSnapshot
}

// SlotRange names the slots from First to Last, both included.
type SlotRange struct{ First, Last uint16 }

// Store is a row-transactional store: what a backend implements.
type Store interface {
	// Read answers each RowRead, in order, from one atomic view of its row: the row as
	// it was at one moment between the call and its return, never with a part of a
	// mutation. Different RowReads may be of different moments, even if they name the
	// same row.
	//
	// An error means that there are no answers. A failure of some of the rows goes into
	// their Err.
	Read(ctx context.Context, reads []RowRead) ([]Row, error)

	// Apply runs each Mutation atomically on its row, and gives the outcomes in
	// order. The rows of a batch are independent of each other: some may be
	// applied and others not. A batch names a row at most once.
	//
	// When Apply returns, applied mutations are as durable as the database makes
	// anything, unless opts say Deferred.
	//
	// An error that matches ErrAmbiguous means that each mutation may have been applied,
	// or may still be applied later. Any other error means that none was applied and
	// none will be. A store returns ErrAmbiguous whenever a mutation may have been
	// applied or may still be, and never when nothing can have happened. Neither the
	// store nor a driver under it sends an Apply twice by itself, unless an answer proves
	// that the first one was not applied.
	Apply(ctx context.Context, muts []Mutation, opts ApplyOptions) ([]Outcome, error)

	// Scan visits the rows of a range in which at least one Selector matches
	// something, in byte order, or in reverse, each in one atomic view. A row that
	// matched when the scan began, and still does when the scan passes it, is
	// visited; no row is visited twice. Rows are not of one moment.
	//
	// A Scan may read ahead: a row that it yields is as it was at some moment since the
	// call began, not necessarily since the caller asked for the next row. It reads no
	// further ahead than about a mebibyte of values or a thousand rows, and after the context
	// ended or the store was closed it may yield what it has read before it yields the
	// error. The first use of the sequence begins the call; each use is a scan of its own.
	//
	// At most one error is yielded, as the last step, with a zero Row. The caller may
	// stop at any row. It may call any method of the store from within the loop, so the
	// store must not hold a lock or a scarce connection meanwhile.
	Scan(ctx context.Context, s ScanRange) iter.Seq2[Row, error]

	// Tables lists the tables that hold anything, each once, in byte order. A table that
	// was emptied may still be listed. A table that held something when the call began,
	// and still does, must be listed. Errors are as in Scan.
	Tables(ctx context.Context) iter.Seq2[string, error]

	// Close releases what the store holds. Calls under way end with an error, or
	// finish first. A second Close does nothing and returns nil.
	Close() error
}

// Group is several mutations that happen together or not at all.
type Group struct {
	// Mutations are of different rows, whose GroupKeys are equal and not "".
	Mutations []Mutation
	// AssignTimestamp asks for a timestamp of the store's own oracle, drawn inside the
	// step, with all of the group's rows held: what the conditions are judged by holds at the timestamp.
	// It replaces [AssignedTimestamp] in the edits. A store may refuse such a group by an error
	// that matches ErrTooLarge, though it is within the Limits; the caller then commits in two phases.
	AssignTimestamp bool
	// NotAfter bounds the timestamp of a group with AssignTimestamp: if the timestamp is
	// greater, nothing happens and the outcome says TooLate. 0 means no bound.
	NotAfter Timestamp
}

// GroupOutcome says what became of a Group.
type GroupOutcome struct {
	// Applied: every condition of every mutation held, and all edits happened.
	Applied bool
	// Commit is the timestamp that a group with AssignTimestamp got, if it was applied.
	Commit Timestamp
	// TooLate: the timestamp drawn was greater than NotAfter; nothing was edited.
	TooLate bool
	// Failed is the index of a mutation that did not hold, and Outcome says which of its
	// conditions. They count only if neither Applied nor TooLate and Err is nil.
	Failed  int
	Outcome Outcome
	// Incarnation is as in Outcome.
	Incarnation string
	// Err is the failure of this group alone; ErrAmbiguous as in Outcome.
	Err error
}

// Grouper is the optional ability to change several rows all or none. Without it
// the secondaries of a transaction commit after the primary instead of with it.
type Grouper interface {
	// GroupKey tells which rows may share a group: those with equal keys. "" means that
	// the row may not be in any group, not even alone. It is a pure function.
	GroupKey(table, row string) string
	// AssignsTimestamps tells whether groups of that key may have AssignTimestamp: the
	// one-phase commit. Return true only if no reader can get a larger timestamp of the
	// same oracle and still miss the write.
	AssignsTimestamps(key string) bool
	// Group runs each group, all or none, and gives the outcomes in order. The
	// groups are independent of each other. A call names a row at most once. Errors
	// and durability are those of an undeferred Apply.
	Group(ctx context.Context, groups []Group) ([]GroupOutcome, error)
}

// Deferrer is the optional ability to make batches durable later. Such a store
// has an incarnation, a value that changes whenever it may have lost a deferred
// batch; see Outcome.Incarnation and IfIncarnation. Without it every Apply is
// durable when it returns.
type Deferrer interface {
	// Flush returns when every batch that was applied before the call is durable.
	Flush(ctx context.Context) error
}

// OracleProvider is the optional ability to hand out timestamps. Without it a
// database over the store names another oracle.
type OracleProvider interface {
	// Oracle returns the store's oracle, which lives as long as the store: after Close
	// its draws return an error that matches oracle.ErrClosed. A draw of less than one timestamp
	// is an error that matches ErrInvalid. Two stores that were opened on the same data share
	// their timestamps.
	Oracle() oracle.Oracle
}

// Splitter is the optional ability to cut a table into parts of similar size.
// Without it workers use row keys that they met in earlier scans.
type Splitter interface {
	// Split returns at most n-1 row keys (n >= 1), in ascending order and all
	// different, that cut table into at most n parts. A small table may have none.
	// It must cost much less than a scan.
	Split(ctx context.Context, table string, n int) ([]string, error)
}

// SlotScanner marks a store that finds notified rows by their slots: a Scan with
// [ScanRange.Slots] costs in proportion to the rows that it visits, plus a little for each
// range, however many notifications lie in other slots. Without this ability each worker
// reads the notifications of all.
//
// Such a store may have no other order of notifications. Then a Scan of Notify alone without
// Slots, which is in the order of rows, may read all of the table's, again and again, and may
// choose its rows further ahead than Scan says, up to some mebibytes of their names. The core
// makes none if it finds this ability. Over several stores of which one lacks it
// (package router) it finds none, and scans every table in the order of rows.
type SlotScanner interface {
	// ScansSlots does nothing.
	ScansSlots()
}

// Limits are the most that a store takes; 0 means no limit of its own.
type Limits struct {
	// Table, Row, Column and Value are the greatest lengths, in bytes.
	Table, Row, Column, Value int
	// Operations is the greatest number of conditions and edits, together, of one
	// atomic step: of one Mutation, or of all Mutations of one Group.
	Operations int
	// Bytes is the greatest size of one atomic step: its names and values together.
	Bytes int
}

// Limiter is the optional ability of a store with limits to tell them. The layer above
// then refuses what is over them before it writes anything.
type Limiter interface {
	Limits() Limits
}

// Sharder is the optional ability of a store whose rows lie on several servers to tell
// them apart. A wrapper that merges calls then keeps the rows of different servers apart,
// so that one slow server does not delay the calls to the others.
type Sharder interface {
	// Shard names the server, or the group of servers, that holds a row, as far as the
	// store knows now. Rows with different names slow down and fail independently. It is
	// quick, does no I/O, and its answers may change; nothing but speed depends on them.
	Shard(table, row string) string
}

// The names of Features. Every store uses them for the abilities that they name; a store
// may report others under names of its own.
const (
	FeatureGroups    = "groups"              // Grouper
	FeatureOnePhase  = "one-phase commit"    // Grouper with AssignTimestamp
	FeatureDeferred  = "deferred durability" // Deferrer
	FeatureOracle    = "oracle"              // OracleProvider
	FeatureSnapshots = "snapshot reads"      // SnapshotReader
	FeatureSplit     = "split"               // Splitter
	FeatureSlots     = "order by slot"       // SlotScanner
	FeatureScans     = "snapshot scans"      // SnapshotScanner
	FeatureWake      = "wake"                // Waker
)

// Feature is one line of a Report.
type Feature struct {
	Name      string // one of the constants, or a name of the store's own
	Supported bool
	Reason    string // why not, or how; may be empty
}

// Report says what a store is and what it can do.
type Report struct {
	Backend  string // "pebble", "redis", ...
	Version  string // of the server or the engine
	Layout   int    // the version of the layout in which the store keeps its data; 0 if it has none, as a store made of several
	Features []Feature
	Warnings []string // each a sentence that the operator should read
}

// Reporter is the optional ability of a store to describe itself.
type Reporter interface {
	Report(ctx context.Context) (Report, error)
}

var (
	// ErrAmbiguous says that a request may have been applied, or may still be. Match it,
	// and the other errors here, with errors.Is.
	ErrAmbiguous = errors.New("outcome unknown")
	// ErrInvalid says that the arguments break a rule of this package. Nothing was
	// done.
	ErrInvalid = errors.New("invalid argument")
	// ErrTooLarge says that a name or a value is longer, or one atomic step larger, than
	// the store takes. Nothing was done.
	ErrTooLarge = errors.New("too large")
	// ErrFormat says that this program does not know the format in which the data is
	// stored or the version of the program that wrote it, or that data of another kind is
	// there. Nothing was changed. Opening a store returns it, and so may every call that
	// meets such data. A newer program may be able to read the data.
	ErrFormat = errors.New("unknown format")
	// ErrForeign says that what is there is another application's: a directory, a prefix or a
	// schema that is in use by something else. Nothing was changed. It matches ErrFormat too,
	// but no version of this library helps: take another place.
	ErrForeign error = foreignError{}
	// ErrCorrupt says that stored data does not decode: its format is known, and its
	// bytes are not what that format allows. A call that returns it neither guessed nor
	// repaired anything.
	ErrCorrupt = errors.New("corrupt data")
	// ErrUnavailable says that a server is away for a moment: it restarts, its
	// connection was refused or broke before the request left, or another server is
	// taking over. Nothing was done and nothing will be. The caller may repeat the call;
	// a store does not wait for the server itself. It never comes with ErrAmbiguous.
	ErrUnavailable = errors.New("server unavailable")
	// ErrDenied says that the caller may not do this: its password is wrong, it lacks a
	// permission, or one side does not accept the other's certificate. It does not pass by
	// itself. Nothing was done, unless the error matches ErrAmbiguous too.
	ErrDenied = errors.New("access denied")
	// ErrFull says that the store has no room left for a write: its disk or its memory is
	// full. Nothing was done, and reads go on. It passes when somebody makes room.
	ErrFull = errors.New("no room left")
	// ErrNoStore says that there is no store where one was to be opened as it is: by a URL with
	// asis=true. Nothing was made.
	ErrNoStore = errors.New("there is no store")
	// ErrClosed says that the store was closed.
	ErrClosed = errors.New("closed")
)

// foreignError is the kind of ErrFormat that no other version of the library helps with.
type foreignError struct{}

func (foreignError) Error() string        { return "it is another application's" }
func (foreignError) Is(target error) bool { return target == ErrFormat }
