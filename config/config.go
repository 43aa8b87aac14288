// Package config opens a database by a file, percolator.yaml, so that the same
// program runs on memory, Pebble, Redis, Postgres, or several at once, by its
// configuration alone.
//
// The file is YAML. [File] is its schema, and the only place where it is
// documented: each field's comment says what it means. Keys that the schema does
// not have, values of a wrong type, and a second document after --- are errors that
// name line and column, and repeat nothing of what is written there. Text is taken as it
// is written, with or without quotes: 0123 and 1.10 are what they look like. A
// small one:
//
//	stores:
//	  main:
//	    url: postgres://shop@db.example/shop
//	    password: ${SHOP_DB_PASSWORD}
//
// and one that spans two databases:
//
//	stores:
//	  ledger: {url: "postgres://shop@db.example/shop", password: "${SHOP_DB_PASSWORD}"}
//	  sessions: {url: "redis://cache.example:6379/0?prefix=shop"}
//	authoritative: ledger
//	tables:
//	  cart*: sessions
//	settings: {retention: 48h}
//
// and one for a TiKV cluster, with TLS:
//
//	stores:
//	  main:
//	    scheme: tikv
//	    addresses: ["pd1.example:2379", "pd2.example:2379", "pd3.example:2379"]
//	    parameters: {prefix: shop, tls_ca: /etc/shop/ca.pem, tls_cert: /etc/shop/shop.pem, tls_key: /etc/shop/shop.key}
//
// In strings, ${NAME} stands for the environment variable NAME, so that secrets
// need not be in the file; one that is not set is an error. $$ stands for one $.
package config

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// File is the schema of percolator.yaml. What is left out takes its default.
type File struct {
	// Stores are the databases, by names of your choice. At least one.
	Stores map[string]Store `yaml:"stores"`
	// Tables says which store a table lives in, by its name, or by the beginning of
	// names and a "*". A whole name goes before a beginning, a longer beginning
	// before a shorter one. Tables that are not named here live in the default
	// store. A table must stay where it is for as long as it holds data.
	Tables map[string]string `yaml:"tables"`
	// Default is the store of tables that are not named. Default: the authoritative
	// one.
	Default string `yaml:"default"`
	// Authoritative is the store whose oracle orders everything, and which holds the
	// catalog and the sessions. With several stores it must be named: take the one
	// that loses nothing in a crash, and never another while data exists.
	Authoritative string `yaml:"authoritative"`
	// Settings are stored with the data when it is opened for the first time; later
	// the stored ones hold. See percolator.Settings for what they mean.
	Settings Settings `yaml:"settings"`
	// Isolation of transactions that do not choose: "snapshot", the default, or
	// "serializable".
	Isolation string `yaml:"isolation"`
	// Limits of names, values and transactions. See percolator.Limits.
	Limits Limits `yaml:"limits"`
	// SessionLease is how long others wait for the locks of a process that died.
	// Default 5s.
	SessionLease Duration `yaml:"session_lease"`
	// LockExpiry is how long a lock of a process that lives is respected without a
	// heartbeat. Default 10s.
	LockExpiry Duration `yaml:"lock_expiry"`
	// Telemetry through OpenTelemetry's global providers, which the program sets up.
	Telemetry Telemetry `yaml:"telemetry"`
}

// Telemetry says what is reported. Off, each costs nothing.
type Telemetry struct {
	// Metrics of transactions and observers (percolator.WithMetrics), and of the
	// calls to each store (rowstore.Instrument).
	Metrics bool `yaml:"metrics"`
	// Traces has a span for each call to a store.
	Traces bool `yaml:"traces"`
}

// Store is one database: a URL, or its parts, or a URL with some parts beside it,
// which are put into it.
type Store struct {
	// URL of the store, as the README of its backend describes it.
	URL string `yaml:"url"`
	// Scheme of the URL, where no URL is given: redis, postgres, tikv, pebble, ...
	Scheme string `yaml:"scheme"`
	// Addresses are the host:port of the servers: of TiKV those of PD.
	Addresses []string `yaml:"addresses"`
	// Path is the database's name, number or directory. TiKV has none: its stores are
	// told apart by the parameter prefix.
	Path string `yaml:"path"`
	// User and Password to log in with. A password belongs in an environment
	// variable: ${NAME}.
	User     string `yaml:"user"`
	Password string `yaml:"password"`
	// Parameters are added to the URL's query. The backend's README lists them.
	Parameters map[string]string `yaml:"parameters"`
}

// Settings is percolator.Settings.
type Settings struct {
	MaxTxnAge    Duration `yaml:"max_txn_age"`   // default 1h
	Retention    Duration `yaml:"retention"`     // default 24h
	CatalogLease Duration `yaml:"catalog_lease"` // default 10s
}

// Limits is percolator.Limits. The lengths are in bytes.
type Limits struct {
	Table  int `yaml:"table"`  // default 512
	Row    int `yaml:"row"`    // default 2048
	Column int `yaml:"column"` // default 512
	Value  int `yaml:"value"`  // default 16777216
	Cells  int `yaml:"cells"`  // default 100000
	Bytes  int `yaml:"bytes"`  // default 67108864
}

// Duration is a time.Duration, written like 90s, 15m or 24h.
type Duration time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil {
		return errors.New("no duration, such as 90s or 24h")
	}
	if v < 0 {
		return errors.New("the duration is negative")
	}
	*d = Duration(v)
	return nil
}

// ErrInvalid is matched by the errors of a file that breaks its schema.
var ErrInvalid = errors.New("config: invalid")

// Load reads and checks a file. It opens nothing. Errors that match ErrInvalid name
// the file and, where they can, line and column; they hold no value of the
// environment.
func Load(path string) (*File, error) {
	b, err := os.ReadFile(path) //nolint:gosec // the caller names the file
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	f, err := Parse(b, os.LookupEnv)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return f, nil
}

// Parse is Load for the content of a file and any source of environment variables.
func Parse(content []byte, env func(name string) (string, bool)) (*File, error) {
	var f File
	if err := decode(content, &f); err != nil {
		return nil, err
	}
	if err := f.expand(env); err != nil {
		return nil, err
	}
	return &f, f.check()
}

// expand puts the environment's values into the strings of the stores. It runs
// after parsing, so that a value is never taken for YAML.
func (f *File) expand(env func(string) (string, bool)) error {
	for _, name := range slices.Sorted(maps.Keys(f.Stores)) {
		s := f.Stores[name]
		for _, p := range []*string{&s.URL, &s.Scheme, &s.Path, &s.User, &s.Password} {
			if err := expand(p, env); err != nil {
				return fmt.Errorf("%w: stores.%s: %w", ErrInvalid, shown(name), err)
			}
		}
		for i := range s.Addresses {
			if err := expand(&s.Addresses[i], env); err != nil {
				return fmt.Errorf("%w: stores.%s.addresses: %w", ErrInvalid, shown(name), err)
			}
		}
		for _, k := range slices.Sorted(maps.Keys(s.Parameters)) {
			v := s.Parameters[k]
			if err := expand(&v, env); err != nil {
				return fmt.Errorf("%w: stores.%s.parameters.%s: %w", ErrInvalid, shown(name), shown(k), err)
			}
			s.Parameters[k] = v
		}
		f.Stores[name] = s
	}
	return nil
}

func expand(s *string, env func(string) (string, bool)) error {
	var b strings.Builder
	for rest := *s; ; {
		before, after, found := strings.Cut(rest, "$")
		b.WriteString(before)
		switch {
		case !found:
			*s = b.String()
			return nil
		case strings.HasPrefix(after, "$"):
			b.WriteByte('$')
			rest = after[1:]
		case strings.HasPrefix(after, "{"):
			name, tail, closed := strings.Cut(after[1:], "}")
			if !closed || name == "" {
				return errors.New("a ${ without a name and a }")
			}
			v, ok := env(name)
			if !ok {
				if !variable.MatchString(name) {
					return errors.New("an environment variable, whose name is not shown, is not set: for a $ that stands for itself write $$")
				}
				return fmt.Errorf("the environment variable %s is not set", name)
			}
			b.WriteString(v)
			rest = tail
		default:
			return errors.New("a $ that is neither ${NAME} nor $$")
		}
	}
}

func (f *File) check() error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
	}
	if len(f.Stores) == 0 {
		return fail("stores: there is none")
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(f.Stores)) {
		all = append(all, shown(name))
	}
	known := strings.Join(all, ", ")
	names := func(key, store string) error {
		if _, ok := f.Stores[store]; store != "" && !ok {
			return fail("%s: there is no store %q (there are: %s)", key, shown(store), known)
		}
		return nil
	}
	if err := errors.Join(names("default", f.Default), names("authoritative", f.Authoritative)); err != nil {
		return err
	}
	if len(f.Stores) > 1 && f.Authoritative == "" {
		return fail("authoritative: with several stores, name one of: %s", known)
	}
	for _, pattern := range slices.Sorted(maps.Keys(f.Tables)) {
		if f.Tables[pattern] == "" {
			return fail("tables.%s: no store", shown(pattern))
		}
		if err := names("tables."+shown(pattern), f.Tables[pattern]); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.Stores)) {
		s := f.Stores[name]
		if _, err := s.url(); err != nil {
			return fail("stores.%s: %v", shown(name), err)
		}
	}
	switch f.Isolation {
	case "", "snapshot", "serializable":
	default:
		return fail("isolation: neither snapshot nor serializable")
	}
	for _, l := range []int{f.Limits.Table, f.Limits.Row, f.Limits.Column, f.Limits.Value, f.Limits.Cells, f.Limits.Bytes} {
		if l < 0 {
			return fail("limits: %d is negative", l)
		}
	}
	return nil
}

// url puts the parts together.
func (s *Store) url() (string, error) {
	parts := s.Scheme != "" || len(s.Addresses) > 0 || s.Path != ""
	switch {
	case s.URL == "" && s.Scheme == "":
		return "", errors.New("neither a url nor a scheme")
	case s.URL != "" && parts:
		return "", errors.New("a url, and scheme, addresses or path beside it")
	}
	if strings.ContainsAny(s.Path, "?#") {
		return "", errors.New("path: a ? or a #, which would end it")
	}
	for _, a := range s.Addresses {
		if strings.ContainsAny(a, "/?#@") {
			return "", errors.New("addresses: one is not host:port")
		}
	}
	if s.URL != "" && s.User == "" && s.Password == "" && len(s.Parameters) == 0 {
		return s.URL, nil
	}
	scheme, authority, path, query := s.Scheme, strings.Join(s.Addresses, ","), s.Path, ""
	user, password := s.User, s.Password
	slashes := len(s.Addresses) > 0 || user != ""
	if s.URL != "" {
		var rest string
		var ok bool
		if scheme, rest, ok = strings.Cut(s.URL, ":"); !ok {
			return "", errors.New("the url has no scheme")
		}
		rest, query, _ = strings.Cut(rest, "?")
		if err := s.beside(query); err != nil {
			return "", err
		}
		if slashes = strings.HasPrefix(rest, "//"); slashes {
			authority, path, _ = strings.Cut(rest[2:], "/")
			if at := strings.LastIndex(authority, "@"); at >= 0 {
				given, host := authority[:at], authority[at+1:]
				u, p, hasPassword := strings.Cut(given, ":")
				if user == "" {
					var err error
					if user, err = url.PathUnescape(u); err != nil {
						return "", errors.New("the url's user is badly escaped")
					}
				} else if u != "" {
					return "", errors.New("a user both in the url and beside it")
				}
				if hasPassword {
					if password != "" {
						return "", errors.New("a password both in the url and beside it")
					}
					var err error
					if password, err = url.PathUnescape(p); err != nil {
						return "", errors.New("the url's password is badly escaped")
					}
				}
				authority = host
			}
			if strings.Contains(rest[2:], "/") {
				path = "/" + path
			}
		} else {
			path = rest
		}
	} else if slashes && path != "" && !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	if !slashes && (user != "" || password != "") {
		return "", errors.New("a user or a password for a store without a server")
	}
	var b strings.Builder
	b.WriteString(scheme + ":")
	if slashes {
		b.WriteString("//")
		if password != "" {
			b.WriteString(url.UserPassword(user, password).String() + "@")
		} else if user != "" {
			b.WriteString(url.User(user).String() + "@")
		}
		b.WriteString(authority)
	}
	b.WriteString(path)
	for _, k := range slices.Sorted(maps.Keys(s.Parameters)) {
		if query != "" {
			query += "&"
		}
		query += escape(k) + "=" + escape(s.Parameters[k])
	}
	if query != "" {
		b.WriteString("?" + query)
	}
	return b.String(), nil
}

// beside tells whether the parameters can be put beside those of the url.
func (s *Store) beside(query string) error {
	if len(s.Parameters) > 0 && strings.Contains(s.URL, "#") {
		return errors.New("a # in the url, behind which parameters would be lost")
	}
	for pair := range strings.SplitSeq(query, "&") {
		key, _, _ := strings.Cut(pair, "=")
		if name, err := url.QueryUnescape(key); err == nil {
			if _, twice := s.Parameters[name]; twice {
				return fmt.Errorf("parameters.%s: it is in the url as well", shown(name))
			}
		}
	}
	return nil
}

// escape puts text into a query. A space is %20, which everybody reads as a space; a plus
// is one to those only who take the query for a form.
func escape(text string) string { return strings.ReplaceAll(url.QueryEscape(text), "+", "%20") }

// Options are the percolator options that the file asks for.
func (f *File) Options() []percolator.Option {
	opts := []percolator.Option{
		percolator.WithSettings(percolator.Settings{
			MaxTxnAge:    time.Duration(f.Settings.MaxTxnAge),
			Retention:    time.Duration(f.Settings.Retention),
			CatalogLease: time.Duration(f.Settings.CatalogLease),
		}),
		percolator.WithLimits(percolator.Limits(f.Limits)),
		percolator.WithSessionLease(time.Duration(f.SessionLease)),
		percolator.WithLockExpiry(time.Duration(f.LockExpiry)),
	}
	if f.Telemetry.Metrics {
		opts = append(opts, percolator.WithMetrics(otel.GetMeterProvider()))
	}
	if f.Isolation == "serializable" {
		opts = append(opts, percolator.WithDefaultIsolation(percolator.Serializable))
	}
	return opts
}

// OpenStore opens the stores that the file names: the one that there is, or a
// rowstore.Router over several. When one cannot be opened, those that were are
// closed.
func (f *File) OpenStore(ctx context.Context) (rowstore.Store, error) {
	stores := map[string]rowstore.Store{}
	fail := func(err error) (rowstore.Store, error) {
		for _, s := range stores {
			err = errors.Join(err, s.Close())
		}
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(f.Stores)) {
		s := f.Stores[name]
		u, err := s.url()
		if err != nil {
			return fail(fmt.Errorf("%w: stores.%s: %w", ErrInvalid, shown(name), err))
		}
		store, err := rowstore.Open(ctx, u)
		if err != nil {
			return fail(fmt.Errorf("config: opening the store %q: %w", shown(name), err))
		}
		stores[name] = store
		if store, err = f.instrument(store); err != nil {
			return fail(fmt.Errorf("config: the store %q: %w", shown(name), err))
		}
		stores[name] = store
	}
	if len(stores) == 1 {
		for _, s := range stores {
			return s, nil
		}
	}
	router, err := rowstore.NewRouter(rowstore.RouterConfig{
		Stores: stores, Tables: f.Tables, Default: f.Default, Authoritative: f.Authoritative,
	})
	if err != nil {
		return fail(fmt.Errorf("config: %w", err))
	}
	return router, nil
}

// instrument puts telemetry around a store, if the file asks for it.
func (f *File) instrument(s rowstore.Store) (rowstore.Store, error) {
	if !f.Telemetry.Metrics && !f.Telemetry.Traces {
		return s, nil
	}
	opts := rowstore.InstrumentOptions{Meters: metricnoop.NewMeterProvider(), Traces: tracenoop.NewTracerProvider()}
	if f.Telemetry.Metrics {
		opts.Meters = otel.GetMeterProvider()
	}
	if f.Telemetry.Traces {
		opts.Traces = otel.GetTracerProvider()
	}
	return rowstore.Instrument(s, opts)
}

// Open opens the database that the file at path describes. Options given here come
// after those of the file. The backends that the file names must be imported;
// backends/all imports every one.
func Open(ctx context.Context, path string, opts ...percolator.Option) (*percolator.DB, error) {
	f, err := Load(path)
	if err != nil {
		return nil, err
	}
	return f.Open(ctx, opts...)
}

// Open opens the database that the file describes.
func (f *File) Open(ctx context.Context, opts ...percolator.Option) (*percolator.DB, error) {
	store, err := f.OpenStore(ctx)
	if err != nil {
		return nil, err
	}
	db, err := percolator.New(ctx, store, append(f.Options(), opts...)...)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return db, nil
}
