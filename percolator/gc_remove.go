package percolator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// The removal of garbage from a table: the last step of a collection. gc_row.go decides
// which versions of a row are garbage.

// Bounds on what a collection handles at once.
const (
	gcRows = 64 // rows that a call changes
	// gcShallow is how many versions of a column the scan of a table reads above the
	// safe point, and as many at or below it. A column that may have more at or below is
	// deep.
	gcShallow = 8
	gcLong    = 2   // long values of a column that the scan reads at or below the safe point: few, as they are long
	gcPage    = 256 // versions that a mutation removes from a deep column, or from a row
	gcDeep    = 16  // deep columns that are read together
	// mostUnread bounds the rows that cannot be read which are in memory.
	mostUnread = 1024
	gcKept     = 4 // pages of a deep column that are in memory while it is read, if they have long values
)

// collection removes what is garbage in one table.
//
// Versions of a column are always removed oldest first; each mutation removes all of
// them up to some timestamp. Reads depend on that order: see checkFound.
type collection struct {
	db     *DB
	view   *catalogView // names the observers of old values
	table  string
	safe   Timestamp
	page   int // gcPage, or less where the store takes less
	report *GCReport

	picks []rowstore.Selector // what it reads of a row

	muts   []rowstore.Mutation
	counts []int
	edits  int

	later []string // rows that are to be hinted anew

	damage *damage
	unread map[string]bool // rows that cannot be read, or not be changed
	failed error           // there is something that cannot be read, and is no row that can be hinted

	rows []rowstore.Row // rows that wait until their deep columns are done
	deep []deepColumn
	seen map[string]map[string][]seenVersion // of deep columns, by row and column
}

// deepColumn has more versions than a scan shows.
type deepColumn struct {
	row, column string
	to          Timestamp // the newest of those that the scan did not show
	acks        []acknowledgment
}

// collection makes the collection of a table.
func (p *gcPass) collection(table string, safe Timestamp) *collection {
	all := func(f rowstore.Family, from, to Timestamp, limit int) rowstore.Selector {
		return rowstore.Selector{Family: f, Column: rowstore.AllColumns, From: from, To: to, Limit: limit}
	}
	c := &collection{db: p.db, view: p.view, table: table, safe: safe, page: gcPage, report: p.report, damage: p.damage()}
	c.picks = []rowstore.Selector{
		all(rowstore.Lock, 0, oracle.Max, 1),
		all(rowstore.Write, safe+1, oracle.Max, gcShallow), all(rowstore.Write, 0, safe, gcShallow),
		all(rowstore.Data, 0, safe-1, gcLong),
		all(rowstore.Mark, 0, safe-1, 1), all(rowstore.Notify, 0, oracle.Max, 1),
	}
	if l, ok := rowstore.Unwrap[rowstore.Limiter](p.db.store); ok {
		// A version may take two edits, and its column a few more.
		if n := l.Limits().Operations; n > 0 {
			c.page = max(1, min(c.page, n/2-8))
		}
	}
	return c
}

// removeVersions removes what is garbage in a table.
func (p *gcPass) removeVersions(ctx context.Context, table string, safe Timestamp) error {
	c := p.collection(table, safe)
	for row, err := range p.db.scanPast(ctx, rowstore.ScanRange{Table: table, Selectors: c.picks}, func(u unreadable) error { return c.passAt(ctx, u) }) {
		if err == nil {
			err = c.look(ctx, &row)
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(c.end(ctx), c.failed)
}

// pass leaves a row as it is that cannot be read. It is hinted anew: so it is looked at again, and may count as looked at.
func (c *collection) pass(ctx context.Context, row string, failed error) error {
	if c.unread[row] {
		return nil
	}
	if err := c.damage.pass(ctx, c.table, row, failed); err != nil {
		return err
	}
	if c.unread == nil {
		c.unread = map[string]bool{}
	}
	c.unread[row] = true
	c.later = append(c.later, row)
	if len(c.later) >= hintsAtOnce {
		return c.hintAnew(ctx)
	}
	return nil
}

// passAt is pass for what a scan could not read. What has no name cannot be hinted, so the table does not count as looked at.
func (c *collection) passAt(ctx context.Context, u unreadable) error {
	if row, ok := u.row(); ok {
		return c.pass(ctx, row, u.err)
	}
	c.failed = u.err
	return c.damage.passAt(ctx, c.table, u)
}

// look removes what is garbage in a row, now or later.
func (c *collection) look(ctx context.Context, row *rowstore.Row) error {
	if len(c.unread) >= mostUnread { // they matter to rows that wait, and then no more
		if err := c.removeDeep(ctx); err != nil {
			return err
		}
		clear(c.unread)
	}
	c.report.Read++
	c.db.count.gcRead.Add(1)
	deep, err := c.findDeep(row)
	if err != nil {
		return c.pass(ctx, row.Row, err)
	}
	if !deep {
		return c.row(ctx, row)
	}
	if c.rows = append(c.rows, *row); len(c.deep) >= gcDeep {
		return c.removeDeep(ctx)
	}
	return nil
}

// end finishes the rows that were looked at.
func (c *collection) end(ctx context.Context) error {
	if err := c.removeDeep(ctx); err != nil {
		return err
	}
	if err := c.flush(ctx); err != nil {
		return err
	}
	return c.hintAnew(ctx)
}

// hintAnew hints the rows that wait for a later collection. A row that waits now has waited for its whole
// retention, so another one is soon enough.
func (c *collection) hintAnew(ctx context.Context) error {
	if len(c.later) == 0 || c.db.opt.noHints || !c.db.known().Hinted {
		c.later = nil
		return nil
	}
	v, err := c.db.loadCatalog(ctx)
	if err != nil {
		return err
	}
	// A row that was looked at before it was erased is not named again. What has been written to it since is hinted by who wrote it.
	c.later = slices.DeleteFunc(c.later, func(row string) bool { return v.erasedIn(Cell{Table: c.table, Row: row}.span()) > c.view.asOf })
	slices.Sort(c.later)
	h := &c.db.hints
	h.mu.Lock()
	muts := h.put(nil, v.hintSpanOf(c.table, v.asOf), slices.Compact(c.later))
	h.mu.Unlock()
	c.later = nil
	return c.db.putHints(ctx, muts)
}

// findDeep notes the deep columns of a row.
func (c *collection) findDeep(row *rowstore.Row) (found bool, err error) {
	n, before := 0, len(c.deep)
	for i := range row.Versions {
		v := &row.Versions[i]
		if i == 0 || v.Family != row.Versions[i-1].Family || v.Column != row.Versions[i-1].Column {
			n = 0
		}
		if v.Family != rowstore.Write || v.TS > c.safe {
			continue
		}
		if n++; n == gcShallow && v.TS > 1 {
			acks, err := c.view.acknowledgments(row, c.table, v.Column)
			if err != nil {
				c.deep = c.deep[:before]
				return false, fmt.Errorf("column %q: %w", v.Column, err)
			}
			c.deep = append(c.deep, deepColumn{row.Row, v.Column, v.TS - 1, acks})
			found = true
		}
	}
	return found, nil
}

// removeDeep removes those versions of deep columns that the scan did not show, and
// then the garbage in their rows that it did show.
func (c *collection) removeDeep(ctx context.Context) error {
	for deep := range slices.Chunk(c.deep, gcDeep) {
		reads := make([]rowstore.RowRead, len(deep))
		for i, d := range deep {
			reads[i] = c.readDeep(d, d.to)
		}
		rows, err := c.db.readEach(ctx, reads)
		if err != nil {
			return err
		}
		for i := range rows {
			if err = rows[i].Err; err != nil {
				err = c.pass(ctx, deep[i].row, err)
			} else {
				err = c.removePages(ctx, deep[i], rows[i].Versions)
			}
			if err != nil {
				return err
			}
		}
	}
	// The older versions must be gone before the newer ones are removed.
	if err := c.flush(ctx); err != nil {
		return err
	}
	for i := range c.rows {
		if c.unread[c.rows[i].Row] {
			continue // older versions may be there
		}
		if err := c.row(ctx, &c.rows[i]); err != nil {
			return err
		}
	}
	clear(c.rows)
	c.rows, c.deep, c.seen = c.rows[:0], c.deep[:0], nil
	return nil
}

func (c *collection) readDeep(d deepColumn, to Timestamp) rowstore.RowRead {
	return rowstore.RowRead{Table: c.table, Row: d.row, Selectors: []rowstore.Selector{
		{Family: rowstore.Write, Column: d.column, To: to, Limit: c.page},
	}}
}

// removePages removes a column's versions page by page. Pages are read newest first and
// removed oldest first. Of a long history only the oldest pages are kept in memory meanwhile; of the others it is known where they
// begin, and they are read again.
func (c *collection) removePages(ctx context.Context, d deepColumn, newest []rowstore.Version) error {
	var pages []deepPage
	kept, edits := 0, 0 // the first page that is kept, and the edits of all these
	for versions, above := newest, d.to+1; len(versions) > 0; {
		pages = append(pages, c.pageOf(d, versions, above))
		edits += len(pages[len(pages)-1].edits)
		for ; edits > gcKept*c.page && kept < len(pages)-1; kept++ {
			edits -= len(pages[kept].edits)
			pages[kept] = deepPage{above: pages[kept].above}
		}
		if above = versions[len(versions)-1].TS; len(versions) < c.page || above <= 1 {
			break
		}
		var err error
		if versions, err = c.readPage(ctx, d, above); err != nil {
			return c.pass(ctx, d.row, err)
		}
	}
	var seen []seenVersion
	for i, p := range slices.Backward(pages) {
		// One page in each call, because the order counts.
		if len(pages) > 1 {
			if err := c.flush(ctx); err != nil {
				return err
			}
		}
		if i < kept {
			versions, err := c.readPage(ctx, d, p.above)
			if err != nil {
				return c.pass(ctx, d.row, err)
			}
			if len(versions) == 0 {
				continue // another collection was quicker
			}
			p = c.pageOf(d, versions, p.above)
		}
		// Each page removes what is left of the older ones. So it also keeps what they keep: it may
		// be unknown what has become of them.
		seen = append(seen, p.seen...)
		if err := p.keep(seen, true); err != nil {
			return c.pass(ctx, d.row, fmt.Errorf("column %q: %w", d.column, err))
		}
		if err := c.add(ctx, d.row, p.removal); err != nil {
			return err
		}
	}
	if len(seen) > 0 {
		if c.seen == nil {
			c.seen = map[string]map[string][]seenVersion{}
		}
		if c.seen[d.row] == nil {
			c.seen[d.row] = map[string][]seenVersion{}
		}
		c.seen[d.row][d.column] = seen
	}
	return nil
}

// readPage reads the newest versions of a deep column below a timestamp.
func (c *collection) readPage(ctx context.Context, d deepColumn, above Timestamp) ([]rowstore.Version, error) {
	rows, err := c.db.readRows(ctx, []rowstore.RowRead{c.readDeep(d, above-1)})
	if err != nil {
		return nil, err
	}
	return rows[0].Versions, nil
}

// deepPage is some versions of a deep column that follow each other.
type deepPage struct {
	above Timestamp // of the next newer version, or more if there is none
	removal
	seen []seenVersion
}

// removal is the content of a mutation that removes versions, and how many it removes.
type removal struct {
	conditions []rowstore.Condition
	edits      []rowstore.Edit
	versions   int
}

// pageOf makes the removal of a deep column's versions up to the newest of those given.
// By the time it is applied, the given versions must be the only ones left up to there. The long
// values of those that observers saw last stay.
func (c *collection) pageOf(d deepColumn, versions []rowstore.Version, above Timestamp) deepPage {
	p := deepPage{above: above, seen: lastSeen(d.acks, d.column, above, versions)}
	p.versions = len(versions)
	p.edits = append(p.edits, rowstore.DeleteRange(rowstore.Write, d.column, 0, versions[0].TS))
	for i := range versions {
		if !keeps(p.seen, &versions[i]) {
			p.dataOf(d.column, &versions[i])
		}
	}
	return p
}

// dataOf adds the long value of a version that is removed.
func (r *removal) dataOf(column string, v *rowstore.Version) {
	if w, err := format.DecodeWrite(v.Value); err == nil && w.Long {
		r.edits = append(r.edits, rowstore.Delete(rowstore.Data, column, w.Start))
		r.versions++
	}
}

// row removes what the scan showed to be garbage in a row, in mutations of one or
// several columns.
func (c *collection) row(ctx context.Context, row *rowstore.Row) error {
	g := &gcRow{row: row, table: c.table, safe: c.safe, view: c.view, deep: c.seen[row.Row]}
	var columns []string
	for i := range row.Versions {
		c := row.Versions[i].Column
		if i > 0 && c == row.Versions[i-1].Column {
			continue
		}
		if _, of, ok := format.SplitSeenColumn(c); ok {
			if g.keptIn == nil {
				g.keptIn = map[string][]string{}
			}
			g.keptIn[of] = append(g.keptIn[of], c)
			c = of
		}
		columns = append(columns, c)
	}
	slices.Sort(columns)
	columns = slices.Compact(columns)
	// The columns that observers keep come last, since they may be removed together with
	// the column that they are for.
	slices.SortStableFunc(columns, func(a, b string) int { return cmp.Compare(btoi(format.Reserved(a)), btoi(format.Reserved(b))) })
	for _, column := range columns {
		if err := g.column(column); err != nil {
			return c.pass(ctx, row.Row, fmt.Errorf("column %q: %w", column, err))
		}
		if len(g.m.edits)+len(g.m.conditions) >= c.page {
			if err := c.add(ctx, row.Row, g.m); err != nil {
				return err
			}
			g.m = removal{}
		}
	}
	if g.later {
		c.later = append(c.later, row.Row)
	}
	return c.add(ctx, row.Row, g.m)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// add puts a removal into the next call.
func (c *collection) add(ctx context.Context, row string, r removal) error {
	if len(r.edits) == 0 || c.unread[row] {
		return nil
	}
	if slices.ContainsFunc(c.muts, func(m rowstore.Mutation) bool { return m.Row == row }) {
		if err := c.flush(ctx); err != nil { // a batch names a row once
			return err
		}
		if c.unread[row] { // since then
			return nil
		}
	}
	c.muts = append(c.muts, rowstore.Mutation{Table: c.table, Row: row, Conditions: r.conditions, Edits: r.edits})
	c.counts = append(c.counts, r.versions)
	if c.edits += len(r.edits); len(c.muts) == gcRows || c.edits >= 4*c.page {
		return c.flush(ctx)
	}
	return nil
}

// flush sends the next call.
func (c *collection) flush(ctx context.Context) error {
	if len(c.muts) == 0 {
		return nil
	}
	outs, err := c.db.store.Apply(ctx, c.muts, rowstore.ApplyOptions{})
	if err != nil && !errors.Is(err, rowstore.ErrAmbiguous) {
		return err
	}
	if len(outs) == 0 { // nobody knows what was removed
		c.report.missed += len(c.muts)
		for i := range c.muts {
			c.later = append(c.later, c.muts[i].Row)
		}
	}
	for i := range outs {
		// A row that changed meanwhile waits for the next collection.
		if outs[i].Err != nil && !errors.Is(outs[i].Err, rowstore.ErrAmbiguous) {
			if err := c.pass(ctx, c.muts[i].Row, outs[i].Err); err != nil {
				return err
			}
			continue
		}
		if outs[i].Applied {
			c.report.Rows++
			c.report.Versions += c.counts[i]
		} else {
			c.report.missed++
			c.later = append(c.later, c.muts[i].Row)
		}
	}
	c.muts, c.counts, c.edits = nil, c.counts[:0], 0
	if len(c.later) >= hintsAtOnce {
		return c.hintAnew(ctx)
	}
	return nil
}

// removeLeases removes sessions, and leases of sweeps, that ended before the safe point.
func (db *DB) removeLeases(ctx context.Context, table string, safe Timestamp, report *GCReport) error {
	if safe == 0 {
		return nil
	}
	picks := []rowstore.Selector{{Family: rowstore.Write, Column: rowstore.AllColumns, To: safe - 1}}
	d := damage{db: db, report: report}
	// All of these rows are looked at each time, so what cannot be read needs no hint.
	left := func(u unreadable) error { return d.passAt(ctx, table, u) }
	for row, err := range db.scanPast(ctx, rowstore.ScanRange{Table: table, Selectors: picks}, left) {
		if err != nil {
			return err
		}
		for part := range slices.Chunk(row.Versions, db.rowOperations()) {
			m := rowstore.Mutation{Table: table, Row: row.Row}
			for i := range part {
				m.Edits = append(m.Edits, rowstore.Delete(rowstore.Write, part[i].Column, part[i].TS))
			}
			if _, err := db.applyOne(ctx, m); err != nil && !errors.Is(err, rowstore.ErrAmbiguous) {
				return err
			}
		}
		report.Rows++
		report.Versions += len(row.Versions)
	}
	return nil
}
