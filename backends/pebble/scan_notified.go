package pebble

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/google/btree"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// The notify space is in the order of slots. A scan in the order of rows looks ahead: it
// walks over all notifications of the table, and keeps the names of the rows that come next.
// So it takes one such walk for each aheadRows notified rows, which mostly is one alone. What
// a row holds is read when the row's page is.

// aheadRows and aheadBytes bound the names that a scan keeps. It has up to twice as many in
// hand while it walks.
const (
	aheadRows  = 64 << 10
	aheadBytes = 4 << 20
)

// ahead is what a scan knows of the notified rows that come next.
type ahead struct {
	prefixes []string // of the next rows in the scan's order, as keys of notes have them
	all      bool     // no row is beyond them
}

// rowAt is where the form of the row's name begins in the key of a note.
func (p *scan) rowAt() int { return len(p.tableForm) + slotLen }

// lookAhead finds the next notified rows, if the scan knows none.
func (p *scan) lookAhead(ctx context.Context) error {
	if len(p.ahead.prefixes) > 0 || p.ahead.all {
		return nil
	}
	c := chooser{most: p.s.aheadRows, reverse: p.reverse, rowAt: p.rowAt(), lower: string(p.lower[len(p.tableForm):]), upper: string(p.upper[len(p.tableForm):])}
	// Where the scan ends with the table, p.upper is as long as the table's form.
	//
	// For the gate see view.
	p.s.gate.Lock()
	all := p.s.notes.clone()
	p.s.gate.Unlock()
	var err error
	if all != nil {
		c.chooseNotes(ctx, all, p.tableForm)
	} else {
		err = c.chooseKeys(ctx, p.s, p.tableForm)
	}
	p.ahead = c.result()
	return errors.Join(err, ctx.Err())
}

// chooser finds the rows that come first in an order among many, in bounded memory.
type chooser struct {
	most         int // rows that are kept
	reverse      bool
	rowAt        int
	lower, upper string // the forms of rows from one, included, to another; "" for no bound
	chosen       []string
	size         int
	cut          string // the last row that may be chosen; "" if nothing was left out
}

// add takes a row into account, by its prefix.
func (c *chooser) add(prefix string) {
	row := prefix[c.rowAt:]
	if row < c.lower || c.upper != "" && row >= c.upper {
		return
	}
	if c.cut != "" && row > c.cut != c.reverse {
		return // the cut itself was chosen, and comes once
	}
	c.chosen = append(c.chosen, prefix)
	if c.size += len(prefix); len(c.chosen) < 2*c.most && c.size < 2*aheadBytes {
		return
	}
	c.sort()
	c.size = 0
	for i, prefix := range c.chosen {
		if i > 0 && (i == c.most || c.size+len(prefix) > aheadBytes) {
			c.cut = c.chosen[i-1][c.rowAt:]
			clear(c.chosen[i:])
			c.chosen = c.chosen[:i]
			return
		}
		c.size += len(prefix)
	}
}

func (c *chooser) sort() {
	slices.SortFunc(c.chosen, func(a, b string) int {
		if c.reverse {
			a, b = b, a
		}
		return cmp.Compare(a[c.rowAt:], b[c.rowAt:])
	})
}

func (c *chooser) result() ahead {
	c.sort()
	return ahead{prefixes: c.chosen, all: c.cut == ""}
}

// chooseNotes chooses among the rows of a table in a copy that nobody changes.
func (c *chooser) chooseNotes(ctx context.Context, all *btree.BTreeG[note], table []byte) {
	last, looked := "", 0
	all.AscendRange(note{key: string(table)}, note{key: string(after(slices.Clone(table)))}, func(x note) bool {
		if last == "" || !strings.HasPrefix(x.key, last) {
			last = x.key[:nameEnd(x.key, c.rowAt)]
			c.add(last)
		}
		looked++
		return looked%1024 != 0 || ctx.Err() == nil
	})
}

// chooseKeys chooses among the rows of a table in the notify space.
func (c *chooser) chooseKeys(ctx context.Context, s *Store, table []byte) error {
	from := slices.Concat(bySlot, table)
	end := after(slices.Clone(from))
	for more := true; more && ctx.Err() == nil; {
		it, _, err := s.view(nil)
		if err != nil {
			return err
		}
		it.SetBounds(from, end)
		from, more, err = c.chooseSome(it, from)
		if err = errors.Join(err, it.Close()); err != nil {
			return err
		}
	}
	return nil
}

// chooseSome chooses among the next keys of an iterator, and returns where to go on.
func (c *chooser) chooseSome(it *engine.Iterator, from []byte) (next []byte, more bool, err error) {
	ok := it.First()
	for steps := 0; ok; {
		if steps >= pageSteps {
			return from, true, nil
		}
		prefix, err := rowPrefix(it.Key())
		if err != nil {
			return nil, false, err
		}
		c.add(string(prefix[len(bySlot):]))
		// from is the row, until the iterator is beyond it.
		from = append(from[:0], prefix...)
		idle := 0
		for ok && bytes.HasPrefix(it.Key(), from) && idle < farSteps {
			ok = it.Next()
			idle++
		}
		after(from)
		if ok && idle == farSteps {
			ok = it.SeekGE(from)
		}
		steps += idle
	}
	return nil, false, it.Error()
}

// notified is page for picks of Notify alone, in the order of rows.
func (p *scan) notified(ctx context.Context, limit int) (rows []rowstore.Row, more bool, err error) {
	if err := p.lookAhead(ctx); err != nil {
		return nil, false, err
	}
	next := p.ahead.prefixes[:min(len(p.ahead.prefixes), limit, pageLeaps)]
	if len(next) == 0 {
		p.done = true
		return nil, false, ctx.Err()
	}
	known := notePage{limit: limit}
	looked := 0
	ok, durable := p.s.copied(func() (ok bool) {
		looked, ok = p.s.notes.rows(next, &known)
		return ok
	})
	if ok {
		rows, err = p.notedRows(known.notes)
	} else {
		rows, looked, durable, err = p.readAhead(ctx, next)
	}
	if err == nil && durable != nil {
		err = durable.wait(ctx)
	}
	if err != nil {
		return nil, false, err
	}
	p.move(append(slices.Clone(p.tableForm), next[looked-1][p.rowAt():]...))
	p.passAhead(looked)
	return rows, !p.done, ctx.Err()
}

// passAhead drops the next rows.
func (p *scan) passAhead(n int) {
	p.ahead.prefixes = p.ahead.prefixes[n:]
	p.done = len(p.ahead.prefixes) == 0 && p.ahead.all
}

// readAhead reads the first of some rows from the engine, and returns how many it looked at.
func (p *scan) readAhead(ctx context.Context, prefixes []string) (rows []rowstore.Row, looked int, durable *commit, err error) {
	point, durable, err := p.s.view(nil)
	if err != nil {
		return nil, 0, nil, err
	}
	w := walk{p: p, r: &rowReader{s: p.s, it: point, keep: true}}
	for looked < len(prefixes) && w.size < pageBytes && err == nil {
		err = errors.Join(w.visit(slices.Concat(bySlot, []byte(prefixes[looked]))), ctx.Err())
		looked++
	}
	return w.rows, looked, durable, errors.Join(err, point.Close())
}

// copied runs a read of the copy of the notify space at a moment when the engine has all that
// the copy has. durable is done when the disk has it too. ok is what read returns.
func (s *Store) copied(read func() bool) (ok bool, durable *commit) {
	// For the gate see view: no group stands between its draw and its edit of the copy.
	s.gate.Lock()
	defer s.gate.Unlock()
	if ok = read(); ok && s.syncs != nil {
		durable = s.syncs.barrier()
	}
	return ok, durable
}

// notedRows is what the picks select from notifications, which are those of whole rows.
func (p *scan) notedRows(known []note) (rows []rowstore.Row, err error) {
	for len(known) > 0 {
		prefix := known[0].row()
		n := 1
		for n < len(known) && strings.HasPrefix(known[n].key, prefix) {
			n++
		}
		versions, err := p.notedVersions(len(prefix), known[:n])
		if err != nil {
			return nil, err
		}
		if len(versions) > 0 {
			name := prefix[p.rowAt() : len(prefix)-endLen]
			rows = append(rows, rowstore.Row{Table: p.table, Row: kit.NameOf([]byte(name)), Versions: versions})
		}
		known = known[n:]
	}
	return rows, nil
}

// notedVersions is what the picks select from the notifications of one row, whose keys have
// so long a prefix.
func (p *scan) notedVersions(prefix int, known []note) ([]rowstore.Version, error) {
	all := make(notesOfRow, len(known))
	for i := range known {
		column, ts, err := splitVersion([]byte(known[i].key), prefix)
		if err != nil {
			return nil, err
		}
		x := &all[i]
		x.ts, x.value = ts, known[i].value
		if i > 0 && sameName(column, all[i-1].column) {
			x.column = all[i-1].column
		} else {
			x.column = kit.NameOf(column)
		}
	}
	r := rowReader{}
	for i := range p.picks {
		r.out = all.pick(r.out, &p.picks[i])
	}
	return r.take(), nil
}
