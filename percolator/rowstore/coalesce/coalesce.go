// Package coalesce merges concurrent calls of a store: calls that arrive while an earlier
// one is under way leave together as one batch.
package coalesce

import (
	"context"
	"iter"
	"sync"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Options change how calls are merged. The zero value is ready to use.
type Options struct {
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
	// Together, if not nil, answers groups, snapshot reads and draws in one call of the store.
	// Then they are merged with each other, and count in MaxInFlight as one kind, but for
	// groups with more than 32 KiB of values, which stay a kind of their own. A second call
	// leaves beside another one only if at least 16 callers share it, or wait and are too many
	// for one call. It is called with at least two of the three kinds. It sets the answers of a
	// kind or its error. A kind whose calls change nothing must not share the failure of one that
	// does. For a store that names several shards it must be nil, because it is asked about all
	// rows at once.
	//
	// The context of a call that several callers share, of one kind or more, is then never
	// cancelled. It has their latest deadline, if each has one. The callers return when their
	// own contexts end, and the store bounds the call by itself, and ends it when it is closed.
	// context.WithTimeout does not bound it: a context that is made from one with an earlier
	// deadline leaves it to that one to end. A deadline of a connection does, or a timeout over
	// context.WithoutCancel.
	Together func(ctx context.Context, t *Together)
}

// New returns a Store that merges concurrent Read, Apply, Group and ReadSnapshot
// calls, and draws of timestamps from the store's oracle, into few calls of s. No call
// waits for time to pass: while no call of its kind is under way, it goes straight to s,
// in its caller's goroutine, after goroutines that are ready to run have gone first, so that
// what they ask leaves with it. But fewer than 16 groups wait for snapshot reads under way, whose callers are likely to
// commit next, for 5 ms at most, as long as that pays. Calls that arrive meanwhile are merged into a batch. The
// batch leaves when the call under way returns. It leaves earlier if it is as large as
// all that is under way and MaxInFlight allows it. So the batches grow with the load, and
// an answer always comes from a request that left after the caller asked.
//
// To each caller it looks as if its call had been made alone: bad arguments fail alone,
// and so do the rows that have an Err. If a merged call that changes nothing fails with
// ErrCorrupt or ErrFormat, or any with ErrInvalid or ErrTooLarge, each of its calls is made alone, so that a row that cannot be read fails those
// alone that read it. Then it leaves before what waits, in the context of its own caller. Any other error of a whole merged call goes to all of its callers. A batch names a row once. Merged calls that change the same row leave one after
// the other, in the order in which they came.
//
// Strangers do not wait for each other:
//   - Over a [rowstore.Sharder], calls for different shards are never merged, and do not count in
//     each other's MaxInFlight. A call for rows of several shards is cut, and answered
//     when all parts are; the failure of a part is the Err of its rows. Such an Apply
//     draws no timestamps. Such a ReadSnapshot draws first and then reads.
//   - Urgent applies are merged with urgent ones only, and never wait for others.
//   - Bulk applies are merged with none. They leave at once, do not count in MaxInFlight, and
//     nothing waits for them.
//   - Deferred and undeferred applies are never in one batch over a [rowstore.Deferrer], so a
//     deferred one does not wait for a flush that it did not ask for.
//   - Calls with more than a mebibyte of values together share no batch.
//   - When a call has been under way for far longer than usual, more may leave.
//
// A caller returns when its own context ends. If its request had not left by then, nothing
// happened. Otherwise Apply and Group return an error that matches both ErrAmbiguous and
// the context's error. The merged call goes on until its last caller gave up. Its context
// has the values of the context of the caller that came first, and the latest deadline.
//
// Groups, snapshot reads and draws are kinds of their own unless Options.Together says
// otherwise.
//
// The Store is a [rowstore.Decorator] and has the optional abilities of s. Close closes s.
// Calls that have not left end with ErrClosed, and the contexts of merged calls end. Close
// returns when no call is under way. No goroutine runs while no call is under way.
func New(s rowstore.Store, opts Options) rowstore.Store {
	if opts.MaxBatch <= 0 {
		opts.MaxBatch = 256
	}
	if opts.MaxInFlight <= 0 {
		opts.MaxInFlight = 2
	}
	c := &coalescer{inner: s, opts: opts}
	if opts.Together != nil {
		c.together = newTogether(c)
	}
	beneath := rowstore.AbilitiesOf(s)
	c.sharder = beneath.Sharder
	if beneath.Limiter != nil {
		c.limits = beneath.Limiter.Limits()
	}
	c.reads = newLanes(opts, c.readKind())
	for i := range c.applies {
		with := rowstore.ApplyOptions{Deferred: i&laneDeferred != 0, AssignTimestamp: i&laneTimestamp != 0, Urgent: i&laneUrgent != 0, Bulk: i&laneBulk != 0}
		merged := opts
		if with.Bulk {
			merged.MaxBatch = 0 // every call is too large for it
		}
		if with.Deferred && beneath.Deferrer == nil {
			c.applies[i] = c.applies[i&^laneDeferred]
		} else {
			c.applies[i] = newLanes(merged, c.applyKind(with))
		}
	}
	c.abilities = c.treatment().Of(s)
	if c.groups != nil && c.snapshotReads != nil && c.sharder == nil {
		c.groups.only.ahead = c.snapshotReads.only
	}
	return c
}

// The lanes of applies are numbered by their options.
const (
	laneDeferred = 1 << iota
	laneTimestamp
	laneUrgent
	laneBulk
	applyLanes
)

type coalescer struct {
	inner         rowstore.Store
	opts          Options
	abilities     rowstore.Abilities
	limits        rowstore.Limits
	sharder       rowstore.Sharder // nil: all is one shard
	reads         *lanes[rowstore.RowRead, rowstore.Row]
	applies       [applyLanes]*lanes[rowstore.Mutation, rowstore.Outcome] // shared where nothing is ever deferred
	groups        *lanes[rowstore.Group, rowstore.GroupOutcome]           // nil without a Grouper
	draws         *lane[int, rowstore.Timestamp]                          // nil without an OracleProvider
	snapshotReads *lanes[rowstore.SnapshotRead, rowstore.SnapshotRows]    // nil without a SnapshotReader
	together      *together                                               // of groups, draws and snapshot reads: then groups is for large ones, and draws and snapshotReads are nil; nil without Options.Together
	close         sync.Once
}

var _ rowstore.Decorator = (*coalescer)(nil)

func (c *coalescer) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	return c.reads.do(ctx, reads)
}

func (c *coalescer) Apply(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	i := 0
	if opts.Deferred {
		i |= laneDeferred
	}
	// A timestamp is drawn after its whole batch was applied, so a part of a batch must
	// not draw.
	if opts.AssignTimestamp && c.oneShard(muts) {
		i |= laneTimestamp
	}
	if opts.Urgent {
		i |= laneUrgent
	}
	if opts.Bulk {
		i |= laneBulk
	}
	return c.applies[i].do(ctx, muts)
}

func (c *coalescer) oneShard(muts []rowstore.Mutation) bool {
	if c.sharder == nil || len(muts) < 2 {
		return true
	}
	if rowstore.CheckBatch(muts) != nil {
		return true // it will be refused
	}
	_, one := c.applies[0].shardOf(muts)
	return one
}

func (c *coalescer) Scan(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
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

// closer is a lane, or several, of any kind.
type closer interface {
	stop() // ends calls that have not left
	wait() // returns when no call is under way
}

// all lists the lanes of every kind.
func (c *coalescer) all() []closer {
	all := []closer{c.reads}
	for _, l := range c.applies {
		all = append(all, l)
	}
	if c.groups != nil {
		all = append(all, c.groups)
	}
	if c.draws != nil {
		all = append(all, c.draws)
	}
	if c.snapshotReads != nil {
		all = append(all, c.snapshotReads)
	}
	if c.together != nil {
		all = append(all, c.together)
	}
	return all
}
