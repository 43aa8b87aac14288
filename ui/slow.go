package ui

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"time"
)

// What follows bounds those who send a form slowly, or do not read their answer: anybody can, without a token. Deadlines are for what can
// take them, as everything of net/http can. It sets its own anew for each request of a connection, so these end with theirs.

// takeForm reads the whole body of a form, so that nobody waits for it later. If that fails it has answered.
func (h *Handler) takeForm(w http.ResponseWriter, r *http.Request) bool {
	if r.Body == nil || r.Body == http.NoBody {
		return true
	}
	c := http.NewResponseController(w)
	_ = c.SetReadDeadline(time.Now().Add(h.o.Timeout)) // else the server's own holds, if it has one
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mostForm))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		http.Error(w, "the form came too slowly", http.StatusRequestTimeout)
		return false
	case err != nil:
		http.Error(w, "the form cannot be read", http.StatusBadRequest)
		return false
	}
	// A server that listens for the end of the connection meanwhile must not take a deadline for that.
	_ = c.SetReadDeadline(time.Time{})
	r.Body = io.NopCloser(bytes.NewReader(b))
	return true
}

// answer is a ResponseWriter that waits for its reader for a limited time, from the beginning of the answer on.
type answer struct {
	http.ResponseWriter

	limit time.Duration
	begun bool
}

func (a *answer) begin() {
	if !a.begun {
		a.begun = true
		_ = http.NewResponseController(a.ResponseWriter).SetWriteDeadline(time.Now().Add(a.limit)) // else the server's own holds, if it has one
	}
}

func (a *answer) WriteHeader(status int) {
	a.begin()
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(b []byte) (int, error) {
	a.begin()
	return a.ResponseWriter.Write(b) //nolint:wrapcheck // it stands for the other one
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
