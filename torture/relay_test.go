package main

import (
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
)

func TestJudgeRelay(t *testing.T) {
	t.Parallel()
	set := func(v string) op { return op{Kind: opWrite, Cell: batonCell(0), Value: text(v)} }
	a, b := txnOf(relayName, committed, 10, 20, set("a")), txnOf(relayName, committed, 30, 40, set("b"))
	gone := txnOf(relayName, aborted, 30, 0, set("c"))
	leave := func(cells map[string]string, observer string, start int, seen string) {
		row := runRow(observer+":cell00", percolator.Timestamp(start)) //nolint:gosec // a small number
		cells[tableRelayRuns+"/"+row+"/seen"], cells[tableRelayed+"/"+row+"/seen"] = seen, seen
	}
	drop := func(cells map[string]string, observer string, start int) {
		leave(cells, observer, start, "")
		maps.DeleteFunc(cells, func(_, seen string) bool { return seen == "" })
	}
	tail := tableBaton + "/cell00/tail"
	good := map[string]string{batonCell(0): "b", tail: "b"}
	leave(good, carryName, 25, "a")
	leave(good, carryName, 45, "b")
	leave(good, noteName, 46, "b")
	leave(good, receiveName, 28, "a")
	leave(good, receiveName, 50, "b")
	h := historyOf(a, b, gone)
	n, bad := judgeRelay(h, &final{cells: good})
	require.Equal(t, 2, n)
	require.Empty(t, bad)
	h.Calls[carryName] = 3
	require.Equal(t, [2]int{3, 2}, waste(h, &final{cells: good})[carryName])
	require.Equal(t, "carry 3 for 2 (1.500), note 0 for 1 (0.000), receive 0 for 2 (0.000)", wasteText(waste(h, &final{cells: good})))
	for name, c := range map[string]struct {
		breakIt func(cells map[string]string)
		want    string
	}{
		"a change that nobody noted": {func(c map[string]string) { drop(c, noteName, 46) }, "no run of note has seen"},
		"a change that nobody carried": {func(c map[string]string) {
			drop(c, carryName, 45)
			c[tail] = "a"
		}, "no run of carry has seen"},
		"what was carried is not received": {func(c map[string]string) { drop(c, receiveName, 50) }, "has not seen what carry wrote"},
		"two runs for one change":          {func(c map[string]string) { leave(c, noteName, 47, "b") }, "took effect for the same change"},
		"two runs of receive":              {func(c map[string]string) { leave(c, receiveName, 51, "b") }, "took effect for the same change"},
		"half of a run": {func(c map[string]string) {
			delete(c, tableRelayed+"/"+runRow(noteName+":cell00", 46)+"/seen")
		}, "torn"},
		"the other half": {func(c map[string]string) {
			c[tableRelayed+"/"+runRow(noteName+":cell00", 41)+"/seen"] = "b"
		}, "torn"},
		"a run without what it writes":  {func(c map[string]string) { c[tail] = "a" }, "the last run of receive"},
		"a run of what was rolled back": {func(c map[string]string) { leave(c, noteName, 41, "c") }, "which nobody wrote"},
		"received in another order": {func(c map[string]string) {
			leave(c, receiveName, 28, "b")
			leave(c, receiveName, 50, "a")
			c[tail] = "a"
		}, "had not written after"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cells := maps.Clone(good)
			c.breakIt(cells)
			_, bad := judgeRelay(h, &final{cells: cells})
			require.NotEmpty(t, bad)
			require.Contains(t, strings.Join(bad, "\n"), c.want)
		})
	}
}

// Each observer of the relay is run by some of the crew without another one of its column,
// and by some with it.
func TestRelaySets(t *testing.T) {
	t.Parallel()
	for _, names := range relaySets() {
		require.Len(t, relayObservers(nil, names, nil), len(names))
	}
	require.Len(t, allObservers(nil, workloads()), len(observers(nil, workloads()))+len(relaySets()[0])+len(passObservers()))
}
