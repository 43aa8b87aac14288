package explore

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
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
	// Serial takes calls that one client has under way at once in one order only: what
	// a worker does beside its runs then multiplies nothing. The parts of one batch
	// come in any order all the same.
	Serial bool
	// Weak tells that weak notifications may lead to runs without a change.
	Weak bool
	// Collects tells that garbage is collected, so that the store itself does not
	// hold the history that is judged. It goes with no Crash in the Budget.
	Collects bool
	// Tables gives the stores of tables that are not in the authoritative one, by
	// names of the program's choice.
	Tables map[string]string
	// Settings of the database. Default: such that nothing ends by them in a run.
	Settings percolator.Settings
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
	erased       []percolator.Cell // deleted
	hinted       []percolator.Cell // notified weakly
	outcome      outcome
	began, ended int // places in the order in which transactions began and Commit returned
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
}

type history struct {
	mu      sync.Mutex
	records []*record
	runs    []observation
	events  int // transactions begun and commits returned
	// written are the versions that were ever committed, oldest first, by cell.
	written map[percolator.Cell][]writtenVersion
}

type writtenVersion struct {
	at, start percolator.Timestamp
	by        string // from a short value, else ""
	deleted   bool
}

// noteWrites keeps the committed versions that a mutation has put.
func (h *history) noteWrites(m *rowstore.Mutation, drawn percolator.Timestamp) {
	if m.Table[0] == 0 {
		return
	}
	for _, e := range m.Edits {
		if e.Kind != rowstore.DoPut || e.Family != rowstore.Write || e.Column[0] == 0 {
			continue
		}
		v := writtenVersion{at: e.TS, start: startOf(e.Value), by: string(e.Value[10:]), deleted: e.Value[1]&3 == 2}
		if v.at == rowstore.Drawn {
			v.at = drawn
		}
		h.mu.Lock()
		if h.written == nil {
			h.written = map[percolator.Cell][]writtenVersion{}
		}
		cell := percolator.Cell{Table: m.Table, Row: m.Row, Column: e.Column}
		h.written[cell] = append(h.written[cell], v)
		h.mu.Unlock()
	}
}

// event counts what happens to transactions.
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
		own = fn(&Txn{tx, r})
		return own
	}, append(opts, percolator.MaxAttempts(1))...)
	switch {
	case inner == nil || own != nil:
		r.outcome = aborted
	case err == nil:
		r.commit, r.outcome = inner.CommitTimestamp(), committed
		r.ended = c.w.history.event()
	case errors.Is(err, errDead), errors.Is(err, percolator.ErrUndetermined), errors.Is(err, context.Canceled):
	default:
		r.outcome = aborted
	}
	if inner != nil {
		r.start = inner.StartTimestamp()
	}
	return err
}

// Serializable marks the transaction for the judge; its options must say so too.
func (tx *Txn) Serializable() { tx.rec.serializable = true }

// Read reads a cell and records what it found, "" for nothing.
func (tx *Txn) Read(ctx context.Context, cell percolator.Cell) (string, error) {
	v, err := tx.Get(ctx, cell)
	return tx.noteRead(cell, v, err)
}

// Lock is Read through GetForUpdate.
func (tx *Txn) Lock(ctx context.Context, cell percolator.Cell) (string, error) {
	v, err := tx.GetForUpdate(ctx, cell)
	tx.rec.locked = append(tx.rec.locked, cell)
	return tx.noteRead(cell, v, err)
}

func (tx *Txn) noteRead(cell percolator.Cell, v []byte, err error) (string, error) {
	if err != nil && !errors.Is(err, percolator.ErrNotFound) {
		return "", err
	}
	tx.rec.start = tx.StartTimestamp()
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
	tx.rec.start = tx.StartTimestamp()
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

// Hint notifies a cell weakly.
func (tx *Txn) Hint(cell percolator.Cell) error {
	tx.rec.hinted = append(tx.rec.hinted, cell)
	return tx.Notify(cell)
}

// Observer returns an observer that records its runs; do may write more.
func (c *Client) Observer(name, table, column string, do func(ctx context.Context, tx *Txn, cell percolator.Cell) error) percolator.Observer {
	return percolator.Observer{Name: name, Table: table, Column: column, Func: func(ctx context.Context, inner *percolator.Txn, cell percolator.Cell) error {
		r := c.newRecord()
		r.start = inner.StartTimestamp()
		tx := &Txn{inner, r}
		if _, err := tx.Read(ctx, cell); err != nil {
			return err
		}
		c.w.history.mu.Lock()
		c.w.history.runs = append(c.w.history.runs, observation{r, cell})
		c.w.history.mu.Unlock()
		// What a run writes tells, in the end, whether it was committed.
		cell.Column += " seen"
		if err := tx.Write(cell); err != nil {
			return err
		}
		if do != nil {
			return do(ctx, tx, cell)
		}
		return nil
	}}
}

// Snapshot is Update at a snapshot of the past, for reads alone.
func (c *Client) Snapshot(ctx context.Context, at percolator.Timestamp, fn func(tx *Txn) error) error {
	r := c.newRecord()
	inner, err := c.DB.Begin(ctx, percolator.AsOfTimestamp(at))
	if err != nil {
		r.outcome = aborted
		return err
	}
	r.start = inner.StartTimestamp()
	err = fn(&Txn{inner, r})
	return errors.Join(err, inner.Commit(ctx))
}

// Remember keeps a timestamp of the Setup for the clients, who Recall it.
func (c *Client) Remember(name string, ts percolator.Timestamp) { c.w.marks[name] = ts }

// Recall returns what was remembered under a name.
func (c *Client) Recall(name string) percolator.Timestamp { return c.w.marks[name] }

// Sleep waits by the explorer's time.
func (c *Client) Sleep(ctx context.Context, d time.Duration) error { return clock{c}.Sleep(ctx, d) }

// Glance runs a worker with the observers for d: it looks once when it starts, and
// then each second, as soon as everybody waits for the time to pass. How its own
// looks interleave is little beside what Work does, so that programs with one can be
// explored completely.
func (c *Client) Glance(ctx context.Context, d time.Duration, observers ...percolator.Observer) error {
	w := percolator.NewWorker(c.DB, percolator.WorkerConfig{GCInterval: -1, Concurrency: 1, Poll: percolator.Backoff{Min: time.Second, Max: time.Second}})
	for _, o := range observers {
		if err := w.Observe(o); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var err error
	wg.Go(func() { err = w.Run(ctx) })
	slept := c.Sleep(ctx, d)
	cancel()
	wg.Wait()
	return errors.Join(slept, err)
}

// Work runs a worker with the observers until nothing is left for them.
func (c *Client) Work(ctx context.Context, observers ...percolator.Observer) error {
	w := percolator.NewWorker(c.DB, percolator.WorkerConfig{GCInterval: -1})
	for _, o := range observers {
		if err := w.Observe(o); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	var err error
	wg.Go(func() { err = w.Run(ctx) })
	idle := w.WaitIdle(ctx)
	cancel()
	wg.Wait()
	return errors.Join(idle, err)
}

// version is one committed value.
type version struct {
	at    percolator.Timestamp
	value string // "" for a delete
	by    string // the transaction: by the value, or for a delete by the start timestamp
}

// judge looks at the store and the records when all clients have ended.
func (w *world) judge() error {
	w.advance(max(w.program.Stall, sessionLease+lockExpiry+time.Second))
	// What was under way for nobody comes now, or never.
	for _, r := range slices.Clone(w.requests) {
		if r.client == nil {
			for i := range r.parts {
				r.parts[i].do()
			}
		}
	}
	w.requests = nil
	w.pass = true
	audit := w.client("audit", 99, w.program.Options)
	if len(w.program.Observed) > 0 {
		w.pass = false
		w.clients = []*Client{audit}
		var err error
		audit.start(func(ctx context.Context, c *Client) {
			var observers []percolator.Observer
			for _, o := range w.program.observers() {
				observers = append(observers, c.Observer("o "+o.Column, o.Table, o.Column, nil))
			}
			err = c.Work(ctx, observers...)
		})
		if serr := w.schedule(func([]choice) (int, error) { return 0, nil }); serr != nil {
			audit.die()
			synctest.Wait()
			return fmt.Errorf("the last worker: %w", serr)
		}
		synctest.Wait()
		if err != nil {
			return fmt.Errorf("the last worker: %w", err)
		}
		w.pass = true
		audit = w.client("audit", 99, w.program.Options)
	}
	defer audit.close()
	versions, err := w.versions(audit)
	if err != nil {
		return err
	}
	if err := newestAreThere(audit, versions); err != nil {
		return err
	}
	if err := w.history.check(versions); err != nil {
		return err
	}
	if err := w.checkObserved(versions); err != nil {
		return err
	}
	if w.program.Check != nil {
		return w.program.Check(audit.ctx, audit)
	}
	return nil
}

// observers names the observed columns.
func (p *Program) observers() []percolator.Cell {
	columns := map[percolator.Cell]struct{}{}
	for _, c := range p.Observed {
		columns[percolator.Cell{Table: c.Table, Column: c.Column}] = struct{}{}
	}
	return slices.SortedFunc(maps.Keys(columns), func(a, b percolator.Cell) int {
		return strings.Compare(a.Table+" "+a.Column, b.Table+" "+b.Column)
	})
}

// versions returns every version of every cell that was committed, oldest first,
// and makes sure that reading everything has left no lock.
func (w *world) versions(audit *Client) (map[percolator.Cell][]version, error) {
	ctx := audit.ctx
	all := map[percolator.Cell][]version{}
	for table, err := range w.raw.Tables(ctx) {
		if err != nil {
			return nil, err
		}
		if table[0] == 0 {
			continue
		}
		err := audit.DB.View(ctx, func(tx *percolator.Txn) error {
			for _, err := range tx.Scan(ctx, percolator.Range{Table: table}) {
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("the last reader: %w", err)
		}
		picks := []rowstore.Pick{
			{Family: rowstore.Lock, Column: rowstore.AllColumns, To: oracle.Max},
			{Family: rowstore.Write, Column: rowstore.AllColumns, To: oracle.Max},
		}
		for row, err := range w.raw.Scan(ctx, rowstore.ScanRange{Table: table, Picks: picks}) {
			if err != nil {
				return nil, err
			}
			for i := range row.Versions {
				v := &row.Versions[i]
				cell := percolator.Cell{Table: table, Row: row.Row, Column: v.Column}
				switch {
				case v.Column[0] == 0:
				case v.Family == rowstore.Lock && v.Value[1]&3 == 3: // readers pass over what only locks
				case v.Family == rowstore.Lock:
					return nil, fmt.Errorf("a lock of transaction %d is left on %v", uint64(v.TS), cell)
				case !w.program.Collects:
					value, err := readAt(audit, cell, v.TS)
					if err != nil {
						return nil, err
					}
					by := value
					if v.Value[1]&3 == 2 {
						by = w.history.idOf(startOf(v.Value))
					}
					all[cell] = append(all[cell], version{v.TS, value, by})
				}
			}
		}
	}
	for _, vs := range all {
		slices.Reverse(vs)
	}
	if w.program.Collects {
		for cell, vs := range w.history.written {
			slices.SortFunc(vs, func(a, b writtenVersion) int { return cmp.Compare(a.at, b.at) })
			for _, v := range vs {
				if v.by == "" {
					v.by = w.history.idOf(v.start)
				}
				if v.deleted {
					all[cell] = append(all[cell], version{at: v.at, by: v.by})
				} else {
					all[cell] = append(all[cell], version{v.at, v.by, v.by})
				}
			}
		}
	}
	return all, nil
}

// idOf names the transaction that has the start timestamp.
func (h *history) idOf(start percolator.Timestamp) string {
	for _, r := range h.records {
		if r.start == start {
			return r.id
		}
	}
	return ""
}

// startOf reads the start timestamp from a stored committed version.
func startOf(stored []byte) percolator.Timestamp {
	return percolator.Timestamp(binary.BigEndian.Uint64(stored[2:]))
}

func readAt(audit *Client, cell percolator.Cell, at percolator.Timestamp) (string, error) {
	tx, err := audit.DB.Begin(audit.ctx, percolator.AsOfTimestamp(at))
	if err != nil {
		return "", err
	}
	value, err := tx.Get(audit.ctx, cell)
	if err != nil && !errors.Is(err, percolator.ErrNotFound) {
		return "", fmt.Errorf("reading %v as of %d: %w", cell, uint64(at), err)
	}
	return strings.TrimRight(string(value), " "), nil
}

// newestAreThere makes sure that whoever reads now finds the newest versions.
func newestAreThere(audit *Client, versions map[percolator.Cell][]version) error {
	now, err := audit.DB.Now(audit.ctx)
	if err != nil {
		return err
	}
	for cell, vs := range versions {
		value, err := readAt(audit, cell, now)
		if err != nil {
			return err
		}
		if want := vs[len(vs)-1].value; value != want {
			return fmt.Errorf("in the end %v is %q, and its newest version is %q", cell, value, want)
		}
	}
	return nil
}

// check judges the transactions by their timestamps: snapshot isolation is a sort
// and a sweep.
func (h *history) check(versions map[percolator.Cell][]version) error {
	for _, r := range h.records {
		// Where did its writes go?
		var at percolator.Timestamp
		landed := 0
		for cell, vs := range versions {
			for _, v := range vs {
				if v.by != r.id {
					continue
				}
				if landed++; at != 0 && at != v.at {
					return fmt.Errorf("transaction %s is committed at %d and at %d", r.id, uint64(at), uint64(v.at))
				}
				if at = v.at; !slices.Contains(r.writes, cell) && !slices.Contains(r.erased, cell) {
					return fmt.Errorf("transaction %s wrote %v, which it did not", r.id, cell)
				}
			}
		}
		distinct := slices.CompactFunc(slices.SortedFunc(slices.Values(slices.Concat(r.writes, r.erased)), compareCells), func(a, b percolator.Cell) bool { return a == b })
		switch {
		case landed != 0 && landed != len(distinct):
			return fmt.Errorf("transaction %s is torn: %d of its %d writes are there", r.id, landed, len(distinct))
		case r.outcome == aborted && landed > 0:
			return fmt.Errorf("transaction %s was reported as not committed, and its writes are there", r.id)
		case r.outcome == committed && landed == 0 && len(distinct) > 0:
			return fmt.Errorf("transaction %s was reported as committed, and its writes are not there", r.id)
		case r.outcome == committed && landed > 0 && at != r.commit:
			return fmt.Errorf("transaction %s was reported as committed at %d and is at %d", r.id, uint64(r.commit), uint64(at))
		}
		for cell, value := range r.reads {
			if want := newest(versions[cell], r.start); strings.TrimRight(value, " ") != want {
				return fmt.Errorf("transaction %s, at %d, read %q of %v, and the newest version is %q", r.id, uint64(r.start), value, cell, want)
			}
		}
		if len(r.changed) > 0 {
			return fmt.Errorf("transaction %s read %v twice, and found two values", r.id, r.changed)
		}
		for _, before := range h.records {
			if before.ended != 0 && before.ended < r.began && before.commit >= r.start && r.start != 0 {
				return fmt.Errorf("transaction %s is at %d, and began after %s was committed at %d", r.id, uint64(r.start), before.id, uint64(before.commit))
			}
		}
		if landed == 0 {
			continue
		}
		kept := slices.Concat(r.writes, r.erased, r.locked)
		if r.serializable {
			kept = slices.AppendSeq(kept, maps.Keys(r.reads))
		}
		for _, cell := range kept {
			for _, v := range versions[cell] {
				if v.at > r.start && v.at < at {
					return fmt.Errorf("transaction %s lasted from %d to %d, and meanwhile %s wrote %v at %d", r.id, uint64(r.start), uint64(at), v.value, cell, uint64(v.at))
				}
			}
		}
	}
	return nil
}

func compareCells(a, b percolator.Cell) int {
	return strings.Compare(a.Table+"\x00"+a.Row+"\x00"+a.Column, b.Table+"\x00"+b.Row+"\x00"+b.Column)
}

func newest(vs []version, at percolator.Timestamp) string {
	value := ""
	for _, v := range vs {
		if v.at <= at {
			value = v.value
		}
	}
	return value
}

// checkObserved makes sure that every change was seen by a committed run, and by
// one at most.
func (w *world) checkObserved(versions map[percolator.Cell][]version) error {
	for _, cell := range w.program.Observed {
		seen := cell
		seen.Column += " seen"
		var starts []percolator.Timestamp
		for _, v := range versions[seen] {
			for _, run := range w.history.runs {
				if run.cell == cell && run.rec.id == v.value {
					starts = append(starts, run.rec.start)
				}
			}
		}
		slices.Sort(starts)
		from := percolator.Timestamp(0)
		changes := versions[cell]
		for i, s := range starts {
			n := 0
			for _, v := range changes {
				if v.at > from && v.at <= s {
					n++
				}
			}
			if n == 0 && !w.program.Weak {
				return fmt.Errorf("run %d of %d for %v, at %d, was committed and had nothing to see", i+1, len(starts), cell, uint64(s))
			}
			from = s
		}
		for _, r := range w.history.records {
			if r.outcome == committed && r.commit > from && slices.Contains(r.hinted, cell) {
				return fmt.Errorf("the weak notification of %v by %s at %d led to no committed run", cell, r.id, uint64(r.commit))
			}
		}
		for _, v := range changes {
			if v.at > from {
				return fmt.Errorf("the change of %v at %d was seen by no committed run", cell, uint64(v.at))
			}
		}
	}
	return nil
}
