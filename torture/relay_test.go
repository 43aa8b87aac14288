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
	run := func(observer string, start int) string {
		return tableRelayRuns + "/" + runRow(observer+":cell00", percolator.Timestamp(start)) + "/seen" //nolint:gosec // a small number
	}
	count := func(observer string) string { return tableRelayed + "/" + observer + ":cell00/runs" }
	good := map[string]string{
		batonCell(0): "b", tableBaton + "/cell00/tail": "b",
		run(carryName, 25): "a", run(carryName, 45): "b", count(carryName): "2",
		run(noteName, 46): "b", count(noteName): "1",
		run(receiveName, 28): "a", run(receiveName, 50): "b", count(receiveName): "2",
	}
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
		"a change that nobody noted": {func(c map[string]string) { delete(c, run(noteName, 46)); delete(c, count(noteName)) }, "no run of note has seen"},
		"a change that nobody carried": {func(c map[string]string) {
			delete(c, run(carryName, 45))
			c[count(carryName)], c[tableBaton+"/cell00/tail"] = "1", "a"
		}, "no run of carry has seen"},
		"what was carried is not received": {func(c map[string]string) { delete(c, run(receiveName, 50)); c[count(receiveName)] = "1" }, "has not seen what carry wrote"},
		"two runs for one change":          {func(c map[string]string) { c[run(noteName, 47)], c[count(noteName)] = "b", "2" }, "took effect for the same change"},
		"two runs of receive":              {func(c map[string]string) { c[run(receiveName, 51)], c[count(receiveName)] = "b", "3" }, "took effect for the same change"},
		"a run without its count":          {func(c map[string]string) { c[count(noteName)] = "2" }, "were counted"},
		"a count without its run":          {func(c map[string]string) { delete(c, run(noteName, 46)) }, "none has left a row"},
		"a run without what it writes":     {func(c map[string]string) { c[tableBaton+"/cell00/tail"] = "a" }, "the last run of receive"},
		"a run of what was rolled back":    {func(c map[string]string) { c[run(noteName, 41)], c[count(noteName)] = "c", "2" }, "which nobody wrote"},
		"received in another order": {func(c map[string]string) {
			c[run(receiveName, 28)], c[run(receiveName, 50)] = "b", "a"
			c[tableBaton+"/cell00/tail"] = "a"
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
		require.Len(t, relayObservers(nil, names, true), len(names))
	}
	require.Len(t, allObservers(nil, workloads()), len(observers(nil, workloads()))+len(relaySets()[0]))
}
