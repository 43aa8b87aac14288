package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// suspension stops a client in the middle of a large answer, as a debugger, a pause of its machine or SIGSTOP does:
// its connections read no more.
type suspension struct {
	mu      sync.Mutex
	resumed *sync.Cond
	on      bool
	left    int // bytes that are read before it stops
}

func newSuspension() *suspension {
	s := &suspension{}
	s.resumed = sync.NewCond(&s.mu)
	return s
}

func (s *suspension) set(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on, s.left = on, 64<<10
	s.resumed.Broadcast()
}

// read is told that a connection has read n bytes. It returns when the client goes on.
func (s *suspension) read(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.left -= n; s.on && s.left < 0; {
		s.resumed.Wait()
	}
}

// suspended is a connection of such a client.
type suspended struct {
	net.Conn
	by *suspension
}

func (c suspended) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.by.read(n)
	return n, err
}

// wideReads read the wide row, whose columns have a mebibyte each, in all ways that take locks of rows or of the oracle. They return how
// many bytes they got.
var wideReads = map[string]func(ctx context.Context, s *Store) (int, error){
	"Point": func(ctx context.Context, s *Store) (int, error) {
		return sizeOf(s.Read(ctx, []rowstore.RowRead{wideRead(oracle.Max)}))
	},
	"Picks": func(ctx context.Context, s *Store) (int, error) {
		return sizeOf(s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: "wide", Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: rowstore.AllColumns, To: oracle.Max}}}}))
	},
	"Snapshot": func(ctx context.Context, s *Store) (int, error) {
		answers, err := s.ReadSnapshot(ctx, []rowstore.SnapshotRead{{Reads: []rowstore.RowRead{wideRead(rowstore.AssignedTimestamp)}}})
		if err != nil {
			return 0, err
		}
		return sizeOf(answers[0].Rows, nil)
	},
}

const wideColumns = 24

func wideRead(at rowstore.Timestamp) rowstore.RowRead {
	r := rowstore.RowRead{Table: "t", Row: "wide"}
	for i := range wideColumns {
		r.Selectors = append(r.Selectors, rowstore.Selector{Family: rowstore.Write, Column: fmt.Sprint(i), To: at, Limit: 1})
	}
	return r
}

func sizeOf(rows []rowstore.Row, err error) (size int, _ error) {
	for i := range rows {
		for j := range rows[i].Versions {
			size += len(rows[i].Versions[j].Value)
		}
	}
	return size, err
}

// A client that is suspended while the server sends it a large answer holds nothing that others wait for: they
// draw, read, and commit in one phase, on the rows that it reads too.
func TestSuspendedReader(t *testing.T) {
	t.Parallel()
	direct := testserver.Postgres(t)
	for way, read := range wideReads {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			schema := fresh(t, direct)
			s := openTest(t, with(direct, "schema", schema))
			for i := range wideColumns {
				out, err := s.Apply(ctx, []rowstore.Mutation{{Table: "t", Row: "wide", Edits: []rowstore.Edit{
					rowstore.Put(rowstore.Write, fmt.Sprint(i), 5, bytes.Repeat([]byte{byte(i)}, 1<<20)),
				}}}, rowstore.ApplyOptions{})
				require.NoError(t, err)
				require.True(t, out[0].Applied)
			}
			by := newSuspension()
			app := newNames(schema).channel
			pool := ownPool(t, with(direct, "application_name", app), func(cfg *pgxpool.Config) {
				dial := cfg.ConnConfig.DialFunc
				cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
					c, err := dial(ctx, network, addr)
					return suspended{c, by}, err
				}
			})
			reader, err := New(ctx, pool, Options{Schema: schema})
			require.NoError(t, err)
			defer func() { require.NoError(t, reader.Close()) }()
			defer by.set(false)
			draw(ctx, t, reader) // it knows the bound

			// The number of a transaction has readers take locks.
			watcher := connect(ctx, t, direct)
			require.NoError(t, exec(ctx, connect(ctx, t, direct), "BEGIN; SELECT pg_current_xact_id()"))
			by.set(true)
			done := make(chan error, 1)
			size := 0
			go func() {
				var err error
				size, err = read(ctx, reader)
				done <- err
			}()
			eventually(ctx, t, func() error {
				var sending int
				err := watcher.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND wait_event = 'ClientWrite'", app).Scan(&sending)
				if err == nil && sending == 0 {
					err = errors.New("the server does not wait for the client")
				}
				return err
			})
			var locks string
			require.NoError(t, watcher.QueryRow(ctx, "SELECT coalesce(string_agg(concat_ws(' ', l.mode, l.classid, l.objid), '; '), '') FROM pg_locks l JOIN pg_stat_activity a USING (pid) "+
				"WHERE l.locktype = 'advisory' AND a.application_name = $1", app).Scan(&locks))
			require.Empty(t, locks)
			_, err = s.Oracle().Draw(ctx, 2*step) // under the exclusive lock of the oracle
			require.NoError(t, err)
			require.NoError(t, writeDrawn(ctx, s, "wide"))
			by.set(false)
			require.NoError(t, <-done)
			require.Equal(t, wideColumns<<20, size)
		})
	}
}
