package postgres

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Split implements rowstore.Splitter.
func (s *plainStore) Split(ctx context.Context, table string, n int) ([]string, error) {
	ctx, done, err := s.gate.Begin(ctx, "split")
	if err != nil {
		return nil, err
	}
	defer done()
	if table == "" {
		return nil, fmt.Errorf("postgres: split: %w: the table's name is empty", rowstore.ErrInvalid)
	}
	if n < 1 {
		return nil, fmt.Errorf("postgres: split: %w: into %d parts", rowstore.ErrInvalid, n)
	}
	if n == 1 || len(table) > maxTable {
		return nil, nil
	}
	n = min(n, 4096) // more than the sample could tell apart
	fractions := []byte("{")
	for i := 1; i < n; i++ {
		if i > 1 {
			fractions = append(fractions, ',')
		}
		fractions = fmt.Appendf(fractions, "%.9f", float64(i)/float64(n))
	}
	fractions = append(fractions, '}')
	var keys []string
	begin := func() { keys = nil }
	err = s.run(ctx, s.q.sample, [][]byte{[]byte(table), fractions}, false, begin, func(f *fields) {
		keys = append(keys, string(f.values[0]))
	})
	if err != nil {
		return nil, s.gate.Fail("split", err)
	}
	return keys, nil
}

// Report implements rowstore.Reporter.
func (s *plainStore) Report(ctx context.Context) (rowstore.Report, error) {
	ctx, done, err := s.gate.Begin(ctx, "report")
	if err != nil {
		return rowstore.Report{}, err
	}
	defer done()
	c, err := s.pool.Acquire(ctx)
	if err != nil {
		return rowstore.Report{}, s.gate.Fail("report", connecting(ctx, err))
	}
	defer c.Release()
	server, err := askServer(ctx, c.Conn().PgConn(), s.names)
	if err != nil {
		return rowstore.Report{}, s.gate.Fail("report", err)
	}
	r := rowstore.Report{Backend: "postgres", Layout: schemaVersion, Version: server["server_version"], Features: []rowstore.Feature{
		{Name: rowstore.FeatureGroups, Supported: true, Reason: "all rows of a transaction commit together"},
		{Name: rowstore.FeatureOnePhase, Supported: true, Reason: "advisory locks make readers of its rows wait; up to 512 rows"},
		{Name: rowstore.FeatureDeferred, Supported: true, Reason: "synchronous_commit is set for each transaction"},
		{Name: rowstore.FeatureOracle, Supported: true, Reason: "a sequence below a durable bound"},
		{Name: rowstore.FeatureSnapshots, Supported: true, Reason: "the function that reads draws the timestamp"},
		{Name: rowstore.FeatureSplit, Supported: true, Reason: "by a sample of the table's pages"},
		{Name: rowstore.FeatureSlots, Supported: true, Reason: "the key of the table of notifications begins with the slot"},
		{Name: rowstore.FeatureScans, Supported: true, Reason: "the function that scans draws the timestamp"},
		feature(rowstore.FeatureWake, s.listen != nil, "the connection goes through a pooler; give a direct one with the parameter listen"),
		feature("prepared statements", !s.unprepared.Load(), "the connection goes through a pooler, or default_query_exec_mode turns them off"),
	}}
	r.Warnings = server.warnings()
	if !s.pooler {
		r.Warnings = append(r.Warnings, server.connections(int(s.pool.Config().MaxConns))...)
	}
	r.Warnings = append(r.Warnings, s.ownWarnings(c.Conn().PgConn())...)
	return r, nil
}

// feature is a feature that is there, or not for a reason.
func feature(name string, there bool, reason string) rowstore.Feature {
	if there {
		reason = ""
	}
	return rowstore.Feature{Name: name, Supported: there, Reason: reason}
}

// ownWarnings are those about the connection and about what happened since the store was opened.
func (s *plainStore) ownWarnings(c *pgconn.PgConn) []string {
	var all []string
	if isOpen(c) {
		all = append(all, "The connection to the server is plain text, and goes to another machine: "+
			"sslmode=prefer falls back to that silently. Set sslmode=verify-full.")
	}
	if s.openlyHears.Load() {
		all = append(all, "The connection that listens to notifications was plain text, and went to another machine: "+
			"sslmode=prefer falls back to that silently. Set sslmode=verify-full, in the parameter listen if that names a connection of its own.")
	}
	if s.listen == nil {
		all = append(all, "The connection goes through a pooler, and no direct one is known: notifications do not arrive, so workers poll. "+
			"Give a direct connection with the parameter listen.")
	}
	if s.deaf {
		all = append(all, "The server's warnings do not arrive. If it commits and stops waiting for a synchronous standby, the store "+
			"does not hear of it. Set OnNotice of the pool's ConnConfig to postgres.OnNotice.")
	}
	if n := s.unconfirmed.Load(); n > 0 {
		all = append(all, fmt.Sprintf("%d commits were made on the server while it stopped waiting for its synchronous standbys; "+
			"each was waited for again, or answered as one whose outcome is unknown.", n))
	}
	if n := s.pusher.failed.Load(); n > 0 {
		all = append(all, fmt.Sprintf("%d announcements of notifications (NOTIFY) failed and were repeated: workers of other processes were woken late.", n))
	}
	return all
}

// isOpen tells whether others may read what goes over a connection: it is plain text and leaves this machine.
func isOpen(c *pgconn.PgConn) bool {
	_, safe := c.Conn().(*tls.Conn)
	return !safe && !isLocal(c.Conn().RemoteAddr())
}

// isLocal tells whether an address is of this machine.
func isLocal(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return !ok || tcp.IP.IsLoopback()
}
