package percolator

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Observer is code that runs when a column changes (section 2.4 of the paper).
type Observer struct {
	// Name identifies the observer: its acknowledgments are stored under it. At most 128
	// bytes, not empty. It stays the same from one version of the program to the next,
	// and is unique among the observers of a column.
	Name string
	// Table and Column say what is observed, in every row.
	Table, Column string
	// Func is called in a transaction, with the cell that changed. Its writes commit
	// together with the acknowledgment of the change, so that for each change at most
	// one run takes effect. Func may be called again for a change, after a conflict, a
	// failure or a crash, so it must have no effect but through tx. It sees the newest
	// value: several changes may come as one call. It must not end tx. An error or a
	// panic is a failure: the call is repeated with exponential backoff, and the run is
	// parked after MaxAttempts failures of one change. An error that matches ErrConflict
	// does not count: the call is repeated at once. An error of tx which says that the
	// store failed does not count either, if Func returns it, wrapped or not. If Func
	// returns another error in its place, that one counts.
	Func func(ctx context.Context, tx *Txn, c Cell) error
	// MaxAttempts is the number of failures of one change after which its run is parked.
	// The count is kept in the store. The default is that of the WorkerConfig.
	MaxAttempts int
	// Timeout bounds one call through its context; 0 means no bound.
	Timeout time.Duration
	// Isolation of the transaction. Default Snapshot.
	Isolation Isolation
}

// ObserverInfo describes an observer that is registered in the catalog.
type ObserverInfo struct {
	Name, Table, Column string
	// Swept says that the data from before its registration has been scanned for it.
	Swept bool
}

// Observers lists the observers that are registered, by any process.
func (db *DB) Observers(ctx context.Context) ([]ObserverInfo, error) {
	if err := db.enter(); err != nil {
		return nil, err
	}
	defer db.leave()
	v, err := db.loadCatalog(ctx)
	if err != nil {
		return nil, err
	}
	infos := make([]ObserverInfo, len(v.Observers))
	for i, o := range v.Observers {
		c := Cell{Table: string(o.Table), Column: string(o.Column)}.public()
		infos[i] = ObserverInfo{Name: string(o.Name), Table: c.Table, Column: c.Column, Swept: o.Swept != 0}
	}
	return infos, nil
}

// RemoveObserver removes every observer of that name from the catalog. One catalog
// lease later at the latest, its columns are no longer notified on its behalf. Workers
// that run it stop, with an error that matches ErrObserverRemoved. Its acknowledgments
// stay: if it is registered again, it runs for what changed meanwhile. Its parked runs
// stay too, for Parked and Release. Garbage collection removes notifications that no
// other observer of the column waits for, and with them those of Txn.Notify that the
// removed observer has not seen. What it leaves behind is logged. It is no error if
// there is no observer of that name.
func (db *DB) RemoveObserver(ctx context.Context, name string) error {
	if err := db.enter(); err != nil {
		return err
	}
	defer db.leave()
	var removed []observerRecord
	v, err := db.changeCatalog(ctx, func(v *catalogView) (bool, error) {
		removed = removed[:0]
		v.Observers = slices.DeleteFunc(v.Observers, func(o observerRecord) bool {
			if string(o.Name) == name {
				removed = append(removed, o)
			}
			return string(o.Name) == name
		})
		return len(removed) > 0, nil
	})
	if err != nil {
		return fmt.Errorf("percolator: removing the observer %q: %w", name, err)
	}
	if len(removed) > 0 {
		db.background(func(ctx context.Context) { db.logLeft(ctx, v, name, removed) })
	}
	return nil
}

// mostLeft bounds what is counted for a line of the log.
const mostLeft = 10_000

// logLeft says what a removed observer leaves behind.
func (db *DB) logLeft(ctx context.Context, v *catalogView, name string, removed []observerRecord) {
	cells, parked := 0, 0
	for _, r := range removed {
		table, column := string(r.Table), string(r.Column)
		if len(v.observers(table, column)) > 0 {
			continue // the other observers still need them
		}
		picks := []rowstore.Pick{{Family: rowstore.Notify, Column: column, To: oracle.Max, Limit: 1}}
		for _, err := range db.store.Scan(ctx, rowstore.ScanRange{Table: table, Picks: picks, Limit: mostLeft}) {
			if err != nil {
				return // it is only for the log
			}
			cells++
		}
	}
	for p, err := range db.parkedRuns(ctx) {
		if err != nil {
			return
		}
		if p.Observer == name {
			parked++
		}
		if parked == mostLeft {
			break
		}
	}
	if cells+parked > 0 {
		db.log.Warn("a removed observer leaves notifications that nobody waits for, and parked runs", "observer", name,
			"cells", cells, "parked", parked, "counted up to", mostLeft)
	}
}

// failureRecord is stored beside a cell, for an observer whose function failed for the
// cell's newest change. A parked one counts as covering that change.
type failureRecord struct {
	change    Timestamp
	attempts  int
	parked    bool
	notBefore Timestamp // of the next attempt
}

func (f *failureRecord) encode() []byte {
	b := []byte{formatVersion, 0}
	if f.parked {
		b[1] = 1
	}
	b = binary.AppendUvarint(b, uint64(f.change))
	b = binary.AppendUvarint(b, uint64(f.notBefore))
	return binary.AppendUvarint(b, uint64(max(f.attempts, 0)))
}

func decodeFailure(b []byte) (failureRecord, error) {
	var f failureRecord
	if len(b) < 2 || b[0] != formatVersion || b[1] > 1 {
		return f, fmt.Errorf("%w: failure record: bad head", ErrCorrupt)
	}
	f.parked = b[1] == 1
	rest := b[2:]
	var n [3]uint64
	for i := range n {
		v, w := binary.Uvarint(rest)
		if w <= 0 {
			return f, fmt.Errorf("%w: failure record: bad number", ErrCorrupt)
		}
		n[i], rest = v, rest[w:]
	}
	if len(rest) > 0 || n[0] > uint64(oracle.Max) || n[1] > uint64(oracle.Max) || n[2] > math.MaxInt32 {
		return f, fmt.Errorf("%w: failure record: out of range", ErrCorrupt)
	}
	f.change, f.notBefore, f.attempts = Timestamp(n[0]), Timestamp(n[1]), int(n[2])
	return f, nil
}

// cellView is what one atomic view shows of an observed cell.
type cellView struct {
	cell      Cell // stored
	at        Timestamp
	observers []string // registered for the column
	acks      []Timestamp
	ackLocked []bool
	failures  []failureRecord
	change    Timestamp          // the newest change at or below at
	notified  []rowstore.Version // all notifications, newest first
	seen      []rowstore.Version // those at or below at
	later     bool               // there are notifications above at
}

func viewRead(c Cell, observers []string, at Timestamp) rowstore.RowRead {
	picks := make([]rowstore.Pick, 0, 3+4*len(observers))
	picks = snapshotPicks(picks, c.Column, at)
	picks = append(picks, everything(rowstore.Notify, c.Column))
	for _, o := range observers {
		picks = snapshotPicks(picks, ackColumn(o, c.Column), at)
		picks = snapshotPicks(picks, parkedColumn(o, c.Column), at)
	}
	return rowstore.RowRead{Table: c.Table, Row: c.Row, Picks: picks}
}

func parseView(row *rowstore.Row, c Cell, observers []string, at Timestamp) (*cellView, error) {
	v := &cellView{
		cell: c, at: at, observers: observers,
		acks: make([]Timestamp, len(observers)), ackLocked: make([]bool, len(observers)), failures: make([]failureRecord, len(observers)),
	}
	if w := row.Newest(rowstore.Write, c.Column); w != nil {
		v.change = w.TS
	}
	v.notified = row.All(rowstore.Notify, c.Column)
	for _, n := range v.notified {
		if n.TS > at {
			v.later = true
			continue
		}
		k, err := decodeNotify(n.Value)
		if err != nil {
			return nil, err
		}
		v.seen = append(v.seen, n)
		if k == notifyWeak {
			v.change = max(v.change, n.TS)
		}
	}
	for i, o := range observers {
		col := ackColumn(o, c.Column)
		v.ackLocked[i] = row.Newest(rowstore.Lock, col) != nil
		w, found, err := committed(row, col)
		if err == nil && found {
			v.acks[i], err = decodeAck(w.value)
		}
		if err != nil {
			return nil, err
		}
		w, found, err = committed(row, parkedColumn(o, c.Column))
		switch {
		case err != nil:
			return nil, err
		case found:
			if v.failures[i], err = decodeFailure(w.value); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

// covered tells whether observer i has nothing to do for the newest change: it has
// acknowledged it, or its run for it is parked. A locked acknowledgment may still
// be rolled back, and does not count.
func (v *cellView) covered(i int) bool {
	if v.ackLocked[i] {
		return false
	}
	return v.change <= v.coveredTo(i)
}

// coveredTo is the newest change that observer i has nothing to do for.
func (v *cellView) coveredTo(i int) Timestamp {
	if v.failures[i].parked {
		return max(v.acks[i], v.failures[i].change)
	}
	return v.acks[i]
}

// othersCovered tells whether every observer but i is covered.
func (v *cellView) othersCovered(i int) bool {
	for j := range v.observers {
		if j != i && !v.covered(j) {
			return false
		}
	}
	return true
}

// removal deletes exactly the notifications that the view showed at or below its
// snapshot. One that was put there later belongs to a change that the view did not
// show.
func (v *cellView) removal() []rowstore.Edit {
	edits := make([]rowstore.Edit, len(v.seen))
	for i, n := range v.seen {
		edits[i] = rowstore.Delete(rowstore.Notify, v.cell.Column, n.TS)
	}
	return edits
}
