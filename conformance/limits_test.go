package conformance

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// TestTransactionsOverTheStep checks that TransactionsOverTheStepLimit exceeds the limits that it does not say it leaves.
func TestTransactionsOverTheStep(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		limits rowstore.Limits
		left   int
		none   bool
	}{
		"as etcd":                 {limits: rowstore.Limits{Operations: 128, Bytes: 3 << 19}},
		"operations":              {limits: rowstore.Limits{Operations: 8_000}},
		"bytes":                   {limits: rowstore.Limits{Bytes: 32 << 10}},
		"bytes of short values":   {limits: rowstore.Limits{Value: 1 << 10, Bytes: 1 << 20}},
		"very many operations":    {limits: rowstore.Limits{Operations: 100_000}, left: 1, none: true},
		"bytes before operations": {limits: rowstore.Limits{Operations: 10_000, Bytes: 32 << 10}, left: 1},
		"operations before bytes": {limits: rowstore.Limits{Value: 1 << 10, Operations: 128, Bytes: 1 << 30}, left: 1},
		"out of reach":            {limits: rowstore.Limits{Value: 1 << 10, Operations: 1 << 30, Bytes: 1 << 30}, left: 2, none: true},
	} {
		rows, size, left := overTheStep(tc.limits)
		require.Len(t, left, tc.left, name)
		if tc.none {
			require.Zero(t, rows, name)
			continue
		}
		over := 0
		if l := tc.limits.Operations; l > 0 && 3*rows > l {
			over++
		}
		if l := tc.limits.Bytes; l > 0 && rows*size > l {
			over++
		}
		reached := -len(left)
		if tc.limits.Operations > 0 {
			reached++
		}
		if tc.limits.Bytes > 0 {
			reached++
		}
		require.Equal(t, reached, over, "%s: %d rows of %d bytes", name, rows, size)
		require.LessOrEqual(t, rows, 3000, name)
		if l := tc.limits.Value; l > 0 {
			require.LessOrEqual(t, size, l, name)
		}
		if l := tc.limits.Bytes; l > 0 {
			require.Less(t, size, l/4, "%s: one row fits into a step", name)
		}
	}
}

// TestOutOfReach checks that what a store's limits put out of reach is skipped, and neither fails nor passes.
func TestOutOfReach(t *testing.T) {
	t.Parallel()
	for name, limits := range map[string]rowstore.Limits{
		"LimitOfOperations":            {Operations: 10_000, Bytes: 32 << 10},
		"LimitOfBytes":                 {Value: 1 << 10, Operations: 128, Bytes: 1 << 20},
		"WideRowsCostTheirWidth":       {Operations: 128},
		"TransactionsOverTheStepLimit": {Operations: 100_000},
	} {
		for _, p := range parts() {
			for _, tc := range p.tests {
				if tc.name != name {
					continue
				}
				r := record(t, newEnv(func(testing.TB) rowstore.Store { return memstore.New(memstore.WithLimits(limits)) }, []Option{Scale(0.2)}), tc)
				require.False(t, r.failed, "%s: %v", name, r.log)
				require.True(t, r.skipped, "%s: %v", name, r.log)
			}
		}
	}
}
