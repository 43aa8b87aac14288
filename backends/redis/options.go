package redis

import (
	"crypto/tls"
	"fmt"
	"math"
	"strings"
	"time"

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

// Options say where a store is and how to reach it. Open needs Addrs; everything else
// has a default. New takes a client in the place of all that says how to reach the
// servers: Mode to TLS, PoolSize and DialTimeout must then be left out.
type Options struct {
	// Mode is how the servers are addressed. Default: Standalone for one address,
	// Cluster for several.
	Mode Mode
	// Addrs are host:port, or for Standalone the absolute path of a Unix socket.
	Addrs []string
	// MasterName is the name under which Sentinel knows the server. Default
	// "mymaster". Only for Sentinel.
	MasterName string
	// Username and Password of the server; empty for none. A user other than default needs a password.
	Username, Password string
	// SentinelUsername and SentinelPassword are those of the sentinels, as for the server. Only for Sentinel.
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
	// catalog lease (10 s) after it was sent. A request may be applied for as long as
	// the two take together, 9 s at most, so a database with a shorter CatalogLease in its
	// percolator.Settings needs shorter ones. With New, the greater of ReadTimeout and
	// WriteTimeout bounds both.
	DialTimeout, ReadTimeout, WriteTimeout time.Duration

	// AsIs takes a store as it is: none is made, which is an error that matches
	// rowstore.ErrNoStore, and none is migrated, so that one of the format version before gives an error that
	// matches rowstore.ErrFormat. What the user may do is not tried out, because that writes. Nor do scans move notifications that a
	// program of format version 1 left late in its own index; they do not find these. A server that takes no writes lets such an Open in.
	// It is for programs that only look. Default false.
	AsIs bool

	// NoCoalesce turns off the merging of calls that are made at the same time: each
	// call is a request of its own.
	NoCoalesce bool
}

const (
	defaultPrefix     = "percolator"
	defaultMaster     = "mymaster"
	clusterPartitions = 16
	maxPartitions     = 1024
	maxTimeout        = 9 * time.Second
)

// invalid makes an error about the options. It must name the part that is wrong and show
// nothing of its text: in a malformed URL, any part may be a piece of a password.
func invalid(format string, args ...any) error {
	return fmt.Errorf("redis: %w: %s", rowstore.ErrInvalid, fmt.Sprintf(format, args...))
}

// complete checks the options of Open and fills in the defaults.
func (o *Options) complete() error {
	if len(o.Addrs) == 0 {
		return invalid("there is no address: set Options.Addrs")
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
			return invalid("a standalone server has one address, and %d are given", len(o.Addrs))
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
	if o.Mode != Sentinel && o.MasterName+o.SentinelUsername+o.SentinelPassword != "" {
		return invalid("a name of the server, and a user and a password of sentinels, are for the mode sentinel")
	}
	// The driver logs in with a password alone: without one it would be the server's default user, who may do more.
	for _, u := range []struct{ what, name, password string }{
		{"user", o.Username, o.Password},
		{"user of the sentinels", o.SentinelUsername, o.SentinelPassword},
	} {
		if u.name != "" && u.name != "default" && u.password == "" {
			return invalid("the %s has no password; give it one", u.what)
		}
	}
	if o.DB < 0 || o.DB > math.MaxInt32 {
		return invalid("the database's number is negative, or above %d", math.MaxInt32)
	}
	if o.PoolSize < 0 {
		return invalid("the pool size is negative")
	}
	return o.completeCommon()
}

// noConnection refuses what the client says in the options of New.
func (o *Options) noConnection() error {
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"Mode", o.Mode != ""},
		{"Addrs", len(o.Addrs) > 0},
		{"MasterName", o.MasterName != ""},
		{"Username", o.Username != ""},
		{"Password", o.Password != ""},
		{"SentinelUsername", o.SentinelUsername != ""},
		{"SentinelPassword", o.SentinelPassword != ""},
		{"DB", o.DB != 0},
		{"TLS", o.TLS != nil},
		{"PoolSize", o.PoolSize != 0},
		{"DialTimeout", o.DialTimeout != 0},
	} {
		if f.set {
			return invalid("New takes Options.%s from the client; leave it out", f.name)
		}
	}
	return nil
}

// completeCommon checks what Open and New have in common, and fills in the defaults.
func (o *Options) completeCommon() error {
	if o.Prefix == "" {
		o.Prefix = defaultPrefix
	}
	if strings.ContainsAny(o.Prefix, "{}") || len(o.Prefix) > 128 {
		return invalid("the prefix must not hold braces, nor more than 128 bytes")
	}
	if o.Partitions < 0 || o.Partitions > maxPartitions {
		return invalid("there can be 1 to %d partitions", maxPartitions)
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
