package tikvraw

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tikv/client-go/v2/tikv"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// API is the version of TiKV's key-value API that a cluster was set up with
// (storage.api-version and storage.enable-ttl).
type API string

// The API versions.
const (
	// V1 is the default of TiKV. Every application that uses the raw mode of the
	// cluster shares one key space.
	V1 API = "v1"
	// V1TTL is V1 with storage.enable-ttl.
	V1TTL API = "v1ttl"
	// V2 keeps keyspaces apart, and raw keys from transactional ones.
	V2 API = "v2"
)

// Oracle says where timestamps come from. It is fixed when the store is made.
type Oracle string

// The oracles.
const (
	// OraclePD is PD's timestamp oracle.
	OraclePD Oracle = "pd"
	// OracleStore is a key of the store, moved on by CompareAndSwap, with the clocks of
	// the clients as time.
	OracleStore Oracle = "store"
)

// Options configure a store. The zero value of each field but PDAddrs is its default.
type Options struct {
	// PDAddrs are the addresses of PD servers, host:port. One is enough to find the
	// others. [Open] needs them. [New] refuses them, since its client knows them.
	PDAddrs []string
	// Prefix begins every key of the store, so that several stores and other
	// applications can share a cluster. It has 1 to 128 bytes, none of them zero.
	// Default "percolator".
	Prefix string
	// API is the cluster's API version. Default V1.
	API API
	// Keyspace is the name of the keyspace, with V2. Default is PD's, "DEFAULT".
	Keyspace string
	// Oracle is where timestamps come from, which is stored when the store is made.
	// Default is what is stored, and OraclePD for a new store. Another one than the
	// stored is refused.
	Oracle Oracle
	// RequestTimeout bounds one request to a server, besides the contexts' deadlines,
	// and for how long after its arrival a server may carry a change out. From 100 ms to
	// 9 s: the protocol takes a change that was not answered for over after 10 s.
	// Default 5 s.
	RequestTimeout time.Duration
	// Patience is for how long a call goes on trying while no server carries it out, beside
	// the time that its requests take. Then it fails, with an error that matches
	// rowstore.ErrUnavailable or rowstore.ErrAmbiguous. From 100 ms to 30 s. Default 2 s.
	Patience time.Duration
	// CacheSize is the memory in bytes for the heads of rows that were used last.
	// Default 32 MiB.
	CacheSize int
	// MaxKey is the greatest length of a key that the servers take
	// (storage.max-key-size). Names are limited so that every key fits. From 1 KiB to
	// 64 KiB, default 4 KiB.
	MaxKey int
	// MaxEntry is the greatest size of a key and its value together, which must stay
	// below the servers' raftstore.raft-entry-max-size. It bounds values, and the newest
	// versions of a row together. From 64 KiB to 64 MiB, default 6 MiB.
	MaxEntry int
	// SweepEvery is how often garbage is looked for, by one of the processes that have
	// the store open; see [Store.Sweep]. At least a minute; less than 0 for never.
	// Default 24 h.
	SweepEvery time.Duration
	// AsIs takes a store as it is: none is made, which is an error that matches rowstore.ErrNoStore, and
	// none is migrated, so that one of format version 1 gives an error that matches
	// rowstore.ErrFormat. Nor does the store look for garbage, or remove what scans meet of it. If a process of format
	// version 1 was at work while the store was migrated, scans of notifications miss what that process has notified since
	// and no other process has moved yet, which those with the store open do every few seconds. AsIs is for programs that only
	// look. Default false.
	AsIs bool
	// CA, Cert and Key are PEM files, for TLS: the certificates to trust, and the
	// client's certificate and key. TiKV's client wants all three or none.
	CA, Cert, Key string

	clock      func() time.Time // of the store's oracle and the sweeps
	staleAfter time.Duration    // when a marker without a notification is no longer taken for one of a swap under way
	// formatEvery is how often the format is looked at; see watchFormat.
	formatEvery time.Duration
	sizes       sizes
	rpc         tikv.Client // in place of connections to the TiKV servers
}

const (
	maxPrefix     = 128
	maxTable      = 512
	defaultPrefix = "percolator"
)

func invalid(format string, args ...any) error {
	return fmt.Errorf("tikvraw: %w: %w", rowstore.ErrInvalid, fmt.Errorf(format, args...))
}

// complete checks the options and fills in defaults.
func (o *Options) complete() error {
	if o.Prefix == "" {
		o.Prefix = defaultPrefix
	}
	if len(o.Prefix) > maxPrefix || strings.IndexByte(o.Prefix, 0) >= 0 {
		return invalid("the prefix is longer than %d bytes or has a zero byte", maxPrefix)
	}
	if o.API == "" {
		o.API = V1
	}
	if !slices.Contains([]API{V1, V1TTL, V2}, o.API) {
		return invalid("the API version is none of v1, v1ttl and v2")
	}
	if o.Keyspace != "" && o.API != V2 {
		return invalid("a keyspace needs the API version v2")
	}
	if !slices.Contains([]Oracle{"", OraclePD, OracleStore}, o.Oracle) {
		return invalid("the oracle is neither pd nor store")
	}
	if o.RequestTimeout == 0 {
		o.RequestTimeout = 5 * time.Second
	}
	if o.RequestTimeout < 100*time.Millisecond || o.RequestTimeout > 9*time.Second {
		return invalid("the request timeout %v is not from 100ms to 9s", o.RequestTimeout)
	}
	if o.Patience == 0 {
		o.Patience = defaultPatience
	}
	if o.Patience < 100*time.Millisecond || o.Patience > 30*time.Second {
		return invalid("the patience %v is not from 100ms to 30s", o.Patience)
	}
	o.CacheSize = cmp.Or(o.CacheSize, 32<<20)
	if o.CacheSize < 0 {
		return invalid("the cache size is negative")
	}
	if err := o.completeSizes(); err != nil {
		return err
	}
	if o.SweepEvery == 0 {
		o.SweepEvery = 24 * time.Hour
	}
	if o.SweepEvery > 0 && o.SweepEvery < time.Minute {
		return invalid("sweeps every %v: at least a minute apart", o.SweepEvery)
	}
	if o.clock == nil {
		o.clock = time.Now
	}
	if o.staleAfter == 0 {
		o.staleAfter = time.Minute
	}
	if o.formatEvery == 0 {
		o.formatEvery = formatEvery
	}
	if o.sizes == (sizes{}) {
		o.sizes = sizes{head: headSize, chunk: chunkSize}
	}
	o.sizes.entry = o.MaxEntry
	o.sizes.names = cmp.Or(o.sizes.names, nameBytes)
	return o.checkTLS()
}

// completeSizes is complete of keys and values.
func (o *Options) completeSizes() error {
	o.MaxKey = cmp.Or(o.MaxKey, 4<<10)
	if o.MaxKey < 1<<10 || o.MaxKey > 64<<10 {
		return invalid("the greatest key length %d is not from 1 KiB to 64 KiB", o.MaxKey)
	}
	o.MaxEntry = cmp.Or(o.MaxEntry, 6<<20)
	if o.MaxEntry < 64<<10 || o.MaxEntry > 64<<20 {
		return invalid("the greatest entry %d is not from 64 KiB to 64 MiB", o.MaxEntry)
	}
	if o.MaxEntry == o.MaxKey {
		return invalid("an entry of %d bytes has no room for a value beside a key of as many", o.MaxEntry)
	}
	return nil
}

// limits are such that the keys of every name fit, also of one that doubles when it is
// escaped.
func (o *Options) limits() rowstore.Limits {
	const apiV2 = 4 // mode and keyspace, before each key
	room := (o.MaxKey - apiV2 - len(o.Prefix) - 2 - 4 - idLen - 1) / 2
	table := min(maxTable, room/4)
	return rowstore.Limits{Table: table, Row: room - table, Column: 64 << 10, Value: o.MaxEntry - o.MaxKey}
}

func (o *Options) checkTLS() error {
	if o.CA == "" && o.Cert == "" && o.Key == "" {
		return nil
	}
	_, err := o.tlsConfig()
	return err
}

// tlsConfig loads the files.
func (o *Options) tlsConfig() (*tls.Config, error) {
	if o.CA == "" || o.Cert == "" || o.Key == "" {
		return nil, invalid("TLS needs tls_ca, tls_cert and tls_key: TiKV's client offers no TLS without a certificate of its own")
	}
	pem, err := os.ReadFile(o.CA) // the operator names the file
	if err != nil {
		return nil, invalid("tls_ca: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, invalid("tls_ca: %s holds no certificate", o.CA)
	}
	pair, err := tls.LoadX509KeyPair(o.Cert, o.Key)
	if err != nil {
		return nil, invalid("tls_cert and tls_key: %w", err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: []tls.Certificate{pair}}, nil
}

// ParseURL reads options from a URL of the form
//
//	tikv://pd1[:port][,pd2[:port]...][?parameters]
//
// with the addresses of PD servers (default port 2379), and the parameters
//
//	prefix             what every key begins with
//	api                v1 (the default), v1ttl or v2
//	keyspace           its name, with v2
//	oracle             pd or store
//	request_timeout    such as 500ms or 3s
//	patience           such as 2s
//	cache_size         bytes
//	max_key, max_entry bytes
//	sweep              such as 24h, or off
//	asis               true or false
//	tls_ca, tls_cert, tls_key
//	                   PEM files: certificates to trust, the client's own, its key
//
// See [Options] for what they mean. The error says which part is wrong and quotes nothing of it but the
// names of files, for it may be part of a password that was meant for another store; it matches
// rowstore.ErrInvalid.
func ParseURL(raw string) (Options, error) {
	var o Options
	rest, ok := strings.CutPrefix(raw, "tikv://")
	if !ok {
		return o, invalid("the URL does not begin with tikv://")
	}
	if strings.Contains(rest, "#") {
		// What follows would be lost, of a prefix or of the certificates.
		return o, invalid("the URL has a #: write it as %%23")
	}
	authority, query, _ := strings.Cut(rest, "?")
	authority = strings.TrimSuffix(authority, "/")
	if strings.Contains(authority, "@") {
		// Not repeated: there may be a password in it.
		return o, invalid("the URL has a user: TiKV knows none, it takes certificates (tls_cert)")
	}
	if strings.Contains(authority, "/") {
		return o, invalid("the URL has a path; the store's name is the parameter prefix")
	}
	for a := range strings.SplitSeq(authority, ",") {
		addr, err := hostPort(a)
		if err != nil {
			return o, err
		}
		o.PDAddrs = append(o.PDAddrs, addr)
	}
	params, err := url.ParseQuery(query)
	if err != nil {
		return o, invalid("the URL's parameters are not well encoded")
	}
	for key, values := range params {
		if len(values) > 1 {
			return o, invalid("a parameter is there twice")
		}
		if err := o.parameter(key, values[0]); err != nil {
			return o, err
		}
	}
	return o, o.complete()
}

// parameters are those of a URL, for messages.
var parameters = []string{
	"prefix", "api", "keyspace", "oracle", "request_timeout", "patience", "cache_size", "max_key", "max_entry", "sweep", "asis", "tls_ca", "tls_cert", "tls_key",
}

func (o *Options) parameter(key, v string) error {
	var err error
	positive := func(to *int) {
		if *to, err = strconv.Atoi(v); err == nil && *to < 1 {
			err = errors.New("too small")
		}
	}
	switch key {
	case "prefix":
		o.Prefix = v
		if v == "" {
			err = errors.New("empty")
		}
	case "api":
		o.API = API(v)
	case "keyspace":
		o.Keyspace = v
	case "oracle":
		o.Oracle = Oracle(v)
	case "request_timeout":
		if o.RequestTimeout, err = time.ParseDuration(v); err == nil && o.RequestTimeout <= 0 {
			err = errors.New("too small")
		}
	case "patience":
		if o.Patience, err = time.ParseDuration(v); err == nil && o.Patience <= 0 {
			err = errors.New("too small")
		}
	case "cache_size":
		positive(&o.CacheSize)
	case "max_key":
		positive(&o.MaxKey)
	case "max_entry":
		positive(&o.MaxEntry)
	case "asis":
		o.AsIs, err = strconv.ParseBool(v)
	case "sweep":
		if v == "off" {
			o.SweepEvery = -1
		} else if o.SweepEvery, err = time.ParseDuration(v); err == nil && o.SweepEvery <= 0 {
			err = errors.New("too small")
		}
	case "tls_ca":
		o.CA = v
	case "tls_cert":
		o.Cert = v
	case "tls_key":
		o.Key = v
	default:
		return invalid("the URL has an unknown parameter (known: %s)", strings.Join(parameters, ", "))
	}
	if err != nil {
		return invalid("the parameter %s is not valid", key)
	}
	return nil
}

func hostPort(a string) (string, error) {
	host, port := a, "2379"
	if h, p, err := net.SplitHostPort(a); err == nil {
		if n, err := strconv.Atoi(p); err != nil || n < 1 || n > 65535 {
			return "", invalid("the port of an address is not a number from 1 to 65535")
		}
		host, port = h, p
	} else if strings.Contains(strings.Trim(a, "[]"), ":") && !strings.HasPrefix(a, "[") {
		return "", invalid("an address is not host:port")
	} else {
		host = strings.Trim(a, "[]")
	}
	if host == "" {
		return "", invalid("the URL names no PD server, or an empty address among several")
	}
	return net.JoinHostPort(host, port), nil
}
