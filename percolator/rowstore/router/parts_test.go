package router_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	rs "github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/coalesce"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/internal/storetest"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
	"github.com/percolate-go/percolate/percolator/rowstore/router"
)

// part is a store in memory that notes what reaches it.
type part struct {
	*memstore.Store
	marked, flushed, crashed int
	snapshots                int
	broken                   error // of Scan and Tables
	lists                    bool  // Tables lists what there is before it is broken
	report                   func(ctx context.Context) (rs.Report, error)
	listen                   func(ctx context.Context, wake func(rs.Wake)) error
}

func (p *part) Apply(ctx context.Context, muts []rs.Mutation, opts rs.ApplyOptions) ([]rs.Outcome, error) {
	if opts.Urgent && opts.Bulk {
		p.marked++
	}
	return p.Store.Apply(ctx, muts, opts)
}

func (p *part) ReadSnapshot(ctx context.Context, asks []rs.SnapshotRead) ([]rs.SnapshotRows, error) {
	p.snapshots++
	return p.Store.ReadSnapshot(ctx, asks)
}

func (p *part) Flush(ctx context.Context) error {
	p.flushed++
	return errors.Join(p.broken, p.Store.Flush(ctx))
}

func (p *part) Crash() {
	p.crashed++
	p.Store.Crash()
}

func (p *part) Scan(ctx context.Context, s rs.ScanRange) iter.Seq2[rs.Row, error] {
	if p.broken != nil {
		return func(yield func(rs.Row, error) bool) { yield(rs.Row{}, p.broken) }
	}
	return p.Store.Scan(ctx, s)
}

func (p *part) Tables(ctx context.Context) iter.Seq2[string, error] {
	if p.broken != nil {
		return func(yield func(string, error) bool) {
			for name, err := range p.Store.Tables(ctx) {
				if p.lists && !yield(name, err) {
					return
				}
			}
			yield("", p.broken)
		}
	}
	return p.Store.Tables(ctx)
}

func (p *part) Report(ctx context.Context) (rs.Report, error) {
	if p.report != nil {
		return p.report(ctx)
	}
	return rs.Report{Backend: "part", Warnings: []string{"it forgets"}}, nil
}

func (p *part) Listen(ctx context.Context, wake func(rs.Wake)) error {
	if p.listen != nil {
		return p.listen(ctx, wake)
	}
	return p.Store.Listen(ctx, wake)
}

// twoParts is a router over two parts; tables "o..." are in the second.
func twoParts(t *testing.T) (r *router.Store, main, other *part) {
	t.Helper()
	main, other = &part{Store: memstore.New()}, &part{Store: memstore.New()}
	r = newRouter(t, router.Config{Stores: map[string]rs.Store{"main": main, "other": other}, Tables: map[string]string{"o*": "other"}, Authoritative: "main"})
	return r, main, other
}

func TestRouterReachesEveryStore(t *testing.T) {
	t.Parallel()
	r, main, other := twoParts(t)
	a := r.Abilities()
	require.NoError(t, a.Deferrer.Flush(t.Context()))
	a.Crasher.Crash()
	require.Equal(t, []int{1, 1, 1, 1}, []int{main.flushed, other.flushed, main.crashed, other.crashed})
	report, err := a.Reporter.Report(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"main: it forgets", "other: it forgets"}, report.Warnings)

	// Options reach the stores, and errors say whose they are.
	_, err = r.Apply(t.Context(), []rs.Mutation{{Table: "t", Row: "r"}, {Table: "o", Row: "r"}}, rs.ApplyOptions{Urgent: true, Bulk: true})
	require.NoError(t, err)
	require.Equal(t, []int{1, 1}, []int{main.marked, other.marked})
	other.broken = errors.New("broken")
	for name, err := range map[string]error{
		"flush":  a.Deferrer.Flush(t.Context()),
		"scan":   storetest.FirstError(r.Scan(t.Context(), rs.ScanRange{Table: "o", Selectors: storetest.Everything})),
		"tables": storetest.FirstError(r.Tables(t.Context())),
	} {
		require.ErrorIs(t, err, other.broken, name)
		require.ErrorContains(t, err, `store "other"`, name)
	}
	require.NoError(t, storetest.FirstError(r.Scan(t.Context(), rs.ScanRange{Table: "t", Selectors: storetest.Everything})))
	// A store that lists its tables, and then fails, hides none of them, and none of the other stores'.
	for _, broken := range []*part{main, other} {
		main.broken, other.broken = nil, nil
		storetest.Put(t, r, "t", "r", rs.Put(rs.Write, "c", 1, nil))
		storetest.Put(t, r, "o", "r", rs.Put(rs.Write, "c", 1, nil))
		broken.broken, broken.lists = errors.New("broken"), true
		var names []string
		var last error
		for name, err := range r.Tables(t.Context()) {
			require.NoError(t, last, "nothing follows an error")
			if last = err; err == nil {
				names = append(names, name)
			}
		}
		require.ErrorIs(t, last, broken.broken)
		require.Equal(t, []string{"o", "t"}, names)
	}
	main.broken, other.broken = nil, nil
	require.NoError(t, r.Close())
}

// TestRouterReadsSnapshotsElsewhere asks the authoritative store for its own rows in one call,
// and for those of another store after a draw.
func TestRouterReadsSnapshotsElsewhere(t *testing.T) {
	t.Parallel()
	r, main, _ := twoParts(t)
	storetest.Put(t, r, "o", "r", rs.Put(rs.Write, "c", 1, []byte("there")))
	read := func(table string) rs.RowRead {
		return rs.RowRead{Table: table, Row: "r", Selectors: []rs.Selector{{Family: rs.Write, Column: "c", To: rs.AssignedTimestamp}}}
	}
	answers, err := r.Abilities().SnapshotReader.ReadSnapshot(t.Context(), []rs.SnapshotRead{{Reads: []rs.RowRead{read("t")}}})
	require.NoError(t, err)
	require.False(t, answers[0].Apart)
	require.Equal(t, 1, main.snapshots)
	answers, err = r.Abilities().SnapshotReader.ReadSnapshot(t.Context(), []rs.SnapshotRead{{Reads: []rs.RowRead{read("t"), read("o")}}})
	require.NoError(t, err)
	require.True(t, answers[0].Apart)
	require.Equal(t, 1, main.snapshots)
	require.Equal(t, "there", string(answers[0].Rows[1].Versions[0].Value))
	require.NoError(t, r.Close())
}

// TestRouterScansAtSnapshotsElsewhere: a scan of another store is at a timestamp of the authoritative one, and does not tell by the
// timestamps of the other how old it is.
func TestRouterScansAtSnapshotsElsewhere(t *testing.T) {
	t.Parallel()
	r, main, other := twoParts(t)
	storetest.Put(t, r, "o", "r", rs.Put(rs.Write, "c", 1, []byte("there")))
	storetest.Put(t, r, "t", "r", rs.Put(rs.Write, "c", 1, []byte("here")))
	drawn, err := main.Oracle().Draw(t.Context(), 1<<40) // far ahead of the other's
	require.NoError(t, err)
	drawn += 1<<40 - 1
	for _, table := range []string{"t", "o"} {
		at := &rs.ScanSnapshot{}
		s := rs.ScanRange{Table: table, Snapshot: at, Selectors: []rs.Selector{{Family: rs.Write, Column: "c", To: rs.AssignedTimestamp}}}
		require.Len(t, storetest.Scanned(t, r, s), 1)
		require.Greater(t, at.Start, drawn)
		if table == "t" {
			require.GreaterOrEqual(t, at.Latest, at.Start)
		} else {
			require.Zero(t, at.Latest)
		}
	}
	_, err = other.Oracle().Draw(t.Context(), 1)
	require.NoError(t, err)
	require.NoError(t, r.Close())
}

// TestRouterWakesOneAtATime has two stores wake at the same moment.
func TestRouterWakesOneAtATime(t *testing.T) {
	t.Parallel()
	r, main, other := twoParts(t)
	const times = 1000
	for _, p := range []*part{main, other} {
		p.listen = func(ctx context.Context, wake func(rs.Wake)) error {
			for range times {
				wake(rs.Wake{Table: "t"})
			}
			<-ctx.Done()
			return ctx.Err()
		}
	}
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	woken := 0 // by one goroutine at a time, or the race detector says so
	err := r.Abilities().Waker.Listen(ctx, func(rs.Wake) {
		if woken++; woken == 2*times {
			cancel(why)
		}
	})
	require.Equal(t, context.Canceled, err, "the context's error, as it is")
	require.Equal(t, 2*times, woken)
	require.NoError(t, r.Close())
}

// TestRouterReports has stores that fail to report: all are asked, at once, and whoever waits for one that is away
// does so only if none fails otherwise.
func TestRouterReports(t *testing.T) {
	t.Parallel()
	r, main, other := twoParts(t)
	reporter := r.Abilities().Reporter
	asked := make(chan struct{})
	main.report = func(context.Context) (rs.Report, error) {
		<-asked
		return rs.Report{}, fmt.Errorf("%w: it restarts", rs.ErrUnavailable)
	}
	other.report = func(context.Context) (rs.Report, error) {
		close(asked)
		return rs.Report{Backend: "part", Version: "7", Layout: 3}, nil
	}
	_, err := reporter.Report(t.Context())
	require.ErrorIs(t, err, rs.ErrUnavailable)
	require.EqualError(t, err, `store "main": server unavailable: it restarts`)

	asked = make(chan struct{})
	other.report = func(context.Context) (rs.Report, error) {
		close(asked)
		return rs.Report{}, rs.ErrDenied
	}
	_, err = reporter.Report(t.Context())
	require.ErrorIs(t, err, rs.ErrDenied)
	require.NotErrorIs(t, err, rs.ErrUnavailable, "it is in vain to wait")
	require.ErrorContains(t, err, `store "other": access denied`)
	require.ErrorContains(t, err, `store "main": server unavailable: it restarts`)

	main.report = nil
	other.report = func(context.Context) (rs.Report, error) {
		return rs.Report{Backend: "part", Version: "7", Layout: 3}, nil
	}
	report, err := reporter.Report(t.Context())
	require.NoError(t, err)
	require.Zero(t, report.Layout, "each store has its own")
	require.Equal(t, []rs.Feature{
		{Name: "main", Supported: true, Reason: "part, authoritative"}, {Name: "other", Supported: true, Reason: "part 7, layout 3"},
	}, report.Features)
	require.NoError(t, r.Close())
}

// TestRouterClosesAllAtOnce has a store that hangs at Close. The others are closed, and a second Close waits for the first.
func TestRouterClosesAllAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hangs := &hanging{Store: memstore.New(), release: make(chan struct{})}
		other := memstore.New()
		r := newRouter(t, router.Config{Stores: map[string]rs.Store{"a": hangs, "b": other}, Authoritative: "a"})
		var ended atomic.Int64
		for range 2 {
			go func() {
				assert.NoError(t, r.Close())
				ended.Add(1)
			}()
		}
		synctest.Wait()
		require.Zero(t, ended.Load())
		require.ErrorIs(t, other.Flush(t.Context()), rs.ErrClosed)
		close(hangs.release)
		synctest.Wait()
		require.EqualValues(t, 2, ended.Load())
	})
}

// hanging is a store whose Close hangs.
type hanging struct {
	*memstore.Store
	release chan struct{}
}

func (s *hanging) Close() error {
	<-s.release
	return s.Store.Close()
}

// TestRouterEndsContextsFirst: a call after Close whose context has ended returns the context's error.
func TestRouterEndsContextsFirst(t *testing.T) {
	t.Parallel()
	r, _, _ := twoParts(t)
	require.NoError(t, r.Close())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, table := range []string{"t", "o"} {
		asks := []rs.SnapshotRead{{Reads: []rs.RowRead{{Table: table, Row: "r", Selectors: storetest.Everything}}}}
		_, err := r.Abilities().SnapshotReader.ReadSnapshot(ctx, asks)
		require.ErrorIs(t, err, context.Canceled)
		_, err = r.Abilities().SnapshotReader.ReadSnapshot(t.Context(), asks)
		require.ErrorIs(t, err, rs.ErrClosed)
	}
	for name, err := range storetest.Calls(ctx, r) {
		if name != "Report" { // those of the parts answer always
			require.ErrorIs(t, err, context.Canceled, name)
		}
	}
}

// TestRouterFindsStrays looks for a row in the stores in which it should not be, also those of a router in a router.
func TestRouterFindsStrays(t *testing.T) {
	t.Parallel()
	inner, main, other := twoParts(t)
	third := &part{Store: memstore.New()}
	outer := newRouter(t, router.Config{Stores: map[string]rs.Store{"inner": coalesce.New(inner, coalesce.Options{}), "third": third}, Authoritative: "third"})
	s := faultstore.New(outer, faultstore.Options{})
	read := rs.RowRead{Table: "\x00catalog", Row: "r", Selectors: storetest.Everything}
	strays := func(ctx context.Context) ([]string, error) { return rs.Strays(ctx, s, read) }
	storetest.Put(t, third, read.Table, read.Row, rs.Put(rs.Write, "c", 1, nil))
	names, err := strays(t.Context())
	require.NoError(t, err)
	require.Empty(t, names, "it is where it should be")
	for _, p := range []*part{main, other} {
		storetest.Put(t, p, read.Table, "another", rs.Put(rs.Write, "c", 1, nil))
		storetest.Put(t, p, read.Table, read.Row, rs.Put(rs.Write, "c", 1, nil))
	}
	names, err = strays(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"inner", "inner/other"}, names)
	names, err = rs.Strays(t.Context(), main, read)
	require.NoError(t, err)
	require.Empty(t, names, "a store that is one has no others")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = strays(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, other.Close())
	_, err = strays(t.Context())
	require.ErrorIs(t, err, rs.ErrClosed)
	require.ErrorContains(t, err, `store "other"`)
	s.AddRule(faultstore.Rule{Match: func(c *faultstore.Call) bool { return c.Kind == faultstore.CallRead }, Fault: faultstore.Fault{Kind: faultstore.Fail}})
	_, err = strays(t.Context())
	require.ErrorIs(t, err, faultstore.ErrInjected)
	require.NoError(t, s.Close())
	_, err = outer.Strays(t.Context(), read)
	require.ErrorIs(t, err, rs.ErrClosed)
}

// TestRouterKeepsWakersApart has one store fail while the other is listened to by itself, also through wrappers and through a router in a
// router.
func TestRouterKeepsWakersApart(t *testing.T) {
	t.Parallel()
	inner, main, other := twoParts(t)
	outer := newRouter(t, router.Config{Stores: map[string]rs.Store{"inner": coalesce.New(inner, coalesce.Options{}), "third": memstore.New()}, Authoritative: "inner"})
	why := errors.New("no SUBSCRIBE here")
	other.listen = func(context.Context, func(rs.Wake)) error { return why }
	wakers := rs.WakersOf(faultstore.New(outer, faultstore.Options{}).Abilities().Waker)
	require.Len(t, wakers, 3)
	err := wakers[1].Listen(t.Context(), func(rs.Wake) { require.Fail(t, "it does not listen") })
	require.ErrorIs(t, err, why)
	require.ErrorContains(t, err, `store "inner": store "other"`)
	for i, table := range map[int]string{0: "t", 2: ""} {
		ctx, cancel := context.WithCancel(t.Context())
		var heard []rs.Wake
		err = wakers[i].Listen(ctx, func(at rs.Wake) {
			heard = append(heard, at)
			if table == "" || at.Table == table {
				cancel()
			} else {
				go func() {
					_, _ = main.Apply(ctx, []rs.Mutation{{Table: table, Row: "r", Edits: []rs.Edit{rs.Put(rs.Notify, "c", 1, nil)}}}, rs.ApplyOptions{})
				}()
			}
		})
		require.Equal(t, context.Canceled, err, "the context's error, as it is")
		require.Zero(t, heard[0])
	}
	require.Len(t, rs.WakersOf(main), 1)
	require.NoError(t, outer.Close())
}

// sharded is a store with a shard for each row.
type sharded struct{ *memstore.Store }

func (sharded) Shard(_, row string) string { return row }

// TestRouterShardsOfTwoStoresDiffer has two stores that name their shards alike.
func TestRouterShardsOfTwoStoresDiffer(t *testing.T) {
	t.Parallel()
	r := newRouter(t, router.Config{
		Stores: map[string]rs.Store{"main": sharded{memstore.New()}, "other": sharded{memstore.New()}}, Tables: map[string]string{"o": "other"}, Authoritative: "main",
	})
	for range 2 { // the name is remembered
		require.NotEqual(t, r.Shard("t", "a"), r.Shard("o", "a"))
		require.NotEqual(t, r.Shard("t", "a"), r.Shard("t", "b"))
		require.Equal(t, r.Shard("t", "a"), r.Shard("another", "a"))
	}
	require.NoError(t, r.Close())
}
