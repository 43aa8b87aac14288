package measure

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	_ "github.com/percolate-go/percolate/backends/pebble"
	"github.com/percolate-go/percolate/percolator"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestBatchMakesTheSameIndex compares the tables of the batch job with those of the
// observers, cell by cell.
func TestBatchMakesTheSameIndex(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	m, err := Open(ctx, "memory:", Web{Seed: 1})
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	require.NoError(t, m.Add(ctx, 60))
	require.NoError(t, m.Add(ctx, 5))
	n, err := m.Batch(ctx)
	require.NoError(t, err)

	table := func(name string) map[string]string {
		cells := map[string]string{}
		require.NoError(t, m.db.View(ctx, func(tx *percolator.Txn) error {
			for row, err := range tx.Scan(ctx, percolator.Range{Table: name}) {
				if err != nil {
					return err
				}
				for column, value := range row.Columns {
					if column != "done" && column != "told" { // which only the observers need
						cells[strings.ReplaceAll(row.Key, "\x00", " ")+" "+column] = string(value)
					}
				}
			}
			return nil
		}))
		return cells
	}
	cells := 0
	for _, name := range []string{"doc", "link", "dup", "cluster", "term", "stat"} {
		want := table(name)
		require.NotEmpty(t, want, name)
		require.Equal(t, want, table(batchPrefix+name), name)
		cells += len(want)
	}
	require.Equal(t, cells, n)
}
