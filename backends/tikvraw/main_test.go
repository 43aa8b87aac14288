package tikvraw

import (
	"testing"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/internal/tikvtest"
)

func TestMain(m *testing.M) { testserver.Main(m, tikvtest.Leaks()...) }
