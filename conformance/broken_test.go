package conformance

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// brokenStore is a fault, with tests that must find it.
type brokenStore struct {
	name   string
	break_ func(b *broken) //nolint:revive // break is a keyword
	found  []string
}

// brokenStores are all of them.
var brokenStores = slices.Concat(brokenCalls, brokenAbilities, brokenSlots, brokenProtocols)

// TestBrokenStores checks the suite: each of these faults is found by the tests
// that are there to find it.
func TestBrokenStores(t *testing.T) {
	t.Parallel()
	byName := map[string]test{}
	for _, p := range parts() {
		for _, tc := range p.tests {
			byName[tc.name] = tc
		}
	}
	for _, fault := range brokenStores {
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel()
			require.NotEmpty(t, fault.found)
			e := newEnv(func(testing.TB) rowstore.Store {
				b := &broken{Store: memstore.New()}
				fault.break_(b)
				return b
			}, []Option{Patience(2 * time.Second)})
			for _, name := range fault.found {
				require.Contains(t, byName, name)
				r := record(t, e, byName[name])
				// What calls at random, or waits for two callers to meet, finds a fault in most runs, not in all.
				byChance := strings.HasPrefix(name, "Random") || name == "AcknowledgedIsVisible" || name == "LongFork" || name == "ScanDuringWrites"
				for again := 0; again < 4 && !r.failed && byChance; again++ {
					r = record(t, e, byName[name])
				}
				require.False(t, r.skipped, "%s was skipped: %v", name, r.log)
				require.True(t, r.failed, "%s must fail", name)
			}
		})
	}
}

// TestRecorderOfAGoodStore checks the test above: what fails there must pass over
// a store without a fault.
func TestRecorderOfAGoodStore(t *testing.T) {
	t.Parallel()
	var ran atomic.Int64
	for _, tc := range storeTests() {
		e := newEnv(func(testing.TB) rowstore.Store { return &broken{Store: memstore.New()} }, []Option{Scale(0.2)})
		r := record(t, e, tc)
		require.False(t, r.failed, "%s: %s", tc.name, strings.Join(r.log, "\n"))
		ran.Add(1)
	}
	require.Greater(t, ran.Load(), int64(100))
}

// TestListOfTests checks that names are there once, and that the public list has
// them.
func TestListOfTests(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, name := range Tests() {
		require.False(t, seen[name], "test %s is listed twice", name)
		seen[name] = true
	}
	require.Greater(t, len(seen), 100)
	require.Panics(t, func() { Without("", Names)(&config{without: map[Category]string{}}) }, "leaving out needs a reason")
	require.Panics(t, func() { Without("a reason")(&config{without: map[Category]string{}}) }, "nothing is left out")
}
