package redis

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"unicode"

	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

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
// password are percent-encoded. A user other than default needs a password. The parameters:
//
//	prefix, partitions, db       see Options
//	addr                         one more address, as often as need be
//	mode                         standalone, cluster or sentinel
//	master                       the name under which Sentinel knows the server
//	sentinel_user, sentinel_password
//	pool_size
//	asis                         true takes a store as it is: none is made, and none is migrated
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
	authority, path, err := o.userInfo(rest)
	if err != nil {
		return o, err
	}
	db := strings.Trim(path, "/")
	if scheme == "unix" {
		socket, err := url.PathUnescape(path)
		if err != nil || authority != "" || socket == "" {
			return o, invalid("a unix URL is unix:///path/of/socket")
		}
		o.Addrs, db = []string{socket}, ""
	}
	more, err := o.parameters(query, db, secure)
	if err != nil {
		return o, err
	}
	if scheme == "unix" && len(more) > 0 {
		return o, invalid("a unix URL has one address, its socket: the parameter addr has no meaning")
	}
	if scheme != "unix" {
		port := "6379"
		if o.Mode == Sentinel {
			port = "26379"
		}
		for _, a := range append(strings.Split(authority, ","), more...) {
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

// userInfo reads the user and the password, and returns what stands behind them.
func (o *Options) userInfo(rest string) (authority, path string, err error) {
	// An address has no @, so that a password may have one that is not encoded.
	authority = rest
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		user, password, _ := strings.Cut(rest[:at], ":")
		var err1, err2 error
		o.Username, err1 = url.PathUnescape(user)
		o.Password, err2 = url.PathUnescape(password)
		if err1 != nil || err2 != nil {
			return "", "", invalid("the URL's user or password is not well encoded")
		}
		authority = rest[at+1:]
	}
	if i := strings.IndexByte(authority, '/'); i >= 0 {
		authority, path = authority[:i], authority[i:]
	}
	return authority, path, nil
}

// hostPort completes an address by the default host and port.
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

// withoutPath takes the name of the file, which is part of the URL, off an error.
func withoutPath(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// parameters reads the parameters of a URL, and returns the addresses among them. path
// is the number of the database as the URL's path has it, or "". secure says whether
// the scheme asks for TLS.
func (o *Options) parameters(query, path string, secure bool) (addrs []string, err error) {
	p := kit.ParseParams(query)
	mode := Mode(p.String("mode", string(o.Mode)))
	o.Prefix = p.String("prefix", "")
	o.Partitions = p.Int("partitions", 0, 1, maxPartitions)
	const noDB = -1
	o.DB = p.Int("db", noDB, 0, math.MaxInt32)
	o.MasterName = p.String("master", "")
	o.SentinelUsername = p.String("sentinel_user", "")
	o.SentinelPassword = p.String("sentinel_password", "")
	o.PoolSize = p.Int("pool_size", 0, 0, math.MaxInt32)
	o.DialTimeout = p.Duration("dial_timeout", 0)
	o.ReadTimeout = p.Duration("read_timeout", 0)
	o.WriteTimeout = p.Duration("write_timeout", 0)
	o.NoCoalesce = p.OneOf("coalesce", "on", "on", "off") == "off"
	o.AsIs = p.Bool("asis", false)
	ca, cert, key := p.String("tls_ca", ""), p.String("tls_cert", ""), p.String("tls_key", "")
	serverName := p.String("tls_server_name", "")
	addrs = p.Strings("addr")
	if err := p.Err(); err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	if o.Mode != "" && o.Mode != mode {
		return nil, invalid("the scheme and the parameter mode contradict each other")
	}
	o.Mode = mode
	switch {
	case path != "" && o.DB != noDB:
		return nil, invalid("the URL names the database twice")
	case path != "":
		if o.DB, err = strconv.Atoi(path); err != nil {
			return nil, invalid("the URL's path is not the number of a database")
		}
	case o.DB == noDB:
		o.DB = 0
	}
	if secure {
		return addrs, o.loadTLS(ca, cert, key, serverName)
	}
	if ca+cert+key+serverName != "" {
		return nil, invalid("TLS parameters need the scheme rediss")
	}
	return addrs, nil
}

// loadTLS reads the files that the parameters of TLS name, "" for none.
func (o *Options) loadTLS(ca, cert, key, serverName string) error {
	o.TLS = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: serverName}
	if ca != "" {
		pem, err := os.ReadFile(ca) //nolint:gosec // the operator names the file
		if err != nil {
			return invalid("tls_ca: %v", withoutPath(err))
		}
		o.TLS.RootCAs = x509.NewCertPool()
		if !o.TLS.RootCAs.AppendCertsFromPEM(pem) {
			return invalid("tls_ca: the file holds no certificate")
		}
	}
	if (cert == "") != (key == "") {
		return invalid("tls_cert and tls_key belong together")
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return invalid("tls_cert or tls_key: %v", withoutPath(err))
		}
		o.TLS.Certificates = []tls.Certificate{pair}
	}
	return nil
}
