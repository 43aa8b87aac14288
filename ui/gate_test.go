package ui_test

import (
	"context"
	"iter"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/ui"
)

// held has calls that wait until it is let go, and counts how many are under way at once.
type held struct {
	*watched
	here      chan struct{} // gets one for each call
	letGo     chan struct{}
	now, most atomic.Int64
}

func (s *held) Unwrap() rowstore.Store { return s.watched }

func (s *held) hold() (done func()) {
	n := s.now.Add(1)
	for most := s.most.Load(); n > most && !s.most.CompareAndSwap(most, n); most = s.most.Load() {
	}
	select {
	case s.here <- struct{}{}:
	default:
	}
	<-s.letGo
	return func() { s.now.Add(-1) }
}

func (s *held) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	defer s.hold()()
	return s.watched.Read(ctx, reads)
}

func (s *held) Scan(ctx context.Context, r rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return func(yield func(rowstore.Row, error) bool) {
		defer s.hold()()
		s.watched.Scan(ctx, r)(yield)
	}
}

// newHeld makes a page over a database whose calls are held from now on.
func newHeld(t *testing.T, concurrent int) (*held, *ui.Handler) {
	t.Helper()
	_, mem := open(t) // which makes the database
	s := &held{watched: mem, here: make(chan struct{}, 100), letGo: make(chan struct{})}
	r := readerOf(t, s)
	h, err := ui.Of(r, func(*http.Request) (ui.Access, error) { return ui.Access{Who: "ann"}, nil }, ui.Options{Timeout: time.Minute, Concurrent: concurrent})
	require.NoError(t, err)
	return s, h
}

// begun asks for a view that reads by one call at a time, in a goroutine.
func begun(t *testing.T, all *sync.WaitGroup, h *ui.Handler, view string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	r := asked(t.Context(), view)
	all.Go(func() { h.ServeHTTP(w, r) })
	return w
}

func asked(ctx context.Context, view string) *http.Request {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, view, nil)
	r.Host = "localhost"
	return r
}

// TestFewAtOnce has many people look at once. A few of them look at the database, and who gets no turn in time is told when to come back.
func TestFewAtOnce(t *testing.T) {
	t.Parallel()
	s, h := newHeld(t, 2)
	var all sync.WaitGroup
	answers := []*httptest.ResponseRecorder{begun(t, &all, h, "/processes"), begun(t, &all, h, "/processes")}
	<-s.here
	<-s.here
	// Both places are taken until these are let go.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, asked(ctx, "/processes"))
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.Equal(t, "1", w.Header().Get("Retry-After"))
	require.Contains(t, w.Body.String(), "too many people look at once")
	w = httptest.NewRecorder()
	h.ServeHTTP(w, asked(ctx, "/style.css"))
	require.Equal(t, http.StatusOK, w.Code, "the style needs no place")
	for range 30 {
		answers = append(answers, begun(t, &all, h, "/processes"))
	}
	close(s.letGo)
	all.Wait()
	for _, a := range answers {
		require.Equal(t, http.StatusOK, a.Code, a.Body)
	}
	require.LessOrEqual(t, s.most.Load(), int64(2))
	require.Zero(t, s.now.Load())
	require.NoError(t, h.Close(t.Context()))
}

// slowly is an answer that somebody reads slowly.
type slowly struct {
	*httptest.ResponseRecorder
	here, letGo chan struct{}
}

func (s *slowly) Write(b []byte) (int, error) {
	s.here <- struct{}{}
	<-s.letGo
	return s.ResponseRecorder.Write(b)
}

// TestSlowReadersKeepNoPlace has somebody who does not read the answer. Others look at the database meanwhile.
func TestSlowReadersKeepNoPlace(t *testing.T) {
	t.Parallel()
	s, h := newHeld(t, 1)
	close(s.letGo)
	slow := &slowly{httptest.NewRecorder(), make(chan struct{}, 1), make(chan struct{})}
	var all sync.WaitGroup
	all.Go(func() { h.ServeHTTP(slow, asked(t.Context(), "/processes")) })
	<-slow.here
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, asked(ctx, "/processes"))
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	close(slow.letGo)
	all.Wait()
	require.Equal(t, http.StatusOK, slow.Code)
	require.NoError(t, h.Close(t.Context()))
}

// TestCloseWaits has a request under way while the page is closed: Close waits for it, within its context, and nobody else gets in.
func TestCloseWaits(t *testing.T) {
	t.Parallel()
	s, h := newHeld(t, 0)
	var all sync.WaitGroup
	answer := begun(t, &all, h, "/processes")
	<-s.here
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, h.Close(ctx), context.Canceled, "a request is under way")
	for _, view := range []string{"/processes", "/", "/style.css", "/nothing"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, asked(t.Context(), view))
		require.Equal(t, http.StatusServiceUnavailable, w.Code, view)
	}
	closed := make(chan error, 1)
	go func() { closed <- h.Close(t.Context()) }()
	require.Empty(t, closed)
	close(s.letGo)
	require.NoError(t, <-closed)
	require.Zero(t, s.now.Load(), "a call was under way after Close")
	all.Wait()
	require.Equal(t, http.StatusOK, answer.Code)
}

func TestConcurrentIsChecked(t *testing.T) {
	t.Parallel()
	_, mem := open(t)
	_, err := ui.Of(readerOf(t, mem), func(*http.Request) (ui.Access, error) { return ui.Access{}, nil }, ui.Options{Concurrent: -1})
	require.ErrorIs(t, err, percolator.ErrInvalid)
}
