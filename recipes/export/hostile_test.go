package export

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
)

// TestTwoOutboxesOfOneTable has two Outbox of one table, as two packages of a program may make them, in one transaction.
func TestTwoOutboxesOfOneTable(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db, o := opened(t)
	other := newOutbox(t, db)
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		return errors.Join(o.Put(ctx, tx, "k", []byte("1")), other.Put(ctx, tx, "k", []byte("2")), o.Put(ctx, tx, "k", []byte("3")))
	}))
	sink := &recorder{}
	w, stop := run(t, db, observer(t, o, sink, Options{}))
	require.NoError(t, w.WaitIdle(ctx))
	stop()
	require.Equal(t, []string{"1", "2", "3"}, sink.payloads("k"))
}

// TestLargestItemIsSkipped has an item as large as the store takes, which the sink refuses: it is set aside with the error.
func TestLargestItemIsSkipped(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db, o := opened(t)
	large := bytes.Repeat([]byte("x"), db.Limits().Value)
	put(t, o, "k", string(large), "2")
	sink := &recorder{before: refuse(string(large))}
	w, stop := run(t, db, observer(t, o, sink, Options{MaxAttempts: 1, Skip: true}))
	defer stop()
	require.Eventually(t, func() bool { return len(sink.payloads("k")) == 1 }, 20*time.Second, 5*time.Millisecond, "the item blocks its key")
	require.NoError(t, w.WaitIdle(ctx))
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		n := 0
		for d, err := range o.Dead(ctx, tx) {
			require.NoError(t, err)
			require.Equal(t, large, d.Payload)
			require.Contains(t, d.Error, "refused")
			n++
		}
		require.Equal(t, 1, n)
		return nil
	}))
}

// TestSinkThatPanics has an item at which the sink panics. It counts as refused.
func TestSinkThatPanics(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db, o := opened(t)
	sink := &recorder{before: func(_ string, items []Item) (int, error) {
		if string(items[0].Payload) == "bad" {
			panic("what is this?")
		}
		return 1, nil
	}}
	put(t, o, "k", "1", "bad", "2")
	w, stop := run(t, db, observer(t, o, sink, Options{MaxAttempts: 2, Skip: true, Batch: 1}))
	require.NoError(t, w.WaitIdle(ctx))
	stop()
	require.Equal(t, []string{"1", "2"}, sink.payloads("k"))
	parked, err := db.Parked(ctx)
	require.NoError(t, err)
	require.Empty(t, parked)
}

// TestSinkThatIsAlwaysSuperseded has a sink that remembers a greater epoch than the database will ever give, from before a restore, say. Nobody
// sends the items instead. So the run is parked, where people see it, and nothing is set aside.
func TestSinkThatIsAlwaysSuperseded(t *testing.T) {
	t.Parallel()
	for _, skip := range []bool{false, true} {
		ctx := t.Context()
		db, o := opened(t)
		put(t, o, "k", "1")
		sink := SinkFunc(func(context.Context, string, []Item) (int, error) { return 0, ErrSuperseded })
		_, stop := run(t, db, observer(t, o, sink, Options{MaxAttempts: 2, Skip: skip}))
		require.Eventually(t, func() bool {
			parked, err := db.Parked(ctx)
			return err == nil && len(parked) == 1
		}, 20*time.Second, 5*time.Millisecond, "nobody is told")
		stop()
		require.Equal(t, 1, left(t, o))
	}
}

// TestHTTPErrorsKeepSecrets has addresses with tokens, as webhooks have them. Errors are stored in parked runs and dead letters.
func TestHTTPErrorsKeepSecrets(t *testing.T) {
	t.Parallel()
	away := httptest.NewServer(http.NotFoundHandler())
	url := away.URL
	away.Close()
	loop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/geheim", http.StatusTemporaryRedirect)
	}))
	defer loop.Close()
	for _, u := range []string{url + "/hook/geheim?token=geheim", loop.URL + "/geheim", "nope://x/geheim", "http://u:geheim@[::1]:namedport/", "://geheim"} {
		_, err := HTTP{URL: u, Client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}.Send(t.Context(), "k", []Item{{Key: "k"}})
		require.Error(t, err)
		require.NotContains(t, err.Error(), "geheim")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := HTTP{URL: url}.Send(ctx, "k", []Item{{Key: "k"}})
	require.ErrorIs(t, err, context.Canceled)
}
