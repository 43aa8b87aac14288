package ui_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/ui"
)

// TestRetryAllGoesBehindWhatIsDamaged has parked runs whose records cannot be read: the one that says that a run failed, and the ones that list runs, of which one says by its name
// whose it is and the other has a name that is too long for that. The page lists them, and a step for all retries the others.
func TestRetryAllGoesBehindWhatIsDamaged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ui.Access{Who: "ann", Actions: true})
	w.login()
	long := strings.Repeat("long", 100)
	rows := []string{"failure", "listed", "other", long}
	require.NoError(t, w.db.Update(t.Context(), func(tx *percolator.Txn) error {
		for _, r := range rows {
			if err := tx.Set(percolator.Cell{Table: "z", Row: r, Column: "c"}, nil); err != nil {
				return err
			}
		}
		return nil
	}))
	w.runUntilIdle(percolator.Observer{Name: "o", Table: "z", Column: "c", Func: func(context.Context, *percolator.Txn, percolator.Cell) error {
		return percolator.Park(errors.New("no"))
	}})
	for _, c := range []format.Cell{
		{Table: "z", Row: "failure", Column: format.FailureColumn("o", "c")},
		format.ParkedCell("o", format.Cell{Table: "z", Row: "listed", Column: "c"}),
		format.ParkedCell("o", format.Cell{Table: "z", Row: long, Column: "c"}),
	} {
		at, err := w.db.Now(t.Context())
		require.NoError(t, err)
		garbage := format.Write{Kind: format.KindPut, Start: at - 1, Value: []byte("garbage")}
		outs, err := w.store.Apply(t.Context(), []rowstore.Mutation{{Table: c.Table, Row: c.Row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, c.Column, at, garbage.Encode())}}}, rowstore.ApplyOptions{})
		require.NoError(t, err)
		require.NoError(t, outs[0].Err)
	}
	listed := w.get("parked")
	require.Equal(t, http.StatusOK, listed.status, listed.body)
	require.Equal(t, 2, strings.Count(listed.body, "its record"), listed.body)
	require.Equal(t, http.StatusOK, w.get("observers").status)

	for _, released := range []string{"2 parked runs are released. 1 could not be", "0 parked runs are released. 1 could not be"} {
		a := w.act("release-all", "observer", "o")
		require.Equal(t, http.StatusOK, a.status, a.body)
		require.Contains(t, a.body, released)
		require.Contains(t, a.body, "z failure c: ")
	}
	runs, _, err := readerOf(t, w.store).Parked(t.Context(), "o", "", 0)
	require.NoError(t, err)
	require.Len(t, runs, 1)
}
