package tikvraw

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/percolate-go/percolate/internal/contexts"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Apply implements rowstore.Store: for each row one swap of its head, all of them in
// parallel. The first swap expects the head that was read or written here last, or an
// absent one; only if it fails, because another process changed the row, is the
// change made again on the head that it met.
func (s *Store) Apply(ctx context.Context, muts []rowstore.Mutation, _ rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	if err := s.checkMutations(muts); err != nil {
		return nil, fmt.Errorf("tikvraw: apply: %w", err)
	}
	ctx, end, err := s.begin(ctx, "apply")
	if err != nil {
		return nil, err
	}
	defer end()
	out := make([]rowstore.Outcome, len(muts))
	parallel(len(muts), func(i int) {
		o, err := s.applyRow(ctx, &muts[i])
		if err != nil {
			o = rowstore.Outcome{Err: s.gate.Fail("apply", err)}
		}
		out[i] = o
	})
	return out, nil
}

func (s *Store) checkMutations(muts []rowstore.Mutation) error {
	if err := rowstore.CheckBatch(muts); err != nil {
		return err
	}
	return rowstore.CheckLimits(s.limits, muts)
}

// applyRow runs one mutation. An error means that nothing was applied, and nothing
// will be, unless it matches rowstore.ErrAmbiguous.
func (s *Store) applyRow(ctx context.Context, m *rowstore.Mutation) (rowstore.Outcome, error) {
	key := s.keys.row(spaceHead, m.Table, m.Row)
	done, err := s.turns.take(ctx, key)
	if err != nil {
		return rowstore.Outcome{}, err
	}
	defer done()
	// A head from memory, or the guess that there is none, is good for a swap alone. An
	// answer needs a fresh head, which was read during this call.
	raw, known := s.cache.get(key)
	fresh := false
	for attempt := 0; ; attempt++ {
		if attempt > 2 {
			// Other processes change this row too.
			if err := contexts.Sleep(ctx, time.Duration(rand.Int64N(int64(time.Millisecond)<<min(attempt, 6)))); err != nil {
				return rowstore.Outcome{}, err
			}
		}
		out, c, err := s.plan(ctx, key, raw, m)
		guessed := !known && !fresh && c != nil && len(c.before) > 0
		if !fresh && (err != nil || c == nil || guessed) || errors.Is(err, errMoved) {
			was, again := raw, fresh
			if raw, err = s.raw.get(ctx, key); err != nil {
				return rowstore.Outcome{}, err
			}
			if again && bytes.Equal(raw, was) {
				return rowstore.Outcome{}, s.missing(key)
			}
			fresh = true
			s.cache.put(key, raw)
			continue
		}
		if err != nil || c == nil {
			return out, err
		}
		met, swapped, err := s.swap(ctx, c)
		if err != nil {
			return rowstore.Outcome{}, err
		}
		if swapped {
			return out, nil
		}
		raw, fresh = met, true
	}
}

// plan judges a mutation on a head and makes its edits. It returns no change if there is
// nothing to write.
func (s *Store) plan(ctx context.Context, key, raw []byte, m *rowstore.Mutation) (rowstore.Outcome, *change, error) {
	var out rowstore.Outcome
	r, err := s.decodeRow(key, raw)
	if err != nil {
		return out, nil, err
	}
	r.table, r.name = m.Table, m.Row
	failed, broke, err := r.firstBroken(ctx, m.Conditions)
	if err != nil {
		return out, nil, err
	}
	if failed >= 0 {
		out.Failed = failed
		if broke != nil {
			out.Broke, err = s.version(ctx, key, broke)
		}
		return out, nil, err
	}
	out.Applied = true
	c, err := r.edit(ctx, m.Edits, s.sizes)
	if err != nil || !c.changed {
		return out, nil, err
	}
	return out, c, nil
}

// version completes a version of a row with its value.
func (s *Store) version(ctx context.Context, head []byte, e *entry) (rowstore.Version, error) {
	v := rowstore.Version{Family: e.family, Column: e.column, TS: e.ts}
	if e.value.id != 0 {
		raw, err := s.fetch(ctx, [][]byte{s.keys.side(head, e.value.id, kindValue)})
		if err != nil {
			return v, err
		}
		v.Value = raw[0]
		return v, nil
	}
	if len(e.value.bytes) > 0 {
		v.Value = bytes.Clone(e.value.bytes)
	}
	return v, nil
}

// swap writes a change: what it points to, then the head. Not swapped, it tells the
// head that it met. Errors are those of applyRow.
func (s *Store) swap(ctx context.Context, c *change) (met []byte, swapped bool, err error) {
	if err := s.putAll(ctx, c.before); err != nil {
		s.clean.add(garbageOf(c.before)...)
		return nil, false, err
	}
	key := c.old.key
	met, swapped, err = s.raw.cas(ctx, key, c.old.raw, c.raw)
	switch {
	case errors.Is(err, rowstore.ErrAmbiguous):
		// The head may point now to what was written before it: only Sweep can tell.
		s.cache.drop(key)
		return nil, false, err
	case err != nil:
		s.clean.add(garbageOf(c.before)...)
		return nil, false, err
	case swapped || bytes.Equal(met, c.raw):
		// The second arrival of a swap meets what the first one wrote, and nobody else
		// writes these bytes.
		s.cache.put(key, c.raw)
		s.clean.add(c.after...)
		return nil, true, nil
	}
	s.cache.put(key, met)
	// The next attempt writes keys of its own. Sweep may remove these: no head points to
	// them, and the head has changed.
	s.clean.add(garbageOf(c.before)...)
	return met, false, nil
}

func garbageOf(before []pair) []garbage {
	out := make([]garbage, len(before))
	for i, p := range before {
		out[i].key = p.key
	}
	return out
}

// putAll writes keys, in parallel where they lie in different regions.
func (s *Store) putAll(ctx context.Context, pairs []pair) error {
	switch len(pairs) {
	case 0:
		return nil
	case 1:
		return s.raw.put(ctx, pairs[0].key, pairs[0].value)
	}
	keys, values := make([][]byte, len(pairs)), make([][]byte, len(pairs))
	for i, p := range pairs {
		keys[i], values[i] = p.key, p.value
	}
	return s.raw.batchPut(ctx, keys, values)
}

// missing is the error for a key that is not there although the head points to it.
func (s *Store) missing(key []byte) error {
	return fmt.Errorf("%w: the row's head (key %q) points to a key that is missing: somebody else removed it", rowstore.ErrCorrupt, key)
}
