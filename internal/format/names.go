package format

import (
	"crypto/sha256"
	"encoding/binary"
	"strings"

	"github.com/percolate-go/percolate/percolator/oracle"
)

// Timestamp orders transactions; see package oracle.
type Timestamp = oracle.Timestamp

// Cell names a value by stored names.
type Cell struct {
	Table, Row, Column string
}

// Names may hold any bytes, so the library's own data needs names that no user's cell
// can have. A stored name of a table or column that begins with exactly one zero byte
// is reserved. A user's name that begins with a zero byte is stored with one more in
// front. Rows keep their names, because scans promise their byte order.

// Tables of the library's own.
const (
	TableCatalog  = "\x00catalog"
	TableSessions = "\x00sessions"
	TableMembers  = "\x00members"
	TableSweeps   = "\x00sweeps"
	TableParked   = "\x00parked"
	TableNotices  = "\x00notices"
	TableHints    = "\x00hints"   // see Hint
	TableReplays  = "\x00replays" // see Replay
)

// Rows and columns of these tables. The lease of a sweep has the worker's id as its
// column. A session and a member have their ids as their rows.
const (
	RowCatalog      = "catalog"
	RowGeneration   = "generation" // of the members
	ColumnConfig    = "config"     // of the catalog: a Catalog
	ColumnSafePoint = "safepoint"  // of the catalog: TimestampOnly, at the safe point
	ColumnOfTables  = "safepoints" // of the catalog: a TableSafePoints
	ColumnHolds     = "holds"      // of the catalog: a Holds
	ColumnResolved  = "resolved"   // of the catalog: TimestampOnly; all locks from below it are resolved, in every table
	ColumnSwept     = "swept"      // of the catalog: TimestampOnly, at the safe point of the last collection that read every row
	ColumnErased    = "erased"     // of the catalog: an Erased
	ColumnCollected = "collected"  // of the catalog: a Collected
	ColumnHint      = "rows"       // of a hint: a Hint
	ColumnLease     = "lease"      // of a session: a Session, at the lease's end; of a member: TimestampOnly
	ColumnMember    = "member"     // of a member: a Member, see there
	ColumnChange    = "change"     // of the generation: TimestampOnly, another one after each change of the members
	ColumnBarrier   = "barrier"    // of the generation: a Notify version that asks the members for an Answer
	ColumnAnswer    = "answer"     // of a member: an Answer, at the timestamp of the barrier
	ColumnParked    = "run"        // of a parked run: a Parked
	ColumnNotice    = "commit"     // of a notice: see NoticeCell
	ColumnReplay    = "replay"     // of a replay: a Replay
)

// Prefixes of the library's own columns in rows of users.
const (
	PrefixAck     = "\x00a" // an acknowledgment
	PrefixFailure = "\x00p" // a Failure
	PrefixClaim   = "\x00c" // a claim
	PrefixSeen    = "\x00o" // what an observer saw last, if the column itself has it no more
)

// ColumnWholeRow is the column of a user's row that stands for the row as a whole: a transaction that deletes the row
// locks it. It never has a value.
const ColumnWholeRow = "\x00d"

const (
	// MaxObserverName is the longest name of an observer, in bytes.
	MaxObserverName = 128
	// OwnColumnSpace is the most that AckColumn, or FailureColumn, and Escape together
	// add to a column's name.
	OwnColumnSpace = len(PrefixAck) + 2 + MaxObserverName + 1
)

// Escape returns the stored name of a user's table or column.
func Escape(name string) string {
	if name != "" && name[0] == 0 {
		return "\x00" + name
	}
	return name
}

// Unescape undoes Escape. ok is false for a reserved name.
func Unescape(stored string) (name string, ok bool) {
	if stored == "" || stored[0] != 0 {
		return stored, true
	}
	if len(stored) > 1 && stored[1] == 0 {
		return stored[1:], true
	}
	return "", false
}

// Reserved tells whether the stored name of a table or column is the library's own.
func Reserved(stored string) bool {
	return stored != "" && stored[0] == 0 && (len(stored) < 2 || stored[1] != 0)
}

// AckColumn is the stored column that holds an observer's acknowledgments for a stored
// column of the same row. The name of the observer has at most MaxObserverName bytes.
func AckColumn(observer, column string) string {
	return ownColumn(PrefixAck, observer, column)
}

// FailureColumn is the stored column that holds an observer's failure record for a
// stored column of the same row. The name of the observer has at most MaxObserverName
// bytes.
func FailureColumn(observer, column string) string {
	return ownColumn(PrefixFailure, observer, column)
}

// ClaimColumn is the stored column of the claims of an observer's runs for a stored
// column of the same row. A claim says that a run has been under way for some time, and
// that other workers had better leave the cell alone. It is a Mark version at the claim's
// end, whose value is the worker's id: nothing is committed there, and unlike a Notify
// version it wakes nobody. Correctness never depends on it. The name of the observer has
// at most MaxObserverName bytes.
func ClaimColumn(observer, column string) string {
	return ownColumn(PrefixClaim, observer, column)
}

// SeenColumn is the stored column that keeps what an observer saw last of a stored column of the
// same row, once a collection removes it from there. It holds Write versions as they were there, at
// the same timestamps; their long values stay where they are, in Data of the column itself. No
// transaction writes it. The name of the observer has at most MaxObserverName bytes.
func SeenColumn(observer, column string) string {
	return ownColumn(PrefixSeen, observer, column)
}

// ownColumn puts a length in front of the observer's name, which keeps different pairs
// of names apart.
func ownColumn(prefix, observer, column string) string {
	b := make([]byte, 0, len(prefix)+2+len(observer)+len(column))
	b = append(b, prefix...)
	b = binary.BigEndian.AppendUint16(b, uint16(len(observer))) //nolint:gosec // at most MaxObserverName
	b = append(b, observer...)
	b = append(b, column...)
	return string(b)
}

// SplitOwnColumn takes a column made by AckColumn or FailureColumn apart. The prefix is
// PrefixAck or PrefixFailure, and ok is false for any other column.
func SplitOwnColumn(stored string) (prefix, observer, column string, ok bool) {
	prefix, observer, column, ok = splitColumn(stored)
	if prefix != PrefixAck && prefix != PrefixFailure {
		return "", "", "", false
	}
	return prefix, observer, column, ok
}

// SplitSeenColumn takes a column made by SeenColumn apart. ok is false for any other column.
func SplitSeenColumn(stored string) (observer, column string, ok bool) {
	prefix, observer, column, ok := splitColumn(stored)
	if prefix != PrefixSeen {
		return "", "", false
	}
	return observer, column, ok
}

func splitColumn(stored string) (prefix, observer, column string, ok bool) {
	if len(stored) < 4 || !Reserved(stored) {
		return "", "", "", false
	}
	n := int(binary.BigEndian.Uint16([]byte(stored[2:4])))
	if len(stored) < 4+n {
		return "", "", "", false
	}
	return stored[:2], stored[4 : 4+n], stored[4+n:], true
}

// Transactional tells whether transactions write to a table: a user's, or one of the
// library's own.
func Transactional(table string) bool {
	return !Reserved(table) || table == TableParked || table == TableNotices || table == TableReplays
}

// OwnCell tells whether a cell is one of the library's own that transactions write.
func OwnCell(c Cell) bool {
	switch c.Table {
	case TableParked:
		return c.Column == ColumnParked
	case TableNotices:
		return c.Column == ColumnNotice
	case TableReplays:
		return c.Column == ColumnReplay
	}
	_, _, _, own := SplitOwnColumn(c.Column)
	if _, timer := SplitTimerColumn(c.Column); timer || c.Column == ColumnWholeRow {
		own = true
	}
	return own && !Reserved(c.Table)
}

// NoticeCell is the primary of a transaction that writes nothing, but notifies and has
// locks or reads to validate. Each transaction has a different one, so it causes no
// conflicts. It is written as a delete, which garbage collection removes. The low bytes
// of the timestamp come first in the row key, so that rows of the same moment lie far
// apart.
func NoticeCell(start Timestamp) Cell {
	return Cell{TableNotices, string(binary.LittleEndian.AppendUint64(nil, uint64(start))), ColumnNotice}
}

// ParkedCell is the cell that lists the parked run of an observer for a cell.
func ParkedCell(observer string, c Cell) Cell {
	return Cell{TableParked, rowOf(c.Table, c.Row, c.Column, observer), ColumnParked}
}

// ParkedOf is the cell and the observer of which a row of TableParked tells by its name. ok is false where the name is a hash, and only the
// record has them.
func ParkedOf(row string) (c Cell, observer string, ok bool) {
	if strings.HasPrefix(row, hashedRow) {
		return Cell{}, "", false
	}
	rest := []byte(row)
	var err error
	for _, to := range []*string{&c.Table, &c.Row, &c.Column, &observer} {
		if *to, rest, err = takeString(rest); err != nil {
			return Cell{}, "", false
		}
	}
	return c, observer, len(rest) == 0
}

// SweepLeaseRow is the row that holds the lease of the sweep for a registration.
func SweepLeaseRow(r *Observer) string {
	return rowOf(string(r.Table), string(r.Column), string(r.Name), r.Since.String())
}

// longParts is the longest key that rowOf makes without a hash, in bytes. It is fixed:
// every process must come to the same key, whatever limits its store or its settings
// have.
const longParts = 200

// hashedRow begins a key that is a hash. In a key without a hash it would mean that the
// first name is empty, which no cell's is.
const hashedRow = "\x00"

// rowOf is the key of one of the library's own rows that stands for several names. Long
// names are replaced by their hash. So the key is short enough for every store, even
// for a cell whose names are as long as they may be. Where the names are needed, the
// row's content has them.
func rowOf(parts ...string) string {
	var key []byte
	for _, s := range parts {
		key = appendString(key, s)
	}
	if len(key) <= longParts {
		return string(key)
	}
	sum := sha256.Sum256(key)
	return hashedRow + string(sum[:])
}
