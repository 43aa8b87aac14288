package rowstore_test

import (
	"context"
	"fmt"
	"log"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// A backend registers its URL schemes in init, and programs open stores by URL.
func ExampleOpen() {
	rowstore.Register(func(_ context.Context, url string) (rowstore.Store, error) {
		fmt.Println("opening", url)
		return memstore.New(), nil
	}, "example")

	ctx := context.Background()
	store, err := rowstore.Open(ctx, "example://host/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = store.Close() }()

	_, err = rowstore.Open(ctx, "exmaple://host/shop")
	fmt.Println(err != nil)
	// Output:
	// opening example://host/shop
	// true
}
