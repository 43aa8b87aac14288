package kit

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// pageBytes bounds the values of one page.
const pageBytes = 1 << 20

// Page reads the next rows of a scan, and looks at most at look rows (at least 1), and at no
// more once it has about a mebibyte of values. rest is what is left of the scan, nil if
// that is nothing; see [Pages]. A row that is damaged ends the page before it; a page that begins
// with it fails, with an error that matches rowstore.ErrCorrupt.
//
// A scan for notifications alone and without Slots walks over all notified rows of the table
// for each page, because their index is in the order of slots.
func (l Layout) Page(r Reader, s rowstore.ScanRange, look int) (rows []rowstore.Row, rest *rowstore.ScanRange, err error) {
	next := l.nextRow
	switch {
	case len(s.Slots) > 0:
		s.Slots = slices.Clone(s.Slots) // next changes them
		next = l.nextOfSlots
	case !slices.ContainsFunc(s.Selectors, func(p rowstore.Selector) bool { return p.Family != rowstore.Notify }):
		if next, err = l.firstNotified(r, &s, look); err != nil {
			return nil, nil, err
		}
	}
	size := 0
	for ; look > 0 && size < pageBytes; look-- {
		before := s
		var from rowstore.SlotRange
		if len(s.Slots) > 0 {
			from = s.Slots[0]
		}
		name, more, err := next(r, &s)
		var versions []rowstore.Version
		if err == nil && name != "" {
			versions, err = l.Read(r, s.Table, name, s.Selectors)
		}
		switch {
		case errors.Is(err, rowstore.ErrCorrupt) && len(rows) > 0:
			if len(before.Slots) > 0 {
				before.Slots[0] = from // next may have moved it on
			}
			return rows, &before, nil
		case err != nil:
			return nil, nil, err
		case !more:
			return rows, nil, nil
		}
		if len(versions) == 0 {
			continue
		}
		rows = append(rows, rowstore.Row{Table: s.Table, Row: name, Versions: versions})
		if s.Limit > 0 {
			if s.Limit--; s.Limit == 0 {
				return rows, nil, nil
			}
		}
		for i := range versions {
			size += len(versions[i].Value)
		}
	}
	return rows, &s, nil
}

// nextRow returns the next row of a scan and moves the scan behind it.
func (l Layout) nextRow(r Reader, s *rowstore.ScanRange) (name string, more bool, err error) {
	table := l.table(spaceRows, s.Table)
	lower, upper := table, PrefixEnd(table)
	if s.From != "" {
		lower = l.row(s.Table, s.From)
	}
	if s.To != "" {
		upper = l.row(s.Table, s.To)
	}
	if bytes.Compare(lower, upper) >= 0 {
		return "", false, nil
	}
	var key []byte
	walk := r.Ascend
	if s.Reverse {
		walk = r.Descend
	}
	err = walk(lower, upper, func(k, _ []byte) bool {
		key = bytes.Clone(k)
		return false
	})
	if err != nil || key == nil {
		return "", false, err
	}
	if name, _, err = CutName(key[len(table):]); err != nil {
		return "", false, err
	}
	pass(s, name)
	return name, true, nil
}

// pass moves a scan in the order of rows behind a row.
func pass(s *rowstore.ScanRange, name string) {
	if s.Reverse {
		s.To = name
	} else {
		s.From = name + "\x00"
	}
}

// slotLen is the length of a slot in a key.
const slotLen = 2

// notified is the key that tells that a row is notified.
func (l Layout) notified(table, row string) []byte {
	return AppendName(l.slot(table, rowstore.Slot(table, row)), row)
}

// slot is what the keys of a slot's notified rows begin with.
func (l Layout) slot(table string, slot uint16) []byte {
	return binary.BigEndian.AppendUint16(l.table(spaceSlots, table), slot)
}

// cutNotified returns the row of what follows the table in the key of a notified row: a slot and the name.
func cutNotified(key []byte) (row string, err error) {
	if len(key) < slotLen {
		return "", badKey(key)
	}
	row, rest, err := CutName(key[slotLen:])
	if err == nil && len(rest) > 0 {
		err = badKey(key)
	}
	return row, err
}

// nextOfSlots is nextRow for a scan of slots. It returns no name if it has leapt to another
// range. It changes s.Slots.
func (l Layout) nextOfSlots(r Reader, s *rowstore.ScanRange) (name string, more bool, err error) {
	table := l.table(spaceSlots, s.Table)
	from := l.slot(s.Table, s.Slots[0].First)
	if s.From != "" {
		from = AppendName(from, s.From)
	}
	key, err := first(r, from, PrefixEnd(table))
	if err != nil || key == nil {
		return "", false, err
	}
	if len(key) < len(table)+slotLen {
		return "", false, badKey(key)
	}
	slot := binary.BigEndian.Uint16(key[len(table):])
	i, _ := slices.BinarySearchFunc(s.Slots, slot, func(r rowstore.SlotRange, slot uint16) int { return cmp.Compare(r.Last, slot) })
	if s.Slots, s.From = s.Slots[i:], ""; len(s.Slots) == 0 {
		return "", false, nil
	}
	if slot < s.Slots[0].First {
		return "", true, nil
	}
	// What lies in no slot that the scan asks for is not judged.
	if name, err = cutNotified(key[len(table):]); err != nil {
		return "", false, err
	}
	s.Slots[0].First, s.From = slot, name+"\x00"
	return name, true, nil
}

// firstNotified finds the first notified rows of a scan in the order of rows, at most look of
// them. It returns them one by one, as nextRow does.
func (l Layout) firstNotified(r Reader, s *rowstore.ScanRange, look int) (next func(Reader, *rowstore.ScanRange) (string, bool, error), err error) {
	table := l.table(spaceSlots, s.Table)
	order := cmp.Compare[string]
	if s.Reverse {
		order = func(a, b string) int { return cmp.Compare(b, a) }
	}
	var names []string
	var bad error
	err = r.Ascend(table, PrefixEnd(table), func(k, _ []byte) bool {
		name, err := cutNotified(k[len(table):])
		if err != nil {
			bad = cmp.Or(bad, err) // it belongs to no row, and is told of at the end
			return true
		}
		i, _ := slices.BinarySearchFunc(names, name, order)
		if i == look || name < s.From || s.To != "" && name >= s.To {
			return true
		}
		names = slices.Insert(names[:min(len(names), look-1)], i, name)
		return true
	})
	return func(_ Reader, s *rowstore.ScanRange) (name string, more bool, err error) {
		if len(names) == 0 {
			return "", false, bad
		}
		name, names = names[0], names[1:]
		pass(s, name)
		return name, true, nil
	}, err
}

// upgradeKeys is how many keys Upgrade moves in a transaction.
const upgradeKeys = 1000

// Upgrade gives the index keys of the first version of Layout their new form. A backend calls
// it when it opens a store that may have such keys. Before, it notes in the store that a program
// which knows the first version alone must not open it any more, for that would miss notifications.
//
// update runs move in a transaction that changes the store. Upgrade calls it until nothing is left
// to move; where nothing was, that costs one search. If it is cut short, the next call goes on.
func (l Layout) Upgrade(ctx context.Context, update func(move func(t Txn) error) error) error {
	for more := true; more; {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := update(func(t Txn) (err error) {
			more, err = l.upgrade(t)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// upgrade moves some keys, and tells whether others may be left.
func (l Layout) upgrade(t Txn) (more bool, err error) {
	space := l.space(spaceOld)
	var old [][]byte
	err = t.Ascend(space, PrefixEnd(space), func(k, _ []byte) bool {
		old = append(old, bytes.Clone(k))
		return len(old) < upgradeKeys
	})
	for _, key := range old {
		if err != nil {
			return false, err
		}
		var table, row string
		rest := key[len(space):]
		if table, rest, err = CutName(rest); err == nil {
			row, rest, err = CutName(rest)
		}
		if err == nil && len(rest) > 0 {
			err = badKey(key)
		}
		if err == nil {
			err = t.Put(l.notified(table, row), nil)
		}
		if err == nil {
			err = t.Delete(key)
		}
	}
	return len(old) == upgradeKeys, err
}
