package pebble

import (
	"context"
	"fmt"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

const (
	// chunkRows and chunkBytes limit the mutations of one Apply that go into one
	// batch, and so the stripes held together.
	chunkRows  = 64
	chunkBytes = 1 << 20
	// maxBatch is the greatest batch, in bytes; the engine takes up to 4 GiB.
	maxBatch = 1 << 30
	// manyVersions is the number of versions from which a range is deleted by one
	// range tombstone instead of by single ones, which cost readers less.
	manyVersions = 256
)

// Apply implements rowstore.Store. It ignores Deferred: everything is durable when it
// returns.
func (s *Store) Apply(ctx context.Context, muts []rowstore.Mutation, _ rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	if err := kit.CheckApply(s.Limits(), muts); err != nil {
		return nil, fmt.Errorf("pebble: %w", err)
	}
	if err := s.enter(ctx, "apply"); err != nil {
		return nil, err
	}
	defer s.leave()
	outs := make([]rowstore.Outcome, len(muts))
	w := s.newWork()
	defer w.done()
	var waits waitList
	wrote := false
	for from := 0; from < len(muts); {
		to, size := from, 0
		for to < len(muts) && to-from < chunkRows && (to == from || size < chunkBytes) {
			size += mutationSize(&muts[to])
			to++
		}
		if err := s.syncs.turn(ctx); err != nil {
			return nil, diskError(wrote, err)
		}
		if s.applyChunk(w, muts[from:to], outs[from:to], &waits) {
			wrote = true
		} else {
			s.syncs.over()
		}
		w.reset()
		from = to
	}
	if err := waits.wait(ctx); err != nil {
		return nil, diskError(wrote, err)
	}
	return outs, nil
}

// diskError completes the error of a wait for the disk, of a call that wrote something or not.
func diskError(wrote bool, err error) error {
	if wrote {
		return fmt.Errorf("%w: pebble: waiting for the disk: %w", rowstore.ErrAmbiguous, err)
	}
	return err
}

// applyChunk runs mutations, each by itself, in one batch, which has its turn.
func (s *Store) applyChunk(w *work, muts []rowstore.Mutation, outs []rowstore.Outcome, waits *waitList) (wrote bool) {
	for i := range muts {
		w.begin(&muts[i])
	}
	w.lock()
	defer w.unlock()
	defer func() { w.shows(waits, wrote) }()
	batch := s.db.NewBatch()
	for i := range muts {
		m := &muts[i]
		failed, broke, err := w.check(i, m)
		switch {
		case err != nil:
			outs[i].Err = rowError(m, err)
		case failed >= 0:
			outs[i].Failed, outs[i].Broke = failed, broke
		default:
			outs[i].Applied = true
		}
		if !outs[i].Applied || len(m.Edits) == 0 {
			continue
		}
		err = w.prepare(i, m)
		if err == nil {
			err = w.fits(i, m, batch.Len())
		}
		if err != nil {
			outs[i] = rowstore.Outcome{Err: rowError(m, err)}
			continue
		}
		if err := w.edit(batch, i, m, 0); err != nil {
			// The batch has a part of this mutation now, and cannot be used.
			_ = batch.Close()
			for j := range outs {
				outs[j] = rowstore.Outcome{Err: rowError(m, err)}
			}
			return false
		}
	}
	if batch.Empty() {
		_ = batch.Close()
		return false
	}
	if err := s.room.take(batch.Len()); err != nil {
		_ = batch.Close()
		for i := range outs {
			if outs[i].Applied && len(muts[i].Edits) > 0 {
				outs[i] = rowstore.Outcome{Err: rowError(&muts[i], err)}
			}
		}
		return false
	}
	s.gate.RLock()
	s.notes.edit(w.notes)
	c := s.commit(batch)
	s.gate.RUnlock()
	w.written(c)
	waits.add(c)
	s.hub.Tell(w.news.Take()...)
	return true
}

// commit hands a batch, for which there was room and which has its turn, to the engine: visible to all when it returns, durable when
// the commit is done. For a batch of rows the gate and the stripes are held. In
// memory it returns nil.
func (s *Store) commit(batch *engine.Batch) *commit {
	// The engine ends the process rather than return an error of its log. It returns
	// one only if it refuses every write, which New and Open have made sure it does not.
	if s.syncs == nil {
		_ = s.db.Apply(batch, engine.NoSync)
		_ = batch.Close()
		return nil
	}
	size := batch.Len() // a large batch is empty when the engine has it
	err := s.db.ApplyNoSyncWait(batch, engine.Sync)
	return s.syncs.add(batch, size, err)
}
