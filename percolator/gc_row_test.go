package percolator

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// A delete goes with its acknowledgment only under the conditions that nothing of either
// has changed since, and not while anything is locked or newer than the safe point.
func TestConditionsOfACollectedDelete(t *testing.T) {
	t.Parallel()
	const safe = 20
	ack, failure := format.AckColumn("o", "v"), format.FailureColumn("o", "v")
	write := func(column string, kind format.Kind, ts Timestamp) rowstore.Version {
		w := format.Write{Kind: kind, Start: ts - 1}
		return rowstore.Version{Family: rowstore.Write, Column: column, TS: ts, Value: w.Encode()}
	}
	lock := func(column string) rowstore.Version {
		return rowstore.Version{Family: rowstore.Lock, Column: column, TS: 30}
	}
	collect := func(versions ...rowstore.Version) *gcRow {
		slices.SortStableFunc(versions, func(a, b rowstore.Version) int { return int(a.Family) - int(b.Family) })
		g := &gcRow{row: &rowstore.Row{Row: "r", Versions: versions}, safe: safe}
		require.NoError(t, g.column("v"))
		return g
	}
	of := func(at Timestamp) []rowstore.Version {
		return []rowstore.Version{write(ack, format.KindPut, at), write(failure, format.KindDelete, 12), write("v", format.KindDelete, 10)}
	}
	g := collect(of(20)...)
	require.ElementsMatch(t, []rowstore.Edit{rowstore.DeleteRange(rowstore.Write, "v", 0, 10), rowstore.DeleteRange(rowstore.Write, ack, 0, 20)}, g.m.edits)
	require.ElementsMatch(t, []rowstore.Condition{
		rowstore.Absent(rowstore.Notify, "v", 0),
		rowstore.Absent(rowstore.Write, failure, 13), rowstore.Absent(rowstore.Lock, failure, 0),
		rowstore.Absent(rowstore.Write, "v", safe+1), rowstore.Absent(rowstore.Lock, "v", 0),
		rowstore.Absent(rowstore.Write, ack, 21), rowstore.Absent(rowstore.Lock, ack, 0),
	}, g.m.conditions)

	for name, versions := range map[string][]rowstore.Version{
		"an acknowledgment above the safe point": of(21),
		"a locked acknowledgment":                append(of(20), lock(ack)),
		"a run that failed":                      {write(ack, format.KindPut, 11), write(failure, format.KindPut, 12), write("v", format.KindDelete, 10)},
		"a notification":                         append(of(20), rowstore.Version{Family: rowstore.Notify, Column: "v", TS: 25}),
	} {
		g := collect(versions...)
		require.Empty(t, g.m.edits, name)
		require.Empty(t, g.m.conditions, name)
	}
	for name, versions := range map[string][]rowstore.Version{
		"a newer version": {write(ack, format.KindPut, 25), write("v", format.KindPut, 24), write("v", format.KindDelete, 10)},
		"a locked column": append(of(20), lock("v")),
	} {
		require.Equal(t, []rowstore.Edit{rowstore.DeleteRange(rowstore.Write, "v", 0, 10)}, collect(versions...).m.edits, name+": the delete goes, and its acknowledgment stays")
	}
}

// A collection that looks for the acknowledgments and failures of each deleted column of a row goes through the versions of the row once for all
// columns: of a row that it has gone through it asks nothing more.
func TestCollectedRowIsGoneThroughOnce(t *testing.T) {
	t.Parallel()
	columns := []string{"u", "v", "w"}
	row := &rowstore.Row{Row: "r"}
	add := func(column string, kind format.Kind, ts Timestamp) {
		w := format.Write{Kind: kind, Start: ts - 1}
		row.Versions = append(row.Versions, rowstore.Version{Family: rowstore.Write, Column: column, TS: ts, Value: w.Encode()})
	}
	for _, c := range columns {
		add(c, format.KindDelete, 10)
		for _, observer := range []string{"o", "p"} {
			add(format.AckColumn(observer, c), format.KindPut, 12)
			add(format.FailureColumn(observer, c), format.KindDelete, 14)
			add(format.FailureColumn(observer, c), format.KindPut, 11)
		}
		add(format.SeenColumn("o", c), format.KindPut, 9)
	}
	slices.SortFunc(row.Versions, rowstore.CompareVersions)
	g := &gcRow{row: row}
	for i, c := range columns {
		require.Equal(t, []string{format.AckColumn("o", c), format.AckColumn("p", c)}, g.kept(c, format.PrefixAck))
		require.Equal(t, []string{format.FailureColumn("o", c), format.FailureColumn("p", c)}, g.kept(c, format.PrefixFailure))
		if i == 0 {
			row.Versions = nil
		}
	}
	require.Empty(t, g.kept("another", format.PrefixAck))
}
