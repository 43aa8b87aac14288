package index

import (
	"testing"
	"time"

	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/percolator"
)

func TestMain(m *testing.M) { everystore.Main(m) }

// settings have a short lease of the catalog, which a process that does nothing makes others wait for.
var settings = percolator.WithSettings(percolator.Settings{CatalogLease: time.Second})
