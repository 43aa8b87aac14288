package backup

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// TestImportWithinLimits imports more cells, and more bytes, than a transaction takes, by the limits of the database and of the store. Only a line that fits into no
// transaction is refused, by its number.
func TestImportWithinLimits(t *testing.T) {
	t.Parallel()
	var in strings.Builder
	for i := range 1000 {
		_, _ = fmt.Fprintf(&in, `{"table":"t","row":"%04d","column":"c","value":"%s"}`+"\n", i, strings.Repeat("v", 40))
	}
	for name, c := range map[string]struct {
		limits percolator.Limits
		store  rowstore.Limits
	}{
		"cells":               {limits: percolator.Limits{Cells: 100}},
		"bytes":               {limits: percolator.Limits{Bytes: 2000}},
		"operations of store": {store: rowstore.Limits{Operations: 64}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, err := percolator.New(t.Context(), memstore.New(memstore.WithLimits(c.store)), percolator.WithLimits(c.limits))
			require.NoError(t, err)
			atend.Do(t, func() { _ = db.Close(t.Context()) })
			line, err := Import(t.Context(), db, strings.NewReader(in.String()), ImportOptions{})
			require.NoError(t, err)
			require.EqualValues(t, 1000, line)
			require.Len(t, everyValue(t, db), 1000)
		})
	}
	t.Run("a line", func(t *testing.T) {
		t.Parallel()
		db, err := percolator.New(t.Context(), memstore.New(), percolator.WithLimits(percolator.Limits{Cells: 100, Bytes: 2000, Value: 5000}))
		require.NoError(t, err)
		atend.Do(t, func() { _ = db.Close(t.Context()) })
		lines := strings.SplitAfter(in.String(), "\n")[:50]
		lines[30] = strings.Replace(lines[30], `:"v`, `:"`+strings.Repeat("v", 3000), 1)
		line, err := Import(t.Context(), db, strings.NewReader(strings.Join(lines, "")), ImportOptions{})
		require.ErrorIs(t, err, percolator.ErrTooLarge)
		require.ErrorContains(t, err, "line 31")
		require.LessOrEqual(t, line, int64(30))
		require.Len(t, everyValue(t, db), int(line), "what is told is what is written")
	})
}
