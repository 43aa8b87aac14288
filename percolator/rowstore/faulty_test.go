package rowstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	rs "github.com/percolate-go/percolate/percolator/rowstore"
)

// script is a hook that gives the next call of a kind a fault.
type script struct {
	mu   sync.Mutex
	next map[rs.CallKind]rs.Fault
	seen []rs.Call
}

func (s *script) on(k rs.CallKind, f rs.Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next[k] = f
}

func (s *script) call(c rs.Call) rs.Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, c)
	f := s.next[c.Kind]
	delete(s.next, c.Kind)
	return f
}

// scripted returns a Faulty over a Memory whose faults the script decides.
func scripted() (*rs.Faulty, *rs.Memory, *script) {
	m, s := rs.NewMemory(), &script{next: map[rs.CallKind]rs.Fault{}}
	return rs.NewFaulty(m, rs.FaultyOptions{OnCall: s.call}), m, s
}

func isAmbiguous(err error) bool { return errors.Is(err, rs.ErrAmbiguous) }

// write puts a version of its own into row, by Apply or by Group.
func write(ctx context.Context, s rs.Store, kind rs.CallKind, rows ...string) ([]rs.Outcome, error) {
	muts := mutations(rows...)
	if kind == rs.CallApply {
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
	for _, kind := range []rs.CallKind{rs.CallApply, rs.CallGroup} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			f, m, s := scripted()
			written := func(row string) bool { return len(read(t, m, "t", row)) == 1 }

			_, err := write(t.Context(), f, kind, "well")
			require.NoError(t, err)
			require.True(t, written("well"))

			s.on(kind, rs.Fault{Kind: rs.Fail})
			_, err = write(t.Context(), f, kind, "fail")
			require.ErrorIs(t, err, rs.ErrInjected)
			require.NotErrorIs(t, err, rs.ErrAmbiguous)
			require.False(t, written("fail"))

			for _, applied := range []bool{false, true} {
				row := fmt.Sprint("lost", applied)
				s.on(kind, rs.Fault{Kind: rs.LoseReply, Applied: applied})
				_, err = write(t.Context(), f, kind, row)
				require.ErrorIs(t, err, rs.ErrInjected)
				require.ErrorIs(t, err, rs.ErrAmbiguous)
				require.Equal(t, applied, written(row))

				a, b, c := fmt.Sprint("a", applied), fmt.Sprint("b", applied), fmt.Sprint("c", applied)
				s.on(kind, rs.Fault{Kind: rs.LoseRow, Applied: applied, Row: 4})
				outs, err := write(t.Context(), f, kind, a, b, c)
				require.NoError(t, err)
				require.True(t, outs[0].Applied && outs[2].Applied && !outs[1].Applied)
				require.ErrorIs(t, outs[1].Err, rs.ErrAmbiguous)
				require.Equal(t, []bool{true, applied, true}, []bool{written(a), written(b), written(c)})
			}

			s.on(kind, rs.Fault{Kind: rs.FailRow, Row: 2})
			outs, err := write(t.Context(), f, kind, "x", "y", "z")
			require.NoError(t, err)
			require.True(t, outs[0].Applied && outs[1].Applied && !outs[2].Applied)
			require.ErrorIs(t, outs[2].Err, rs.ErrInjected)
			require.NotErrorIs(t, outs[2].Err, rs.ErrAmbiguous)
			require.Equal(t, []bool{true, true, false}, []bool{written("x"), written("y"), written("z")})

			// A row's fault in a batch without rows is none.
			s.on(kind, rs.Fault{Kind: rs.FailRow})
			outs, err = write(t.Context(), f, kind)
			require.NoError(t, err)
			require.Empty(t, outs)

			require.Equal(t, 2, f.Count(rs.LoseReply, kind))
			require.Equal(t, 2, f.Count(rs.LoseRow))
			require.Equal(t, 1, f.Count(rs.FailRow))
			require.Equal(t, 2, f.Count(rs.NoFault))
			require.Zero(t, f.Count(rs.Fail, rs.CallRead))
			require.Contains(t, f.String(), fmt.Sprintf("seed %d, 8 calls", f.Seed()))
			require.Contains(t, f.String(), kind.String()+" lose row 2")
			require.EqualValues(t, 8, s.seen[len(s.seen)-1].Seq)
		})
	}
}

func TestFaultyRequestsThatArriveLateOrTwice(t *testing.T) {
	t.Parallel()
	for _, kind := range []rs.CallKind{rs.CallApply, rs.CallGroup} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			f, m, s := scripted()
			s.on(kind, rs.Fault{Kind: rs.Late, Rows: 1})
			ctx, cancel := context.WithCancel(t.Context())
			_, err := write(ctx, f, kind, "late")
			cancel()
			require.ErrorIs(t, err, rs.ErrAmbiguous)
			require.ErrorIs(t, err, rs.ErrInjected)
			require.Empty(t, read(t, f, "t", "late"), "one call passes it")
			require.Len(t, read(t, f, "t", "late"), 1, "and the next finds it")

			s.on(kind, rs.Fault{Kind: rs.Late, Rows: 1000})
			_, err = write(t.Context(), f, kind, "later")
			require.ErrorIs(t, err, rs.ErrAmbiguous)
			f.CrashClient()
			require.Empty(t, read(t, m, "t", "later"))
			f.DeliverLate()
			require.Len(t, read(t, m, "t", "later"), 1)

			// The second arrival finds what the first one did.
			f, m, s = scripted()
			s.on(kind, rs.Fault{Kind: rs.Twice})
			mut := rs.Mutation{
				Table: "t", Row: "r", Conditions: []rs.Condition{rs.Absent(rs.Write, "c", 0)},
				Edits: []rs.Edit{rs.Put(rs.Write, "c", 1, nil)},
			}
			if kind == rs.CallApply {
				require.False(t, apply(t, f, mut).Applied)
			} else {
				g, _ := rs.Unwrap[rs.Grouper](f)
				out, err := g.Group(t.Context(), []rs.Group{{Mutations: []rs.Mutation{mut}}})
				require.NoError(t, err)
				require.False(t, out[0].Applied)
			}
			require.Len(t, read(t, m, "t", "r"), 1)
		})
	}
	t.Run("never after Close", func(t *testing.T) {
		t.Parallel()
		m, s := rs.NewMemory(), &script{next: map[rs.CallKind]rs.Fault{rs.CallApply: {Kind: rs.Late}}}
		f := rs.NewFaulty(m, rs.FaultyOptions{OnCall: s.call, KeepOpen: true})
		_, err := write(t.Context(), f, rs.CallApply, "late")
		require.ErrorIs(t, err, rs.ErrAmbiguous)
		require.NoError(t, f.Close())
		f.DeliverLate()
		require.Empty(t, read(t, m, "t", "late"))
		for name, err := range calls(t.Context(), f) {
			if name != "Report" {
				require.ErrorIs(t, err, rs.ErrClosed, name)
			}
		}
	})
}

func TestFaultyReads(t *testing.T) {
	t.Parallel()
	f, m, s := scripted()
	for i := range 5 {
		put(t, m, fmt.Sprint("t", i), "r", rs.Put(rs.Write, "c", 1, nil))
		put(t, m, "t", fmt.Sprint(i), rs.Put(rs.Write, "c", 1, nil))
	}
	reads := []rs.RowRead{{Table: "t", Row: "1", Picks: everything}, {Table: "t", Row: "2", Picks: everything}}
	for _, fault := range []rs.Fault{{Kind: rs.Fail}, {Kind: rs.LoseReply}, {Kind: rs.LoseReply, Applied: true}} {
		s.on(rs.CallRead, fault)
		rows, err := f.Read(t.Context(), reads)
		require.ErrorIs(t, err, rs.ErrInjected)
		require.NotErrorIs(t, err, rs.ErrAmbiguous, "a read changes nothing")
		require.Nil(t, rows)
	}
	for _, kind := range []rs.FaultKind{rs.FailRow, rs.LoseRow} {
		s.on(rs.CallRead, rs.Fault{Kind: kind, Row: 1})
		rows, err := f.Read(t.Context(), reads)
		require.NoError(t, err)
		require.Len(t, rows[0].Versions, 1)
		require.ErrorIs(t, rows[1].Err, rs.ErrInjected)
		require.Equal(t, rs.Row{Table: "t", Row: "2", Err: rows[1].Err}, rows[1])
	}
	for _, c := range []struct {
		fault rs.Fault
		steps int
		fails bool
	}{
		{rs.Fault{}, 5, false},
		{rs.Fault{Kind: rs.Fail}, 0, true},
		{rs.Fault{Kind: rs.Fail, Rows: 3}, 3, true},
		{rs.Fault{Kind: rs.Fail, Rows: 100}, 5, true},
		{rs.Fault{Kind: rs.LoseReply}, 0, true},
		{rs.Fault{Kind: rs.LoseReply, Applied: true}, 5, true},
		{rs.Fault{Kind: rs.Late}, 5, false},
	} {
		s.on(rs.CallScan, c.fault)
		steps, err := 0, error(nil)
		for _, e := range f.Scan(t.Context(), rs.ScanRange{Table: "t", Picks: everything}) {
			if err = e; err == nil {
				steps++
			}
		}
		require.Equal(t, c.steps, steps, "%+v", c.fault)
		require.Equal(t, c.fails, err != nil)
		if c.fails {
			require.ErrorIs(t, err, rs.ErrInjected)
		}
	}
	s.on(rs.CallTables, rs.Fault{Kind: rs.Fail, Rows: 2})
	var names []string
	var last error
	for name, err := range f.Tables(t.Context()) {
		if last = err; err == nil {
			names = append(names, name)
		}
	}
	require.Equal(t, []string{"t", "t0"}, names)
	require.ErrorIs(t, last, rs.ErrInjected)

	// Each use of a sequence is a call, and its caller may stop it.
	seq := f.Scan(t.Context(), rs.ScanRange{Table: "t", Picks: everything})
	before := f.Count(rs.NoFault, rs.CallScan)
	for range 2 {
		for _, err := range seq {
			require.NoError(t, err)
			break
		}
	}
	require.Equal(t, before+2, f.Count(rs.NoFault, rs.CallScan))
}

func TestFaultyAbilities(t *testing.T) {
	t.Parallel()
	for _, fault := range []rs.Fault{{Kind: rs.Fail}, {Kind: rs.LoseReply}, {Kind: rs.LoseReply, Applied: true}} {
		f, m, s := scripted()
		for _, k := range []rs.CallKind{rs.CallDraw, rs.CallFlush, rs.CallSplit} {
			s.on(k, fault)
		}
		before, err := m.Oracle().Draw(t.Context(), 1)
		require.NoError(t, err)
		errs := map[string]error{}
		p, _ := rs.Unwrap[rs.OracleProvider](f)
		_, errs["Draw"] = p.Oracle().Draw(t.Context(), 1)
		d, _ := rs.Unwrap[rs.Deferrer](f)
		errs["Flush"] = d.Flush(t.Context())
		sp, _ := rs.Unwrap[rs.Splitter](f)
		_, errs["Split"] = sp.Split(t.Context(), "t", 2)
		for name, err := range errs {
			require.ErrorIs(t, err, rs.ErrInjected, name)
			require.NotErrorIs(t, err, rs.ErrAmbiguous, name)
		}
		s.on(rs.CallListen, rs.Fault{Kind: rs.Fail})
		w, _ := rs.Unwrap[rs.Waker](f)
		require.ErrorIs(t, w.Listen(t.Context(), func(string) {}), rs.ErrInjected)
		// Then all is well.
		after, err := p.Oracle().Draw(t.Context(), 1)
		require.NoError(t, err)
		require.Greater(t, after, before)
		require.NoError(t, d.Flush(t.Context()))
	}
}

func TestFaultyCrashOfTheClient(t *testing.T) {
	t.Parallel()
	for _, applied := range []bool{false, true} {
		f, m, s := scripted()
		put(t, m, "t", "r", rs.Put(rs.Write, "c", 1, nil))
		s.on(rs.CallApply, rs.Fault{Kind: rs.CrashClient, Applied: applied})
		_, err := write(t.Context(), f, rs.CallApply, "last")
		require.ErrorIs(t, err, rs.ErrInjected)
		require.Equal(t, applied, len(read(t, m, "t", "last")) == 1)
		for name, err := range calls(t.Context(), f) {
			if name != "Report" {
				require.ErrorIs(t, err, rs.ErrInjected, name)
				require.NotErrorIs(t, err, rs.ErrAmbiguous, name)
			}
		}
		require.Equal(t, []string{"2/c@1="}, read(t, m, "t", "r"))
		require.Equal(t, 1, f.Count(rs.CrashClient))
		require.NoError(t, f.Close())
	}
	t.Run("calls under way", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			g := newGate(rs.NewMemory())
			f := rs.NewFaulty(g, rs.FaultyOptions{})
			r := start(t.Context(), f, askers["Apply"], "r")
			f.CrashClient()
			g.next(t).ok()
			synctest.Wait()
			require.ErrorIs(t, r.err, rs.ErrAmbiguous)
			require.ErrorIs(t, r.err, rs.ErrInjected)
		})
	})
	t.Run("a scan under way", func(t *testing.T) {
		t.Parallel()
		f, m, _ := scripted()
		put(t, m, "t", "1", rs.Put(rs.Write, "c", 1, nil))
		put(t, m, "t", "2", rs.Put(rs.Write, "c", 1, nil))
		var keys []string
		var last error
		for row, err := range f.Scan(t.Context(), rs.ScanRange{Table: "t", Picks: everything}) {
			if last = err; err == nil {
				keys = append(keys, row.Row)
				f.CrashClient()
			}
		}
		require.Equal(t, []string{"1"}, keys)
		require.ErrorIs(t, last, rs.ErrInjected)
	})
}

func TestFaultyCrashOfTheStore(t *testing.T) {
	t.Parallel()
	f, m, s := scripted()
	deferred := rs.ApplyOptions{Deferred: true}
	mut := func(row string, c ...rs.Condition) rs.Mutation {
		return rs.Mutation{Table: "t", Row: row, Conditions: c, Edits: []rs.Edit{rs.Put(rs.Write, "c", 1, nil)}}
	}
	first := apply(t, f, mut("a"), deferred)
	s.on(rs.CallApply, rs.Fault{Kind: rs.CrashStore})
	second := apply(t, f, mut("b", rs.Incarnation(first.Incarnation)), deferred)
	require.False(t, second.Applied, "the call finds the restarted store")
	require.NotEqual(t, first.Incarnation, second.Incarnation)
	require.Empty(t, tables(t, m))

	s.on(rs.CallApply, rs.Fault{Kind: rs.CrashStore, Applied: true})
	_, err := f.Apply(t.Context(), []rs.Mutation{mut("c")}, deferred)
	require.ErrorIs(t, err, rs.ErrAmbiguous)
	require.Empty(t, tables(t, m), "what was deferred is lost")
	s.on(rs.CallApply, rs.Fault{Kind: rs.CrashStore, Applied: true})
	_, err = f.Apply(t.Context(), []rs.Mutation{mut("d")}, rs.ApplyOptions{})
	require.ErrorIs(t, err, rs.ErrAmbiguous)
	require.Equal(t, []string{"t"}, tables(t, m), "what was durable is not")

	// A store that cannot crash says so, and random faults leave it alone.
	broken := rs.NewFaulty(plain{m}, rs.FaultyOptions{OnCall: func(rs.Call) rs.Fault { return rs.Fault{Kind: rs.CrashStore} }})
	_, err = broken.Read(t.Context(), nil)
	require.ErrorIs(t, err, rs.ErrInvalid)
	lucky := rs.NewFaulty(plain{m}, rs.FaultyOptions{})
	lucky.SetRates(rs.Rates{CrashStore: 1})
	_, err = lucky.Read(t.Context(), nil)
	require.NoError(t, err)
}

func TestFaultyDelays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, m, s := scripted()
		s.on(rs.CallApply, rs.Fault{Kind: rs.Delay, Delay: time.Minute})
		begun := time.Now()
		r := start(t.Context(), f, askers["Apply"], "r")
		require.False(t, r.done)
		require.Empty(t, read(t, m, "t", "r"))
		time.Sleep(2 * time.Minute) // of the bubble's own time
		synctest.Wait()
		require.NoError(t, r.err)
		require.True(t, r.done)
		require.Len(t, read(t, m, "t", "r"), 1)
		require.Equal(t, 2*time.Minute, time.Since(begun))

		s.on(rs.CallApply, rs.Fault{Kind: rs.Delay, Delay: time.Minute})
		ctx, cancel := context.WithCancel(t.Context())
		r = start(ctx, f, askers["Apply"], "never")
		cancel()
		synctest.Wait()
		require.ErrorIs(t, r.err, context.Canceled)
		require.NotErrorIs(t, r.err, rs.ErrAmbiguous)
		require.Empty(t, read(t, m, "t", "never"))
	})
}

func TestFaultyRates(t *testing.T) {
	t.Parallel()
	run := func(seed uint64) string {
		f := rs.NewFaulty(rs.NewMemory(), rs.FaultyOptions{Seed: seed})
		t.Logf("seed %d", f.Seed())
		for range 100 {
			_, err := f.Read(t.Context(), nil)
			require.NoError(t, err)
		}
		f.SetRates(rs.Rates{Fail: 0.1, LoseReply: 0.2, FailRow: 0.1, LoseRow: 0.1, Delay: 0.1, Late: 0.1, Twice: 0.1, CrashStore: 0.05, MaxDelay: time.Microsecond}, rs.CallApply, rs.CallGroup)
		lost := map[bool]int{}
		for i := range 400 {
			kind := rs.CallApply + rs.CallKind(i%2)
			was := f.Count(rs.LoseReply)
			_, err := write(t.Context(), f, kind, fmt.Sprint(i))
			if f.Count(rs.LoseReply) > was {
				require.ErrorIs(t, err, rs.ErrAmbiguous)
				lost[len(read(t, f, "t", fmt.Sprint(i))) == 1]++
			}
		}
		for _, kind := range []rs.CallKind{rs.CallApply, rs.CallGroup} {
			for fault := rs.NoFault; fault <= rs.CrashStore; fault++ {
				if fault != rs.CrashClient {
					require.NotZero(t, f.Count(fault, kind), "%s %s", kind, fault)
				}
			}
		}
		require.Zero(t, f.Count(rs.Fail, rs.CallRead))
		require.NotZero(t, lost[true], "some were applied")
		require.NotZero(t, lost[false], "and some were not")
		f.SetRates(rs.Rates{})
		_, err := write(t.Context(), f, rs.CallApply, "calm")
		require.NoError(t, err)
		f.SetRates(rs.Rates{CrashClient: 1})
		_, err = f.Read(t.Context(), nil)
		require.ErrorIs(t, err, rs.ErrInjected)
		return f.String()
	}
	require.Equal(t, run(1), run(1))
	require.NotEqual(t, run(1), run(2))
	require.NotZero(t, rs.NewFaulty(rs.NewMemory(), rs.FaultyOptions{}).Seed())

	f := rs.NewFaulty(rs.NewMemory(), rs.FaultyOptions{})
	require.Panics(t, func() { f.SetRates(rs.Rates{Fail: -1}) })
	require.Panics(t, func() { f.SetRates(rs.Rates{Fail: 0.6, LoseReply: 0.6}) })
}

func TestFaultyWithoutFaultsIsMemory(t *testing.T) {
	t.Parallel()
	compareWithMemory(t, true, func(m *rs.Memory) rs.Store { return rs.NewFaulty(m, rs.FaultyOptions{}) })
	requireEnds(t, rs.NewFaulty(rs.NewMemory(), rs.FaultyOptions{}))
}

// Over a Faulty, a Coalesce gives every caller the fate of its own call.
func TestCoalesceOverFaulty(t *testing.T) {
	t.Parallel()
	m := rs.NewMemory()
	f := rs.NewFaulty(slowed{m}, rs.FaultyOptions{})
	t.Log(f)
	f.SetRates(rs.Rates{Fail: 0.1, LoseReply: 0.1, FailRow: 0.1, LoseRow: 0.1}, rs.CallApply, rs.CallGroup)
	s := rs.Coalesce(f, rs.CoalesceOptions{})
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := range 100 {
				row := fmt.Sprintf("%d.%d", w, i)
				outs, err := write(t.Context(), s, rs.CallApply+rs.CallKind(i%2), row)
				if err == nil {
					err = outs[0].Err
				}
				rows, readErr := m.Read(t.Context(), []rs.RowRead{{Table: "t", Row: row, Picks: []rs.Pick{{Family: rs.Write, To: oracle.Max}}}})
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
	for _, fault := range []rs.FaultKind{rs.NoFault, rs.Fail, rs.LoseReply, rs.FailRow, rs.LoseRow} {
		require.NotZero(t, f.Count(fault), "%s: %s", f, fault)
	}
}
