package percolator

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// What the error of a loop says of the observers in it.

// The error names the observers of the loop where their runs were this worker's, and no rows but that of its own cell: it is stored beside that one, and
// stays there when the others are erased.
func TestScheduleH_LoopIsNamed(t *testing.T) {
	t.Parallel()
	ping, pong := Cell{"t", "x", "v"}, Cell{"u", "secret", "w"}
	for _, together := range []bool{true, false} {
		t.Run(fmt.Sprint("one worker: ", together), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.observed("t", "v", "ping")
			w.observed("u", "w", "pong")
			w.tracked()
			sets := func(name string, of, next Cell) Observer {
				return Observer{Name: name, Table: of.Table, Column: of.Column, MaxHops: 20, Func: func(_ context.Context, tx *Txn, _ Cell) error {
					return tx.Set(next, []byte(fmt.Sprint(tx.Hops())))
				}}
			}
			c := w.client()
			pings := watching(t, c, sets("ping", ping, pong))
			pongs := pings
			if together {
				require.NoError(t, pings.Observe(sets("pong", pong, ping)))
			} else {
				pongs = watching(t, w.client(), sets("pong", pong, ping))
			}
			set(t, c.DB, ping, "outside")
			for range 10 {
				runs(t, pings, ping)
				require.NoError(t, c.drained(t.Context()))
				runs(t, pongs, pong)
				require.NoError(t, pongs.db.drained(t.Context()))
			}
			require.Equal(t, runAgain, look(t, pings, ping))
			parked, err := c.Parked(t.Context())
			require.NoError(t, err)
			require.Len(t, parked, 1)
			require.Equal(t, ping, parked[0].Cell)
			text := parked[0].Error
			require.Contains(t, text, ErrTooManyHops.Error())
			require.Contains(t, text, "20 runs")
			require.Contains(t, text, `observer "ping" is to see`)
			require.NotContains(t, text, "secret")
			if together {
				require.Contains(t, text, `"pong" of table "u", column "w"; "ping" of table "t", column "v"`)
			} else {
				require.NotContains(t, text, "pong")
				require.Contains(t, text, "another worker's")
			}
		})
	}
}

// A worker remembers so many runs and no more, and an error names so many observers.
func TestLastHopsAreBounded(t *testing.T) {
	t.Parallel()
	var l lastHops
	db := newWorld(t).client().DB
	v := *db.known()
	v.CascadesFrom = 1
	db.view.Store(&v)
	l.limit(-1)
	require.Zero(t, l.least)
	l.limit(100)
	l.limit(200)
	for n := range 2 * mostHopsKept {
		i := Timestamp(n)
		l.note(&Txn{db: db, commit: i + 1, run: &runOf{hops: 84}}, &Observer{Name: fmt.Sprint("o", n)}, &cellView{cell: rowA, change: i})
		l.note(&Txn{db: db, commit: i + 1000, run: &runOf{hops: 83}}, &Observer{Name: "far"}, &cellView{cell: rowA, change: i})
	}
	require.Len(t, l.runs, mostHopsKept)
	require.Len(t, l.order, mostHopsKept)
	text := l.before(2 * mostHopsKept)
	require.Contains(t, text, `"o511"`)
	require.Contains(t, text, `"o504"`)
	require.NotContains(t, text, `"o503"`)
	require.Contains(t, l.before(mostHopsKept), "another worker's")
	require.Contains(t, l.before(1100), "another worker's")
}

// An observer that was refused asks for nothing: the catalog is as it was.
func TestRefusedObserverTracksNothing(t *testing.T) {
	t.Parallel()
	c := newWorld(t).client()
	f := func(context.Context, *Txn, Cell) error { return nil }
	w := watching(t, c, Observer{Name: "o", Table: "t", Column: "v", Func: f})
	for name, o := range map[string]Observer{
		"the name is taken": {Name: "o", Table: "t", Column: "v", Func: f},
		"no function":       {Name: "p", Table: "t", Column: "v"},
		"no column":         {Name: "p", Table: "t", Func: f},
		"bad concurrency":   {Name: "p", Table: "t", Column: "v", Func: f, Concurrency: -1},
		"bad rate":          {Name: "p", Table: "t", Column: "v", Func: f, Rate: -1},
		"no name":           {Table: "t", Column: "v", Func: f},
	} {
		o.MaxHops = 5
		require.Error(t, w.Observe(o), name)
		require.False(t, w.tracks, name)
	}
	require.Equal(t, defaultMaxHops, w.lastHops.least)
	require.NoError(t, w.publish(t.Context()))
	after, err := c.loadCatalog(t.Context())
	require.NoError(t, err)
	require.False(t, after.Cascades)
	require.Zero(t, after.CascadesFrom)
	require.Len(t, after.Observers, 1)
}
