package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/checker"
)

// goodHistory has every kind of operation, and nothing wrong in it.
func goodHistory() *history {
	h := historyOf(
		txnOf("register", committed, 10, 20,
			op{Kind: opRead, Cell: "register1/a/value"},
			op{Kind: opWrite, Cell: "register1/a/value", Value: text("x")},
			op{Kind: opAppend, Cell: "append0/l/list", Value: text("1"), Element: "1"},
			op{Kind: opNotify, Cell: "bell/cell1/hint"}),
		txnOf("append", committed, 30, 40,
			op{Kind: opRead, Cell: "append0/l/list", Value: text("1")},
			op{Kind: opAppend, Cell: "append0/l/list", Value: text("1,2"), Element: "2"},
			op{Kind: opRead, Cell: "register1/a/value", Value: text("x"), Locks: true}),
		txnOf("register", aborted, 50, 0,
			op{Kind: opRead, Cell: "append0/l/list", Value: text("1,2")},
			op{Kind: opWrite, Cell: "register1/a/value", Value: text("y")}),
		txnOf("register", undetermined, 60, 0, op{Kind: opDelete, Cell: "register1/a/value"}),
		txnOf(observerPrefix+"audit", committed, 35, 0, op{Kind: opRead, Cell: "register1/a/value", Value: text("x")}),
	)
	for i, t := range h.Txns[:4] {
		t.Began, t.Ended = int64(100*i+1), int64(100*i+50)
	}
	// It was logged late; that it began after others ended proves nothing.
	h.Txns[4].Began, h.Txns[4].Ended = 900, 910
	f := &final{at: 70, cells: map[string]string{"append0/l/list": "1,2"}}
	h.Txns = append(h.Txns, finalTransaction(h, f))
	return h
}

// TestCheckersSeeTheHistory breaks a good history in ways that must be found after
// it was exported: that it is in the checkers' own form is not enough.
func TestCheckersSeeTheHistory(t *testing.T) {
	t.Parallel()
	violations := func(h *history) int {
		t.Helper()
		all := 0
		for _, c := range checkers() {
			rep, err := c.check(h.export())
			require.NoError(t, err)
			n, _, err := findings(rep)
			require.NoError(t, err)
			all += n
		}
		return all
	}
	require.Zero(t, violations(goodHistory()))
	for name, breakIt := range map[string]func(h *history){
		"a stale read":             func(h *history) { h.Txns[1].Ops[2].Value = nil },
		"a lost element":           func(h *history) { h.Txns[5].Ops[0].Value = text("2") },
		"a value that nobody set":  func(h *history) { h.Txns[4].Ops[0].Value = text("z") },
		"a value that was aborted": func(h *history) { h.Txns[5].Ops[1].Value = text("y") },
		"an observer that saw nothing": func(h *history) {
			h.Txns[4].Ops[0].Value = nil
		},
		"writers that overlap": func(h *history) { h.Txns[1].Start = 15 },
		"a commit of the past": func(h *history) { h.Txns[1].Start, h.Txns[1].Commit = 3, 5 },
		"an unknown one that was seen and then was not": func(h *history) {
			h.Txns[3].Ops[0] = op{Kind: opWrite, Cell: "register1/a/value", Value: text("u")}
			seen := txnOf("register", committed, 65, 0, op{Kind: opRead, Cell: "register1/a/value", Value: text("u")})
			seen.Began, seen.Ended = 700, 710
			h.Txns = append(h.Txns, seen)
			h.Txns[5].Ops[1].Value = text("x")
		},
	} {
		h := goodHistory()
		breakIt(h)
		require.NotZero(t, violations(h), name)
	}
}

func TestExport(t *testing.T) {
	t.Parallel()
	h := goodHistory().export()
	require.Len(t, h, 6)
	require.Equal(t, []int64{h[0].Ops[2].Value}, h[1].Ops[0].List, "the element that the first transaction appended")
	require.Equal(t, checker.Op{Kind: checker.Read, Locks: true, Key: "register1/a/value", Value: h[0].Ops[1].Value}, h[1].Ops[2])
	require.Len(t, h[0].Ops, 3, "a notification is no operation on data")
	require.Equal(t, checker.Unknown, h[3].Outcome)
	require.Zero(t, h[3].Complete)
	require.True(t, h[4].AsOf)
	require.NotEqual(t, h[3].Process, h[4].Process)
	require.Equal(t, h[0].Process, h[1].Process)
}

func TestJudgeFile(t *testing.T) {
	t.Parallel()
	write := func(h *history) string {
		path := filepath.Join(t.TempDir(), historyName)
		f, err := os.Create(path)
		require.NoError(t, err)
		require.NoError(t, checker.WriteHistory(f, h.export()))
		require.NoError(t, f.Close())
		return path
	}
	var out bytes.Buffer
	require.NoError(t, execute(t.Context(), []string{"-check", write(goodHistory())}, &out, &out))
	require.Equal(t, len(checkers()), strings.Count(out.String(), "no violation"))
	bad := goodHistory()
	bad.Txns[1].Ops[2].Value = nil
	require.ErrorIs(t, execute(t.Context(), []string{"-check", write(bad)}, &out, &out), errFailed)
	require.Error(t, execute(t.Context(), []string{"-check", filepath.Join(t.TempDir(), "none")}, &out, &out))
}
