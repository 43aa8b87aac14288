package index

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/percolate-go/percolate/keys"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/typed"
)

// ObservedOptions are those of NewObserved. The zero value is fine.
type ObservedOptions struct {
	// Entries is the table of the entries, which nothing else uses. Default "observed/" and the name.
	Entries string
	// Clear is as in Options.
	Clear bool
}

// Observed is an index of one column that an observer keeps, a moment after the data. A write of the column costs what an observed column costs,
// and nothing more: no read, no entry, no conflict with other writers, and any program may write. In return a lookup may miss rows that got their value a moment ago, also in the
// transaction that gave it to them. It reads each row that it finds again, in the transaction's snapshot: so what it visits does have the value, and
// comes with it. It cannot make a value unique. All methods may be called concurrently.
type Observed[T any] struct {
	ix Index[T]
	// seen are the first and the last snapshot that were found to be readable, under one registration of the observer.
	seen struct {
		sync.Mutex
		since, first, last percolator.Timestamp
	}
}

const (
	observedPrefix = "observed/"
	mostObserved   = 128 - len(observedPrefix) // an observer's name has 128 bytes at most

	columnReadable = "readable" // of rowProgress

	// trust is how long after a snapshot that was readable others are, unseen. Drop waits that long before it takes the first entry away.
	trust = 2 * time.Second

	mostLookup = 128 // rows that a lookup reads in one call
)

// readableMark is what Build writes: at its beginning, and at its end. Whoever deletes entries in between deletes the mark too, in the same transactions.
type readableMark struct {
	Since percolator.Timestamp `json:"since"` // of the observer's registration
	Built bool                 `json:"built"`
}

// NewObserved makes an Observed. It neither reads nor writes. The name identifies the index in the database: 119 bytes at most. To change what is indexed, give it another
// name. The function of the values is called by the observer and by lookups; where it fails, see Observer and Lookup. A nil db, codec or values, an empty or too long name, entries in the table of the column, and a column that is encrypted without ObservedOptions.Clear,
// are percolator.ErrInvalid; the name of a table that is too long is percolator.ErrTooLarge.
func NewObserved[T any](db *percolator.DB, name string, of typed.Column[T], values Values[T], opt ObservedOptions) (*Observed[T], error) {
	err := check(db, of, values, opt.Clear)
	if err == nil && (name == "" || len(name) > mostObserved) {
		err = fmt.Errorf("%w: the name has %d bytes; it must have 1 to %d", percolator.ErrInvalid, len(name), mostObserved)
	}
	if err != nil {
		return nil, fmt.Errorf("index: NewObserved: %w", err)
	}
	if opt.Entries == "" {
		opt.Entries = observedPrefix + name
	}
	switch most := db.Limits().Table; {
	case opt.Entries == of.Table:
		return nil, fmt.Errorf("index: NewObserved: %w: the entries are to lie in the table %q, which the index is of", percolator.ErrInvalid, of.Table)
	case len(opt.Entries) > most:
		return nil, fmt.Errorf("index: NewObserved: %w: the name of the table of the entries has %d bytes; it may have %d", percolator.ErrTooLarge, len(opt.Entries), most)
	}
	return &Observed[T]{ix: Index[T]{db: db, name: name, of: of, values: values, opt: Options{Entries: opt.Entries, Clear: opt.Clear}}}, nil
}

// Observer is the observer that keeps the index: give it to Worker.Observe, in one process or in many. Its name is "observed/" and that of the index. A value of a version that the program does not
// know (typed.ErrVersion) parks the run. A value whose key was destroyed (typed.ErrKeyGone) counts as none. Where the values cannot be told for another reason, the
// run fails with ErrValues, and is parked after Observer.MaxAttempts; until it is released, lookups by the new value miss the row.
func (o *Observed[T]) Observer() percolator.Observer {
	return percolator.Observer{Name: o.observer(), Table: o.ix.of.Table, Column: o.ix.of.Name, OnChange: o.keep}
}

func (o *Observed[T]) observer() string { return observedPrefix + o.ix.name }

// keep is the run of the observer. It writes the entry of each value, also of one that stays: Repair may have taken it away by a snapshot in which the
// row had another value, and then one of the two conflicts, or the run comes later.
func (o *Observed[T]) keep(ctx context.Context, tx *percolator.Txn, change percolator.Change) error {
	c := percolator.RowChange{Row: change.Cell.Row, Old: change.Old, OldFound: change.OldFound, New: change.New, NewFound: change.NewFound}
	d, err := o.ix.delta(ctx, &c)
	if errors.Is(err, typed.ErrKeyGone) { // of the new value: an old one that cannot be decoded is no error
		c.NewFound = false
		d, err = o.ix.delta(ctx, &c)
	}
	switch {
	case errors.Is(err, typed.ErrVersion):
		return percolator.Park(err)
	case err != nil:
		return err
	}
	for _, v := range d.removed {
		if err := tx.Delete(o.ix.entry(v, d.row)); err != nil {
			return err
		}
	}
	for _, v := range slices.Concat(d.added, d.same) {
		if err := tx.Set(o.ix.entry(v, d.row), []byte(d.row)); err != nil {
			return err
		}
	}
	return nil
}

// Build makes the index readable: it waits until the observer is registered, which the Run of a worker does, and has seen every row that is there now. Then it adds the entries that are missing all the same: of runs that were dropped
// (DB.DropParked), or after the observer or the table of the entries got another name. It may be ended at any time and called again, in any process, and does nothing if the index is readable.
//
// Nobody tells whether a worker runs the observer: bound Build by ctx. Errors: percolator.ErrInvalid for a bad Pace; percolator.ErrNotObserved, with that of the context, if the observer is
// not registered until the context ends, and if it is removed meanwhile; percolator.ErrParked if the run of a row is parked; percolator.ErrObserverPaused; ErrValues as for Check; those of DB.WaitObserved, View and Update.
func (o *Observed[T]) Build(ctx context.Context, pace Pace) error {
	pace, err := pace.check()
	if err == nil {
		err = o.build(ctx, pace)
	}
	if err != nil {
		return fmt.Errorf("index: building %q: %w", o.ix.name, err)
	}
	return nil
}

func (o *Observed[T]) build(ctx context.Context, pace Pace) error {
	for {
		since, err := o.awaitObserver(ctx)
		if err != nil {
			return err
		}
		built, err := o.mark(ctx, since, false)
		if err != nil || built {
			return err
		}
		if err := o.awaitRows(ctx, pace); err != nil {
			return err
		}
		if _, err := o.ix.walk(ctx, pace, true, partEntries); err != nil {
			return err
		}
		now, err := o.registered(ctx)
		switch {
		case err != nil:
			return err
		case now != since:
			return fmt.Errorf("%w: the observer %q was removed meanwhile", percolator.ErrNotObserved, o.observer())
		}
		if built, err = o.mark(ctx, since, true); err != nil || built {
			return err
		}
		// Somebody who began to drop the index before the registration has deleted entries.
		if err := pace.wait(ctx); err != nil {
			return err
		}
	}
}

// awaitRows waits until the observer has seen every row that is there now.
func (o *Observed[T]) awaitRows(ctx context.Context, pace Pace) error {
	at, err := o.ix.db.Now(ctx)
	if err != nil {
		return err
	}
	for from, left := "", true; left; {
		var cells []percolator.Cell
		err := o.ix.db.View(ctx, func(tx *percolator.Txn) error {
			cells = cells[:0]
			for row, err := range tx.Scan(ctx, percolator.Range{Table: o.ix.of.Table, From: from, Columns: []string{o.ix.of.Name}, Limit: pace.Rows}) {
				if err != nil {
					return err
				}
				cells = append(cells, o.ix.of.Cell(row.Key))
			}
			return nil
		})
		if err == nil && len(cells) > 0 {
			err = o.ix.db.WaitObserved(ctx, at, o.observer(), cells...)
		}
		if err == nil {
			err = pace.wait(ctx)
		}
		if err != nil {
			return err
		}
		if left = len(cells) == pace.Rows; left {
			from = cells[len(cells)-1].Row + "\x00"
		}
	}
	return nil
}

func (o *Observed[T]) markCell() percolator.Cell {
	return percolator.Cell{Table: o.ix.opt.Entries, Row: rowProgress, Column: columnReadable}
}

// mark notes the beginning of a build, or its end, unless the index is built. The end is not noted if the note of the beginning has gone. It tells whether the index is built.
func (o *Observed[T]) mark(ctx context.Context, since percolator.Timestamp, end bool) (built bool, err error) {
	err = o.ix.db.Update(ctx, func(tx *percolator.Txn) error {
		is, err := o.marked(ctx, tx, since)
		built = is == (readableMark{since, true})
		switch begun := is.Since == since; {
		case err != nil, built, begun && !end, end && !begun:
			return err
		}
		encoded, err := json.Marshal(readableMark{since, end})
		if err != nil {
			return err
		}
		built = end
		return tx.Set(o.markCell(), encoded)
	}, ownLevel)
	return built && err == nil, err
}

// registered is since when the observer is registered, 0 if it is not.
func (o *Observed[T]) registered(ctx context.Context) (percolator.Timestamp, error) {
	all, err := o.ix.db.Observers(ctx)
	if err != nil {
		return 0, err
	}
	for _, info := range all {
		if info.Table == o.ix.of.Table && info.Column == o.ix.of.Name && (info.Name == o.observer() || slices.Contains(info.Aliases, o.observer())) {
			return info.Since, nil
		}
	}
	return 0, nil
}

func (o *Observed[T]) awaitObserver(ctx context.Context) (percolator.Timestamp, error) {
	for wait := time.Millisecond; ; wait = min(2*wait, time.Second) {
		since, err := o.registered(ctx)
		if err == nil && since != 0 {
			return since, nil
		}
		if err != nil && ctx.Err() == nil {
			return 0, err
		}
		if err := (Pace{Pause: wait}).wait(ctx); err != nil {
			return 0, fmt.Errorf("%w: no worker has registered the observer %q: %w", percolator.ErrNotObserved, o.observer(), err)
		}
	}
}

// marked is the mark of a registration at the snapshot of tx, or the zero mark.
func (o *Observed[T]) marked(ctx context.Context, tx *percolator.Txn, since percolator.Timestamp) (mark readableMark, err error) {
	stored, err := tx.Get(ctx, o.markCell())
	if errors.Is(err, percolator.ErrNotFound) {
		return mark, nil
	}
	if err != nil || json.Unmarshal(stored, &mark) != nil || mark.Since != since {
		return readableMark{}, err
	}
	return mark, nil
}

// readable returns an error unless every row that was there before Build has its entries at the snapshot of tx. It looks once for all snapshots of a while.
func (o *Observed[T]) readable(ctx context.Context, tx *percolator.Txn) error {
	start, err := tx.StartTimestamp(ctx)
	if err != nil {
		return err
	}
	o.seen.Lock()
	known := o.seen.since != 0 && start >= o.seen.first && start.Sub(o.seen.last) < trust
	o.seen.Unlock()
	if known {
		return nil
	}
	since, err := o.registered(ctx)
	if err != nil {
		return err
	}
	var mark readableMark
	if since != 0 {
		if mark, err = o.marked(ctx, tx, since); err != nil {
			return err
		}
	}
	if !mark.Built {
		return fmt.Errorf("%w: its observer is not registered, or Build had not ended at the transaction's snapshot", ErrNotReadable)
	}
	o.seen.Lock()
	defer o.seen.Unlock()
	if o.seen.since != since {
		o.seen.since, o.seen.first, o.seen.last = since, start, start
	}
	o.seen.first, o.seen.last = min(o.seen.first, start), max(o.seen.last, start)
	return nil
}

// Lookup visits the rows that have a value, in the order of their keys, with what their cells hold as tx sees them. It misses rows whose change the observer has not seen yet at the snapshot of tx,
// those that tx has written itself included; a row that has lost the value is not visited. A transaction that begins after DB.WaitObserved, with the name of the Observer, misses nothing
// of what was waited for. While no worker runs the observer, or it is paused, everything new is missed. What is missed is not part of what percolator.Serializable validates.
// Rows are read up to 128 ahead, fewer if their values are large: a loop that writes rows which it has yet to visit sees them as they were. Keys of 1,024 bytes and more are in the order of their first 991 bytes.
//
// It ends with the first error of tx or of the index, which comes with an empty row: ErrNotReadable before Build has ended, and from two seconds after the observer was removed on, or sooner; percolator.ErrInvalid for a value that is no tuple, as package keys makes them; those of Txn.Scan and GetMany. A
// row that cannot be decoded comes with its key and ErrValues; a loop that goes on gets the rows behind it. One whose key was destroyed (typed.ErrKeyGone) has no values.
func (o *Observed[T]) Lookup(ctx context.Context, tx *percolator.Txn, value keys.Key) iter.Seq2[typed.Row[T], error] {
	if err := o.ix.checkTuples(value); err != nil {
		return func(yield func(typed.Row[T], error) bool) { yield(typed.Row[T]{}, err) }
	}
	from := begin(value)
	return o.rows(ctx, tx, percolator.Range{From: from, To: percolator.PrefixEnd(from)}, func(_ found, values []keys.Key) bool {
		_, has := slices.BinarySearch(values, value)
		return has
	})
}

// Find returns the first row that Lookup visits. Without one the error matches percolator.ErrNotFound.
func (o *Observed[T]) Find(ctx context.Context, tx *percolator.Txn, value keys.Key) (typed.Row[T], error) {
	for row, err := range o.Lookup(ctx, tx, value) {
		return row, err
	}
	return typed.Row[T]{}, fmt.Errorf("index: looking up %s in the index %q: %w", keys.Describe(string(value)), o.ix.name, percolator.ErrNotFound)
}

// Scan visits rows in the order of their values, as Index.Scan does, and is else like Lookup. Range.Limit counts the rows that it visits.
func (o *Observed[T]) Scan(ctx context.Context, tx *percolator.Txn, r Range) iter.Seq2[typed.Row[T], error] {
	among, err := o.ix.among(r)
	if err == nil && r.Limit < 0 {
		err = fmt.Errorf("index: reading the index %q: %w: the limit is %d", o.ix.name, percolator.ErrInvalid, r.Limit)
	}
	if err != nil {
		return func(yield func(typed.Row[T], error) bool) { yield(typed.Row[T]{}, err) }
	}
	return o.rows(ctx, tx, among, func(e found, values []keys.Key) bool {
		return slices.ContainsFunc(values, func(v keys.Key) bool { return o.ix.entry(v, e.row).Row == e.at })
	})
}

// rows visits the rows of entries that still have the values of these. The limit of r counts these rows.
func (o *Observed[T]) rows(ctx context.Context, tx *percolator.Txn, r percolator.Range, has func(e found, values []keys.Key) bool) iter.Seq2[typed.Row[T], error] {
	return func(yield func(typed.Row[T], error) bool) {
		left := r.Limit
		r.Limit = 0
		limited := func(row typed.Row[T], err error) bool {
			left--
			return yield(row, err) && left != 0
		}
		// A transaction that begins with the scan draws its snapshot in the same call. So the snapshot is looked at after the first page.
		checked := false
		visit := func(page []found) (bytes int, more bool) {
			if !checked {
				if err := o.readable(ctx, tx); err != nil {
					yield(typed.Row[T]{}, fmt.Errorf("index: reading the index %q: %w", o.ix.name, err))
					return 0, false
				}
				checked = true
			}
			return o.visit(ctx, tx, page, has, limited)
		}
		size := leastRead
		page := make([]found, 0, size)
		for e, err := range o.ix.scan(ctx, tx, r) {
			if err != nil {
				yield(typed.Row[T]{}, err)
				return
			}
			if page = append(page, e); len(page) < size {
				continue
			}
			bytes, more := visit(page)
			if !more {
				return
			}
			page, size = page[:0], fitting(min(2*size, mostLookup), size, bytes)
		}
		visit(page)
	}
}

// visit reads the rows of entries. It tells how many bytes their values have, and whether to go on.
func (o *Observed[T]) visit(ctx context.Context, tx *percolator.Txn, page []found, has func(found, []keys.Key) bool, yield func(typed.Row[T], error) bool) (bytes int, more bool) {
	got, bytes, err := o.ix.rowsOf(ctx, tx, page)
	if err != nil {
		yield(typed.Row[T]{}, fmt.Errorf("index: reading the index %q: %w", o.ix.name, err))
		return 0, false
	}
	for _, e := range page {
		stored, exists := got[o.ix.of.Cell(e.row)]
		if !exists {
			continue
		}
		// A row may come twice in a page, and the codec may change what it is given.
		value, values, err := o.ix.decode(ctx, e.row, slices.Clone(stored))
		switch {
		case errors.Is(err, typed.ErrKeyGone), err == nil && !has(e, values):
			continue
		case err != nil:
			var none T
			value = none
		}
		if !yield(typed.Row[T]{Key: e.row, Value: value}, err) {
			return 0, false
		}
	}
	return bytes, true
}

// Check compares all entries with all data, and changes nothing. What the observer has not seen yet differs: entries of it are Missing, and those of
// what was there before are Stale. Errors: percolator.ErrInvalid for a bad Pace; ErrValues, if a row cannot be decoded for a reason that may pass; those of View.
func (o *Observed[T]) Check(ctx context.Context, pace Pace) (Report, error) {
	return o.compare(ctx, "checking", pace, false)
}

// Repair is Check, and makes the entries fit the data. Use it if the function of the values was changed under the same name, and to remove entries that are left of
// values that could not be decoded when they were replaced, or from before the observer was removed and registered again; and
// after rows were erased (DB.Erase), if no entry of them may stay: a repair beside the observer may itself leave an entry, which no lookup sees and the next repair removes. It may run beside the observer. Other errors are those of Update.
func (o *Observed[T]) Repair(ctx context.Context, pace Pace) (Report, error) {
	return o.compare(ctx, "repairing", pace, true)
}

func (o *Observed[T]) compare(ctx context.Context, what string, pace Pace, mend bool) (all Report, err error) {
	pace, err = pace.check()
	if err == nil {
		all, err = o.ix.walk(ctx, pace, mend, partsEnd)
	}
	if err != nil {
		return all, fmt.Errorf("index: %s %q: %w", what, o.ix.name, err)
	}
	return all, nil
}

// Drop ends the index: it makes it unreadable, removes the observer, so that the Run of a worker that has it ends, waits until no process reads by an older view or runs
// the observer, and deletes the entries. Deploy the programs without the observer before. If it is registered again meanwhile, Drop ends with percolator.ErrIndexChanged: the new one needs a Build. It may be ended at any time and called again, in any process; of an index that is not there it is no
// error. Parked runs of the observer stay (DB.DropParked). Other errors: percolator.ErrInvalid for a bad Pace; those of Update and DB.RemoveObserver.
func (o *Observed[T]) Drop(ctx context.Context, pace Pace) error {
	pace, err := pace.check()
	if err == nil {
		err = o.drop(ctx, pace)
	}
	if err != nil {
		return fmt.Errorf("index: dropping %q: %w", o.ix.name, err)
	}
	return nil
}

func (o *Observed[T]) drop(ctx context.Context, pace Pace) error {
	db := o.ix.db
	err := db.Update(ctx, func(tx *percolator.Txn) error { return tx.Delete(o.markCell()) }, ownLevel)
	if err == nil {
		err = db.RemoveObserver(ctx, o.observer())
	}
	if err != nil {
		return err
	}
	from, err := db.Now(ctx)
	if err != nil {
		return err
	}
	// Snapshots count, and not the clock of this process: see readable. A run by a lease that is longer than this process knows leaves an entry behind, and does no other harm.
	for wait := max(trust, db.Settings().CatalogLease); ; {
		now, err := db.Now(ctx)
		if err != nil {
			return err
		}
		left := wait - now.Sub(from)
		if left <= 0 {
			break
		}
		if err := (Pace{Pause: left}).wait(ctx); err != nil {
			return err
		}
	}
	next := ""
	return pace.steps(ctx, func(rows int) (more bool, err error) {
		last, seen, err := o.dropPage(ctx, next, rows)
		if err == nil {
			next = last + "\x00"
		}
		return seen == rows, err
	})
}

// dropPage deletes some entries from one on, and the mark with them, unless the observer is registered: then a build may rely on them. A build that ends meanwhile writes the mark, and one of
// the two conflicts.
func (o *Observed[T]) dropPage(ctx context.Context, from string, rows int) (last string, seen int, err error) {
	err = o.ix.db.Update(ctx, func(tx *percolator.Txn) error {
		last, seen = "", 0
		// The registration is looked at after the snapshot was drawn: who registers later builds later.
		if _, err := tx.StartTimestamp(ctx); err != nil {
			return err
		}
		since, err := o.registered(ctx)
		switch {
		case err != nil:
			return err
		case since != 0:
			return fmt.Errorf("%w: the observer %q was registered again", percolator.ErrIndexChanged, o.observer())
		}
		if err := tx.Delete(o.markCell()); err != nil {
			return err
		}
		for e, err := range o.ix.scan(ctx, tx, percolator.Range{From: from, Limit: rows}) {
			if err != nil {
				return err
			}
			last, seen = e.at, seen+1
			if err := tx.Delete(percolator.Cell{Table: o.ix.opt.Entries, Row: e.at, Column: column}); err != nil {
				return err
			}
		}
		return nil
	}, ownLevel, percolator.WithMaxAttempts(1))
	return last, seen, err
}
