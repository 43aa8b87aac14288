package testserver

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReportHoldsEachNoteOnce(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PERCOLATOR_TEST_REPORT", dir)
	ran.Lock()
	before := ran.lines
	ran.lines = nil
	ran.Unlock()
	t.Cleanup(func() {
		ran.Lock()
		defer ran.Unlock()
		ran.lines = before
	})
	require.NoError(t, writeReport())
	none, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, none, "nothing ran")

	Ran("zebra", "stripes")
	Ran("ant", "hill")
	Ran("zebra", "stripes")
	for range 2 { // a second run of the package replaces the notes of the first
		require.NoError(t, writeReport())
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		require.NoError(t, err)
		require.Len(t, files, 1)
		text, err := os.ReadFile(files[0])
		require.NoError(t, err)
		require.Equal(t, "ant: hill\nzebra: stripes\n", string(text))
	}
	t.Setenv("PERCOLATOR_TEST_REPORT", filepath.Join(dir, "gone"))
	require.ErrorContains(t, writeReport(), "note what ran")
}
