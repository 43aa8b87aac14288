package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// TestDropOfWhatHasChanged drops runs that are parked for a change before the newest one. They stay, and nobody is told that they went.
func TestDropOfWhatHasChanged(t *testing.T) {
	t.Parallel()
	url := parkedRuns(t, "no")
	require.Equal(t, exitOK, ask(t, url, "set", "page", "home", "body", "newer").status)
	a := ask(t, url, "parked", "drop", "one", "page", "home", "body")
	require.Equal(t, exitConflict, a.status, a.err)
	require.Empty(t, a.out)
	require.Contains(t, a.err, "has changed since")
	a = ask(t, url, "parked", "drop", "--all")
	require.Equal(t, exitOK, a.status, a.err)
	require.Contains(t, a.out, "0 parked runs were dropped; 2 are left")
	require.Equal(t, 3, strings.Count(ask(t, url, "parked").out, "\n"))
}

// TestNoValueYet asks for a cell that has no value, and that a transaction may give one.
func TestNoValueYet(t *testing.T) {
	t.Parallel()
	url := "pebble:" + filepath.Join(t.TempDir(), "data")
	db, err := percolator.Open(t.Context(), url)
	require.NoError(t, err)
	c := cell("t", "r", "c")
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error { return tx.Set(cell("t", "other", "c"), []byte("v")) }))
	start, err := db.Now(t.Context())
	require.NoError(t, err)
	lock := format.Lock{Kind: format.KindPut, Expiry: start.Add(time.Hour), Session: "away", Primary: format.Cell(c), Value: []byte("v")}
	out, err := db.Store().Apply(t.Context(), []rowstore.Mutation{{Table: c.Table, Row: c.Row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Lock, c.Column, start, lock.Encode())}}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.NoError(t, out[0].Err)
	require.NoError(t, db.Close(t.Context()))

	require.Equal(t, exitNotFound, ask(t, url, "get", "t", "r", "c").status)
	a := ask(t, url, "get", "t", "r", "c", "--json")
	require.Equal(t, exitNotFound, a.status)
	require.True(t, json.Valid([]byte(a.out)), a.out)
	require.Contains(t, a.out, "pending")
	require.Empty(t, a.err, "the answer says it")
	require.Equal(t, exitOK, ask(t, url, "get", "t", "other", "c", "--json").status)
}

// TestMistypedAmongManyTables has more tables than a list shows.
func TestMistypedAmongManyTables(t *testing.T) {
	t.Parallel()
	url := "pebble:" + filepath.Join(t.TempDir(), "data")
	db, err := percolator.Open(t.Context(), url)
	require.NoError(t, err)
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error {
		for i := range 1100 {
			if err := tx.Set(cell(fmt.Sprintf("order%04d", i), "17", "state"), []byte("new")); err != nil {
				return err
			}
		}
		return nil
	}))
	require.NoError(t, db.Close(t.Context()))
	a := ask(t, url, "set", "ordr1099", "17", "state", "x")
	require.Equal(t, exitNotFound, a.status, a.err)
	require.Contains(t, a.err, `did you mean "order1099"?`)
	require.Equal(t, exitOK, ask(t, url, "set", "order1099", "17", "state", "x").status)
}

// TestErrorsBesideAnAnswer exports to the standard output, where the answer is not JSON. An error is.
func TestErrorsBesideAnAnswer(t *testing.T) {
	t.Parallel()
	url := parkedRuns(t, "no")
	a := ask(t, url, "export", "-", "--json")
	require.Equal(t, exitOK, a.status, a.err)
	require.NotContains(t, a.out, `"cells"`)
	require.Contains(t, a.out, "home")
	require.Empty(t, a.err)
	a = ask(t, url, "export", "-", "--table", "pgae", "--json")
	require.Equal(t, exitNotFound, a.status)
	require.True(t, json.Valid([]byte(a.err)), a.err)
}
