package memstore

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/tidwall/btree"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// Read implements Store.
func (m *Store) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	if err := rowstore.CheckReads(reads); err != nil {
		return nil, fmt.Errorf("memory: read: %w", err)
	}
	if err := m.enter(ctx, "read"); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	return m.read(reads), nil
}

func (m *Store) read(reads []rowstore.RowRead) []rowstore.Row {
	rows := make([]rowstore.Row, len(reads))
	for i, r := range reads {
		rows[i] = rowstore.Row{Table: r.Table, Row: r.Row, Versions: kit.Select(m.versions(r.Table, r.Row), r.Selectors)}
	}
	return rows
}

// Scan implements Store.
func (m *Store) Scan(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return func(yield func(rowstore.Row, error) bool) {
		s := s // each use of the sequence is a scan of its own
		if err := rowstore.CheckScan(s); err != nil {
			yield(rowstore.Row{}, fmt.Errorf("memory: scan: %w", err))
			return
		}
		visited, at := 0, ""
		for s.Limit == 0 || visited < s.Limit {
			if err := m.enter(ctx, "scan of table "+s.Table); err != nil {
				yield(rowstore.Row{}, err)
				return
			}
			if err := m.snapshot(&s); err != nil {
				m.mu.Unlock()
				yield(rowstore.Row{}, err)
				return
			}
			var key string
			var versions []rowstore.Version
			var more bool
			if len(s.Slots) > 0 {
				key, versions, more = m.nextOfSlots(&s, at)
			} else {
				key, versions, more = m.next(&s, at)
			}
			m.mu.Unlock()
			if !more {
				return
			}
			at = key
			if len(versions) == 0 {
				continue // next looked at enough rows for one turn
			}
			visited++
			if !yield(rowstore.Row{Table: s.Table, Row: key, Versions: versions}, nil) {
				return
			}
		}
	}
}

// turn is how many rows are looked at with the lock held.
const turn = 1024

// next finds the first row of s beyond the key after ("" is the start) that matches. It
// stops after some rows, so that it neither holds the lock nor delays a cancelled scan for
// long. Then it returns the last key that it looked at, no versions, and true.
func (m *Store) next(s *rowstore.ScanRange, after string) (key string, versions []rowstore.Version, more bool) {
	table, ok := m.tables.Get(s.Table)
	if !ok {
		return "", nil, false
	}
	looked := 0
	visit := func(row string) bool {
		if s.Reverse {
			if s.To != "" && row >= s.To || after != "" && row >= after {
				return true
			}
			if row < s.From {
				return false
			}
		} else {
			if row == after {
				return true
			}
			if s.To != "" && row >= s.To {
				return false
			}
		}
		all, _ := table.rows.Get(row)
		key, more, versions = row, true, kit.Select(all, s.Selectors)
		looked++
		return len(versions) == 0 && looked < turn
	}
	from := max(s.From, after)
	if s.Reverse {
		from = s.To
		if after != "" {
			from = after
		}
	}
	if onlyNotify(s.Selectors) {
		walk(&table.notified, from, s.Reverse, visit)
	} else {
		walk(&table.rows, from, s.Reverse, visit)
	}
	if more && len(versions) == 0 && looked < turn {
		return "", nil, false
	}
	return key, versions, more
}

// nextOfSlots is next for the rows of some slots. It leaps from range to range.
func (m *Store) nextOfSlots(s *rowstore.ScanRange, after string) (key string, versions []rowstore.Version, more bool) {
	table, ok := m.tables.Get(s.Table)
	if !ok {
		return "", nil, false
	}
	from := slotKey(s.Slots[0].First, s.From)
	if after != "" {
		from = slotKey(rowstore.Slot(s.Table, after), after+"\x00")
	}
	for looked := 0; looked < turn; looked++ {
		iter := table.bySlot.Iter()
		if !iter.Seek(from) {
			return "", nil, false
		}
		slot, row := splitSlotKey(iter.Key())
		i, _ := slices.BinarySearchFunc(s.Slots, slot, func(r rowstore.SlotRange, slot uint16) int { return cmp.Compare(r.Last, slot) })
		if i == len(s.Slots) {
			return "", nil, false
		}
		key = row
		if first := s.Slots[i].First; slot < first {
			from = slotKey(first, "")
			continue
		}
		all, _ := table.rows.Get(row)
		if versions = kit.Select(all, s.Selectors); len(versions) > 0 {
			return row, versions, true
		}
		from = iter.Key() + "\x00"
	}
	return key, nil, true
}

func walk[V any](keys *btree.Map[string, V], from string, reverse bool, visit func(string) bool) {
	each := func(key string, _ V) bool { return visit(key) }
	switch {
	case !reverse:
		keys.Ascend(from, each)
	case from == "":
		keys.Reverse(each)
	default:
		keys.Descend(from, each)
	}
}

func onlyNotify(picks []rowstore.Selector) bool {
	return !slices.ContainsFunc(picks, func(p rowstore.Selector) bool { return p.Family != rowstore.Notify })
}

// Tables implements Store.
func (m *Store) Tables(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if err := m.enter(ctx, "tables"); err != nil {
			yield("", err)
			return
		}
		names := m.tables.Keys()
		m.mu.Unlock()
		for _, name := range names {
			if err := ctx.Err(); err != nil {
				yield("", fmt.Errorf("memory: tables: %w", err))
				return
			}
			if !yield(name, nil) {
				return
			}
		}
	}
}

// Split implements Splitter.
func (m *Store) Split(ctx context.Context, table string, n int) ([]string, error) {
	if table == "" || n < 1 {
		return nil, fmt.Errorf("memory: split of table %q into %d parts: %w", table, n, rowstore.ErrInvalid)
	}
	if err := m.enter(ctx, "split of table "+table); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	t, ok := m.tables.Get(table)
	if !ok {
		return nil, nil
	}
	var keys []string
	rows := t.rows.Len()
	n = min(n, rows)
	for i := 1; i < n; i++ {
		key, _, _ := t.rows.GetAt(int(int64(i) * int64(rows) / int64(n)))
		keys = append(keys, key)
	}
	return keys, nil
}
