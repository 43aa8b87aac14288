package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLookingMakesNoStore, whatever the URL says.
func TestLookingMakesNoStore(t *testing.T) {
	t.Parallel()
	for _, query := range []string{"?asis=false", "?sync=false&asis=false", "?%61sis=false"} {
		dir := filepath.Join(t.TempDir(), "new")
		for _, args := range [][]string{{"tables"}, {"set", "a", "b", "c", "d", "--new"}} {
			a := ask(t, "pebble:"+dir+query, args...)
			require.NotEqual(t, exitOK, a.status)
			require.NoDirExists(t, dir, "%s %v: %s", query, args, a.err)
		}
	}
	url := someLinks(t)
	require.Equal(t, exitOK, ask(t, url+"?asis=false", "tables").status)
}
