package export

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// TestBytesOfABatch has items of which few fit into a call, and one that is too wide for any.
func TestBytesOfABatch(t *testing.T) {
	t.Parallel()
	db, o := opened(t)
	var sizes []int
	for i := range 10 {
		size := 300
		if i == 4 {
			size = 5000
		}
		put(t, o, "k", fmt.Sprint(i)+strings.Repeat("x", size))
	}
	var mu sync.Mutex
	sink := &recorder{before: func(_ string, items []Item) (int, error) {
		bytes := 0
		for _, item := range items {
			bytes += len(item.Payload)
		}
		mu.Lock()
		defer mu.Unlock()
		sizes = append(sizes, len(items))
		if bytes > 1000 && len(items) > 1 {
			t.Errorf("a call gets %d bytes in %d items", bytes, len(items))
		}
		return len(items), nil
	}}
	w, stop := run(t, db, observer(t, o, sink, Options{Bytes: 1000}))
	require.NoError(t, w.WaitIdle(t.Context()))
	stop()
	require.Equal(t, []int{3, 1, 1, 3, 2}, sizes)
	require.Len(t, sink.payloads("k"), 10)
	_, err := o.Observer("send", sink, Options{Bytes: -1})
	require.ErrorIs(t, err, percolator.ErrInvalid)
}

// TestPageOfWideItems reads no more at once than it needs to, and sends everything in order all the same.
func TestPageOfWideItems(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	_, o := opened(t)
	const items = 9
	for i := range items {
		put(t, o, "k", fmt.Sprint(i)+strings.Repeat("x", 999))
	}
	sink := &recorder{}
	e := newExporter(o, sink, Options{})
	e.page, e.pageBytes = 4, 2500
	first, _, err := e.take(ctx, "k")
	require.NoError(t, err)
	require.Len(t, first.first, 3)
	require.True(t, first.cut)
	e.leave(ctx, first)
	require.NoError(t, e.export(ctx, string(rowOf("k"))))
	require.Len(t, sink.payloads("k"), items)
	require.Zero(t, left(t, o))
}

// claims counts the claims that are there.
func claims(t *testing.T, o *Outbox) (n int) {
	t.Helper()
	require.NoError(t, o.db.View(t.Context(), func(tx *percolator.Txn) error {
		n = 0
		for _, err := range tx.Scan(t.Context(), percolator.Range{Table: o.table, Columns: []string{claimColumn}}) {
			if err != nil {
				return err
			}
			n++
		}
		return nil
	}))
	return n
}

// TestClaimsGo has keys that never come again: they leave nothing behind. One that does gets a greater epoch.
func TestClaimsGo(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db, o := opened(t)
	sink := &recorder{before: refuse("bad")}
	for i := range 20 {
		put(t, o, fmt.Sprint(i), "1", "2")
	}
	put(t, o, "dead", "1", "bad")
	w, stop := run(t, db, observer(t, o, sink, Options{Batch: 1, MaxAttempts: 1, Skip: true}))
	defer stop()
	require.NoError(t, w.WaitIdle(ctx))
	require.Zero(t, claims(t, o))
	before := sink.epochs["7"]
	put(t, o, "7", "3")
	require.NoError(t, w.WaitIdle(ctx))
	require.Equal(t, []string{"1", "2", "3"}, sink.payloads("7"))
	require.Greater(t, sink.epochs["7"], before)
	require.Zero(t, claims(t, o))
}

// TestLateNoteAfterTheClaimHasGone has an exporter that notes what it has sent when its successor has sent everything, and has removed the claim.
func TestLateNoteAfterTheClaimHasGone(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	_, o := opened(t)
	put(t, o, "k", "1")
	sink := &recorder{}
	late := newExporter(o, sink, Options{Timeout: time.Millisecond})
	turn, _, err := late.take(ctx, "k")
	require.NoError(t, err)
	successor := newExporter(o, sink, Options{})
	require.Eventually(t, func() bool { return successor.export(ctx, string(rowOf("k"))) == nil }, time.Minute, time.Millisecond)
	require.Zero(t, claims(t, o))
	put(t, o, "k", "2")
	require.ErrorIs(t, late.note(ctx, turn, turn.first, true), errLost)
	late.leave(ctx, turn)
	require.Zero(t, claims(t, o))
	require.Equal(t, 1, left(t, o))
}

// TestLater has a sink that is not to be called for a while. Further items of the key do not change that, nothing counts as failed, and what the sink
// has taken is noted.
func TestLater(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for _, skip := range []bool{false, true} {
		_, o := opened(t)
		put(t, o, "k", "1", "2")
		busy := errors.New("busy")
		calls := 0
		good := &recorder{}
		sink := SinkFunc(func(ctx context.Context, key string, items []Item) (int, error) {
			if calls++; calls == 1 {
				_, _ = good.Send(ctx, key, items[:1])
				return 1, fmt.Errorf("wrapped: %w", Later(10*time.Minute, busy))
			}
			return good.Send(ctx, key, items)
		})
		e := newExporter(o, sink, Options{Skip: skip, MaxAttempts: 1})
		err := e.export(ctx, string(rowOf("k")))
		require.ErrorIs(t, err, busy)
		require.ErrorContains(t, err, "called again after 10m0s")
		require.Equal(t, 1, left(t, o))
		put(t, o, "k", "3")
		for range 3 {
			err := e.export(ctx, string(rowOf("k")))
			require.Error(t, err)
			require.Regexp(t, "called again after (9m|10m0s)", err.Error()) // all within one millisecond, perhaps
		}
		require.Equal(t, 1, calls)

		// The pause is over.
		require.NoError(t, o.db.Update(ctx, func(tx *percolator.Txn) error {
			c, now, err := o.readClaim(ctx, tx, "k")
			require.NoError(t, err)
			require.Zero(t, c.attempts)
			c.until = now
			return tx.Set(o.cell(rowOf("k"), claimColumn), c.encode())
		}))
		require.NoError(t, e.export(ctx, string(rowOf("k"))))
		require.Equal(t, []string{"1", "2", "3"}, good.payloads("k"))
		require.Zero(t, claims(t, o))
	}
}

// TestRetryAfter has a server that says when it wants to be asked again, in both forms, and in bad ones.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status int
		header string
		least  time.Duration // 0: it is a failure
		most   time.Duration
	}{
		{429, "120", 2 * time.Minute, 2 * time.Minute},
		{503, "0", leastLater, leastLater},
		{503, "999999999", mostLater, mostLater},
		{503, time.Now().Add(5 * time.Minute).UTC().Format(http.TimeFormat), time.Minute, 5 * time.Minute},
		{503, time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat), leastLater, leastLater},
		{503, "", 0, 0},
		{503, "-1", 0, 0},
		{503, "soon", 0, 0},
		{429, "99999999999999999999", 0, 0},
		{500, "120", 0, 0},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", c.header)
			w.WriteHeader(c.status)
		}))
		n, err := HTTP{URL: server.URL, Client: server.Client()}.Send(t.Context(), "k", []Item{{Key: "k"}})
		server.Close()
		require.Zero(t, n)
		require.ErrorContains(t, err, fmt.Sprint(c.status))
		var later *laterError
		require.Equal(t, c.least > 0, errors.As(err, &later), "%d %q", c.status, c.header)
		if c.least > 0 {
			require.GreaterOrEqual(t, later.after, c.least, c.header)
			require.LessOrEqual(t, later.after, c.most, c.header)
		}
	}
}

// TestNoteFitsIntoTheLimits has more items than one transaction of this process may remove. Each is sent once all the same, and one that is refused
// behind others is set aside.
func TestNoteFitsIntoTheLimits(t *testing.T) {
	t.Parallel()
	for name, limits := range map[string]percolator.Limits{
		"cells": {Cells: 100}, "few cells": {Cells: 5}, "two cells": {Cells: 2}, "bytes": {Bytes: 4000}, "few bytes": {Bytes: 1400},
		"value": {Value: 80},
	} {
		for _, skip := range []bool{false, true} {
			if skip && limits.Cells == 2 {
				continue // there is no room for a dead letter
			}
			t.Run(fmt.Sprint(name, skip), func(t *testing.T) {
				t.Parallel()
				ctx := t.Context()
				db := percolatetest.Open(t, percolator.WithLimits(limits))
				o := newOutbox(t, db)
				percolatetest.RunUntilIdle(t, db, observer(t, o, &recorder{}, Options{}))
				const items = 120
				var want []string
				for i := range items {
					payload := fmt.Sprint(i)
					if skip && i%40 == 39 {
						payload = "bad"
					} else {
						want = append(want, payload)
					}
					put(t, o, "k", payload)
				}
				refused := refuse("bad")
				sink := &recorder{before: func(key string, items []Item) (int, error) {
					n, err := refused(key, items)
					if err != nil {
						err = fmt.Errorf("%w, since %s", err, strings.Repeat("it is bad, ", 9))
					}
					return n, err
				}}
				w, stop := run(t, db, observer(t, o, sink, Options{Skip: skip, MaxAttempts: 1}))
				require.NoError(t, w.WaitIdle(ctx))
				stop()
				parked, err := db.Parked(ctx)
				require.NoError(t, err)
				require.Empty(t, parked)
				require.Equal(t, want, sink.payloads("k"))
				require.Zero(t, sink.again, "nothing that was acknowledged comes again")
				require.Zero(t, left(t, o))
			})
		}
	}
}

// TestItemThatCannotBeNoted was put by a process of greater limits: this one could not remove it, so it does not send it, and the run is parked.
func TestItemThatCannotBeNoted(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	inner := memstore.New()
	atend.Do(t, func() { _ = inner.Close() })
	wide := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true}))
	o := newOutbox(t, wide)
	percolatetest.RunUntilIdle(t, wide, observer(t, o, &recorder{}, Options{}))
	key := strings.Repeat("k", 100)
	put(t, o, key, "1")
	row := len(rowOf(key))
	narrow := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true}), percolator.WithLimits(percolator.Limits{Row: row}))
	sink := &recorder{}
	w, stop := run(t, narrow, observer(t, newOutbox(t, narrow), sink, Options{MaxAttempts: 2}))
	require.NoError(t, w.WaitIdle(ctx))
	stop()
	parked, err := narrow.Parked(ctx)
	require.NoError(t, err)
	require.Len(t, parked, 1)
	require.Contains(t, parked[0].Error, "Limits")
	require.Empty(t, sink.payloads(key))
	require.Equal(t, 1, left(t, o))
}
