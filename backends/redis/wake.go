package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

const (
	// listenQuiet is how long a silent connection is believed to be alive.
	listenQuiet = 5 * time.Second
)

// Listen calls wake for each table that the write script publishes. It returns an
// error as soon as the connection is lost, or does not answer for ten seconds:
// wake-ups may have been missed then.
func (s *Store) Listen(ctx context.Context, wake func(table string)) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.end()
	// Receive heeds deadlines only, so the end of the context closes the
	// subscription, as does the end of the store.
	sub := s.nodes.subscribe(ctx, s.channel)
	closed := make(chan struct{})
	shut := func() {
		_ = sub.Close()
		close(closed)
	}
	stopCtx := context.AfterFunc(ctx, shut)
	stopStore := context.AfterFunc(s.ended, func() {
		if stopCtx() {
			shut()
		}
	})
	defer func() {
		stopStore()
		if stopCtx() {
			_ = sub.Close()
		} else {
			<-closed
		}
	}()
	err := listen(ctx, sub, wake)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case deadlinePassed(ctx):
		// The connection noticed it before the context did.
		return context.DeadlineExceeded
	case s.closed.Load():
		return fmt.Errorf("redis: listen: %w", rowstore.ErrClosed)
	}
	return fmt.Errorf("redis: listen: %w", explain(err))
}

var errSilent = errors.New("the server does not answer any more")

func listen(ctx context.Context, sub *goredis.PubSub, wake func(table string)) error {
	asked := false
	for {
		msg, err := sub.ReceiveTimeout(ctx, listenQuiet)
		if err != nil {
			if !isTimeout(err) || ctx.Err() != nil {
				return err
			}
			if asked {
				return errSilent
			}
			if err := sub.Ping(ctx); err != nil {
				return err
			}
			asked = true
			continue
		}
		asked = false
		switch m := msg.(type) {
		case *goredis.Subscription:
			if m.Kind == "subscribe" {
				wake("")
			}
		case *goredis.Message:
			wake(unescapeTable(m.Payload))
		}
	}
}

// Split cuts a table by the ranks of its rows: a few keys of each partition's
// index, at equal distances.
func (s *Store) Split(ctx context.Context, table string, n int) ([]string, error) {
	if table == "" || n < 1 {
		return nil, fmt.Errorf("redis: split: %w: table %q into %d parts", rowstore.ErrInvalid, table, n)
	}
	if err := checkNames(table, ""); err != nil {
		return nil, err
	}
	samples := make([][]string, len(s.parts))
	// Each partition holds a like share of the keys, so that a few samples of each
	// make enough for all.
	each := min(max(16*n/len(s.parts), 16), 4096)
	if len(s.parts) == 1 {
		each = n - 1
	}
	if each == 0 {
		return nil, ctx.Err()
	}
	err := s.query(ctx, func(ctx context.Context) error {
		return s.each(ctx, func(ctx context.Context, part int, c *goredis.Client) error {
			key := s.parts[part].tag + "i:" + escapeTable(table)
			size, err := c.ZCard(ctx, key).Result()
			if err != nil || size == 0 {
				return err
			}
			pipe := c.Pipeline()
			var cmds []*goredis.StringSliceCmd
			last := int64(0)
			for i := 1; i <= each; i++ {
				rank := size * int64(i) / int64(each+1)
				if rank > last {
					cmds = append(cmds, pipe.ZRange(ctx, key, rank, rank))
					last = rank
				}
			}
			samples[part] = nil
			if len(cmds) == 0 {
				return nil
			}
			if _, err := pipe.Exec(ctx); err != nil {
				return err
			}
			for _, cmd := range cmds {
				samples[part] = append(samples[part], cmd.Val()...)
			}
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("redis: split: %w", err)
	}
	all := slices.Concat(samples...)
	slices.Sort(all)
	all = slices.Compact(all)
	if len(all) <= n-1 {
		return all, nil
	}
	cuts := make([]string, 0, n-1)
	for i := 1; i < n; i++ {
		cuts = append(cuts, all[len(all)*i/n])
	}
	return slices.Compact(cuts), nil
}
