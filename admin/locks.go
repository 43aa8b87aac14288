package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Lock is a lock that stands on a cell.
type Lock struct {
	Cell
	// Beside says what the lock is on, where that is nothing of the user's: "timer", or an observer's
	// acknowledgment or failure record.
	Beside string `json:"beside,omitempty"`
	Kind   string `json:"kind"` // "put", "delete", "lock only" (GetForUpdate)
	Txn    Txn    `json:"txn"`
}

// Locks is a sample of the locks of a range.
type Locks struct {
	Locks []Lock `json:"locks"`
	// Looked is how many rows were looked at. More tells that these are not all rows of the range: the next sample begins
	// at Next.
	Looked int   `json:"looked"`
	More   bool  `json:"more,omitempty"`
	Next   Bytes `json:"next,omitzero"`
}

// Locks looks for locks in a range: rng.Table, From and To count. It stops at rng.Limit locks (100 for 0), after rows rows (10,000
// for 0), or after two seconds, whichever comes first: no store finds locks but by reading rows. Transactions
// that hold locks are looked at one after the other, a round trip for each.
func (r *Reader) Locks(ctx context.Context, rng percolator.Range, rows int) (Locks, error) {
	l, err := r.locks(ctx, rng, rows)
	if err != nil {
		return Locks{}, called("Locks", fmt.Errorf("looking for locks in %q: %w", rng.Table, err))
	}
	return l, nil
}

func (r *Reader) locks(ctx context.Context, rng percolator.Range, rows int) (found Locks, err error) {
	limit, err := limitedIn(rng.Table, "locks", rng.Limit)
	if err == nil {
		rows, err = limited("rows", rows, 10_000)
	}
	if err != nil {
		return found, err
	}
	c, err := r.load(ctx)
	if err != nil {
		return found, err
	}
	// The newest writes too: they make the scan stop at each row, so that it is bounded.
	found.Locks = []Lock{}
	scan := rowstore.ScanRange{Table: format.Escape(rng.Table), From: rng.From, To: rng.To, Limit: rows, Selectors: []rowstore.Selector{
		newest(rowstore.Lock, rowstore.AllColumns, atMost), newest(rowstore.Write, rowstore.AllColumns, atMost),
	}}
	began, last := time.Now(), ""
	known := map[percolator.Timestamp]Txn{}
	for row, err := range r.store.Scan(ctx, scan) {
		if err != nil {
			return found, err
		}
		if len(found.Locks) >= limit || found.Looked > 0 && found.Looked&63 == 0 && time.Since(began) > pageTime {
			found.More = true
			break
		}
		found.Looked, last = found.Looked+1, row.Row
		for i := range row.Versions {
			v := &row.Versions[i]
			if v.Family != rowstore.Lock {
				continue
			}
			lock, err := r.lock(ctx, &row, v, known, c)
			if err != nil {
				return found, fmt.Errorf("row %q: %w", row.Row, err)
			}
			found.Locks = append(found.Locks, lock)
		}
	}
	if found.More = found.More || found.Looked == rows; found.More {
		found.Next = Bytes(last + "\x00")
	}
	return found, nil
}

// lock describes a Lock version. known has transactions that were looked at already.
func (r *Reader) lock(ctx context.Context, row *rowstore.Row, v *rowstore.Version, known map[percolator.Timestamp]Txn, cat *catalog) (Lock, error) {
	decoded, err := format.DecodeLock(v.Value)
	if err != nil {
		return Lock{}, err
	}
	t, ok := known[v.TS]
	if !ok {
		if t, err = r.txn(ctx, v.TS, format.Cell{}, &decoded, cat.now); err != nil {
			return Lock{}, err
		}
		t.Lines = t.words(cat.now)
		known[v.TS] = t
	}
	user, beside := cat.column(row.Table, v.Column)
	return Lock{Cell: publicCell(format.Cell{Table: row.Table, Row: row.Row, Column: user}), Beside: beside, Kind: decoded.Kind.String(), Txn: t}, nil
}
