package combine

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

const sick = "sick"

// touches tells whether a call is about rows of the key that is sick, and whether it writes.
func touches(c *faultstore.Call) (yes, writes bool) {
	of := string(value(sick))
	for _, r := range c.Reads {
		yes = yes || strings.HasPrefix(r.Row, of)
	}
	for _, ask := range c.Asks {
		for _, r := range ask.Reads {
			yes = yes || strings.HasPrefix(r.Row, of)
		}
	}
	if c.Kind == faultstore.CallScan && c.Range.Table == "count" {
		r := value(sick).Range(c.Range.Table)
		yes = yes || c.Range.From < r.To && (c.Range.To == "" || r.From < c.Range.To)
	}
	muts := c.Muts
	for _, g := range c.Groups {
		muts = append(muts, g.Mutations...)
	}
	for _, m := range muts {
		if strings.HasPrefix(m.Row, of) {
			yes, writes = true, true
		}
	}
	return yes, writes
}

// server is a store of which the rows of one key may be away (each call fails) or hang (each call lasts until its context ends).
type server struct {
	*faultstore.Store
	db *percolator.DB
	c  *Combiner[int]
	// what is the matter with calls of the sick key, if anything
	away, hangs, writesAlone atomic.Bool
	hang, mostHang           atomic.Int64 // calls that hang, and the most of them at once
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{Store: faultstore.New(memstore.New(), faultstore.Options{})}
	s.AddRule(faultstore.Rule{
		Times: -1,
		Match: func(c *faultstore.Call) bool {
			yes, writes := touches(c)
			return yes && (s.away.Load() || s.hangs.Load()) && (writes || !s.writesAlone.Load())
		},
		Before: func(ctx context.Context, _ *faultstore.Call) faultstore.Fault {
			if s.hangs.Load() {
				s.mostHang.Store(max(s.mostHang.Load(), s.hang.Add(1)))
				defer s.hang.Add(-1)
				<-ctx.Done()
				return faultstore.Fault{Kind: faultstore.LoseReply}
			}
			return faultstore.Fault{Kind: faultstore.Fail, Err: rowstore.ErrUnavailable}
		},
	})
	var err error
	s.db, err = percolator.New(t.Context(), s.Store)
	require.NoError(t, err)
	s.c = counter(t, s.db)
	return s
}

func (s *server) close(t *testing.T) {
	t.Helper()
	require.NoError(t, s.db.Close(contextAfter(t.Context())))
	synctest.Wait()
}

// together has callers of some keys share one batch, and returns what each got, and when.
func (s *server) together(ctx context.Context, keys ...string) func() (errs []error, took []time.Duration) {
	errs, took := make([]error, len(keys)), make([]time.Duration, len(keys))
	// A call before them has the place until all of them wait.
	b := &s.c.batches
	b.mu.Lock()
	b.common.running = true
	b.mu.Unlock()
	var group sync.WaitGroup
	begun := time.Now()
	for i, key := range keys {
		group.Go(func() {
			errs[i] = s.c.AddNow(ctx, key, 1)
			took[i] = time.Since(begun)
		})
	}
	synctest.Wait()
	b.mu.Lock()
	b.common.running = false
	s.c.start(&b.common)
	b.mu.Unlock()
	return func() ([]error, []time.Duration) { group.Wait(); return errs, took }
}

func (s *server) apart() int {
	s.c.batches.mu.Lock()
	defer s.c.batches.mu.Unlock()
	return len(s.c.batches.apart)
}

// TestHangingServer holds the callers of its own rows alone, without a deadline of anybody: those of a batch before it, in the same batch, and after it.
func TestHangingServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		defer s.close(t)
		s.hangs.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		alone := s.together(ctx, sick)
		errs, took := s.together(t.Context(), "a")()
		require.NoError(t, errs[0])
		require.LessOrEqual(t, took[0], 2*time.Second)

		both := s.together(ctx, "b", sick, "c", "b")
		later := make(chan error)
		time.Sleep(10 * overdue)
		require.Equal(t, 1, s.apart())
		go func() { later <- s.c.AddNow(ctx, sick, 1) }()
		begun := time.Now()
		errs, _ = s.together(t.Context(), "a", "b", "c")()
		for _, err := range errs {
			require.NoError(t, err)
		}
		require.Less(t, time.Since(begun), overdue, "the sick key's calls are apart")
		cancel()
		errs, took = both()
		for _, i := range []int{0, 2, 3} {
			require.NoError(t, errs[i])
			require.LessOrEqual(t, took[i], 2*time.Second)
		}
		require.ErrorIs(t, errs[1], context.Canceled)
		errs, _ = alone()
		require.ErrorIs(t, errs[0], context.Canceled)
		require.ErrorIs(t, <-later, context.Canceled)
		synctest.Wait()
		require.Zero(t, s.apart())
		s.hangs.Store(false)
		require.NoError(t, s.c.AddNow(t.Context(), sick, 1))
		require.Equal(t, 3, get(t, s.c, "b"))
	})
}

// TestCallersOfAHangingServer wait, and do not each have a transaction under way.
func TestCallersOfAHangingServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		defer s.close(t)
		s.hangs.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		first := s.together(ctx, "a", sick)
		time.Sleep(2 * overdue)
		var group sync.WaitGroup
		for range 20 {
			group.Go(func() { assert.ErrorIs(t, s.c.AddNow(ctx, sick, 1), context.Canceled) })
			time.Sleep(2 * overdue)
		}
		require.LessOrEqual(t, s.mostHang.Load(), int64(3))
		cancel()
		group.Wait()
		_, _ = first()
		time.Sleep(overdue) // a transaction that gathers callers ends
		require.Zero(t, s.apart())
		s.hangs.Store(false)
		require.NoError(t, s.c.AddNow(t.Context(), sick, 1))
	})
}

// TestServerThatIsAway fails the callers of its own rows alone, once the patience with the store has ended.
func TestServerThatIsAway(t *testing.T) {
	t.Parallel()
	for name, writes := range map[string]bool{"already": false, "at the commit": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t)
				defer s.close(t)
				s.away.Store(true)
				s.writesAlone.Store(writes)
				keys := []string{sick}
				for i := range 50 {
					keys = append(keys, fmt.Sprint(i))
				}
				first := s.together(t.Context(), keys...)
				time.Sleep(2 * overdue)
				errs, took := s.together(t.Context(), "x", "y")()
				for i := range errs {
					require.NoError(t, errs[i])
					require.Less(t, took[i], overdue)
				}
				errs, took = first()
				require.ErrorIs(t, errs[0], rowstore.ErrUnavailable)
				require.NotErrorIs(t, errs[0], percolator.ErrUndetermined)
				for i := range errs[1:] {
					require.NoError(t, errs[1+i])
					if !writes {
						require.LessOrEqual(t, took[1+i], 2*time.Second)
					}
				}
				synctest.Wait()
				require.Zero(t, s.apart())
				s.away.Store(false)
				errs, _ = s.together(t.Context(), keys...)()
				for _, err := range errs {
					require.NoError(t, err)
				}
				require.Equal(t, 1, get(t, s.c, sick))
				require.Equal(t, 2, get(t, s.c, "49"))
			})
		})
	}
}

// TestSlowServer has no fault: many keys that take long together, none of them too long, stay in one transaction.
func TestSlowServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const each, many = 400 * time.Millisecond, 100
		s := newServer(t)
		defer s.close(t)
		var keys []string
		for i := range many {
			keys = append(keys, fmt.Sprint(i))
		}
		slow := s.AddRule(faultstore.Rule{
			Match: func(c *faultstore.Call) bool { return len(c.Asks)+len(c.Reads) > 0 },
			Before: func(context.Context, *faultstore.Call) faultstore.Fault {
				time.Sleep(each)
				return faultstore.Fault{}
			},
			Times: -1,
		})
		errs, took := s.together(t.Context(), keys...)()
		slow.Remove()
		require.Greater(t, many*each, overdueCommit)
		for i := range errs {
			require.NoError(t, errs[i])
			require.GreaterOrEqual(t, took[i], many*each, "one transaction reads them all")
		}
	})
}

// TestCommitThatHangs ends, also for those of its callers that have no deadline, once it is certain that it is no matter of moments.
func TestCommitThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		defer s.close(t)
		s.hangs.Store(true)
		s.writesAlone.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		first := s.together(ctx, "a", sick)
		time.Sleep(2 * overdueCommit)
		cancel()
		errs, took := first()
		require.LessOrEqual(t, took[0], overdueCommit+2*time.Second)
		if errs[0] != nil {
			require.ErrorIs(t, errs[0], percolator.ErrUndetermined)
		}
		require.Error(t, errs[1])
		s.hangs.Store(false)
		require.NoError(t, s.c.AddNow(t.Context(), "a", 1))
	})
}

// scansHang has every scan of the values hang for an hour, and counts them.
func scansHang(s *server) (scans *atomic.Int64) {
	scans = new(atomic.Int64)
	s.AddRule(faultstore.Rule{
		Times: -1, Match: func(c *faultstore.Call) bool { return c.Kind == faultstore.CallScan && c.Range.Table == "count" },
		Before: func(context.Context, *faultstore.Call) faultstore.Fault {
			scans.Add(1)
			return faultstore.Fault{Kind: faultstore.Delay, Delay: time.Hour}
		},
	})
	s.c.looksFor = 1
	return scans
}

// TestLookOverAServerThatHangs: the rows that an addition looks at for idle cells are those of other servers. One that hangs must take neither the time of the caller nor the addition,
// and a transaction that adds to many values must not wait for each.
func TestLookOverAServerThatHangs(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]time.Duration{"short": 2 * time.Second, "long": time.Minute, "none": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t)
				defer s.close(t)
				scans := scansHang(s)
				ctx, most := t.Context(), time.Second
				if limit > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, limit)
					defer cancel()
					most = min(most, limit/4)
				}
				begun := time.Now()
				require.NoError(t, s.db.Update(ctx, func(tx *percolator.Txn) error {
					for i := range 50 {
						if err := s.c.Add(ctx, tx, fmt.Sprint(i), 1); err != nil {
							return err
						}
					}
					return nil
				}))
				require.LessOrEqual(t, time.Since(begun), most)
				require.EqualValues(t, 1, scans.Load())
			})
		})
	}
}

// TestBatchOverAServerThatHangs: neither does a batch of AddNow wait for each of its values.
func TestBatchOverAServerThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		defer s.close(t)
		scans := scansHang(s)
		var keys []string
		for i := range 20 {
			keys = append(keys, fmt.Sprint(i))
		}
		errs, took := s.together(t.Context(), keys...)()
		for i := range errs {
			require.NoError(t, errs[i])
			require.LessOrEqual(t, took[i], time.Second)
		}
		require.EqualValues(t, 1, scans.Load())
	})
}

// TestLooksOfKeys: whether to look goes by the key too. So a transaction that adds to many new values nearly always looks at some of them, and never at all.
func TestLooksOfKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		defer s.close(t)
		looked := map[string]bool{}
		s.AddRule(faultstore.Rule{
			Times: -1, Match: func(c *faultstore.Call) bool { return c.Kind == faultstore.CallScan && c.Range.Table == "count" },
			Before: func(_ context.Context, c *faultstore.Call) faultstore.Fault {
				looked[c.Range.From] = true
				return faultstore.Fault{}
			},
		})
		const transactions, keys = 24, 100
		for n := range transactions {
			clear(looked)
			require.NoError(t, s.db.Update(t.Context(), func(tx *percolator.Txn) error {
				for i := range keys {
					if err := s.c.Add(t.Context(), tx, fmt.Sprint(n, " ", i), 1); err != nil {
						return err
					}
				}
				return nil
			}))
			require.NotEmpty(t, looked)
			require.Less(t, len(looked), keys/2, "12 in the mean")
		}
	})
}
