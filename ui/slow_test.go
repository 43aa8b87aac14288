package ui_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/ui"
)

// newLoginPage makes a page with a login.
func newLoginPage(t *testing.T, timeout time.Duration) *ui.Handler {
	t.Helper()
	db, _ := open(t)
	l, err := ui.NewLogin(token, ui.LoginOptions{Access: ui.Access{Who: "ann", Actions: true}})
	require.NoError(t, err)
	h, err := ui.New(db, l.Authorize, ui.Options{Login: l, Timeout: timeout, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	return h
}

// slowBody is a body that comes once it is let go.
type slowBody struct {
	here, letGo chan struct{}
	rest        io.Reader
}

func (b *slowBody) Read(p []byte) (int, error) {
	select {
	case b.here <- struct{}{}:
	default:
	}
	<-b.letGo
	return b.rest.Read(p)
}

// TestCloseDoesNotWaitForForms has forms whose bodies do not come, of somebody without a token too. Close waits for none of them, and
// they do nothing when they come at last.
func TestCloseDoesNotWaitForForms(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"/login", "/act", "/logout", "/nothing"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newLoginPage(t, time.Minute)
			body := &slowBody{make(chan struct{}, 1), make(chan struct{}), strings.NewReader(url.Values{"token": {token}}.Encode())}
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, name, body)
			r.Host = "localhost"
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.Header.Set("Sec-Fetch-Site", "same-origin")
			w := httptest.NewRecorder()
			var all sync.WaitGroup
			all.Go(func() { h.ServeHTTP(w, r) })
			<-body.here
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			err := h.Close(ctx)
			close(body.letGo)
			all.Wait()
			require.NoError(t, err)
			require.Equal(t, http.StatusServiceUnavailable, w.Code)
			require.Empty(t, w.Header().Values("Set-Cookie"))
		})
	}
}

// No body of a look is waited for either, by whoever says what the request may do.
func TestBodyOfALook(t *testing.T) {
	t.Parallel()
	db, _ := open(t)
	h, err := ui.New(db, func(r *http.Request) (ui.Access, error) {
		b, err := io.ReadAll(r.Body)
		return ui.Access{Who: "ann"}, errors.Join(err, errIf(len(b) > 0))
	}, ui.Options{})
	require.NoError(t, err)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", endless{})
	r.Host = "localhost"
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	require.Equal(t, http.StatusOK, w.Code)
}

// TestLookWhoseBodyNeverComes has looks, of somebody without a token too, that claim a body over a real connection and never send it.
// The server reads bodies by itself before a long answer, so it is told not to: Close waits for none.
func TestLookWhoseBodyNeverComes(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/login", "/live.js", "/nothing"} {
		for _, body := range []string{"Content-Length: 100", "Transfer-Encoding: chunked"} {
			t.Run(path+" "+body, func(t *testing.T) {
				t.Parallel()
				h := newLoginPage(t, time.Minute)
				server := httptest.NewServer(h)
				defer server.Close()
				c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
				require.NoError(t, err)
				defer func() { require.NoError(t, c.Close()) }()
				_, err = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n\r\n", path, body)
				require.NoError(t, err)
				require.NoError(t, c.SetReadDeadline(time.Now().Add(30*time.Second)))
				answer, err := http.ReadResponse(bufio.NewReader(c), nil)
				require.NoError(t, err, "no answer comes before the body")
				require.NoError(t, answer.Body.Close())
				require.NoError(t, h.Close(t.Context()))
			})
		}
	}
}

func errIf(bad bool) error {
	if bad {
		return errors.New("there is a body")
	}
	return nil
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// TestSlowForm has a form that never ends, over a real connection: it is refused, and the connection is closed.
func TestSlowForm(t *testing.T) {
	t.Parallel()
	h := newLoginPage(t, time.Millisecond)
	server := httptest.NewServer(h)
	defer server.Close()
	var d net.Dialer
	c, err := d.DialContext(t.Context(), "tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	_, err = fmt.Fprint(c, "POST /login HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: same-origin\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\ntoken=")
	require.NoError(t, err)
	in := bufio.NewReader(c)
	a, err := http.ReadResponse(in, nil)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, a.Body)
	require.NoError(t, err)
	require.NoError(t, a.Body.Close())
	require.Equal(t, http.StatusRequestTimeout, a.StatusCode)
	_, err = in.ReadByte()
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, h.Close(t.Context()))
}

// stalled is an answer that nobody reads. It ends with the deadline for it, at once.
type stalled struct {
	*httptest.ResponseRecorder
	here, letGo chan struct{}

	mu           sync.Mutex
	reads        []bool // the deadlines for reading: whether each is one, or is none
	limit        time.Time
	limitChanged int
}

func newStalled() *stalled {
	return &stalled{ResponseRecorder: httptest.NewRecorder(), here: make(chan struct{}, 1), letGo: make(chan struct{})}
}

func (s *stalled) SetReadDeadline(at time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads = append(s.reads, !at.IsZero())
	return nil
}

func (s *stalled) SetWriteDeadline(at time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = at
	s.limitChanged++
	return nil
}

func (s *stalled) Write([]byte) (int, error) {
	s.mu.Lock()
	limit := s.limit
	s.mu.Unlock()
	if !limit.IsZero() {
		return 0, os.ErrDeadlineExceeded
	}
	select {
	case s.here <- struct{}{}:
	default:
	}
	<-s.letGo
	return 0, os.ErrClosed
}

// TestAnswersHaveADeadline has answers that nobody reads: each ends with its deadline, which it gets when it begins.
func TestAnswersHaveADeadline(t *testing.T) {
	t.Parallel()
	h := newLoginPage(t, time.Minute)
	for _, view := range []string{"/login", "/style.css", "/live.js", "/"} {
		w := newStalled()
		var all sync.WaitGroup
		all.Go(func() { h.ServeHTTP(w, asked(t.Context(), view)); w.here <- struct{}{} })
		<-w.here // it is answered, or waits for a reader
		close(w.letGo)
		all.Wait()
		require.Equal(t, 1, w.limitChanged, view)
		require.Empty(t, w.reads, view)
	}
	require.NoError(t, h.Close(t.Context()))
}

// TestFormsHaveADeadline: what is set for reading a form is gone when it was read, and nothing is set where there is none to read, since a server
// that listens for the end of the connection would take the deadline for that.
func TestFormsHaveADeadline(t *testing.T) {
	t.Parallel()
	h := newLoginPage(t, time.Minute)
	for want, body := range map[string]io.Reader{"[true false]": strings.NewReader("token=x"), "[]": http.NoBody} {
		w := newStalled()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/login", body)
		r.Host = "localhost"
		r.Header.Set("Sec-Fetch-Site", "same-origin")
		h.ServeHTTP(w, r)
		require.Equal(t, want, fmt.Sprint(w.reads))
		require.Equal(t, http.StatusForbidden, w.Code)
		require.Equal(t, 1, w.limitChanged)
	}
	require.NoError(t, h.Close(t.Context()))
}
