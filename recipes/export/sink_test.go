package export

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
)

var errRefused = errors.New("refused")

// refuse makes a sink refuse some payload for ever, and take what comes before it.
func refuse(payload string) func(string, []Item) (int, error) {
	return func(_ string, items []Item) (int, error) {
		for i, item := range items {
			if string(item.Payload) == payload {
				return i, errRefused
			}
		}
		return len(items), nil
	}
}

func TestRefusedItemBlocksItsKey(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db, o := opened(t)
	sink := &recorder{before: refuse("bad")}
	put(t, o, "k", "1", "bad", "2")
	put(t, o, "other", "1", "2")
	w, stop := run(t, db, observer(t, o, sink, Options{MaxAttempts: 3}))
	require.NoError(t, w.WaitIdle(ctx))
	require.Equal(t, []string{"1"}, sink.payloads("k"))
	require.Equal(t, []string{"1", "2"}, sink.payloads("other"))
	parked, err := db.Parked(ctx)
	require.NoError(t, err)
	require.Len(t, parked, 1)
	require.Contains(t, parked[0].Error, `key "k" of table "outbox": refused`)
	require.Equal(t, 2, left(t, o))

	sink.mu.Lock()
	sink.before = nil
	sink.mu.Unlock()
	require.NoError(t, db.Release(ctx, parked[0]))
	require.NoError(t, w.WaitIdle(ctx))
	stop()
	require.Equal(t, []string{"1", "bad", "2"}, sink.payloads("k"))
	require.Zero(t, left(t, o))
}

func TestRefusedItemIsSkipped(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db, o := opened(t)
	sink := &recorder{before: refuse("bad")}
	put(t, o, "k", "1", "bad", "2", "bad", "3")
	w, stop := run(t, db, observer(t, o, sink, Options{MaxAttempts: 2, Skip: true}))
	require.NoError(t, w.WaitIdle(ctx))
	require.Equal(t, []string{"1", "2", "3"}, sink.payloads("k"))
	parked, err := db.Parked(ctx)
	require.NoError(t, err)
	require.Empty(t, parked)
	require.Zero(t, left(t, o))

	letters := func() (all []DeadLetter) {
		require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
			for d, err := range o.Dead(ctx, tx) {
				if err != nil {
					return err
				}
				all = append(all, d)
			}
			return nil
		}))
		return all
	}
	dead := letters()
	require.Len(t, dead, 2)
	require.Equal(t, "bad", string(dead[0].Payload))
	require.Equal(t, "k", dead[0].Key)
	require.Equal(t, "refused", dead[0].Error)
	sink.mu.Lock()
	sink.before = nil
	sink.mu.Unlock()
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		return errors.Join(o.Resend(ctx, tx, dead[0]), o.Drop(ctx, tx, dead[1]))
	}))
	require.NoError(t, w.WaitIdle(ctx))
	stop()
	require.Equal(t, []string{"1", "2", "3", "bad"}, sink.payloads("k"))
	require.Empty(t, letters())
	err = db.Update(ctx, func(tx *percolator.Txn) error { return o.Drop(ctx, tx, dead[0]) })
	require.ErrorIs(t, err, percolator.ErrNotFound)
}

// TestSinkChangesItsPayloads has a sink that changes the payloads in place, takes one item at a time, and refuses another one.
func TestSinkChangesItsPayloads(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db, o := opened(t)
	put(t, o, "k", "1", "2", "bad", "3")
	var mu sync.Mutex
	var sent []string
	sink := SinkFunc(func(_ context.Context, _ string, items []Item) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		first := string(items[0].Payload)
		for i := range items {
			for j := range items[i].Payload {
				items[i].Payload[j] ^= 0xff
			}
		}
		if first == "bad" {
			return 0, errRefused
		}
		sent = append(sent, first)
		return 1, nil
	})
	w, stop := run(t, db, observer(t, o, sink, Options{MaxAttempts: 1, Skip: true}))
	require.NoError(t, w.WaitIdle(ctx))
	stop()
	require.Equal(t, []string{"1", "2", "3"}, sent)
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		for d, err := range o.Dead(ctx, tx) {
			if err != nil {
				return err
			}
			require.Equal(t, "bad", string(d.Payload))
		}
		return nil
	}))
	require.Equal(t, 1, dead(t, o))
}

// TestBadSinks has sinks that hang, answer half, lie and panic. Nothing is lost.
func TestBadSinks(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]func(ctx context.Context, items []Item) (int, error){
		"hangs": func(ctx context.Context, _ []Item) (int, error) { <-ctx.Done(); return 0, ctx.Err() },
		"half":  func(_ context.Context, items []Item) (int, error) { return (len(items) + 1) / 2, nil },
		"none":  func(context.Context, []Item) (int, error) { return 0, nil },
		"less":  func(context.Context, []Item) (int, error) { return -1, nil },
		"more":  func(_ context.Context, items []Item) (int, error) { return len(items) + 1, nil },
		"all but an error": func(_ context.Context, items []Item) (int, error) {
			return len(items), errRefused
		},
		"panics": func(context.Context, []Item) (int, error) { panic("no") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			db, o := opened(t)
			put(t, o, "k", "1", "2", "3")
			good, calls := &recorder{}, 0
			sink := SinkFunc(func(ctx context.Context, key string, items []Item) (int, error) {
				if calls++; calls > 2 {
					return good.Send(ctx, key, items)
				}
				n, err := bad(ctx, items)
				if n > 0 && n <= len(items) {
					_, _ = good.Send(ctx, key, items[:n])
				}
				return n, err
			})
			w, stop := run(t, db, observer(t, o, sink, Options{Timeout: 20 * time.Millisecond, MaxAttempts: 20, Concurrency: 1}))
			require.NoError(t, w.WaitIdle(ctx))
			stop()
			require.Equal(t, []string{"1", "2", "3"}, good.payloads("k"))
			require.Zero(t, left(t, o))
			require.Zero(t, good.again)
		})
	}
}

func TestInvalid(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	_, err := New(nil, "t")
	require.ErrorIs(t, err, percolator.ErrInvalid)
	_, err = New(db, "")
	require.ErrorIs(t, err, percolator.ErrInvalid)
	o := newOutbox(t, db)
	_, err = o.Observer("send", nil, Options{})
	require.ErrorIs(t, err, percolator.ErrInvalid)
	for _, opt := range []Options{{Batch: -1}, {Timeout: -1}, {MaxAttempts: -1}, {Concurrency: -1}} {
		_, err = o.Observer("send", &recorder{}, opt)
		require.ErrorIs(t, err, percolator.ErrInvalid)
	}
	// Nobody would send it.
	err = db.Update(ctx, func(tx *percolator.Txn) error { return o.Put(ctx, tx, "k", nil) })
	require.ErrorIs(t, err, percolator.ErrNotObserved)
	require.Zero(t, left(t, o))
	db, o = opened(t)
	require.ErrorIs(t, db.View(ctx, func(tx *percolator.Txn) error { return o.Put(ctx, tx, "k", nil) }), percolator.ErrReadOnly)
	var ended *percolator.Txn
	require.ErrorIs(t, db.Update(ctx, func(tx *percolator.Txn) error {
		ended = tx
		return o.Put(ctx, tx, strings.Repeat("k", 4096), nil)
	}), percolator.ErrTooLarge)
	requireForgotten(t, ended)
}

// TestDamage has a claim and a row that nobody has written so. The run is parked, and nothing is removed.
func TestDamage(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for _, cell := range []percolator.Cell{
		{Table: "outbox", Row: string(rowOf("k")), Column: claimColumn},
		{Table: "outbox", Row: string(rowOf("k").Text("x")), Column: itemColumn},
	} {
		db, o := opened(t)
		require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(cell, []byte("damaged")) }))
		put(t, o, "k", "1")
		before := left(t, o)
		sink := &recorder{}
		w, stop := run(t, db, observer(t, o, sink, Options{MaxAttempts: 2}))
		require.NoError(t, w.WaitIdle(ctx))
		stop()
		parked, err := db.Parked(ctx)
		require.NoError(t, err)
		require.Len(t, parked, 1)
		require.Empty(t, sink.payloads("k"))
		require.Equal(t, before, left(t, o))
	}
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	var got jsonBatch
	status, body := http.StatusOK, `{"sent": 1}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewDecoder(r.Body).Decode(&got)
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	defer server.Close()
	items := []Item{{Key: "k", Epoch: 7, Commit: 5, Index: 1, Payload: []byte("hi")}, {Key: "k", Epoch: 7, Commit: 6, Payload: nil}}
	send := func() (int, error) {
		return HTTP{URL: server.URL, Client: server.Client()}.Send(t.Context(), "k", items)
	}
	n, err := send()
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, jsonBatch{Key: "k", Epoch: 7, Items: []jsonItem{{5, 1, []byte("hi")}, {6, 0, nil}}}, got)
	status, body = http.StatusAccepted, ""
	n, err = send()
	require.NoError(t, err)
	require.Equal(t, 2, n)
	status = http.StatusConflict
	_, err = send()
	require.ErrorIs(t, err, ErrSuperseded)
	status = http.StatusTeapot
	_, err = send()
	require.ErrorContains(t, err, "418")
	for _, body = range []string{"", "{}", "no"} {
		status = http.StatusOK
		_, err = send()
		require.ErrorContains(t, err, "without")
	}
	for _, redirection := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther} {
		elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/" {
				http.Redirect(w, r, "/page", redirection)
				return
			}
			w.WriteHeader(http.StatusNoContent) // whatever it is asked
		}))
		n, err = HTTP{URL: elsewhere.URL, Client: elsewhere.Client()}.Send(t.Context(), "k", items)
		elsewhere.Close()
		require.ErrorContains(t, err, "redirected")
		require.Zero(t, n, "the items did not go with it")
	}
	_, err = HTTP{URL: "http://user:secret@\x00"}.Send(t.Context(), "k", items)
	require.Error(t, err)
	require.NotContains(t, err.Error(), "secret")
	_, err = HTTP{URL: "http://user:secret@127.0.0.1:1/"}.Send(t.Context(), "k", items)
	require.Error(t, err)
	require.NotContains(t, err.Error(), "secret")
}

// TestHTTPKeys has keys of which some are no text. A server can tell each from all others, and those that are text come as they always have.
func TestHTTPKeys(t *testing.T) {
	t.Parallel()
	var body []byte
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ = io.ReadAll(r.Body)
		w.WriteHeader(http.StatusNoContent)
	}))
	defer server.Close()
	var bodies []string
	for _, key := range []string{"ann", "", "\uFFFD", "<\x00\u2028>", "\xff", "\xfe", "a\xff", "/w=="} {
		n, err := HTTP{URL: server.URL, Client: server.Client()}.Send(t.Context(), key, []Item{{Key: key, Epoch: 7, Commit: 5, Payload: []byte("hi")}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.NotContains(t, bodies, string(body))
		bodies = append(bodies, string(body))
		var got map[string]any
		require.NoError(t, json.Unmarshal(body, &got))
		if utf8.ValidString(key) {
			require.Equal(t, key, got["key"])
			require.NotContains(t, got, "keyBase64")
			continue
		}
		require.NotContains(t, got, "key", "a server that looks for a text must not take half a key for one")
		inBase64, _ := got["keyBase64"].(string)
		decoded, err := base64.StdEncoding.DecodeString(inBase64)
		require.NoError(t, err)
		require.Equal(t, key, string(decoded))
	}
	require.Equal(t, `{"key":"ann","epoch":"7","items":[{"commit":"5","index":0,"payload":"aGk="}]}`, bodies[0])
	require.Equal(t, `{"keyBase64":"/w==","epoch":"7","items":[{"commit":"5","index":0,"payload":"aGk="}]}`, bodies[4])
}
