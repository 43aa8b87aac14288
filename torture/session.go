package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"reflect"
	"strings"
	"time"

	"github.com/percolate-go/percolate/internal/contexts"
	"github.com/percolate-go/percolate/percolator"
)

// txnTimeout bounds one transaction, so that some commits end undetermined while a
// server is down; a part of them has less time.
const txnTimeout = 6 * time.Second

func (s *thread) timeout() time.Duration {
	switch s.rng.IntN(8) {
	case 0:
		return 50 * time.Millisecond
	case 1:
		return 500 * time.Millisecond
	default:
		return txnTimeout
	}
}

// thread is one caller of a process. It runs one transaction at a time and logs
// each.
type thread struct {
	db   *percolator.DB
	log  *journal
	tag  string // unique among all threads of all processes of a run
	id   int
	rng  *rand.Rand
	n    int
	vals int
	// clock is the local time as this process believes it.
	clock func() time.Time
}

// unique returns a value that nobody else ever writes.
func (s *thread) unique() string {
	s.vals++
	return fmt.Sprintf("%s.%d", s.tag, s.vals)
}

// txn is a transaction that remembers what it did.
type txn struct {
	*percolator.Txn
	ctx    context.Context
	ops    []op
	writes bool
}

// start is the start timestamp, 0 if it cannot be drawn.
func (t *txn) start() percolator.Timestamp {
	ts, _ := t.StartTimestamp(t.ctx)
	return ts
}

// cellOf is the cell that table/row/column names.
func cellOf(name string) percolator.Cell {
	p := strings.SplitN(name, "/", 3)
	return percolator.Cell{Table: p[0], Row: p[1], Column: p[2]}
}

func nameOf(c percolator.Cell) string { return c.Table + "/" + c.Row + "/" + c.Column }

// errIntegrity says that a value is not what anybody wrote.
var errIntegrity = errors.New("a value is damaged")

// A stored value is the value proper, a bar, and a padding whose length follows from
// the value. So short values and long ones both occur (stores keep them apart), and a
// damaged value is found.
func pad(value string) []byte {
	return []byte(value + "|" + strings.Repeat("x", padding(value)))
}

func padding(value string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(value))
	switch n := h.Sum32(); n % 8 {
	case 0:
		return 300
	case 1:
		return 255 - len(value)%255
	default:
		return int(n>>8) % 16
	}
}

func unpad(b []byte) (string, error) {
	value, rest, ok := strings.Cut(string(b), "|")
	if !ok || rest != strings.Repeat("x", padding(value)) {
		return "", fmt.Errorf("%w: %.100q", errIntegrity, b)
	}
	return value, nil
}

func (t *txn) note(name string, b []byte, err error) (*string, error) {
	switch {
	case errors.Is(err, percolator.ErrNotFound):
		t.ops = append(t.ops, op{Kind: opRead, Cell: name})
		return nil, nil
	case err != nil:
		return nil, err
	}
	value, err := unpad(b)
	if err != nil {
		return nil, fmt.Errorf("%s at %d: %w", name, t.start(), err)
	}
	t.ops = append(t.ops, op{Kind: opRead, Cell: name, Value: &value})
	return &value, nil
}

// get reads a cell; nil is the absence of a value.
func (t *txn) get(name string) (*string, error) {
	b, err := t.Get(t.ctx, cellOf(name))
	return t.note(name, b, err)
}

func (t *txn) getForUpdate(name string) (*string, error) {
	b, err := t.GetForUpdate(t.ctx, cellOf(name))
	t.writes = true
	value, err := t.note(name, b, err)
	if err == nil {
		t.ops[len(t.ops)-1].Locks = true
	}
	return value, err
}

func (t *txn) getMany(names ...string) (map[string]*string, error) {
	cells := make([]percolator.Cell, len(names))
	for i, n := range names {
		cells[i] = cellOf(n)
	}
	found, err := t.GetMany(t.ctx, cells...)
	if err != nil {
		return nil, err
	}
	all := make(map[string]*string, len(names))
	for i, n := range names {
		b, ok := found[cells[i]]
		var missing error
		if !ok {
			missing = percolator.ErrNotFound
		}
		if all[n], err = t.note(n, b, missing); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// scan reads column of the rows of a table that begin with prefix.
func (t *txn) scan(table, prefix, column string) error {
	r := percolator.Range{Table: table, From: prefix, To: percolator.PrefixEnd(prefix), Columns: []string{column}}
	for row, err := range t.Scan(t.ctx, r) {
		if err != nil {
			return err
		}
		if _, err := t.note(table+"/"+row.Key+"/"+column, row.Columns[column], nil); err != nil {
			return err
		}
	}
	return nil
}

func (t *txn) set(name, value string) error {
	t.ops = append(t.ops, op{Kind: opWrite, Cell: name, Value: &value})
	t.writes = true
	return t.Set(cellOf(name), pad(value))
}

func (t *txn) remove(name string) error {
	t.ops = append(t.ops, op{Kind: opDelete, Cell: name})
	t.writes = true
	return t.Delete(cellOf(name))
}

// add appends an element to a list.
func (t *txn) add(name, element string) error {
	b, err := t.Get(t.ctx, cellOf(name))
	list := ""
	switch {
	case errors.Is(err, percolator.ErrNotFound):
	case err != nil:
		return err
	default:
		if list, err = unpad(b); err != nil {
			return fmt.Errorf("%s at %d: %w", name, t.start(), err)
		}
	}
	if list != "" {
		list += ","
	}
	list += element
	t.ops = append(t.ops, op{Kind: opAppend, Cell: name, Value: &list, Element: element})
	t.writes = true
	return t.Set(cellOf(name), pad(list))
}

func (t *txn) notify(name string) error {
	t.ops = append(t.ops, op{Kind: opNotify, Cell: name})
	t.writes = true
	return t.Notify(cellOf(name))
}

// mode is how a transaction runs; the zero value is snapshot isolation.
type mode struct {
	serial bool
	reads  bool      // it only reads
	asOf   time.Time // reads that snapshot, unless zero
}

// do runs fn in a transaction and logs how it ended. It uses Begin and Commit, or
// Update or View, which go other ways to the store. It returns the error with which the
// transaction ended, if there was one.
func (s *thread) do(parent context.Context, workload string, m mode, fn func(t *txn) error) error {
	ctx, cancel := context.WithTimeout(parent, s.timeout())
	defer cancel()
	var opts []percolator.TxnOption
	if m.serial {
		opts = append(opts, percolator.WithIsolation(percolator.Serializable))
	}
	if !m.asOf.IsZero() {
		opts = append(opts, percolator.WithAsOf(m.asOf))
	}
	a := &attempt{thread: s, workload: workload, mode: m, fn: fn}
	a.begin(monotonic())
	var err error
	switch {
	case s.rng.IntN(2) == 0:
		err = a.byHand(ctx, opts)
	case m.reads:
		err = s.db.View(ctx, func(tx *percolator.Txn) error { return a.body(ctx, tx) }, opts...)
	default:
		err = a.update(ctx, append(opts, percolator.WithMaxAttempts(1+s.rng.IntN(4))))
	}
	if unknown := a.end(err, monotonic()); unknown != nil {
		s.settle(parent, a.line, unknown)
	}
	return err
}

// attempt is one run of a transaction's function, and what is logged about it.
type attempt struct {
	*thread
	workload string
	mode     mode
	fn       func(t *txn) error

	line line
	tx   *percolator.Txn
	// committing says that fn is done, and that Commit was called, or is to be.
	committing bool
}

// begin starts the record of an attempt whose timestamps were not drawn before at.
func (a *attempt) begin(at int64) {
	a.n++
	a.tx, a.committing = nil, false
	a.line = line{
		Workload: a.workload, Thread: a.id, N: a.n, Serial: a.mode.serial, AsOf: !a.mode.asOf.IsZero(), Began: at,
	}
}

func (a *attempt) byHand(ctx context.Context, opts []percolator.TxnOption) error {
	tx, err := a.db.Begin(ctx, opts...)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // after Commit it does nothing
	if err := a.body(ctx, tx); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// update runs attempts until one has no conflict. Those before the last are logged
// here, since they had no effect.
//
// Some stores draw the start timestamp of an attempt before its function is called. So
// an attempt counts as begun when the function of the one before had returned. At a
// later moment, others that started after it may have ended already.
func (a *attempt) update(ctx context.Context, opts []percolator.TxnOption) error {
	returned := int64(0)
	return a.db.Update(ctx, func(tx *percolator.Txn) error {
		if returned != 0 {
			_ = a.end(percolator.ErrConflict, returned)
			a.begin(returned + 1) // a thread does one after another
		}
		err := a.body(ctx, tx)
		returned = monotonic()
		return err
	}, opts...)
}

// errNoStart says that no start timestamp could be drawn for a transaction that had not
// needed one before.
var errNoStart = errors.New("no start timestamp")

// body is what happens from the beginning of a transaction to its Commit.
func (a *attempt) body(ctx context.Context, tx *percolator.Txn) error {
	a.tx = tx
	t := &txn{Txn: tx, ctx: ctx}
	if err := a.fn(t); err != nil {
		return err
	}
	if a.line.Start = uint64(t.start()); a.line.Start == 0 {
		return errNoStart
	}
	a.line.Ops = t.ops
	if t.writes {
		a.line.Kind = lineTry
		a.log.write(a.line)
		a.line.Ops = nil // the line "done" need not repeat them
	}
	a.committing = true
	return nil
}

// end logs how an attempt ended: with err, at a moment when its timestamps had been
// drawn. It returns the error of one whose outcome may be asked for.
func (a *attempt) end(err error, at int64) *percolator.UndeterminedError {
	a.complain(err)
	a.line.Ended = at
	if !a.committing {
		a.line.Kind, a.line.Reason = lineAbort, reason(err)
		a.log.write(a.line)
		return nil
	}
	a.line.Kind = lineDone
	unknown := (*percolator.UndeterminedError)(nil)
	switch {
	case err == nil:
		a.line.Outcome, a.line.Commit = committed, uint64(a.tx.CommitTimestamp())
	case errors.As(err, &unknown):
		a.line.Outcome = undetermined
		if unknown.Primary != (percolator.Cell{}) {
			a.line.Primary = []string{unknown.Primary.Table, unknown.Primary.Row, unknown.Primary.Column}
		}
	default:
		a.line.Outcome, a.line.Reason = aborted, reason(err)
	}
	a.log.write(a.line)
	if a.line.Primary == nil {
		return nil
	}
	return unknown
}

// settleTimeout bounds the questions after an undetermined transaction.
const settleTimeout = 20 * time.Second

// settle asks for the outcome of a transaction that ended undetermined, as an
// application would, and logs the answer.
func (s *thread) settle(ctx context.Context, l line, unknown *percolator.UndeterminedError) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	for {
		o, err := s.db.OutcomeOf(ctx, unknown)
		if err == nil && o.Status != percolator.OutcomePending {
			l.Kind, l.Ended = lineSettled, monotonic()
			l.Outcome, l.Commit = aborted, uint64(o.Commit)
			if o.Status == percolator.OutcomeCommitted {
				l.Outcome = committed
			}
			s.log.write(l)
			return
		}
		s.complain(err)
		if contexts.Sleep(ctx, 50*time.Millisecond) != nil {
			return
		}
	}
}

// complain logs an error that no fault of a server or a process explains.
func (s *thread) complain(err error) {
	for _, never := range []error{
		errIntegrity, percolator.ErrCorrupt, percolator.ErrInvalid, percolator.ErrTooLarge, percolator.ErrReadOnly, percolator.ErrTxnDone,
	} {
		if errors.Is(err, never) {
			s.log.write(line{Kind: lineBad, Text: err.Error()})
			return
		}
	}
}

// errNothing ends a transaction that finds nothing to do.
var errNothing = errors.New("nothing to do")

// reason is the kind of an error, for the counts of the report.
func reason(err error) string {
	for _, known := range []struct {
		err  error
		name string
	}{
		{percolator.ErrConflict, "conflict"},
		{percolator.ErrUndetermined, "undetermined"},
		{percolator.ErrTxnTooOld, "transaction too old"},
		{percolator.ErrSnapshotTooOld, "snapshot too old"},
		{percolator.ErrSnapshotInFuture, "snapshot in the future"},
		{percolator.ErrNotObserved, "not observed"},
		{percolator.ErrClosed, "closed"},
		{errNothing, "nothing to do"},
		{context.DeadlineExceeded, "timeout"},
		{context.Canceled, "stopped"},
	} {
		if errors.Is(err, known.err) {
			return known.name
		}
	}
	return "store unavailable"
}

// addStats adds the counts of one process.
func addStats(sum, more *percolator.Stats) {
	s, m := reflect.ValueOf(sum).Elem(), reflect.ValueOf(more).Elem()
	for i := range s.NumField() {
		s.Field(i).SetUint(s.Field(i).Uint() + m.Field(i).Uint())
	}
}
