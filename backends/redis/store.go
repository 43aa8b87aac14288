package redis

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Store is a row-transactional store in Redis: what [Open] returns, or has
// wrapped in [rowstore.Coalesce]. It is a [rowstore.Grouper], an
// [rowstore.OracleProvider], a [rowstore.Splitter], a [rowstore.Waker], a
// [rowstore.Limiter], a [rowstore.Sharder] and a [rowstore.Reporter]. All methods
// may be called concurrently.
type Store struct {
	opts    Options
	nodes   nodes
	parts   []part
	okey    string
	channel string
	// oneSlot: any rows may share a group, and the oracle is with them.
	oneSlot bool
	// lateAfter is how long after it was sent a request may still be applied.
	lateAfter time.Duration
	clocks    sync.Map // *goredis.Client to *serverClock
	encoders  sync.Pool
	// strict: some server that the store has met would, as a replica, take writes.
	// From then on every script asks for the role of its server; see script.strict.
	strict atomic.Bool

	mu     sync.RWMutex // guards calls against Close
	closed atomic.Bool
	calls  sync.WaitGroup
	stop   context.CancelFunc // ends stopped
	ended  context.Context
}

// part holds the names of a partition.
type part struct {
	tag           string // {prefix:n}
	tables, never string
	group         string
}

// The most that goes into one run of a script, so that no run keeps the server
// from its other clients for long. A group is never cut, nor is the read of one
// cell. What a run that reads does is counted in the script, in steps; see
// scripts/read_part.lua.
const (
	maxRowsPerCall  = 512
	maxBytesPerCall = 1 << 20
	maxCallBytes    = 256 << 20
	maxSteps        = 8192
	maxAnswer       = 1 << 20
	minSteps        = 512
	minAnswer       = 64 << 10
)

// share is what each of n runs may do that go to the servers together.
func share(n int) (steps, bytes uint32) {
	n = max(n, 1)
	return uint32(max(maxSteps/n, minSteps)), uint32(max(maxAnswer/n, minAnswer))
}

// begin enters a call, and end leaves it.
func (s *Store) begin(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed.Load() {
		return fmt.Errorf("redis: %w", rowstore.ErrClosed)
	}
	s.calls.Add(1)
	return nil
}

func (s *Store) end() { s.calls.Done() }

// await runs f and waits for it or for the end of the context: go-redis heeds a
// deadline while it reads, but not a cancellation. What f leaves behind belongs to
// it until it returned; done tells whether it has. The caller entered with begin,
// and await leaves for it.
func (s *Store) await(ctx context.Context, f func(ctx context.Context)) (done bool) {
	if ctx.Done() == nil {
		defer s.end()
		f(ctx)
		return true
	}
	ready := make(chan struct{})
	go func() {
		defer s.end()
		defer close(ready)
		f(ctx)
	}()
	select {
	case <-ready:
		return true
	case <-ctx.Done():
	}
	// Both may have come at once, and a finished answer is worth more.
	select {
	case <-ready:
		return true
	default:
		return false
	}
}

// Close closes the connections. Calls under way end with an error. A second Close
// returns nil.
func (s *Store) Close() error {
	s.mu.Lock()
	was := s.closed.Swap(true)
	s.mu.Unlock()
	if was {
		return nil
	}
	s.stop()
	err := s.nodes.close()
	s.calls.Wait()
	if err != nil {
		return fmt.Errorf("redis: closing: %w", err)
	}
	return nil
}

// Limits returns the greatest lengths that the store takes.
func (s *Store) Limits() rowstore.Limits {
	return rowstore.Limits{Table: maxTable, Row: maxRow, Column: maxColumn, Value: maxValue}
}

// checkNames refuses names over the limits in reads, which nothing can be stored
// under.
func checkNames(table, row string) error {
	if len(table) > maxTable {
		return fmt.Errorf("redis: %w: table's name of %d bytes, at most %d", rowstore.ErrTooLarge, len(table), maxTable)
	}
	if len(row) > maxRow {
		return fmt.Errorf("redis: %w: row's key of %d bytes, at most %d", rowstore.ErrTooLarge, len(row), maxRow)
	}
	return nil
}

func (s *Store) partOf(table, row string) int { return partition(table, row, len(s.parts)) }

// Oracle returns the store's own oracle: the server's time, made monotonic by the
// state that the server keeps.
func (s *Store) Oracle() oracle.Oracle { return storeOracle{s} }

// GroupKey tells which rows may share a group: on a server outside cluster mode
// all, in a Cluster those of one partition.
func (s *Store) GroupKey(table, row string) string {
	if s.oneSlot {
		return "0"
	}
	return s.parts[s.partOf(table, row)].group
}

// Draws tells whether groups of that key may draw their timestamp: where the
// oracle is on the same server, in a Cluster in the same slot.
func (s *Store) Draws(key string) bool { return key == "0" }

// Shard names the server that holds a row: in a Cluster its address, as of the last
// call that went there, else "" for every row.
func (s *Store) Shard(table, row string) string {
	n, ok := s.nodes.(*cluster)
	if !ok {
		return ""
	}
	return n.address(s.partOf(table, row))
}

// batch is a run of the write script under construction.
type batch struct {
	groups []int // indexes of the caller's groups
	rows   int
	quick  bool // every group is quick
	enc    *writeEncoder
	call   call
}

func (s *Store) encoder() *writeEncoder {
	if e, ok := s.encoders.Get().(*writeEncoder); ok {
		return e
	}
	return &writeEncoder{}
}

func (s *Store) release(e *writeEncoder) {
	if cap(e.b) <= 1<<20 {
		s.encoders.Put(e)
	}
}

// Apply runs each mutation atomically on its row, the whole batch in one run of a
// script for each partition, or on one server for all.
func (s *Store) Apply(ctx context.Context, muts []rowstore.Mutation, _ rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	if err := rowstore.CheckBatch(muts); err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	if err := rowstore.CheckLimits(s.Limits(), muts); err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	out := make([]rowstore.Outcome, len(muts))
	groups := writes{
		n:     len(muts),
		group: func(i int) ([]rowstore.Mutation, bool, rowstore.Timestamp) { return muts[i : i+1], false, 0 },
		done:  func(i int, o *rowstore.GroupOutcome) { out[i] = o.Outcome; out[i].Applied = o.Applied },
		fail:  func(i int, err error) { out[i] = rowstore.Outcome{Err: err} },
	}
	if err := s.write(ctx, &groups, writeScript); err != nil {
		return nil, fmt.Errorf("redis: apply: %w", err)
	}
	return out, nil
}

// Group runs each group all or none, and draws the timestamp of those that ask.
func (s *Store) Group(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
	if err := rowstore.CheckGroups(s, groups); err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	for i := range groups {
		if err := rowstore.CheckLimits(s.Limits(), groups[i].Mutations); err != nil {
			return nil, fmt.Errorf("redis: %w", err)
		}
	}
	out := make([]rowstore.GroupOutcome, len(groups))
	w := writes{
		n: len(groups),
		group: func(i int) ([]rowstore.Mutation, bool, rowstore.Timestamp) {
			return groups[i].Mutations, groups[i].Draw, groups[i].NotAfter
		},
		done: func(i int, o *rowstore.GroupOutcome) { out[i] = *o },
		fail: func(i int, err error) { out[i] = rowstore.GroupOutcome{Err: err} },
	}
	if err := s.write(ctx, &w, writeScript); err != nil {
		return nil, fmt.Errorf("redis: group: %w", err)
	}
	return out, nil
}

// writes is what Apply and Group have in common.
type writes struct {
	n     int
	group func(i int) (muts []rowstore.Mutation, draw bool, notAfter rowstore.Timestamp)
	done  func(i int, o *rowstore.GroupOutcome)
	fail  func(i int, err error)
}

// write sends groups. An error says that none was applied, or, if it matches
// ErrAmbiguous, that each may have been; where only some of the calls failed it
// goes to their groups.
func (s *Store) write(ctx context.Context, w *writes, sc *script) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	batches, err := s.pack(w, sc)
	if err != nil || len(batches) == 0 {
		s.end()
		return err
	}
	if !s.await(ctx, func(ctx context.Context) { s.send(ctx, batches) }) {
		// What has not left now never will.
		left := false
		for _, b := range batches {
			left = !b.call.arg.abandon() || left
		}
		if left {
			return fmt.Errorf("%w: %w", rowstore.ErrAmbiguous, ctx.Err())
		}
		return ctx.Err()
	}
	return s.finish(ctx, w, batches, sc)
}

// pack encodes groups into batches.
func (s *Store) pack(w *writes, sc *script) ([]*batch, error) {
	var all []*batch
	open := make([]*batch, 1)
	if !s.oneSlot {
		open = make([]*batch, len(s.parts))
	}
	draws := false
	for i := range w.n {
		_, draw, _ := w.group(i)
		draws = draws || draw
	}
	for i := range w.n {
		muts, draw, notAfter := w.group(i)
		at := 0
		if !s.oneSlot {
			at = s.partOf(muts[0].Table, muts[0].Row)
		}
		b := open[at]
		if b == nil || b.rows+len(muts) > maxRowsPerCall || len(b.enc.b) > maxBytesPerCall {
			b = &batch{enc: s.encoder(), quick: true}
			b.call.part, b.call.script = at, sc
			okey := ""
			if draws && at == 0 {
				okey = s.okey
			}
			b.enc.begin(okey, s.channel)
			open[at] = b
			all = append(all, b)
		}
		tag := func(m *rowstore.Mutation) string {
			if s.oneSlot {
				return s.parts[s.partOf(m.Table, m.Row)].tag
			}
			return s.parts[at].tag
		}
		if !draw || !b.enc.quick(tag, muts, notAfter) {
			b.quick = false
			end := b.enc.group(len(muts), draw, notAfter)
			for j := range muts {
				b.enc.mutation(tag(&muts[j]), &muts[j])
			}
			b.enc.endGroup(end)
		}
		b.groups = append(b.groups, i)
		b.rows += len(muts)
		if len(b.enc.b) > maxCallBytes {
			return nil, fmt.Errorf("%w: a group of %d bytes, at most %d", rowstore.ErrTooLarge, len(b.enc.b), maxCallBytes)
		}
	}
	for _, b := range all {
		b.call.arg.b, b.call.arg.expiry = b.enc.bytes(), b.enc.expiry
		if b.quick && sc == writeScript {
			b.call.script = quickScript
		}
	}
	return all, nil
}

func (s *Store) send(ctx context.Context, batches []*batch) {
	calls := make([]*call, len(batches))
	for i, b := range batches {
		calls[i] = &b.call
	}
	s.run(ctx, calls)
	// A request that the server found too late was not applied, and taught the
	// store the server's clock. If it was the clock, once more helps.
	var late []*call
	for _, c := range calls {
		if c.tooLate() {
			c.answer, c.err = "", nil
			late = append(late, c)
		}
	}
	if len(late) > 0 && ctx.Err() == nil {
		s.run(ctx, late)
	}
	for _, c := range calls {
		if c.err == nil && c.tooLate() {
			c.err = errLate
		}
	}
}

var errLate = errors.New("the request reached the server too late and was refused")

// tooLate tells whether the script refused a request because its time was over,
// and notes the server's time in any case.
func (c *call) tooLate() bool {
	if c.err != nil {
		return false
	}
	u := unpacker{s: c.answer}
	u.list()
	late, now := u.number(), u.number()
	if u.err == nil {
		c.arg.clock.saw(now)
	}
	return late == 1
}

// finish reads the answers into outcomes.
func (s *Store) finish(ctx context.Context, w *writes, batches []*batch, sc *script) error {
	failed := 0
	alike := true
	for _, b := range batches {
		if b.call.err == nil {
			b.call.err = s.outcomes(w, b)
		}
		if b.call.err != nil {
			failed++
			alike = alike && errors.Is(b.call.err, rowstore.ErrAmbiguous) == errors.Is(batches[0].call.err, rowstore.ErrAmbiguous)
		}
		s.release(b.enc)
	}
	if failed == 0 {
		return nil
	}
	var freeing []int
	if sc != freeScript {
		freeing = onlyFreeing(w, batches)
	}
	if failed == len(batches) && alike && len(freeing) == 0 {
		return batches[0].call.err
	}
	for _, b := range batches {
		if b.call.err == nil {
			continue
		}
		for _, i := range b.groups {
			w.fail(i, fmt.Errorf("redis: %w", b.call.err))
		}
	}
	if len(freeing) > 0 {
		again := writes{
			n:     len(freeing),
			group: func(k int) ([]rowstore.Mutation, bool, rowstore.Timestamp) { return w.group(freeing[k]) },
			done:  func(k int, o *rowstore.GroupOutcome) { w.done(freeing[k], o) },
			fail:  func(k int, err error) { w.fail(freeing[k], err) },
		}
		if err := s.write(ctx, &again, freeScript); err != nil {
			for _, i := range freeing {
				w.fail(i, fmt.Errorf("redis: %w", err))
			}
		}
	}
	return nil
}

// onlyFreeing finds the groups that only free memory (collection of history, roll
// backs) among those that a server refused because it is out of memory. It lets
// the same script run for them under another flag.
func onlyFreeing(w *writes, batches []*batch) []int {
	var all []int
	for _, b := range batches {
		if b.call.err == nil || errors.Is(b.call.err, rowstore.ErrAmbiguous) || !goredis.HasErrorPrefix(b.call.err, "OOM ") {
			continue
		}
		for _, i := range b.groups {
			muts, draw, _ := w.group(i)
			if !draw && !slices.ContainsFunc(muts, func(m rowstore.Mutation) bool { return !onlyFrees(&m) }) {
				all = append(all, i)
			}
		}
	}
	return all
}

// outcomes reads the answer of one batch. An answer that cannot be read says
// nothing about what was done.
func (s *Store) outcomes(w *writes, b *batch) error {
	u := unpacker{s: b.call.answer}
	n := u.list()
	u.number()
	u.number()
	if n != len(b.groups)+2 {
		return fmt.Errorf("%w: %w", rowstore.ErrAmbiguous, errAnswer)
	}
	for _, i := range b.groups {
		var o rowstore.GroupOutcome
		it := u.next()
		switch it.kind {
		case isNumber:
			o.Applied, o.TooLate = it.n == 1, it.n == 2
		case isString:
			if len(it.s) != 8 {
				u.fail()
				break
			}
			o.Applied, o.Commit = true, tsOf(it.s)
		case isList:
			muts, _, _ := w.group(i)
			o.Failed = int(u.number()) - 1
			if o.Failed < 0 || o.Failed >= len(muts) {
				u.fail()
				break
			}
			m := &muts[o.Failed]
			cells, notes := columnsOf(m, nil, nil)
			if it.n != int64(1+len(cells)+len(notes)) {
				u.fail()
				break
			}
			var vs []version
			var err error
			for j := range len(cells) + len(notes) {
				v, ok := u.string()
				if !ok || err != nil {
					continue
				}
				if j < len(cells) {
					vs, err = parseCell(vs, cells[j].name, v)
				} else {
					vs, err = parseNotes(vs, notes[j-len(cells)].name, v)
				}
			}
			failed, broke, found := judge(m, vs)
			if err == nil && !found {
				err = fmt.Errorf("%w: the server refused a mutation whose conditions hold", errAnswer)
			}
			if err != nil {
				o = rowstore.GroupOutcome{Err: fmt.Errorf("redis: row %q of table %q: %w", m.Row, m.Table, err)}
				o.Outcome.Err = o.Err
				break
			}
			o.Outcome = rowstore.Outcome{Failed: failed, Broke: broke}
		default:
			u.fail()
		}
		if u.err != nil {
			break
		}
		w.done(i, &o)
	}
	if err := u.done(); err != nil {
		return fmt.Errorf("%w: %w", rowstore.ErrAmbiguous, err)
	}
	return nil
}

// Tables lists the tables that hold anything.
func (s *Store) Tables(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		tables, err := s.tables(ctx)
		if err != nil {
			yield("", fmt.Errorf("redis: tables: %w", err))
			return
		}
		for _, t := range tables {
			if !yield(t, nil) {
				return
			}
		}
	}
}

func (s *Store) tables(ctx context.Context) ([]string, error) {
	calls := make([]*call, len(s.parts))
	for i := range calls {
		calls[i] = &call{part: i, script: tablesScript}
	}
	if err := s.runAll(ctx, calls); err != nil {
		return nil, err
	}
	var all []string
	for _, c := range calls {
		u := unpacker{s: c.answer}
		for range u.list() {
			name, _ := u.string()
			all = append(all, unescapeTable(name))
		}
		if err := u.done(); err != nil {
			return nil, err
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	if i, ok := slices.BinarySearch(all, probeTable); ok {
		all = slices.Delete(all, i, i+1)
	}
	return all, nil
}

// runAll runs scripts that all must succeed.
func (s *Store) runAll(ctx context.Context, calls []*call) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	if !s.await(ctx, func(ctx context.Context) { s.run(ctx, calls) }) {
		return ctx.Err()
	}
	var errs []error
	for _, c := range calls {
		errs = append(errs, c.err)
	}
	return errors.Join(errs...)
}

// query runs plain commands that change nothing the second time: within the
// context, and again while a slot is elsewhere.
func (s *Store) query(ctx context.Context, f func(ctx context.Context) error) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	var err error
	finished := s.await(ctx, func(ctx context.Context) {
		patience := time.Now().Add(s.opts.ReadTimeout)
		for wait := firstPause; ; wait = min(2*wait, lastPause) {
			err = f(ctx)
			if err == nil || !serverSaid(err) || !elsewhere(err.Error()) {
				return
			}
			s.nodes.moved(ctx)
			if time.Now().After(patience) || !sleep(ctx, wait) {
				return
			}
		}
	})
	if !finished {
		return ctx.Err()
	}
	if err != nil {
		return s.failure(ctx, err)
	}
	return nil
}

func newParts(prefix string, n int) []part {
	parts := make([]part, n)
	for i := range parts {
		tag := "{" + prefix + ":" + strconv.Itoa(i) + "}"
		parts[i] = part{tag: tag, tables: tag + "t", never: tag + "x", group: strconv.Itoa(i)}
	}
	return parts
}
