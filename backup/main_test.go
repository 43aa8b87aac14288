package backup

import (
	"testing"

	"github.com/percolate-go/percolate/internal/everystore"
)

func TestMain(m *testing.M) { everystore.Main(m) }
