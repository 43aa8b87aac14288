package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/everystore"
)

// migrateByRoles migrates a schema whose owner is one role, and its programs another one.
func migrateByRoles(t *testing.T, owner, clerk string, sql func(text string)) {
	t.Helper()
	sql("UPDATE percolator.meta SET version = 7")
	for _, url := range []string{owner, clerk} {
		saidBy(t, url, exitFindings, "the store store has layout version 7: percolator migrate run brings it to version 10", "migrate", "check")
	}
	a := ask(t, clerk, "migrate", "run")
	require.Equal(t, exitDenied, a.status, a.out+a.err)
	require.Contains(t, a.err, "the role that owns the schema can migrate it")
	require.NotContains(t, a.out+a.err, "secret")
	saidBy(t, owner, exitOK, "the store store was brought from layout version 7 to version 10", "migrate", "run")
	saidBy(t, clerk, exitOK, "nothing is to be done", "migrate", "check")
	saidBy(t, clerk, exitOK, "nothing was to be done", "migrate", "run")
	sql("UPDATE percolator.meta SET version = 11")
	saidBy(t, clerk, exitFormat, "use a newer program", "migrate")
	sql("UPDATE percolator.meta SET version = 10")

	made := everystore.With(owner, "schema=made")
	saidBy(t, made, exitNoStore, "there is no store", "migrate", "run")
	saidBy(t, made, exitOK, "a database was made, with a catalog of version 5", "migrate", "run", "--make")
	saidBy(t, made, exitOK, "nothing was to be done", "migrate", "run", "--make")
}

// TestMigrate shows the versions of a database that this version has made, over each backend.
func TestMigrate(t *testing.T) {
	t.Parallel()
	everystore.URLs(t, func(t *testing.T, url string) {
		saidBy(t, url, exitNoStore, "there is no store", "migrate")
		saidBy(t, url, exitOK, "a database was made", "migrate", "run", "--make")
		saidBy(t, url, exitOK, "the catalog has version 5; new databases begin with version 5", "migrate")
		saidBy(t, url, exitOK, "nothing is to be done", "migrate", "check")
		a := ask(t, url, "migrate", "status", "--json")
		require.Equal(t, exitOK, a.status, a.err)
		var l levels
		require.NoError(t, json.Unmarshal([]byte(a.out), &l))
		require.Len(t, l.Layouts, 1)
		require.Contains(t, url, l.Layouts[0].Backend)
		require.Positive(t, l.Layouts[0].Stored)
		require.Equal(t, l.Layouts[0].Stored, l.Layouts[0].Known)
		require.Equal(t, l.Layouts[0].Stored, l.Catalog.Layout)
		require.Empty(t, l.ToDo)
	})
}

// TestMigrateOfSeveralStores shows the layout of each, and names each that is missing.
func TestMigrateOfSeveralStores(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "percolator.yaml")
	require.NoError(t, os.WriteFile(file, []byte(strings.NewReplacer("DIR", t.TempDir()).Replace(`
stores:
  books: {url: "pebble:DIR/books"}
  shelves: {url: "pebble:DIR/shelves"}
tables: {shelf: shelves}
default: books
authoritative: books
`)), 0o600))
	asks := func(args ...string) (status int, text string) {
		var out, errs strings.Builder
		status = run(t.Context(), append([]string{"--config", file}, args...), strings.NewReader(""), &out, &errs, nil)
		return status, out.String() + errs.String()
	}
	for _, args := range [][]string{{"migrate"}, {"migrate", "check"}, {"migrate", "run"}} {
		status, text := asks(args...)
		require.Equal(t, exitNoStore, status, text)
		require.Contains(t, text, "books")
		require.Contains(t, text, "shelves")
	}
	status, text := asks("migrate", "run", "--make")
	require.Equal(t, exitOK, status, text)
	for _, words := range []string{"the store books was made", "the store shelves was made", "a database was made"} {
		require.Contains(t, text, words)
	}
	for _, c := range []struct {
		words string
		args  []string
	}{
		{"books    pebble   2       2", []string{"migrate"}},
		{"shelves  pebble   2       2", []string{"migrate"}},
		{"nothing was to be done", []string{"migrate", "run"}},
	} {
		status, text := asks(c.args...)
		require.Equal(t, exitOK, status, text)
		require.Contains(t, text, c.words)
	}
}
