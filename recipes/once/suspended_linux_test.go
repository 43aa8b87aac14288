package once

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/typed"
)

// processLease is that of the sessions, locks and claims of the processes here. They are suspended for longer.
const processLease = 300 * time.Millisecond

func openProcess(ctx context.Context, url string) (*percolator.DB, *Keys[int], error) {
	db, err := percolator.Open(ctx, url, percolator.WithSessionLease(processLease), percolator.WithLockExpiry(processLease))
	if err != nil {
		return nil, nil, err
	}
	k, err := New(db, "once", typed.Number[int]{}, Options{Keep: time.Hour})
	return db, k, err
}

// doing is a process that does every key in turn: one half by Do, and the other by claims. It says "done" with each key, and "acted" with the epoch when it has an
// effect outside. A call that fails is repeated.
var doing = everystore.NewRole("once", func(ctx context.Context, url, _ string) error {
	within := context.WithoutCancel(ctx) // it ends after a whole key
	db, k, err := openProcess(within, url)
	if err != nil {
		return err
	}
	for key := 0; ctx.Err() == nil; key++ {
		for done := false; !done; {
			if key%2 == 0 {
				_, _, err = k.Do(within, strconv.Itoa(key), count)
				done = err == nil
			} else {
				done, err = claimed(within, db, k, strconv.Itoa(key))
			}
			if err != nil && !errors.Is(err, ErrClaimed) {
				fmt.Println("error", err)
			}
		}
		fmt.Println("done", key)
	}
	return db.Close(within)
})

// claimed tries to do a key by a claim, and tells whether it is done, by whomever.
func claimed(ctx context.Context, db *percolator.DB, k *Keys[int], key string) (done bool, err error) {
	c, _, err := k.Claim(ctx, key, processLease)
	if err != nil || c == nil {
		return err == nil, err
	}
	fmt.Println("acted", key, c.Epoch())
	err = db.Update(ctx, func(tx *percolator.Txn) error {
		n, err := count(ctx, tx)
		if err != nil {
			return err
		}
		return c.Finish(ctx, tx, n)
	})
	return err == nil, err
}

// TestSuspendedProcesses has two processes that do the same keys, and suspends one of them again and again at a random moment, for longer than its leases last.
// The other one goes on meanwhile, and so does the first one afterwards. Each key was done once.
func TestSuspendedProcesses(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64() //nolint:gosec // a seed that is printed
	t.Logf("seed %d", seed)
	everystore.URLs(t, func(t *testing.T, url string) {
		random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // as above
		processes := []*everystore.Process{doing.Start(t, url, "")}
		if !everystore.Embedded(url) { // which has one process
			processes = append(processes, doing.Start(t, url, ""))
		}
		for _, p := range processes {
			p.Await(t, "done", 4)
		}
		for range 4 {
			victim := random.IntN(len(processes))
			p, other := processes[victim], processes[(victim+1)%len(processes)]
			p.Await(t, "done", len(p.Said("done"))+random.IntN(6))
			p.Suspend(t)
			begun, atLeast := time.Now(), len(other.Said("done"))+4
			other.Until(t, func() bool {
				return time.Since(begun) > 4*processLease && (other == p || len(other.Said("done")) >= atLeast)
			}, "the other process does nothing while one is suspended")
			before := len(p.Said("done"))
			p.Resume(t)
			p.Await(t, "done", before+4)
		}
		keys, epochs := 0, map[string][]string{}
		for _, p := range processes {
			p.End(t)
			keys = max(keys, len(p.Said("done")))
			for _, said := range p.Said("acted") {
				var key, epoch string
				_, err := fmt.Sscan(said, &key, &epoch)
				require.NoError(t, err)
				require.NotContains(t, epochs[key], epoch, "two claims of a key have one epoch")
				epochs[key] = append(epochs[key], epoch)
			}
			t.Logf("%d keys; %d errors", len(p.Said("done")), len(p.Said("error")))
		}
		db, err := percolator.Open(t.Context(), url)
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close(context.WithoutCancel(t.Context()))) }()
		require.Equal(t, keys, counted(t, db))
		require.Len(t, epochs, keys/2)
	})
}

// holding is a process that claims a key, says so, and finishes when it is told to end.
var holding = everystore.NewRole("once claim", func(ctx context.Context, url, key string) error {
	within := context.WithoutCancel(ctx)
	db, k, err := openProcess(within, url)
	if err != nil {
		return err
	}
	c, _, err := k.Claim(within, key, processLease)
	if err != nil {
		return err
	}
	fmt.Println("claimed", c.Epoch())
	<-ctx.Done()
	err = db.Update(within, func(tx *percolator.Txn) error {
		n, err := count(within, tx)
		if err != nil {
			return err
		}
		return c.Finish(within, tx, n)
	})
	fmt.Println("finished", errors.Is(err, ErrClaimLost), err)
	return db.Close(within)
})

// TestSuspendedClaim suspends a process that has claimed a key. Another one claims the key when the lease has ended, and finishes. The first one, which then goes on, finishes
// nothing, and its epoch is the lower one.
func TestSuspendedClaim(t *testing.T) {
	t.Parallel()
	everystore.Servers(t, func(t *testing.T, url string) {
		ctx := t.Context()
		db, k, err := openProcess(ctx, url)
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close(context.WithoutCancel(ctx))) }()
		for _, finishes := range []bool{true, false} {
			key, before := fmt.Sprint("held ", finishes), counted(t, db)
			p := holding.Start(t, url, key)
			p.Await(t, "claimed", 1)
			p.Suspend(t)
			var c *Claim[int]
			p.Until(t, func() bool {
				var err error
				if c, _, err = k.Claim(ctx, key, time.Hour); err != nil {
					require.ErrorIs(t, err, ErrClaimed)
				}
				return c != nil
			}, "the claim does not end")
			first, err := strconv.ParseUint(p.Said("claimed")[0], 10, 64)
			require.NoError(t, err)
			require.Greater(t, c.Epoch(), first)
			if finishes {
				require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
					n, err := count(ctx, tx)
					if err != nil {
						return err
					}
					return c.Finish(ctx, tx, n)
				}))
			}
			p.Resume(t)
			p.End(t)
			require.Len(t, p.Said("finished"), 1)
			require.True(t, strings.HasPrefix(p.Said("finished")[0], "true"), "%v", p.Said("finished"))
			want := before
			if finishes {
				want++
			}
			require.Equal(t, want, counted(t, db))
		}
	})
}
