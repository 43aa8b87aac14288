package faultstore_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	rs "github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/coalesce"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/internal/storetest"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// script is a hook that gives the next call of a kind a fault.
type script struct {
	mu   sync.Mutex
	next map[faultstore.CallKind]faultstore.Fault
	seen []faultstore.Call
}

func (s *script) on(k faultstore.CallKind, f faultstore.Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next[k] = f
}

func (s *script) call(c faultstore.Call) faultstore.Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, c)
	f := s.next[c.Kind]
	delete(s.next, c.Kind)
	return f
}

// scripted returns a faultstore over a memstore whose faults the script decides.
func scripted() (*faultstore.Store, *memstore.Store, *script) {
	m, s := memstore.New(), &script{next: map[faultstore.CallKind]faultstore.Fault{}}
	return faultstore.New(m, faultstore.Options{OnCall: s.call}), m, s
}

func isAmbiguous(err error) bool { return errors.Is(err, rs.ErrAmbiguous) }

// write puts a version of its own into row, by Apply or by Group.
func write(ctx context.Context, s rs.Store, kind faultstore.CallKind, rows ...string) ([]rs.Outcome, error) {
	muts := storetest.Mutations(rows...)
	if kind == faultstore.CallApply {
		return s.Apply(ctx, muts, rs.ApplyOptions{})
	}
	g, _ := rs.Unwrap[rs.Grouper](s)
	var groups []rs.Group
	for _, m := range muts {
		groups = append(groups, rs.Group{Mutations: []rs.Mutation{m}})
	}
	outs, err := g.Group(ctx, groups)
	var all []rs.Outcome
	for _, o := range outs {
		all = append(all, rs.Outcome{Applied: o.Applied, Err: o.Err})
	}
	return all, err
}

func TestFaultyWrites(t *testing.T) {
	t.Parallel()
	for _, kind := range []faultstore.CallKind{faultstore.CallApply, faultstore.CallGroup} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			f, m, s := scripted()
			written := func(row string) bool { return len(storetest.Read(t, m, "t", row)) == 1 }

			_, err := write(t.Context(), f, kind, "well")
			require.NoError(t, err)
			require.True(t, written("well"))

			s.on(kind, faultstore.Fault{Kind: faultstore.Fail})
			_, err = write(t.Context(), f, kind, "fail")
			require.ErrorIs(t, err, faultstore.ErrInjected)
			require.NotErrorIs(t, err, rs.ErrAmbiguous)
			require.False(t, written("fail"))

			for _, applied := range []bool{false, true} {
				row := fmt.Sprint("lost", applied)
				s.on(kind, faultstore.Fault{Kind: faultstore.LoseReply, Applied: applied})
				_, err = write(t.Context(), f, kind, row)
				require.ErrorIs(t, err, faultstore.ErrInjected)
				require.ErrorIs(t, err, rs.ErrAmbiguous)
				require.Equal(t, applied, written(row))

				a, b, c := fmt.Sprint("a", applied), fmt.Sprint("b", applied), fmt.Sprint("c", applied)
				s.on(kind, faultstore.Fault{Kind: faultstore.LoseRow, Applied: applied, Row: 4})
				outs, err := write(t.Context(), f, kind, a, b, c)
				require.NoError(t, err)
				require.True(t, outs[0].Applied && outs[2].Applied && !outs[1].Applied)
				require.ErrorIs(t, outs[1].Err, rs.ErrAmbiguous)
				require.Equal(t, []bool{true, applied, true}, []bool{written(a), written(b), written(c)})
			}

			s.on(kind, faultstore.Fault{Kind: faultstore.FailRow, Row: 2})
			outs, err := write(t.Context(), f, kind, "x", "y", "z")
			require.NoError(t, err)
			require.True(t, outs[0].Applied && outs[1].Applied && !outs[2].Applied)
			require.ErrorIs(t, outs[2].Err, faultstore.ErrInjected)
			require.NotErrorIs(t, outs[2].Err, rs.ErrAmbiguous)
			require.Equal(t, []bool{true, true, false}, []bool{written("x"), written("y"), written("z")})

			// A row's fault in a batch without rows is none.
			s.on(kind, faultstore.Fault{Kind: faultstore.FailRow})
			outs, err = write(t.Context(), f, kind)
			require.NoError(t, err)
			require.Empty(t, outs)

			require.Equal(t, 2, f.Count(faultstore.LoseReply, kind))
			require.Equal(t, 2, f.Count(faultstore.LoseRow))
			require.Equal(t, 1, f.Count(faultstore.FailRow))
			require.Equal(t, 2, f.Count(faultstore.NoFault))
			require.Zero(t, f.Count(faultstore.Fail, faultstore.CallRead))
			require.Contains(t, f.String(), fmt.Sprintf("seed %d, 8 calls", f.Seed()))
			require.Contains(t, f.String(), kind.String()+" lose row 2")
			require.EqualValues(t, 8, s.seen[len(s.seen)-1].Seq)
		})
	}
}

func TestFaultyRequestsThatArriveLateOrTwice(t *testing.T) {
	t.Parallel()
	for _, kind := range []faultstore.CallKind{faultstore.CallApply, faultstore.CallGroup} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			f, m, s := scripted()
			s.on(kind, faultstore.Fault{Kind: faultstore.Late, Rows: 1})
			ctx, cancel := context.WithCancel(t.Context())
			_, err := write(ctx, f, kind, "late")
			cancel()
			require.ErrorIs(t, err, rs.ErrAmbiguous)
			require.ErrorIs(t, err, faultstore.ErrInjected)
			require.Empty(t, storetest.Read(t, f, "t", "late"), "one call passes it")
			require.Len(t, storetest.Read(t, f, "t", "late"), 1, "and the next finds it")

			s.on(kind, faultstore.Fault{Kind: faultstore.Late, Rows: 1000})
			_, err = write(t.Context(), f, kind, "later")
			require.ErrorIs(t, err, rs.ErrAmbiguous)
			f.CrashClient()
			require.Empty(t, storetest.Read(t, m, "t", "later"))
			f.DeliverLate()
			require.Len(t, storetest.Read(t, m, "t", "later"), 1)

			// The second arrival finds what the first one did.
			f, m, s = scripted()
			s.on(kind, faultstore.Fault{Kind: faultstore.Twice})
			mut := rs.Mutation{
				Table: "t", Row: "r", Conditions: []rs.Condition{rs.Absent(rs.Write, "c", 0)},
				Edits: []rs.Edit{rs.Put(rs.Write, "c", 1, nil)},
			}
			if kind == faultstore.CallApply {
				require.False(t, storetest.Apply(t, f, mut).Applied)
			} else {
				g, _ := rs.Unwrap[rs.Grouper](f)
				out, err := g.Group(t.Context(), []rs.Group{{Mutations: []rs.Mutation{mut}}})
				require.NoError(t, err)
				require.False(t, out[0].Applied)
			}
			require.Len(t, storetest.Read(t, m, "t", "r"), 1)
		})
	}
	t.Run("never after Close", func(t *testing.T) {
		t.Parallel()
		m, s := memstore.New(), &script{next: map[faultstore.CallKind]faultstore.Fault{faultstore.CallApply: {Kind: faultstore.Late}}}
		f := faultstore.New(m, faultstore.Options{OnCall: s.call, KeepOpen: true})
		_, err := write(t.Context(), f, faultstore.CallApply, "late")
		require.ErrorIs(t, err, rs.ErrAmbiguous)
		require.NoError(t, f.Close())
		f.DeliverLate()
		require.Empty(t, storetest.Read(t, m, "t", "late"))
		for name, err := range storetest.Calls(t.Context(), f) {
			if name != "Report" {
				require.ErrorIs(t, err, rs.ErrClosed, name)
			}
		}
	})
}

// TestFaultyReads has the faults of every kind of call that reads. It is long because it is
// a list of them.
func TestFaultyReads(t *testing.T) {
	t.Parallel()
	f, m, s := scripted()
	for i := range 5 {
		storetest.Put(t, m, fmt.Sprint("t", i), "r", rs.Put(rs.Write, "c", 1, nil))
		storetest.Put(t, m, "t", fmt.Sprint(i), rs.Put(rs.Write, "c", 1, nil))
	}
	reads := []rs.RowRead{{Table: "t", Row: "1", Selectors: storetest.Everything}, {Table: "t", Row: "2", Selectors: storetest.Everything}}
	for _, fault := range []faultstore.Fault{{Kind: faultstore.Fail}, {Kind: faultstore.LoseReply}, {Kind: faultstore.LoseReply, Applied: true}} {
		s.on(faultstore.CallRead, fault)
		rows, err := f.Read(t.Context(), reads)
		require.ErrorIs(t, err, faultstore.ErrInjected)
		require.NotErrorIs(t, err, rs.ErrAmbiguous, "a read changes nothing")
		require.Nil(t, rows)
	}
	for _, kind := range []faultstore.FaultKind{faultstore.FailRow, faultstore.LoseRow} {
		s.on(faultstore.CallRead, faultstore.Fault{Kind: kind, Row: 1})
		rows, err := f.Read(t.Context(), reads)
		require.NoError(t, err)
		require.Len(t, rows[0].Versions, 1)
		require.ErrorIs(t, rows[1].Err, faultstore.ErrInjected)
		require.Equal(t, rs.Row{Table: "t", Row: "2", Err: rows[1].Err}, rows[1])
	}
	for _, c := range []struct {
		fault faultstore.Fault
		steps int
		fails bool
	}{
		{faultstore.Fault{}, 5, false},
		{faultstore.Fault{Kind: faultstore.Fail}, 0, true},
		{faultstore.Fault{Kind: faultstore.Fail, Rows: 3}, 3, true},
		{faultstore.Fault{Kind: faultstore.Fail, Rows: 100}, 5, true},
		{faultstore.Fault{Kind: faultstore.LoseReply}, 0, true},
		{faultstore.Fault{Kind: faultstore.LoseReply, Applied: true}, 5, true},
		{faultstore.Fault{Kind: faultstore.Late}, 5, false},
	} {
		s.on(faultstore.CallScan, c.fault)
		steps, err := 0, error(nil)
		for _, e := range f.Scan(t.Context(), rs.ScanRange{Table: "t", Selectors: storetest.Everything}) {
			if err = e; err == nil {
				steps++
			}
		}
		require.Equal(t, c.steps, steps, "%+v", c.fault)
		require.Equal(t, c.fails, err != nil)
		if c.fails {
			require.ErrorIs(t, err, faultstore.ErrInjected)
		}
	}
	s.on(faultstore.CallTables, faultstore.Fault{Kind: faultstore.Fail, Rows: 2})
	var names []string
	var last error
	for name, err := range f.Tables(t.Context()) {
		if last = err; err == nil {
			names = append(names, name)
		}
	}
	require.Equal(t, []string{"t", "t0"}, names)
	require.ErrorIs(t, last, faultstore.ErrInjected)

	// Each use of a sequence is a call, and its caller may stop it.
	seq := f.Scan(t.Context(), rs.ScanRange{Table: "t", Selectors: storetest.Everything})
	before := f.Count(faultstore.NoFault, faultstore.CallScan)
	for range 2 {
		for _, err := range seq {
			require.NoError(t, err)
			break
		}
	}
	require.Equal(t, before+2, f.Count(faultstore.NoFault, faultstore.CallScan))
}

func TestFaultyAbilities(t *testing.T) {
	t.Parallel()
	for _, fault := range []faultstore.Fault{{Kind: faultstore.Fail}, {Kind: faultstore.LoseReply}, {Kind: faultstore.LoseReply, Applied: true}} {
		f, m, s := scripted()
		for _, k := range []faultstore.CallKind{faultstore.CallDraw, faultstore.CallFlush, faultstore.CallSplit} {
			s.on(k, fault)
		}
		before, err := m.Oracle().Draw(t.Context(), 1)
		require.NoError(t, err)
		errs := map[string]error{}
		p, _ := rs.Unwrap[rs.OracleProvider](f)
		const many = 1 << 40
		_, errs["Draw"] = p.Oracle().Draw(t.Context(), many)
		d, _ := rs.Unwrap[rs.Deferrer](f)
		errs["Flush"] = d.Flush(t.Context())
		sp, _ := rs.Unwrap[rs.Splitter](f)
		_, errs["Split"] = sp.Split(t.Context(), "t", 2)
		for name, err := range errs {
			require.ErrorIs(t, err, faultstore.ErrInjected, name)
			require.NotErrorIs(t, err, rs.ErrAmbiguous, name)
		}
		s.on(faultstore.CallListen, faultstore.Fault{Kind: faultstore.Fail})
		w, _ := rs.Unwrap[rs.Waker](f)
		require.ErrorIs(t, w.Listen(t.Context(), func(rs.Wake) {}), faultstore.ErrInjected)
		// Then all is well.
		after, err := p.Oracle().Draw(t.Context(), 1)
		require.NoError(t, err)
		require.Greater(t, after, before)
		require.Equal(t, fault.Applied, after-before > many/2, "a draw of which the reply was lost took place")
		require.NoError(t, d.Flush(t.Context()))
	}
}

// TestRowsOfFaults has any number for the row that goes wrong, of batches of two.
func TestRowsOfFaults(t *testing.T) {
	t.Parallel()
	for number, want := range map[int]int{0: 0, 3: 1, -1: 1, -2: 0, math.MaxInt: 1, math.MinInt: 0} {
		for _, kind := range []faultstore.FaultKind{faultstore.FailRow, faultstore.LoseRow, faultstore.LoseOthers} {
			fault := faultstore.Fault{Kind: kind, Row: number}
			f, _, s := scripted()
			bad := map[faultstore.CallKind][]error{}
			for _, call := range []faultstore.CallKind{faultstore.CallApply, faultstore.CallGroup} {
				s.on(call, fault)
				outs, err := write(t.Context(), f, call, fmt.Sprint(call, 0), fmt.Sprint(call, 1))
				require.NoError(t, err)
				bad[call] = []error{outs[0].Err, outs[1].Err}
				if kind == faultstore.LoseOthers { // the row is the one that does not go wrong
					bad[call] = []error{outs[1].Err, outs[0].Err}
				}
			}
			if kind != faultstore.LoseOthers {
				reads := []rs.RowRead{{Table: "t", Row: "0", Selectors: storetest.Everything}, {Table: "t", Row: "1", Selectors: storetest.Everything}}
				s.on(faultstore.CallRead, fault)
				rows, err := f.Read(t.Context(), reads)
				require.NoError(t, err)
				bad[faultstore.CallRead] = []error{rows[0].Err, rows[1].Err}
				s.on(faultstore.CallReadSnapshot, fault)
				r, _ := rs.Unwrap[rs.SnapshotReader](f)
				answers, err := r.ReadSnapshot(t.Context(), []rs.SnapshotRead{{Reads: reads[:1]}, {Reads: reads[1:]}})
				require.NoError(t, err)
				bad[faultstore.CallReadSnapshot] = []error{answers[0].Err, answers[1].Err}
			}
			for call, errs := range bad {
				require.ErrorIs(t, errs[want], faultstore.ErrInjected, "%v of row %d in %v", kind, number, call)
				require.NoError(t, errs[1-want], "%v of row %d in %v", kind, number, call)
			}
		}
	}
}

func TestFaultyCrashOfTheClient(t *testing.T) {
	t.Parallel()
	for _, applied := range []bool{false, true} {
		f, m, s := scripted()
		storetest.Put(t, m, "t", "r", rs.Put(rs.Write, "c", 1, nil))
		s.on(faultstore.CallApply, faultstore.Fault{Kind: faultstore.CrashClient, Applied: applied})
		_, err := write(t.Context(), f, faultstore.CallApply, "last")
		require.ErrorIs(t, err, faultstore.ErrInjected)
		require.Equal(t, applied, len(storetest.Read(t, m, "t", "last")) == 1)
		for name, err := range storetest.Calls(t.Context(), f) {
			if name != "Report" {
				require.ErrorIs(t, err, faultstore.ErrInjected, name)
				require.NotErrorIs(t, err, rs.ErrAmbiguous, name)
			}
		}
		require.Equal(t, []string{"2/c@1="}, storetest.Read(t, m, "t", "r"))
		require.Equal(t, 1, f.Count(faultstore.CrashClient))
		require.NoError(t, f.Close())
	}
	t.Run("calls under way", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			g := storetest.NewGate(memstore.New())
			f := faultstore.New(g, faultstore.Options{})
			r := storetest.Start(t.Context(), f, storetest.Askers["Apply"], "r")
			f.CrashClient()
			g.Next(t).OK()
			synctest.Wait()
			require.ErrorIs(t, r.Err, rs.ErrAmbiguous)
			require.ErrorIs(t, r.Err, faultstore.ErrInjected)
		})
	})
	t.Run("a scan under way", func(t *testing.T) {
		t.Parallel()
		f, m, _ := scripted()
		storetest.Put(t, m, "t", "1", rs.Put(rs.Write, "c", 1, nil))
		storetest.Put(t, m, "t", "2", rs.Put(rs.Write, "c", 1, nil))
		var keys []string
		var last error
		for row, err := range f.Scan(t.Context(), rs.ScanRange{Table: "t", Selectors: storetest.Everything}) {
			if last = err; err == nil {
				keys = append(keys, row.Row)
				f.CrashClient()
			}
		}
		require.Equal(t, []string{"1"}, keys)
		require.ErrorIs(t, last, faultstore.ErrInjected)
	})
}

func TestFaultyCrashOfTheStore(t *testing.T) {
	t.Parallel()
	f, m, s := scripted()
	deferred := rs.ApplyOptions{Deferred: true}
	mut := func(row string, c ...rs.Condition) rs.Mutation {
		return rs.Mutation{Table: "t", Row: row, Conditions: c, Edits: []rs.Edit{rs.Put(rs.Write, "c", 1, nil)}}
	}
	first := storetest.Apply(t, f, mut("a"), deferred)
	s.on(faultstore.CallApply, faultstore.Fault{Kind: faultstore.CrashStore})
	second := storetest.Apply(t, f, mut("b", rs.SameIncarnation(first.Incarnation)), deferred)
	require.False(t, second.Applied, "the call finds the restarted store")
	require.NotEqual(t, first.Incarnation, second.Incarnation)
	require.Empty(t, storetest.Tables(t, m))

	s.on(faultstore.CallApply, faultstore.Fault{Kind: faultstore.CrashStore, Applied: true})
	_, err := f.Apply(t.Context(), []rs.Mutation{mut("c")}, deferred)
	require.ErrorIs(t, err, rs.ErrAmbiguous)
	require.Empty(t, storetest.Tables(t, m), "what was deferred is lost")
	s.on(faultstore.CallApply, faultstore.Fault{Kind: faultstore.CrashStore, Applied: true})
	_, err = f.Apply(t.Context(), []rs.Mutation{mut("d")}, rs.ApplyOptions{})
	require.ErrorIs(t, err, rs.ErrAmbiguous)
	require.Equal(t, []string{"t"}, storetest.Tables(t, m), "what was durable is not")

	// A store that cannot crash says so, and random faults leave it alone.
	broken := faultstore.New(storetest.Plain{Store: m}, faultstore.Options{OnCall: func(faultstore.Call) faultstore.Fault { return faultstore.Fault{Kind: faultstore.CrashStore} }})
	_, err = broken.Read(t.Context(), nil)
	require.ErrorIs(t, err, rs.ErrInvalid)
	lucky := faultstore.New(storetest.Plain{Store: m}, faultstore.Options{})
	lucky.SetRates(faultstore.Rates{CrashStore: 1})
	_, err = lucky.Read(t.Context(), nil)
	require.NoError(t, err)
}

func TestFaultyDelays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, m, s := scripted()
		s.on(faultstore.CallApply, faultstore.Fault{Kind: faultstore.Delay, Delay: time.Minute})
		begun := time.Now()
		r := storetest.Start(t.Context(), f, storetest.Askers["Apply"], "r")
		require.False(t, r.Done)
		require.Empty(t, storetest.Read(t, m, "t", "r"))
		time.Sleep(2 * time.Minute) // of the bubble's own time
		synctest.Wait()
		require.NoError(t, r.Err)
		require.True(t, r.Done)
		require.Len(t, storetest.Read(t, m, "t", "r"), 1)
		require.Equal(t, 2*time.Minute, time.Since(begun))

		s.on(faultstore.CallApply, faultstore.Fault{Kind: faultstore.Delay, Delay: time.Minute})
		ctx, cancel := context.WithCancel(t.Context())
		r = storetest.Start(ctx, f, storetest.Askers["Apply"], "never")
		cancel()
		synctest.Wait()
		require.ErrorIs(t, r.Err, context.Canceled)
		require.NotErrorIs(t, r.Err, rs.ErrAmbiguous)
		require.Empty(t, storetest.Read(t, m, "t", "never"))
	})
}

func TestFaultyRates(t *testing.T) {
	t.Parallel()
	run := func(seed uint64) string {
		f := faultstore.New(memstore.New(), faultstore.Options{Seed: seed})
		t.Logf("seed %d", f.Seed())
		for range 100 {
			_, err := f.Read(t.Context(), nil)
			require.NoError(t, err)
		}
		f.SetRates(faultstore.Rates{Fail: 0.1, LoseReply: 0.2, FailRow: 0.1, LoseRow: 0.1, Delay: 0.1, Late: 0.1, Twice: 0.1, CrashStore: 0.05, MaxDelay: time.Microsecond}, faultstore.CallApply, faultstore.CallGroup)
		lost := map[bool]int{}
		for i := range 400 {
			kind := faultstore.CallApply + faultstore.CallKind(i%2)
			was := f.Count(faultstore.LoseReply)
			_, err := write(t.Context(), f, kind, fmt.Sprint(i))
			if f.Count(faultstore.LoseReply) > was {
				require.ErrorIs(t, err, rs.ErrAmbiguous)
				lost[len(storetest.Read(t, f, "t", fmt.Sprint(i))) == 1]++
			}
		}
		for _, kind := range []faultstore.CallKind{faultstore.CallApply, faultstore.CallGroup} {
			for fault := faultstore.NoFault; fault <= faultstore.CrashStore; fault++ {
				if fault != faultstore.CrashClient {
					require.NotZero(t, f.Count(fault, kind), "%s %s", kind, fault)
				}
			}
		}
		require.Zero(t, f.Count(faultstore.Fail, faultstore.CallRead))
		require.NotZero(t, lost[true], "some were applied")
		require.NotZero(t, lost[false], "and some were not")
		f.SetRates(faultstore.Rates{})
		_, err := write(t.Context(), f, faultstore.CallApply, "calm")
		require.NoError(t, err)
		f.SetRates(faultstore.Rates{CrashClient: 1})
		_, err = f.Read(t.Context(), nil)
		require.ErrorIs(t, err, faultstore.ErrInjected)
		return f.String()
	}
	require.Equal(t, run(1), run(1))
	require.NotEqual(t, run(1), run(2))
	require.NotZero(t, faultstore.New(memstore.New(), faultstore.Options{}).Seed())

	f := faultstore.New(memstore.New(), faultstore.Options{})
	require.Panics(t, func() { f.SetRates(faultstore.Rates{Fail: -1}) })
	require.Panics(t, func() { f.SetRates(faultstore.Rates{Fail: 0.6, LoseReply: 0.6}) })
}

func TestFaultyWithoutFaultsIsMemory(t *testing.T) {
	t.Parallel()
	storetest.CompareWithMemory(t, true, func(m *memstore.Store) rs.Store { return faultstore.New(m, faultstore.Options{}) })
	storetest.RequireEnds(t, faultstore.New(memstore.New(), faultstore.Options{}))
}

// Coalesced over a faultstore, every caller gets the fate of its own call.
func TestCoalesceOverFaulty(t *testing.T) {
	t.Parallel()
	m := memstore.New()
	f := faultstore.New(storetest.Slowed{Store: m}, faultstore.Options{})
	t.Log(f)
	f.SetRates(faultstore.Rates{Fail: 0.1, LoseReply: 0.1, FailRow: 0.1, LoseRow: 0.1}, faultstore.CallApply, faultstore.CallGroup)
	s := coalesce.New(f, coalesce.Options{})
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := range 100 {
				row := fmt.Sprintf("%d.%d", w, i)
				outs, err := write(t.Context(), s, faultstore.CallApply+faultstore.CallKind(i%2), row)
				if err == nil {
					err = outs[0].Err
				}
				rows, readErr := m.Read(t.Context(), []rs.RowRead{{Table: "t", Row: row, Selectors: []rs.Selector{{Family: rs.Write, To: oracle.Max}}}})
				if readErr != nil {
					t.Error(readErr)
					return
				}
				there := len(rows[0].Versions) == 1
				switch {
				case err == nil && !there:
					t.Errorf("%s: applied, but not there", row)
				case err != nil && !isAmbiguous(err) && there:
					t.Errorf("%s: certainly not applied (%v), but there", row, err)
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, s.Close())
	for _, fault := range []faultstore.FaultKind{faultstore.NoFault, faultstore.Fail, faultstore.LoseReply, faultstore.FailRow, faultstore.LoseRow} {
		require.NotZero(t, f.Count(fault), "%s: %s", f, fault)
	}
}

// The faults of ReadSnapshot strike the timestamp and the rows alike.
func TestFaultySpoilsReadSnapshot(t *testing.T) {
	t.Parallel()
	m := memstore.New()
	var next faultstore.Fault
	var seen []faultstore.CallKind
	f := faultstore.New(m, faultstore.Options{OnCall: func(c faultstore.Call) faultstore.Fault {
		seen = append(seen, c.Kind)
		require.Len(t, c.Asks, 2)
		return next
	}})
	d, ok := rs.Unwrap[rs.SnapshotReader](f)
	require.True(t, ok)
	ask := rs.SnapshotRead{Reads: []rs.RowRead{{Table: "t", Row: "r", Selectors: []rs.Selector{{Family: rs.Write, Column: "c", To: rs.AssignedTimestamp}}}}}
	asks := []rs.SnapshotRead{ask, ask}

	answers, err := d.ReadSnapshot(t.Context(), asks)
	require.NoError(t, err)
	require.Len(t, answers, 2)
	require.Less(t, answers[0].TS, answers[1].TS)
	for _, fault := range []faultstore.Fault{{Kind: faultstore.Fail}, {Kind: faultstore.LoseReply}, {Kind: faultstore.LoseReply, Applied: true}} {
		next = fault
		_, err = d.ReadSnapshot(t.Context(), asks)
		require.ErrorIs(t, err, faultstore.ErrInjected)
		require.NotErrorIs(t, err, rs.ErrAmbiguous, "nothing was to be changed")
	}
	next = faultstore.Fault{Kind: faultstore.FailRow, Row: 1}
	answers, err = d.ReadSnapshot(t.Context(), asks)
	require.NoError(t, err)
	require.NoError(t, answers[0].Err)
	require.ErrorIs(t, answers[1].Err, faultstore.ErrInjected)
	require.Zero(t, answers[1].TS)
	require.Empty(t, answers[1].Rows)
	require.Equal(t, 1, f.Count(faultstore.FailRow, faultstore.CallReadSnapshot))
	require.Contains(t, f.String(), "read snapshot")
	require.Len(t, seen, 5)
	f.CrashClient()
	_, err = d.ReadSnapshot(t.Context(), asks)
	require.ErrorIs(t, err, faultstore.ErrInjected)
	require.NoError(t, f.Close())
}
