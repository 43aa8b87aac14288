package export

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
)

// paused lists the paused keys.
func paused(t testing.TB, o *Outbox) (all []Pause) {
	t.Helper()
	require.NoError(t, o.db.View(t.Context(), func(tx *percolator.Txn) error {
		all = nil
		for p, err := range o.Paused(t.Context(), tx) {
			if err != nil {
				return err
			}
			all = append(all, p)
		}
		return nil
	}))
	return all
}

func resume(t testing.TB, o *Outbox, key string) error {
	t.Helper()
	return o.db.Update(t.Context(), func(tx *percolator.Txn) error { return o.Resume(t.Context(), tx, key) })
}

// TestResume ends the pause of a key long before its time: a worker sends its items then. What is sent is no pause, nor is a key without items.
func TestResume(t *testing.T) {
	t.Parallel()
	db, o := opened(t)
	good := &recorder{}
	asked := make(chan struct{}, 1)
	well := make(chan struct{})
	w, stop := run(t, db, observer(t, o, SinkFunc(func(ctx context.Context, key string, items []Item) (int, error) {
		if all := paused(t, o); len(all) != 0 {
			return 0, errors.New("a key that is being sent is paused")
		}
		if err := resume(t, o, key); !errors.Is(err, percolator.ErrNotFound) {
			return 0, errors.New("the claim of an exporter that is at work was ended")
		}
		select {
		case <-well:
			return good.Send(ctx, key, items)
		default:
			select {
			case asked <- struct{}{}:
			default:
			}
			return 0, Later(time.Hour, nil)
		}
	}), Options{}))
	defer stop()
	requireAsked := func() {
		t.Helper()
		select {
		case <-asked:
		case <-time.After(time.Minute):
			require.FailNow(t, "the sink does not get the item", "%+v", paused(t, o))
		}
	}
	require.ErrorIs(t, resume(t, o, "k"), percolator.ErrNotFound)
	put(t, o, "k", "1")
	requireAsked()
	require.Eventually(t, func() bool { return len(paused(t, o)) == 1 }, time.Minute, time.Millisecond)
	p := paused(t, o)[0]
	require.Equal(t, "k", p.Key)
	now, err := db.Now(t.Context())
	require.NoError(t, err)
	require.WithinRange(t, p.Until, now.Time().Add(50*time.Minute), now.Time().Add(time.Hour))
	put(t, o, "k", "2")
	require.ErrorIs(t, resume(t, o, "another"), percolator.ErrNotFound)

	// It is not well yet, and asks for another pause.
	require.NoError(t, resume(t, o, "k"))
	requireAsked()
	require.Eventually(t, func() bool { return len(paused(t, o)) == 1 }, time.Minute, time.Millisecond)
	require.Empty(t, good.payloads("k"))
	close(well)
	require.NoError(t, resume(t, o, "k"))
	require.NoError(t, w.WaitIdle(t.Context()))
	require.Equal(t, []string{"1", "2"}, good.payloads("k"))
	require.Empty(t, paused(t, o))
	require.ErrorIs(t, resume(t, o, "k"), percolator.ErrNotFound)
	require.Zero(t, claims(t, o))
}

// TestResumeKeepsTheAttempts of the item that blocks the key. A claim that nobody can read is an error.
func TestResumeKeepsTheAttempts(t *testing.T) {
	t.Parallel()
	_, o := opened(t)
	put(t, o, "k", "1")
	answers := []error{errors.New("bad"), Later(time.Hour, nil)}
	e := newExporter(o, SinkFunc(func(context.Context, string, []Item) (int, error) {
		err := answers[0]
		answers = answers[1:]
		return 0, err
	}), Options{MaxAttempts: 5})
	for range 2 {
		require.Error(t, e.export(t.Context(), string(rowOf("k"))))
	}
	require.Empty(t, answers)
	require.NoError(t, resume(t, o, "k"))
	require.NoError(t, o.db.View(t.Context(), func(tx *percolator.Txn) error {
		c, now, err := o.readClaim(t.Context(), tx, "k")
		require.False(t, c.paused(now))
		require.EqualValues(t, 1, c.attempts)
		return err
	}))
	require.NoError(t, o.db.Update(t.Context(), func(tx *percolator.Txn) error {
		return tx.Set(o.cell(rowOf("k"), claimColumn), []byte("damaged"))
	}))
	require.ErrorIs(t, resume(t, o, "k"), percolator.ErrCorrupt)
	require.ErrorIs(t, o.db.View(t.Context(), func(tx *percolator.Txn) error {
		for _, err := range o.Paused(t.Context(), tx) {
			return err
		}
		return nil
	}), percolator.ErrCorrupt)
}

// TestPausedKeyIsLeftAlone until the end of the pause, however short that is: what it waits for is no exporter that may be done sooner.
func TestPausedKeyIsLeftAlone(t *testing.T) {
	t.Parallel()
	_, o := opened(t)
	put(t, o, "k", "1")
	e := newExporter(o, SinkFunc(func(context.Context, string, []Item) (int, error) { return 0, Later(20*time.Minute, nil) }), Options{Timeout: time.Hour})
	require.Error(t, e.export(t.Context(), string(rowOf("k"))))
	_, wait, err := e.take(t.Context(), "k")
	require.NoError(t, err)
	require.Greater(t, wait, 10*time.Minute)
}
