package tikvraw_test

import (
	"context"
	"errors"
	"log"

	"github.com/pingcap/kvproto/pkg/kvrpcpb"
	"github.com/tikv/client-go/v2/txnkv"

	"github.com/percolate-go/percolate/backends/tikvraw"
	"github.com/percolate-go/percolate/percolator"
)

// A program that uses TiKV's own transactions too shares its client of PD with the store. Such a
// cluster needs API version 2.
func ExampleNew() {
	ctx := context.Background()
	client, err := txnkv.NewClient([]string{"pd.example:2379"}, txnkv.WithAPIVersion(kvrpcpb.APIVersion_V2), txnkv.WithKeyspace("shop"))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = client.Close() }() // last: the store leaves it open

	store, err := tikvraw.New(ctx, client.GetPDClient(), tikvraw.Options{Prefix: "orders", API: tikvraw.V2, Keyspace: "shop"})
	if err != nil {
		log.Fatal(err)
	}
	db, err := percolator.New(ctx, store)
	if err != nil {
		log.Fatal(errors.Join(err, store.Close()))
	}
	defer func() { _ = db.Close(ctx) }()
}

// Everything by options, with connections of the store's own.
func ExampleOpen() {
	ctx := context.Background()
	store, err := tikvraw.Open(ctx, tikvraw.Options{PDAddrs: []string{"pd1.example:2379", "pd2.example:2379"}, Prefix: "orders"})
	if err != nil {
		log.Fatal(err)
	}
	db, err := percolator.New(ctx, store)
	if err != nil {
		log.Fatal(errors.Join(err, store.Close()))
	}
	defer func() { _ = db.Close(ctx) }()
}
