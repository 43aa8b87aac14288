package percolator

import (
	"context"
	"fmt"
	"slices"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Names of erased rows in the hints of garbage (hints.go). A hint names up to a thousand rows, those of many customers, so two calls
// of Erase and a collection may change one hint at the same time. Nobody may put back a name that another one has removed, even if
// it was suspended since it read the hint. So whoever puts the rest of a hint back does that under a *token*, a Lock version in the
// hint's row, which it puts there before it reads. Whatever else changes a hint removes its token too. A token that was removed leaves a
// Mark, so that the request that has put it there does nothing if it comes once more, late: else all that was sent under the token could. A
// collection removes Marks from before its safe point, which is a lease and MaxTxnAge behind. So nothing is sent under a token that is older than MaxTxnAge
// once the hint was read, because the process was suspended: its request may come once more after the Mark has gone.

// tokenPick shows the token of a hint.
var tokenPick = rowstore.Selector{Family: rowstore.Lock, Column: format.ColumnHint, To: oracle.Max, Limit: 1}

// putToken puts a token into a hint's row, if there is none, and no later one was removed.
func putToken(row string, token Timestamp) rowstore.Mutation {
	return rowstore.Mutation{
		Table: format.TableHints, Row: row,
		Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Lock, format.ColumnHint, 0), rowstore.Absent(rowstore.Mark, format.ColumnHint, token)},
		Edits:      []rowstore.Edit{rowstore.Put(rowstore.Lock, format.ColumnHint, token, nil)},
	}
}

// removeToken invalidates what somebody is about to write to a hint.
func removeToken(token Timestamp) []rowstore.Edit {
	return []rowstore.Edit{rowstore.Delete(rowstore.Lock, format.ColumnHint, token), rowstore.Put(rowstore.Mark, format.ColumnHint, token, nil)}
}

// removeHints takes the names of rows of the range out of the hints of garbage: there is none in them any more.
func (e *erasure) removeHints(ctx context.Context, _ *catalogView) (left int, err error) {
	if err := e.db.storeEveryHint(ctx); err != nil {
		return 0, err
	}
	inRange := func(row string) bool { return e.span.has(e.span.table, row) && !e.kept[row] }
	parked := func(row string) bool {
		c, _, ok := format.ParkedOf(row)
		return ok && c.Table == e.span.table && inRange(c.Row)
	}
	all := func(gone func(row string) bool) restOfHint {
		return func(_ context.Context, rows []string) ([]string, error) {
			return slices.DeleteFunc(slices.Clone(rows), gone), nil
		}
	}
	of := []string{e.span.table, format.TableParked}
	rests := []restOfHint{all(inRange), all(parked)}
	for _, s := range e.spans[1:] {
		there := func(ctx context.Context, rows []string) ([]string, error) { return e.there(ctx, s.table, rows) }
		of, rests = append(of, s.table), append(rests, there)
	}
	for i, table := range of {
		n, err := e.removeHintsOf(ctx, table, rests[i])
		left += n
		if err != nil {
			return left, err
		}
	}
	return left, nil
}

// restOfHint returns those of the rows of a hint that stay in it.
type restOfHint func(ctx context.Context, rows []string) (rest []string, err error)

// there returns those of some rows of which the store has anything.
func (e *erasure) there(ctx context.Context, table string, names []string) (rest []string, err error) {
	for part := range slices.Chunk(names, settleMost) {
		reads := make([]rowstore.RowRead, len(part))
		for i, name := range part {
			reads[i] = rowstore.RowRead{Table: table, Row: name, Selectors: newestPicks}
		}
		rows, err := e.db.readRows(ctx, reads)
		if err != nil {
			return nil, fmt.Errorf("looking for rows of an index: %w", err)
		}
		for i := range rows {
			if len(rows[i].Versions) > 0 {
				rest = append(rest, part[i])
			}
		}
	}
	return rest, nil
}

// removeHintsOf takes the rows of a table that are gone out of its hints. left counts the hints that somebody else is changing.
func (e *erasure) removeHintsOf(ctx context.Context, table string, remains restOfHint) (left int, err error) {
	from, to := format.HintsOf(table, 0, oracle.Max)
	picks := []rowstore.Selector{everything(rowstore.Write, format.ColumnHint)}
	var concerned []string
	for row, err := range e.scan(ctx, rowstore.ScanRange{Table: format.TableHints, From: from, To: to, Selectors: picks}) {
		if err != nil {
			return left, fmt.Errorf("reading the hints: %w", err)
		}
		names, rest, err := e.restOf(ctx, &row, remains)
		if err != nil {
			return left, err
		}
		if len(rest) < len(names) {
			concerned = append(concerned, row.Row)
		}
		if len(concerned) == hintsTogether {
			n, err := e.changeHints(ctx, table, concerned, remains)
			if left += n; err != nil {
				return left, err
			}
			concerned = concerned[:0]
		}
	}
	n, err := e.changeHints(ctx, table, concerned, remains)
	return left + n, err
}

// hintsTogether is how many hints are changed together. Each may have hintBytes.
const hintsTogether = 64

// restOf returns the rows that a hint names, and those that stay in it.
func (e *erasure) restOf(ctx context.Context, row *rowstore.Row, remains restOfHint) (names, rest []string, err error) {
	v := row.Newest(rowstore.Write, format.ColumnHint)
	if v == nil {
		return nil, nil, nil
	}
	h, err := format.DecodeHint(v.Value)
	if err != nil {
		return nil, nil, fmt.Errorf("the hint %q: %w", row.Row, err)
	}
	rest, err = remains(ctx, h.Rows)
	return h.Rows, rest, err
}

// changeHints takes names out of some hints: it puts a token to each, reads them, and puts the rest back where its token still stands.
func (e *erasure) changeHints(ctx context.Context, table string, hints []string, remains restOfHint) (left int, err error) {
	if len(hints) == 0 {
		return 0, nil
	}
	token, err := e.db.draw(ctx)
	if err != nil {
		return 0, err
	}
	muts := make([]rowstore.Mutation, len(hints))
	reads := make([]rowstore.RowRead, len(hints))
	for i, row := range hints {
		muts[i] = putToken(row, token)
		reads[i] = rowstore.RowRead{Table: format.TableHints, Row: row, Selectors: []rowstore.Selector{tokenPick, everything(rowstore.Write, format.ColumnHint)}}
	}
	if _, err := e.applyToHints(ctx, muts); err != nil {
		return 0, err
	}
	rows, err := e.db.readRows(ctx, reads)
	if err != nil {
		return 0, fmt.Errorf("reading the hints: %w", err)
	}
	now, err := e.db.draw(ctx)
	if err != nil {
		return 0, err
	}
	age, _ := e.db.known().widestIn(table)
	old := now.Sub(token) > age
	for i := range rows {
		if muts[i], err = e.changeHint(ctx, &rows[i], token, old, remains); err != nil {
			return 0, err
		}
		if len(muts[i].Conditions) == 0 {
			left++
		}
	}
	refused, err := e.applyToHints(ctx, muts)
	return left + refused, err
}

// changeHint returns the mutation that takes names out of a hint. If the token is not there, that of somebody else is removed, who may
// have died: both try again then, each after a wait of random length. So is an old token.
func (e *erasure) changeHint(ctx context.Context, row *rowstore.Row, token Timestamp, old bool, remains restOfHint) (rowstore.Mutation, error) {
	m := rowstore.Mutation{Table: format.TableHints, Row: row.Row, Edits: removeToken(token)}
	if l := row.Newest(rowstore.Lock, format.ColumnHint); old || l == nil || l.TS != token {
		if l != nil {
			m.Edits = removeToken(l.TS)
		}
		return m, nil
	}
	m.Conditions = []rowstore.Condition{rowstore.Present(format.ColumnHint, token)}
	_, rest, err := e.restOf(ctx, row, remains)
	if err != nil {
		return m, err
	}
	for i := range row.Versions {
		switch v := &row.Versions[i]; {
		case v.Family != rowstore.Write:
		case len(rest) > 0:
			m.Edits = append(m.Edits, rowstore.Put(rowstore.Write, format.ColumnHint, v.TS, (&format.Hint{Rows: rest}).Encode()))
		default:
			m.Edits = append(m.Edits, rowstore.Delete(rowstore.Write, format.ColumnHint, v.TS))
		}
	}
	return m, nil
}

// applyToHints counts the mutations that were refused, or of which that is not known.
func (e *erasure) applyToHints(ctx context.Context, muts []rowstore.Mutation) (refused int, err error) {
	outs, err := e.db.store.Apply(ctx, muts, rowstore.ApplyOptions{})
	if mayAskAgain(err) {
		return len(muts), nil
	}
	for i := range outs {
		switch {
		case err != nil:
		case mayAskAgain(outs[i].Err) || outs[i].Err == nil && !outs[i].Applied:
			refused++
		default:
			err = outs[i].Err
		}
	}
	if err != nil {
		return refused, fmt.Errorf("changing the hints: %w", err)
	}
	return refused, nil
}
