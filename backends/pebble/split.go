package pebble

import (
	"context"
	"errors"
	"fmt"
	"slices"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// A sample of the rows is kept in a space of its own, so that a table can be cut
// into parts with as many rows each without a scan: one row in 16, chosen by a hash
// of its name, at level 1, of those one in 16 at level 2, and so on. Split reads the
// highest level that is fine enough.
const (
	sampleBits   = 4
	sampleLevels = 5
	// perPart is the least number of samples for each part.
	perPart = 16
)

// sampleLevel returns the highest level that a row is in, 0 for most. The hash is
// FNV-1a with a final mix, and never changes.
func sampleLevel(table, row string) int {
	const prime = 1099511628211
	h := uint64(14695981039346656037)
	for i := 0; i < len(table); i++ {
		h = (h ^ uint64(table[i])) * prime
	}
	h *= prime // a 0x00 between the names
	for i := 0; i < len(row); i++ {
		h = (h ^ uint64(row[i])) * prime
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	level := 0
	for level < sampleLevels && h&(1<<sampleBits-1) == 0 {
		level++
		h >>= sampleBits
	}
	return level
}

func appendSample(dst []byte, level int, table string) []byte {
	return kit.AppendName(append(dst, spaceSample, byte(level)), table)
}

// sample adds the row of a mutation, which has a new head, to the samples.
func (w *work) sample(b *engine.Batch, m *rowstore.Mutation) error {
	for level := sampleLevel(m.Table, m.Row); level > 0; level-- {
		w.val = kit.AppendName(appendSample(w.val[:0], level, m.Table), m.Row)
		if err := b.Set(w.val, nil, nil); err != nil {
			return err
		}
	}
	return nil
}

// unsample takes the row of a mutation, which loses a head and gets no new one, out
// of the samples if that was its last one.
func (w *work) unsample(b *engine.Batch, mut int, m *rowstore.Mutation) error {
	level := sampleLevel(m.Table, m.Row)
	if level == 0 {
		return nil
	}
	r := &w.r
	r.key = appendRow(r.key[:0], spaceHead, m.Table, m.Row)
	prefix := len(r.key)
	r.upper = after(append(r.upper[:0], r.key...))
	ok, err := r.seek(r.key, r.upper)
	for ; ok; ok = r.it.Next() {
		if c := w.find(mut, string(r.it.Key()[prefix:])); c < 0 || !w.columns[c].h.empty() {
			return nil
		}
	}
	if err == nil {
		err = r.it.Error()
	}
	if err != nil {
		return err
	}
	for ; level > 0; level-- {
		w.val = kit.AppendName(appendSample(w.val[:0], level, m.Table), m.Row)
		if err := b.Delete(w.val, nil); err != nil {
			return err
		}
	}
	return nil
}

// Split implements rowstore.Splitter, from a sample of the rows, so the parts have
// about as many rows each, whatever their sizes. It reads some hundred keys for
// each part.
func (s *Store) Split(ctx context.Context, table string, n int) (_ []string, err error) {
	if table == "" || n < 1 {
		return nil, fmt.Errorf("%w: split of table %q into %d parts", rowstore.ErrInvalid, table, n)
	}
	if err := s.enter(ctx, "split"); err != nil {
		return nil, err
	}
	defer s.leave()
	if n == 1 {
		return nil, nil
	}
	it, err := s.db.NewIter(nil)
	if err != nil {
		return nil, fmt.Errorf("pebble: split table %q: %w", table, err)
	}
	defer func() {
		if e := errors.Join(it.Error(), it.Close()); e != nil && err == nil {
			err = fmt.Errorf("pebble: split table %q: %w", table, e)
		}
	}()
	var rows []string
	for level := sampleLevels; level > 0; level-- {
		rows = rows[:0]
		lower := appendSample(nil, level, table)
		prefix := len(lower)
		it.SetBounds(lower, after(slices.Clone(lower)))
		for ok := it.First(); ok; ok = it.Next() {
			raw, rest, err := kit.CutRaw(it.Key()[prefix:])
			if err != nil || len(rest) > 0 || len(raw) == 0 {
				return nil, fmt.Errorf("pebble: split table %q: %w", table, corruptKey(it.Key()))
			}
			rows = append(rows, kit.NameOf(raw))
			if len(rows)&0xff == 0 && ctx.Err() != nil {
				return nil, ctx.Err()
			}
		}
		if len(rows)/n >= perPart {
			break
		}
	}
	// A part of fewer than four samples would be cut by chance alone.
	parts := min(n, len(rows)/4)
	cuts := make([]string, 0, max(parts-1, 0))
	for i := 1; i < parts; i++ {
		cuts = append(cuts, rows[i*len(rows)/parts])
	}
	return cuts, nil
}
