// Package snippets holds pieces of documents, so that they are compiled. Nothing runs
// them: what they do runs in the tests of the packages that the documents describe.
package snippets

import (
	"context"
	"log"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	pd "github.com/tikv/pd/client"

	"github.com/percolate-go/percolate/backends/postgres"
	"github.com/percolate-go/percolate/backends/tikvraw"
	"github.com/percolate-go/percolate/conformance"
	"github.com/percolate-go/percolate/keys"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// Pieces of documents that are compiled here, and mostly not run.

// backends/postgres/README.md
func _(ctx context.Context) {
	db, err := percolator.Open(ctx, "postgres://app:secret@db.example:5432/shop?schema=percolator")
	log.Print(db, err)
}

// backends/postgres/README.md
func _(ctx context.Context, pool *pgxpool.Pool) error {
	store, err := postgres.New(ctx, pool, postgres.Options{Schema: "percolator"})
	if err != nil {
		return err
	}
	db, err := percolator.New(ctx, store)
	log.Print(db)
	return err
}

// backends/tikvraw/README.md
func _(ctx context.Context, pdClient pd.Client) error {
	store, err := tikvraw.New(ctx, pdClient, tikvraw.Options{Prefix: "orders"})
	if err != nil {
		return err
	}
	db, err := percolator.New(ctx, store)
	log.Print(db)
	return err
}

// docs/backends.md
func _(ctx context.Context) {
	db, err := percolator.Open(ctx, "pebble:/var/lib/shop")
	log.Print(db, err)
}

// docs/backends.md
func _(ctx context.Context, db *percolator.DB) error {
	if r, ok := rowstore.Unwrap[rowstore.Reporter](db.Store()); ok {
		report, err := r.Report(ctx) // Backend, Version, Features, Warnings
		if err != nil {
			return err
		}
		log.Print(report.Warnings)
	}
	return nil
}

func openEmpty(testing.TB) rowstore.Store { return memstore.New() }

// TestConformance is in conformance/README.md and docs/backends.md. It is no test here,
// since this is no file of tests.
func TestConformance(t *testing.T) {
	conformance.Run(t, func(t testing.TB) rowstore.Store { return openEmpty(t) })
}

type dummy struct{}

func (dummy) Open(context.Context, string) (rowstore.Store, error) { return nil, nil }

func newNameSpace(testing.TB) string { return "" }

// conformance/README.md
func hooksOfAStore(t *testing.T) {
	var mydb dummy
	conformance.Run(t, openEmpty, conformance.WithHooks(func(t testing.TB) conformance.Hooked {
		proxy, err := conformance.NewProxy("127.0.0.1:6379") // between the store and its server
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, proxy.Close()) })
		url := "mydb://" + proxy.Addr() + "/" + newNameSpace(t)
		store, err := mydb.Open(t.Context(), url)
		require.NoError(t, err)
		return conformance.Hooked{
			Store:  store,
			Reopen: func(ctx context.Context) (rowstore.Store, error) { return mydb.Open(ctx, url) },
			Break:  proxy.Break,
		}
	}))
}

// docs/scaling.md
func spreadRow(customer string, at time.Time) (string, error) {
	spread, err := keys.NewSpread(256)
	if err != nil {
		return "", err
	}
	row := string(spread.Key(keys.Key("").Text(customer)).Time(at))
	return row, nil
}
