package ui_test

import (
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/backends/pebble"
	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/ui"
)

var benchRows = flag.Int("ui.rows", 100_000, "how many rows the benchmark of the page has; all have notifications")

// BenchmarkViews makes each view over a table of many rows in a Pebble store, all of which wait for an observer.
func BenchmarkViews(b *testing.B) {
	store, err := pebble.Open(b.Context(), pebble.Options{Path: b.TempDir()})
	require.NoError(b, err)
	db, err := percolator.New(b.Context(), store, percolator.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(b, err)
	atend.Do(b, func() { require.NoError(b, db.Close(b.Context())) })
	crowd(b, db, store, 1000)
	now, err := db.Now(b.Context())
	require.NoError(b, err)
	table, column := format.Escape("t"), format.Escape("c")
	write := format.Write{Kind: format.KindPut, Start: now - 2, Value: []byte("a value of some length")}
	edits := []rowstore.Edit{rowstore.Put(rowstore.Write, column, now-1, write.Encode()), rowstore.Put(rowstore.Notify, column, now-1, format.WeakNotification)}
	all := make([]rowstore.Mutation, *benchRows)
	for i := range all {
		all[i] = rowstore.Mutation{Table: table, Row: fmt.Sprintf("s%08d", i), Edits: edits}
	}
	for some := range slices.Chunk(all, 2000) {
		_, err := store.Apply(b.Context(), some, rowstore.ApplyOptions{})
		require.NoError(b, err)
	}
	h, err := ui.New(db, func(*http.Request) (ui.Access, error) { return ui.Access{Who: "ann", Values: true}, nil }, ui.Options{Timeout: time.Minute})
	require.NoError(b, err)
	for _, view := range []string{"/", "/observers", "/backlog?table=t", "/parked", "/parked?observer=another", "/timers?table=t", "/tables", "/locks?table=t", "/cell?table=t&row=s00000007&column=c", "/processes", "/replays"} {
		b.Run(view[1:], func(b *testing.B) {
			for b.Loop() {
				require.Equal(b, http.StatusOK, ask(b, h, http.MethodGet, view, nil).Code)
			}
		})
	}
}
