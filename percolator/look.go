package percolator

import (
	"context"
	"fmt"
	"sort"
	"time"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

const (
	// lookPage is how many notified rows are found before their functions start.
	lookPage = 256
	// leaseFrom is how many notifications make a scan lease worth its cost: with
	// fewer, two workers that meet waste a few runs, which conflict.
	leaseFrom = 16
	// lookParts is into how many parts a table is cut for random beginnings.
	lookParts = 64
	// boundsAge is how long these parts are kept.
	boundsAge = time.Minute
	// lookJumps bounds how often one look jumps away from other scanners.
	lookJumps = 8
)

// bounds are row keys at which a look may begin.
type bounds struct {
	keys  []string
	since time.Time
	busy  bool // the last look filled a page: a random beginning pays
}

// look goes once round a table and starts a run for each notification that it
// finds. It begins at a random place where there is much to find, so that many
// workers spread over the table, and jumps to another place when it meets another
// scanner: on its own, each would catch up with the one in front and they would
// run in a clump, as buses do (section 2.4 of the paper).
func (w *Worker) look(ctx, runCtx context.Context, table string) (found int, err error) {
	w.db.count.notifyScans.Add(1)
	b := w.bounds(ctx, table)
	begin := ""
	if b.busy && len(b.keys) > 0 {
		begin = b.keys[w.db.rand.int64N(int64(len(b.keys)))]
	}
	l := &looker{w: w, table: table, keys: b.keys, jumps: lookJumps}
	err = l.part(ctx, runCtx, begin, "")
	if err == nil && begin != "" {
		err = l.part(ctx, runCtx, "", begin)
	}
	if err != nil {
		return l.found, err
	}
	w.mu.Lock()
	b.busy = l.found >= lookPage
	if len(b.keys) == 0 {
		b.keys = l.met
	}
	w.boundsOf[table] = b
	w.mu.Unlock()
	w.db.count.notifyFound.Add(uint64(l.found)) //nolint:gosec // a count
	return l.found, nil
}

// bounds returns the table's parts, asking the store from time to time.
func (w *Worker) bounds(ctx context.Context, table string) bounds {
	w.mu.Lock()
	b := w.boundsOf[table]
	w.mu.Unlock()
	now := w.db.clock.Now()
	if !b.busy || (!b.since.IsZero() && now.Sub(b.since) < boundsAge) {
		return b
	}
	b.since = now
	b.keys = nil // without a Splitter: keys that this look meets
	if s, ok := rowstore.Unwrap[rowstore.Splitter](w.db.store); ok {
		keys, err := s.Split(ctx, table, lookParts)
		if err != nil {
			w.db.log.Debug("the table could not be split", "table", table, "err", err)
		} else {
			b.keys = keys
		}
	}
	return b
}

// looker is one look under way.
type looker struct {
	w     *Worker
	table string
	keys  []string
	jumps int
	found int
	met   []string // row keys at page boundaries
}

// part looks at the rows in [from, to), page by page.
func (l *looker) part(ctx, runCtx context.Context, from, to string) error {
	for {
		page, last, err := l.page(ctx, from, to)
		if err != nil {
			return err
		}
		if len(page) >= leaseFrom {
			other, err := l.lease(ctx, page[0].Row, page[len(page)-1].Row)
			if err != nil {
				return err
			}
			if other != nil {
				// Another scanner is at it: this page is its own.
				if next, ok := l.jump(other.to, to); ok {
					from = next
					continue
				}
				// Nowhere to jump to; its lease ends soon.
				for _, c := range page {
					l.w.leaveScanned(c, l.w.config.ScanLease)
				}
				page = nil
			}
		}
		l.found += len(page)
		for _, c := range page {
			if err := l.w.start(ctx, runCtx, c); err != nil {
				return err
			}
		}
		if last == "" {
			return nil
		}
		if len(l.met) < lookParts {
			l.met = append(l.met, last)
		}
		from = last + "\x00"
	}
}

// page finds notified cells that nobody here deals with yet. last is the row to go
// on after, "" at the end of the part.
func (l *looker) page(ctx context.Context, from, to string) (page []Cell, last string, err error) {
	n := 0
	for row, err := range l.w.db.store.Scan(ctx, rowstore.ScanRange{Table: l.table, From: from, To: to, Picks: l.w.notifyPicks(l.table), Limit: lookPage}) {
		if err != nil {
			return nil, "", fmt.Errorf("scanning the notifications of table %q: %w", l.table, err)
		}
		n++
		last = row.Row
		for _, column := range notifiedColumns(&row) {
			page = append(page, Cell{l.table, row.Row, column})
		}
	}
	if n < lookPage {
		last = ""
	}
	return page, last, nil
}

// jump returns a random place to go on at, within what is left of the part.
func (l *looker) jump(after, to string) (string, bool) {
	if l.jumps == 0 {
		return "", false
	}
	l.jumps--
	ahead := l.keys[sort.SearchStrings(l.keys, after):]
	if to != "" {
		ahead = ahead[:sort.SearchStrings(ahead, to)]
	}
	if len(ahead) == 0 {
		if next := after + "\x00"; to == "" || next < to {
			return next, true
		}
		return "", false
	}
	return ahead[l.w.db.rand.int64N(int64(len(ahead)))], true
}

// leaveScanned leaves a cell to another worker for a while.
func (w *Worker) leaveScanned(c Cell, d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running[c] == nil {
		w.waiting[c] = waitingTask{until: w.db.clock.Now().Add(d)}
	}
}

// A scan lease says that a worker is busy with a range of a table: the column is
// the worker's, the timestamp of the version is the lease's end, and the value is
// the range. It is light: nothing is locked, and two that take one at once both
// have it. Correctness never depends on it.
type scanLease struct{ from, to string }

func (s scanLease) encode() []byte {
	return appendString(appendString([]byte{formatVersion}, s.from), s.to)
}

func decodeScanLease(b []byte) (s scanLease, err error) {
	if len(b) < 1 || b[0] != formatVersion {
		return s, fmt.Errorf("%w: scan lease %x", ErrCorrupt, b)
	}
	rest := b[1:]
	if s.from, rest, err = takeString(rest); err == nil {
		s.to, rest, err = takeString(rest)
	}
	if err != nil || len(rest) > 0 {
		return s, fmt.Errorf("%w: scan lease %x", ErrCorrupt, b)
	}
	return s, nil
}

// lease takes the range of rows from first to last, both included, or returns the
// lease of another worker that has a part of it.
func (l *looker) lease(ctx context.Context, first, last string) (other *scanLease, err error) {
	db := l.w.db
	now, err := db.draw(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := db.readRows(ctx, []rowstore.RowRead{{Table: tableScanLeases, Row: l.table, Picks: []rowstore.Pick{
		{Family: rowstore.Write, Column: rowstore.AllColumns, From: now, To: oracle.Max, Limit: 1},
	}}})
	if err != nil {
		return nil, fmt.Errorf("reading scan leases: %w", err)
	}
	for i := range rows[0].Versions {
		v := &rows[0].Versions[i]
		if v.Column == l.w.id {
			continue
		}
		s, err := decodeScanLease(v.Value)
		if err != nil {
			return nil, err
		}
		if s.from <= last && first <= s.to {
			return &s, nil
		}
	}
	until := now.Add(l.w.config.ScanLease)
	_, err = db.applyOne(ctx, rowstore.Mutation{Table: tableScanLeases, Row: l.table, Edits: []rowstore.Edit{
		rowstore.Put(rowstore.Write, l.w.id, until, scanLease{first, last}.encode()),
		rowstore.DeleteRange(rowstore.Write, l.w.id, 0, until-1),
	}})
	if err != nil {
		return nil, fmt.Errorf("taking a scan lease: %w", err)
	}
	l.w.mu.Lock()
	l.w.leased[l.table] = struct{}{}
	l.w.mu.Unlock()
	return nil, nil
}

// releaseLeases gives up what a worker that stops holds.
func (w *Worker) releaseLeases() {
	ctx, cancel := context.WithTimeout(w.db.ctx, w.db.backgroundTimeout())
	defer cancel()
	var muts []rowstore.Mutation
	for table := range w.leased {
		muts = append(muts, rowstore.Mutation{Table: tableScanLeases, Row: table, Edits: []rowstore.Edit{
			rowstore.DeleteRange(rowstore.Write, w.id, 0, oracle.Max),
		}})
	}
	if len(muts) == 0 {
		return
	}
	if _, err := w.db.store.Apply(ctx, muts, rowstore.ApplyOptions{}); err != nil {
		w.db.log.Debug("scan leases were left to end by themselves", "err", err)
	}
}
