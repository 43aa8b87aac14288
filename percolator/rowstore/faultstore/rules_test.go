package faultstore_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	rs "github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/internal/storetest"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

func applies(c *faultstore.Call) bool { return c.Kind == faultstore.CallApply }

func TestRules(t *testing.T) {
	t.Parallel()
	m := memstore.New()
	var watched []*faultstore.Call
	f := faultstore.New(m, faultstore.Options{
		OnCall: func(c faultstore.Call) faultstore.Fault { return faultstore.Fault{Kind: faultstore.Fail} },
		Watch:  func(c *faultstore.Call) { watched = append(watched, c) },
	})
	// The oldest rule that matches strikes, after as many as it skips; then OnCall is asked.
	first := f.AddRule(faultstore.Rule{Match: applies, Skip: 1})
	second := f.AddRule(faultstore.Rule{Match: applies, Times: 2, Fault: faultstore.Fault{Kind: faultstore.LoseReply, Applied: true}})
	for i, want := range []error{rs.ErrAmbiguous, nil, rs.ErrAmbiguous, faultstore.ErrInjected} {
		_, err := write(t.Context(), f, faultstore.CallApply, "r")
		require.ErrorIs(t, err, want, "call %d", i)
		if i == 3 {
			require.NotErrorIs(t, err, rs.ErrAmbiguous)
		}
	}
	require.Equal(t, 1, first.Struck())
	require.Equal(t, 2, second.Remove())
	require.Len(t, watched, 4)
	require.Equal(t, "r", watched[3].Mutations()[0].Row)

	// A rule for all calls, and the error that is asked for.
	f.SetRules(faultstore.Rule{Times: -1, Fault: faultstore.Fault{Kind: faultstore.Fail, Err: rs.ErrUnavailable}})
	for range 3 {
		_, err := f.Read(t.Context(), nil)
		require.ErrorIs(t, err, rs.ErrUnavailable)
		require.ErrorIs(t, err, faultstore.ErrInjected)
	}
	f.SetRules()
}

func TestRuleHooks(t *testing.T) {
	t.Parallel()
	for _, kind := range []faultstore.CallKind{faultstore.CallApply, faultstore.CallGroup} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			m := memstore.New()
			f := faultstore.New(m, faultstore.Options{})
			written := func(row string) bool { return len(storetest.Read(t, m, "t", row)) == 1 }

			// One row of a batch arrives; the rest arrives when the test says so.
			var kept *faultstore.Call
			f.AddRule(faultstore.Rule{Before: func(_ context.Context, c *faultstore.Call) faultstore.Fault {
				kept = c
				return faultstore.Fault{Kind: faultstore.LoseOthers, Row: 1}
			}, After: func(_ context.Context, c *faultstore.Call) {
				require.NoError(t, c.Err)
				require.Len(t, c.Mutations(), 3)
				require.Equal(t, 1, len(c.Outcomes)+len(c.GroupOutcomes))
			}})
			outs, err := write(t.Context(), f, kind, "a", "b", "c")
			require.NoError(t, err)
			require.True(t, outs[1].Applied)
			for _, i := range []int{0, 2} {
				require.ErrorIs(t, outs[i].Err, rs.ErrAmbiguous)
			}
			require.Equal(t, []bool{false, true, false}, []bool{written("a"), written("b"), written("c")})
			_, err = kept.Again(t.Context())
			require.NoError(t, err)
			require.Equal(t, []bool{true, true, true}, []bool{written("a"), written("b"), written("c")})

			// Held before it is sent, and before it is answered.
			held := f.Hold(faultstore.Rule{})
			done := make(chan error, 1)
			do := func(row string) {
				go func() {
					_, err := write(t.Context(), f, kind, row)
					done <- err
				}()
			}
			do("held")
			require.Equal(t, kind, (<-held.Reached()).Kind)
			require.False(t, written("held"))
			held.Release(faultstore.Fault{})
			require.NoError(t, <-done)
			require.True(t, written("held"))
			held = f.HoldReply(faultstore.Rule{Fault: faultstore.Fault{Kind: faultstore.LoseReply, Applied: true}})
			do("reply")
			<-held.Reached()
			require.True(t, written("reply"))
			held.Release(faultstore.Fault{})
			require.ErrorIs(t, <-done, rs.ErrAmbiguous)

			// A call that is held while the client dies is not sent.
			held = f.Hold(faultstore.Rule{})
			do("dead")
			<-held.Reached()
			f.CrashClient()
			<-f.Crashed()
			held.Release(faultstore.Fault{})
			require.ErrorIs(t, <-done, rs.ErrClosed)
			require.False(t, written("dead"))
		})
	}
}

// Only a call that changes something can be sent again.
func TestReadIsNotSentAgain(t *testing.T) {
	t.Parallel()
	f := faultstore.New(memstore.New(), faultstore.Options{})
	held := f.Hold(faultstore.Rule{})
	go func() { _, _ = f.Read(context.Background(), nil) }()
	c := <-held.Reached()
	_, err := c.Again(t.Context())
	require.ErrorIs(t, err, rs.ErrInvalid)
	held.Release(faultstore.Fault{})
}

// Changes that were sent are carried out, whatever becomes of their context, and Settle
// waits for them.
func TestOutlive(t *testing.T) {
	t.Parallel()
	m := memstore.New()
	f := faultstore.New(m, faultstore.Options{KeepOpen: true})
	f.Outlive()
	ctx, cancel := context.WithCancel(t.Context())
	f.AddRule(faultstore.Rule{Before: func(context.Context, *faultstore.Call) faultstore.Fault {
		cancel()
		return faultstore.Fault{}
	}})
	_, err := write(ctx, f, faultstore.CallApply, "r")
	require.NoError(t, err)
	f.AddRule(faultstore.Rule{Fault: faultstore.Fault{Kind: faultstore.Late, Rows: -1}})
	_, err = write(t.Context(), f, faultstore.CallApply, "late")
	require.ErrorIs(t, err, rs.ErrAmbiguous)
	f.Settle()
	for _, row := range []string{"r", "late"} {
		require.Len(t, storetest.Read(t, m, "t", row), 1)
	}
	_, err = write(t.Context(), f, faultstore.CallApply, "dead")
	require.ErrorIs(t, err, rs.ErrClosed)
	require.NoError(t, f.Close())
}

// Each call that is held ends with its context, also if nobody looks at it.
func TestHeldCallsEndWithTheirContext(t *testing.T) {
	t.Parallel()
	f := faultstore.New(memstore.New(), faultstore.Options{})
	f.Hold(faultstore.Rule{Times: 2})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := f.Read(ctx, []rs.RowRead{{Table: "t", Row: "a", Selectors: []rs.Selector{{Family: rs.Write, Column: "c", To: 1}}}})
			done <- err
		}()
	}
	cancel()
	for range 2 {
		<-done
	}
}

// Settle waits until the store has answered, and not for a reply that a test holds.
func TestSettleBesideAHeldReply(t *testing.T) {
	t.Parallel()
	f := faultstore.New(memstore.New(), faultstore.Options{})
	f.Outlive()
	held := f.HoldReply(faultstore.Rule{})
	done := make(chan error, 1)
	go func() {
		_, err := f.Apply(t.Context(), []rs.Mutation{{Table: "t", Row: "a", Edits: []rs.Edit{rs.Put(rs.Write, "c", 5, nil)}}}, rs.ApplyOptions{})
		done <- err
	}()
	<-held.Reached()
	f.Settle()
	held.Release(faultstore.Fault{})
	<-done
}
