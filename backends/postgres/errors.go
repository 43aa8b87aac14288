package postgres

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"

	"github.com/percolate-go/percolate/internal/contexts"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// errStandby says that the server is a standby. The call did nothing.
var errStandby = errors.New("the server is a standby")

// errReadOnly says that the server or the role takes no writes at present.
var errReadOnly = errors.New("the server takes no writes (default_transaction_read_only, or a fail-over)")

// errLocked says that a lock was not to be had within the lock_timeout of the session, which counts where a whole
// table is locked, or within that of this package, where transactions wait for one that commits.
var errLocked = errors.New("a table is locked, or a transaction that commits does not end, and a lock_timeout ended the wait")

// errOtherVersion says that the schema's functions are not those that this program calls, since a program of another
// version has migrated the schema meanwhile. The call did nothing.
var errOtherVersion = errors.New("the schema is not of the version that this program has opened: use the program that migrated it, or a newer one")

// errUnconfirmed says that this server has a commit, and that it stopped waiting for its
// standbys before they had it.
var errUnconfirmed = errors.New("committed on this server, and perhaps not on its standby: the server stopped waiting for it")

// brokenError marks a failure of the connection, rather than of the statement.
type brokenError struct{ error }

func (b brokenError) Unwrap() error { return b.error }

func isBroken(err error) bool {
	var b brokenError
	return errors.As(err, &b)
}

// sentError is an error of a statement that was sent, although the driver says that it is safe to send it again.
type sentError struct{ error }

// SafeToRetry says that it is not.
func (sentError) SafeToRetry() bool { return false }
func (e sentError) Unwrap() error   { return e.error }

// severe tells whether the connection to the server ended with this error. Some poolers
// that lose the server say so in an ordinary ERROR, so the code counts too.
func severe(pg *pgconn.PgError) bool {
	s := pg.SeverityUnlocalized
	if s == "" {
		s = pg.Severity
	}
	return s == "FATAL" || s == "PANIC" || strings.HasPrefix(pg.Code, "08") || strings.HasPrefix(pg.Code, "57P0") ||
		pg.Code == systemError || pg.Code == completionUnknown
}

// classify says what an error means that came after the statement was sent. An error from
// the server means that it rolled back. The exception is an error that ends the
// connection: a shutdown can come when the commit is in the log already and only waits for
// a standby.
func classify(err error, write bool) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && !severe(pg) {
		return refused(err, pg)
	}
	if pg == nil {
		err = brokenError{err}
	}
	if !write || pgconn.SafeToRetry(err) {
		return away(err)
	}
	return fmt.Errorf("%w: %w", rowstore.ErrAmbiguous, err)
}

// cancelled adds the end of the context to the error of a statement that the server
// cancelled, which a pool may be configured to ask for when a context ends.
func cancelled(ctx context.Context, err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == queryCanceled {
		if end := contexts.Ended(ctx); end != nil && !errors.Is(err, end) {
			return fmt.Errorf("%w: %w", end, err)
		}
	}
	return err
}

// refused says what an error means that did not end the connection.
func refused(err error, pg *pgconn.PgError) error {
	switch pg.Code {
	case undefinedFunction:
		if pg.Where == "" { // not inside a function
			return fmt.Errorf("%w: %w: %w", rowstore.ErrFormat, errOtherVersion, err)
		}
	case onStandby:
		return fmt.Errorf("%w: %w: %w", rowstore.ErrUnavailable, errStandby, err)
	case readOnly:
		return fmt.Errorf("%w: %w: %w", rowstore.ErrUnavailable, errReadOnly, err)
	case lockNotAvailable:
		return fmt.Errorf("%w: %w: %w", rowstore.ErrUnavailable, errLocked, err)
	case noPrivilege:
		return fmt.Errorf("%w: %w", rowstore.ErrDenied, err)
	case diskFull:
		return fmt.Errorf("%w: make room on the server's disk: %w", rowstore.ErrFull, err)
	}
	return err
}

// waitedOut tells whether a transaction that draws has waited for the locks of its rows as long as any may (patience), and certainly did nothing. A
// wait that is short, since it is for something else and with locks held, ends with the same code.
func waitedOut(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == lockNotAvailable && strings.Contains(pg.Where, "pg_advisory_xact_lock") && !errors.Is(err, rowstore.ErrAmbiguous)
}

// away makes an error of a call that certainly had no effect match ErrUnavailable, unless
// the caller's context ended.
func away(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, rowstore.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", rowstore.ErrUnavailable, err)
}

// connectError is a failure to connect. Of the address its text shows host and port alone:
// anything else in a URL may be a part of a password that was not escaped.
type connectError struct {
	text string
	errs []error
}

func (e *connectError) Error() string   { return e.text }
func (e *connectError) Unwrap() []error { return e.errs }

// connecting says why there is no connection. The result matches ErrUnavailable if that may
// pass by itself, ErrDenied if one side does not let the other in, ErrInvalid if there is no such database, and the context's error
// if the context ended.
func connecting(ctx context.Context, err error) error {
	e := &connectError{text: "connecting", errs: []error{err}}
	var to *pgconn.ConnectError
	if errors.As(err, &to) {
		e.text += " to " + net.JoinHostPort(to.Config.Host, strconv.Itoa(int(to.Config.Port)))
	}
	if ended := contexts.Ended(ctx); ended != nil {
		e.text += ": " + ended.Error()
		e.errs = append(e.errs, ended)
		return e
	}
	if errors.Is(err, puddle.ErrClosedPool) {
		e.text += ": the program has closed the pool"
		e.errs = append(e.errs, rowstore.ErrClosed)
		return e
	}
	why, passes := connectReason(err)
	if to == nil {
		why, passes = hookReason(err, passes)
	}
	e.text += ": " + why
	var kind error
	switch {
	case passes:
		kind = rowstore.ErrUnavailable
	case isDenied(err):
		kind = rowstore.ErrDenied
	case sqlState(err) == noDatabase:
		kind = rowstore.ErrInvalid
	}
	if kind != nil {
		e.text = kind.Error() + ": " + e.text
		e.errs = append(e.errs, kind)
	}
	return e
}

// opening makes an error of Open match ErrInvalid if the server does not accept a setting of the address. Later the same
// refusal is no matter of the options: they were right for the server that was there, or another one has taken over.
func opening(err error) error {
	var connect *pgconn.ConnectError
	if code := sqlState(err); errors.As(err, &connect) && (code == unknownSetting || code == invalidSetting) {
		return fmt.Errorf("%w: %w", rowstore.ErrInvalid, err)
	}
	return err
}

// hookReason says why a pool has no connection although it could connect: one of its hooks
// failed, which are the program's, and so are the words. passes is what connectReason says.
func hookReason(err error, passes bool) (string, bool) {
	// A connection that was closed before the hook used it is replaced by the next call.
	return "a hook of the pool failed: " + err.Error(), passes || pgconn.SafeToRetry(err)
}

// connectReason says why a connection could not be made, and whether that may pass.
func connectReason(err error) (why string, passes bool) {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return refusal(pg), strings.HasPrefix(pg.Code, "57P0") || strings.HasPrefix(pg.Code, "08") || pg.Code == tooManyConnections
	}
	if errors.Is(err, errStandby) {
		return errStandby.Error() + ", and reads and writes need the primary", true
	}
	if isUntrusted(err) {
		return "the server's certificate is not valid for it or not trusted", false
	}
	if isAlert(err) {
		return "the server does not accept the client's certificate, or how it speaks TLS", false
	}
	var dns *net.DNSError
	var op *net.OpError
	var system syscall.Errno
	var timeout net.Error
	switch {
	case errors.As(err, &dns):
		return "the host's name cannot be resolved", true
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return "no answer in time", true
	case errors.As(err, &system):
		return system.Error(), true
	case errors.As(err, &op):
		return "the network failed", true
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the server closed the connection", true
	case strings.Contains(err.Error(), "refused TLS"):
		return "the server refused TLS", false
	}
	return "the connection could not be made", false
}

// isUntrusted tells whether this program does not accept the server's certificate.
func isUntrusted(err error) bool {
	var host x509.HostnameError
	var authority x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var verify *tls.CertificateVerificationError
	return errors.As(err, &verify) || errors.As(err, &host) || errors.As(err, &authority) || errors.As(err, &invalid)
}

// isDenied tells whether a connection failed because one side does not let the other in.
func isDenied(err error) bool {
	switch sqlState(err) {
	case wrongPassword, notAdmitted, noPrivilege:
		return true
	}
	return isUntrusted(err) || isAlert(err)
}

// isAlert tells whether the server ended the handshake, over the client's certificate as a rule.
func isAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

// refusal says in words of this package why the server refused a connection. The server's own
// words name the user and the database.
func refusal(pg *pgconn.PgError) string {
	words, ok := map[string]string{
		"57P03": "the server is starting up or shutting down",
		"57P01": "the server is shutting down",

		unknownSetting:     "the server does not know one of the settings",
		invalidSetting:     "the server does not accept the value of one of the settings",
		noDatabase:         "the server does not have the database: make it by CREATE DATABASE, or give the name of one that is there",
		wrongPassword:      "the server does not accept the user's password",
		notAdmitted:        "the server does not know the user, or does not admit it from this address (pg_hba.conf)",
		noPrivilege:        "the server does not permit the user to use the database",
		tooManyConnections: "the server has too many connections",
	}[pg.Code]
	if !ok {
		words = "the server refuses the connection"
	}
	return words + " (SQLSTATE " + pg.Code + ")"
}

// sqlState returns the code of a server's error, "" of any other.
func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}
