package redis

import (
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
	"unicode"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Mode is how the servers are addressed.
type Mode string

const (
	// Standalone is one server outside cluster mode: Addrs has one address.
	Standalone Mode = "standalone"
	// Cluster is a Redis Cluster: Addrs are some of its servers.
	Cluster Mode = "cluster"
	// Sentinel is one server that Sentinel names: Addrs are the sentinels.
	Sentinel Mode = "sentinel"
)

// Options say where a store is and how to reach it. Only Addrs has no default.
type Options struct {
	// Mode is how the servers are addressed. Default: Standalone for one address,
	// Cluster for several.
	Mode Mode
	// Addrs are host:port, or for Standalone the absolute path of a Unix socket.
	Addrs []string
	// MasterName is the name under which Sentinel knows the server. Default
	// "mymaster".
	MasterName string
	// Username and Password of the server; empty for none.
	Username, Password string
	// SentinelUsername and SentinelPassword are those of the sentinels.
	SentinelUsername, SentinelPassword string
	// DB is the number of the database; a Cluster has only 0. Default 0.
	DB int
	// TLS, if not nil, is used for every connection.
	TLS *tls.Config

	// Prefix begins every key, so that stores and other users share a server. It
	// must not hold braces. Default "percolator".
	Prefix string
	// Partitions is the number of parts that rows are spread over: in a Cluster, a
	// row and its group live in one. It is stored when the store is made and cannot
	// change. Default (0): that of the store if there is one, else 1, in a Cluster
	// 16.
	Partitions int

	// PoolSize is the number of connections to each server. Default 10 for each
	// processor.
	PoolSize int
	// DialTimeout bounds connecting, ReadTimeout waiting for an answer,
	// WriteTimeout sending a request, besides the contexts' deadlines. Defaults
	// 3 s, 5 s, 5 s. None may exceed 9 s: no request may be applied later than a
	// lease (10 s) after it was sent.
	DialTimeout, ReadTimeout, WriteTimeout time.Duration

	// NoCoalesce makes Open return the store as it is, not wrapped in
	// rowstore.Coalesce.
	NoCoalesce bool
}

const (
	defaultPrefix     = "percolator"
	defaultMaster     = "mymaster"
	clusterPartitions = 16
	maxPartitions     = 1024
	maxTimeout        = 9 * time.Second
)

// invalid is an error in the options. It names the part that is wrong and shows
// nothing of its text: where a URL is malformed, any part may be one of a password.
func invalid(format string, args ...any) error {
	return fmt.Errorf("redis: %w: %s", rowstore.ErrInvalid, fmt.Sprintf(format, args...))
}

// complete checks the options and fills in the defaults.
func (o *Options) complete() error {
	if len(o.Addrs) == 0 {
		return invalid("no address")
	}
	for _, a := range o.Addrs {
		if a == "" {
			return invalid("an address is empty")
		}
	}
	if o.Mode == "" {
		o.Mode = Standalone
		if len(o.Addrs) > 1 {
			o.Mode = Cluster
		}
	}
	switch o.Mode {
	case Standalone:
		if len(o.Addrs) > 1 {
			return invalid("%d addresses of a standalone server", len(o.Addrs))
		}
	case Cluster:
		if o.DB != 0 {
			return invalid("a Cluster has only database 0")
		}
	case Sentinel:
		if o.MasterName == "" {
			o.MasterName = defaultMaster
		}
	default:
		return invalid("the mode is none of standalone, cluster and sentinel")
	}
	if o.DB < 0 {
		return invalid("the database's number is negative")
	}
	if o.Prefix == "" {
		o.Prefix = defaultPrefix
	}
	if strings.ContainsAny(o.Prefix, "{}") || len(o.Prefix) > 128 {
		return invalid("the prefix must not hold braces, nor more than 128 bytes")
	}
	if o.Partitions < 0 || o.Partitions > maxPartitions {
		return invalid("there can be 1 to %d partitions", maxPartitions)
	}
	if o.PoolSize < 0 {
		return invalid("the pool size is negative")
	}
	for _, t := range []struct {
		name string
		d    *time.Duration
		def  time.Duration
	}{
		{"dial timeout", &o.DialTimeout, 3 * time.Second},
		{"read timeout", &o.ReadTimeout, 5 * time.Second},
		{"write timeout", &o.WriteTimeout, 5 * time.Second},
	} {
		if *t.d == 0 {
			*t.d = t.def
		}
		if *t.d < time.Millisecond || *t.d > maxTimeout {
			return invalid("the %s can be 1 ms to %v", t.name, maxTimeout)
		}
	}
	return nil
}

// ParseURL reads the URL of a store:
//
//	redis://[user[:password]@]host[:port][,host[:port]...][/db][?parameters]
//	rediss://...            the same over TLS
//	unix://[user[:password]@]/path/of/socket[?db=N&parameters]
//	redis+cluster://...     a Cluster of which one address is given
//	redis+sentinel://...    the addresses are sentinels
//
// rediss+cluster and rediss+sentinel are those over TLS. The port is 6379 by
// default, for sentinels 26379. Several addresses mean a Cluster. User and
// password are percent-encoded. The parameters:
//
//	prefix, partitions, db       see Options
//	addr                         one more address, as often as need be
//	mode                         standalone, cluster or sentinel
//	master                       the name under which Sentinel knows the server
//	sentinel_user, sentinel_password
//	pool_size
//	dial_timeout, read_timeout, write_timeout   such as 500ms or 3s
//	coalesce                     on (the default) or off
//	tls_ca                       a file with the certificates to trust, PEM
//	tls_cert, tls_key            files with the client's certificate and key
//	tls_server_name              the name that the server's certificate has
//
// A # has no meaning in it and is refused, as is an @ behind the question mark: in a
// password #, ? and @ are written %23, %3F and %40.
//
// The error says which part is wrong and shows nothing of it but the scheme, for it
// may be part of a password; it matches rowstore.ErrInvalid.
func ParseURL(raw string) (Options, error) {
	var o Options
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return o, invalid("the URL has no scheme://")
	}
	base, mode, _ := strings.Cut(scheme, "+")
	secure := base == "rediss"
	if base != "redis" && base != "rediss" && scheme != "unix" {
		return o, invalid("the URL's scheme is none of redis, rediss and unix")
	}
	o.Mode = Mode(mode)
	// A password with one of these that is not encoded would end in the middle, and
	// its parts would be taken for a host or a parameter.
	if strings.Contains(rest, "#") {
		return o, invalid("the URL holds a #; in a password it is written %%23")
	}
	rest, query, _ := strings.Cut(rest, "?")
	if strings.Contains(query, "@") {
		return o, invalid("the URL holds an @ behind a question mark; in a password the question mark is written %%3F, and in a parameter the @ %%40")
	}
	// An address has no @, so that a password may have one that is not encoded.
	authority, path := rest, ""
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		user, password, _ := strings.Cut(rest[:at], ":")
		var err1, err2 error
		o.Username, err1 = url.PathUnescape(user)
		o.Password, err2 = url.PathUnescape(password)
		if err1 != nil || err2 != nil {
			return o, invalid("the URL's user or password is not well encoded")
		}
		authority = rest[at+1:]
	}
	if i := strings.IndexByte(authority, '/'); i >= 0 {
		authority, path = authority[:i], authority[i:]
	}
	params, err := url.ParseQuery(query)
	if err != nil {
		return o, invalid("the URL's parameters are not well encoded")
	}
	if scheme == "unix" {
		socket, err := url.PathUnescape(path)
		if err != nil || authority != "" || socket == "" {
			return o, invalid("a unix URL is unix:///path/of/socket")
		}
		o.Addrs = []string{socket}
	} else {
		if db := strings.Trim(path, "/"); db != "" {
			if params.Has("db") {
				return o, invalid("the URL names the database twice")
			}
			params.Set("db", db)
		}
	}
	if err := o.parameters(params, secure); err != nil {
		return o, err
	}
	if scheme != "unix" {
		port := "6379"
		if o.Mode == Sentinel {
			port = "26379"
		}
		for _, a := range append(strings.Split(authority, ","), params["addr"]...) {
			addr, err := hostPort(a, port)
			if err != nil {
				return o, err
			}
			o.Addrs = append(o.Addrs, addr)
		}
		if secure && o.TLS.ServerName == "" && o.Mode != Cluster && len(o.Addrs) == 1 {
			host, _, _ := net.SplitHostPort(o.Addrs[0])
			if o.Mode == "" || o.Mode == Standalone {
				o.TLS.ServerName = host
			}
		}
	}
	return o, o.complete()
}

func hostPort(a, port string) (string, error) {
	host := a
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
		host = "localhost"
	}
	if strings.ContainsFunc(host, func(r rune) bool {
		return r != '.' && r != '-' && r != '_' && r != ':' && r != '%' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}) {
		return "", invalid("an address holds a character that no host's name has")
	}
	return net.JoinHostPort(host, port), nil
}

// parameterNames are the parameters of a URL.
var parameterNames = []string{
	"prefix", "partitions", "db", "addr", "mode", "master", "sentinel_user", "sentinel_password",
	"pool_size", "dial_timeout", "read_timeout", "write_timeout", "coalesce",
	"tls_ca", "tls_cert", "tls_key", "tls_server_name",
}

// withoutPath takes the name of the file, which is part of the URL, off an error.
func withoutPath(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

func (o *Options) parameters(params url.Values, secure bool) error {
	files := map[string]string{}
	name := ""
	for key, values := range params {
		if key == "addr" {
			continue
		}
		if !slices.Contains(parameterNames, key) {
			return invalid("the URL has an unknown parameter; there are %s", strings.Join(parameterNames, ", "))
		}
		if len(values) > 1 {
			return invalid("the parameter %s is there twice", key)
		}
		v := values[0]
		var err error
		switch key {
		case "prefix":
			o.Prefix = v
		case "partitions":
			o.Partitions, err = strconv.Atoi(v)
			if err == nil && o.Partitions < 1 {
				err = errors.New("too small")
			}
		case "db":
			o.DB, err = strconv.Atoi(v)
		case "mode":
			if o.Mode != "" && o.Mode != Mode(v) {
				return invalid("the scheme and the parameter mode contradict each other")
			}
			o.Mode = Mode(v)
		case "master":
			o.MasterName = v
		case "sentinel_user":
			o.SentinelUsername = v
		case "sentinel_password":
			o.SentinelPassword = v
		case "pool_size":
			o.PoolSize, err = strconv.Atoi(v)
		case "dial_timeout":
			o.DialTimeout, err = time.ParseDuration(v)
		case "read_timeout":
			o.ReadTimeout, err = time.ParseDuration(v)
		case "write_timeout":
			o.WriteTimeout, err = time.ParseDuration(v)
		case "coalesce":
			switch v {
			case "on":
			case "off":
				o.NoCoalesce = true
			default:
				return invalid("the parameter coalesce is on or off")
			}
		case "tls_ca", "tls_cert", "tls_key":
			files[key] = v
		case "tls_server_name":
			name = v
		}
		if err != nil {
			return invalid("the parameter %s has no valid value", key)
		}
	}
	if !secure {
		if len(files) > 0 || name != "" {
			return invalid("TLS parameters need the scheme rediss")
		}
		return nil
	}
	o.TLS = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: name}
	if f := files["tls_ca"]; f != "" {
		pem, err := os.ReadFile(f) //nolint:gosec // the operator names the file
		if err != nil {
			return invalid("tls_ca: %v", withoutPath(err))
		}
		o.TLS.RootCAs = x509.NewCertPool()
		if !o.TLS.RootCAs.AppendCertsFromPEM(pem) {
			return invalid("tls_ca: the file holds no certificate")
		}
	}
	if (files["tls_cert"] == "") != (files["tls_key"] == "") {
		return invalid("tls_cert and tls_key belong together")
	}
	if f := files["tls_cert"]; f != "" {
		pair, err := tls.LoadX509KeyPair(f, files["tls_key"])
		if err != nil {
			return invalid("tls_cert or tls_key: %v", withoutPath(err))
		}
		o.TLS.Certificates = []tls.Certificate{pair}
	}
	return nil
}
