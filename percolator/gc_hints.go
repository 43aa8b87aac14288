package percolator

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// A collection by hints: it looks at the rows that hints name (hints.go), and at no others. The rules:
//
//   - A hint is removed only if its span of time is over at the safe point, and only after what it names
//     was looked at.
//   - A row in which something is kept that will be garbage later without another commit is hinted anew,
//     before its hint is removed.
//   - A row that cannot be read is hinted anew too, so it counts as looked at, and is read again later.
//   - A collection looks at every row instead if it is asked to, if some commits may have been hinted by nobody, and
//     once in gcFullAfter retentions, for hints that were lost.

const (
	gcFullAfter = 10
	gcHinted    = 4096    // rows that are looked at before their hints are removed
	gcBytes     = 1 << 20 // values of such rows that are read at once, about
)

// full tells whether a collection looks at every row.
func (p *gcPass) full() bool {
	v := p.view
	if p.all || v.HintsFrom == 0 || v.swept < v.HintsFrom {
		return true
	}
	return p.within == 0 && p.rest.Sub(v.swept)/gcFullAfter >= v.at(v.asOf).Retention // which may be too long to be multiplied
}

// raiseToHints makes a catalog one of version 5 once no older program is at work, and notes from when on every
// commit is hinted and every session says what it has resolved. The next collections rely on it. Who goes by a view from
// before the catalog was raised commits no later than a lease after one that shows it raised.
func (db *DB) raiseToHints(ctx context.Context, v *catalogView) error {
	if v.HintsFrom != 0 {
		return nil
	}
	if !v.Hinted {
		if older, err := db.olderPrograms(ctx); err != nil || older {
			return err
		}
		_, err := db.changeCatalog(ctx, func(v *catalogView) (bool, error) {
			changed := !v.Hinted
			v.Hinted = true
			return changed, nil
		})
		if err != nil {
			return err
		}
	}
	_, err := db.changeCatalog(ctx, func(v *catalogView) (bool, error) {
		if v.HintsFrom != 0 || !v.Hinted {
			return false, nil
		}
		_, lease := v.widest()
		v.HintsFrom = v.asOf.Add(lease)
		return true, nil
	})
	return err
}

// removeHinted removes what is garbage in the rows of a table that hints name.
func (p *gcPass) removeHinted(ctx context.Context, table string, safe Timestamp) error {
	c := p.collection(table, safe)
	rows := map[string]struct{}{}
	var done []rowstore.Mutation
	handle := func() error {
		if err := p.lookAt(ctx, c, slices.Sorted(maps.Keys(rows))); err != nil {
			return err
		}
		clear(rows)
		err := p.dropHints(ctx, done)
		done = nil
		return err
	}
	// What a collection of all rows has passed needs no hint.
	since := p.view.swept.Add(-hintSpanMost)
	from, to := format.HintsOf(table, since, safe)
	for row, err := range p.scanHints(ctx, rowstore.ScanRange{From: from, To: to, Selectors: hintPicks(oracle.Max)}) {
		if err != nil {
			return fmt.Errorf("reading the hints: %w", err)
		}
		v := row.Newest(rowstore.Write, format.ColumnHint)
		if v != nil {
			h, err := format.DecodeHint(v.Value)
			if err != nil { // it stays, since nobody knows what it names
				if err := p.damage().pass(ctx, format.TableHints, row.Row, err); err != nil {
					return err
				}
				continue
			}
			for _, name := range h.Rows {
				rows[name] = struct{}{}
			}
		}
		if v == nil || v.TS <= safe { // without a hint there may be marks
			done = dropHint(done, &row, safe)
		}
		if len(rows) >= gcHinted || len(done) >= gcHinted {
			if err := handle(); err != nil {
				return err
			}
		}
	}
	return handle()
}

// scanHints visits records of hints. What one names that cannot be read is as if that hint had been lost.
func (p *gcPass) scanHints(ctx context.Context, r rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	r.Table = format.TableHints
	return p.db.scanPast(ctx, r, func(u unreadable) error {
		return p.damage().passAt(ctx, format.TableHints, u)
	})
}

// hintedTables lists the tables that have hints.
func (db *DB) hintedTables(ctx context.Context) (tables []string, err error) {
	for row, err := range db.firstHints(ctx, hintPicks(oracle.Max)) {
		if err != nil {
			return tables, err
		}
		if table, ok := format.HintedTable(row.Row); ok { // a name that is very long is not in it
			tables = append(tables, table)
		}
	}
	return tables, nil
}

// firstHints visits the first of the hints of each table, which is the oldest, and of a table whose name is very long all of them.
func (db *DB) firstHints(ctx context.Context, picks []rowstore.Selector) iter.Seq2[rowstore.Row, error] {
	return func(yield func(rowstore.Row, error) bool) {
		for from, more := "", true; more; {
			more = false
			for row, err := range db.store.Scan(ctx, rowstore.ScanRange{Table: format.TableHints, From: from, Limit: 1, Selectors: picks}) {
				if err != nil {
					yield(rowstore.Row{}, fmt.Errorf("reading the hints: %w", err))
					return
				}
				more, from = true, row.Row+"\x00"
				if table, ok := format.HintedTable(row.Row); ok {
					_, end := format.HintsOf(table, 0, oracle.Max)
					from = max(from, end)
				}
				if !yield(row, nil) {
					return
				}
			}
		}
	}
}

// lookAt removes what is garbage in some rows. It reads few of them at once where they are large.
func (p *gcPass) lookAt(ctx context.Context, c *collection, names []string) error {
	for n := 1; len(names) > 0; {
		n = min(n, len(names))
		reads := make([]rowstore.RowRead, n)
		for i, name := range names[:n] {
			reads[i] = rowstore.RowRead{Table: c.table, Row: name, Selectors: c.picks}
		}
		rows, err := p.db.readEach(ctx, reads)
		if err != nil {
			return err
		}
		bytes := 1
		for i := range rows {
			for j := range rows[i].Versions {
				bytes += len(rows[i].Versions[j].Value)
			}
			if err = rows[i].Err; err != nil {
				err = c.pass(ctx, names[i], err)
			} else {
				err = c.look(ctx, &rows[i])
			}
			if err != nil {
				return err
			}
		}
		names = names[n:]
		n = max(1, min(4*n, gcRows, n*gcBytes/bytes))
	}
	return c.end(ctx)
}

// hintPicks show a hint that is to be removed up to a timestamp, and what erasures have left in its row.
func hintPicks(to Timestamp) []rowstore.Selector {
	return []rowstore.Selector{
		{Family: rowstore.Write, Column: format.ColumnHint, To: to, Limit: 1},
		tokenPick,
		{Family: rowstore.Mark, Column: format.ColumnHint, To: oracle.Max, Limit: 1},
	}
}

// dropHint appends what removes a hint, and whatever erasures have left in its row below the safe point: tokens of the dead, and the marks of
// tokens, whose requests have all arrived. A hint with a later token stays for now, because the erasure may be about to put the rest of it back.
func dropHint(muts []rowstore.Mutation, row *rowstore.Row, safe Timestamp) []rowstore.Mutation {
	m := rowstore.Mutation{Table: format.TableHints, Row: row.Row, Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Lock, format.ColumnHint, safe+1)}}
	if v := row.Newest(rowstore.Write, format.ColumnHint); v != nil {
		m.Edits = append(m.Edits, rowstore.Delete(rowstore.Write, format.ColumnHint, v.TS))
	} else if !slices.ContainsFunc(row.Versions, func(v rowstore.Version) bool { return v.TS <= safe }) {
		return muts
	}
	m.Edits = append(m.Edits, rowstore.DeleteRange(rowstore.Lock, format.ColumnHint, 0, safe), rowstore.DeleteRange(rowstore.Mark, format.ColumnHint, 0, safe))
	return append(muts, m)
}

// dropHints removes hints whose rows were looked at.
func (p *gcPass) dropHints(ctx context.Context, muts []rowstore.Mutation) error {
	for some := range slices.Chunk(muts, gcRows) {
		outs, err := p.db.store.Apply(ctx, some, rowstore.ApplyOptions{})
		if err != nil && !errors.Is(err, rowstore.ErrAmbiguous) {
			return fmt.Errorf("removing hints: %w", err)
		}
		for i := range some {
			if some[i].Edits[0].Family == rowstore.Write && (err != nil || outs[i].Applied) {
				p.report.Hints++
			}
		}
	}
	return nil
}

// swept notes that every row of every table was looked at, and removes the hints that have become
// needless.
func (p *gcPass) swept(ctx context.Context) error {
	if err := p.dropSweptHints(ctx, rowstore.ScanRange{}); err != nil {
		return err
	}
	return p.db.raisePoint(ctx, format.ColumnSwept, p.rest)
}

// sweptTables is swept where other tables have failed: their hints stay, and the next collection looks at all rows again.
func (p *gcPass) sweptTables(ctx context.Context, tables []string) error {
	for _, t := range tables {
		from, to := format.HintsOf(t, 0, p.rest)
		if err := p.dropSweptHints(ctx, rowstore.ScanRange{From: from, To: to}); err != nil {
			return err
		}
	}
	return nil
}

// dropSweptHints removes hints of rows that were all looked at.
func (p *gcPass) dropSweptHints(ctx context.Context, r rowstore.ScanRange) error {
	r.Selectors = hintPicks(p.rest)
	var done []rowstore.Mutation
	for row, err := range p.scanHints(ctx, r) {
		if err != nil {
			return fmt.Errorf("reading the hints: %w", err)
		}
		done = dropHint(done, &row, p.rest)
		if len(done) == gcHinted {
			if err := p.dropHints(ctx, done); err != nil {
				return err
			}
			done = nil
		}
	}
	return p.dropHints(ctx, done)
}

// raisePoint stores a timestamp beside the catalog, unless a greater one is there. It is 0 where the request that published the
// very first safe point was lost: nothing was collected, so there is nothing to note.
func (db *DB) raisePoint(ctx context.Context, column string, ts Timestamp) error {
	if ts == 0 {
		return nil
	}
	_, err := db.applyOne(ctx, rowstore.Mutation{
		Table: format.TableCatalog, Row: format.RowCatalog,
		Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Write, column, ts)},
		Edits: []rowstore.Edit{
			rowstore.Put(rowstore.Write, column, ts, format.TimestampOnly),
			rowstore.DeleteRange(rowstore.Write, column, 0, ts-1),
		},
	})
	if err != nil && !errors.Is(err, rowstore.ErrAmbiguous) {
		return fmt.Errorf("storing how far the collection is: %w", err)
	}
	return nil
}
