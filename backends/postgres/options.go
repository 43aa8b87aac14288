package postgres

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/coalesce"
)

// DefaultSchema is the schema of a store that names none.
const DefaultSchema = "percolator"

// maxSchema is the length in bytes at which the server cuts names off.
const maxSchema = 63

// Options say where a store is and how it is used. [ParseURL] reads them from a URL.
type Options struct {
	// URL says where the server is, in the form postgres://user:password@host:port/database
	// or postgresql://..., with the parameters of libpq and pgxpool (sslmode,
	// pool_max_conns, default_query_exec_mode, ...). What it leaves out comes from the
	// environment (PGHOST, PGUSER, ...), as with libpq; pool_max_conns is 16 by default
	// and connect_timeout 10 seconds. [Open] needs it. [New] refuses it, since the pool says
	// where the server is.
	URL string
	// Schema is the Postgres schema that holds everything. It is made when it is
	// missing. At most 63 bytes. Default ("") is [DefaultSchema].
	Schema string
	// Listen is the URL, or a list of keywords and values, of a connection to the same
	// database that goes to the server directly, for LISTEN. It is needed behind a pooler such as
	// PgBouncer in transaction mode, where notifications do not arrive. Default ("") is a
	// connection made as those of the pool are, if these are direct; else the store has
	// no [rowstore.Waker], and workers poll. BeforeConnect of the pool is called with it
	// in both cases, and may change the password. Of several hosts it takes the primary. If nothing arrives there of
	// what the store announces, Listen fails and says so.
	Listen string
	// Coalesce changes how concurrent calls are merged. If nil, or if its MaxInFlight is
	// 0, at most one call of each kind is in flight.
	Coalesce *coalesce.Options
	// NoCoalesce gives a store that does not merge concurrent calls.
	NoCoalesce bool
	// AsIs takes a store as it is: the schema is neither made, which is an error that matches
	// rowstore.ErrNoStore, nor migrated, so that one of an older version gives an error that matches
	// rowstore.ErrFormat. It is for programs that only look. Default false.
	AsIs bool
}

// ParseURL reads options from a URL, postgres://user:password@host:port/database or
// postgresql://..., with the parameters of libpq and pgxpool (sslmode,
// pool_max_conns, default_query_exec_mode, ...) and these:
//
//	schema=NAME      the schema that holds everything; default "percolator"
//	listen=URL       a direct connection for LISTEN; see Options.Listen
//	coalesce=off     concurrent calls are not merged
//	asis=true        the schema is neither made nor migrated; see Options.AsIs
//	max_batch=N      see coalesce.Options; default there
//	max_in_flight=N  likewise; default 1
//
// A plus sign in a parameter is a plus sign, as in libpq. ParseURL does not connect. The
// error matches rowstore.ErrInvalid, says which part is wrong and quotes nothing of the URL, since
// it may be a part of a password.
func ParseURL(url string) (Options, error) {
	a, opts, err := splitURL(url)
	if err == nil {
		opts.URL = a.url
		err = opts.check()
	}
	if err == nil {
		_, err = poolConfig(a)
	}
	if err != nil {
		return Options{}, fmt.Errorf("postgres: the URL: %w", err)
	}
	return opts, nil
}

// check checks everything but the URL.
func (o *Options) check() error {
	if strings.ContainsRune(o.Schema, 0) || len(o.Schema) > maxSchema {
		return fmt.Errorf("%w: the schema's name is longer than %d bytes or has a zero byte", rowstore.ErrInvalid, maxSchema)
	}
	if strings.HasPrefix(o.Schema, "pg_") {
		return fmt.Errorf("%w: the schema's name begins with pg_; such names are the server's own", rowstore.ErrInvalid)
	}
	_, err := o.listenConfig()
	return err
}

// listenConfig returns how to connect for LISTEN, nil if the options leave that open.
func (o *Options) listenConfig() (*pgx.ConnConfig, error) {
	if o.Listen == "" {
		return nil, nil //nolint:nilnil // as the comment says
	}
	base, query, _ := strings.Cut(o.Listen, "?")
	if strings.Contains(base, "://") {
		if err := checkAddress(base, query); err != nil {
			return nil, fmt.Errorf("the URL to listen on: %w", err)
		}
	}
	cfg, err := pgx.ParseConfig(o.Listen)
	if err != nil {
		return nil, fmt.Errorf("the URL to listen on: %w", errUnreadable)
	}
	if cfg.ValidateConnect == nil {
		cfg.ValidateConnect = validatePrimary // nobody can listen on a standby
	}
	return cfg, nil
}

// clientEncoding is how names of schemas are sent, which may be any text, whatever encoding the database has. All else that is text is ASCII.
const clientEncoding = "UTF8"

// poolConfig returns the configuration of the pool of a URL.
func poolConfig(a address) (*pgxpool.Config, error) {
	cfg, err := pgxpool.ParseConfig(a.url)
	if err != nil {
		return nil, errUnreadable
	}
	if !a.has["pool_max_conns"] {
		cfg.MaxConns = defaultConns
	}
	if !a.has["connect_timeout"] {
		cfg.ConnConfig.ConnectTimeout = defaultConnectTimeout
	}
	if cfg.ConnConfig.ValidateConnect == nil {
		cfg.ConnConfig.ValidateConnect = validatePrimary
	}
	cfg.ConnConfig.RuntimeParams["client_encoding"] = clientEncoding
	cfg.ConnConfig.OnNotice, cfg.ConnConfig.BuildContextWatcherHandler = OnNotice, AwaitAnswers
	return cfg, nil
}

// errUnreadable is all that is said of an address that the driver does not understand: what it says itself
// quotes the address, in which a password may stand anywhere when it was not escaped.
var errUnreadable = fmt.Errorf("%w: it is malformed, or one of its parameters has a value that will not do", rowstore.ErrInvalid)

// checkAddress refuses addresses in which a part of a password, one that was not escaped, would be taken
// for something else: a fragment, a host, a parameter. Its errors quote nothing.
func checkAddress(base, query string) error {
	if strings.ContainsAny(base+query, "# \t\r\n") {
		return fmt.Errorf("%w: it has a # or a space: such characters are to be percent-encoded", rowstore.ErrInvalid)
	}
	_, rest, ok := strings.Cut(base, "://")
	if !ok {
		return nil // a list of keywords and values
	}
	authority, path, _ := strings.Cut(rest, "/")
	if strings.Count(authority, "@") > 1 || strings.ContainsAny(authority, `\"<>`) {
		return fmt.Errorf("%w: such characters in the password are to be percent-encoded", rowstore.ErrInvalid)
	}
	if strings.Contains(path, "@") {
		return fmt.Errorf("%w: it has an @ after the host: a slash in the password is to be percent-encoded", rowstore.ErrInvalid)
	}
	if !strings.ContainsAny(rest, "/@") && strings.Contains(query, "@") {
		return fmt.Errorf("%w: it has no path and an @ after the ?: a ? in the password is to be percent-encoded", rowstore.ErrInvalid)
	}
	for part := range strings.SplitSeq(query, "&") {
		name, _, ok := strings.Cut(part, "=")
		if part != "" && (!ok || strings.ContainsAny(name, "@:/")) {
			return fmt.Errorf("%w: one of its parameters is not name=value: a ? in the password is to be percent-encoded", rowstore.ErrInvalid)
		}
	}
	return nil
}

// address is a URL without this package's own parameters.
type address struct {
	url     string
	has     map[string]bool // its parameters
	secrets []string        // what must not be in an error
}

// splitURL takes this package's own parameters out of a URL.
func splitURL(url string) (address, Options, error) {
	var opts Options
	base, query, _ := strings.Cut(url, "?")
	values, order, err := parameters(query)
	a := address{has: map[string]bool{}, secrets: secrets(base, values)}
	if err != nil {
		return a, opts, err
	}
	if scheme, _, ok := strings.Cut(url, "://"); !ok || scheme != "postgres" && scheme != "postgresql" {
		return a, opts, fmt.Errorf("%w: it does not begin with postgres:// or postgresql://", rowstore.ErrInvalid)
	}
	if err := checkAddress(base, query); err != nil {
		return a, opts, err
	}
	if err := opts.take(values); err != nil {
		return a, opts, err
	}
	if opts.Listen != "" {
		a.secrets = append(a.secrets, secretsOf(opts.Listen)...)
	}
	a.url, a.has = joinURL(base, order, values)
	return a, opts, nil
}

// ownParameters are those of a URL that are not the driver's.
var ownParameters = []string{"schema", "listen", "coalesce", "max_batch", "max_in_flight", "asis"}

// take reads this package's own parameters and removes them from values.
func (o *Options) take(values map[string]string) error {
	own := map[string]string{}
	for _, name := range ownParameters {
		own[name] = values[name]
		delete(values, name)
	}
	o.Schema, o.Listen = own["schema"], own["listen"]
	switch own["coalesce"] {
	case "", "on", "true":
	case "off", "false":
		o.NoCoalesce = true
	default:
		return fmt.Errorf("%w: coalesce is neither on nor off", rowstore.ErrInvalid)
	}
	switch own["asis"] {
	case "", "false":
	case "true":
		o.AsIs = true
	default:
		return fmt.Errorf("%w: asis is neither true nor false", rowstore.ErrInvalid)
	}
	co := coalesce.Options{}
	for name, to := range map[string]*int{"max_batch": &co.MaxBatch, "max_in_flight": &co.MaxInFlight} {
		if own[name] == "" {
			continue
		}
		n, err := strconv.Atoi(own[name])
		if err != nil || n < 1 {
			return fmt.Errorf("%w: %s is not a number above 0", rowstore.ErrInvalid, name)
		}
		*to = n
		o.Coalesce = &co
	}
	return nil
}

// joinURL puts a URL together again, with those of the parameters that have values.
func joinURL(base string, order []string, values map[string]string) (url string, has map[string]bool) {
	has = map[string]bool{}
	url = base
	for _, name := range order {
		v, ok := values[name]
		if !ok {
			continue
		}
		if len(has) == 0 {
			url += "?"
		} else {
			url += "&"
		}
		has[name] = true
		url += escape(name) + "=" + escape(v)
	}
	return url, has
}

// escape encodes a part of a parameter as libpq reads it.
func escape(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }

// parameters reads those of a URL as libpq does, to which a plus is a plus. Its
// error quotes nothing, since that might be a password.
func parameters(query string) (values map[string]string, order []string, err error) {
	values = map[string]string{}
	for part := range strings.SplitSeq(query, "&") {
		if part == "" {
			continue
		}
		name, value, _ := strings.Cut(part, "=")
		name, err1 := url.PathUnescape(name)
		value, err2 := url.PathUnescape(value)
		if err1 != nil || err2 != nil {
			err = fmt.Errorf("%w: its parameters cannot be read", rowstore.ErrInvalid)
			continue
		}
		if _, again := values[name]; !again {
			order = append(order, name)
		}
		values[name] = value
	}
	return values, order, err
}

// secretsOf finds the passwords in a URL.
func secretsOf(url string) []string {
	base, query, _ := strings.Cut(url, "?")
	values, _, _ := parameters(query)
	return secrets(base, values)
}

// secrets finds the passwords in a URL, as they are written and as they are meant.
func secrets(base string, values map[string]string) []string {
	var all []string
	add := func(s string) {
		if s != "" {
			all = append(all, s)
			if plain, err := url.PathUnescape(s); err == nil && plain != s {
				all = append(all, plain)
			}
		}
	}
	if i := strings.LastIndex(base, "@"); i >= 0 {
		user := base[:i]
		if j := strings.Index(user, "://"); j >= 0 {
			user = user[j+3:]
		}
		if _, password, ok := strings.Cut(user, ":"); ok {
			add(password)
		}
	}
	for _, name := range []string{"password", "sslpassword"} {
		add(values[name])
		add(url.QueryEscape(values[name]))
	}
	return all
}

// scrub returns err, or where its message holds a secret, an error of the same kinds whose
// message is without it. A password may be a word of the message by chance, such as the name of the host.
func scrub(err error, secrets []string) error {
	text := err.Error()
	clean := text
	for _, s := range secrets {
		clean = strings.ReplaceAll(clean, s, "xxxxx")
	}
	if clean == text {
		return err
	}
	return &scrubbedError{text: clean, err: err}
}

// scrubbedError stands for an error whose message holds a secret. It cannot be unwrapped, since who prints each error of a chain would print that.
type scrubbedError struct {
	text string
	err  error
}

func (e *scrubbedError) Error() string        { return e.text }
func (e *scrubbedError) Is(target error) bool { return errors.Is(e.err, target) }
func (e *scrubbedError) As(target any) bool   { return errors.As(e.err, target) }
