package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/percolate-go/percolate/internal/contexts"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

const (
	// listenQuiet is how long a silent connection is believed to be alive.
	listenQuiet = 5 * time.Second
	// maxSamples bounds the row keys that one run of a script answers to Split.
	maxSamples = 8192
)

// wake writes what the write script has to publish for a row of an escaped table: the table,
// a slash, and the slot as four hexadecimal digits. The script puts the slots of a table's
// rows together, each once, and leaves them out if there are many.
func (p *packer) wake(table string, slot uint16) {
	p.strHead(len(table) + 5)
	p.b = append(p.b, table...)
	p.b = appendSlot(append(p.b, '/'), slot)
}

// appendSlot writes a slot as a message has it.
func appendSlot(b []byte, slot uint16) []byte {
	const digits = "0123456789abcdef"
	return append(b, digits[slot>>12], digits[slot>>8&15], digits[slot>>4&15], digits[slot&15])
}

// wakeSlots is how many slots of a table the script names, at most. A worker remembers as many. A program from
// before, which named 256, takes more of them for any row.
const wakeSlots = 1024

// parseWake reads a message. One that it does not understand may mean anything.
func parseWake(message string) rowstore.Wake {
	table, slots, ok := strings.Cut(message, "/")
	if !ok || len(slots)%4 != 0 {
		return rowstore.Wake{}
	}
	w := rowstore.Wake{Table: unescapeTable(table)}
	if len(slots) > 4*wakeSlots {
		slots = "" // it is not from the script
	}
	for ; slots != ""; slots = slots[4:] {
		slot, err := strconv.ParseUint(slots[:4], 16, 16)
		if err != nil {
			return rowstore.Wake{}
		}
		w.Slots = append(w.Slots, uint16(slot))
	}
	return w
}

// Listen calls wake for what is published. It returns an
// error as soon as the connection is lost, or does not answer for ten seconds, and within about five
// seconds of the moment when another server takes over: wake-ups may have been missed then.
func (s *direct) Listen(ctx context.Context, wake func(rowstore.Wake)) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.end()
	// The subscription has a connection of its own, which nobody can ask for its server. Whoever
	// takes over after this moment is another one than this.
	server, err := s.listenedTo(ctx)
	if err == nil {
		err = s.subscribe(ctx, server, wake)
	}
	if ended := contexts.Ended(ctx); ended != nil {
		return ended
	}
	if s.closed.Load() {
		return fmt.Errorf("redis: listen: %w", rowstore.ErrClosed)
	}
	return fmt.Errorf("redis: listen: %w", s.failure(ctx, err))
}

// subscribe listens until the subscription ends, or the context, or the store.
func (s *direct) subscribe(ctx context.Context, server string, wake func(rowstore.Wake)) error {
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
	return s.listen(ctx, sub, server, wake)
}

var (
	errSilent = errors.New("the server does not answer any more")
	errMoved  = fmt.Errorf("%w: another server than the one that was listened to is the primary now", rowstore.ErrUnavailable)
)

// listen passes messages on. Every listenQuiet it makes sure that the server is
// there and the one that it was when the subscription began: one that was demoted may pass on what its primary
// publishes, but one that was cut off passes on nothing, and a listener must hear of the change.
func (s *direct) listen(ctx context.Context, sub *goredis.PubSub, server string, wake func(rowstore.Wake)) error {
	asked, heard := false, false
	next := time.Now().Add(listenQuiet)
	check := func() error {
		now, err := s.listenedTo(ctx)
		if err == nil && now != server {
			err = errMoved
		}
		return err
	}
	for {
		if !time.Now().Before(next) {
			if asked && !heard {
				return errSilent
			}
			if err := check(); err != nil {
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
				if err := check(); err != nil {
					return err
				}
				wake(rowstore.Wake{})
			}
		case *goredis.Message:
			wake(parseWake(m.Payload))
		}
	}
}

// listenedTo names the server whose messages the store hears, as the store's calls find it now. It returns an error unless
// the first partition's server is a primary. On one server the name is the replication id, which changes with every
// start and every promotion, and seldom otherwise: then a listener begins anew for nothing. The servers of a Cluster pass messages on to each other, so there it is the address of the server that has the slot of the
// channel, which a subscription goes to.
func (s *direct) listenedTo(ctx context.Context) (string, error) {
	c := &call{script: listenScript}
	if err := s.wait(ctx, c); err != nil {
		return "", err
	}
	if c.err != nil {
		return "", c.err
	}
	if s.opts.Mode != Cluster {
		return c.answer, nil
	}
	holder, err := s.nodes.holder(ctx, s.channel)
	if err != nil {
		return "", s.failure(ctx, err)
	}
	return holder.Options().Addr, nil
}
