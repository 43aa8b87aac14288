package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
)

func text(s string) *string { return &s }

// txnOf is a transaction of a hand-made history.
func txnOf(w string, o outcome, start, commit uint64, ops ...op) *transaction {
	return &transaction{Process: "p", line: line{Workload: w, N: int(start), Outcome: o, Start: start, Commit: commit, Ops: ops}}
}

func historyOf(txns ...*transaction) *history {
	h := newHistory()
	h.Txns = txns
	return h
}

func fullRead(change int) []op {
	var ops []op
	for i, a := range accounts() {
		n := bankBalance
		if i == 3 {
			n += change
		}
		ops = append(ops, op{Kind: opRead, Cell: a, Value: text(numbered(n, "x"))})
	}
	return ops
}

func TestJudgeBank(t *testing.T) {
	t.Parallel()
	n, bad := judgeBank(historyOf(txnOf("bank", committed, 5, 0, fullRead(0)...)))
	require.Equal(t, 1, n)
	require.Empty(t, bad)
	_, bad = judgeBank(historyOf(txnOf("bank", aborted, 5, 0, fullRead(1)...)))
	require.Len(t, bad, 1, "an aborted transaction reads a snapshot too")
	ops := fullRead(0)
	ops[0].Value = nil
	_, bad = judgeBank(historyOf(txnOf("bank", committed, 5, 0, ops...)))
	require.Len(t, bad, 1, "an account is missing")
	early := txnOf("bank", committed, 5, 0, ops...)
	early.AsOf = true
	opened := txnOf("bank", committed, 6, 7)
	opened.Process = setupProcess
	_, bad = judgeBank(historyOf(opened, early))
	require.Empty(t, bad, "from before there were accounts")
}

func TestJudgeSkew(t *testing.T) {
	t.Parallel()
	read := func(side, n int) op {
		return op{Kind: opRead, Cell: skewSide(2, side), Value: text(numbered(n, "x"))}
	}
	n, bad := judgeSkew(historyOf(txnOf("writeskew", committed, 1, 2, read(0, -3), read(1, 3))))
	require.Equal(t, 1, n)
	require.Empty(t, bad)
	_, bad = judgeSkew(historyOf(txnOf("writeskew", committed, 1, 2, read(0, -3), read(1, 2))))
	require.Len(t, bad, 1)
	// What it wrote itself does not count.
	_, bad = judgeSkew(historyOf(txnOf("writeskew", committed, 1, 2, read(0, 0), read(1, 0),
		op{Kind: opWrite, Cell: skewSide(2, 0), Value: text("-9@y")}, read(0, -9))))
	require.Empty(t, bad)
}

func TestJudgeLedger(t *testing.T) {
	t.Parallel()
	set := func(v string) op { return op{Kind: opWrite, Cell: ledgerCell(0), Value: text(v)} }
	remove := op{Kind: opDelete, Cell: ledgerCell(0)}
	left := func(now string, runs ...any) *final {
		f := &final{cells: map[string]string{}}
		if now != "" {
			f.cells[ledgerCell(0)] = now
		}
		for i := 0; i < len(runs); i += 2 {
			f.cells[tableRuns+"/"+runRow("cell00", percolator.Timestamp(runs[i].(int)))+"/seen"] = runs[i+1].(string)
		}
		return f
	}
	a, b := txnOf("ledger", committed, 10, 20, set("a")), txnOf("ledger", committed, 30, 40, set("b"))
	unknown := txnOf("ledger", undetermined, 30, 0, set("b"))
	gone := txnOf("ledger", aborted, 30, 0, set("b"))
	del1, del2 := txnOf("ledger", committed, 50, 60, remove), txnOf("ledger", committed, 70, 80, remove)
	for name, c := range map[string]struct {
		h    *history
		f    *final
		want string
	}{
		"one run for each":            {historyOf(a, b), left("b", 25, "a", 45, "b"), ""},
		"two changes in one run":      {historyOf(a, b), left("b", 45, "b"), ""},
		"aborted and unknown ones":    {historyOf(a, gone, unknown), left("a", 25, "a"), ""},
		"an unknown one was made":     {historyOf(a, unknown), left("b", 25, "a", 35, "b"), ""},
		"two deletes":                 {historyOf(a, del1, del2), left("", 65, "-", 85, "-"), ""},
		"no run at all":               {historyOf(a), left("a"), "no run has seen"},
		"no run for the last":         {historyOf(a, b), left("b", 25, "a"), "no run has seen"},
		"two runs for one change":     {historyOf(a, b), left("b", 41, "b", 45, "b"), "the same change"},
		"two runs for one delete":     {historyOf(a, del1, del2), left("", 85, "-", 86, "-"), "the same change"},
		"the last run saw an old one": {historyOf(a, b), left("b", 45, "a"), "is there"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, bad := judgeLedger(c.h, c.f)
			if c.want == "" {
				require.Empty(t, bad)
			} else {
				require.NotEmpty(t, bad)
				require.Contains(t, strings.Join(bad, "\n"), c.want)
			}
		})
	}
}

func TestJudgeBellAndTally(t *testing.T) {
	t.Parallel()
	ring := op{Kind: opNotify, Cell: bellCell(1)}
	f := &final{cells: map[string]string{
		tableRuns + "/" + runRow("cell1", 30) + "/seen": "rung", tableTally + "/cell1/runs": "1",
	}}
	n, bad := judgeBell(historyOf(txnOf("ledger", committed, 10, 25, ring), txnOf("ledger", aborted, 40, 0, ring),
		txnOf("ledger", undetermined, 50, 0, ring)), f)
	require.Equal(t, 1, n)
	require.Empty(t, bad)
	_, bad = judgeBell(historyOf(txnOf("ledger", committed, 10, 35, ring)), f)
	require.Len(t, bad, 1)
	_, bad = judgeBell(historyOf(txnOf("ledger", committed, 31, 0, ring)), f)
	require.Len(t, bad, 1, "a notification and nothing else")

	n, bad = judgeTally(f)
	require.Equal(t, 1, n)
	require.Empty(t, bad)
	f.cells[tableTally+"/cell1/runs"] = "2"
	_, bad = judgeTally(f)
	require.Len(t, bad, 1)
}

func TestJudgeWeb(t *testing.T) {
	t.Parallel()
	good := func() *final {
		return &final{cells: map[string]string{
			pageBody("page00"): "u a,b page01,page01", "page/page00/indexed": "u a,b page01,page01",
			pageBody("page01"): "v b ", "page/page01/indexed": "v b ",
			tableIndex + "/a:page00/x": "", tableIndex + "/b:page00/x": "", tableIndex + "/b:page01/x": "",
			tableLinks + "/page01:page00/x": "", tableRank + "/page01/in": "1", tableRank + "/page02/in": "0",
		}}
	}
	n, bad := judgeWeb(good())
	require.Equal(t, 2, n)
	require.Empty(t, bad)
	for name, breakIt := range map[string]func(cells map[string]string){
		"an index row is missing":   func(c map[string]string) { delete(c, tableIndex+"/a:page00/x") },
		"an index row is left":      func(c map[string]string) { c[tableIndex+"/c:page00/x"] = "" },
		"a rank is wrong":           func(c map[string]string) { c[tableRank+"/page01/in"] = "2" },
		"a rank is missing":         func(c map[string]string) { delete(c, tableRank+"/page01/in") },
		"a link is left":            func(c map[string]string) { c[tableLinks+"/page02:page00/x"] = "" },
		"an old body is indexed":    func(c map[string]string) { c["page/page01/indexed"] = "w b " },
		"a deleted page is in it":   func(c map[string]string) { delete(c, pageBody("page01")) },
		"a body cannot be read":     func(c map[string]string) { c[pageBody("page01")] = "nonsense" },
		"links of a page to itself": func(c map[string]string) { c[pageBody("page01")] = "v b page01" },
	} {
		f := good()
		breakIt(f.cells)
		_, bad := judgeWeb(f)
		require.NotEmpty(t, bad, name)
	}
}

func TestSilence(t *testing.T) {
	t.Parallel()
	at := func(end int64, o outcome) *transaction {
		x := txnOf("bank", o, 1, 2)
		x.Ended = end
		return x
	}
	h := historyOf(at(30, committed), at(10, committed), at(25, aborted), at(31, committed))
	require.Equal(t, 20*time.Nanosecond, silence(h))
}

// TestLog reads what a process would have left that was killed amid a write.
func TestLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "p"+logSuffix)
	j, err := openJournal(path)
	require.NoError(t, err)
	try := func(n int) line {
		return line{Kind: lineTry, Workload: "register", Thread: 1, N: n, Start: uint64(n), Ops: []op{{Kind: opWrite, Cell: "a/b/c", Value: text("v")}}}
	}
	done := func(n int, o outcome, commit uint64) line {
		return line{Kind: lineDone, Thread: 1, N: n, Outcome: o, Commit: commit, Ended: 7}
	}
	j.write(line{Kind: lineOpen})
	j.write(try(1))
	j.write(done(1, committed, 11))
	j.write(try(2))
	j.write(done(2, aborted, 0))
	j.write(try(3))
	j.write(done(3, undetermined, 0))
	settled := done(3, committed, 13)
	settled.Kind = lineSettled
	j.write(settled)
	j.write(line{Kind: lineAbort, Reason: "conflict"})
	j.write(line{Kind: lineStats, Stats: &percolator.Stats{Conflicts: 1}})
	j.write(line{Kind: lineStats, Stats: &percolator.Stats{Conflicts: 3}})
	j.write(line{Kind: lineBad, Text: "oh"})
	j.write(try(4))
	_, err = j.file.WriteString(`{"l":"done","g":1,"n":4,"o":"comm`)
	require.NoError(t, err)
	require.NoError(t, j.close())

	h, err := readHistory(dir)
	require.NoError(t, err)
	var got []string
	for _, x := range h.Txns {
		got = append(got, fmt.Sprintf("%s %s %d %d ops", x.id(), x.Outcome, x.Commit, len(x.Ops)))
	}
	require.Equal(t, []string{
		"p.1.1 committed 11 1 ops", "p.1.2 aborted 0 1 ops", "p.1.3 committed 13 1 ops", "p.1.4 undetermined 0 1 ops",
	}, got)
	require.Equal(t, map[string]int{"conflict": 1}, h.Aborts)
	require.Equal(t, map[outcome]int{committed: 1}, h.Settled)
	require.Equal(t, uint64(3), h.Stats.Conflicts, "the last counts of a process")
	require.Equal(t, []string{"p: oh"}, h.Bad)
	require.Equal(t, 1, h.Opened)

	require.Error(t, newHistory().readLog("p", strings.NewReader("nonsense\n")))
	require.Error(t, newHistory().readLog("p", strings.NewReader(`{"l":"what"}`+"\n")))
	require.Error(t, newHistory().readLog("p", strings.NewReader(`{"l":"settled","n":1}`+"\n")))
}

func TestValuesAreKeptWhole(t *testing.T) {
	t.Parallel()
	lengths := map[int]bool{}
	for i := range 200 {
		v := fmt.Sprintf("client%d.%d", i, i*i)
		b := pad(v)
		lengths[len(b)] = true
		got, err := unpad(b)
		require.NoError(t, err)
		require.Equal(t, v, got)
		_, err = unpad(append(b, 'x'))
		require.ErrorIs(t, err, errIntegrity)
		_, err = unpad([]byte(v))
		require.ErrorIs(t, err, errIntegrity)
	}
	require.True(t, lengths[256], "a value just too long to travel inside a lock")
}
