package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// A listening connection that was silent for pingEvery is pinged, and the answer may take
// pingWithin. Else Listen would wait for ever for a server that went away silently.
const (
	pingEvery  = 15 * time.Second
	pingWithin = 5 * time.Second
)

// hearWithin is how long an announcement may take to arrive on a connection that begins to listen.
const hearWithin = 10 * time.Second

// listensName ends the name of each session that listens (application_name), so that it can be counted. maxName is what the server takes of a name.
const (
	listensName = "percolator listens"
	maxName     = 63
)

// nameOf is the name of a session that listens, by the one that the program has chosen for its sessions. A session with a name
// too long for that is not counted.
func nameOf(chosen string) string {
	if chosen == "" {
		return listensName
	}
	if name := chosen + " " + listensName; len(name) <= maxName {
		return name
	}
	return chosen
}

// wakingStore is a store that can listen.
type wakingStore struct{ *plainStore }

// Listen implements rowstore.Waker, on a connection of its own.
func (s *wakingStore) Listen(ctx context.Context, wake func(rowstore.Wake)) error {
	caller := ctx
	ctx, done, err := s.gate.Begin(ctx, "listen")
	if err != nil {
		if caller.Err() != nil {
			return caller.Err()
		}
		return err
	}
	defer done()
	err = s.listenOn(ctx, wake)
	if caller.Err() != nil {
		return caller.Err()
	}
	return s.gate.Fail("listen", err)
}

func (s *wakingStore) listenOn(ctx context.Context, wake func(rowstore.Wake)) error {
	cfg := s.listen.Copy()
	arrived := make([]string, 0, 8)
	probe := probing{channel: s.names.channel + "_" + strings.ToLower(rand.Text())}
	cfg.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) {
		switch n.Channel {
		case s.names.channel:
			arrived = append(arrived, n.Payload)
		case probe.channel:
			probe.heard = true
		}
	}
	if err := s.beforeConnect(ctx, cfg); err != nil {
		return err
	}
	cfg.RuntimeParams["application_name"] = nameOf(cfg.RuntimeParams["application_name"])
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return connecting(ctx, err)
	}
	s.openlyHears.Store(isOpen(conn.PgConn()))
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), pingWithin)
		defer cancel()
		_ = conn.Close(closing)
		// After this, the connection is closed and nothing of it still runs.
		select {
		case <-conn.PgConn().CleanupDone():
		case <-closing.Done():
		}
	}()
	if err := exec(ctx, conn, "LISTEN "+pgx.Identifier{s.names.channel}.Sanitize()); err != nil {
		return err
	}
	if s.listensApart {
		if err := s.hears(ctx, conn, &probe); err != nil {
			return err
		}
	}
	local, stop := s.pusher.listen(wake)
	defer stop()
	local.tell(rowstore.Wake{})
	for {
		waiting, cancel := context.WithTimeout(ctx, pingEvery)
		err := conn.PgConn().WaitForNotification(waiting)
		silent := waiting.Err() != nil
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil && silent && !conn.IsClosed() {
			pinging, cancel := context.WithTimeout(ctx, pingWithin)
			err = conn.PgConn().Ping(pinging)
			cancel()
		}
		if err != nil {
			return err
		}
		for _, payload := range arrived {
			if w, own := s.pusher.parse(payload); !own {
				local.tell(w)
			}
		}
		arrived = arrived[:0]
	}
}

// probing is a channel on which one listening connection hears itself alone.
type probing struct {
	channel string
	heard   bool
}

// errUnheard says that a connection that listens is no use. It is not final: a server may be late.
var errUnheard = errors.New("what the store announces does not arrive on the connection to listen on: it leads to another database, or through a pooler " +
	"(Options.Listen, or the parameter listen)")

// hears makes sure that a connection, whose address is one of its own, hears what sessions of the pool announce. LISTEN works in any database, and behind any
// pooler. If nothing can be announced just now, it knows nothing.
func (s *plainStore) hears(ctx context.Context, conn *pgx.Conn, probe *probing) error {
	channel := pgx.Identifier{probe.channel}.Sanitize()
	if err := exec(ctx, conn, "LISTEN "+channel); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, s.hearWithin)
	defer cancel()
	if err := s.run(waiting, s.q.probe, [][]byte{[]byte(probe.channel)}, false, nil, func(*fields) {}); err != nil {
		return ctx.Err()
	}
	for !probe.heard {
		if err := conn.PgConn().WaitForNotification(waiting); err != nil {
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case waiting.Err() != nil:
				return errUnheard
			}
			return err
		}
	}
	return exec(ctx, conn, "UNLISTEN "+channel)
}

var _ rowstore.Waker = (*wakingStore)(nil)
