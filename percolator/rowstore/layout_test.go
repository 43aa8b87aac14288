package rowstore_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	rs "github.com/percolate-go/percolate/percolator/rowstore"
)

func TestLayoutError(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		stored int
		newer  bool
		words  string
	}{
		{1, false, "the store has format version 1, and this program migrates it to version 2 only if"},
		{3, true, "the store has format version 3, and this program knows versions up to 2: use a newer program"},
	} {
		err := fmt.Errorf("opening: %w", &rs.LayoutError{Store: "the store", Stored: c.stored, Known: 2})
		require.ErrorIs(t, err, rs.ErrFormat)
		require.NotErrorIs(t, err, rs.ErrCorrupt)
		require.ErrorContains(t, err, c.words)
		var layout *rs.LayoutError
		require.True(t, errors.As(err, &layout))
		require.Equal(t, c.newer, layout.Newer())
	}
}
