package tikvraw

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

const (
	// batchKeys and batchBytes bound one request for several keys, so that its answer
	// stays below what TiKV sends in one message (10 MiB).
	batchKeys  = 128
	batchBytes = 4 << 20
)

// ask is one row to be read.
type ask struct {
	key   []byte // of the head
	raw   []byte
	picks []rowstore.Selector
	// entries is the answer; the values that lie in other keys are not there before
	// fillValues.
	entries []entry
	// err says that this row cannot be read; see unreadable. It concerns no other row.
	err error
}

// unreadable tells whether an error is of one row or key, which is damaged or of a version that this
// program does not know. Any other error is the call's.
func unreadable(err error) bool {
	return errors.Is(err, rowstore.ErrCorrupt) || errors.Is(err, rowstore.ErrFormat)
}

// fail notes that the row cannot be read. It returns an error that is not the row's own.
func (a *ask) fail(err error) error {
	if !unreadable(err) {
		return err
	}
	a.err, a.entries = err, nil
	return nil
}

// Read implements rowstore.Store: one request for a row, or one for each region of
// several, and one more where the answer has long values.
func (s *Store) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	if err := rowstore.CheckReads(reads); err != nil {
		return nil, fmt.Errorf("tikvraw: read: %w", err)
	}
	ctx, end, err := s.begin(ctx, "read")
	if err != nil {
		return nil, err
	}
	defer end()
	rows := make([]rowstore.Row, len(reads))
	asks := make([]*ask, 0, len(reads))
	at := make([]int, 0, len(reads))
	for i := range reads {
		r := &reads[i]
		rows[i] = rowstore.Row{Table: r.Table, Row: r.Row}
		// A name that no mutation can have names nothing.
		if s.names(r.Table, r.Row) {
			asks = append(asks, &ask{key: s.keys.row(spaceHead, r.Table, r.Row), picks: r.Selectors})
			at = append(at, i)
		}
	}
	err = s.read(ctx, asks)
	if err != nil {
		return nil, s.gate.Fail("read", err)
	}
	for i, a := range asks {
		rows[at[i]].Versions, rows[at[i]].Err = a.versions(), s.gate.Fail("read", a.err)
	}
	return rows, nil
}

// names tells whether a row may have that name.
func (s *Store) names(table, row string) bool {
	return len(table) <= s.limits.Table && len(row) <= s.limits.Row
}

func (s *Store) read(ctx context.Context, asks []*ask) error {
	if err := s.readHeads(ctx, asks, true); err != nil {
		return err
	}
	if err := s.selectAll(ctx, asks); err != nil {
		return err
	}
	return s.fillValues(ctx, asks)
}

// readHeads gets the heads of rows, each once.
func (s *Store) readHeads(ctx context.Context, asks []*ask, remember bool) error {
	if len(asks) == 0 {
		return nil
	}
	if len(asks) == 1 {
		raw, err := s.raw.get(ctx, asks[0].key)
		if err != nil {
			return err
		}
		asks[0].raw = raw
		if remember {
			s.cache.put(asks[0].key, raw)
		}
		return nil
	}
	keys := make([][]byte, len(asks))
	for i, a := range asks {
		keys[i] = a.key
	}
	slices.SortFunc(keys, bytes.Compare)
	keys = slices.CompactFunc(keys, bytes.Equal)
	found, err := s.getAll(ctx, keys)
	if err != nil {
		return err
	}
	for _, a := range asks {
		i, _ := slices.BinarySearchFunc(keys, a.key, bytes.Compare)
		a.raw = found[i]
	}
	if remember {
		for i, key := range keys {
			s.cache.put(key, found[i])
		}
	}
	return nil
}

// getAll gets different keys, in parallel.
func (s *Store) getAll(ctx context.Context, keys [][]byte) ([][]byte, error) {
	if len(keys) == 1 {
		v, err := s.raw.get(ctx, keys[0])
		return [][]byte{v}, err
	}
	if len(keys) <= batchKeys {
		return s.getSome(ctx, keys)
	}
	values := make([][]byte, len(keys))
	n := (len(keys) + batchKeys - 1) / batchKeys
	errs := make([]error, n)
	parallel(n, func(i int) {
		from, to := i*batchKeys, min((i+1)*batchKeys, len(keys))
		got, err := s.getSome(ctx, keys[from:to])
		errs[i] = err
		copy(values[from:to], got)
	})
	return values, errors.Join(errs...)
}

// getSome gets keys with one request, or with more when the answer is longer than a
// server sends in one message: heads of wide rows may be.
func (s *Store) getSome(ctx context.Context, keys [][]byte) ([][]byte, error) {
	values, err := s.raw.batchGet(ctx, keys)
	if len(keys) == 1 || !isTooMuch(err) {
		return values, err
	}
	half := len(keys) / 2
	values, err = s.getSome(ctx, keys[:half])
	if err != nil {
		return nil, err
	}
	rest, err := s.getSome(ctx, keys[half:])
	if err != nil {
		return nil, err
	}
	return append(values, rest...), nil
}

// selectAll finds what the picks select in heads and chunks. Rows whose chunks moved
// meanwhile are read again. A row that cannot be read has an err then.
func (s *Store) selectAll(ctx context.Context, asks []*ask) error {
	for len(asks) > 0 {
		errs := make([]error, len(asks))
		var far []int // rows with chunks, which may take requests
		for i, a := range asks {
			if a.err != nil {
				continue
			}
			r, err := s.decodeRow(a.key, a.raw)
			if err == nil && len(r.head.chunks) > 0 {
				far = append(far, i)
				continue
			}
			if err == nil {
				a.entries, err = r.selectPicks(ctx, a.picks)
			}
			errs[i] = err
		}
		parallel(len(far), func(k int) {
			i := far[k]
			r, err := s.decodeRow(asks[i].key, asks[i].raw)
			if err == nil {
				asks[i].entries, err = r.selectPicks(ctx, asks[i].picks)
			}
			errs[i] = err
		})
		var moved []*ask
		for i, err := range errs {
			switch {
			case errors.Is(err, errMoved):
				moved = append(moved, asks[i])
			case err != nil:
				if err := asks[i].fail(err); err != nil {
					return err
				}
			}
		}
		if err := s.reread(ctx, moved); err != nil {
			return err
		}
		asks = moved
	}
	return nil
}

// reread gets the heads of rows that were changed between two requests. A row that was not has lost
// what its head points to.
func (s *Store) reread(ctx context.Context, asks []*ask) error {
	was := make([][]byte, len(asks))
	for i, a := range asks {
		was[i] = a.raw
	}
	if err := s.readHeads(ctx, asks, false); err != nil {
		return err
	}
	for i, a := range asks {
		// A head's bytes never come back, so it stood there all the time.
		if bytes.Equal(a.raw, was[i]) {
			if err := a.fail(s.missing(a.key)); err != nil {
				return err
			}
		}
	}
	return nil
}

// far is how many bytes of the answer lie in keys of their own.
func (a *ask) far() int {
	n := 0
	for i := range a.entries {
		n += a.entries[i].value.size
	}
	return n
}

// fillValues gets the values that lie in keys of their own. Rows that were changed
// meanwhile are read again, all of them, so that each is of one moment.
func (s *Store) fillValues(ctx context.Context, asks []*ask) error {
	for len(asks) > 0 {
		var keys [][]byte
		var owners []*ask
		var slots []*value
		for _, a := range asks {
			for i := range a.entries {
				if v := &a.entries[i].value; v.id != 0 {
					keys = append(keys, s.keys.side(a.key, v.id, kindValue))
					owners = append(owners, a)
					slots = append(slots, v)
				}
			}
		}
		if len(keys) == 0 {
			return nil
		}
		var moved []*ask
		for len(keys) > 0 {
			n, size := 0, 0
			for n < len(keys) && n < batchKeys && (n == 0 || size+slots[n].size <= batchBytes) {
				size += slots[n].size
				n++
			}
			// Several reads of one row ask for the same key.
			distinct := slices.Clone(keys[:n])
			slices.SortFunc(distinct, bytes.Compare)
			distinct = slices.CompactFunc(distinct, bytes.Equal)
			got, err := s.getAll(ctx, distinct)
			if err != nil {
				return err
			}
			for i := range n {
				at, _ := slices.BinarySearchFunc(distinct, keys[i], bytes.Compare)
				if got[at] == nil {
					if len(moved) == 0 || moved[len(moved)-1] != owners[i] {
						moved = append(moved, owners[i])
					}
					continue
				}
				slots[i].bytes = got[at]
				slots[i].size = 0
				slots[i].id = 0
			}
			keys, owners, slots = keys[n:], owners[n:], slots[n:]
		}
		if err := s.reread(ctx, moved); err != nil {
			return err
		}
		if err := s.selectAll(ctx, moved); err != nil {
			return err
		}
		asks = moved
	}
	return nil
}

// versions returns the answer, which belongs to the caller.
func (a *ask) versions() []rowstore.Version {
	if len(a.entries) == 0 {
		return nil
	}
	out := make([]rowstore.Version, len(a.entries))
	for i, e := range a.entries {
		out[i] = rowstore.Version{Family: e.family, Column: e.column, TS: e.ts}
		if len(e.value.bytes) > 0 {
			// The bytes are part of a head, or were asked for by two.
			out[i].Value = bytes.Clone(e.value.bytes)
		}
	}
	return out
}
