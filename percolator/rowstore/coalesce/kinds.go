package coalesce

import (
	"context"
	"hash/maphash"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/internal/arena"
)

func (c *coalescer) readKind() laneKind[rowstore.RowRead, rowstore.Row] {
	kind := laneKind[rowstore.RowRead, rowstore.Row]{
		name:  "read",
		send:  c.inner.Read,
		check: rowstore.CheckReads,
		keep:  arena.KeepReads,
		failed: func(q *rowstore.RowRead, err error) rowstore.Row {
			return rowstore.Row{Table: q.Table, Row: q.Row, Err: err}
		},
		errors: func(a *rowstore.Row, do func(*error)) { do(&a.Err) },
	}
	if c.sharder != nil {
		kind.shard = func(q *rowstore.RowRead) (string, bool) { return c.sharder.Shard(q.Table, q.Row), true }
	}
	return kind
}

// rowSeed makes the hashes of rows different in each process.
var rowSeed = maphash.MakeSeed()

// applyKind is the kind of applies with the given options. Applies that draw have lanes of
// their own, so that no other caller waits for timestamps.
func (c *coalescer) applyKind(opts rowstore.ApplyOptions) laneKind[rowstore.Mutation, rowstore.Outcome] {
	kind := laneKind[rowstore.Mutation, rowstore.Outcome]{
		name:   "apply",
		writes: always[rowstore.Mutation],
		// A moment ago the batch was of one shard, but Shard may answer differently now.
		whole: opts.AssignTimestamp,
		send: func(ctx context.Context, muts []rowstore.Mutation) ([]rowstore.Outcome, error) {
			return c.inner.Apply(ctx, muts, opts)
		},
		check: func(muts []rowstore.Mutation) error {
			if err := rowstore.CheckBatch(muts); err != nil {
				return err
			}
			return rowstore.CheckLimits(c.limits, muts)
		},
		keep:   arena.KeepMutations,
		hash:   func(to []uint64, muts []rowstore.Mutation) []uint64 { return hashRows(to, rowSeed, muts) },
		failed: func(_ *rowstore.Mutation, err error) rowstore.Outcome { return rowstore.Outcome{Err: err} },
		errors: func(a *rowstore.Outcome, do func(*error)) { do(&a.Err) },
		bytes:  bytesOf,
	}
	if c.sharder != nil {
		kind.shard = func(q *rowstore.Mutation) (string, bool) { return c.sharder.Shard(q.Table, q.Row), true }
	}
	return kind
}

func (c *coalescer) groupKind(g rowstore.Grouper) laneKind[rowstore.Group, rowstore.GroupOutcome] {
	kind := laneKind[rowstore.Group, rowstore.GroupOutcome]{
		name:   "group",
		writes: always[rowstore.Group],
		send:   g.Group,
		check: func(groups []rowstore.Group) error {
			if err := rowstore.CheckGroups(g, groups); err != nil {
				return err
			}
			return rowstore.CheckGroupLimits(c.limits, groups)
		},
		keep: arena.KeepGroups,
		hash: func(to []uint64, groups []rowstore.Group) []uint64 {
			for i := range groups {
				to = hashRows(to, rowSeed, groups[i].Mutations)
			}
			return to
		},
		size: func(groups []rowstore.Group) int {
			n := 0
			for i := range groups {
				n += len(groups[i].Mutations)
			}
			return n
		},
		failed: func(_ *rowstore.Group, err error) rowstore.GroupOutcome { return rowstore.GroupOutcome{Err: err} },
		errors: errorsOfGroup,
		bytes:  bytesOfGroups,
	}
	if c.sharder != nil {
		kind.shard = func(q *rowstore.Group) (string, bool) {
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

func drawKind(o oracle.Oracle) laneKind[int, rowstore.Timestamp] {
	return laneKind[int, rowstore.Timestamp]{
		name:   "draw",
		send:   func(ctx context.Context, counts []int) ([]rowstore.Timestamp, error) { return drawAll(ctx, o, counts) },
		check:  checkDraws,
		keep:   func(to []int, _ *arena.Arena, counts []int) []int { return append(to, counts...) },
		size:   func(counts []int) int { return sum(counts) },
		errors: func(*rowstore.Timestamp, func(*error)) {},
	}
}

func (c *coalescer) snapshotReadKind(d rowstore.SnapshotReader) laneKind[rowstore.SnapshotRead, rowstore.SnapshotRows] {
	kind := laneKind[rowstore.SnapshotRead, rowstore.SnapshotRows]{
		name:  "read snapshot",
		send:  d.ReadSnapshot,
		check: rowstore.CheckSnapshotReads,
		keep:  arena.KeepSnapshotReads,
		size: func(asks []rowstore.SnapshotRead) int {
			n := 0
			for i := range asks {
				n += len(asks[i].Reads)
			}
			return n
		},
		failed: func(_ *rowstore.SnapshotRead, err error) rowstore.SnapshotRows {
			return rowstore.SnapshotRows{Err: err}
		},
		errors: errorsOfSnapshot,
	}
	if c.sharder != nil {
		kind.shard = func(q *rowstore.SnapshotRead) (string, bool) {
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

// bytesOf is the total length of the values that mutations put.
func bytesOf(muts []rowstore.Mutation) int {
	bytes := 0
	for i := range muts {
		edits := muts[i].Edits
		for j := range edits {
			bytes += len(edits[j].Value)
		}
	}
	return bytes
}

func bytesOfGroups(groups []rowstore.Group) int {
	bytes := 0
	for i := range groups {
		bytes += bytesOf(groups[i].Mutations)
	}
	return bytes
}

func errorsOfGroup(a *rowstore.GroupOutcome, do func(*error)) { do(&a.Err) }

func errorsOfSnapshot(a *rowstore.SnapshotRows, do func(*error)) {
	do(&a.Err)
	for i := range a.Rows {
		do(&a.Rows[i].Err)
	}
}
