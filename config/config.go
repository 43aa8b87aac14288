// Package config opens the database that a file, percolator.yaml, describes. So the
// same program runs on memory, Pebble, Redis, Postgres, TiKV, or several at once, and
// only the file differs.
//
// The file is YAML. [File] is its schema, and the only place where it is
// documented: each field's comment says what it means. A key that the schema does
// not have, a value of a wrong type, and a second document after --- are errors. They
// name line and column, and repeat nothing of the file's text. Text means what it
// looks like, with or without quotes: 0123 and 1.10 stay as they are. This is a small
// file:
//
//	stores:
//	  main:
//	    url: postgres://shop@db.example/shop
//	    password: ${SHOP_DB_PASSWORD}
//
// This one spans two databases:
//
//	stores:
//	  ledger: {url: "postgres://shop@db.example/shop", password: "${SHOP_DB_PASSWORD}"}
//	  sessions: {url: "redis://cache.example:6379/0?prefix=shop"}
//	authoritative: ledger
//	tables:
//	  cart*: sessions
//	settings: {retention: 48h}
//
// This one is for a TiKV cluster, with TLS:
//
//	stores:
//	  main:
//	    scheme: tikv
//	    addresses: ["pd1.example:2379", "pd2.example:2379", "pd3.example:2379"]
//	    parameters: {prefix: shop, tls_ca: /etc/shop/ca.pem, tls_cert: /etc/shop/shop.pem, tls_key: /etc/shop/shop.key}
//
// In strings of the stores, ${NAME} stands for the environment variable NAME, and ${file:PATH} for
// the content of the file at PATH, an absolute path, but for a line break at its end: so secrets need
// not be in this file. A variable that is not set, and a file that cannot be read, is empty, is longer
// than 64 KiB, or is no regular file (nor a link to one), is an error. $$ stands for one $.
package config

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/otelstore"
	"github.com/percolate-go/percolate/percolator/rowstore/router"
)

// File is the schema of percolator.yaml. A field that is left out has its default.
type File struct {
	// Stores are the databases, by names of your choice. There must be at least one.
	Stores map[string]Store `yaml:"stores"`
	// Tables says which store a table lives in. A key is a table's name, or the
	// beginning of names and a "*". A whole name goes before a beginning, a longer
	// beginning before a shorter one. Tables that are not named here live in the
	// default store. A table must stay in its store for as long as it holds data.
	Tables map[string]string `yaml:"tables"`
	// Default is the store of tables that Tables does not name. Default: the
	// authoritative store.
	Default string `yaml:"default"`
	// Authoritative is the store whose oracle orders everything, and which holds the
	// catalog and the sessions. With several stores you must name it. Take the one
	// that loses nothing in a crash, and do not change it while data exists.
	Authoritative string `yaml:"authoritative"`
	// Settings are stored with the data at the first open. At later opens the stored
	// settings hold. percolator.Settings says what they mean.
	Settings Settings `yaml:"settings"`
	// Isolation is the level of transactions, and of runs of observers and periodics, that
	// do not choose one: "snapshot", the default, or "serializable".
	Isolation string `yaml:"isolation"`
	// Limits are those of names, values and transactions. See percolator.Limits.
	Limits Limits `yaml:"limits"`
	// SessionLease is how long others wait for the locks of a process that died.
	// Default 5s.
	SessionLease Duration `yaml:"session_lease"`
	// LockExpiry is how long a lock of a process that lives is respected without a
	// heartbeat. Default 10s.
	LockExpiry Duration `yaml:"lock_expiry"`
	// Telemetry is what the program reports through OpenTelemetry's global providers.
	// The program sets up the providers.
	Telemetry Telemetry `yaml:"telemetry"`
}

// Telemetry says what is reported. A part that is off costs nothing.
type Telemetry struct {
	// Metrics reports metrics of transactions and observers (percolator.WithMetrics),
	// and of the calls to each store (otelstore.New).
	Metrics bool `yaml:"metrics"`
	// Traces reports a span for each transaction and each run of an observer
	// (percolator.WithTracing), and for each call to a store.
	Traces bool `yaml:"traces"`
}

// Store is one database. Give a URL, or its parts, or a URL and some parts, which are
// then put into the URL.
type Store struct {
	// URL of the store, as the README of its backend describes it.
	URL string `yaml:"url"`
	// Scheme is the URL's scheme, if no URL is given: redis, postgres, tikv, pebble, ...
	Scheme string `yaml:"scheme"`
	// Addresses are the host:port of the servers. For TiKV, these are PD's servers.
	Addresses []string `yaml:"addresses"`
	// Path is the database's name, number or directory. TiKV has no path: the
	// parameter prefix distinguishes its stores.
	Path string `yaml:"path"`
	// User and Password are what the store logs in with. Keep the password in an
	// environment variable, ${NAME}, or in a file, ${file:PATH}.
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
		return errors.New("it is not a duration; write one like 90s or 24h")
	}
	if v < 0 {
		return errors.New("the duration is negative")
	}
	*d = Duration(v)
	return nil
}

// ErrInvalid says that a file breaks its schema. The errors for such a file match it.
var ErrInvalid = errors.New("config: the configuration is invalid")

func (f *File) check() error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
	}
	if len(f.Stores) == 0 {
		return fail("stores: there is none")
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(f.Stores)) {
		if name == "" || strings.Contains(name, "\x00") {
			return fail("stores: a store's name is empty, or has a zero byte")
		}
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
		if pattern == "" {
			return fail("tables: a table's name is empty")
		}
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

// url puts the parts of the URL together.
func (s *Store) url() (string, error) {
	if err := s.checkParts(); err != nil {
		return "", err
	}
	if s.URL != "" && s.User == "" && s.Password == "" && len(s.Parameters) == 0 {
		return s.URL, nil
	}
	u := urlParts{
		scheme: s.Scheme, user: s.User, password: s.Password, authority: strings.Join(s.Addresses, ","), path: s.Path,
		slashes: len(s.Addresses) > 0 || s.User != "",
	}
	if s.URL != "" {
		if err := u.take(s); err != nil {
			return "", err
		}
	} else if u.slashes && u.path != "" && !strings.HasPrefix(u.path, "/") {
		u.path = "/" + u.path
	}
	if !u.slashes && (u.user != "" || u.password != "") {
		return "", errors.New("it has a user or a password, but the store is without a server, which would ask for them")
	}
	return u.join(s.Parameters), nil
}

// checkParts refuses parts that do not go together, or do not fit into a URL.
func (s *Store) checkParts() error {
	parts := s.Scheme != "" || len(s.Addresses) > 0 || s.Path != ""
	switch {
	case s.URL == "" && s.Scheme == "":
		return errors.New("it has neither a url nor a scheme; give one of them")
	case s.URL != "" && parts:
		return errors.New("it has a url and also a scheme, addresses or a path; keep the url or the others")
	}
	if strings.ContainsAny(s.Path, "?#") {
		return errors.New("path: it holds a ? or a #, which would end it; parameters go under parameters")
	}
	for _, a := range s.Addresses {
		if strings.TrimSpace(a) == "" {
			return errors.New("addresses: one of them is empty")
		}
		if strings.ContainsAny(a, "/?#@") {
			return errors.New("addresses: one of them is not of the form host:port")
		}
	}
	return nil
}

// urlParts are the parts of a URL. User and password are as they are meant, all else as it is written.
type urlParts struct {
	scheme, user, password, authority, path, query string
	slashes                                        bool // there is an authority
}

// take takes the URL of a store apart, which has a user, a password or parameters beside it.
func (u *urlParts) take(s *Store) error {
	scheme, rest, ok := strings.Cut(s.URL, ":")
	if !ok {
		return errors.New("the url has no scheme, which names the backend (postgres:, pebble:)")
	}
	u.scheme = scheme
	rest, u.query, _ = strings.Cut(rest, "?")
	if err := s.beside(u.query); err != nil {
		return err
	}
	if u.slashes = strings.HasPrefix(rest, "//"); !u.slashes {
		u.path = rest
		return nil
	}
	u.authority, u.path, _ = strings.Cut(rest[2:], "/")
	if at := strings.LastIndex(u.authority, "@"); at >= 0 {
		if err := u.takeUser(u.authority[:at]); err != nil {
			return err
		}
		u.authority = u.authority[at+1:]
	}
	if strings.Contains(rest[2:], "/") {
		u.path = "/" + u.path
	}
	return nil
}

// takeUser takes user and password of the URL, unless they are given beside it too.
func (u *urlParts) takeUser(given string) (err error) {
	user, password, hasPassword := strings.Cut(given, ":")
	if u.user == "" {
		if u.user, err = url.PathUnescape(user); err != nil {
			return errors.New("the url's user is badly escaped; give it as user, where nothing is escaped")
		}
	} else if user != "" {
		return errors.New("the user is given in the url and beside it; keep one")
	}
	if !hasPassword {
		return nil
	}
	if u.password != "" {
		return errors.New("the password is given in the url and beside it; keep one")
	}
	if u.password, err = url.PathUnescape(password); err != nil {
		return errors.New("the url's password is badly escaped; give it as password, where nothing is escaped")
	}
	return nil
}

// join writes the URL, with more parameters.
func (u *urlParts) join(parameters map[string]string) string {
	var b strings.Builder
	b.WriteString(u.scheme + ":")
	if u.slashes {
		b.WriteString("//")
		if u.password != "" {
			b.WriteString(url.UserPassword(u.user, u.password).String() + "@")
		} else if u.user != "" {
			b.WriteString(url.User(u.user).String() + "@")
		}
		b.WriteString(u.authority)
	}
	b.WriteString(u.path)
	query := u.query
	for _, k := range slices.Sorted(maps.Keys(parameters)) {
		if query != "" {
			query += "&"
		}
		query += escape(k) + "=" + escape(parameters[k])
	}
	if query != "" {
		b.WriteString("?" + query)
	}
	return b.String()
}

// beside tells whether the parameters can be added to those of the url.
func (s *Store) beside(query string) error {
	if len(s.Parameters) > 0 && strings.Contains(s.URL, "#") {
		return errors.New("the url holds a #, behind which parameters would be lost; write %23")
	}
	for pair := range strings.SplitSeq(query, "&") {
		key, _, _ := strings.Cut(pair, "=")
		if name, err := url.QueryUnescape(key); err == nil {
			if _, twice := s.Parameters[name]; twice {
				return fmt.Errorf("parameters.%s: it is in the url as well; keep one", shown(name))
			}
		}
	}
	return nil
}

// escape puts text into a query. A space becomes %20, which every parser reads as a
// space. Only parsers that take the query for a form read a plus as a space.
func escape(text string) string { return strings.ReplaceAll(url.QueryEscape(text), "+", "%20") }

// Options returns the percolator options that the file asks for.
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
	if f.Telemetry.Traces {
		opts = append(opts, percolator.WithTracing(otel.GetTracerProvider()))
	}
	if f.Isolation == "serializable" {
		opts = append(opts, percolator.WithDefaultIsolation(percolator.Serializable))
	}
	return opts
}

// OpenStore opens the stores that the file names. If there are several, it returns a
// router.Store over them. If one cannot be opened, it closes those that are open.
func (f *File) OpenStore(ctx context.Context) (rowstore.Store, error) {
	if f == nil {
		return nil, fmt.Errorf("%w: there is no file", ErrInvalid)
	}
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
	router, err := router.New(router.Config{
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
	opts := otelstore.Options{Meters: metricnoop.NewMeterProvider(), Traces: tracenoop.NewTracerProvider()}
	if f.Telemetry.Metrics {
		opts.Meters = otel.GetMeterProvider()
	}
	if f.Telemetry.Traces {
		opts.Traces = otel.GetTracerProvider()
	}
	return otelstore.New(s, opts)
}

// Open opens the database that the file at path describes. The options of the file
// come first, opts after them. Your program must import the backends that the file
// names; backends/all imports all of them. ctx bounds the reading too, if the file is a pipe.
func Open(ctx context.Context, path string, opts ...percolator.Option) (*percolator.DB, error) {
	f, err := load(ctx, path)
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
