package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/conformance"
	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/await"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// hostOf is the address in a server's URL.
func hostOf(t testing.TB, raw string) string {
	t.Helper()
	u, err := url.Parse(raw)
	require.NoError(t, err)
	return u.Host
}

// program returns a client as a program makes one: with the defaults of go-redis, which
// sends what failed again, and takes no notice of the deadlines of contexts.
func program(t testing.TB, o *goredis.Options) *goredis.Client {
	t.Helper()
	c := goredis.NewClient(o)
	atend.Do(t, func() { require.NoError(t, c.Close()) })
	return c
}

// ownPrefix is a prefix that no other test has.
func ownPrefix() string { return fmt.Sprintf("n%d-%d", time.Now().UnixNano(), prefixes.Add(1)) }

// openNew opens a store over a client and closes it after the test.
func openNew(t testing.TB, c goredis.UniversalClient, o Options) *Store {
	t.Helper()
	if o.Prefix == "" {
		o.Prefix = ownPrefix()
	}
	s, err := New(context.Background(), c, o)
	require.NoError(t, err)
	atend.Do(t, func() { require.NoError(t, s.Close()) })
	return s
}

func TestConformanceNew(t *testing.T) {
	t.Parallel()
	t.Run("Client", func(t *testing.T) {
		t.Parallel()
		c := program(t, &goredis.Options{Addr: hostOf(t, testserver.Redis(t)), ReadTimeout: 9 * time.Second})
		require.Equal(t, 3, c.Options().MaxRetries)
		require.Equal(t, 3, c.Options().Protocol)
		conformance.RunStore(t, func(t testing.TB) rowstore.Store { return openNew(t, c, Options{}) },
			conformance.Scale(0.1), conformance.Without(sizesElsewhere, conformance.Sizes))
	})
	t.Run("ClusterClient", func(t *testing.T) {
		t.Parallel()
		server := testserver.NewRedisCluster(t, map[string]string{"cluster-node-timeout": "15000"})
		c := goredis.NewClusterClient(&goredis.ClusterOptions{
			Addrs: []string{hostOf(t, strings.Split(server.URL, ",")[0])}, MaxRetries: 3, RouteRandomly: true, ReadTimeout: 9 * time.Second,
		})
		atend.Do(t, func() { require.NoError(t, c.Close()) })
		conformance.RunStore(t, func(t testing.TB) rowstore.Store { return openNew(t, c, Options{}) },
			conformance.Scale(0.1), conformance.Without("Client has them, and Cluster of TestConformance", conformance.Sizes, conformance.Conditions,
				conformance.Edits, conformance.Names, conformance.Arguments, conformance.Oracles, conformance.Splitting))
	})
}

// Connections break on the way of a client that sends again what failed.
func TestConformanceNewHooks(t *testing.T) {
	t.Parallel()
	direct := hostOf(t, testserver.Redis(t))
	hooks := func(t testing.TB) conformance.Hooked {
		proxy, err := conformance.NewProxy(direct)
		require.NoError(t, err)
		atend.Do(t, func() { require.NoError(t, proxy.Close()) })
		o := Options{Prefix: ownPrefix()}
		open := func(ctx context.Context) (*Store, error) {
			return New(ctx, program(t, &goredis.Options{Addr: proxy.Addr()}), o)
		}
		s, err := open(context.Background())
		require.NoError(t, err)
		return conformance.Hooked{
			Store: s,
			Reopen: func(ctx context.Context) (rowstore.Store, error) {
				again, err := open(ctx)
				if err != nil {
					return nil, err
				}
				return again, nil
			},
			Break: proxy.Break,
		}
	}
	open := func(t testing.TB) rowstore.Store {
		return openNew(t, program(t, &goredis.Options{Addr: direct}), Options{})
	}
	conformance.RunHooks(t, open, conformance.WithHooks(hooks), conformance.Scale(0.2))
}

// deaf is a connection on which answers stop to come while the test says so. It counts
// the requests with a mark that were written meanwhile.
type deaf struct {
	net.Conn
	silent *atomic.Bool
	marked *atomic.Int64
}

const mark = "MARK-OF-THE-VALUE"

func (d deaf) Write(b []byte) (int, error) {
	d.marked.Add(int64(strings.Count(string(b), mark)))
	return d.Conn.Write(b)
}

func (d deaf) Read(b []byte) (int, error) {
	if d.silent.Load() {
		_ = d.Conn.Close()
		return 0, io.EOF
	}
	return d.Conn.Read(b)
}

// A write leaves once, though the client would send it three times more.
func TestNewSendsWritesOnce(t *testing.T) {
	t.Parallel()
	addr := hostOf(t, testserver.Redis(t))
	var silent atomic.Bool
	var marked atomic.Int64
	c := program(t, &goredis.Options{Addr: addr, Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return deaf{conn, &silent, &marked}, nil
	}})
	s := openNew(t, c, Options{NoCoalesce: true})
	// One call is one command, more than maxRowsPerCall rows are a pipeline.
	for _, rows := range []int{1, maxRowsPerCall + 1} {
		muts := make([]rowstore.Mutation, rows)
		for i := range muts {
			muts[i] = put(fmt.Sprint(i), 1, "quiet")
		}
		_, err := s.Apply(context.Background(), muts, rowstore.ApplyOptions{})
		require.NoError(t, err, "the scripts are there, and the clock is known")
		muts[0] = put("0", 2, mark)
		marked.Store(0)
		silent.Store(true)
		_, err = s.Apply(context.Background(), muts, rowstore.ApplyOptions{})
		silent.Store(false)
		require.ErrorIs(t, err, rowstore.ErrAmbiguous)
		require.EqualValues(t, 1, marked.Load(), "%d rows", rows)
	}
}

// again is a hook that runs every command twice.
type again struct{}

func (again) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (again) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		_ = fmt.Sprint(cmd.Args()...) // as one that logs does
		return errors.Join(next(ctx, cmd), next(ctx, cmd))
	}
}

func (again) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		return errors.Join(next(ctx, cmds), next(ctx, cmds))
	}
}

// Hooks of the client do not see the store's commands. A hook that did, and repeated them,
// could not repeat a write, and would not see the rows when it prints the command.
func TestNewWithAHookThatRepeats(t *testing.T) {
	t.Parallel()
	addr := hostOf(t, testserver.Redis(t))
	o := Options{Prefix: ownPrefix(), NoCoalesce: true}
	plain := openNew(t, program(t, &goredis.Options{Addr: addr}), o)
	apply(t, plain, put("r", 1, "1"))
	c := program(t, &goredis.Options{Addr: addr})
	s := openNew(t, c, o)
	apply(t, s, put("r", 2, "2"))
	c.AddHook(again{})
	apply(t, s, put("r", 3, "3"))
	hooked := program(t, &goredis.Options{Addr: addr})
	hooked.AddHook(again{})
	apply(t, openNew(t, hooked, o), put("r", 3, "3"))

	s = openNew(t, program(t, &goredis.Options{Addr: addr}), o)
	s.direct.nodes.(single).client.AddHook(again{})
	m := put("r", 4, "4")
	m.Conditions = []rowstore.Condition{rowstore.Absent(rowstore.Write, "c", 4)}
	err := tryApply(context.Background(), s, m)
	require.ErrorIs(t, err, rowstore.ErrAmbiguous)
	require.ErrorIs(t, err, errSentTwice)
	require.Equal(t, "4", newest(t, plain, "r"))
	require.NotContains(t, fmt.Sprint(&payload{b: []byte(mark)}), mark)
}

// watching is a hook that sees commands, and could change their keys. It tells their names but
// for those by which go-redis makes a connection.
type watching struct{ seen chan string }

func (watching) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (w watching) see(cmd goredis.Cmder) {
	if name := cmd.Name(); name != "hello" && name != "client" {
		w.seen <- name
	}
}

func (w watching) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		w.see(cmd)
		return next(ctx, cmd)
	}
}

func (w watching) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		for _, cmd := range cmds {
			w.see(cmd)
		}
		return next(ctx, cmds)
	}
}

// No hook of the client is called for a command of the store's. So none can give its keys a prefix,
// say, which the store would not notice. If go-redis ever calls them, this test tells.
func TestNewCallsNoHooks(t *testing.T) {
	t.Parallel()
	c := program(t, &goredis.Options{Addr: hostOf(t, testserver.Redis(t))})
	seen := make(chan string, 100)
	c.AddHook(watching{seen})
	require.NoError(t, c.Ping(t.Context()).Err())
	require.Equal(t, "ping", await.Value(t.Context(), t, seen, nil), "the program's own command")
	s := openNew(t, c, Options{Prefix: ownPrefix(), NoCoalesce: true})
	apply(t, s, put("r", 1, "1"))
	require.Equal(t, "1", newest(t, s, "r"))
	_, err := s.Oracle().Draw(t.Context(), 1)
	require.NoError(t, err)
	for _, err := range s.Tables(t.Context()) {
		require.NoError(t, err)
	}
	for _, err := range s.Scan(t.Context(), rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{{Family: rowstore.Write, To: oracle.Max}}}) {
		require.NoError(t, err)
	}
	_, err = s.Report(t.Context())
	require.NoError(t, err)
	listening, stop := context.WithCancel(t.Context())
	require.ErrorIs(t, s.Listen(listening, func(rowstore.Wake) { stop() }), context.Canceled)
	require.Empty(t, seen)
}

// Who closes a store that another goroutine is closing may then close the client: nothing
// of the store still uses it.
func TestSecondCloseWaits(t *testing.T) {
	t.Parallel()
	s := openNew(t, program(t, &goredis.Options{Addr: hostOf(t, testserver.Redis(t))}), Options{Prefix: ownPrefix(), NoCoalesce: true})
	require.NoError(t, s.direct.begin(t.Context()))
	end := sync.OnceFunc(s.direct.end)
	defer end() // before the Close of the cleanup, which waits for it
	first := make(chan error, 1)
	go func() { first <- s.Close() }()
	require.Eventually(t, s.direct.closed.Load, time.Minute, time.Millisecond)
	var left atomic.Bool
	time.AfterFunc(50*time.Millisecond, func() {
		left.Store(true)
		end()
	})
	require.NoError(t, s.Close())
	require.True(t, left.Load(), "a call was under way")
	require.NoError(t, await.Value(t.Context(), t, first, nil))
}

// Nothing of the client's own timeouts keeps a call waiting, nor Close.
func TestNewWithoutTimeouts(t *testing.T) {
	t.Parallel()
	srv := testserver.NewRedis(t, nil)
	c := program(t, &goredis.Options{Addr: hostOf(t, srv.URL), ReadTimeout: -1, WriteTimeout: -1})
	s := openNew(t, c, Options{ReadTimeout: 300 * time.Millisecond, WriteTimeout: 300 * time.Millisecond})
	apply(t, s, put("r", 1, "before"))
	require.NoError(t, srv.Pause())
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := tryNewest(ctx, s, "r")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Error(t, tryApply(context.Background(), s, put("r", 2, "late")))
	_, err = tryNewest(context.Background(), s, "r")
	require.ErrorIs(t, err, rowstore.ErrUnavailable)
	require.NoError(t, s.Close())
	require.NoError(t, srv.Resume())
	require.NoError(t, c.Ping(context.Background()).Err(), "the client is open still, and waits as it likes")
}

// A client that may have no more connections refuses a call at once, which may pass by itself.
func TestNewWithAnExhaustedPool(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c := program(t, &goredis.Options{Addr: hostOf(t, testserver.Redis(t)), PoolSize: 10, MaxActiveConns: 1})
	s := openNew(t, c, Options{Prefix: ownPrefix()})
	apply(t, s, put("r", 1, "v"))
	busy := c.Conn() // takes the one connection with its first command
	require.NoError(t, busy.Ping(ctx).Err())
	_, err := tryNewest(ctx, s, "r")
	require.ErrorIs(t, err, goredis.ErrPoolExhausted)
	require.ErrorIs(t, err, rowstore.ErrUnavailable)
	err = tryApply(ctx, s, put("r", 2, "w"))
	require.ErrorIs(t, err, rowstore.ErrUnavailable)
	require.NotErrorIs(t, err, rowstore.ErrAmbiguous, "nothing was sent")
	require.NoError(t, busy.Close())
	require.Equal(t, "v", newest(t, s, "r"))
}

func TestNewLeavesTheClientOpen(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	c := program(t, &goredis.Options{Addr: hostOf(t, testserver.Redis(t)), PoolSize: 2})
	o := Options{Prefix: ownPrefix()}
	s := openNew(t, c, o)
	apply(t, s, put("r", 1, "v"))
	listening, done := make(chan struct{}), make(chan error, 1)
	var first atomic.Bool
	go func() {
		done <- s.Listen(ctx, func(rowstore.Wake) {
			if first.CompareAndSwap(false, true) {
				close(listening)
			}
		})
	}()
	await.Value(ctx, t, listening, done)
	require.NoError(t, s.Close())
	require.ErrorIs(t, await.Value(ctx, t, done, nil), rowstore.ErrClosed)
	require.NoError(t, s.Close())
	_, err := tryNewest(ctx, s, "r")
	require.ErrorIs(t, err, rowstore.ErrClosed)
	require.NoError(t, c.Ping(ctx).Err())
	require.Equal(t, "v", newest(t, openNew(t, c, o), "r"))
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	addr := hostOf(t, testserver.Redis(t))
	c := program(t, &goredis.Options{Addr: addr})
	ring := goredis.NewRing(&goredis.RingOptions{Addrs: map[string]string{"a": addr}})
	atend.Do(t, func() { require.NoError(t, ring.Close()) })
	cluster := func(o goredis.ClusterOptions) *goredis.ClusterClient {
		o.Addrs = []string{addr}
		cc := goredis.NewClusterClient(&o)
		atend.Do(t, func() { require.NoError(t, cc.Close()) })
		return cc
	}
	for _, tc := range []struct {
		name   string
		client goredis.UniversalClient
		opts   Options
		says   string
	}{
		{"nil", nil, Options{}, "nil"},
		{"a nil Client", (*goredis.Client)(nil), Options{}, "nil"},
		{"a nil ClusterClient", (*goredis.ClusterClient)(nil), Options{}, "nil"},
		{"a Ring", ring, Options{}, "Ring"},
		{"another client", struct{ goredis.UniversalClient }{c}, Options{}, "struct"},
		{"an address", c, Options{Addrs: []string{addr}}, "Options.Addrs"},
		{"a database", c, Options{DB: 1}, "Options.DB"},
		{"a password", c, Options{Password: "x"}, "Options.Password"},
		{"a mode", c, Options{Mode: Standalone}, "Options.Mode"},
		{"a pool", c, Options{PoolSize: 1}, "Options.PoolSize"},
		{"braces", c, Options{Prefix: "{}"}, "braces"},
		{"a long timeout", c, Options{ReadTimeout: time.Minute}, "read timeout"},
		{"a Cluster without a timeout", cluster(goredis.ClusterOptions{ReadTimeout: -1}), Options{}, "ReadTimeout"},
	} {
		_, err := New(context.Background(), tc.client, tc.opts)
		require.ErrorIs(t, err, rowstore.ErrInvalid, tc.name)
		require.ErrorContains(t, err, tc.says, tc.name)
	}
	_, err := New(context.Background(), cluster(goredis.ClusterOptions{}), Options{})
	require.ErrorContains(t, err, "cluster", "one server is no Cluster")
	gone := goredis.NewClient(&goredis.Options{Addr: addr})
	require.NoError(t, gone.Close())
	_, err = New(context.Background(), gone, Options{})
	require.ErrorIs(t, err, goredis.ErrClosed)
	require.ErrorIs(t, err, rowstore.ErrClosed)
}

// A program that closes its client before the store gets an error that says so.
func TestNewWithAClientThatIsClosedTooSoon(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	c := goredis.NewClient(&goredis.Options{Addr: hostOf(t, testserver.Redis(t))})
	s := openNew(t, c, Options{Prefix: ownPrefix()})
	apply(t, s, put("r", 1, "v"))
	require.NoError(t, c.Close())
	_, err := tryNewest(ctx, s, "r")
	require.ErrorIs(t, err, rowstore.ErrClosed)
	require.ErrorIs(t, tryApply(ctx, s, put("r", 2, "w")), rowstore.ErrClosed)
	require.NotErrorIs(t, tryApply(ctx, s, put("r", 2, "w")), rowstore.ErrAmbiguous)
	_, err = s.Oracle().Draw(ctx, 1)
	require.ErrorIs(t, err, rowstore.ErrClosed)
	require.NoError(t, s.Close())
}

// A transaction that begins with several cells of a row names the row once for eight of them,
// and gets each.
func TestBeginNamesARowOnce(t *testing.T) {
	t.Parallel()
	var silent atomic.Bool
	var marked atomic.Int64
	c := program(t, &goredis.Options{Addr: hostOf(t, testserver.Redis(t)), Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return deaf{conn, &silent, &marked}, nil
	}})
	s := openNew(t, c, Options{NoCoalesce: true})
	for columns := 1; columns <= 2*beginAtOnce+1; columns++ {
		m := rowstore.Mutation{Table: "t", Row: mark}
		read := rowstore.RowRead{Table: "t", Row: mark}
		for i := range columns {
			name := fmt.Sprintf("c%02d", i)
			if i%3 != 2 {
				m.Edits = append(m.Edits, rowstore.Put(rowstore.Write, name, rowstore.Timestamp(columns), []byte(name)))
			}
			read.Selectors = append(read.Selectors, rowstore.Selector{Family: rowstore.Write, Column: name, To: rowstore.AssignedTimestamp, Limit: 1})
		}
		apply(t, s, m)
		ask := []rowstore.SnapshotRead{{Reads: []rowstore.RowRead{read, {Table: "t", Row: "absent", Selectors: read.Selectors}}}}
		_, err := s.ReadSnapshot(t.Context(), ask)
		require.NoError(t, err, "the script is there")
		marked.Store(0)
		got, err := s.ReadSnapshot(t.Context(), ask)
		require.NoError(t, err)
		require.EqualValues(t, (columns+beginAtOnce-1)/beginAtOnce, marked.Load(), "%d columns", columns)
		require.Len(t, got[0].Rows[0].Versions, len(m.Edits))
		for i, v := range got[0].Rows[0].Versions {
			require.Equal(t, m.Edits[i].Column, v.Column)
			require.Equal(t, v.Column, string(v.Value))
		}
		require.Empty(t, got[0].Rows[1].Versions)
	}
}

// Every call of a closed store says that it is closed, also one that has nothing to ask.
func TestSplitOfAClosedStore(t *testing.T) {
	t.Parallel()
	s := bare(t, with(t, testserver.Redis(t)))
	for _, n := range []int{1, 2} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, err := s.Split(ctx, "t", n)
		require.NoError(t, err)
		cancel()
		_, err = s.Split(ctx, "t", n)
		require.ErrorIs(t, err, context.Canceled)
	}
	require.NoError(t, s.Close())
	for _, n := range []int{1, 2} {
		_, err := s.Split(t.Context(), "t", n)
		require.ErrorIs(t, err, rowstore.ErrClosed, "%d parts", n)
	}
}
