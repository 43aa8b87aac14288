package percolator

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// hintingStore visits each notified row as a hint first, as a store does that knows where
// notifications may be without reading the rows.
type hintingStore struct {
	*memstore.Store
	// begins is called before a scan that asks for hints.
	begins func()

	mu    sync.Mutex
	given map[string]bool // as a hint
	also  []string        // rows that it takes for notified
	hints int
	asked int // scans that asked for hints
}

func (s *hintingStore) Scan(ctx context.Context, r rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	if !r.Hints {
		return s.Store.Scan(ctx, r)
	}
	return func(yield func(rowstore.Row, error) bool) {
		if s.begins != nil {
			s.begins()
		}
		s.mu.Lock()
		s.asked++
		also := slices.Clone(s.also)
		s.mu.Unlock()
		hint := func(name string) bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.given[name] {
				return false
			}
			s.given[name] = true
			s.hints++
			return true
		}
		visited := map[string]bool{}
		for _, name := range also {
			if visited[name] = hint(name); visited[name] && !yield(rowstore.Row{Table: r.Table, Row: name, Hint: true}, nil) {
				return
			}
		}
		for row, err := range s.Store.Scan(ctx, r) {
			switch {
			case err == nil && visited[row.Row]:
				continue
			case err == nil && hint(row.Row):
				row.Versions, row.Hint = nil, true
			}
			if !yield(row, err) || err != nil {
				return
			}
		}
	}
}

// forget makes hints of all that is notified once more, as if by new markers.
func (s *hintingStore) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.given)
}

// hinting is a client over a hintingStore.
func (w *world) hinting() (*client, *hintingStore) {
	s := &hintingStore{Store: w.mem, given: map[string]bool{}}
	return w.clientOver(newWireTo(s, w.mem)), s
}

// lookOnce looks at table "t" once, and does not wait for the jobs.
func lookOnce(t testing.TB, wk *Worker) *looker {
	t.Helper()
	l, err := wk.look(t.Context(), "t", nil, 0)
	require.NoError(t, err)
	return l
}

// Each hint leads to a run, and a row that stays notified is read at the next look.
func TestHintsAreRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c, s := w.hinting()
	var rows saw
	wk := rowWorker(t, c, &rows)
	for range 3 {
		names := notifyRows(t, c, 2*lookPage+10)
		s.forget()
		s.hints = 0
		require.Equal(t, names, dealt(t, wk, &rows), "each row once")
		require.Equal(t, len(names), s.hints)
		require.Empty(t, w.versions(rowstore.Notify))
		require.Empty(t, dealt(t, wk, &rows))
	}
	require.EqualValues(t, 3*(2*lookPage+10), c.Stats().ObserverRuns)
}

// A hint of a row that nothing notifies runs nothing, whatever the row holds: it is garbage, or its
// notification is yet to come, and is found then.
func TestHintsOfNothing(t *testing.T) {
	t.Parallel()
	for _, vainly := range []bool{false, true} {
		t.Run(fmt.Sprint("sorted out ", vainly), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			names := notifyRows(t, w.client(), 2*sortedTogether) // nobody observes them
			w.observed("t", "v", "o")
			c, s := w.hinting()
			var rows saw
			wk := rowWorker(t, c, &rows)
			s.also = append([]string{"none"}, names...)
			s.begins = func() {
				if vainly {
					wk.mu.Lock()
					wk.list[0].vain = 1
					wk.mu.Unlock()
				}
			}
			require.Empty(t, dealt(t, wk, &rows))
			require.Equal(t, len(s.also), s.hints)
			require.Positive(t, wk.list[0].vain)
			wk.list[0].vain = 0
			set(t, c.DB, row(names[3]), "2")
			require.Equal(t, names[3:4], dealt(t, wk, &rows), "what comes to such a row is found")
			require.Empty(t, w.versions(rowstore.Notify))
		})
	}
}

// A hint does not call a function sooner than its next attempt is due, and lets no newer change
// wait for that.
func TestHintsOfWhatWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c, s := w.hinting()
	calls := 0
	wk := watching(t, c, Observer{Name: "o", Func: func(ctx context.Context, tx *Txn, cell Cell) error {
		calls++
		if v, err := tx.Get(ctx, cell); err != nil || string(v) != "1" {
			return err
		}
		return RetryAfter(time.Hour)
	}})
	look := func() {
		s.forget()
		lookOnce(t, wk)
		wk.tasks.Wait()
	}
	set(t, c.DB, rowA, "1")
	look()
	require.Equal(t, 1, calls)
	for range 3 {
		look()
	}
	require.Equal(t, 1, calls, "it waits for its next attempt")
	require.NotEmpty(t, w.versions(rowstore.Notify))
	set(t, c.DB, rowA, "2")
	look()
	require.Equal(t, 2, calls)
	require.Empty(t, w.versions(rowstore.Notify))
}

// A hint that comes while the job of its cell runs may tell of a change that the run does not see:
// the job looks again. It does so too if it began with a hint, and has looked but not noted what it saw.
func TestHintDuringARun(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"view", "function"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.observed("t", "v", "o")
			c, s := w.hinting()
			other := w.client()
			called, goOn := make(chan struct{}, 8), make(chan struct{})
			var saw []string
			wk := watching(t, c, Observer{Name: "o", Func: func(ctx context.Context, tx *Txn, cell Cell) error {
				v, err := tx.Get(ctx, cell)
				saw = append(saw, string(v))
				called <- struct{}{}
				<-goOn
				return err
			}})
			set(t, other.DB, rowA, "1")
			var view *pause
			if at == "view" {
				view = c.holdReply(t, both(op(faultstore.CallRead), func(c *call) bool { return c.Reads[0].Row == rowA.Row }), pass)
			}
			lookOnce(t, wk)
			if at == "view" {
				view.wait()
			} else {
				<-called
			}
			set(t, other.DB, rowA, "2")
			s.forget()
			lookOnce(t, wk)
			if at == "view" {
				view.release(pass)
			}
			close(goOn)
			wk.tasks.Wait()
			require.Equal(t, []string{"1", "2"}, saw)
			require.Empty(t, w.versions(rowstore.Notify))
		})
	}
}

// A hint of a row whose change is under way waits for its lock, and no longer.
func TestHintOfALockedRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c, s := w.hinting()
	other := w.client(withoutGroups())
	var rows saw
	wk := rowWorker(t, c, &rows)
	held := other.hold(t, commitPoint(rowA))
	committed := commit(other, writes(t, other, "1", rowA))
	held.wait()
	require.Empty(t, dealt(t, wk, &rows))
	require.Equal(t, 1, s.hints)
	held.release(pass)
	require.NoError(t, w.finish(committed))
	require.Equal(t, []string{rowA.Row}, dealt(t, wk, &rows))
	require.Empty(t, w.versions(rowstore.Notify))
}

// A worker asks for hints of one column, and while what it finds needs runs.
func TestWhenHintsAreTaken(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		columns []string
		vain    vain
		want    int
	}{
		{[]string{"v"}, 0, 1},
		{[]string{"v"}, hintsVain + 0.01, 0},
		{[]string{"v", "w"}, 0, 0},
	} {
		w := newWorld(t)
		var all []Observer
		for _, column := range x.columns {
			w.observed("t", column, "o "+column)
			all = append(all, Observer{Name: "o " + column, Table: "t", Column: column, Func: func(context.Context, *Txn, Cell) error { return nil }})
		}
		c, s := w.hinting()
		wk := watching(t, c, all...)
		wk.list[0].vain = x.vain
		set(t, c.DB, rowA, "1")
		lookOnce(t, wk)
		wk.tasks.Wait()
		require.Equal(t, x.want, s.asked)
		require.Equal(t, x.want, s.hints)
		require.Empty(t, w.versions(rowstore.Notify))
	}
}

// A whole worker over a store of hints does all that there is to do.
func TestWorkerOverHints(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := &hintingStore{Store: w.mem, given: map[string]bool{}}
	db, err := New(t.Context(), s)
	require.NoError(t, err)
	atend.Do(t, func() { require.NoError(t, db.Close(context.WithoutCancel(t.Context()))) })
	wk := startWorker(t, db, WorkerConfig{}, Observer{Name: "next", Table: "t", Column: "v", Func: func(ctx context.Context, tx *Txn, cell Cell) error {
		v, err := tx.Get(ctx, cell)
		if err != nil || len(v) == 3 {
			return err
		}
		return tx.Set(Cell{"t", cell.Row + "'", "v"}, append(v, '.'))
	}})
	for round := range 5 {
		for i := range 20 {
			set(t, db, row(fmt.Sprint(i)), fmt.Sprint(round))
		}
		idle(t, wk)
		require.Empty(t, w.versions(rowstore.Notify))
		for i := range 20 {
			require.Equal(t, fmt.Sprint(round, ".."), get(t, db, row(fmt.Sprint(i, "''"))))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Positive(t, s.hints)
}

// Nothing is remembered of a cell that no look has shown.
func TestNothingIsKnownByAHint(t *testing.T) {
	t.Parallel()
	r, now := newRested(), time.Now()
	r.put(rowA, unread, waits|1, now.Add(time.Hour), now)
	require.Zero(t, r.covers(rowA, unread, now))
	for range 1000 {
		require.NotEqual(t, unread, r.signature(rowA, nil, nil))
		r = newRested()
	}
}
