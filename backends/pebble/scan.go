package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

const (
	// A page of a scan ends after so many rows, or bytes of values, or keys passed
	// over, whichever comes first, so that memory is bounded and the engine's files
	// are not pinned.
	pageRows  = 256
	pageBytes = 1 << 20
	pageSteps = 100_000
	// farSteps is the number of keys in one row that no pick wants, after which a seek is
	// cheaper than further steps.
	farSteps = 8
	// ctxSteps is how many keys of a row are read before it is asked whether the context has ended.
	ctxSteps = 256
)

// view opens an iterator that sees every write below any timestamp drawn before
// the call, and a commit (or nil) that is done when all that it sees is durable. also, if
// it is not nil, is called at a moment when nothing changes.
func (s *Store) view(also func()) (*engine.Iterator, *commit, error) {
	s.gate.Lock()
	defer s.gate.Unlock()
	if also != nil {
		also()
	}
	it, err := s.db.NewIter(nil)
	if err != nil || s.syncs == nil {
		return it, nil, err
	}
	return it, s.syncs.barrier(), nil
}

// Scan implements rowstore.Store. It works page by page: each page is read from one
// state of the store, and nothing is held while its rows are with the caller.
func (s *Store) Scan(ctx context.Context, sr rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return func(yield func(rowstore.Row, error) bool) {
		if err := rowstore.CheckScan(sr); err != nil {
			yield(rowstore.Row{}, err)
			return
		}
		p := newScan(s, sr)
		for left := sr.Limit; ; {
			rows, more, err := p.page(ctx, left)
			if err != nil {
				yield(rowstore.Row{}, scanError(sr.Table, err))
				return
			}
			for _, r := range rows {
				if !yield(r, nil) {
					return
				}
			}
			if !more {
				return
			}
			if sr.Limit > 0 {
				if left -= len(rows); left <= 0 {
					return
				}
			}
		}
	}
}

func scanError(table string, err error) error {
	if errors.Is(err, rowstore.ErrClosed) {
		return err
	}
	return fmt.Errorf("pebble: scan table %q: %w", table, err)
}

// scan is one Scan under way. Its bounds move past the rows that it has read.
type scan struct {
	s       *Store
	table   string
	reverse bool
	picks   []rowstore.Selector
	at      kit.Picks            // finds those of a column
	mine    []int                // those of the column that is looked at
	apart   []*rowstore.Selector // of the picks: those of Data and Notify
	// spaces are those of the keys that a pick can match.
	spaces []byte
	// columns are those that picks name, in order; nil if a pick of heads names all.
	columns      []string
	lower, upper []byte // prefixes of rows without their space and slot
	done         bool
	tableForm    []byte
	ahead        ahead       // used if a pick can match Notify
	slots        *slotCursor // of a scan of slots, which uses none of lower, upper and ahead
}

func newScan(s *Store, sr rowstore.ScanRange) *scan {
	p := &scan{s: s, table: sr.Table, reverse: sr.Reverse}
	all := false
	for _, k := range sr.Selectors {
		if k.From > k.To {
			continue
		}
		p.picks = append(p.picks, k)
		space := byte(spaceHead)
		switch {
		case k.Family == rowstore.Data:
			space = spaceData
		case k.Family == rowstore.Notify:
			space = spaceNotify
		case k.Column == rowstore.AllColumns:
			all = true
		default:
			p.columns = append(p.columns, k.Column)
		}
		if !slices.Contains(p.spaces, space) {
			p.spaces = append(p.spaces, space)
		}
	}
	p.at = kit.PicksOf(p.picks)
	for i := range p.picks {
		if k := &p.picks[i]; !headFamily(k.Family) {
			p.apart = append(p.apart, k)
		}
	}
	slices.Sort(p.columns)
	p.columns = slices.Compact(p.columns)
	if all {
		p.columns = nil
	}
	p.tableForm = kit.AppendName(nil, sr.Table)
	if len(sr.Slots) > 0 {
		p.slots, p.done = newSlotCursor(&sr), len(p.picks) == 0
		return p
	}
	p.lower = slices.Clone(p.tableForm)
	p.upper = after(slices.Clone(p.lower))
	if sr.From != "" {
		p.lower = kit.AppendName(p.lower, sr.From)
	}
	if sr.To != "" {
		p.upper = kit.AppendName(kit.AppendName(nil, sr.Table), sr.To)
	}
	p.done = len(p.picks) == 0 || bytes.Compare(p.lower, p.upper) >= 0
	return p
}
