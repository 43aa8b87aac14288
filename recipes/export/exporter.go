package export

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// Options of an exporter. A zero field takes its default; a negative one is percolator.ErrInvalid.
type Options struct {
	// Batch is how many items of a key a call of the sink gets at most; fewer after a failure (see Sink), or if one transaction could not remove as many (percolator.Limits).
	// Default 256.
	Batch int
	// Bytes is how many bytes the payloads of a call have at most; one item may have more. Default 1 MiB.
	Bytes int
	// Timeout bounds a call of the sink through its context. Default 10 s.
	Timeout time.Duration
	// MaxAttempts is how often an item is tried, alone in a call. Then its run is parked or, with Skip, the item is set aside. A call that failed with
	// several items counts for none of them (see Sink). Default 10.
	MaxAttempts int
	// Skip sets an item aside after its attempts, as a dead letter, and goes on with the next one. Only an item that was refused alone is set aside, so a sink need not tell which one of a batch it
	// refuses. One that is beyond the Limits of this
	// process (percolator.Limits) cannot be, so its run fails, and is parked. Without Skip the item blocks its
	// key.
	Skip bool
	// Concurrency is how many keys a worker sends at once, in places of their own (percolator.Observer.Concurrency). 0 shares the worker's places.
	Concurrency int
}

const (
	// Rows that are read together, and how many there may be if no item among them can be sent yet. A page ends early when its payloads are
	// pageBytes, or more in the same proportion.
	page      = 1024
	mostPage  = 1 << 20
	pageBytes = 16 << 20
	// A claim lasts for some calls of the sink. It is renewed with each batch.
	leaseTimeouts = 3
	// While somebody else has claimed a key, a run looks this often.
	claimedPause = time.Second
	// After a failure of the store a run waits so long.
	storePause = time.Second
)

// Observer makes the observer that sends the items of the outbox. Its name is that of its observer: it stays the same from one version of the
// program to the next, and an outbox has one. Give it to the Worker of any number of processes. A nil sink, and Options out of range, are
// percolator.ErrInvalid.
func (o *Outbox) Observer(name string, sink Sink, opt Options) (percolator.Observer, error) {
	if sink == nil {
		return percolator.Observer{}, fmt.Errorf("export: Observer: %w: the sink is nil", percolator.ErrInvalid)
	}
	if opt.Batch < 0 || opt.Bytes < 0 || opt.Timeout < 0 || opt.MaxAttempts < 0 || opt.Concurrency < 0 {
		return percolator.Observer{}, fmt.Errorf("export: Observer: %w: an option is negative: %+v", percolator.ErrInvalid, opt)
	}
	e := newExporter(o, sink, opt)
	return percolator.Observer{
		Name: name, Table: o.table, Column: dueColumn, Concurrency: opt.Concurrency, MaxAttempts: e.opt.MaxAttempts,
		Func: func(ctx context.Context, _ *percolator.Txn, c percolator.Cell) error { return e.export(ctx, c.Row) },
	}, nil
}

// exporter sends the items of an outbox.
type exporter struct {
	*Outbox
	sink Sink
	opt  Options
	// constant, but for tests
	page, pageBytes int
}

// newExporter gives fields of the options that are 0 their defaults.
func newExporter(o *Outbox, sink Sink, opt Options) *exporter {
	if opt.Batch == 0 {
		opt.Batch = 256
	}
	if opt.Bytes == 0 {
		opt.Bytes = 1 << 20
	}
	if opt.Timeout == 0 {
		opt.Timeout = 10 * time.Second
	}
	if opt.MaxAttempts == 0 {
		opt.MaxAttempts = 10
	}
	return &exporter{Outbox: o, sink: sink, opt: opt, page: page, pageBytes: pageBytes}
}

// turn is one claim of a key.
type turn struct {
	key   string
	claim claim
	at    percolator.Timestamp // the snapshot below the claim: what it sends was committed at or below it
	first []stored             // the first page of items at that snapshot, until they are sent
	cut   bool                 // there are more than the first page
	from  string               // no row before this one is for the turn to send any more
	spent time.Time            // by the local clock, when no further call of the sink is to begin
	old   time.Time            // by the local clock, when the run might be too old to be acknowledged
	ended time.Time            // by the local clock, until when the claim lasts at least
	done  bool                 // all was sent
	taken []stored             // the sink took these when the context had ended; leave removes them
	left  bool                 // the claim was ended, or given a longer time, together with the last note
	most  int                  // items that the next call of the sink gets
}

var (
	// errLost says that the claim is somebody else's.
	errLost = errors.New("the claim was lost")
	// errSpent says that the turn has no time left for another call of the sink.
	errSpent = errors.New("the turn is over")
)

// times bounds a turn by the age that the transaction of its run may have. Somewhat before the second time, the acknowledgment might be refused as
// too old; a call of the sink that begins before the first one ends by then, unless its timeout is most of that age.
func (e *exporter) times(begun time.Time) (spent, old time.Time) {
	age := e.db.Settings().MaxTxnAge
	if own, found := e.db.TableSettings()[e.table]; found {
		age = min(age, own.MaxTxnAge)
	}
	most := age / 4 * 3
	return begun.Add(max(age/4, most-e.opt.Timeout)), begun.Add(most)
}

// export is a run for a key. It sends what was committed when it claimed the key, which is all that the run is to acknowledge.
func (e *exporter) export(ctx context.Context, row string) error {
	key, err := parseKey(row)
	if err != nil {
		return percolator.Park(err)
	}
	t, wait, err := e.take(ctx, key)
	switch {
	case err != nil:
		return e.failed("claiming", key, err)
	case wait > 0:
		return percolator.RetryAfter(wait)
	case t == nil:
		return nil // a run before this one has sent everything
	}
	held := true
	defer func() {
		if held && !t.left {
			e.leave(ctx, t)
		}
	}()
	err = e.sendAll(ctx, t)
	t.done = err == nil
	var later *laterError
	switch {
	case errors.As(err, &later):
		return fmt.Errorf("%w: %w", percolator.RetryAfter(later.after), err)
	case errors.Is(err, errLost):
		// Whoever has it sends the rest. But if that one dies, nobody else knows of it: so this run is not acknowledged.
		held = false
		return percolator.RetryAfter(claimedPause)
	case err != nil && e.opt.Skip && errors.As(err, new(*sinkError)):
		return percolator.RetryAfter(backoff(t.claim.attempts))
	case errors.Is(err, errSpent), err == nil && time.Now().After(t.old):
		return percolator.RetryAfter(0) // another run sends the rest, or finds that there is none
	case err != nil:
		return e.failed("sending the items of", t.key, err)
	}
	return nil
}

// errAhead says that the sink refuses the newest epoch. That is for people to look at: another attempt has an epoch that is higher by
// seconds, and perhaps years are missing, after a restore, say.
var errAhead = errors.New("the sink says that another exporter has claimed the key, but none has: it has seen a higher epoch than any of this database, or does not mean that")

// errCount says that the sink cannot count. That is no matter of one item, so it counts as a failure of the run, also with Skip.
var errCount = errors.New("the sink says that it has taken")

// failed is the error of a run. Only what the sink says, damaged data, and what is beyond the limits count as a failure of it. The store may get well.
func (e *exporter) failed(what, key string, err error) error {
	err = fmt.Errorf("export: %s key %q of table %q: %w", what, key, e.table, err)
	if errors.As(err, new(*sinkError)) {
		return err
	}
	for _, counts := range []error{errAhead, errCount, percolator.ErrCorrupt, percolator.ErrTooLarge, percolator.ErrConflict} {
		if errors.Is(err, counts) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", percolator.RetryAfter(storePause), err)
}

// backoff is the pause after some failures of one item.
func backoff(attempts uint32) time.Duration {
	return min(100*time.Millisecond<<min(attempts, 16), 5*time.Minute)
}

// sendAll sends all items that were committed at the snapshot below the claim.
func (e *exporter) sendAll(ctx context.Context, t *turn) error {
	size := e.page
	found, cut := t.first, t.cut
	begun := false
	for t.first = nil; ; found = nil {
		if found == nil {
			var err error
			if found, cut, err = e.reread(ctx, t, size); err != nil {
				return err
			}
		}
		next := nextRow(t, found, cut)
		items, complete := sendable(t, found, cut)
		switch {
		case len(items) == 0 && complete:
			return nil
		case len(items) == 0 && size >= mostPage:
			return fmt.Errorf("more than %d transactions were open at the same time", mostPage)
		case len(items) == 0:
			size *= 4
			continue
		}
		for len(items) > 0 {
			if begun && time.Now().After(t.spent) {
				return errSpent
			}
			begun = true
			batch, err := e.batch(t, items)
			if err != nil {
				return err
			}
			n, err := e.sendSome(ctx, t, batch, complete && len(batch) == len(items))
			items = items[n:]
			if err != nil {
				return err
			}
		}
		if complete {
			return nil
		}
		t.from = next
	}
}

// batch returns the first items, as many as one call of the sink gets: the first one alone if the claim says that a batch failed there. One transaction can note them, whatever the sink says: what was taken and
// could not be noted would be sent for ever. percolator.ErrTooLarge if it could not even note the first one.
func (e *exporter) batch(t *turn, items []stored) ([]stored, error) {
	note := e.emptyNote(items[0].Key)
	if t.claim.doubts(&items[0]) {
		t.most = 1
	}
	n, bytes := 0, 0
	for n < len(items) && n < t.most {
		bytes += len(items[n].Payload)
		if !note.add(&items[n]) || n > 0 && (bytes > e.opt.Bytes || !note.fitsWithLetter()) {
			break
		}
		n++
	}
	if n == 0 {
		return nil, fmt.Errorf("%w: Limits of this process do not allow the removal of an item (%d bytes of its row's key)", percolator.ErrTooLarge, len(items[0].row))
	}
	return items[:n], nil
}

// read returns a page of items of a key at the snapshot of tx, from a row on ("" is the first one), in the order of their starts. cut tells that there may be more.
func (e *exporter) read(ctx context.Context, tx *percolator.Txn, key, from string, size int) (items []stored, cut bool, err error) {
	most, bytes := e.pageBytes*max(size/e.page, 1), 0
	r := rowOf(key).Range(e.table)
	r.From = max(r.From, from)
	r.Columns, r.Limit, r.Timestamps = []string{itemColumn}, size, true
	for row, err := range tx.Scan(ctx, r) {
		if err != nil {
			return nil, false, err
		}
		item, err := parse(row, itemColumn)
		if err != nil {
			return nil, false, err
		}
		if item.Commit == 0 {
			return nil, false, fmt.Errorf("the row %q has no commit timestamp", row.Key)
		}
		items = append(items, item)
		if bytes += len(item.Payload); bytes >= most {
			return items, true, nil
		}
	}
	return items, len(items) == size, nil
}

// reread returns a page of what is left. It does not look at the rows that were removed, which cost a scan until they are collected. Its snapshot lies above the claim, so all that the turn is to send is there, but for what was sent.
func (e *exporter) reread(ctx context.Context, t *turn, size int) (items []stored, cut bool, err error) {
	err = e.db.View(ctx, func(tx *percolator.Txn) error {
		items, cut, err = e.read(ctx, tx, t.key, t.from, size)
		return err
	})
	return items, cut, err
}

// sendable returns those of a page, in the order of their commits, that no other unsent item comes before. complete tells that these are all that
// the turn has yet to send.
func sendable(t *turn, items []stored, cut bool) (some []stored, complete bool) {
	// Rows come in the order of starts. Whatever lies behind the last one has a later start, and so a later commit.
	last := lastStart(items, cut)
	complete = last >= t.at
	items = slices.DeleteFunc(items, func(s stored) bool { return s.Commit > min(last, t.at) })
	slices.SortFunc(items, func(a, b stored) int {
		return cmp.Or(cmp.Compare(a.Commit, b.Commit), cmp.Compare(a.Index, b.Index))
	})
	for i := range items {
		items[i].Epoch = uint64(t.claim.epoch)
	}
	return items, complete
}

func lastStart(items []stored, cut bool) percolator.Timestamp {
	if cut {
		return items[len(items)-1].start
	}
	return percolator.Timestamp(math.MaxUint64 >> 1)
}

// nextRow returns where the page begins that comes after this one has been sent: at the first row that sendable leaves to it. Rows that are
// written meanwhile may lie before it, but they are of transactions that committed after the claim.
func nextRow(t *turn, items []stored, cut bool) string {
	last := lastStart(items, cut)
	for i := range items {
		if items[i].Commit > last && items[i].Commit <= t.at {
			return items[i].row
		}
	}
	if len(items) == 0 {
		return t.from
	}
	return items[len(items)-1].row + "\x00"
}

// sinkError is a failure of the sink.
type sinkError struct{ err error }

func (e *sinkError) Error() string { return e.err.Error() }
func (e *sinkError) Unwrap() error { return e.err }

// call calls the sink. A panic is a failure of the item like another one.
func (e *exporter) call(ctx context.Context, key string, items []Item) (sent int, err error) {
	defer func() {
		if p := recover(); p != nil {
			sent, err = 0, fmt.Errorf("the sink panicked: %v\n%s", p, debug.Stack())
		}
	}()
	return e.sink.Send(ctx, key, items)
}

// noted keeps what the sink has taken if it could not be noted, because the worker stops, say: it is removed at the end of the turn. If there is no time for that, it comes
// again. If the claim is lost, it is its successor's, and stays.
func (t *turn) noted(err error, sent []stored) error {
	if err != nil {
		t.taken = sent
	}
	return err
}

// sendSome calls the sink once, and notes what it has taken. If these are the last items, and all were taken, it leaves the key with that. If several
// were given, a failure is no error: the next call gets the first one that was not taken, alone.
func (e *exporter) sendSome(ctx context.Context, t *turn, items []stored, last bool) (taken int, err error) {
	if time.Until(t.ended) < e.opt.Timeout {
		if err := e.note(ctx, t, nil, false); err != nil { // renews the claim
			return 0, err
		}
	}
	given := make([]Item, len(items))
	for i := range items {
		given[i] = items[i].Item
		given[i].Payload = slices.Clone(given[i].Payload) // the sink's own: what it does not take is given again, or kept as a dead letter
	}
	within, cancel := context.WithTimeout(ctx, e.opt.Timeout)
	defer cancel()
	sent, err := e.call(within, t.key, given)
	if sent < 0 || sent > len(items) {
		sent, err = 0, fmt.Errorf("%w %d of %d items: %v", errCount, sent, len(items), err) //nolint:errorlint // what it says beside that must not pass for the answer
	}
	if err == nil && sent == 0 {
		err = errors.New("the sink has taken nothing, without an error")
	}
	var later *laterError
	switch {
	case ctx.Err() != nil: // the worker stops
		return 0, t.noted(ctx.Err(), items[:sent])
	case errors.Is(err, errCount):
		return 0, err
	case errors.Is(err, ErrSuperseded):
		// Whoever has a higher epoch wrote the claim before it sent anything. It sends again, and removes, what was taken here.
		if err := t.noted(e.note(ctx, t, items[:sent], false), items[:sent]); err != nil {
			return 0, err
		}
		return sent, errAhead
	case errors.As(err, &later):
		if err := t.noted(e.notePause(ctx, t, items[:sent], later.after), items[:sent]); err != nil {
			return 0, err
		}
		return sent, err
	case err == nil, sent == len(items): // whatever the error is about
		if sent == t.most {
			t.most = min(2*sent, e.opt.Batch) // it was less if a batch failed
		}
		return sent, t.noted(e.note(ctx, t, items[:sent], last && sent == len(items)), items[:sent])
	}
	if len(items) > 1 {
		// Perhaps another one of them is why, or all of them together. So this counts for none of them.
		return sent, t.noted(e.noteDoubt(ctx, t, items[:sent], &items[sent]), items[:sent])
	}
	switch dead, nerr := e.noteFailure(ctx, t, &items[0], err); {
	case nerr != nil:
		return 0, nerr
	case dead:
		return 1, nil
	}
	return 0, &sinkError{err}
}
