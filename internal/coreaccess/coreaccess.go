// Package coreaccess lets package backup reach what package percolator does not export: rows by stored names, at a
// snapshot. Looking at the store alone is not enough for it, because locks may be in the way.
package coreaccess

import (
	"context"
	"iter"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Stored are calls of a database, a *percolator.DB. Package percolator fills them when it is initialized. They take an
// any because percolator imports this package. They may be called concurrently.
var Stored struct {
	// Store is the store of a database, whose calls wait for a server that is away.
	Store func(db any) rowstore.Store
	// Settle reads those rows again, by the same selectors, in which a put or delete lock stands at or below a
	// snapshot, until none does. The selectors must show locks. It resolves the locks of the dead, and waits for the living.
	Settle func(ctx context.Context, db any, rows []rowstore.Row, picks []rowstore.Selector, at oracle.Timestamp) error
	// Notified scans the rows of a table that have notifications, in some order. The selectors are of these alone.
	Notified func(ctx context.Context, db any, table string, picks []rowstore.Selector) iter.Seq2[rowstore.Row, error]
}
