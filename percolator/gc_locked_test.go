package percolator

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// C8, its other half. Guards: data whose lock stands is no garbage, so it does not
// become a condition that cannot hold and keeps the rest of its row uncollected. A
// late prewrite brings the lock back after collection has resolved all locks.
func TestScheduleC8_LockedDataDoesNotHoldUpItsRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t1, c := w.client(withoutGroups()), w.client()
	t1.wire.verdict(prewrites, dieAfter)
	tx := begin(t, t1)
	start := startOf(tx)
	require.NoError(t, tx.Set(rowC, nil))
	require.NoError(t, tx.Set(rowA, []byte(longText)))
	require.Error(t, tx.Commit(t.Context()))
	require.NoError(t, t1.drained(t.Context()))
	prewrite := t1.wire.sent(prewrites)[0]
	w.clock.advance(worldSession * 2)
	// The other column of the row has a version to collect.
	other := rowA
	other.Column = "other"
	require.Equal(t, "none", value(t, c, rowA)) // the reader rolls the lock back
	set(t, c.DB, other, "1")
	set(t, c.DB, other, "2")
	w.clock.advance(2 * worldAge)
	scans := 0
	c.wire.AddRule(faultstore.Rule{Match: func(c *call) bool { return c.Kind == faultstore.CallScan && c.Range.Table == "t" }, Times: 2, Before: func(context.Context, *call) verdict {
		if scans++; scans == 2 { // the first one resolves locks
			require.Positive(t, again(t, prewrite))
		}
		return pass
	}})
	report, err := w.collect(c, 1)
	require.NoError(t, err)
	require.Equal(t, 2, scans)
	row := w.raw(rowA)
	require.NotNil(t, row.At(rowstore.Lock, "v", start))
	require.NotNil(t, row.At(rowstore.Data, "v", start))
	require.Len(t, row.All(rowstore.Write, "other"), 1, "%+v", row.Versions)
	require.Positive(t, report.Versions)
}
