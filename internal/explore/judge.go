package explore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// version is one committed value.
type version struct {
	at    percolator.Timestamp
	value string // "" for a delete
	by    string // the transaction: by the value, or for a delete by the start timestamp
}

// arriveAtLast lets what is under way for nobody come, as far as it has not: now or never.
func (w *world) arriveAtLast() {
	for more := true; more; {
		more = false
		for _, r := range w.requests {
			if r.client != nil {
				continue
			}
			for i := range r.parts {
				w.mu.Lock()
				p := &r.parts[i]
				ready := p.ready(w.now)
				w.mu.Unlock()
				if ready {
					p.do()
					p.done, more = true, true
				}
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.requests {
		r.abandon()
	}
	w.requests = nil
}

// judge looks at the store and the records when all clients have ended.
func (w *world) judge() error {
	// Calls seemed slow if the time moved meanwhile, and such leases last up to 24 times
	// as long.
	w.advance(max(w.program.Stall, 24*sessionLease+lockExpiry+time.Second))
	w.arriveAtLast()
	w.through = true
	audit := w.client("audit", 99, w.program.Options)
	if len(w.program.Observed) > 0 && !w.program.Alone {
		w.through = false
		w.clients = []*Client{audit}
		var err error
		audit.start(func(ctx context.Context, c *Client) {
			var observers []percolator.Observer
			for _, o := range w.program.observers() {
				for _, name := range w.program.names(o.Column) {
					observers = append(observers, c.Observer(name, o.Table, o.Column, nil))
				}
			}
			if err = c.Sleep(ctx, w.program.Settle); err == nil {
				err = c.Work(ctx, observers...)
			}
		})
		if serr := w.schedule(func([]choice) (int, error) { return 0, nil }); serr != nil {
			audit.die()
			synctest.Wait()
			return fmt.Errorf("the last worker: %w", serr)
		}
		synctest.Wait()
		if err != nil {
			return fmt.Errorf("the last worker: %w", err)
		}
		w.through = true
		audit = w.client("audit", 99, w.program.Options)
	}
	defer audit.close()
	versions, err := w.versions(audit)
	if err != nil {
		return err
	}
	if err := newestAreThere(audit, versions); err != nil {
		return err
	}
	if err := w.history.check(versions); err != nil {
		return err
	}
	if err := w.history.checkAnswers(); err != nil {
		return err
	}
	if err := w.checkObserved(versions); err != nil {
		return err
	}
	if err := w.checkProgress(); err != nil {
		return err
	}
	if err := errors.Join(w.history.allComplaints()...); err != nil {
		return err
	}
	if w.program.Check != nil {
		return w.program.Check(audit.ctx, audit)
	}
	return nil
}

// allComplaints lists what clients and observers have seen that may not be.
func (h *history) allComplaints() []error {
	all := h.complaints
	for _, c := range h.ifCommitted {
		if _, landed := h.fates[c.start]; landed {
			all = append(all, c.err)
		}
	}
	return all
}

// observers names the observed columns.
func (p *Program) observers() []percolator.Cell {
	columns := map[percolator.Cell]struct{}{}
	for _, c := range p.Observed {
		columns[percolator.Cell{Table: c.Table, Column: c.Column}] = struct{}{}
	}
	return slices.SortedFunc(maps.Keys(columns), func(a, b percolator.Cell) int {
		return strings.Compare(a.Table+" "+a.Column, b.Table+" "+b.Column)
	})
}

// names are those of the observers of a column.
func (p *Program) names(column string) []string {
	if p.Observers != nil {
		return p.Observers
	}
	return []string{ObserverName(column)}
}

// versions returns every version of every cell that was committed, oldest first,
// and makes sure that reading everything has left no lock.
func (w *world) versions(audit *Client) (map[percolator.Cell][]version, error) {
	ctx := audit.ctx
	all := map[percolator.Cell][]version{}
	for table, err := range w.raw.Tables(ctx) {
		if err != nil {
			return nil, err
		}
		if format.Reserved(table) {
			continue
		}
		err := audit.DB.View(ctx, func(tx *percolator.Txn) error {
			for _, err := range tx.Scan(ctx, percolator.Range{Table: table}) {
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("the last reader: %w", err)
		}
		picks := []rowstore.Selector{
			{Family: rowstore.Lock, Column: rowstore.AllColumns, To: oracle.Max},
			{Family: rowstore.Write, Column: rowstore.AllColumns, To: oracle.Max},
		}
		for row, err := range w.raw.Scan(ctx, rowstore.ScanRange{Table: table, Selectors: picks}) {
			if err != nil {
				return nil, err
			}
			for i := range row.Versions {
				v := &row.Versions[i]
				cell := percolator.Cell{Table: table, Row: row.Row, Column: v.Column}
				switch {
				case format.Reserved(v.Column):
				case v.Family == rowstore.Lock:
					l, err := format.DecodeLock(v.Value)
					if err != nil {
						return nil, fmt.Errorf("%v: %w", cell, err)
					}
					if l.Kind == format.KindLock {
						continue // readers pass over what only locks
					}
					return nil, fmt.Errorf("a lock of transaction %d is left on %v", uint64(v.TS), cell)
				case !w.program.Collects:
					value, err := readAt(audit, cell, v.TS)
					if err != nil {
						return nil, err
					}
					by := value
					if wv := decodeWrite(v.Value); wv.Kind == format.KindDelete {
						by = w.history.idOf(wv.Start)
					}
					all[cell] = append(all[cell], version{v.TS, value, by})
				}
			}
		}
	}
	for _, vs := range all {
		slices.Reverse(vs)
	}
	if w.program.Collects {
		w.history.addWritten(all)
	}
	return all, nil
}

// addWritten adds the versions that the clients wrote, of which the store may have
// collected some.
func (h *history) addWritten(all map[percolator.Cell][]version) {
	for cell, vs := range h.written {
		slices.SortFunc(vs, func(a, b writtenVersion) int { return cmp.Compare(a.at, b.at) })
		for _, v := range vs {
			if v.by == "" {
				v.by = h.idOf(v.start)
			}
			if v.deleted {
				all[cell] = append(all[cell], version{at: v.at, by: v.by})
			} else {
				all[cell] = append(all[cell], version{v.at, v.by, v.by})
			}
		}
	}
}

// idOf names the transaction that has the start timestamp.
func (h *history) idOf(start percolator.Timestamp) string {
	for _, r := range h.records {
		if r.start == start {
			return r.id
		}
	}
	return ""
}

func readAt(audit *Client, cell percolator.Cell, at percolator.Timestamp) (string, error) {
	tx, err := audit.DB.Begin(audit.ctx, percolator.WithAsOfTimestamp(at))
	if err != nil {
		return "", err
	}
	value, err := tx.Get(audit.ctx, cell)
	if err != nil && !errors.Is(err, percolator.ErrNotFound) {
		return "", fmt.Errorf("reading %v as of %d: %w", cell, uint64(at), err)
	}
	return strings.TrimRight(string(value), " "), nil
}

// newestAreThere makes sure that whoever reads now finds the newest versions.
func newestAreThere(audit *Client, versions map[percolator.Cell][]version) error {
	now, err := audit.DB.Now(audit.ctx)
	if err != nil {
		return err
	}
	for cell, vs := range versions {
		value, err := readAt(audit, cell, now)
		if err != nil {
			return err
		}
		if want := vs[len(vs)-1].value; value != want {
			return fmt.Errorf("in the end %v is %q, and its newest version is %q", cell, value, want)
		}
	}
	return nil
}

// check judges the transactions by their timestamps: snapshot isolation is a sort
// and a sweep.
func (h *history) check(versions map[percolator.Cell][]version) error {
	effective := map[*record]percolator.Timestamp{}
	for _, r := range h.records {
		// Where did its writes go?
		at, landed := percolator.Timestamp(0), 0
		for cell, vs := range versions {
			for _, v := range vs {
				if v.by != r.id {
					continue
				}
				if landed++; at != 0 && at != v.at {
					return fmt.Errorf("transaction %s is committed at %d and at %d", r.id, uint64(at), uint64(v.at))
				}
				if at = v.at; !slices.Contains(r.writes, cell) && !slices.Contains(r.erased, cell) {
					return fmt.Errorf("transaction %s wrote %v, which it did not", r.id, cell)
				}
			}
		}
		distinct := slices.CompactFunc(slices.SortedFunc(slices.Values(slices.Concat(r.writes, r.erased)), compareCells), func(a, b percolator.Cell) bool { return a == b })
		switch {
		case landed != 0 && landed != len(distinct):
			return fmt.Errorf("transaction %s is torn: %d of its %d writes are there", r.id, landed, len(distinct))
		case r.outcome == aborted && landed > 0:
			return fmt.Errorf("transaction %s was reported as not committed, and its writes are there", r.id)
		case r.outcome == committed && landed == 0 && len(distinct) > 0:
			return fmt.Errorf("transaction %s was reported as committed, and its writes are not there", r.id)
		case r.outcome == committed && landed > 0 && at != r.commit:
			return fmt.Errorf("transaction %s was reported as committed at %d and is at %d", r.id, uint64(r.commit), uint64(at))
		}
		for cell, value := range r.reads {
			if want := newest(versions[cell], r.start); strings.TrimRight(value, " ") != want {
				return fmt.Errorf("transaction %s, at %d, read %q of %v, and the newest version is %q", r.id, uint64(r.start), value, cell, want)
			}
		}
		if len(r.changed) > 0 {
			return fmt.Errorf("transaction %s read %v twice, and found two values", r.id, r.changed)
		}
		for _, before := range h.records {
			if before.ended != 0 && before.ended < r.began && before.commit >= r.start && r.start != 0 {
				return fmt.Errorf("transaction %s is at %d, and began after %s was committed at %d", r.id, uint64(r.start), before.id, uint64(before.commit))
			}
		}
		kept := slices.Concat(r.writes, r.erased, r.locked)
		if r.serializable {
			kept = slices.AppendSeq(kept, maps.Keys(r.reads))
		}
		if r.outcome == committed && len(r.hinted) > 0 {
			// What a transaction that notifies rests on was there when it committed.
			for _, before := range h.records {
				for _, cell := range slices.Concat(before.writes, before.erased) {
					if before.ended != 0 && before.ended < r.decided && before.commit > r.start && slices.Contains(kept, cell) {
						return fmt.Errorf("transaction %s, at %d, was committed after %s had written %v at %d", r.id, uint64(r.start), before.id, cell, uint64(before.commit))
					}
				}
			}
		}
		if landed == 0 {
			continue
		}
		effective[r] = at
		for _, cell := range kept {
			for _, v := range versions[cell] {
				if v.at > r.start && v.at < at {
					return fmt.Errorf("transaction %s lasted from %d to %d, and meanwhile %s wrote %v at %d", r.id, uint64(r.start), uint64(at), v.value, cell, uint64(v.at))
				}
			}
		}
	}
	return h.checkDropped(effective)
}

func compareCells(a, b percolator.Cell) int {
	return strings.Compare(a.Table+"\x00"+a.Row+"\x00"+a.Column, b.Table+"\x00"+b.Row+"\x00"+b.Column)
}

func newest(vs []version, at percolator.Timestamp) string {
	value := ""
	for _, v := range vs {
		if v.at <= at {
			value = v.value
		}
	}
	return value
}

// checkAnswers compares what DB.Outcome said with what became of the transactions.
func (h *history) checkAnswers() error {
	for _, a := range h.answers {
		at, landed := h.fates[a.start]
		switch {
		case a.got.Status == percolator.OutcomeCommitted && (!landed || at != a.got.Commit):
			return fmt.Errorf("the outcome of transaction %d, by %v, was said to be committed at %d, and it is at %d", uint64(a.start), a.cell, uint64(a.got.Commit), uint64(at))
		case a.got.Status == percolator.OutcomeRolledBack && landed:
			return fmt.Errorf("the outcome of transaction %d, by %v, was said to be rolled back, and it is committed at %d", uint64(a.start), a.cell, uint64(at))
		}
	}
	return nil
}

// checkProgress makes sure that every client got something done.
func (w *world) checkProgress() error {
	if !w.program.Progress {
		return nil
	}
	done, all := map[string]bool{}, map[string]bool{}
	for _, r := range w.history.records {
		client, _, _ := strings.Cut(r.id, ".")
		all[client] = true
		done[client] = done[client] || r.outcome == committed
	}
	for _, client := range slices.Sorted(maps.Keys(all)) {
		if !done[client] {
			return fmt.Errorf("%s got nothing committed", client)
		}
	}
	return nil
}

// checkObserved makes sure that every change was seen by a committed run of each
// observer, and by one at most.
func (w *world) checkObserved(versions map[percolator.Cell][]version) error {
	for _, cell := range w.program.Observed {
		for _, name := range w.program.names(cell.Column) {
			runs := w.runsOf(name, cell, versions)
			if err := w.history.checkRuns(name, cell, versions[cell], runs, w.program.Weak || w.program.Removes); err != nil {
				return err
			}
		}
	}
	return w.checkQuiets(versions)
}

// committedRun is an observer's run that took effect.
type committedRun struct {
	start, commit percolator.Timestamp
	rec           *record
}

// runsOf lists the committed runs of an observer for a cell, by what they have written.
func (w *world) runsOf(name string, cell percolator.Cell, versions map[percolator.Cell][]version) []committedRun {
	var all []committedRun
	for _, run := range w.history.runs {
		if run.cell != cell || run.name != name {
			continue
		}
		for _, v := range versions[run.mark] {
			if v.value == run.rec.id {
				all = append(all, committedRun{run.rec.start, v.at, run.rec})
			}
		}
	}
	slices.SortFunc(all, func(a, b committedRun) int { return cmp.Compare(a.start, b.start) })
	return all
}

// checkRuns judges one observer of one cell in the end.
func (h *history) checkRuns(name string, cell percolator.Cell, changes []version, runs []committedRun, weak bool) error {
	from := percolator.Timestamp(0)
	for i, r := range runs {
		n := 0
		for _, v := range changes {
			if v.at > from && v.at <= r.start {
				n++
			}
		}
		if n == 0 && !weak && !h.timerOf(cell, from, r) {
			return fmt.Errorf("run %d of %d of %q for %v, at %d, was committed and had nothing to see", i+1, len(runs), name, cell, uint64(r.start))
		}
		from = r.start
	}
	for _, r := range h.records {
		if r.outcome == committed && r.commit > from && slices.Contains(r.hinted, cell) {
			return fmt.Errorf("the weak notification of %v by %s at %d led to no committed run of %q", cell, r.id, uint64(r.commit), name)
		}
	}
	if err := h.checkLastTimer(name, cell, from); err != nil {
		return err
	}
	for _, v := range changes {
		if v.at > from {
			return fmt.Errorf("the change of %v at %d was seen by no committed run of %q", cell, uint64(v.at), name)
		}
	}
	return nil
}
