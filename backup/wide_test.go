package backup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/percolator"
)

// TestWideRow has a row that is too long for one block. It is refused by its name before the backup is complete, and one that just fits is not: nor are rows
// that do not fit into one block together.
func TestWideRow(t *testing.T) {
	t.Parallel()
	db, err := percolator.Open(t.Context(), "memory:")
	require.NoError(t, err)
	atend.Do(t, func() { _ = db.Close(t.Context()) })
	path := filepath.Join(t.TempDir(), "backup")
	set := func(row string, bytes int) {
		require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error {
			return tx.Set(at("orders", row, "c"), []byte(strings.Repeat("s", bytes)))
		}))
	}
	opts := Options{mostBlock: 4000}
	set("b", 2500)
	set("c", 2500)
	_, err = Write(t.Context(), db, path, opts)
	require.NoError(t, err)
	_, err = Verify(t.Context(), path, nil)
	require.NoError(t, err)

	set("ann", 5000)
	path += "2"
	_, err = Write(t.Context(), db, path, opts)
	require.ErrorIs(t, err, percolator.ErrTooLarge)
	require.ErrorContains(t, err, `row "ann" of table "orders"`)
	require.NotContains(t, err.Error(), "sss", "a value")
	require.NoFileExists(t, path)
	// No call goes on at that snapshot, so nothing holds its history, and the next call says so, also when the row is smaller.
	holds, err := db.Holds(t.Context())
	require.NoError(t, err)
	require.Empty(t, holds)
	set("ann", 5)
	_, err = Write(t.Context(), db, path, opts)
	require.ErrorIs(t, err, ErrLapsed)
	require.NoError(t, os.Remove(path+Incomplete))
	_, err = Write(t.Context(), db, path, opts)
	require.NoError(t, err)
}
