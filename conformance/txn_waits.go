package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/contexts"
	"github.com/percolate-go/percolate/percolator"
)

func endedContexts(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db := w.db()
		w.set(db, one, "10")
		cancelled, cancel := context.WithCancel(w.ctx)
		cancel()
		tx := w.begin(db)
		w.write(tx, one, "11")
		none := func(*percolator.Txn) error { return nil }
		calls := map[string]func(ctx context.Context) error{
			"Begin":  func(ctx context.Context) error { _, err := db.Begin(ctx); return err },
			"Now":    func(ctx context.Context) error { _, err := db.Now(ctx); return err },
			"Update": func(ctx context.Context) error { return db.Update(ctx, none) },
			"View":   func(ctx context.Context) error { return db.View(ctx, none) },
			"Get":    func(ctx context.Context) error { _, err := tx.Get(ctx, two); return err },
			"GetMany": func(ctx context.Context) error {
				_, err := tx.GetMany(ctx, one, two)
				return err
			},
			"GetForUpdate": func(ctx context.Context) error { _, err := tx.GetForUpdate(ctx, two); return err },
			"Scan": func(ctx context.Context) error {
				for _, err := range tx.Scan(ctx, percolator.Range{Table: table}) {
					return err
				}
				return nil
			},
			"Outcome":        func(ctx context.Context) error { _, err := db.Outcome(ctx, startOf(tx), two); return err },
			"Observers":      func(ctx context.Context) error { _, err := db.Observers(ctx); return err },
			"RemoveObserver": func(ctx context.Context) error { return db.RemoveObserver(ctx, "none") },
			"Configure":      func(ctx context.Context) error { return db.Configure(ctx, db.Settings()) },
			"CollectGarbage": func(ctx context.Context) error { _, err := db.CollectGarbage(ctx, percolator.GCOptions{}); return err },
			"Parked":         func(ctx context.Context) error { _, err := db.Parked(ctx); return err },
			"New": func(ctx context.Context) error {
				_, err := percolator.New(ctx, newClient(w.inner), slices.Concat(w.e.cfg.db, w.way)...)
				return err
			},
		}
		for name, call := range calls {
			require.ErrorIs(w, call(cancelled), context.Canceled, name)
		}
		err := tx.Commit(cancelled)
		require.ErrorIs(w, err, context.Canceled)
		require.NotErrorIs(w, err, percolator.ErrUndetermined, "nothing was sent")
		require.ErrorIs(w, tx.Commit(w.ctx), percolator.ErrTxnDone)
		require.Equal(w, "10", w.now(db, one)[0])
	})
}

// held is a commit that stopped before the call that makes it visible.
type held struct {
	reached, release chan struct{}
	done             chan error
	tx               *percolator.Txn
}

// hold begins to commit tx, of a DB over c, and returns once the commit has its
// timestamp and all its locks, and is about to pass the commit point.
func (w *world) hold(c *client, tx *percolator.Txn) *held {
	w.Helper()
	h, err := w.tryHold(c, tx)
	if err != nil {
		w.Fatalf("the commit ended before its commit point: %v", err)
	}
	return h
}

// tryHold is hold for a client with a short lease, which a stall of the machine can
// end before the commit point: then it returns the conflict.
func (w *world) tryHold(c *client, tx *percolator.Txn) (*held, error) {
	w.Helper()
	h := &held{reached: make(chan struct{}), release: make(chan struct{}), done: make(chan error, 1), tx: tx}
	var first atomic.Bool
	c.on(func(ctx context.Context, cl *call) fate {
		if commits(cl, tx) && first.CompareAndSwap(false, true) {
			close(h.reached)
			select {
			case <-h.release:
			case <-ctx.Done():
			case <-c.Crashed():
			}
		}
		return goesThrough
	})
	go func() { h.done <- tx.Commit(w.ctx) }()
	select {
	case <-h.reached:
	case err := <-h.done:
		if !errors.Is(err, percolator.ErrConflict) {
			w.Fatalf("the commit ended before its commit point: %v", err)
		}
		return nil, err
	case <-w.ctx.Done():
		w.Fatalf("the commit did not come to its commit point")
	}
	return h, nil
}

// finish lets the commit go on, and returns its error.
func (w *world) finish(h *held) error {
	w.Helper()
	close(h.release)
	select {
	case err := <-h.done:
		return err
	case <-w.ctx.Done():
		w.Fatalf("the commit did not end")
		return nil
	}
}

func readerWaitsForALivingCommit(t testing.TB, e *env) {
	e.eachLockingWay(t, func(w *world) {
		db, c := w.client()
		other := w.db()
		w.set(db, one, "10", two, "20")
		tx := w.begin(db)
		w.write(tx, one, "11", two, "21")
		h := w.hold(c, tx)
		// The commit timestamp is drawn: a snapshot that is taken now lies above it,
		// and must have the new values, though no write is there yet.
		readers := twoReaders(w)
		for _, r := range readers {
			rtx := w.begin(other)
			go func() { r.got <- r.read(rtx) }()
		}
		// An older snapshot waits for nobody.
		require.Equal(w, []string{"10", "20"}, []string{
			w.value(w.begin(other, percolator.WithAsOfTimestamp(startOf(tx)-1)), one),
			w.value(w.begin(other, percolator.WithAsOfTimestamp(startOf(tx)-1)), two),
		})
		w.until("the readers to meet the locks", func() bool { return other.Stats().LocksMet >= 3 })
		for _, r := range readers {
			select {
			case got := <-r.got:
				w.Fatalf("%s did not wait for a commit under way: %v", r.what, got)
			default:
			}
		}
		o, err := other.Outcome(w.ctx, startOf(tx), one)
		require.NoError(w, err)
		require.Equal(w, percolator.OutcomePending, o.Status)
		require.NoError(w, w.finish(h))
		for _, r := range readers {
			select {
			case got := <-r.got:
				require.Equal(w, []string{"11", "21"}, got, r.what)
			case <-w.ctx.Done():
				w.Fatalf("%s never returned", r.what)
			}
		}
		require.Zero(w, other.Stats().RolledBack)
	})
}

// twoReader reads the cells one and two. What it got, or the text of an error, goes to got.
type twoReader struct {
	what string
	read func(tx *percolator.Txn) []string
	got  chan []string
}

// twoReaders are the ways to read two cells.
func twoReaders(w *world) []twoReader {
	get := func(tx *percolator.Txn, c percolator.Cell) string {
		v, err := tx.Get(w.ctx, c)
		if err != nil {
			return err.Error()
		}
		return string(v)
	}
	return []twoReader{
		{"Get", func(tx *percolator.Txn) []string { return []string{get(tx, one), get(tx, two)} }, make(chan []string, 1)},
		{"GetMany", func(tx *percolator.Txn) []string {
			m, err := tx.GetMany(w.ctx, two, one)
			if err != nil {
				return []string{err.Error()}
			}
			return []string{string(m[one]), string(m[two])}
		}, make(chan []string, 1)},
		{"Scan", func(tx *percolator.Txn) []string {
			var all []string
			for row, err := range tx.Scan(w.ctx, percolator.Range{Table: table}) {
				if err != nil {
					return []string{err.Error()}
				}
				all = append(all, string(row.Columns["v"]))
			}
			return all
		}, make(chan []string, 1)},
	}
}

func waitingEndsWithTheContext(t testing.TB, e *env) {
	e.eachLockingWay(t, func(w *world) {
		db, c := w.client()
		other := w.db()
		tx := w.begin(db)
		w.write(tx, one, "11")
		h := w.hold(c, tx)
		younger := w.begin(other)
		w.write(younger, one, "12")
		for name, call := range map[string]func(ctx context.Context) error{
			"Get":     func(ctx context.Context) error { _, err := w.begin(other).Get(ctx, one); return err },
			"GetMany": func(ctx context.Context) error { _, err := w.begin(other).GetMany(ctx, one, two); return err },
			"Scan": func(ctx context.Context) error {
				for _, err := range w.begin(other).Scan(ctx, percolator.Range{Table: table}) {
					return err
				}
				return nil
			},
			"Commit": func(ctx context.Context) error { return younger.Commit(ctx) },
		} {
			ctx, cancel := context.WithTimeout(w.ctx, 30*time.Millisecond)
			err := call(ctx)
			cancel()
			require.ErrorIs(w, err, context.DeadlineExceeded, name)
			require.NotErrorIs(w, err, percolator.ErrUndetermined, name)
		}
		require.NoError(w, w.finish(h))
		require.Equal(w, "11", w.now(other, one)[0])
	})
}

// longCommitIsKeptAlive holds a commit for longer than its leases: heartbeats keep
// its locks from being taken for a dead one's. A machine that stalls makes them late;
// then the test is done again, with longer leases. Whoever looks at the store's time need
// not stall when the heartbeats do, so the shorter leases prove nothing.
func longCommitIsKeptAlive(t testing.TB, e *env) {
	const longest = 3200 * time.Millisecond
	e.eachLockingWay(t, func(w *world) {
		for expiry := 400 * time.Millisecond; ; expiry *= 2 {
			stalled, err := holdLong(w, expiry, fmt.Sprint("held for ", expiry))
			if err == nil {
				return
			}
			if !stalled && expiry >= longest {
				require.NoError(w, err, "a living client's commit is not rolled back")
			}
		}
	})
}

func holdLong(w *world, expiry time.Duration, v string) (stalled bool, err error) {
	w.Helper()
	lease := []percolator.Option{percolator.WithLockExpiry(expiry), percolator.WithSessionLease(expiry)}
	db, c := w.client(lease...)
	other := w.db()
	tx := w.begin(db)
	w.write(tx, one, v, two, v)
	last, err := other.Now(w.ctx)
	require.NoError(w, err)
	from := last
	h, err := w.tryHold(c, tx)
	if err != nil {
		return true, err
	}
	reader := w.begin(other)
	got := make(chan error, 1)
	go func() {
		_, err := reader.Get(w.ctx, one)
		got <- err
	}()
	for last.Sub(from) < 3*expiry {
		now, err := other.Now(w.ctx)
		require.NoError(w, err)
		stalled = stalled || now.Sub(last) > expiry/4
		last = now
		_ = contexts.Sleep(w.ctx, expiry/40)
	}
	err = w.finish(h)
	if readErr := <-got; err == nil {
		require.NoError(w, readErr)
		require.Zero(w, other.Stats().RolledBack)
		require.Equal(w, []string{v, v}, w.now(other, one, two))
	}
	return stalled, err
}
