package redis

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// nodes finds the server that a partition lies on.
type nodes interface {
	// of is the server of a partition of the store.
	of(ctx context.Context, part int) (*goredis.Client, error)
	// holder is the server of a key, perhaps of no partition that the store has.
	holder(ctx context.Context, key string) (*goredis.Client, error)
	// moved says that a server was not where it was expected.
	moved(ctx context.Context)
	subscribe(ctx context.Context, channel string) *goredis.PubSub
	// others is how many servers a message is passed on to.
	others(ctx context.Context) int
	// masters runs f on every primary server, perhaps on several at once.
	masters(ctx context.Context, f func(ctx context.Context, c *goredis.Client) error) error
	close() error
}

// single is one server, perhaps the one that Sentinel names.
type single struct {
	client  *goredis.Client
	borrows bool // the client is the program's own, and stays open
}

func (n single) of(context.Context, int) (*goredis.Client, error) { return n.client, nil }
func (n single) moved(context.Context)                            {}

func (n single) holder(context.Context, string) (*goredis.Client, error) { return n.client, nil }

func (n single) close() error {
	if n.borrows {
		return nil
	}
	return n.client.Close()
}

func (n single) masters(ctx context.Context, f func(ctx context.Context, c *goredis.Client) error) error {
	return f(ctx, n.client)
}

func (n single) others(context.Context) int { return 0 }

func (n single) subscribe(ctx context.Context, channel string) *goredis.PubSub {
	return n.client.Subscribe(ctx, channel)
}

// cluster is a Redis Cluster. Its client knows where the slots are; the commands
// go to the servers' own clients, because the cluster client sends a command
// again by itself when a connection breaks.
type cluster struct {
	client *goredis.ClusterClient
	keys   []string // a key of each partition
	// last is where each partition was found last.
	last []atomic.Pointer[goredis.Client]
	// borrowed is nil unless the client is the program's own.
	borrowed *borrowedNodes
}

// borrowedNodes are the servers of a Cluster whose client is the program's own. The
// store uses each with its own timeouts, and checks each before it uses it.
type borrowedNodes struct {
	timeout time.Duration
	check   func(ctx context.Context, c goredis.Cmdable) error
	known   sync.Map // *goredis.Client, as the Cluster's client has it, to that with the timeouts
}

func (b *borrowedNodes) use(ctx context.Context, c *goredis.Client) (*goredis.Client, error) {
	if known, ok := b.known.Load(c); ok {
		return known.(*goredis.Client), nil
	}
	mine := c.WithTimeout(b.timeout)
	if err := b.check(ctx, mine); err != nil {
		return nil, err
	}
	known, _ := b.known.LoadOrStore(c, mine)
	return known.(*goredis.Client), nil
}

// use makes the partitions known. It comes before the first call.
func (n *cluster) use(parts []part) {
	n.keys = nil
	for i := range parts {
		n.keys = append(n.keys, parts[i].tables)
	}
	n.last = make([]atomic.Pointer[goredis.Client], len(parts))
}

func (n *cluster) of(ctx context.Context, part int) (*goredis.Client, error) {
	c, err := n.holder(ctx, n.keys[part])
	if err != nil {
		return nil, fmt.Errorf("partition %d: %w", part, err)
	}
	n.last[part].Store(c)
	return c, nil
}

func (n *cluster) holder(ctx context.Context, key string) (*goredis.Client, error) {
	c, err := n.client.MasterForKey(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("finding the server of the key %s: %w", key, err)
	}
	if n.borrowed != nil {
		if c, err = n.borrowed.use(ctx, c); err != nil {
			return nil, fmt.Errorf("checking the server of the key %s: %w", key, err)
		}
	}
	return c, nil
}

// address is where a partition was found last, "" before the first time.
func (n *cluster) address(part int) string {
	if c := n.last[part].Load(); c != nil {
		return c.Options().Addr
	}
	return ""
}

func (n *cluster) moved(ctx context.Context) { n.client.ReloadState(ctx) }

func (n *cluster) masters(ctx context.Context, f func(ctx context.Context, c *goredis.Client) error) error {
	return n.client.ForEachMaster(ctx, func(ctx context.Context, c *goredis.Client) error {
		if n.borrowed != nil {
			c = c.WithTimeout(n.borrowed.timeout)
		}
		return f(ctx, c)
	})
}

func (n *cluster) others(ctx context.Context) int {
	var all atomic.Int64
	_ = n.client.ForEachShard(ctx, func(context.Context, *goredis.Client) error { // it asks none of them
		all.Add(1)
		return nil
	})
	return max(0, int(all.Load())-1)
}

func (n *cluster) subscribe(ctx context.Context, channel string) *goredis.PubSub {
	return n.client.Subscribe(ctx, channel)
}

func (n *cluster) close() error {
	if n.borrowed != nil {
		return nil
	}
	return n.client.Close()
}
