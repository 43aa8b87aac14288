package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/percolator"
)

// TestErasedWhileRead has a snapshot from before a customer was erased, who is read when the key is gone.
func TestErasedWhileRead(t *testing.T) {
	t.Parallel()
	r := start(t, time.Hour)
	ann := r.stocked("tea", 1)
	err := r.db.View(t.Context(), func(tx *percolator.Txn) error {
		_, err := r.person(t.Context(), tx, ann)
		require.NoError(t, err)
		r.ask(204, "DELETE", "/customers/"+ann, "", nil)
		_, err = r.person(t.Context(), tx, ann)
		return err
	})
	require.True(t, isRefusal(err), "%v", err)
}

// TestErasedAmongOrders has an order come in during each attempt to erase a customer, as long as orders are taken.
func TestErasedAmongOrders(t *testing.T) {
	t.Parallel()
	r := start(t, time.Hour)
	ann := r.stocked("tea", 10)
	order := fmt.Sprintf(`{"customer": %q, "lines": [{"product": "tea", "quantity": 1}]}`, ann)
	var answers []int
	require.NoError(t, r.erased(t.Context(), ann, func(tx *percolator.Txn) error {
		err := r.erase(t.Context(), tx, ann)
		status, _, serr := send(t.Context(), "POST", r.url+"/orders", fmt.Sprint("order ", len(answers)), order)
		require.NoError(t, serr)
		answers = append(answers, status)
		return err
	}))
	require.Equal(t, append(slices.Repeat([]int{201}, eraseAttempts), 409), answers)
	r.refused(422, "unknown_customer", "POST", "/orders", order)
	r.refused(404, "not_found", "DELETE", "/customers/"+ann, "")
	require.ErrorIs(t, r.db.View(t.Context(), func(tx *percolator.Txn) error {
		_, err := leaving.Get(t.Context(), tx, ann)
		return err
	}), percolator.ErrNotFound)
}

// TestLeaving marks a customer, whose orders are refused for ten seconds then. Who cannot be erased stays, without a mark.
func TestLeaving(t *testing.T) {
	t.Parallel()
	r := start(t, time.Hour)
	ann := r.stocked("tea", 10)
	o := r.ordered(ann, "tea", 1)
	order := fmt.Sprintf(`{"customer": %q, "lines": [{"product": "tea", "quantity": 1}]}`, ann)
	update := func(f func(ctx context.Context, tx *percolator.Txn) error) {
		require.NoError(t, r.db.Update(t.Context(), func(tx *percolator.Txn) error { return f(t.Context(), tx) }))
	}
	update(func(ctx context.Context, tx *percolator.Txn) error { return leave(ctx, tx, ann) })
	r.refused(409, "leaving", "POST", "/orders", order)
	update(func(ctx context.Context, tx *percolator.Txn) error {
		now, err := tx.Now(ctx)
		require.NoError(t, err)
		return leaving.Set(ctx, tx, ann, now.Add(-leavingFor))
	})
	r.ask(201, "POST", "/orders", order, nil)

	attempts := 0
	err := r.erased(t.Context(), ann, func(tx *percolator.Txn) error {
		err := r.erase(t.Context(), tx, ann)
		if attempts++; attempts <= eraseAttempts {
			r.ask(201, "POST", "/orders", order, nil)
			return err
		}
		if attempts == eraseAttempts+1 {
			r.refused(409, "leaving", "POST", "/orders", order)
			r.ask(200, "POST", "/orders/"+o.ID+"/payment", fmt.Sprintf(`{"amount": %d}`, o.Total), nil) // it cancels no more
		}
		return err
	})
	require.True(t, isRefusal(err), "%v", err)
	r.ask(201, "POST", "/orders", order, nil)
}

// TestErasedRequest looks at what is kept of the request that made a customer. It tells the request from another one as long as the customer is
// there. Then nobody can find out by guessing whose name and mail it had, and so the shop itself does not answer it.
func TestErasedRequest(t *testing.T) {
	t.Parallel()
	r := start(t, time.Hour)
	const ann, bob = `{"name": "Ann", "mail": "ann@example.org"}`, `{"name": "Bob", "mail": "bob@example.org"}`
	post := func(status int, key, body, has string) (answer []byte) {
		t.Helper()
		got, answer, err := send(t.Context(), "POST", r.url+"/customers", key, body)
		require.NoError(t, err)
		require.Equal(t, status, got, "%s", answer)
		require.Contains(t, string(answer), has)
		return answer
	}
	kept := func(key string) answer {
		a, _, err := r.requests.Do(t.Context(), key, func(context.Context, *percolator.Txn) (answer, error) { return answer{}, errors.New("not kept") })
		require.NoError(t, err)
		return a
	}
	first, other := post(201, "first", ann, ""), post(201, "other", ann, "")
	require.NotEqual(t, first, other)
	require.Equal(t, first, post(201, "first", ann, ""))
	post(422, "first", bob, "key_reused")
	require.NotEmpty(t, kept("first").Request)
	require.NotEqual(t, kept("first").Request, kept("other").Request, "what is kept goes by name and mail alone, so these can be guessed")

	var c Customer
	require.NoError(t, json.Unmarshal(first, &c))
	r.ask(204, "DELETE", "/customers/"+c.ID, "", nil)
	before := r.everything()
	post(409, "first", ann, "erased")
	post(409, "first", bob, "erased")
	require.Equal(t, before, r.everything(), "something was done")
	require.Equal(t, other, post(201, "other", ann, ""))
}

// eraseAtLast erases a customer, whose orders may keep that from committing for a while.
func (r *running) eraseAtLast(ctx context.Context, customer string) error {
	for {
		status, answer, err := send(ctx, "DELETE", r.url+"/customers/"+customer, "", "")
		switch {
		case err != nil:
			return err
		case status == http.StatusNoContent:
			return nil
		case status != http.StatusServiceUnavailable:
			return fmt.Errorf("%d %s", status, answer)
		}
	}
}

// TestErasedUnderLoad erases customers while orders of theirs come in, and are cancelled by them and by the timer. Whoever is erased has no open order, whichever came first, all goods are
// back, and nobody can read who it was.
func TestErasedUnderLoad(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := start(t, 50*time.Millisecond)
	const customers, buyers, pieces = 4, 2, 100
	var ids []string
	for range customers {
		ids = append(ids, r.stocked("tea", pieces))
	}
	var placed, refused atomic.Int64
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // on a machine that does much else, requests wait for one another
	defer cancel()
	group, ctx := errgroup.WithContext(ctx) // if one fails, nobody waits for it
	for i, id := range ids {
		var orders atomic.Int64
		gone := make(chan struct{})
		for buyer := range buyers {
			group.Go(func() error {
				for n := 0; ; n++ {
					key := fmt.Sprint(i, "/", buyer, "/", n)
					status, answer, err := send(ctx, "POST", r.url+"/orders", key, fmt.Sprintf(`{"customer": %q, "lines": [{"product": "tea", "quantity": 1}]}`, id))
					switch {
					case err != nil:
						return err
					case status == http.StatusCreated:
						placed.Add(1)
						orders.Add(1)
					case status == http.StatusUnprocessableEntity: // unknown_customer
						refused.Add(1)
						<-gone
						return nil
					case status != http.StatusConflict && status != http.StatusServiceUnavailable: // out of stock, leaving, and busy
						return fmt.Errorf("%d %s", status, answer)
					}
				}
			})
		}
		after := 1 + rand.New(rand.NewPCG(seed, uint64(i))).Int64N(20)
		group.Go(func() error {
			defer close(gone)
			for orders.Load() < after {
				if ctx.Err() != nil {
					return fmt.Errorf("%d of %d orders: %w", orders.Load(), after, ctx.Err())
				}
				time.Sleep(time.Millisecond) // until the next look
			}
			return r.eraseAtLast(ctx, id)
		})
	}
	require.NoError(t, group.Wait())
	require.EqualValues(t, customers*buyers, refused.Load())
	r.idle()
	for _, id := range ids {
		var theirs []Order
		r.ask(200, "GET", "/customers/"+id+"/orders?limit=100", "", &theirs)
		require.NotEmpty(t, theirs)
		for _, o := range theirs {
			require.Equal(t, Cancelled, o.Status)
		}
		r.refused(404, "not_found", "GET", "/customers/"+id, "")
	}
	var tea Offer
	r.ask(200, "GET", "/products/tea", "", &tea)
	require.EqualValues(t, customers*pieces, tea.Left, "after %d orders", placed.Load())
	require.NotContains(t, r.everything(), "example.org")
}
