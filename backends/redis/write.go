package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"

	goredis "github.com/redis/go-redis/v9"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// batch is a run of the write script under construction.
type batch struct {
	groups []int // indexes of the caller's groups
	rows   int
	quick  bool // every group is quick
	enc    *writeEncoder
	call   call
}

func (s *direct) encoder() *writeEncoder {
	if e, ok := s.encoders.Get().(*writeEncoder); ok {
		return e
	}
	return &writeEncoder{}
}

func (s *direct) release(e *writeEncoder) {
	if cap(e.b) <= 1<<20 {
		s.encoders.Put(e)
	}
}

// Apply runs each mutation atomically on its row, the whole batch in one run of a
// script for each partition, or on one server for all.
func (s *direct) Apply(ctx context.Context, muts []rowstore.Mutation, _ rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	if err := kit.CheckApply(s.Limits(), muts); err != nil {
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
func (s *direct) Group(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
	if err := kit.CheckGroup(s, s.Limits(), groups); err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	w, out := groupWrites(groups)
	if err := s.write(ctx, w, writeScript); err != nil {
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

// write sends groups. If it returns an error, no group was applied, or, if the error
// matches ErrAmbiguous, each may have been. If only some of the calls failed, their
// groups get the error and write returns nil.
func (s *direct) write(ctx context.Context, w *writes, sc *script) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	batches, err := s.pack(w, sc)
	if err != nil || len(batches) == 0 {
		s.end()
		return err
	}
	if !s.await(ctx, func(ctx context.Context) { s.send(ctx, batches) }) {
		// A request that has not left yet is kept from leaving.
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
func (s *direct) pack(w *writes, sc *script) ([]*batch, error) {
	var all []*batch
	open := make([]*batch, 1)
	if !s.oneSlot {
		open = make([]*batch, len(s.parts))
	}
	draws := false
	how := undecided // the same for all batches: one write is pushed at once, or held back
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
			b.enc.pusher = s.pusher
			open[at] = b
			all = append(all, b)
		}
		tag := func(m *rowstore.Mutation) string {
			if s.oneSlot {
				return s.parts[s.partOf(m.Table, m.Row)].tag
			}
			return s.parts[at].tag
		}
		b.enc.how = how
		b.add(i, tag, muts, draw, notAfter)
		how = b.enc.how
		if len(b.enc.b) > maxCallBytes {
			return nil, fmt.Errorf("%w: a group takes %d bytes, the limit is %d", rowstore.ErrTooLarge, len(b.enc.b), maxCallBytes)
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

// add encodes a group into a batch.
func (b *batch) add(i int, tag func(m *rowstore.Mutation) string, muts []rowstore.Mutation, draw bool, notAfter rowstore.Timestamp) {
	if !draw || !b.enc.quick(tag, muts, notAfter) {
		b.quick = false
		b.enc.at = len(b.groups)
		end := b.enc.group(len(muts), draw, notAfter)
		for j := range muts {
			b.enc.mutation(tag(&muts[j]), &muts[j])
		}
		b.enc.endGroup(end)
	}
	b.groups = append(b.groups, i)
	b.rows += len(muts)
}

// send runs batches. It goes on where its caller has gone, so it is here that what they have to be heard of is held back.
func (s *direct) send(ctx context.Context, batches []*batch) {
	calls := make([]*call, len(batches))
	for i, b := range batches {
		calls[i] = &b.call
		if len(b.enc.held) > 0 {
			b.call.answered = func() { s.holdBack(b) }
		}
	}
	s.run(ctx, calls)
	// A request that the server refused as too late was not applied, and its answer told
	// the server's time. Send it once more, in case the estimate of that time was wrong.
	var late []*call
	for _, c := range calls {
		if c.tooLate() {
			late = append(late, c)
		}
	}
	if len(late) > 0 && ctx.Err() == nil {
		for _, c := range late {
			c.answer = ""
			c.refused()
		}
		s.run(ctx, late)
	}
	for i, c := range calls {
		if c.err == nil && c.tooLate() {
			c.err = errLate
		}
		if errors.Is(c.err, rowstore.ErrAmbiguous) {
			s.pusher.hold(batches[i].enc.held)
		}
	}
}

var errLate = errors.New("the request reached the server too late and was refused")

// tooLate tells whether the script refused a request because it arrived after its
// expiry. It notes the server's time in any case.
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
func (s *direct) finish(ctx context.Context, w *writes, batches []*batch, sc *script) error {
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
// backs) among those that a server refused because it is out of memory. They may be sent
// again by a script that the server runs without free memory too.
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
func (s *direct) outcomes(w *writes, b *batch) error {
	u := unpacker{s: b.call.answer}
	n := u.list()
	u.number()
	u.number()
	if n != len(b.groups)+2 {
		return fmt.Errorf("%w: %w", rowstore.ErrAmbiguous, errAnswer)
	}
	s.groupOutcomes(&u, w, b.groups)
	if err := u.done(); err != nil {
		return fmt.Errorf("%w: %w", rowstore.ErrAmbiguous, err)
	}
	return nil
}

// damagedRow is the outcome of a group that has met a row that cannot be read: nothing of the group was written.
func damagedRow(m *rowstore.Mutation, err error) (o rowstore.GroupOutcome) {
	o.Err = fmt.Errorf("redis: row %q of table %q: %w", m.Row, m.Table, err)
	o.Outcome.Err = o.Err
	return o
}

// groupOutcomes reads the outcomes of groups. If they cannot be read, u has the error.
func (s *direct) groupOutcomes(u *unpacker, w *writes, groups []int) {
	for _, i := range groups {
		var o rowstore.GroupOutcome
		it := u.next()
		switch it.kind {
		case isNumber:
			o.Applied, o.TooLate = it.n == 1, it.n == 2
			if muts, _, _ := w.group(i); it.n < 0 && -it.n <= int64(len(muts)) {
				o = damagedRow(&muts[-it.n-1], errCell)
			}
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
			var cellsOf, notesOf columns
			columnsOf(m, &cellsOf, &notesOf)
			cells, notes := cellsOf.all, notesOf.all
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
			failed, broke, found := firstFailure(m, vs)
			if err == nil && !found {
				err = fmt.Errorf("%w: the server refused a mutation whose conditions hold", errAnswer)
			}
			if err != nil {
				o = damagedRow(m, err)
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
}
