package postgres

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// maxSlotLook is how many lines a statement of a scan of slots looks at, at most. A row is looked at as a
// whole, so one with more notifications than that takes more.
const maxSlotLook = 2048

// lineSize is what a line adds to a page besides its value, in bytes, roughly, as schema.go has it.
const lineSize = 64

// scanSlots is Scan for the rows in some slots.
func (s *plainStore) scanSlots(ctx context.Context, r scanAsk, yield func(rowstore.Row, error) bool) {
	left, wider := r.Limit, 0
	look := slotAsk{r: r, hi: afterAll}
	size := firstPage
	if left > 0 {
		size = 2*min(left, maxSlotLook) + 8 // most rows have one line, and that of the last line is left to the next page
	}
	for ; ; size *= 2 {
		size = min(size, maxSlotLook)
		look.lines, look.bytes = size<<wider, pageBytes<<wider
		page, err := s.slotPage(ctx, look)
		if err != nil {
			yield(rowstore.Row{}, err)
			return
		}
		if !yieldRows(page.rows, &left, yield) || page.end {
			return
		}
		wider = look.next(page, wider)
	}
}

// slotAsk is what a call of scan_slots asks for.
type slotAsk struct {
	r            scanAsk // Slots, and From in the first one
	lo, hi       string  // of the rows, in whatever slot
	lines, bytes int
}

// next moves on to where a page ended. It returns how often the bounds of the next page are doubled, since one row
// filled this one.
func (a *slotAsk) next(page slotPage, wider int) int {
	if page.slot == int(a.r.Slots[0].First) && page.row == a.r.From {
		return wider + 1
	}
	for len(a.r.Slots) > 1 && int(a.r.Slots[0].Last) < page.slot {
		a.r.Slots = a.r.Slots[1:]
	}
	a.r.Slots[0].First, a.r.From = uint16(page.slot), page.row //nolint:gosec // one of the slots asked for
	return 0
}

// slotPage is a page of a scan of slots: whole rows, and where the next page begins.
type slotPage struct {
	rows []rowstore.Row
	end  bool // there is no next page
	slot int
	row  string
}

// errOrder says that the lines of an answer are not in the order that scan_slots promises.
var errOrder = errors.New("the server's answer is not in the order of the slots")

func (s *plainStore) slotPage(ctx context.Context, ask slotAsk) (slotPage, error) {
	ctx, done, err := s.gate.Begin(ctx, "scan")
	if err != nil {
		return slotPage{}, err
	}
	defer done()
	a := arrayPool.Get().(*arrays)
	defer arrayPool.Put(a)
	var p slotPage
	var disorder error
	begin := func() {
		p = slotPage{end: true}
		disorder = nil
	}
	err = s.run(ctx, s.q.slots, ask.params(a), false, begin, func(f *fields) {
		if err := p.line(ask.r.Table, f); err != nil {
			disorder = err
		}
	})
	if err = cmp.Or(err, disorder); err != nil {
		return slotPage{}, s.gate.Fail("scan", err)
	}
	*ask.r.settled = true
	if n := len(p.rows); !p.end && n > 0 && p.rows[n-1].Row == p.row {
		p.rows = p.rows[:n-1] // more of it may follow
	}
	for i := range p.rows {
		selectPicks(&p.rows[i], ask.r.Selectors)
	}
	return p, nil
}

// line reads a line of the answer of scan_slots.
func (p *slotPage) line(table string, f *fields) error {
	if !p.end {
		return nil // it comes after the last one
	}
	slot := f.int4(0)
	n := len(p.rows)
	same := n > 0 && p.slot == slot && p.row == string(f.values[1])
	if n > 0 && !same && (slot < p.slot || slot == p.slot && string(f.values[1]) < p.row) {
		return errOrder
	}
	if !same {
		p.slot, p.row = slot, string(f.values[1])
	}
	if f.values[3] != nil {
		if !same {
			p.rows = append(p.rows, rowstore.Row{Table: table, Row: p.row})
			n++
		}
		row := &p.rows[n-1]
		row.Versions = append(row.Versions, rowstore.Version{
			Family: rowstore.Notify, Column: string(f.values[2]), TS: rowstore.Timestamp(f.int8(3)), Value: f.bytes(4),
		})
	}
	p.end = len(f.values[5]) != 1 || f.values[5][0] == 0
	return nil
}

// params makes the parameters of scan_slots.
func (a *slotAsk) params(to *arrays) [][]byte {
	to.used = 0
	first, last := to.list(oidInt4), to.list(oidInt4)
	for _, r := range a.r.Slots {
		first.int4(int(r.First))
		last.int4(int(r.Last))
	}
	var pl pickLists
	pl.reset(to.a[to.used:])
	for i := range a.r.Selectors {
		pl.add(&a.r.Selectors[i])
	}
	to.params = append(to.params[:0], a.r.settle(), []byte(a.r.Table), first.param(), last.param(), notNull(a.r.From), notNull(a.lo), notNull(a.hi),
		int8Param(uint64(a.lines)), int8Param(uint64(a.bytes))) //nolint:gosec // above 0
	to.params = pl.params(to.params)
	return to.params
}

// The most keys of notified rows that a scan in the order of rows holds, and the most bytes of them.
const (
	mostKeys     = 1 << 16
	mostKeyBytes = 4 << 20
)

// notifiedScan is a scan in the order of rows that asks for notifications, which the server has in the order of
// slots. It walks through all notifications of the table, keeps the keys of those rows that come first, and
// reads these, with all that is asked for. Then it walks for the next ones.
type notifiedScan struct {
	s      *plainStore
	others []rowstore.Selector // those of other families

	keys   []notifiedKey // in the order of the scan
	bound  string        // the keys are all there are up to here
	walked bool
}

// notifiedKey is the key of a row, and how much its notifications add to a page.
type notifiedKey struct {
	key  string
	size int
}

func newNotifiedScan(s *plainStore, r scanAsk) *notifiedScan {
	others := slices.DeleteFunc(slices.Clone(r.Selectors), func(p rowstore.Selector) bool { return p.Family == rowstore.Notify })
	return &notifiedScan{s: s, others: others}
}

// page is a pageOf.
func (n *notifiedScan) page(ctx context.Context, r scanAsk, lo, hi string, size, look int) (scanned, error) {
	if !n.walked {
		if err := n.walk(ctx, r, lo, hi); err != nil {
			return scanned{}, err
		}
	}
	p := scanned{next: n.bound, look: look}
	var keys []string
	if len(n.others) > 0 {
		only := r
		only.Selectors = n.others
		from, to := lo, n.bound
		if r.Reverse {
			from, to = n.bound, hi
		}
		others, err := n.s.readPage(ctx, only, from, to, size, look, false)
		if err != nil {
			return scanned{}, err
		}
		if !others.end {
			p.next = others.next
		}
		for i := range others.rows {
			keys = append(keys, others.rows[i].Row)
		}
	}
	keys, p.next = n.take(keys, p.next, size, r.Reverse)
	if p.next == n.bound {
		n.walked = false
		p.end = !r.Reverse && n.bound == hi || r.Reverse && n.bound == lo
	}
	rows, err := n.s.readKeys(ctx, r, keys)
	if err != nil {
		return scanned{}, err
	}
	p.rows = rows
	return p, nil
}

// take takes the notified rows up to where a page ends, or as many as it has room for, and adds them to the keys of
// others. It returns where the page ends then.
func (n *notifiedScan) take(others []string, next string, size int, reverse bool) (keys []string, end string) {
	within := func(key string) bool { return reverse && key >= next || !reverse && key < next }
	taken, bytes := 0, 0
	for taken < len(n.keys) && within(n.keys[taken].key) {
		k := n.keys[taken]
		if bytes += k.size; taken > 0 && (taken == size || bytes > pageBytes) {
			next = n.keys[taken-1].key
			if !reverse {
				next += "\x00"
			}
			break
		}
		keys = append(keys, k.key)
		taken++
	}
	n.keys = n.keys[taken:]
	for _, key := range others {
		if within(key) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys), next
}

// readKeys reads rows, each from one view.
func (s *plainStore) readKeys(ctx context.Context, r scanAsk, keys []string) ([]rowstore.Row, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	ctx, done, err := s.gate.Begin(ctx, "scan")
	if err != nil {
		return nil, err
	}
	defer done()
	reads, rows, which := make([]rowstore.RowRead, len(keys)), make([]rowstore.Row, len(keys)), make([]int, len(keys))
	for i, key := range keys {
		reads[i] = rowstore.RowRead{Table: r.Table, Row: key, Selectors: r.Selectors}
		rows[i] = rowstore.Row{Table: r.Table, Row: key}
		which[i] = i
	}
	if _, err := s.readPicks(ctx, s.q.picks, reads, which, rows, nil, settleNot); err != nil {
		return nil, s.gate.Fail("scan", err)
	}
	rows = slices.DeleteFunc(rows, func(row rowstore.Row) bool { return len(row.Versions) == 0 })
	sortRows(rows, r.Reverse)
	return rows, nil
}

// walk finds the keys of those notified rows from lo up to hi that come first.
func (n *notifiedScan) walk(ctx context.Context, r scanAsk, lo, hi string) error {
	most := cmp.Or(n.s.mostKeys, mostKeys)
	if r.Limit > 0 {
		most = min(most, r.Limit)
	}
	reverse, wider := r.Reverse, 0
	r.Slots, r.From = []rowstore.SlotRange{{First: 0, Last: rowstore.Slots - 1}}, ""
	ask := slotAsk{r: r, lo: lo, hi: hi}
	n.keys, n.walked = nil, true
	bytes := 0
	for end := false; !end; {
		ask.lines, ask.bytes = firstLook<<wider, pageBytes<<wider
		page, err := n.s.slotPage(ctx, ask)
		if err != nil {
			return err
		}
		for i := range page.rows {
			k := notifiedKey{key: page.rows[i].Row}
			for j := range page.rows[i].Versions {
				k.size += lineSize + len(page.rows[i].Versions[j].Value)
			}
			bytes += len(k.key)
			n.keys = append(n.keys, k)
		}
		if end = page.end; !end {
			wider = ask.next(page, wider)
		}
		if end || len(n.keys) > 2*most || bytes > 2*mostKeyBytes {
			// What comes after those that are kept need not be found.
			bytes = n.keep(most, reverse, &ask)
		}
	}
	n.bound = ask.hi
	if reverse {
		n.bound = ask.lo
	}
	return nil
}

// keep sorts the keys and keeps those that come first. It returns the bytes of them.
func (n *notifiedScan) keep(most int, reverse bool, ask *slotAsk) int {
	slices.SortFunc(n.keys, func(a, b notifiedKey) int {
		if reverse {
			a, b = b, a
		}
		return cmp.Compare(a.key, b.key)
	})
	bytes := 0
	for i, k := range n.keys {
		if i > 0 && (i == most || bytes+len(k.key) > mostKeyBytes) {
			n.keys = n.keys[:i]
			if reverse {
				ask.lo = n.keys[i-1].key
			} else {
				ask.hi = n.keys[i-1].key + "\x00"
			}
			break
		}
		bytes += len(k.key)
	}
	return bytes
}
