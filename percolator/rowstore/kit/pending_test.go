package kit_test

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

func group(draw bool, rows ...string) rowstore.Group {
	g := rowstore.Group{AssignTimestamp: draw}
	for _, r := range rows {
		g.Mutations = append(g.Mutations, rowstore.Mutation{Table: "t", Row: r})
	}
	return g
}

var locks = []rowstore.Selector{{Family: rowstore.Lock, Column: "c", To: 10}}

func readOf(table, row string) []rowstore.RowRead {
	return []rowstore.RowRead{{Table: table, Row: row, Selectors: locks}}
}

// What is no read is refused before anything is waited for.
func TestPendingChecksReads(t *testing.T) {
	t.Parallel()
	var p kit.Pending
	require.ErrorIs(t, p.Rows(t.Context(), []rowstore.RowRead{{Table: "t", Row: "r"}}), rowstore.ErrInvalid)
	require.ErrorIs(t, p.Range(t.Context(), rowstore.ScanRange{Table: "t"}), rowstore.ErrInvalid)
	require.NoError(t, p.Rows(t.Context(), readOf("t", "r")))
	require.NoError(t, p.Range(t.Context(), rowstore.ScanRange{Table: "t", Selectors: locks}))
}

func TestPendingConcernsItsRowsAlone(t *testing.T) {
	t.Parallel()
	var p kit.Pending
	release := p.Hold(group(true, "b", "d"), group(false, "x"))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	read := func(table, row string) error { return p.Rows(gone, readOf(table, row)) }
	scan := func(from, to string) error {
		return p.Range(gone, rowstore.ScanRange{Table: "t", From: from, To: to, Selectors: locks})
	}
	for _, row := range []string{"b", "d"} {
		require.ErrorIs(t, read("t", row), context.Canceled)
	}
	require.ErrorIs(t, scan("", ""), context.Canceled)
	require.ErrorIs(t, scan("c", "e"), context.Canceled)
	require.ErrorIs(t, scan("b", "c"), context.Canceled)
	slots := func(from string, first, last uint16) error {
		return p.Range(gone, rowstore.ScanRange{Table: "t", From: from, Slots: []rowstore.SlotRange{{First: first, Last: last}}, Selectors: []rowstore.Selector{{Family: rowstore.Notify, To: 10}}})
	}
	b, d := rowstore.Slot("t", "b"), rowstore.Slot("t", "d")
	require.ErrorIs(t, slots("", b, b), context.Canceled)
	require.ErrorIs(t, slots("x", min(b, d), max(b, d)), context.Canceled, "the first row is of the first slot alone")
	require.NoError(t, slots("", min(b, d)+1, max(b, d)-1))
	require.NoError(t, read("t", "c"))
	require.NoError(t, read("t", "x"), "its group draws nothing")
	require.NoError(t, read("u", "b"))
	require.NoError(t, p.Range(gone, rowstore.ScanRange{Table: "u", Selectors: locks}))
	require.ErrorIs(t, p.Rows(gone, append(readOf("t", "a"), readOf("t", "d")...)), context.Canceled, "one of several rows is held")
	require.NoError(t, scan("c", "d"))
	require.NoError(t, scan("e", ""))
	// A row may be held twice.
	again := p.Hold(group(true, "b"))
	release()
	release()
	require.ErrorIs(t, read("t", "b"), context.Canceled)
	require.NoError(t, read("t", "d"))
	waited := make(chan error, 1)
	go func() { waited <- p.Rows(t.Context(), readOf("t", "b")) }()
	again()
	require.NoError(t, <-waited)
	p.Hold(group(false, "b"))()
	// The group that draws need not be the first.
	release = p.Hold(group(false, "x"), group(true, "y"))
	require.ErrorIs(t, read("t", "y"), context.Canceled)
	release()
}

// TestPendingWaitsForEveryWriter has a reader of a row that two writers hold.
func TestPendingWaitsForEveryWriter(t *testing.T) {
	t.Parallel()
	for range 20 { // holds have no order
		synctest.Test(t, func(t *testing.T) {
			var p kit.Pending
			first, second := p.Hold(group(true, "b")), p.Hold(group(true, "a", "b"))
			done := make(chan error, 1)
			go func() { done <- p.Rows(t.Context(), readOf("t", "b")) }()
			synctest.Wait()
			first()
			synctest.Wait()
			require.Empty(t, done, "the other writer holds the row yet")
			second()
			require.NoError(t, <-done)
		})
	}
}

// TestPendingMissesNoCommit has a writer that draws a timestamp some time before its change
// can be seen, and readers that must see every change below their own timestamps.
func TestPendingMissesNoCommit(t *testing.T) {
	t.Parallel()
	var p kit.Pending
	var last, visible atomic.Int64 // timestamps drawn; the newest change that can be seen
	var commits []int64
	type view struct{ at, seen int64 }
	views := make([][]view, 3)
	var work sync.WaitGroup
	done := make(chan struct{})
	for i := range views {
		work.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				at := last.Add(1)
				assert.NoError(t, p.Rows(t.Context(), readOf("t", "r")))
				views[i] = append(views[i], view{at, visible.Load()})
			}
		})
	}
	for range 2000 {
		release := p.Hold(group(true, "r"))
		ts := last.Add(1)
		runtime.Gosched() // here a reader draws a greater one
		commits = append(commits, ts)
		visible.Store(ts)
		release()
	}
	close(done)
	work.Wait()
	for _, v := range slices.Concat(views...) {
		n, _ := slices.BinarySearch(commits, v.at)
		if n > 0 {
			require.GreaterOrEqual(t, v.seen, commits[n-1], "at %d a commit was missed", v.at)
		}
	}
}
