// Command shop is an order service: an HTTP API over package percolator. See README.md.
//
//	go run ./examples/shop
//	go run ./examples/shop -store redis://localhost:6379 -listen :8080
//	go run ./examples/shop -config percolator.yaml
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"go.opentelemetry.io/otel"

	_ "github.com/percolate-go/percolate/backends/all"
	"github.com/percolate-go/percolate/config"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/recipes/export"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.As(err, &usageError{}):
		fmt.Fprintln(os.Stderr, "shop:", err)
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "shop:", err)
		os.Exit(1)
	}
}

// usageError is a mistake in the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

type options struct {
	store, file, listen, mail, traces string
	unpaidFor                         time.Duration
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("shop", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.store, "store", "", "`URL` of the store, pebble:DIRECTORY say (default a temporary directory, removed at the end)")
	flags.StringVar(&o.file, "config", "", "open the database that this `file` describes, instead of -store")
	flags.StringVar(&o.listen, "listen", "localhost:8080", "`address` to listen on")
	flags.StringVar(&o.mail, "mail", "", "`URL` to post mail to: the /mailbox of another shop, say (default this shop's own /mailbox)")
	flags.StringVar(&o.traces, "traces", "", "append spans to this `file`, as lines of JSON")
	flags.DurationVar(&o.unpaidFor, "unpaid", 30*time.Minute, "how long an order may be unpaid before it is cancelled")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return o, err
	case err != nil:
		return o, usageError{err}
	case flags.NArg() > 0:
		return o, usageError{fmt.Errorf("unexpected argument %q: everything is given by flags, see -help", flags.Arg(0))}
	case o.store != "" && o.file != "":
		return o, usageError{errors.New("-store and -config exclude each other")}
	case o.unpaidFor < time.Millisecond:
		return o, usageError{fmt.Errorf("-unpaid %v is too short", o.unpaidFor)}
	}
	return o, nil
}

// run opens the shop, and closes it when ctx ends.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	var traces io.Writer
	if o.traces != "" {
		file, err := os.OpenFile(o.traces, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return fmt.Errorf("open the file for traces: %w", err)
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		traces = file
	}
	t := startTelemetry(traces)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer listener.Close()
	db, remove, err := openDB(ctx, o)
	if err != nil {
		return err
	}
	s, err := newShop(db, o.unpaidFor)
	if err == nil {
		err = s.open(ctx, o, t, listener, stdout)
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return errors.Join(err, db.Close(closing), t.stop(closing), remove())
}

// openDB opens the database. Without a name it is a temporary one, which remove removes.
func openDB(ctx context.Context, o options) (db *percolator.DB, remove func() error, err error) {
	remove = func() error { return nil }
	switch {
	case o.file != "":
		db, err = config.Open(ctx, o.file)
		return db, remove, err
	case o.store == "":
		dir, err := os.MkdirTemp("", "shop-")
		if err != nil {
			return nil, nil, fmt.Errorf("make a directory for the database: %w", err)
		}
		remove = func() error { return os.RemoveAll(dir) }
		o.store = "pebble:" + dir
	}
	db, err = percolator.Open(ctx, o.store, percolator.WithMetrics(otel.GetMeterProvider()))
	if err != nil {
		return nil, nil, errors.Join(err, remove())
	}
	return db, remove, nil
}

// scheme is what of a store's URL may be shown: the rest may hold a password.
func scheme(url string) string {
	kind, _, _ := strings.Cut(url, ":")
	return kind
}

// open runs the shop and serves its API until ctx ends.
func (s *shop) open(ctx context.Context, o options, t *telemetry, listener net.Listener, stdout io.Writer) error {
	mux, box := s.handler(), newMailbox()
	mux.Handle("GET /metrics", t)
	mux.HandleFunc("GET /mailbox", box.list)
	mux.HandleFunc("POST /mailbox", box.receive)
	var mail export.Sink = box
	if o.mail != "" {
		mail = export.HTTP{URL: o.mail}
	}
	server := &http.Server{Handler: observed(mux), ReadTimeout: 30 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute}
	return s.run(ctx, mail, func(ctx context.Context) error {
		fmt.Fprintf(stdout, "the shop is open: http://%s, over %s\n", listener.Addr(), cmp.Or(o.file, scheme(o.store), "a temporary directory"))
		ended := make(chan error, 1)
		go func() { ended <- server.Serve(listener) }()
		select {
		case err := <-ended:
			return fmt.Errorf("serve: %w", err)
		case <-ctx.Done():
		}
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err := server.Shutdown(closing)
		<-ended
		return err
	})
}
