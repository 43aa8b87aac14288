package postgres

import (
	"context"
	"fmt"
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
	cfg.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) {
		if n.Channel == s.names.channel {
			arrived = append(arrived, n.Payload)
		}
	}
	// The pool does so before each of its connections, and passwords may change.
	if before := s.pool.Config().BeforeConnect; before != nil {
		if err := before(ctx, cfg); err != nil {
			return fmt.Errorf("BeforeConnect of the pool: %w", err)
		}
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

var _ rowstore.Waker = (*wakingStore)(nil)
