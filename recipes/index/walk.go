package index

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/percolate-go/percolate/keys"
	"github.com/percolate-go/percolate/percolator"
)

// Report says what a walk over the data and the entries has found.
type Report struct {
	// Rows and Entries are how many were looked at.
	Rows, Entries int
	// Missing entries are those that a row should have, and Stale ones those that no row has.
	Missing, Stale int
	// Duplicates are values of an Options.Unique that several rows have, the first 100, and Duplicated is how many were found.
	Duplicates []NotUniqueError
	Duplicated int
	// Damaged is how many rows could not be decoded. They have no entries. FirstDamaged is the error of the first one.
	Damaged      int
	FirstDamaged error
}

// Matches tells whether the entries are those of the data: none is missing, stale or duplicated. Rows that cannot be decoded do not count.
func (r *Report) Matches() bool { return r.Missing == 0 && r.Stale == 0 && r.Duplicated == 0 }

const mostDuplicates = 100

// add adds what another part of a walk has found.
func (r *Report) add(o *Report) {
	r.Rows += o.Rows
	r.Entries += o.Entries
	r.Missing += o.Missing
	r.Stale += o.Stale
	r.Duplicated += o.Duplicated
	r.Damaged += o.Damaged
	r.Duplicates = append(r.Duplicates, o.Duplicates[:min(len(o.Duplicates), mostDuplicates-len(r.Duplicates))]...)
	if r.FirstDamaged == nil {
		r.FirstDamaged = o.FirstDamaged
	}
}

// Parts of a walk.
const (
	partRows    = iota // from the rows to their entries
	partEntries        // from the entries to their rows
	partsEnd
)

// position is where a walk goes on.
type position struct {
	Part int    `json:"part"`
	From rowKey `json:"key"`
}

// rowKey is the key of a row or an entry, which may be any bytes. JSON has it in base64: in a text, bytes that are no UTF-8 would become others.
type rowKey string

func (k rowKey) MarshalJSON() ([]byte, error) { return json.Marshal([]byte(k)) }

func (k *rowKey) UnmarshalJSON(text []byte) error {
	var b []byte
	err := json.Unmarshal(text, &b)
	*k = rowKey(b)
	return err
}

// step looks at some rows or entries, in one transaction, and returns where to go on.
func (ix *Index[T]) step(ctx context.Context, tx *percolator.Txn, at position, rows int, mend bool) (next position, r Report, err error) {
	walk := ix.walkRows
	if at.Part == partEntries {
		walk = ix.walkEntries
	}
	last, seen, err := walk(ctx, tx, string(at.From), rows, mend, &r)
	switch {
	case err != nil:
		return at, Report{}, err
	case seen < rows:
		return position{Part: at.Part + 1}, r, nil
	}
	return position{Part: at.Part, From: rowKey(last + "\x00")}, r, nil
}

// wanted is an entry that a row should have.
type wanted struct {
	cell  percolator.Cell
	value keys.Key
	row   string
}

// walkRows compares the entries of some rows from one on with what they should be. With mend, missing ones are added.
func (ix *Index[T]) walkRows(ctx context.Context, tx *percolator.Txn, from string, rows int, mend bool, r *Report) (last string, seen int, err error) {
	var want []wanted
	var cells []percolator.Cell
	for row, err := range tx.Scan(ctx, percolator.Range{Table: ix.of.Table, From: from, Columns: []string{ix.of.Name}, Limit: rows}) {
		if err != nil {
			return "", 0, err
		}
		last, seen = row.Key, seen+1
		values, err := ix.valuesOf(ctx, row.Key, row.Columns[ix.of.Name])
		if passing(err) {
			return "", 0, err
		}
		if err != nil {
			if r.Damaged++; r.FirstDamaged == nil {
				r.FirstDamaged = err
			}
			continue
		}
		for _, v := range values {
			c := ix.entry(v, row.Key)
			want, cells = append(want, wanted{c, v, row.Key}), append(cells, c)
		}
	}
	r.Rows = seen
	got, err := tx.GetMany(ctx, cells...)
	if err != nil {
		return "", 0, err
	}
	has := make(map[percolator.Cell]string, len(got))
	for c, b := range got {
		has[c] = string(b)
	}
	for _, w := range want {
		holder, found := has[w.cell]
		if found && holder == w.row {
			continue
		}
		if found && ix.opt.Unique {
			taken, err := ix.hasValue(ctx, tx, holder, w.value)
			if err != nil {
				return "", 0, err
			}
			if taken {
				r.Duplicated++
				if len(r.Duplicates) < mostDuplicates {
					r.Duplicates = append(r.Duplicates, NotUniqueError{Index: ix.name, Value: w.value, Row: holder, Other: w.row})
				}
				continue
			}
		}
		r.Missing++
		has[w.cell] = w.row // a second row of this step with the value is a duplicate
		if mend {
			if err := tx.Set(w.cell, []byte(w.row)); err != nil {
				return "", 0, err
			}
		}
	}
	return last, seen, nil
}

// errBeyond: the key of a row is longer than this process may read (percolator.Limits.Row). Another process may have written the row, so its entry counts.
var errBeyond = errors.New("index: the key of a row is longer than Limits.Row of this process")

// entered reads the indexed cell of a row that an entry names. It is not found if no row can have this key: then the entry is damaged. One that is too long for this process is errBeyond.
func (ix *Index[T]) entered(ctx context.Context, tx *percolator.Txn, row string) (stored []byte, found bool, err error) {
	switch {
	case row == "":
		return nil, false, nil
	case len(row) > ix.db.Limits().Row:
		return nil, false, errBeyond
	}
	c := ix.of.Cell(row)
	got, err := tx.GetMany(ctx, c)
	stored, found = got[c]
	return stored, found, err
}

// hasValue tells whether a row has a value, or may have it.
func (ix *Index[T]) hasValue(ctx context.Context, tx *percolator.Txn, row string, value keys.Key) (bool, error) {
	stored, found, err := ix.entered(ctx, tx, row)
	switch {
	case errors.Is(err, errBeyond):
		return true, nil
	case err != nil || !found:
		return false, err
	}
	values, err := ix.valuesLeft(ctx, row, stored)
	_, has := slices.BinarySearch(values, value)
	return has, err
}

// stale tells whether the row that an entry of a unique value names does not have the value, at the snapshot of tx and with its writes. A row that cannot be
// decoded, now or ever, may have it, so the entry is not stale. Whoever takes the value over writes the entry, and so does an upkeep that gives it
// to the row: if both begin before the other one commits, one of them conflicts. A process of an older view, which writes without the upkeep, is there only before the index is
// built; then two rows may have a value as long as the builder has not found them.
func (ix *Index[T]) stale(ctx context.Context, tx *percolator.Txn, row string, value keys.Key) (bool, error) {
	stored, found, err := ix.entered(ctx, tx, row)
	switch {
	case errors.Is(err, errBeyond):
		return false, nil
	case err != nil || !found:
		return err == nil, err
	}
	values, err := ix.valuesOf(ctx, row, stored)
	if err != nil {
		return false, nil //nolint:nilerr // it may have the value
	}
	_, has := slices.BinarySearch(values, value)
	return !has, nil
}

const (
	// Rows that are read together, first and at most. They are fewer if their values are large.
	leastRead, mostRead = 8, 512
	// readBytes is about how many bytes the values of these may have.
	readBytes = 4 << 20
)

// fitting is next, or fewer, if so many rows have values of more than readBytes: as large as those of the last ones, which were size and had these bytes.
func fitting(next, size, bytes int) int {
	if bytes > 0 {
		next = min(next, size*readBytes/bytes)
	}
	return max(next, 1)
}

// rowsOf reads the indexed cells of the rows that entries name, each once. An entry is passed over that names no row which can be, or one that is too long for this process.
func (ix *Index[T]) rowsOf(ctx context.Context, tx *percolator.Txn, page []found) (stored map[percolator.Cell][]byte, bytes int, err error) {
	cells := make([]percolator.Cell, 0, len(page))
	named := make(map[string]struct{}, len(page))
	for _, e := range page {
		if _, twice := named[e.row]; twice || e.row == "" || len(e.row) > ix.db.Limits().Row {
			continue
		}
		named[e.row] = struct{}{}
		cells = append(cells, ix.of.Cell(e.row))
	}
	if stored, err = tx.GetMany(ctx, cells...); err != nil {
		return nil, 0, err
	}
	for _, b := range stored {
		bytes += len(b)
	}
	return stored, bytes, nil
}

// walkEntries looks whether the rows of some entries from one on have their values. With mend, the others are removed. It holds the values of a few rows at a time.
func (ix *Index[T]) walkEntries(ctx context.Context, tx *percolator.Txn, from string, rows int, mend bool, r *Report) (last string, seen int, err error) {
	var entries []found
	for row, err := range tx.Scan(ctx, percolator.Range{Table: ix.opt.Entries, From: from, Columns: []string{column}, Limit: rows}) {
		if err != nil {
			return "", 0, err
		}
		last, seen = row.Key, seen+1
		entries = append(entries, found{string(row.Columns[column]), row.Key})
	}
	r.Entries = seen
	for size := leastRead; len(entries) > 0; {
		page := entries[:min(size, len(entries))]
		entries = entries[len(page):]
		bytes, err := ix.compareEntries(ctx, tx, page, mend, r)
		if err != nil {
			return "", 0, err
		}
		size = fitting(min(4*size, mostRead), len(page), bytes)
	}
	return last, seen, nil
}

// compareEntries is walkEntries of some that are read together. It returns how many bytes the values of their rows have.
func (ix *Index[T]) compareEntries(ctx context.Context, tx *percolator.Txn, page []found, mend bool, r *Report) (bytes int, err error) {
	got, bytes, err := ix.rowsOf(ctx, tx, page)
	if err != nil {
		return 0, err
	}
	for _, e := range page {
		if len(e.row) > ix.db.Limits().Row {
			continue // see errBeyond
		}
		if stored, exists := got[ix.of.Cell(e.row)]; exists {
			// A row may have several entries, and the codec may change what it is given.
			values, err := ix.valuesLeft(ctx, e.row, slices.Clone(stored))
			if err != nil {
				return 0, err
			}
			if slices.ContainsFunc(values, func(v keys.Key) bool { return ix.entry(v, e.row).Row == e.at }) {
				continue
			}
		}
		r.Stale++
		if mend {
			if err := tx.Delete(percolator.Cell{Table: ix.opt.Entries, Row: e.at, Column: column}); err != nil {
				return 0, err
			}
		}
	}
	return bytes, nil
}
