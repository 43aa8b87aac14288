package percolator

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// A run that was asked for once more fails, for a change that is newer than the one that the request names: a weak notification, which the observer has seen
// and another one has not. The request stays, so the run is attempted again.
func TestScheduleR_FailsForANewerChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.replays()
	w.observed("t", "v", "o", "other")
	c := w.client()
	var fails error
	wk := watching(t, c, Observer{Name: "o", MaxAttempts: 3, Func: func(context.Context, *Txn, Cell) error { return fails }})
	set(t, c.DB, rowA, "1")
	require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Notify(rowA) }))
	runs(t, wk, rowA)
	require.NotEmpty(t, w.notified(rowA), "the other one has to see it")
	require.NoError(t, asks(c, "o"))
	require.True(t, w.asked(rowA, "o"))
	fails = errTest
	require.Equal(t, runAgain, look(t, wk, rowA))
	require.EqualValues(t, 1, c.Stats().ObserverFailures)
	require.True(t, w.asked(rowA, "o"), "it is to run once more")
	w.pass(wk.config.Backoff.Max)
	fails = nil
	runs(t, wk, rowA)
	require.False(t, w.asked(rowA, "o"))
}
