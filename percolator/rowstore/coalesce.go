package rowstore

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"sync"

	"github.com/percolate-go/percolate/percolator/oracle"
)

// CoalesceOptions change what Coalesce does. The zero value is ready to use.
type CoalesceOptions struct {
	// MaxBatch is the greatest number of rows, or of timestamps, in a merged call. A
	// single call with more of them is sent alone and whole, at once, and does not count
	// in MaxInFlight. Default (0 or less) 256.
	MaxBatch int
	// MaxInFlight is the greatest number of backend calls of each kind under way at once
	// to each shard: reads, applies, groups, draws, and draws with reads; applies with
	// different ApplyOptions count apart. With 1, callers are merged the most and wait the
	// longest. A call that takes far longer than usual does not count any more, so that
	// one that hangs does not keep others waiting. Default (0 or less) 2.
	MaxInFlight int
}

// Coalesce returns a Store that merges concurrent Read, Apply, Group and DrawRead
// calls, and draws of timestamps from the store's oracle, into few calls of s. No call
// waits for time to pass: while no call of its kind is under way, it goes straight to s,
// in its caller's goroutine. Calls that arrive meanwhile are merged into a
// batch, which leaves when the call under way returns, or earlier: once it is as
// large as all that is under way, as far as MaxInFlight allows. So the batches grow
// with the load, and an answer always comes from a request that left after the
// caller asked.
//
// To each caller it looks as if its call had been made alone: bad arguments fail
// alone, and so do the rows that have an Err. An error of a whole merged call
// goes to all who were in it. A batch names a row once; calls that change the
// same row, and are merged, leave one after the other in the order in which they came.
//
// Strangers do not wait for each other:
//   - Over a [Sharder], calls for different shards are never merged, and do not count in
//     each other's MaxInFlight. A call for rows of several shards is cut, and answered
//     when all parts are; the failure of a part is the Err of its rows. Such an Apply
//     draws no timestamps. Such a DrawRead draws first and reads then.
//   - Urgent applies are merged with urgent ones only, and never wait for others.
//   - Deferred and undeferred applies are never in one batch over a [Deferrer], so a
//     deferred one does not wait for a flush that it did not ask for.
//   - A batch that holds a mebibyte of values takes no more calls.
//   - When a call has been under way for far longer than usual, more may leave.
//
// A caller returns when its context ends, whatever the others' do. If its request had
// not left by then, nothing happened, else Apply and Group return an error that matches
// ErrAmbiguous, besides the context's. The merged call goes on until the last of
// its callers gave up. It carries the values of the context of the caller that
// came first, and the latest of the deadlines.
//
// The Store is a [Decorator] and has the optional abilities of s. Close closes s;
// calls that have not left end with ErrClosed, the contexts of merged ones end,
// and Close returns once none is under way. No goroutine runs while nothing does.
func Coalesce(s Store, opts CoalesceOptions) Store {
	if opts.MaxBatch <= 0 {
		opts.MaxBatch = 256
	}
	if opts.MaxInFlight <= 0 {
		opts.MaxInFlight = 2
	}
	c := &coalescer{inner: s, opts: opts}
	c.sharder, _ = Unwrap[Sharder](s)
	if l, ok := Unwrap[Limiter](s); ok {
		c.limits = l.Limits()
	}
	c.reads = newLanes(opts, c.readKind())
	_, defers := Unwrap[Deferrer](s)
	for i := range c.applies {
		with := ApplyOptions{Deferred: i&laneDeferred != 0, Draw: i&laneDraw != 0, Urgent: i&laneUrgent != 0}
		if with.Deferred && !defers {
			c.applies[i] = c.applies[i&^laneDeferred]
		} else {
			c.applies[i] = newLanes(opts, c.applyKind(with))
		}
	}
	if p, ok := Unwrap[OracleProvider](s); ok {
		c.draws = newLane(opts, drawKind(p.Oracle()))
	}
	if d, ok := Unwrap[DrawReader](s); ok {
		c.drawReads = newLanes(opts, c.drawReadKind(d))
	}
	if g, ok := Unwrap[Grouper](s); ok {
		c.grouper = g
		c.groups = newLanes(opts, c.groupKind(g))
	}
	return c
}

// The lanes of applies are numbered by their options.
const (
	laneDeferred = 1 << iota
	laneDraw
	laneUrgent
	applyLanes
)

type coalescer struct {
	inner     Store
	opts      CoalesceOptions
	limits    Limits
	sharder   Sharder // nil: all is one shard
	grouper   Grouper
	reads     *lanes[RowRead, Row]
	applies   [applyLanes]*lanes[Mutation, Outcome] // shared where nothing is ever deferred
	groups    *lanes[Group, GroupOutcome]           // nil without a Grouper
	draws     *lane[int, Timestamp]                 // nil without an OracleProvider
	drawReads *lanes[DrawRead, DrawnRows]           // nil without a DrawReader
	close     sync.Once
}

func (c *coalescer) readKind() laneKind[RowRead, Row] {
	kind := laneKind[RowRead, Row]{
		name:   "read",
		send:   c.inner.Read,
		check:  CheckReads,
		keep:   keepReads,
		failed: func(q *RowRead, err error) Row { return Row{Table: q.Table, Row: q.Row, Err: err} },
	}
	if c.sharder != nil {
		kind.shard = func(q *RowRead) (string, bool) { return c.sharder.Shard(q.Table, q.Row), true }
	}
	return kind
}

// rowSeed makes the hashes of rows those of this process alone.
var rowSeed = maphash.MakeSeed()

// applyKind is that of the applies with some options. Those that draw have lanes of their
// own, so that nobody waits for timestamps that he did not ask for.
func (c *coalescer) applyKind(opts ApplyOptions) laneKind[Mutation, Outcome] {
	kind := laneKind[Mutation, Outcome]{
		name:   "apply",
		writes: true,
		// Shard may answer otherwise than a moment ago, when the batch was of one shard.
		whole: opts.Draw,
		send: func(ctx context.Context, muts []Mutation) ([]Outcome, error) {
			return c.inner.Apply(ctx, muts, opts)
		},
		check: func(muts []Mutation) error {
			if err := CheckBatch(muts); err != nil {
				return err
			}
			return CheckLimits(c.limits, muts)
		},
		keep:   keepMutations,
		hash:   func(to []uint64, muts []Mutation) []uint64 { return hashRows(to, rowSeed, muts) },
		failed: func(_ *Mutation, err error) Outcome { return Outcome{Err: err} },
	}
	if c.sharder != nil {
		kind.shard = func(q *Mutation) (string, bool) { return c.sharder.Shard(q.Table, q.Row), true }
	}
	return kind
}

func (c *coalescer) groupKind(g Grouper) laneKind[Group, GroupOutcome] {
	kind := laneKind[Group, GroupOutcome]{
		name:   "group",
		writes: true,
		send:   g.Group,
		check: func(groups []Group) error {
			if err := CheckGroups(g, groups); err != nil {
				return err
			}
			return CheckGroupLimits(c.limits, groups)
		},
		keep: keepGroups,
		hash: func(to []uint64, groups []Group) []uint64 {
			for i := range groups {
				to = hashRows(to, rowSeed, groups[i].Mutations)
			}
			return to
		},
		size: func(groups []Group) int {
			n := 0
			for i := range groups {
				n += len(groups[i].Mutations)
			}
			return n
		},
		failed: func(_ *Group, err error) GroupOutcome { return GroupOutcome{Err: err} },
	}
	if c.sharder != nil {
		kind.shard = func(q *Group) (string, bool) {
			shard := c.sharder.Shard(q.Mutations[0].Table, q.Mutations[0].Row)
			for i := 1; i < len(q.Mutations); i++ {
				if c.sharder.Shard(q.Mutations[i].Table, q.Mutations[i].Row) != shard {
					return "", false
				}
			}
			return shard, true
		}
	}
	return kind
}

func drawKind(o oracle.Oracle) laneKind[int, Timestamp] {
	return laneKind[int, Timestamp]{
		name:  "draw",
		send:  func(ctx context.Context, counts []int) ([]Timestamp, error) { return drawAll(ctx, o, counts) },
		check: checkDraws,
		keep:  func(to []int, _ *arena, counts []int) []int { return append(to, counts...) },
		size:  func(counts []int) int { return sum(counts) },
	}
}

func (c *coalescer) drawReadKind(d DrawReader) laneKind[DrawRead, DrawnRows] {
	kind := laneKind[DrawRead, DrawnRows]{
		name:  "draw and read",
		send:  d.DrawRead,
		check: CheckDrawReads,
		keep:  keepDrawReads,
		size: func(asks []DrawRead) int {
			n := 0
			for i := range asks {
				n += len(asks[i].Reads)
			}
			return n
		},
		failed: func(_ *DrawRead, err error) DrawnRows { return DrawnRows{Err: err} },
	}
	if c.sharder != nil {
		kind.shard = func(q *DrawRead) (string, bool) {
			shard := c.sharder.Shard(q.Reads[0].Table, q.Reads[0].Row)
			for i := 1; i < len(q.Reads); i++ {
				if c.sharder.Shard(q.Reads[i].Table, q.Reads[i].Row) != shard {
					return "", false
				}
			}
			return shard, true
		}
	}
	return kind
}

var _ Decorator = (*coalescer)(nil)

func (c *coalescer) Read(ctx context.Context, reads []RowRead) ([]Row, error) {
	return c.reads.do(ctx, reads)
}

func (c *coalescer) Apply(ctx context.Context, muts []Mutation, opts ApplyOptions) ([]Outcome, error) {
	i := 0
	if opts.Deferred {
		i |= laneDeferred
	}
	// A timestamp is drawn after all of its batch was applied, so not by a part of it.
	if opts.Draw && c.oneShard(muts) {
		i |= laneDraw
	}
	if opts.Urgent {
		i |= laneUrgent
	}
	return c.applies[i].do(ctx, muts)
}

func (c *coalescer) oneShard(muts []Mutation) bool {
	if c.sharder == nil || len(muts) < 2 {
		return true
	}
	if CheckBatch(muts) != nil {
		return true // it will be refused
	}
	_, one := c.applies[0].shardOf(muts)
	return one
}

func (c *coalescer) Scan(ctx context.Context, s ScanRange) iter.Seq2[Row, error] {
	return c.inner.Scan(ctx, s)
}

func (c *coalescer) Tables(ctx context.Context) iter.Seq2[string, error] { return c.inner.Tables(ctx) }

func (c *coalescer) Close() error {
	var err error
	c.close.Do(func() {
		all := c.all()
		for _, l := range all {
			l.stop()
		}
		err = c.inner.Close()
		for _, l := range all {
			l.wait()
		}
	})
	return err
}

// all lists the lanes of every kind.
func (c *coalescer) all() []interface {
	stop()
	wait()
} {
	all := []interface {
		stop()
		wait()
	}{c.reads}
	for _, l := range c.applies {
		all = append(all, l)
	}
	if c.groups != nil {
		all = append(all, c.groups)
	}
	if c.draws != nil {
		all = append(all, c.draws)
	}
	if c.drawReads != nil {
		all = append(all, c.drawReads)
	}
	return all
}

// Offer implements Decorator. What coalescing does not change is offered as it
// is.
func (c *coalescer) Offer(target any) bool {
	switch t := target.(type) {
	case *Grouper:
		if c.grouper == nil {
			return false
		}
		*t = coalescedGrouper{c.grouper, c.groups}
		return true
	case *Reporter:
		r, ok := Unwrap[Reporter](c.inner)
		if ok {
			*t = coalescedReporter{r, c.opts}
		}
		return ok
	case *Deferrer:
		return offer(c.inner, t)
	case *OracleProvider:
		if c.draws == nil {
			return false
		}
		*t = coalescedOracle{c.draws}
		return true
	case *DrawReader:
		if c.drawReads == nil {
			return false
		}
		*t = coalescedDrawReader{c}
		return true
	case *Splitter:
		return offer(c.inner, t)
	case *Waker:
		return offer(c.inner, t)
	case *Limiter:
		return offer(c.inner, t)
	case *Sharder:
		return offer(c.inner, t)
	case *Placer:
		return offer(c.inner, t)
	case *Crasher:
		return offer(c.inner, t)
	}
	return false
}

// offer gives the ability of an inner store out as a Decorator's own.
func offer[T any](inner Store, target *T) bool {
	t, ok := Unwrap[T](inner)
	if ok {
		*target = t
	}
	return ok
}

type coalescedGrouper struct {
	Grouper
	groups *lanes[Group, GroupOutcome]
}

func (g coalescedGrouper) Group(ctx context.Context, groups []Group) ([]GroupOutcome, error) {
	return g.groups.do(ctx, groups)
}

type coalescedDrawReader struct{ c *coalescer }

func (d coalescedDrawReader) DrawRead(ctx context.Context, asks []DrawRead) ([]DrawnRows, error) {
	c := d.c
	if c.sharder != nil && c.draws != nil && CheckDrawReads(asks) == nil {
		for i := range asks {
			if _, one := c.drawReads.shard(&asks[i]); !one {
				return DrawThenRead(ctx, coalescedOracle{c.draws}, c, asks)
			}
		}
	}
	return c.drawReads.do(ctx, asks)
}

// coalescedOracle is both the ability and the oracle.
type coalescedOracle struct{ draws *lane[int, Timestamp] }

func (o coalescedOracle) Oracle() oracle.Oracle { return o }

func (o coalescedOracle) Draw(ctx context.Context, n int) (Timestamp, error) {
	first, err := o.draws.do(ctx, []int{n})
	if err != nil {
		if errors.Is(err, ErrClosed) && !errors.Is(err, oracle.ErrClosed) {
			err = fmt.Errorf("%w: %w", oracle.ErrClosed, err)
		}
		return 0, err
	}
	return first[0], nil
}

// drawAll draws for all who wait at once, and gives each its part of the range.
func drawAll(ctx context.Context, from oracle.Oracle, counts []int) ([]Timestamp, error) {
	next, err := from.Draw(ctx, sum(counts))
	if err != nil {
		return nil, err
	}
	firsts := make([]Timestamp, len(counts))
	for i, n := range counts {
		firsts[i] = next
		next += Timestamp(n)
	}
	return firsts, nil
}

func checkDraws(counts []int) error {
	for _, n := range counts {
		if n < 1 {
			return fmt.Errorf("%w: draw of %d timestamps", ErrInvalid, n)
		}
	}
	return nil
}

func sum(counts []int) int {
	all := 0
	for _, n := range counts {
		all += n
	}
	return all
}

type coalescedReporter struct {
	inner Reporter
	opts  CoalesceOptions
}

func (r coalescedReporter) Report(ctx context.Context) (Report, error) {
	report, err := r.inner.Report(ctx)
	if err != nil {
		return Report{}, err
	}
	report.Features = append(report.Features, Feature{
		Name: "coalescing", Supported: true,
		Reason: fmt.Sprintf("up to %d rows in a call, %d calls of a kind at once", r.opts.MaxBatch, r.opts.MaxInFlight),
	})
	return report, nil
}
