package explore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Program is what is explored: a few clients, each with a small program, over a
// common store. Its transactions write values that tell who wrote them, so that the
// history can be judged.
type Program struct {
	Name    string
	Options []percolator.Option // of each client's DB
	// Each has further options of single clients' DBs, by their places in Clients.
	Each [][]percolator.Option
	// Setup runs once before all runs, unexplored.
	Setup func(ctx context.Context, c *Client) error
	// Clients are the programs, of one process each. What a program does goes through
	// its Client.
	Clients []func(ctx context.Context, c *Client)
	// Observed are the cells whose changes must all have been seen by an observer
	// made with Client.Observer, when the run is over and one more worker has worked.
	Observed []percolator.Cell
	// Drawn has the stores draw the timestamp of a group before its writes become visible (drawn.go). It goes with
	// no Twice and no Crash in the Budget: a connection carries no call twice, and a crash would have to end locks.
	Drawn bool
	// careless is a program with Drawn whose readers wait for nobody, as the explorer must find out.
	careless bool
	// Serial takes calls that one client has under way at once in one order only: what
	// a worker does beside its runs then multiplies nothing. The parts of one batch
	// come in any order all the same.
	Serial bool
	// Removes tells that observers are removed, or seen deletes collected, so that a cell may be seen first twice.
	Removes bool
	// OldValues makes the observers ones of old values, which check what they are told.
	OldValues bool
	// Weak tells that weak notifications may lead to runs without a change.
	Weak bool
	// Settle is how long after the clients the last worker begins: every timer is due by then.
	Settle time.Duration
	// Collects tells that garbage is collected, so that the store itself does not
	// hold the history that is judged. It goes with no Crash in the Budget.
	Collects bool
	// Tables gives the stores of tables that are not in the authoritative one, by
	// names of the program's choice.
	Tables map[string]string
	// Settings of the database. Default: such that nothing ends by them in a run.
	Settings percolator.Settings
	// Takes is how long each row of a call is under way, by the client's place in
	// Clients, at the end of which it takes effect. The default is no time at all.
	Takes []time.Duration
	// Still are the places of clients whose local clocks stand still.
	Still []int
	// Progress tells that each client must have committed something in the end, for
	// programs whose faults are the slowness of their calls.
	Progress bool
	// Idle tells that WaitIdle is judged by the whole chain: see checkQuiet.
	Idle bool
	// Behind, if not 0, is how long a call takes that stalls, and only scans of workers whose WaitIdle is under way
	// do: so work moves behind what they look at.
	Behind time.Duration
	// Observers are the names of those that observe each column of Observed. Default:
	// the one that ObserverName makes.
	Observers []string
	// Owned tells that workers ask the explorer which changes are their own, in place of
	// sharing them out.
	Owned bool
	// Unowned is how long nobody owns anything, in a program that is Owned.
	Unowned time.Duration
	// Alone tells that no worker works when the run is over: those of the program must
	// have seen every change. All changes are committed well before they end.
	Alone bool
	// Apart tells that each run of an observer writes a row of its own, so that runs
	// exclude each other by their acknowledgments alone.
	Apart bool
	// Stall is how far the time moves when every lease expires. Default and least:
	// as far as the session lease and the expiry of locks take.
	Stall  time.Duration
	Budget Budget
	// Check, if not nil, is asked in the end, beside the common judge.
	Check func(ctx context.Context, audit *Client) error
}

// record is what a client knows of one of its transactions.
type record struct {
	id           string
	start        percolator.Timestamp
	commit       percolator.Timestamp
	serializable bool
	reads        map[percolator.Cell]string // "" for none
	changed      []percolator.Cell          // read twice, with two results
	locked       []percolator.Cell
	writes       []percolator.Cell
	decided      int               // place in the same order as began and ended: when Commit was called
	erased       []percolator.Cell // deleted
	dropped      []percolator.Cell // rows that were deleted as a whole, by wholeRow
	hinted       []percolator.Cell // notified weakly
	timers       []timerSet
	outcome      outcome
	announced    bool // its start is known to others
	began, ended int  // places in the order in which transactions began and Commit returned
}

type outcome int

const (
	unknown outcome = iota // also while under way
	committed
	aborted
)

// observation is one call of an observer's function.
type observation struct {
	rec  *record
	cell percolator.Cell
	name string
	mark percolator.Cell // that it writes: whether it was committed shows there
}

// answer is what DB.Outcome said.
type answer struct {
	start percolator.Timestamp
	cell  percolator.Cell
	got   percolator.Outcome
}

type history struct {
	mu      sync.Mutex
	records []*record
	runs    []observation
	events  int // transactions begun and commits returned
	answers []answer
	quiets  []quiet
	// complaints are what clients and observers have seen that may not be.
	complaints []error
	// ifCommitted are such that count if the transaction was committed.
	ifCommitted []complaint
	// fates has the commit timestamp of each start timestamp that was committed
	// anywhere, also in what the library keeps by transactions of its own.
	fates map[percolator.Timestamp]percolator.Timestamp
	// landed has, for each of them, the event when the first of its versions was there.
	landed map[percolator.Timestamp]int
	// written are the versions that were ever committed, oldest first, by cell.
	written map[percolator.Cell][]writtenVersion
}

// complaint is one about what the transaction with that start timestamp has seen.
type complaint struct {
	start percolator.Timestamp
	err   error
}

type writtenVersion struct {
	at, start percolator.Timestamp
	by        string // from a short value, else ""
	deleted   bool
}

// noteWrites keeps the committed versions that a mutation has put.
func (h *history) noteWrites(m *rowstore.Mutation, drawn percolator.Timestamp) {
	if !format.Transactional(m.Table) {
		return
	}
	for _, e := range m.Edits {
		if e.Kind != rowstore.DoPut || e.Family != rowstore.Write {
			continue
		}
		w := decodeWrite(e.Value)
		h.noteFate(w.Start, e.TS, drawn)
		if format.Reserved(m.Table) || format.Reserved(e.Column) {
			continue
		}
		v := writtenVersion{at: e.TS, start: w.Start, by: string(w.Value), deleted: w.Kind == format.KindDelete}
		if v.at == rowstore.AssignedTimestamp {
			v.at = drawn
		}
		h.mu.Lock()
		if h.written == nil {
			h.written = map[percolator.Cell][]writtenVersion{}
		}
		cell := percolator.Cell{Table: m.Table, Row: m.Row, Column: e.Column}
		if !slices.Contains(h.written[cell], v) { // after a crash it may be put again
			h.written[cell] = append(h.written[cell], v)
		}
		h.mu.Unlock()
	}
}

// decodeWrite takes a committed version apart, which the library itself has made.
func decodeWrite(stored []byte) format.Write {
	w, err := format.DecodeWrite(stored)
	if err != nil {
		panic(fmt.Sprintf("explore: the library has put %x in the family Write: %v", stored, err))
	}
	return w
}

func (h *history) noteFate(start, at, drawn percolator.Timestamp) {
	if at == rowstore.AssignedTimestamp {
		at = drawn
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fates == nil {
		h.fates, h.landed = map[percolator.Timestamp]percolator.Timestamp{}, map[percolator.Timestamp]int{}
	}
	h.fates[start] = at
	if h.landed[start] == 0 {
		h.events++
		h.landed[start] = h.events
	}
}

// event counts what happens to transactions, and when somebody begins or ends to wait for them.
func (h *history) event() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events++
	return h.events
}

func (h *history) committed() int {
	n := 0
	for _, r := range h.records {
		if r.outcome == committed {
			n++
		}
	}
	return n
}

// Txn is a transaction that is recorded.
type Txn struct {
	*percolator.Txn
	c   *Client
	rec *record
}

func (c *Client) newRecord() *record {
	h := &c.w.history
	h.mu.Lock()
	defer h.mu.Unlock()
	r := &record{id: fmt.Sprintf("%s.%d", c.Name, len(h.records)+1), reads: map[percolator.Cell]string{}}
	h.records = append(h.records, r)
	return r
}

// Update runs a transaction once, and records it. It returns Commit's error, or
// fn's.
func (c *Client) Update(ctx context.Context, fn func(tx *Txn) error, opts ...percolator.TxnOption) error {
	r := c.newRecord()
	r.began = c.w.history.event()
	var inner *percolator.Txn
	var own error
	err := c.DB.Update(ctx, func(tx *percolator.Txn) error {
		inner = tx
		own = fn(&Txn{tx, c, r})
		r.decided = c.w.history.event()
		return own
	}, append(opts, percolator.WithMaxAttempts(1))...)
	if inner == nil || own != nil {
		r.outcome = aborted
	} else {
		r.conclude(c, inner, err)
	}
	if inner != nil {
		r.start = startOf(ctx, inner)
	}
	return err
}

// conclude keeps what Commit said.
func (r *record) conclude(c *Client, inner *percolator.Txn, err error) {
	switch {
	case err == nil:
		r.commit, r.outcome = inner.CommitTimestamp(), committed
		r.ended = c.w.history.event()
	case errors.Is(err, errDead), errors.Is(err, percolator.ErrUndetermined):
	case errors.Is(err, context.Canceled) && c.isDead():
	default:
		r.outcome = aborted
	}
}

// Serializable marks the transaction for the judge; its options must say so too.
func (tx *Txn) Serializable() { tx.rec.serializable = true }

// Read reads a cell and records what it found, "" for nothing.
func (tx *Txn) Read(ctx context.Context, cell percolator.Cell) (string, error) {
	v, err := tx.Get(ctx, cell)
	return tx.noteRead(ctx, cell, v, err)
}

// Lock is Read through GetForUpdate.
func (tx *Txn) Lock(ctx context.Context, cell percolator.Cell) (string, error) {
	v, err := tx.GetForUpdate(ctx, cell)
	tx.rec.locked = append(tx.rec.locked, cell)
	return tx.noteRead(ctx, cell, v, err)
}

func (tx *Txn) noteRead(ctx context.Context, cell percolator.Cell, v []byte, err error) (string, error) {
	if err != nil && !errors.Is(err, percolator.ErrNotFound) {
		return "", err
	}
	tx.rec.start = startOf(ctx, tx.Txn)
	if !slices.Contains(tx.rec.writes, cell) {
		if before, twice := tx.rec.reads[cell]; twice && before != string(v) {
			tx.rec.changed = append(tx.rec.changed, cell)
		}
		tx.rec.reads[cell] = string(v)
	}
	return string(v), nil
}

// ReadAll scans a table and records each of the cells as read.
func (tx *Txn) ReadAll(ctx context.Context, table string, cells ...percolator.Cell) error {
	found := map[percolator.Cell]string{}
	for row, err := range tx.Scan(ctx, percolator.Range{Table: table}) {
		if err != nil {
			return err
		}
		for col, v := range row.Columns {
			found[percolator.Cell{Table: table, Row: row.Key, Column: col}] = string(v)
		}
	}
	tx.rec.start = startOf(ctx, tx.Txn)
	for _, cell := range cells {
		tx.rec.reads[cell] = found[cell]
	}
	return nil
}

// Write sets a cell to a value that only this transaction writes. A long one does
// not travel with its lock.
func (tx *Txn) Write(cell percolator.Cell) error {
	tx.rec.writes = append(tx.rec.writes, cell)
	return tx.Set(cell, []byte(tx.rec.id))
}

// WriteLong is Write with a value that is kept apart from its lock.
func (tx *Txn) WriteLong(cell percolator.Cell) error {
	tx.rec.writes = append(tx.rec.writes, cell)
	return tx.Set(cell, []byte(tx.rec.id+strings.Repeat(" ", 300)))
}

// Erase deletes a cell.
func (tx *Txn) Erase(cell percolator.Cell) error {
	tx.rec.erased = append(tx.rec.erased, cell)
	return tx.Delete(cell)
}

// startOf is the start timestamp of a transaction, 0 if it cannot be drawn.
func startOf(ctx context.Context, tx *percolator.Txn) percolator.Timestamp {
	ts, _ := tx.StartTimestamp(ctx)
	return ts
}

// Hint notifies a cell weakly.
func (tx *Txn) Hint(cell percolator.Cell) error {
	tx.rec.hinted = append(tx.rec.hinted, cell)
	return tx.Notify(cell)
}

// Observer returns an observer that records its runs; do may write more.
func (c *Client) Observer(name, table, column string, do func(ctx context.Context, tx *Txn, cell percolator.Cell) error) percolator.Observer {
	o := percolator.Observer{Name: name, Table: table, Column: column}
	run := c.observing(name, do)
	if c.w.program.OldValues {
		o.OnChange = func(ctx context.Context, tx *percolator.Txn, ch percolator.Change) error {
			return run(ctx, tx, ch.Cell, &ch)
		}
	} else {
		o.Func = func(ctx context.Context, tx *percolator.Txn, cell percolator.Cell) error {
			return run(ctx, tx, cell, nil)
		}
	}
	return o
}

// observing is the function of an observer. ch is nil unless it is one of old values.
func (c *Client) observing(name string, do func(ctx context.Context, tx *Txn, cell percolator.Cell) error) func(context.Context, *percolator.Txn, percolator.Cell, *percolator.Change) error {
	return func(ctx context.Context, inner *percolator.Txn, cell percolator.Cell, ch *percolator.Change) error {
		r := c.newRecord()
		r.start = startOf(ctx, inner)
		tx := &Txn{inner, c, r}
		if _, err := tx.Read(ctx, cell); err != nil {
			return err
		}
		run := observation{r, cell, name, seenBy(name, cell)}
		if c.w.program.Apart {
			run.mark.Table, run.mark.Row = "runs", cell.Row+" "+r.id
		}
		c.w.history.mu.Lock()
		c.w.history.runs = append(c.w.history.runs, run)
		c.w.history.mu.Unlock()
		if ch != nil {
			if err := c.judgeChange(ctx, inner, ch, run); err != nil {
				return err
			}
		}
		if err := tx.Write(run.mark); err != nil {
			return err
		}
		if do != nil {
			return do(ctx, tx, cell)
		}
		return nil
	}
}

// judgeChange notes what a run is told, and whether that is what the run before it for the cell saw, which
// left its id in a cell with its acknowledgment.
func (c *Client) judgeChange(ctx context.Context, tx *percolator.Txn, ch *percolator.Change, run observation) error {
	before, err := tx.Get(ctx, run.mark)
	if err != nil && !errors.Is(err, percolator.ErrNotFound) {
		return err
	}
	say := func(value []byte, found bool) string { return fmt.Sprintf("%v %s", found, value) }
	h := &c.w.history
	h.mu.Lock()
	defer h.mu.Unlock()
	c.w.told[run.rec.id] = say(ch.New, ch.NewFound)
	saw, known := c.w.told[string(before)]
	switch {
	case ch.First && ch.OldFound:
		h.complaints = append(h.complaints, fmt.Errorf("the first change of %v has an old value, %q", ch.Cell, ch.Old))
	case !ch.First && (!known || saw != say(ch.Old, ch.OldFound)):
		h.complaints = append(h.complaints, fmt.Errorf("a run for %v was told that it saw %q last, and it saw %q", ch.Cell, say(ch.Old, ch.OldFound), saw))
	case ch.First && known && !c.w.program.Removes:
		h.complaints = append(h.complaints, fmt.Errorf("a run for %v was told that it was the first", ch.Cell))
	}
	return nil
}

// Snapshot is Update at a snapshot of the past, for reads alone.
func (c *Client) Snapshot(ctx context.Context, at percolator.Timestamp, fn func(tx *Txn) error) error {
	r := c.newRecord()
	inner, err := c.DB.Begin(ctx, percolator.WithAsOfTimestamp(at))
	if err != nil {
		r.outcome = aborted
		return err
	}
	r.start = startOf(ctx, inner)
	err = fn(&Txn{inner, c, r})
	return errors.Join(err, inner.Commit(ctx))
}

// Remember keeps a timestamp of the Setup for the clients, who Recall it.
func (c *Client) Remember(name string, ts percolator.Timestamp) { c.w.marks[name] = ts }

// Recall returns what was remembered under a name.
func (c *Client) Recall(name string) percolator.Timestamp { return c.w.marks[name] }

// Sleep waits by the explorer's time.
func (c *Client) Sleep(ctx context.Context, d time.Duration) error { return clock{c}.Sleep(ctx, d) }
