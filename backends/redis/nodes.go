package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"

	goredis "github.com/redis/go-redis/v9"
)

// nodes finds the server that a partition lies on.
type nodes interface {
	of(ctx context.Context, part int) (*goredis.Client, error)
	// moved says that a server was not where it was expected.
	moved(ctx context.Context)
	subscribe(ctx context.Context, channel string) *goredis.PubSub
	close() error
}

// single is one server, perhaps the one that Sentinel names.
type single struct{ client *goredis.Client }

func (n single) of(context.Context, int) (*goredis.Client, error) { return n.client, nil }
func (n single) moved(context.Context)                            {}
func (n single) close() error                                     { return n.client.Close() }

func (n single) subscribe(ctx context.Context, channel string) *goredis.PubSub {
	return n.client.Subscribe(ctx, channel)
}

// cluster is a Redis Cluster. Its client knows where the slots are; the commands
// go to the servers' own clients, because the cluster client sends a command
// again by itself when a connection breaks.
type cluster struct {
	client *goredis.ClusterClient
	keys   []string // a key of each partition
}

func (n *cluster) of(ctx context.Context, part int) (*goredis.Client, error) {
	c, err := n.client.MasterForKey(ctx, n.keys[part])
	if err != nil {
		return nil, fmt.Errorf("finding the server of partition %d: %w", part, err)
	}
	return c, nil
}

func (n *cluster) moved(ctx context.Context) { n.client.ReloadState(ctx) }

func (n *cluster) subscribe(ctx context.Context, channel string) *goredis.PubSub {
	return n.client.Subscribe(ctx, channel)
}

func (n *cluster) close() error { return n.client.Close() }

// each runs f on the server of each partition, on several at once.
func (s *Store) each(ctx context.Context, f func(ctx context.Context, part int, c *goredis.Client) error) error {
	errs := make([]error, len(s.parts))
	run := func(i int) {
		c, err := s.nodes.of(ctx, i)
		if err == nil {
			err = f(ctx, i, c)
		}
		errs[i] = err
	}
	if len(s.parts) == 1 {
		run(0)
		return errs[0]
	}
	var wg sync.WaitGroup
	for i := range s.parts {
		wg.Go(func() { run(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
