package percolator

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// nextFunc is a schedule by a function.
type nextFunc func(time.Time) time.Time

func (f nextFunc) Next(after time.Time) time.Time { return f(after) }

// What Every refuses.
func TestEveryRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	wk := NewWorker(w.client().DB, WorkerConfig{})
	f := func(context.Context, *Txn, time.Time) error { return nil }
	minute := Interval(time.Minute)
	for name, p := range map[string]Periodic{
		"no name":       {Schedule: minute, Func: f},
		"long name":     {Name: strings.Repeat("n", 129), Schedule: minute, Func: f},
		"no schedule":   {Name: "p", Func: f},
		"no function":   {Name: "p", Schedule: minute},
		"version":       {Name: "p", Version: -1, Schedule: minute, Func: f},
		"each of none":  {Name: "p", Missed: Each(0), Schedule: minute, Func: f},
		"each of less":  {Name: "p", Missed: Each(-1), Schedule: minute, Func: f},
		"each of many":  {Name: "p", Missed: Each(10_001), Schedule: minute, Func: f},
		"no interval":   {Name: "p", Schedule: Interval(0), Func: f},
		"back interval": {Name: "p", Schedule: Interval(-time.Second), Func: f},
		"stands still":  {Name: "p", Schedule: nextFunc(func(t time.Time) time.Time { return t }), Func: f},
		"goes back":     {Name: "p", Schedule: nextFunc(func(t time.Time) time.Time { return t.Add(-1) }), Func: f},
		"ends":          {Name: "p", Schedule: nextFunc(func(time.Time) time.Time { return time.Time{} }), Func: f},
		"too far":       {Name: "p", Schedule: nextFunc(func(time.Time) time.Time { return time.Unix(1<<40, 0) }), Func: f},
		"panics":        {Name: "p", Schedule: nextFunc(nil), Func: f},
		"typed nil":     {Name: "p", Schedule: (*cron)(nil), Func: f},
	} {
		require.ErrorIs(t, wk.Every(p), ErrInvalid, name)
	}
	good := Periodic{Name: "p", Schedule: minute, Func: f}
	require.NoError(t, wk.Every(good))
	require.ErrorIs(t, wk.Every(good), ErrInvalid)
	require.ErrorIs(t, wk.Observe(Observer{Name: "p", Table: "t", Column: "c", Func: func(context.Context, *Txn, Cell) error { return nil }}), ErrInvalid)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, wk.Run(ctx))
	good.Name = "q"
	require.ErrorIs(t, wk.Every(good), ErrWorkerRunning)
}

// An interval has the same times in every process.
func TestInterval(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "d"))
		every := (d + time.Millisecond - 1).Truncate(time.Millisecond)
		after := time.UnixMilli(rapid.Int64Range(-1e13, 3e13).Draw(t, "after"))
		next := Interval(d).Next(after)
		require.True(t, next.After(after))
		require.LessOrEqual(t, next.Sub(after), every)
		require.Zero(t, next.UnixMilli()%every.Milliseconds())
	})
	require.Equal(t, "every 1m0s", fmt.Sprint(Interval(time.Minute)))
}

// Which tick is run, of those that are due.
func TestMissed(t *testing.T) {
	t.Parallel()
	hour := func(h, m int) time.Time { return time.Date(2024, 1, 1, h, m, 0, 0, time.UTC) }
	hourly, err := Cron("@hourly", nil)
	require.NoError(t, err)
	minutely := Interval(time.Minute)
	for name, test := range map[string]struct {
		m            Missed
		s            Schedule
		tick, now    time.Time
		begun        bool
		chosen, next time.Time
		run          bool
	}{
		"in time":                   {Skip, hourly, hour(1, 0), hour(1, 0), false, hour(1, 0), hour(2, 0), true},
		"a little late":             {Skip, hourly, hour(1, 0), hour(1, 1), false, hour(1, 0), hour(2, 0), true},
		"late":                      {Skip, hourly, hour(1, 0), hour(1, 2), false, hour(1, 0), hour(2, 0), false},
		"late, and tried before":    {Skip, hourly, hour(1, 0), hour(1, 59), true, hour(1, 0), hour(2, 0), true},
		"several":                   {Skip, hourly, hour(1, 0), hour(5, 30), false, hour(5, 0), hour(6, 0), false},
		"several, and tried before": {Skip, hourly, hour(1, 0), hour(5, 30), true, hour(5, 0), hour(6, 0), false},
		"the newest is in time":     {Skip, hourly, hour(1, 0), hour(5, 0), false, hour(5, 0), hour(6, 0), true},
		"short, late":               {Skip, minutely, hour(1, 0), hour(1, 3), false, hour(1, 3), hour(1, 4), true},
		"once, in time":             {Once, hourly, hour(1, 0), hour(1, 0), false, hour(1, 0), hour(2, 0), true},
		"once":                      {Once, hourly, hour(1, 0), hour(5, 30), false, hour(5, 0), hour(6, 0), true},
		"each, in time":             {Each(2), hourly, hour(1, 0), hour(1, 30), false, hour(1, 0), hour(2, 0), true},
		"each, all":                 {Each(5), hourly, hour(1, 0), hour(5, 30), false, hour(1, 0), hour(2, 0), true},
		"each, one too many":        {Each(4), hourly, hour(1, 0), hour(5, 30), false, hour(2, 0), hour(3, 0), true},
		"each, one":                 {Each(1), hourly, hour(1, 0), hour(5, 30), false, hour(5, 0), hour(6, 0), true},
		"each, of very many":        {Each(3), minutely, hour(1, 0).AddDate(-5, 0, 0), hour(1, 30), false, hour(1, 28), hour(1, 29), true},
	} {
		chosen, next, run, err := test.m.plan(test.s, test.tick, test.now, test.begun)
		require.NoError(t, err, name)
		require.Equal(t, []any{test.chosen, test.next, test.run}, []any{chosen, next, run}, name)
	}
}

// Workers that run share the ticks: each is committed once, and in order.
func TestPeriodicWorkers(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	atend.Do(t, func() { _ = mem.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	ends := make(chan error, 3)
	const every = 20 * time.Millisecond
	var dbs []*DB
	for range cap(ends) {
		db, err := New(t.Context(), mem, WithSettings(Settings{CatalogLease: 50 * time.Millisecond}))
		require.NoError(t, err)
		atend.Do(t, func() { require.NoError(t, db.Close(context.Background())) })
		dbs = append(dbs, db)
		wk := NewWorker(db, WorkerConfig{MemberLease: 50 * time.Millisecond})
		require.NoError(t, wk.Every(Periodic{Name: "p", Schedule: Interval(every), Missed: Each(10_000), Func: func(_ context.Context, tx *Txn, tick time.Time) error {
			return tx.Set(row(fmt.Sprint(tick.UnixMilli())), []byte("x"))
		}}))
		go func() { ends <- wk.Run(ctx) }()
	}
	var ticks []string
	require.Eventually(t, func() bool {
		ticks = ticks[:0]
		require.NoError(t, dbs[0].View(t.Context(), func(tx *Txn) error {
			ticks = ticks[:0]
			for r, err := range tx.Scan(t.Context(), Range{Table: "t"}) {
				if err != nil {
					return err
				}
				ticks = append(ticks, r.Key)
			}
			return nil
		}))
		return len(ticks) >= 20
	}, patience, every)
	cancel()
	for range cap(ends) {
		require.NoError(t, <-ends)
	}
	var first int64
	_, err := fmt.Sscan(ticks[0], &first)
	require.NoError(t, err)
	for i, tick := range ticks {
		require.Equal(t, fmt.Sprint(first+int64(i)*every.Milliseconds()), tick, "of %v", ticks)
		commits := 0
		for _, err := range dbs[0].History(t.Context(), row(tick), 0, 0) {
			require.NoError(t, err)
			commits++
		}
		require.Equal(t, 1, commits, "of tick %s", tick)
	}
}
