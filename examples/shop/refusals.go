package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/typed"
)

// refusal is an error that the customer can do something about. Nothing was done.
type refusal struct {
	status        int // of HTTP
	code, message string
}

func (r refusal) Error() string { return r.message }

func malformed(code, message string) error {
	return refusal{http.StatusBadRequest, code, message}
}

func notFound(what, id string) error {
	return refusal{http.StatusNotFound, "not_found", fmt.Sprintf("there is no %s %q", what, id)}
}

func conflict(code, message string) error { return refusal{http.StatusConflict, code, message} }

func unacceptable(code, message string) error {
	return refusal{http.StatusUnprocessableEntity, code, message}
}

func isRefusal(err error) bool { return errors.As(err, &refusal{}) }

// isNotFound holds also for what a snapshot still has of a customer who was erased meanwhile.
func isNotFound(err error) bool {
	return errors.Is(err, percolator.ErrNotFound) || errors.Is(err, typed.ErrKeyGone)
}

// orElse returns the refusal in place of an error that says that nothing was found.
func orElse(err, refused error) error {
	if isNotFound(err) {
		return refused
	}
	return err
}

// newID returns a number that nothing else has, and the time. A transaction makes one thing with a number.
func newID(ctx context.Context, tx *percolator.Txn) (id string, now time.Time, err error) {
	at, err := tx.StartTimestamp(ctx)
	return strconv.FormatUint(uint64(at), 10), at.Time().UTC(), err
}
