package coalesce

import (
	"context"
	"fmt"
	"sync"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/internal/arena"
)

// Together is one call of several kinds, and its answers: see Options.Together. Each kind has
// answers, in the order of what was asked, or an error.
type Together struct {
	Groups []rowstore.Group
	Begins []rowstore.SnapshotRead
	Draws  []int // how many timestamps each asks for

	Outcomes []rowstore.GroupOutcome
	GroupErr error
	Begun    []rowstore.SnapshotRows
	BeginErr error
	Firsts   []rowstore.Timestamp // the first timestamp of each draw
	DrawErr  error
}

// leastBeside is how many callers share a call that leaves beside another one, at least, or would
// share it if it were not full. The callers of a small process then share one call at a time, and
// those of a large one two.
const leastBeside = 16

// ask is a call of one of the kinds that share a lane.
type ask struct {
	groups []rowstore.Group
	begins []rowstore.SnapshotRead
	draw   int
}

// answer is what the caller of an ask gets.
type answer struct {
	outcomes []rowstore.GroupOutcome
	begun    []rowstore.SnapshotRows
	first    rowstore.Timestamp
	err      error
	again    bool // the call did nothing, for the fault of one of several of its kind
}

// together is the lane that groups, begins and draws share.
type together struct {
	*lane[ask, answer]
	call    func(ctx context.Context, t *Together)
	grouper rowstore.Grouper
	reader  rowstore.SnapshotReader
	oracle  oracle.Oracle
	asks    sync.Pool // of *[1]ask
	calls   sync.Pool // of *Together
}

func newTogether(c *coalescer) *together {
	t := &together{call: c.opts.Together}
	t.asks.New = func() any { return new([1]ask) }
	t.calls.New = func() any { return new(Together) }
	t.lane = newLane(c.opts, laneKind[ask, answer]{
		name:   "call",
		writes: func(asks []ask) bool { return len(asks[0].groups) > 0 },
		least:  leastBeside,
		send:   t.send,
		check: func(asks []ask) error {
			switch a := &asks[0]; {
			case len(a.groups) > 0:
				if err := rowstore.CheckGroups(t.grouper, a.groups); err != nil {
					return err
				}
				return rowstore.CheckGroupLimits(c.limits, a.groups)
			case len(a.begins) > 0:
				return rowstore.CheckSnapshotReads(a.begins)
			default:
				return checkDraws([]int{a.draw})
			}
		},
		keep: func(to []ask, ar *arena.Arena, asks []ask) []ask {
			for _, a := range asks {
				if len(a.groups) > 0 {
					a.groups = ar.Groups(a.groups)
				}
				if len(a.begins) > 0 {
					a.begins = ar.SnapshotReads(a.begins)
				}
				to = append(to, a)
			}
			return to
		},
		hash: func(to []uint64, asks []ask) []uint64 {
			for i := range asks {
				for j := range asks[i].groups {
					to = hashRows(to, rowSeed, asks[i].groups[j].Mutations)
				}
			}
			return to
		},
		size: func(asks []ask) int {
			n := 0
			for i := range asks {
				n += asks[i].rows()
			}
			return n
		},
		errors: func(a *answer, do func(*error)) {
			do(&a.err)
			for i := range a.outcomes {
				errorsOfGroup(&a.outcomes[i], do)
			}
			for i := range a.begun {
				errorsOfSnapshot(&a.begun[i], do)
			}
		},
		// The values of each are few: see mostTogether.
		again: func(answers []answer) bool { return answers[0].again },
	})
	return t
}

// rows is what an ask counts for in MaxBatch.
func (a *ask) rows() int {
	n := a.draw
	for i := range a.groups {
		n += len(a.groups[i].Mutations)
	}
	for i := range a.begins {
		n += len(a.begins[i].Reads)
	}
	return n
}

// ask sends an ask, alone or with others.
func (t *together) ask(ctx context.Context, a ask) (answer, error) {
	one := t.asks.Get().(*[1]ask)
	one[0] = a
	got, err := t.do(ctx, one[:])
	one[0] = ask{}
	t.asks.Put(one)
	if err != nil {
		return answer{}, err
	}
	return got[0], got[0].err
}

func (t *together) draw(ctx context.Context, n int) (rowstore.Timestamp, error) {
	a, err := t.ask(ctx, ask{draw: n})
	return a.first, err
}

// send sends asks in one call. An error is that of a kind, so it is in the answers.
func (t *together) send(ctx context.Context, asks []ask) ([]answer, error) {
	answers := make([]answer, len(asks))
	if len(asks) == 1 {
		t.alone(ctx, &asks[0], &answers[0])
		return answers, nil
	}
	ctx = uncancelled{ctx}
	all := t.calls.Get().(*Together)
	for i := range asks {
		a := &asks[i]
		all.Groups = append(all.Groups, a.groups...)
		all.Begins = append(all.Begins, a.begins...)
		if a.draw > 0 {
			all.Draws = append(all.Draws, a.draw)
		}
	}
	switch {
	case len(all.Begins) == 0 && len(all.Draws) == 0:
		all.Outcomes, all.GroupErr = t.grouper.Group(ctx, all.Groups)
	case len(all.Groups) == 0 && len(all.Draws) == 0:
		all.Begun, all.BeginErr = t.reader.ReadSnapshot(ctx, all.Begins)
	case len(all.Groups) == 0 && len(all.Begins) == 0:
		all.Firsts, all.DrawErr = drawAll(ctx, t.oracle, all.Draws)
	default:
		t.call(ctx, all)
	}
	all.checkCounts()
	all.handOut(asks, answers)
	clear(all.Groups)
	clear(all.Begins)
	*all = Together{Groups: all.Groups[:0], Begins: all.Begins[:0], Draws: all.Draws[:0]}
	t.calls.Put(all)
	return answers, nil
}

// uncancelled is the context of a shared call. Its callers give up by themselves, so nobody
// waits for the call to heed the end of a context, and a store needs no goroutine to watch
// one. It has the deadline still.
type uncancelled struct{ context.Context }

func (uncancelled) Done() <-chan struct{} { return nil }
func (uncancelled) Err() error            { return nil }

// checkCounts turns answers whose number is wrong into an error.
func (t *Together) checkCounts() {
	if got, asked := len(t.Outcomes), len(t.Groups); t.GroupErr == nil && got != asked {
		t.GroupErr = fmt.Errorf("coalesce: group: %w: the store gave %d answers for %d groups", rowstore.ErrAmbiguous, got, asked)
	}
	if got, asked := len(t.Begun), len(t.Begins); t.BeginErr == nil && got != asked {
		t.BeginErr = fmt.Errorf("coalesce: read snapshot: the store gave %d answers for %d snapshots", got, asked)
	}
	if got, asked := len(t.Firsts), len(t.Draws); t.DrawErr == nil && got != asked {
		t.DrawErr = fmt.Errorf("coalesce: draw: the store gave %d answers for %d draws", got, asked)
	}
}

// handOut gives each ask its part of the answers of its kind. If the kind failed because of one of
// several, and nothing of it was done, each is to be asked for alone. Those of other kinds do not wait for that.
func (t *Together) handOut(asks []ask, answers []answer) {
	groups, begins, draws := 0, 0, 0
	for i := range asks {
		a, to := &asks[i], &answers[i]
		err, one := error(nil), false
		switch {
		case len(a.groups) > 0:
			from := groups
			groups += len(a.groups)
			if err, one = t.GroupErr, len(a.groups) == len(t.Groups); err == nil {
				to.outcomes = t.Outcomes[from:groups:groups]
			}
		case len(a.begins) > 0:
			from := begins
			begins += len(a.begins)
			if err, one = t.BeginErr, len(a.begins) == len(t.Begins); err == nil {
				to.begun = t.Begun[from:begins:begins]
			}
		default:
			draws++
			if err, one = t.DrawErr, len(t.Draws) == 1; err == nil {
				to.first = t.Firsts[draws-1]
			}
		}
		to.err = err
		to.again = !one && isOfOne(err, len(a.groups) > 0)
	}
}

// alone sends one ask as a call of its own kind.
func (t *together) alone(ctx context.Context, a *ask, to *answer) {
	switch {
	case len(a.groups) > 0:
		if to.outcomes, to.err = t.grouper.Group(ctx, a.groups); to.err == nil && len(to.outcomes) != len(a.groups) {
			to.err = fmt.Errorf("coalesce: group: %w: the store gave %d answers for %d groups", rowstore.ErrAmbiguous, len(to.outcomes), len(a.groups))
		}
	case len(a.begins) > 0:
		if to.begun, to.err = t.reader.ReadSnapshot(ctx, a.begins); to.err == nil && len(to.begun) != len(a.begins) {
			to.err = fmt.Errorf("coalesce: read snapshot: the store gave %d answers for %d snapshots", len(to.begun), len(a.begins))
		}
	default:
		to.first, to.err = t.oracle.Draw(ctx, a.draw)
	}
}

// nothing is a call that asks for nothing.
func (t *together) nothing(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || ctx.Err() != nil {
		return t.errClosed(ctx)
	}
	return nil
}

// mostTogether is how many bytes of values the groups of a caller have, at most, that share a
// call with begins and draws. Those would wait while the values are sent.
const mostTogether = 32 << 10

func isLarge(groups []rowstore.Group) bool { return bytesOfGroups(groups) > mostTogether }

type togetherGrouper struct {
	rowstore.Grouper
	t     *together
	large *lanes[rowstore.Group, rowstore.GroupOutcome]
}

func (g togetherGrouper) Group(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
	if len(groups) == 0 {
		return nil, g.t.nothing(ctx)
	}
	if isLarge(groups) {
		return g.large.do(ctx, groups)
	}
	a, err := g.t.ask(ctx, ask{groups: groups})
	return a.outcomes, err
}

type togetherReader struct{ t *together }

func (r togetherReader) ReadSnapshot(ctx context.Context, asks []rowstore.SnapshotRead) ([]rowstore.SnapshotRows, error) {
	if len(asks) == 0 {
		return nil, r.t.nothing(ctx)
	}
	a, err := r.t.ask(ctx, ask{begins: asks})
	return a.begun, err
}
