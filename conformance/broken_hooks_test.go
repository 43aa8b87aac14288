package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// brokenHooked are faults that show when a store is opened again or breaks, each with
// tests that must find it. All of them were in a store that passed the suite once.
var brokenHooked = []struct {
	name  string
	open  func() Hooked
	found []string
}{
	{"the oracle's bound is not stored", func() Hooked {
		b := &breakable{Store: memstore.New()}
		k := b.hooked()
		k.Reopen = func(context.Context) (rowstore.Store, error) {
			again, err := b.Store.Reopen()
			if err != nil {
				return nil, err
			}
			b.Store = again
			fresh := memstore.New() // begins at the time
			return &broken{Store: again, draw: fresh.Oracle().Draw}, nil
		}
		return k
	}, []string{"TimestampsRiseOverReopening"}},
	{"each process keeps what it has read", func() Hooked { return processes((*broken).keepsReads) }, []string{"SecondOpenOfAStoreInUse"}},
	{"each process hears of its own changes alone", func() Hooked { return processes((*broken).hearsItself) }, []string{"SecondOpenOfAStoreInUse"}},
	{"it never syncs", func() Hooked {
		b := &breakable{Store: memstore.New()}
		k := b.hooked()
		k.Store = &broken{Store: b.Store, apply: func(ctx context.Context, muts []rowstore.Mutation, _ rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
			return b.Store.Apply(ctx, muts, rowstore.ApplyOptions{Deferred: true})
		}}
		return k
	}, []string{"CrashedStoreHasWhatItAcknowledged"}},
	{"it loses deferred batches and keeps its incarnation", func() Hooked {
		b := &breakable{Store: memstore.New()}
		steady := func(m *memstore.Store) *broken {
			s := &broken{Store: m}
			s.eachOutcome(func(_ rowstore.Mutation, o *rowstore.Outcome) { o.Incarnation = "always" })
			return s
		}
		k := b.hooked()
		k.Store = steady(b.Store)
		k.Reopen = func(context.Context) (rowstore.Store, error) {
			again, err := b.Store.Reopen()
			if err != nil {
				return nil, err
			}
			b.Store = again
			return steady(again), nil
		}
		return k
	}, []string{"CrashedStoreHasWhatItAcknowledged"}},
	{"a commit error is taken for certain", func() Hooked {
		b := &breakable{Store: memstore.New()}
		k := b.hooked()
		k.Store = &broken{
			Store: b.Store, read: b.Read,
			apply: func(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
				out, err := b.Apply(ctx, muts, opts)
				if err != nil {
					err = fmt.Errorf("committing: %v", err) //nolint:errorlint // that is the fault
				}
				return out, err
			},
		}
		return k
	}, []string{"BrokenCallsTellTheTruth", "BrokenCommitsTellTheTruth"}},
	{"what was done is said to be unavailable", func() Hooked {
		b := &breakable{Store: memstore.New()}
		k := b.hooked()
		k.Store = &broken{
			Store: b.Store, read: b.Read,
			apply: func(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
				out, err := b.Apply(ctx, muts, opts)
				if err != nil {
					err = errors.Join(err, rowstore.ErrUnavailable)
				}
				return out, err
			},
		}
		return k
	}, []string{"BrokenCallsTellTheTruth"}},
	{"Close takes what was under way for certain", func() Hooked {
		b := &breakable{Store: memstore.New()}
		k := b.hooked()
		var c closedMidway
		k.Store = &broken{
			Store: b.Store, read: b.Read,
			apply: func(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
				out, err := b.Store.Apply(ctx, muts, opts)
				c.begin()
				time.Sleep(time.Millisecond) // the way of the answer
				if c.end() {
					return nil, rowstore.ErrClosed
				}
				return out, err
			},
			close: func() error {
				c.close()
				return b.Store.Close()
			},
		}
		return k
	}, []string{"CloseUnderWritersTellsTheTruth"}},
	{"Close forgets what was acknowledged last", func() Hooked {
		b := &breakable{Store: memstore.New()}
		k := b.hooked()
		var c closedMidway
		k.Store = &broken{
			Store: b.Store, read: b.Read,
			apply: func(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
				if c.isClosed() {
					return nil, rowstore.ErrClosed
				}
				if muts[0].Row == "meanwhile" { // nobody judges that
					return b.Store.Apply(ctx, muts, opts)
				}
				c.begin()
				time.AfterFunc(5*time.Millisecond, func() {
					if !c.end() {
						_, _ = b.Store.Apply(context.Background(), muts, opts)
					}
				})
				time.Sleep(100 * time.Microsecond)
				return []rowstore.Outcome{{Applied: true}}, nil
			},
			close: func() error {
				c.close()
				return b.Store.Close()
			},
		}
		return k
	}, []string{"CloseUnderWritersTellsTheTruth"}},
	{"waiting ignores its context", func() Hooked {
		b := &breakable{Store: memstore.New()}
		k := b.hooked()
		turn := make(chan struct{}, 1)
		k.Store = &broken{
			Store: b.Store, read: b.Read, draw: b.Oracle().Draw, group: b.Group,
			apply: func(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
				turn <- struct{}{} // one writer at a time
				defer func() { <-turn }()
				return b.Apply(context.WithoutCancel(ctx), muts, opts)
			},
		}
		return k
	}, []string{"HangingCallsEndWithTheirContext"}},
	{"Open panics on a store in use", func() Hooked {
		b := &breakable{Store: memstore.New()}
		k := b.hooked()
		k.Reopen = func(context.Context) (rowstore.Store, error) {
			again, err := b.Store.Reopen()
			if err != nil {
				panic(err)
			}
			return again, nil
		}
		return k
	}, []string{"SecondOpenOfAStoreInUse"}},
	{"two that have a store open draw from timestamps of their own", func() Hooked {
		m := memstore.New()
		return Hooked{Store: m, Reopen: func(context.Context) (rowstore.Store, error) {
			ahead := memstore.New(memstore.WithClock(func() time.Time { return time.Now().Add(time.Hour) }))
			return &broken{Store: m, draw: ahead.Oracle().Draw, close: func() error { return nil }}, nil
		}}
	}, []string{"SecondOpenOfAStoreInUse"}},
}

// closedMidway has a store closed while something is under way in it, since otherwise its fault would not show.
type closedMidway struct {
	mu     sync.Mutex
	n      int // under way
	closed bool
}

func (c *closedMidway) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
}

// end tells whether the store was closed meanwhile.
func (c *closedMidway) end() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n--
	return c.closed
}

func (c *closedMidway) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// close waits until something is.
func (c *closedMidway) close() {
	for range 10_000 {
		c.mu.Lock()
		c.closed = c.closed || c.n > 0
		done := c.closed
		c.mu.Unlock()
		if done {
			return
		}
		time.Sleep(100 * time.Microsecond)
	}
}

func TestBrokenHookedStores(t *testing.T) {
	t.Parallel()
	byName := map[string]test{}
	for _, p := range parts() {
		for _, tc := range p.tests {
			byName[tc.name] = tc
		}
	}
	for _, fault := range brokenHooked {
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(nil, []Option{Patience(2 * time.Second), WithHooks(func(testing.TB) Hooked { return fault.open() })})
			for _, name := range fault.found {
				require.Contains(t, byName, name)
				r := record(t, e, byName[name])
				require.False(t, r.skipped, "%s was skipped: %v", name, r.log)
				require.True(t, r.failed, "%s must fail", name)
			}
		})
	}
}

// TestCallsThatWaitForTheirDriver has calls that hang end by a timeout of their own, of a few seconds, whatever their contexts say.
// They must not pass for calls that honour their contexts, however long the patience is.
func TestCallsThatWaitForTheirDriver(t *testing.T) {
	t.Parallel()
	open := func(testing.TB) Hooked {
		b := &breakable{Store: memstore.New()}
		k := b.hooked()
		k.Store = &broken{
			Store: b.Store, read: b.Read, draw: b.Oracle().Draw, group: b.Group,
			apply: func(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2600*time.Millisecond)
				defer cancel()
				return b.Apply(ctx, muts, opts)
			},
		}
		return k
	}
	r := record(t, newEnv(nil, []Option{Patience(time.Minute), WithHooks(open)}), test{"HangingCallsEndWithTheirContext", Breaking, hangingCallsEndWithTheirContext})
	require.True(t, r.failed)
	require.Contains(t, fmt.Sprint(r.log), "a call returns soon after its context ended")
	require.LessOrEqual(t, newEnv(nil, nil).lateness(), 2*time.Second, "drivers have timeouts of three seconds")
}

// TestRecorderOfAGoodStoreWithHooks checks the test above.
func TestRecorderOfAGoodStoreWithHooks(t *testing.T) {
	t.Parallel()
	tests := hookTests()
	for _, tc := range transactionTests() {
		if tc.category == Breaking {
			tests = append(tests, tc)
		}
	}
	require.Greater(t, len(tests), 6)
	for _, tc := range tests {
		r := record(t, newEnv(nil, []Option{WithHooks(MemoryHooks)}), tc)
		require.False(t, r.failed || r.skipped, "%s: %v", tc.name, r.log)
		// Without hooks it is skipped.
		r = record(t, newEnv(nil, nil), tc)
		require.True(t, r.skipped, tc.name)
	}
}

// TestHangShowsStacks has a test hang: its log names the function that hangs.
func TestHangShowsStacks(t *testing.T) {
	t.Parallel()
	e := newEnv(func(testing.TB) rowstore.Store {
		return &broken{Store: memstore.New(), read: func(ctx context.Context, _ []rowstore.RowRead) ([]rowstore.Row, error) {
			return hangInThisFunction(ctx)
		}}
	}, []Option{Patience(50 * time.Millisecond)})
	r := record(t, e, test{"Hangs", Reads, func(t testing.TB, e *env) { e.harness(t).all("row") }})
	require.True(t, r.failed)
	require.Contains(t, fmt.Sprint(r.log), "hangInThisFunction")
}

func hangInThisFunction(ctx context.Context) ([]rowstore.Row, error) {
	<-ctx.Done()
	time.Sleep(time.Second) // so that the watcher sees it there
	return nil, ctx.Err()
}
