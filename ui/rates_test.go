package ui

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
)

func TestRates(t *testing.T) {
	t.Parallel()
	var r rates
	now := time.Now()
	v := r.look(now, percolator.Stats{Transactions: 100})
	require.Equal(t, rate{Name: "transactions begun", Total: 100}, v.Rows[0])
	require.Empty(t, v.Over)
	v = r.look(now.Add(100*time.Millisecond), percolator.Stats{Transactions: 101})
	require.Empty(t, v.Over, "a rate of a moment says nothing")
	v = r.look(now.Add(10*time.Second), percolator.Stats{Transactions: 150})
	require.Equal(t, rate{Name: "transactions begun", PerSecond: "5.0", Total: 150}, v.Rows[0])
	require.Equal(t, "10s", v.Over)
	// What is older than the window is forgotten.
	for i := range 200 {
		v = r.look(now.Add(time.Duration(11+i)*time.Second), percolator.Stats{Transactions: 150 + 2*uint64(i)})
	}
	require.Equal(t, rate{Name: "transactions begun", PerSecond: "2.0", Total: 548}, v.Rows[0])
	require.Equal(t, "30s", v.Over)
	require.LessOrEqual(t, len(r.samples), mostSamples)
}
