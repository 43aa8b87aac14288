package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/ui"
)

// uiFlags say how the page is served.
type uiFlags struct {
	listen, tokenFile, cert, key string
	hosts                        []string
	actions, values, proxy       bool
}

// uiCloses is how long requests may go on when the page ends. An action takes 20 s at most, and is not to be left half done.
const uiCloses = 25 * time.Second

const uiHelp = `Serves a page for a browser: observers and what waits for them, parked runs with their errors, replays, locks and why a cell waits, the
history of a cell, processes, garbage collection.

It prints an address, and a token that the page asks for. The token is made anew each time, or read from --token-file. It
stands in no address. The page only looks, and writes nothing, unless --actions is given: then it can pause, resume and replay
observers, and retry and drop parked runs, each after a confirmation. Actions are logged on the standard error.

It listens on this machine alone. For any other address --token-file is needed, and TLS: --cert and --key, or --behind-tls, which
says that a proxy in front speaks TLS and is the only one that reaches this address. A page that is reached by a name other than localhost, or the one of
--listen, needs --host: requests by any other name are refused.

It ends when it is interrupted. --timeout does not bound it.`

func (a *app) uiCommand() *cobra.Command {
	var f uiFlags
	c := &cobra.Command{
		Use: "ui", Short: "Serve a page for a browser", Args: exactly(), Long: uiHelp,
		Example: "  percolator ui\n  percolator ui --listen 127.0.0.1:8080 --actions\n  percolator ui --listen :8443 --host ops.example.org --token-file /run/token --cert cert.pem --key key.pem",
		RunE: func(cmd *cobra.Command, _ []string) error {
			token, err := f.check()
			if err != nil {
				return err
			}
			a.ran = true
			return a.serveUI(cmd.Context(), &f, token)
		},
	}
	fs := c.Flags()
	fs.StringVar(&f.listen, "listen", "127.0.0.1:0", "address to listen on; port 0 is a free one")
	fs.StringArrayVar(&f.hosts, "host", nil, "name by which the page is reached, beside localhost; may be repeated")
	fs.StringVar(&f.tokenFile, "token-file", "", "file with the token, of 20 bytes at least")
	fs.StringVar(&f.cert, "cert", "", "file with the certificate, for TLS")
	fs.StringVar(&f.key, "key", "", "file with its key")
	fs.BoolVar(&f.proxy, "behind-tls", false, "a proxy in front speaks TLS")
	fs.BoolVar(&f.actions, "actions", false, "let the page change something")
	fs.BoolVar(&f.values, "values", true, "let the page show the values of cells to who asks for them")
	return c
}

// check refuses what would show the database to others, and returns the token.
func (f *uiFlags) check() (string, error) {
	host, _, err := net.SplitHostPort(f.listen)
	if err != nil {
		return "", usage("--listen %q is no address like 127.0.0.1:8080", f.listen)
	}
	if (f.cert == "") != (f.key == "") {
		return "", usage("--cert and --key go together")
	}
	for _, name := range f.hosts {
		if name == "" || strings.Contains(name, ":") && net.ParseIP(name) == nil || strings.ContainsAny(name, "/[]") {
			return "", usage("--host %q is no name like ops.example.org, without a scheme and a port", name)
		}
	}
	ip := net.ParseIP(host)
	local := host == "localhost" || ip != nil && ip.IsLoopback()
	switch {
	case !local && f.tokenFile == "":
		return "", usage("--listen %q is reached from other machines: give --token-file", f.listen)
	case !local && f.cert == "" && !f.proxy:
		return "", usage("--listen %q is reached from other machines, and would send the token in clear: give --cert and --key, or --behind-tls", f.listen)
	case f.tokenFile == "":
		return rand.Text(), nil
	}
	b, err := os.ReadFile(f.tokenFile) //nolint:gosec // the user names the file
	if err != nil {
		return "", usage("the token cannot be read: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// served is what the command says when the page is there.
type served struct {
	// URL is one by which the page is reached: from this machine alone, where nothing says more.
	URL     string `json:"url"`
	Listens string `json:"listens"`         // the address
	Token   string `json:"token,omitempty"` // unless it is from a file
	Actions bool   `json:"actions"`
	notes   []string
}

// names are those by which the page is reached, beside localhost: what --listen says, unless that is all addresses, and --host.
func (f *uiFlags) names() []string {
	host, _, _ := net.SplitHostPort(f.listen)
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return f.hosts
	}
	return append(slices.Clone(f.hosts), host)
}

// served says where the page is, once it listens at an address.
func (f *uiFlags) served(at net.Addr) served {
	s := served{URL: "http://", Listens: at.String(), Actions: f.actions}
	name := "localhost"
	if names := f.names(); len(names) > 0 {
		name = names[0]
	} else {
		s.notes = append(s.notes, "this address holds on this machine alone; --host says by which name others reach it")
	}
	if f.cert != "" || f.proxy {
		s.URL = "https://"
	}
	_, port, err := net.SplitHostPort(s.Listens)
	switch {
	case f.proxy: // whose port nobody knows here
		s.notes = append(s.notes, fmt.Sprintf("the proxy leads to %s", s.Listens))
		if strings.Contains(name, ":") {
			name = "[" + name + "]"
		}
	case err == nil:
		name = net.JoinHostPort(name, port)
	}
	s.URL += name + "/"
	return s
}

// uiPage opens the database and makes the page. end closes both.
func (a *app) uiPage(ctx context.Context, f *uiFlags, o ui.Options) (h *ui.Handler, end func(context.Context) error, err error) {
	if !f.actions {
		store, _, err := a.openStore(ctx, true)
		if err != nil {
			return nil, nil, err
		}
		r, err := admin.New(store)
		if err == nil {
			_, err = r.Overview(ctx) // that there is a database
		}
		if err == nil {
			h, err = ui.Of(r, o.Login.Authorize, o)
		}
		if err != nil {
			return nil, nil, errors.Join(err, store.Close())
		}
		return h, func(ctx context.Context) error { return errors.Join(h.Close(ctx), store.Close()) }, nil
	}
	db, err := a.openDB(ctx)
	if err != nil {
		return nil, nil, err
	}
	if h, err = ui.New(db, o.Login.Authorize, o); err != nil {
		return nil, nil, errors.Join(err, db.Close(ctx))
	}
	return h, func(ctx context.Context) error { return errors.Join(h.Close(ctx), db.Close(ctx)) }, nil
}

func (a *app) serveUI(ctx context.Context, f *uiFlags, token string) (err error) {
	log := slog.New(slog.NewTextHandler(a.err, nil))
	login, err := ui.NewLogin(token, ui.LoginOptions{Access: ui.Access{Who: "token", Values: f.values, Actions: f.actions}, Secure: f.proxy})
	if err != nil {
		return usageError{err}
	}
	hosts := append([]string{"localhost", "127.0.0.1", "::1"}, f.names()...)
	opening, cancel := a.within(ctx)
	handler, end, err := a.uiPage(opening, f, ui.Options{Hosts: hosts, Login: login, Logger: log})
	cancel()
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, end(closing))
	}()
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", f.listen)
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	says := f.served(l.Addr())
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return errors.Join(usage("the certificate cannot be used: %w", err), l.Close())
		}
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
	}
	if f.tokenFile == "" {
		says.Token = token
	}
	if err := show(a, says, func(w *page, s served) { s.text(w) }); err != nil {
		return errors.Join(err, l.Close())
	}
	return serve(ctx, l, handler, log)
}

func (s served) text(w *page) {
	w.line("open %s", s.URL)
	lines(w, s.notes)
	if s.Token != "" {
		w.line("the token is %s", s.Token)
	}
	if !s.Actions {
		w.line("the page only looks; --actions lets it change something")
	}
	w.line("interrupt to end")
}

// serve serves the page until ctx is done.
func serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serving the page: %w", err)
	case <-ctx.Done():
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), uiCloses)
	defer cancel()
	err := server.Shutdown(closing)
	if err != nil {
		err = errors.Join(fmt.Errorf("ending the page: %w", err), server.Close())
	}
	<-ended
	return err
}
