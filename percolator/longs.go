package percolator

import (
	"context"
	"hash/maphash"
	"sync/atomic"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Long values lie in Data, and what is stored beside them does not tell how long they are: some hundred bytes, or 16 MiB each. So how
// many of them a call asks for goes by what this process has seen in their table. Values of usual sizes come many at a time.

const (
	readLongs = 64 // that a call asks for at most
	// firstLongs is how many it asks for in a table of which nothing is known.
	firstLongs = 8
	// longBytes is what the values of a call should have together. One that is longer comes alone.
	longBytes = 4 << 20
)

// longSizes knows of each table about how long its longest values are. Tables may share an entry: then some calls have
// fewer values than they could.
type longSizes struct {
	seed   maphash.Seed
	tables [256]atomic.Int64 // 0 for nothing known
}

func (s *longSizes) of(table string) *atomic.Int64 {
	return &s.tables[maphash.String(s.seed, table)%uint64(len(s.tables))]
}

// together is how many of the first of some values should come together, at least one.
func (s *longSizes) together(wanted []longValue) int {
	most := min(readLongs, len(wanted))
	for i := 0; i < most; i++ {
		if table := wanted[i].cell.Table; i == 0 || table != wanted[i-1].cell.Table {
			few := firstLongs
			if size := s.of(table).Load(); size > 0 {
				few = int(max(1, longBytes/size))
			}
			most = max(1, min(most, few), min(most, i))
		}
	}
	return most
}

// saw notes the values of a call. A long one counts for a while only, so that it holds up no table of short ones for good.
func (s *longSizes) saw(page []longValue, values [][]byte) {
	for i := range page {
		size := s.of(page[i].cell.Table)
		known := size.Load()
		if i == 0 || page[i].cell.Table != page[i-1].cell.Table {
			known /= 2
		}
		size.Store(max(known, int64(len(values[i])), 1)) // what somebody else notes at the same time may be lost
	}
}

// longValue names a value that is in Data.
type longValue struct {
	cell  Cell
	start Timestamp
}

// longValues fetches values from Data, nil for one that is not there. The caller checks
// its snapshot afterwards, before it concludes anything from a missing value.
func (db *DB) longValues(ctx context.Context, wanted []longValue) ([][]byte, error) {
	values := make([][]byte, 0, len(wanted))
	for len(values) < len(wanted) {
		some, err := db.someLongValues(ctx, wanted[len(values):])
		if err != nil {
			return nil, err
		}
		values = append(values, some...)
	}
	return values, nil
}

// someLongValues is longValues for the first few, in one call.
func (db *DB) someLongValues(ctx context.Context, wanted []longValue) ([][]byte, error) {
	page := wanted[:db.longs.together(wanted)]
	reads := make([]rowstore.RowRead, len(page))
	for i, l := range page {
		reads[i] = rowstore.RowRead{Table: l.cell.Table, Row: l.cell.Row, Selectors: []rowstore.Selector{
			{Family: rowstore.Data, Column: l.cell.Column, From: l.start, To: l.start},
		}}
	}
	rows, err := db.readRows(ctx, reads)
	if err != nil {
		return nil, err
	}
	values := make([][]byte, len(page))
	for i, l := range page {
		if v := rows[i].Newest(rowstore.Data, l.cell.Column); v != nil {
			values[i] = notNil(v.Value)
		}
	}
	db.longs.saw(page, values)
	return values, nil
}
