package coalesce_test

import (
	"fmt"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/coalesce"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// Concurrent calls share calls of the backend; a lone one goes straight to it.
func Example() {
	store := coalesce.New(memstore.New(), coalesce.Options{MaxBatch: 128})
	defer func() { _ = store.Close() }()
	// Abilities of the store are found through what is around it.
	_, groups := rowstore.Unwrap[rowstore.Grouper](store)
	fmt.Println(groups)
	// Output: true
}
