package percolator

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// A deleted cell goes, whatever an observer that was removed has recorded beside it, unless that is a parked run.
func TestCollectionOfWhatHadFailed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fail  error
		again bool // it is registered again, and has seen the cell
		stays bool
	}{
		"it had failed":                      {fail: errTest},
		"it was to be repeated later":        {fail: RetryAfter(time.Hour)},
		"it had failed, and came back":       {fail: errTest, again: true},
		"its run was parked":                 {fail: Park(errTest), stays: true},
		"its run was parked, and it is back": {fail: Park(errTest), again: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			c := w.client()
			o := newTold(t, c, "o", "t")
			set(t, c.DB, rowA, "1")
			o.fail = test.fail
			require.True(t, o.run(rowA))
			remove(t, c.DB, rowA)
			w.removes(c, "o")
			if test.again {
				o.register()
				o.fail = nil
				require.True(t, o.run(rowA))
			}
			for range 3 { // notifications, then the delete, then the name of the row
				w.pass(worldRetention + worldAge)
				_, err := w.collect(c, 0)
				require.NoError(t, err)
			}
			row := w.raw(rowA)
			if !test.stays {
				require.Empty(t, row.Versions)
				return
			}
			require.NotNil(t, row.Newest(rowstore.Write, "v"))
			require.NoError(t, c.DropParked(t.Context(), ParkedRun{Observer: "o", Cell: rowA}))
			w.pass(worldRetention + worldAge)
			_, err := w.collect(c, 0)
			require.NoError(t, err)
			row = w.raw(rowA)
			require.Nil(t, row.Newest(rowstore.Write, "v"))
		})
	}
}

// Which failure records go with a delete, and under which conditions.
func TestMootFailureRecords(t *testing.T) {
	t.Parallel()
	const since, safe = 30, 60
	write := func(column string, ts Timestamp, value []byte) rowstore.Version {
		w := format.Write{Kind: format.KindPut, Start: ts - 1, Value: value}
		return rowstore.Version{Family: rowstore.Write, Column: column, TS: ts, Value: w.Encode()}
	}
	for name, test := range map[string]struct {
		observer string // "o" is registered
		at       Timestamp
		failure  format.Failure
		acked    Timestamp
		moot     bool
	}{
		"of nobody":                             {observer: "gone", at: 50, failure: format.Failure{Change: 20, Attempts: 1}, moot: true},
		"of nobody known, above the safe point": {observer: "gone", at: safe + 1, failure: format.Failure{Change: 20, Attempts: 1}},
		"of nobody, parked":                     {observer: "gone", at: 50, failure: format.Failure{Change: 20, Attempts: 1, Parked: true}},
		"of nobody, a request":                  {observer: "gone", at: 50, failure: format.Failure{Change: 20, Replay: true}, moot: true},
		"of an earlier registration":            {observer: "o", at: since - 1, failure: format.Failure{Change: 20, Attempts: 1}, moot: true},
		"of an earlier registration, parked":    {observer: "o", at: since - 1, failure: format.Failure{Change: 20, Attempts: 1, Parked: true}},
		"of this one":                           {observer: "o", at: since, failure: format.Failure{Change: 20, Attempts: 1}},
		"seen since":                            {observer: "o", at: 50, failure: format.Failure{Change: 40, Attempts: 1}, acked: 40, moot: true},
		"seen before":                           {observer: "o", at: 50, failure: format.Failure{Change: 40, Attempts: 1}, acked: 39},
		"a request":                             {observer: "o", at: 50, failure: format.Failure{Change: 40, Replay: true}, acked: 45},
	} {
		own, ack := format.FailureColumn(test.observer, "v"), format.AckColumn(test.observer, "v")
		row := &rowstore.Row{Table: "t", Row: "r", Versions: []rowstore.Version{write(own, test.at, test.failure.Encode())}}
		if test.acked > 0 {
			row.Versions = append([]rowstore.Version{write(ack, test.acked+1, format.EncodeAck(test.acked))}, row.Versions...)
		}
		view := &catalogView{observed: map[columnName]registrations{{"t", "v"}: {names: []string{"o"}, since: []Timestamp{since}, old: []bool{false}}}}
		g := &gcRow{row: row, table: "t", safe: safe, view: view}
		require.Equal(t, test.moot, g.moot(own), name)
	}
}
