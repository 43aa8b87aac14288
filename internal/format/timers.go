package format

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/percolate-go/percolate/percolator/oracle"
)

// PrefixTimer begins the stored column of the timer of a stored column of the same row. A timer is a
// cell that transactions write like any other: a put sets it, and a delete takes it back.
const PrefixTimer = "\x00t"

// TimerColumn is the stored column that holds the timer of a stored column of the same row.
func TimerColumn(column string) string { return PrefixTimer + column }

// SplitTimerColumn undoes TimerColumn. ok is false for any other column.
func SplitTimerColumn(stored string) (column string, ok bool) {
	column, ok = strings.CutPrefix(stored, PrefixTimer)
	return column, ok && column != ""
}

// Timer is the value of a timer.
type Timer struct {
	// Due is the first timestamp of the millisecond at which the timer is due.
	Due Timestamp
	// Indexed tells that a TimerHint was stored before the timer was committed, so that
	// nothing else needs to tell of it until it is due. Otherwise a notification of the
	// column stands for as long as the timer.
	Indexed bool
}

const timerLength = 2 + 8

// Encode returns the stored bytes.
func (t Timer) Encode() []byte {
	b := make([]byte, 0, timerLength)
	b = append(b, Version, 0)
	if t.Indexed {
		b[1] = 1
	}
	return binary.BigEndian.AppendUint64(b, uint64(t.Due))
}

// DecodeTimer undoes Timer.Encode. An error matches ErrCorrupt or rowstore.ErrFormat.
func DecodeTimer(b []byte) (Timer, error) {
	if err := checkVersion(b, "timer"); err != nil {
		return Timer{}, err
	}
	if len(b) != timerLength || b[1] > 1 {
		return Timer{}, fmt.Errorf("%w: timer %x", ErrCorrupt, b)
	}
	due := Timestamp(binary.BigEndian.Uint64(b[2:]))
	if due > oracle.Max {
		return Timer{}, fmt.Errorf("%w: timer: due at %d", ErrCorrupt, uint64(due))
	}
	return Timer{Due: due, Indexed: b[1] == 1}, nil
}

// prefixTimers begins the names of the tables that index timers.
const prefixTimers = "\x00timers:"

// TimersTable is the table that indexes the timers of a stored table. Its rows are in the
// order of TimerRow, and each is a TimerHint, a Write version in the column ColumnTimer at the start
// timestamp of the transaction that set the timer. A router keeps it in the store of the table.
func TimersTable(table string) string { return prefixTimers + table }

// TimedTable undoes TimersTable. ok is false for any other table.
func TimedTable(stored string) (table string, ok bool) {
	table, ok = strings.CutPrefix(stored, prefixTimers)
	return table, ok && table != ""
}

// ColumnTimer is the column of a TimerHint.
const ColumnTimer = "timer"

// TimerShards is the number of parts of an index of timers. Each is in the order of time.
const TimerShards = 4

const timerRowLength = 1 + 8 + 8 + 4

// TimerRow is the row of the n-th TimerHint of a transaction that began at start.
func TimerRow(shard byte, due, start Timestamp, n int) string {
	b := make([]byte, 0, timerRowLength)
	b = binary.BigEndian.AppendUint64(append(b, shard), uint64(due))
	b = binary.BigEndian.AppendUint64(b, uint64(start))
	return string(binary.BigEndian.AppendUint32(b, uint32(n))) //nolint:gosec // a transaction has not that many cells
}

// TimersBegin is where the rows of a shard begin.
func TimersBegin(shard byte) string { return string([]byte{shard}) }

// TimersUntil is the end, itself not included, of the rows of a shard that are due at or before a timestamp.
func TimersUntil(shard byte, due Timestamp) string {
	b := make([]byte, 0, 1+8)
	return string(binary.BigEndian.AppendUint64(append(b, shard), uint64(due)+1))
}

// TimerDue returns when the timer of a TimerRow is due.
func TimerDue(row string) (Timestamp, error) {
	if len(row) != timerRowLength {
		return 0, fmt.Errorf("%w: hint of a timer: row %q", ErrCorrupt, row)
	}
	due := Timestamp(binary.BigEndian.Uint64([]byte(row[1:9])))
	if due > oracle.Max {
		return 0, fmt.Errorf("%w: hint of a timer: due at %d", ErrCorrupt, uint64(due))
	}
	return due, nil
}

// TimerHint says that a column of a row may have a timer that is due at the time of its TimerRow.
type TimerHint struct {
	Row, Column string // stored
}

// Encode returns the stored bytes.
func (h TimerHint) Encode() []byte {
	b := append(make([]byte, 0, 1+2*binary.MaxVarintLen16+len(h.Row)+len(h.Column)), Version)
	return appendString(appendString(b, h.Row), h.Column)
}

// DecodeTimerHint undoes TimerHint.Encode. An error matches ErrCorrupt or rowstore.ErrFormat.
func DecodeTimerHint(b []byte) (h TimerHint, err error) {
	if err := checkVersion(b, "hint of a timer"); err != nil {
		return h, err
	}
	rest := b[1:]
	for _, s := range []*string{&h.Row, &h.Column} {
		if *s, rest, err = takeString(rest); err != nil || *s == "" {
			return TimerHint{}, fmt.Errorf("%w: hint of a timer: bad name", ErrCorrupt)
		}
	}
	if len(rest) > 0 {
		return TimerHint{}, fmt.Errorf("%w: hint of a timer: %d bytes too many", ErrCorrupt, len(rest))
	}
	return h, nil
}
