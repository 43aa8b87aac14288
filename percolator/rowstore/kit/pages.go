package kit

import (
	"context"
	"iter"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Pages makes a Scan of a function that reads one page: the next rows, and what is left of
// the scan, nil if that is nothing. A page may have no rows and a rest. Between pages
// nothing is held, so the caller may stop at any row and may call the store from within
// the loop.
//
// page checks the context and the arguments (rowstore.CheckScan), and completes its errors
// with the names of the backend and the call: Pages hands them on as they are.
func Pages(ctx context.Context, s rowstore.ScanRange, page func(ctx context.Context, s rowstore.ScanRange) (rows []rowstore.Row, rest *rowstore.ScanRange, err error)) iter.Seq2[rowstore.Row, error] {
	return func(yield func(rowstore.Row, error) bool) {
		for rest := &s; rest != nil; {
			rows, next, err := page(ctx, *rest)
			if err != nil {
				yield(rowstore.Row{}, err)
				return
			}
			for i := range rows {
				if !yield(rows[i], nil) {
					return
				}
			}
			rest = next
		}
	}
}
