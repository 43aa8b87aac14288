package redis

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/await"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/coalesce"
)

// onePut is a group that writes a row at the timestamp that it draws.
func onePut(row, value string, more ...rowstore.Edit) rowstore.Group {
	m := put(row, rowstore.AssignedTimestamp, value)
	m.Conditions = []rowstore.Condition{
		rowstore.Absent(rowstore.Write, "c", 1), rowstore.Absent(rowstore.Lock, "c", 0), rowstore.Absent(rowstore.Mark, "c", 1),
	}
	m.Edits = append(m.Edits, more...)
	return rowstore.Group{AssignTimestamp: true, Mutations: []rowstore.Mutation{m}}
}

// beginOf begins with a read of a column.
func beginOf(row, column string) rowstore.SnapshotRead {
	return rowstore.SnapshotRead{Reads: []rowstore.RowRead{{Table: "t", Row: row, Selectors: []rowstore.Selector{
		{Family: rowstore.Lock, Column: column, To: rowstore.AssignedTimestamp, Limit: 1},
		{Family: rowstore.Write, Column: column, To: rowstore.AssignedTimestamp, Limit: 1},
	}}}}
}

// runs counts the runs of scripts on a server.
func runs(t *testing.T, c *goredis.Client) (n int) {
	t.Helper()
	return callsOf(t, c, "eval", "evalsha")
}

// callsOf counts the calls of commands on a server, those of scripts too.
func callsOf(t *testing.T, c *goredis.Client, commands ...string) (n int) {
	t.Helper()
	text, err := c.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	for _, name := range commands {
		_, rest, ok := strings.Cut(text, "cmdstat_"+name+":calls=")
		if ok {
			var calls int
			_, err := fmt.Sscanf(rest, "%d", &calls)
			require.NoError(t, err)
			n += calls
		}
	}
	return n
}

// requireRisen checks that the timestamps of a call are each other's successors: commits, then
// draws, then begins.
func requireRisen(t *testing.T, c *coalesce.Together) {
	t.Helper()
	last := rowstore.Timestamp(0)
	for _, o := range c.Outcomes {
		if o.Applied {
			require.Greater(t, o.Commit, last)
			last = o.Commit
		}
	}
	for i, first := range c.Firsts {
		require.Greater(t, first, last)
		last = first + rowstore.Timestamp(c.Draws[i]) - 1
	}
	for _, b := range c.Begun {
		require.Greater(t, b.TS, last)
		last = b.TS
	}
}

// Groups of both kinds, draws and begins are one run of a script. A begin sees what the groups
// wrote, and a group that is refused keeps back no other.
func TestTogetherIsOneRun(t *testing.T) {
	t.Parallel()
	srv := testserver.NewRedis(t, nil)
	c := admin(t, srv.URL)
	for _, partitions := range []string{"1", "5"} {
		s := bare(t, with(t, srv.URL, "partitions", partitions))
		heard := make(chan rowstore.Wake, 10)
		listening, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Listen(listening, func(w rowstore.Wake) { heard <- w }) }()
		await.Value(listening, t, heard, ended)
		last := rowstore.Timestamp(0)
		for i, edits := range [][]rowstore.Edit{nil, {rowstore.Put(rowstore.Notify, "c", rowstore.AssignedTimestamp, nil)}} {
			a, b := fmt.Sprint("a", i), fmt.Sprint("b", i)
			apply(t, s, put("taken", 1, "0"))
			ask := func(to *coalesce.Together) {
				to.Groups = []rowstore.Group{onePut(a, "1", edits...), onePut(b, "2"), onePut("taken", "3")}
				to.Draws = []int{3, 1}
				to.Begins = []rowstore.SnapshotRead{beginOf(a, "c"), beginOf(b, "c"), beginOf("none", "c")}
			}
			var both coalesce.Together
			ask(&both)
			if i > 0 {
				// The script is on the server now.
				before := runs(t, c)
				s.together(t.Context(), &both)
				require.Equal(t, 1, runs(t, c)-before)
			} else {
				s.together(t.Context(), &both)
			}
			require.NoError(t, both.GroupErr)
			require.NoError(t, both.BeginErr)
			require.NoError(t, both.DrawErr)
			require.True(t, both.Outcomes[0].Applied)
			require.True(t, both.Outcomes[1].Applied)
			require.False(t, both.Outcomes[2].Applied, "the row was written before")
			require.Greater(t, both.Outcomes[0].Commit, last)
			requireRisen(t, &both)
			last = both.Begun[2].TS
			for k, want := range []string{"1", "2"} {
				v := both.Begun[k].Rows[0].Newest(rowstore.Write, "c")
				require.NotNil(t, v)
				require.Equal(t, want, string(v.Value))
				require.Equal(t, both.Outcomes[k].Commit, v.TS)
			}
			require.Empty(t, both.Begun[2].Rows[0].Versions)
			if i > 0 {
				require.Equal(t, []uint16{rowstore.Slot("t", a)}, await.Value(listening, t, heard, ended).Slots)
			} else {
				// The general script, too, was not there yet.
				require.NoError(t, s.groupOne(onePut("warm", "1", rowstore.Put(rowstore.Notify, "c", rowstore.AssignedTimestamp, nil))))
				await.Value(listening, t, heard, ended)
				last = draw(t, s)
			}
		}
		require.Greater(t, draw(t, s), last)
		stop()
		require.ErrorIs(t, await.Value(t.Context(), t, ended, nil), context.Canceled)
	}
}

// groupOne applies one group.
func (s *direct) groupOne(g rowstore.Group) error {
	out, err := s.Group(context.Background(), []rowstore.Group{g})
	if err == nil {
		err = out[0].Err
	}
	return err
}

// What one run cannot answer is asked for apart: reads of other kinds, far too much data, rows
// that cannot be read, and arguments that are refused. Nothing of it concerns the groups.
func TestTogetherApart(t *testing.T) {
	t.Parallel()
	srv := testserver.NewRedis(t, nil)
	c := admin(t, srv.URL)
	s := bare(t, with(t, srv.URL))
	value := strings.Repeat("x", maxAnswer/2+1)
	apply(t, s, put("large1", 1, value))
	apply(t, s, put("large2", 1, value))
	apply(t, s, put("row", 1, "v"))
	tag := s.parts[0].tag
	require.NoError(t, c.Set(t.Context(), tag+"r:t/wrong", "not a hash", 0).Err())
	older := beginOf("row", "c")
	older.Reads[0].Selectors[1].To = 1
	bad := beginOf("row", "c")
	bad.Reads[0].Table = ""
	last := rowstore.Timestamp(0)
	for i, tc := range []struct {
		name   string
		begins []rowstore.SnapshotRead
		draws  []int
		fails  bool
		wrong  int // how many of the begins have a row that cannot be read
	}{
		{"too much data", []rowstore.SnapshotRead{beginOf("large1", "c"), beginOf("large2", "c"), beginOf("row", "c")}, []int{1}, false, 0},
		{"another kind of read", []rowstore.SnapshotRead{older}, nil, false, 0},
		{"a row that cannot be read", []rowstore.SnapshotRead{beginOf("row", "c"), beginOf("wrong", "c")}, []int{2}, false, 1},
		{"a bad begin", []rowstore.SnapshotRead{bad}, nil, true, 0},
		{"a bad draw", nil, []int{maxDraw + 1}, true, 0},
	} {
		both := coalesce.Together{Groups: []rowstore.Group{onePut(fmt.Sprint(i), "1")}, Begins: tc.begins, Draws: tc.draws}
		s.together(t.Context(), &both)
		require.NoError(t, both.GroupErr, tc.name)
		require.True(t, both.Outcomes[0].Applied, tc.name)
		require.Greater(t, both.Outcomes[0].Commit, last, tc.name)
		last = both.Outcomes[0].Commit
		if tc.fails {
			require.Error(t, firstOf(both.BeginErr, both.DrawErr), tc.name)
			require.NotErrorIs(t, firstOf(both.BeginErr, both.DrawErr), rowstore.ErrAmbiguous, tc.name)
		} else {
			require.NoError(t, both.BeginErr, tc.name)
			require.NoError(t, both.DrawErr, tc.name)
			for i, b := range both.Begun {
				if i < len(both.Begun)-tc.wrong {
					require.Len(t, b.Rows[0].Versions, 1, tc.name)
				} else {
					require.ErrorIs(t, b.Rows[0].Err, rowstore.ErrCorrupt, tc.name)
				}
				last = max(last, b.TS)
			}
		}
		next := draw(t, s)
		require.Greater(t, next, last, tc.name)
		last = next
	}
	// A bad group fails alone.
	both := coalesce.Together{Groups: []rowstore.Group{onePut("", "1")}, Begins: []rowstore.SnapshotRead{beginOf("row", "c")}, Draws: []int{1}}
	s.together(t.Context(), &both)
	require.ErrorIs(t, both.GroupErr, rowstore.ErrInvalid)
	require.NoError(t, both.BeginErr)
	require.NoError(t, both.DrawErr)
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// The connection of a run breaks after it left: nobody knows what the groups did, and begins
// and draws are sent again.
func TestTogetherOverABrokenConnection(t *testing.T) {
	t.Parallel()
	var silent atomic.Bool
	var marked atomic.Int64
	broken := make(chan struct{}, 100)
	c := program(t, &goredis.Options{Addr: hostOf(t, testserver.Redis(t)), Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return breaks{deaf{conn, &silent, &marked}, broken}, nil
	}})
	s := openNew(t, c, Options{NoCoalesce: true}).direct
	ask := func(row string) *coalesce.Together {
		return &coalesce.Together{
			Groups: []rowstore.Group{onePut(row, mark)}, Begins: []rowstore.SnapshotRead{beginOf(row, "c")}, Draws: []int{1},
		}
	}
	warm := ask("warm")
	s.together(t.Context(), warm)
	require.NoError(t, warm.GroupErr)
	marked.Store(0)
	silent.Store(true)
	both := ask("r")
	s.together(t.Context(), both)
	require.ErrorIs(t, both.GroupErr, rowstore.ErrAmbiguous)
	require.EqualValues(t, 1, marked.Load(), "the groups left once")
	require.NoError(t, both.BeginErr)
	require.NoError(t, both.DrawErr)
	require.Len(t, both.Begun, 1)
	require.Len(t, both.Firsts, 1)
}

// breaks is a connection that is deaf once, for all.
type breaks struct {
	deaf
	broken chan struct{}
}

func (b breaks) Read(p []byte) (int, error) {
	n, err := b.deaf.Read(p)
	if err != nil {
		b.silent.Store(false)
	}
	return n, err
}

// A server that is silent makes the groups ambiguous and the begins not, whoever gives up first.
func TestTogetherOnASilentServer(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]time.Duration{"the store gives up": time.Minute, "the caller gives up": 50 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := testserver.NewRedis(t, nil)
			s := bare(t, with(t, srv.URL, "read_timeout", "2s", "write_timeout", "2s"))
			require.NoError(t, s.groupOne(onePut("warm", "1")))
			require.NoError(t, srv.Pause())
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			both := coalesce.Together{Groups: []rowstore.Group{onePut("r", "1")}, Begins: []rowstore.SnapshotRead{beginOf("r", "c")}, Draws: []int{1}}
			s.together(ctx, &both)
			require.ErrorIs(t, both.GroupErr, rowstore.ErrAmbiguous)
			for _, err := range []error{both.BeginErr, both.DrawErr} {
				require.NotErrorIs(t, err, rowstore.ErrAmbiguous)
				if limit < time.Second {
					require.ErrorIs(t, err, context.DeadlineExceeded)
				} else {
					require.ErrorIs(t, err, rowstore.ErrUnavailable)
				}
			}
			require.NoError(t, srv.Resume())
		})
	}
}

// A request that came too late by a wrong estimate of the server's clock is sent once more. If
// it is late again, the groups fail, and begins have no expiry.
func TestTogetherTooLate(t *testing.T) {
	t.Parallel()
	s := bare(t, with(t, testserver.Redis(t)))
	client, err := s.nodes.of(t.Context(), 0)
	require.NoError(t, err)
	clock, err := s.clockOf(t.Context(), client)
	require.NoError(t, err)
	ask := func(row string) *coalesce.Together {
		return &coalesce.Together{Groups: []rowstore.Group{onePut(row, "1")}, Begins: []rowstore.SnapshotRead{beginOf(row, "c")}, Draws: []int{1}}
	}
	clock.saw(1)
	both := ask("once")
	s.together(t.Context(), both)
	require.NoError(t, both.GroupErr)
	require.True(t, both.Outcomes[0].Applied)
	require.Len(t, both.Begun[0].Rows[0].Versions, 1)
	s.lateAfter = -time.Hour
	both = ask("twice")
	s.together(t.Context(), both)
	require.ErrorIs(t, both.GroupErr, errLate)
	require.NotErrorIs(t, both.GroupErr, rowstore.ErrAmbiguous)
	require.NoError(t, both.BeginErr)
	require.NoError(t, both.DrawErr)
	require.Empty(t, both.Begun[0].Rows[0].Versions)
}

// A server that is out of memory refuses the run. Groups that free memory are applied still.
func TestTogetherWithoutMemory(t *testing.T) {
	t.Parallel()
	srv := testserver.NewRedis(t, nil)
	c := admin(t, srv.URL)
	s := bare(t, with(t, srv.URL))
	apply(t, s, put("r", 1, "1"))
	require.NoError(t, c.ConfigSet(t.Context(), "maxmemory", "1").Err())
	both := coalesce.Together{
		Groups: []rowstore.Group{
			onePut("new", "1"),
			{Mutations: []rowstore.Mutation{{Table: "t", Row: "r", Edits: []rowstore.Edit{rowstore.Delete(rowstore.Write, "c", 1)}}}},
		},
		Begins: []rowstore.SnapshotRead{beginOf("r", "c")},
	}
	s.together(t.Context(), &both)
	require.NoError(t, both.GroupErr)
	require.ErrorContains(t, both.Outcomes[0].Err, "OOM")
	require.NotErrorIs(t, both.Outcomes[0].Err, rowstore.ErrAmbiguous)
	require.NoError(t, both.Outcomes[1].Err)
	require.True(t, both.Outcomes[1].Applied)
	require.NoError(t, both.BeginErr, "reads go on, and a transaction that reads begins")
	require.Len(t, both.Begun, 1)
	require.NoError(t, c.ConfigSet(t.Context(), "maxmemory", "0").Err())
	require.Empty(t, newest(t, s, "r"))
}

// A Cluster's store of one partition shares runs too.
func TestTogetherInACluster(t *testing.T) {
	t.Parallel()
	cl := testserver.NewRedisCluster(t, nil)
	s := bare(t, with(t, cl.URL, "partitions", "1"))
	for _, row := range []string{"a", "b"} {
		both := coalesce.Together{Groups: []rowstore.Group{onePut(row, "1")}, Begins: []rowstore.SnapshotRead{beginOf(row, "c")}, Draws: []int{2}}
		s.together(t.Context(), &both)
		require.NoError(t, both.GroupErr)
		require.NoError(t, both.BeginErr)
		require.NoError(t, both.DrawErr)
		requireRisen(t, &both)
		require.Len(t, both.Begun[0].Rows[0].Versions, 1)
	}
	require.Nil(t, coalesceOf(t, with(t, cl.URL, "partitions", "2")), "rows of several servers share no run")
}

// coalesceOf is what a store merges kinds by.
func coalesceOf(t *testing.T, url string) func(context.Context, *coalesce.Together) {
	t.Helper()
	s, ok := openURL(t, url).(*Store)
	require.True(t, ok)
	return s.direct.mergesKinds()
}
