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
	// maxSamples bounds the row keys that one run of a script answers to Split.
	maxSamples = 8192
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
	err := s.listen(ctx, sub, wake)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case deadlinePassed(ctx):
		// The connection noticed it before the context did.
		return context.DeadlineExceeded
	case s.closed.Load():
		return fmt.Errorf("redis: listen: %w", rowstore.ErrClosed)
	}
	return fmt.Errorf("redis: listen: %w", s.failure(ctx, err))
}

var errSilent = errors.New("the server does not answer any more")

// listen passes messages on. Every listenQuiet it makes sure that the server is
// there and a primary still: one that was demoted passes on what its primary
// publishes, but a listener must hear of the change.
func (s *Store) listen(ctx context.Context, sub *goredis.PubSub, wake func(table string)) error {
	asked, heard := false, false
	next := time.Now().Add(listenQuiet)
	for {
		if !time.Now().Before(next) {
			if asked && !heard {
				return errSilent
			}
			if err := s.primary(ctx); err != nil {
				return err
			}
			if err := sub.Ping(ctx); err != nil {
				return err
			}
			asked, heard = true, false
			next = time.Now().Add(listenQuiet)
		}
		msg, err := sub.ReceiveTimeout(ctx, max(time.Until(next), time.Millisecond))
		if err != nil {
			if !isTimeout(err) || ctx.Err() != nil {
				return err
			}
			continue
		}
		heard = true
		switch m := msg.(type) {
		case *goredis.Subscription:
			if m.Kind == "subscribe" {
				if err := s.primary(ctx); err != nil {
					return err
				}
				wake("")
			}
		case *goredis.Message:
			wake(unescapeTable(m.Payload))
		}
	}
}

// primary returns an error unless the first partition's server is a primary.
func (s *Store) primary(ctx context.Context) error {
	c := &call{script: roleScript}
	s.run(ctx, []*call{c})
	return c.err
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
	// Each partition holds a like share of the keys, so that a few samples of each
	// make enough for all.
	each := min(max(16*n/len(s.parts), 16), 4096)
	if len(s.parts) == 1 {
		each = min(n-1, maxSamples)
	}
	if each == 0 {
		return nil, ctx.Err()
	}
	calls := make([]*call, len(s.parts))
	for i := range calls {
		calls[i] = &call{part: i, script: splitScript, args: []any{s.parts[i].tag + "i:" + escapeTable(table), each}}
	}
	if err := s.runAll(ctx, calls); err != nil {
		return nil, fmt.Errorf("redis: split: %w", err)
	}
	var all []string
	for _, c := range calls {
		u := unpacker{s: c.answer}
		for range u.list() {
			row, _ := u.string()
			all = append(all, row)
		}
		if err := u.done(); err != nil {
			return nil, fmt.Errorf("redis: split: %w", err)
		}
	}
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
