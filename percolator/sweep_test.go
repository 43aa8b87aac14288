package percolator

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// sweepNew is one attempt of each sweep that is due, one after another. It waits for the end of another worker's lease, and leaves that sweep.
func (w *Worker) sweepNew(ctx context.Context) error {
	sweeps, err := w.freshSweeps(ctx, func(string) bool { return false })
	for _, s := range sweeps {
		_, held, aerr := s.attempt(ctx)
		if err = errors.Join(err, aerr); held > 0 {
			err = errors.Join(err, w.db.clock.Sleep(ctx, held))
		}
	}
	return err
}

// sweepFor sweeps once for a registration, whose sweep is not taken for done then.
func (w *Worker) sweepFor(ctx context.Context, r format.Observer, at Timestamp) error {
	_, err := w.newSweeper(r, at).sweep(ctx)
	return err
}

// notifies are calls that notify cells of a column.
func notifies(column string) matcher {
	return func(x *call) bool {
		return edits(x, func(m *rowstore.Mutation, e *rowstore.Edit) bool {
			return m.Table == "t" && e.Kind == rowstore.DoPut && e.Family == rowstore.Notify && e.Column == column
		})
	}
}

// isLease are calls that take the lease of a sweep.
func isLease(x *call) bool {
	return edits(x, func(m *rowstore.Mutation, e *rowstore.Edit) bool {
		return m.Table == format.TableSweeps && e.Kind == rowstore.DoPut
	})
}

// slowTable reads all rows of table t for a sweep, also those that it does not hand out, and lets time pass with each.
type slowTable struct {
	*memstore.Store
	scans *int
	pass  func()
}

func (s slowTable) Scan(ctx context.Context, r rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	if r.Table != "t" || len(r.Selectors) <= 2 {
		return s.Store.Scan(ctx, r)
	}
	*s.scans++
	all := r
	all.Selectors = append(slices.Clip(r.Selectors), everything(rowstore.Write, "other"))
	return func(yield func(rowstore.Row, error) bool) {
		for row, err := range s.Store.Scan(ctx, all) {
			s.pass()
			row.Versions = slices.DeleteFunc(slices.Clone(row.Versions), func(v rowstore.Version) bool { return v.Column == "other" })
			if (err != nil || len(row.Versions) > 0) && !yield(row, err) {
				return
			}
		}
	}
}

// B4. Guards: a sweep moves past all that it finds, however slowly it finds that: it comes to its end after about as many scans as there are retentions in the time
// that the table takes to be read. What is found early is notified before a long stretch without a cell ends. The lease is kept meanwhile.
func TestScheduleB4_SweepOfASparseColumn(t *testing.T) {
	t.Parallel()
	const rows, step = 2000, 100 * time.Millisecond // so 600 rows in a retention
	for name, every := range map[string]int{"three cells": 1, "as many in a retention as are settled together": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			has := func(i int) bool { return i == 0 || i == 1000 || i == rows-1 }
			if every == 0 {
				has = func(i int) bool { return i%3 == 0 } // settleMost of them take 0.64 of it
			}
			w := newWorld(t)
			scans, passing := 0, func() {}
			c := w.clientOver(newWireTo(slowTable{w.mem, &scans, func() { passing() }}, w.mem), WithSettings(Settings{MaxTxnAge: 10 * time.Second, Retention: time.Minute, CatalogLease: worldLease}))
			other := w.client()
			cell := func(i int) Cell { return row(fmt.Sprintf("r%06d", i)) }
			var cells []int
			require.NoError(t, c.Update(t.Context(), func(tx *Txn) (err error) {
				for i := range rows {
					to := cell(i)
					if has(i) {
						cells = append(cells, i)
					} else {
						to.Column = "other"
					}
					err = errors.Join(err, tx.Set(to, []byte("1")))
				}
				// So that the scan reads it.
				return errors.Join(err, tx.Set(Cell{"t", "r000000", "other"}, []byte("1")))
			}))
			var s saw
			wk := watching(t, c, s.observer("o"))
			require.NoError(t, wk.publish(t.Context()))
			v, err := c.loadCatalog(t.Context())
			require.NoError(t, err)
			n := 0
			passing = func() {
				n++
				w.clock.advance(step)
				if n%100 == 0 {
					later, err := other.Now(t.Context())
					require.NoError(t, err)
					v, err := other.loadCatalog(t.Context())
					require.NoError(t, err)
					_, err = other.publishSafePoint(t.Context(), v, later.Add(-time.Minute))
					require.NoError(t, err)
				}
				if n == 1500 {
					require.Len(t, w.notified(cell(0)), 1, "it waits for the end of the scan")
				}
				require.Less(t, n, 20*rows, "it comes to no end")
			}
			require.NoError(t, wk.sweepFor(t.Context(), v.Observers[0], mustNow(t, c)))
			require.Greater(t, scans, 1, "it has gone on by another snapshot")
			require.LessOrEqual(t, scans, 5)
			require.Less(t, n, 2*rows)
			for _, i := range cells {
				require.Len(t, w.notified(cell(i)), 1, "row %d", i)
			}
		})
	}
}

// B4. Guards: no failure makes a sweep put a second notification on a cell: a lost reply to a notification, or to a renewal of its lease, and a store that is away.
func TestScheduleB4_SweepGoesOnAfterAFailure(t *testing.T) {
	t.Parallel()
	const rows = 3*sweepBatch - 10
	cell := func(i int) Cell { return row(fmt.Sprintf("r%06d", i)) }
	second := func(c *client, match matcher, end verdict) {
		n := 0
		c.wire.AddRule(faultstore.Rule{Fault: end, Match: func(x *call) bool {
			if match(x) {
				n++
			}
			return n == 2 && match(x)
		}})
	}
	away := verdict{Kind: faultstore.Fail, Err: rowstore.ErrUnavailable}
	for name, fails := range map[string]func(c *client, wk *Worker){
		"a notification is lost":        func(c *client, _ *Worker) { second(c, notifies("v"), lose) },
		"its reply is lost":             func(c *client, _ *Worker) { second(c, notifies("v"), loseReply) },
		"the store is away":             func(c *client, _ *Worker) { second(c, notifies("v"), away) },
		"a part of a call did not come": func(c *client, _ *Worker) { c.only(notifies("v"), cell(7)) },
		"its lease is not renewed": func(c *client, wk *Worker) {
			second(c, isLease, lose)
			wk.config.MemberLease = 3 * longSleep / 2 // whose third takes no time
		},
		"the scan fails": func(c *client, _ *Worker) {
			second(c, func(x *call) bool { return x.Kind == faultstore.CallScan && x.Range.Table == "t" }, away)
		},
		"it is not taken for done": func(c *client, _ *Worker) {
			c.wire.verdict(func(x *call) bool {
				return len(c.wire.sent(notifies("v"))) == 3 && edits(x, func(m *rowstore.Mutation, _ *rowstore.Edit) bool { return m.Table == format.TableCatalog })
			}, away)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			c := w.client(WithStorePatience(-1))
			setEach(t, c.DB, rows, cell)
			var s saw
			wk := watching(t, c, s.observer("o"))
			require.NoError(t, wk.publish(t.Context()))
			sweeps, err := wk.freshSweeps(t.Context(), func(string) bool { return false })
			require.NoError(t, err)
			require.Len(t, sweeps, 1)
			fails(c, wk)
			require.NoError(t, w.finish(async(func() error { return sweeps[0].run(t.Context(), make(chan struct{}, 1)) })))
			for i := range rows {
				require.Len(t, w.notified(cell(i)), 1, "row %d", i)
			}
			v, err := c.loadCatalog(t.Context())
			require.NoError(t, err)
			require.Empty(t, wk.unswept(v))
		})
	}
}

// Two workers have two new observers. What one has swept the other does not sweep again, however late it comes to that.
func TestScheduleB4_SweptByAnotherMeanwhile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.client(), w.client()
	for _, column := range []string{"v", "w"} {
		set(t, a.DB, Cell{"t", "r", column}, "1")
	}
	var s saw
	observers := []Observer{s.observer("first"), s.observer("second")}
	observers[0].Table, observers[0].Column = "t", "v"
	observers[1].Table, observers[1].Column = "t", "w"
	first, second := watching(t, a, observers...), watching(t, b, observers...)
	require.NoError(t, first.publish(t.Context()))
	require.NoError(t, second.publish(t.Context()))
	p := a.hold(t, notifies("v"))
	swept := async(func() error { return first.sweepNew(t.Context()) })
	p.wait()
	sweeps, err := second.freshSweeps(t.Context(), func(string) bool { return false })
	require.NoError(t, err)
	for _, s := range sweeps {
		_, held, err := s.attempt(t.Context())
		require.NoError(t, err)
		require.Equal(t, s.column == "v", held > 0, "the first one is at it")
	}
	require.Len(t, b.wire.sent(notifies("w")), 1)
	p.release(pass)
	require.NoError(t, w.finish(swept))
	require.Empty(t, a.wire.sent(notifies("w")), "it was swept again")
	require.Len(t, w.notified(Cell{"t", "r", "w"}), 1)
}

// A sweep that takes for ever holds up no other one of its worker.
func TestSweepBesideOneThatHangs(t *testing.T) {
	withTwoStores(t, func(t *testing.T, s *twoStores) {
		tables := []string{"away", "away2"}
		var held []*faultstore.Held
		for _, table := range tables {
			set(t, s.DB, Cell{table, "r", "v"}, "1")
			held = append(held, s.wire.Hold(faultstore.Rule{Match: func(x *faultstore.Call) bool {
				return x.Kind == faultstore.CallApply && len(x.Muts) > 0 && len(x.Muts[0].Edits) > 0 && x.Muts[0].Edits[0].Family == rowstore.Notify && x.Muts[0].Table == table
			}}))
		}
		set(t, s.DB, Cell{"here", "r", "v"}, "1")
		w := s.worker("away", "away2", "here")
		s.run(w)
		passes(time.Minute)
		for i, h := range held { // whichever was first
			select {
			case <-h.Reached():
			default:
				require.Fail(t, "the sweep has not come so far", tables[i])
			}
		}
		require.Equal(t, 1, s.called("here"))
		for _, h := range held {
			h.Release(pass)
		}
		require.NoError(t, w.WaitIdle(t.Context()))
		for _, table := range tables {
			require.Equal(t, 1, s.called(table))
		}
	})
}

// leaseSweep stores a lease of another worker for the sweep of the crew's only registration.
func (c *crew) leaseSweep(by string, ends Timestamp) {
	c.t.Helper()
	v, err := c.source.loadCatalog(c.t.Context())
	require.NoError(c.t, err)
	require.Len(c.t, v.Observers, 1)
	_, err = c.mem.Apply(c.t.Context(), []rowstore.Mutation{{Table: format.TableSweeps, Row: format.SweepLeaseRow(&v.Observers[0]), Edits: []rowstore.Edit{
		rowstore.Put(rowstore.Write, by, ends, format.TimestampOnly),
	}}}, rowstore.ApplyOptions{})
	require.NoError(c.t, err)
}

// A lease of a sweep that ends later than any that a worker takes is no lease.
func TestSweepLeaseThatEndsFarAhead(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		c.change(rows("r", 64)...)
		m := c.hire(WorkerConfig{}, nil, "o")
		require.NoError(t, m.publish(t.Context()))
		c.leaseSweep("somebody", c.now().Add(100*365*24*time.Hour))
		m.start()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		require.Equal(t, 64, m.count())
		require.Empty(t, c.left(0))
		for row, err := range c.mem.Scan(t.Context(), rowstore.ScanRange{Table: format.TableSweeps, Selectors: []rowstore.Selector{everything(rowstore.Write, "somebody")}}) {
			require.NoError(t, err)
			require.Fail(t, "the lease is left", row.Row)
		}
	})
}

// registerAgain has the crew's only observer removed and registered again in one step, so that no worker finds it missing, by a worker that dies with a lease of the sweep.
// Nothing notifies the cells that are there.
func (c *crew) registerAgain(lease time.Duration) (ends Timestamp) {
	c.t.Helper()
	_, err := c.source.changeCatalog(c.t.Context(), func(v *catalogView) (bool, error) {
		o := &v.Observers[0]
		o.Swept, o.Since, ends = 0, v.asOf, v.asOf.Add(lease)
		_, err := c.mem.Apply(c.t.Context(), []rowstore.Mutation{{Table: format.TableSweeps, Row: format.SweepLeaseRow(o), Edits: []rowstore.Edit{
			rowstore.Put(rowstore.Write, "somebody", ends, format.TimestampOnly),
		}}}, rowstore.ApplyOptions{})
		return true, err
	})
	require.NoError(c.t, err)
	return ends
}

// An observer that another process has registered again is swept for by any worker that runs it, when the process that registered it has died
// and its lease has ended, and not before.
func TestSweepIsTakenOver(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		m := c.hire(WorkerConfig{}, nil, "o").start()
		settle()
		c.change(rows("r", 8)...)
		c.handles(time.Second)
		require.Equal(t, 8, m.count())
		ends := c.registerAgain(10 * time.Second)
		time.Sleep(ends.Sub(c.now()) - 100*time.Millisecond)
		synctest.Wait()
		require.Equal(t, 8, m.count(), "the lease has yet to end")
		require.NoError(t, m.WaitIdle(t.Context()))
		require.Equal(t, 16, m.count(), "the sweep shows all cells to the new registration")
		require.Empty(t, c.left(0))
		infos, err := c.source.Observers(t.Context())
		require.NoError(t, err)
		require.True(t, infos[0].Swept, "WaitIdle did not wait for the sweep")
		select {
		case <-m.ended:
			require.Fail(t, "the worker has ended")
		default:
		}
	})
}

// The same while the oracle's time stands still, as after somebody has set its clock back.
func TestSweepIsTakenOverWhileTheOracleStandsStill(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var back atomic.Int64
		c := &crew{t: t, mem: memstore.New(memstore.WithClock(func() time.Time { return time.Now().Add(-time.Duration(back.Load())) }))}
		c.source = c.open(faultstore.New(c.mem, faultstore.Options{KeepOpen: true, Seed: 1}))
		m := c.hire(WorkerConfig{}, nil, "o").start()
		settle()
		c.change(rows("r", 8)...)
		c.handles(time.Second)
		back.Store(int64(time.Hour))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		c.registerAgain(3 * time.Second)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		require.Equal(t, 16, m.count())
	})
}
