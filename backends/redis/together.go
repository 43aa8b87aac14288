package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/percolate-go/percolate/internal/contexts"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/coalesce"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// mixed is a run of the write script with begins and draws behind its groups. They cost next
// to nothing there: the run asks for the server's time and role, and for the oracle's state,
// once. A begin sees what the groups of the run have written.
type mixed struct {
	batch
	draws, rows, fields int
}

// mergesKinds is together, or nil if rows lie on several servers.
func (s *direct) mergesKinds() func(ctx context.Context, t *coalesce.Together) {
	if !s.oneSlot {
		return nil
	}
	return s.together
}

// together answers groups, begins and draws by one run of a script. If they are too much for
// one, or of a kind that the script does not know, each kind is a call of its own. It is
// only for stores in which any rows may share a run.
//
// A failure of the run is that of the groups alone. Begins and draws have no effect, so they
// are sent again, in calls of their own.
func (s *direct) together(ctx context.Context, t *coalesce.Together) {
	m, ok := s.packMixed(t)
	if !ok {
		s.apart(ctx, t, true)
		return
	}
	w, out := groupWrites(t.Groups)
	if err := s.begin(ctx); err != nil {
		t.GroupErr = fmt.Errorf("redis: group: %w", err)
		t.BeginErr, t.DrawErr = fmt.Errorf("redis: begin: %w", err), fmt.Errorf("redis: draw: %w", err)
		return
	}
	if !s.await(ctx, func(ctx context.Context) { s.send(ctx, []*batch{&m.batch}) }) {
		err := ctx.Err()
		t.BeginErr, t.DrawErr = fmt.Errorf("redis: begin: %w", err), fmt.Errorf("redis: draw: %w", err)
		if !m.call.arg.abandon() {
			err = fmt.Errorf("%w: %w", rowstore.ErrAmbiguous, err)
		}
		t.GroupErr = fmt.Errorf("redis: group: %w", err)
		return
	}
	begun := false
	if m.call.err == nil {
		begun = s.takeMixed(t, m, w)
	}
	if m.call.err == nil {
		s.release(m.enc)
		t.Outcomes = out
	} else if failed := m.call.err; s.finish(ctx, w, []*batch{&m.batch}, writeScript) == nil {
		t.Outcomes = out // each has its error, or was sent again
	} else {
		t.GroupErr = fmt.Errorf("redis: group: %w", failed)
	}
	switch {
	case begun:
	case isTimeout(m.call.err) && contexts.Ended(ctx) == nil:
		// The server is silent. Whoever asks again waits anew.
		err := fmt.Errorf("%w: %v", rowstore.ErrUnavailable, m.call.err) //nolint:errorlint // A begin is never ambiguous.
		t.BeginErr, t.DrawErr = fmt.Errorf("redis: begin: %w", err), fmt.Errorf("redis: draw: %w", err)
	default:
		s.apart(ctx, t, false)
	}
}

// packMixed encodes a run. It returns false if there can be none.
func (s *direct) packMixed(t *coalesce.Together) (*mixed, bool) {
	if len(t.Groups) == 0 || kit.CheckGroup(s, s.Limits(), t.Groups) != nil || rowstore.CheckSnapshotReads(t.Begins) != nil {
		return nil, false
	}
	m := &mixed{batch: batch{enc: s.encoder(), quick: true}}
	m.call.script = writeScript
	m.enc.begin(s.okey, s.channel)
	m.enc.pusher = s.pusher
	tag := func(m *rowstore.Mutation) string { return s.parts[s.partOf(m.Table, m.Row)].tag }
	for i := range t.Groups {
		g := &t.Groups[i]
		m.add(i, tag, g.Mutations, g.AssignTimestamp, g.NotAfter)
	}
	for _, n := range t.Draws {
		if n < 1 || n > maxDraw-m.draws {
			s.release(m.enc)
			return nil, false
		}
		m.draws += n
	}
	m.enc.bool(false)
	m.enc.u32(uint32(m.draws + len(t.Begins)))
	m.enc.u32(maxAnswer)
	rows, fields, plain, err := s.packBegins(&m.enc.packer, t.Begins)
	if err != nil || !plain || m.batch.rows+fields > 2*maxRowsPerCall || m.batch.rows > maxRowsPerCall || len(m.enc.b) > maxBytesPerCall {
		s.release(m.enc)
		return nil, false
	}
	m.rows, m.fields = rows, fields
	m.call.arg.b, m.call.arg.expiry = m.enc.bytes(), m.enc.expiry
	if m.quick {
		m.call.script = quickScript
	}
	return m, true
}

// takeMixed reads the answer of a run. It tells whether the begins and draws are answered: the
// script leaves them out if they are too much, and one that meets a write that lies ahead (errAhead) is read anew. An answer that cannot be read is the error
// of the call, after which nobody knows what the groups did.
func (s *direct) takeMixed(t *coalesce.Together, m *mixed, w *writes) (begun bool) {
	u := unpacker{s: m.call.answer}
	n := u.list() - 2 - len(m.groups)
	u.number()
	u.number()
	s.groupOutcomes(&u, w, m.groups)
	first := u.timestamp()
	if u.err == nil && n != 2 && n != 2+m.fields {
		u.fail()
	}
	if u.err != nil || n == 2 && m.fields > 0 {
		if err := u.done(); err != nil {
			m.call.err = fmt.Errorf("%w: %w", rowstore.ErrAmbiguous, err)
		}
		return false
	}
	for _, n := range t.Draws {
		t.Firsts = append(t.Firsts, first)
		first += oracle.Timestamp(n)
	}
	t.Begun, t.BeginErr = beginRows(&u, first, t.Begins, m.rows)
	if t.BeginErr == nil {
		t.BeginErr = u.done()
	}
	if errors.Is(t.BeginErr, errAhead) {
		t.Begun, t.BeginErr, t.Firsts = nil, nil, nil
		return false
	}
	if t.BeginErr != nil {
		t.Begun, t.BeginErr = nil, fmt.Errorf("redis: begin: %w", t.BeginErr)
	}
	return true
}

// apart answers each kind by a call of its own: the groups only if they are asked for.
func (s *direct) apart(ctx context.Context, t *coalesce.Together, groups bool) {
	var others sync.WaitGroup
	if groups && len(t.Groups) > 0 {
		others.Go(func() { t.Outcomes, t.GroupErr = s.Group(ctx, t.Groups) })
	}
	if len(t.Draws) > 0 {
		others.Go(func() { t.Firsts, t.DrawErr = drawEach(ctx, s.Oracle(), t.Draws) })
	}
	if len(t.Begins) > 0 {
		t.Begun, t.BeginErr = s.ReadSnapshot(ctx, t.Begins)
	}
	others.Wait()
}

// drawEach draws for several callers at once, and returns the first timestamp of each.
func drawEach(ctx context.Context, from oracle.Oracle, counts []int) ([]rowstore.Timestamp, error) {
	all := 0
	for _, n := range counts {
		all += n
	}
	first, err := from.Draw(ctx, all)
	if err != nil {
		return nil, err
	}
	firsts := make([]rowstore.Timestamp, 0, len(counts))
	for _, n := range counts {
		firsts = append(firsts, first)
		first += rowstore.Timestamp(n)
	}
	return firsts, nil
}

// groupWrites is the writes of groups, and where their outcomes go.
func groupWrites(groups []rowstore.Group) (*writes, []rowstore.GroupOutcome) {
	out := make([]rowstore.GroupOutcome, len(groups))
	return &writes{
		n: len(groups),
		group: func(i int) ([]rowstore.Mutation, bool, rowstore.Timestamp) {
			return groups[i].Mutations, groups[i].AssignTimestamp, groups[i].NotAfter
		},
		done: func(i int, o *rowstore.GroupOutcome) { out[i] = *o },
		fail: func(i int, err error) { out[i] = rowstore.GroupOutcome{Err: err} },
	}, out
}
