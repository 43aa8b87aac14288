package redis

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/await"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// follow makes a server a replica of another and waits until it has everything.
func follow(t testing.TB, c *goredis.Client, primary *testserver.Server) {
	t.Helper()
	ctx := context.Background()
	require.NoError(t, c.ReplicaOf(ctx, primary.Host, strconv.Itoa(primary.Port)).Err())
	require.Eventually(t, func() bool {
		role, err := c.Do(ctx, "ROLE").Slice()
		return err == nil && role[0] == "slave" && role[3] == "connected"
	}, 60*time.Second, 10*time.Millisecond)
}

// promote makes a server a primary.
func promote(t testing.TB, c *goredis.Client) {
	t.Helper()
	require.NoError(t, c.ReplicaOf(context.Background(), "NO", "ONE").Err())
}

var allVersions = []rowstore.Selector{{Family: rowstore.Write, Column: rowstore.AllColumns, To: maxTS}}

// everyCall makes each call of a store once and returns its error by name.
func everyCall(ctx context.Context, s *direct) map[string]error {
	errs := map[string]error{}
	_, errs["Read"] = tryNewest(ctx, s, "r")
	read := func(name string, reads ...rowstore.RowRead) {
		rows, err := s.Read(ctx, reads)
		if err == nil {
			err = rows[0].Err
		}
		errs[name] = err
	}
	whole := rowstore.RowRead{Table: "t", Row: "r", Selectors: allVersions}
	read("Read of all columns", whole)
	read("Read of several rows", whole, rowstore.RowRead{Table: "t", Row: "q", Selectors: allVersions})
	_, errs["Read in pieces"] = s.readWide(ctx, &whole)
	errs["Scan"] = nil
	for _, err := range s.Scan(ctx, rowstore.ScanRange{Table: "t", Selectors: allVersions}) {
		errs["Scan"] = err
	}
	for _, err := range s.Tables(ctx) {
		errs["Tables"] = err
	}
	_, errs["Draw"] = s.Oracle().Draw(ctx, 1)
	_, errs["ReadSnapshot"] = s.ReadSnapshot(ctx, []rowstore.SnapshotRead{{Reads: []rowstore.RowRead{{Table: "t", Row: "r", Selectors: []rowstore.Selector{
		{Family: rowstore.Write, Column: "c", To: rowstore.AssignedTimestamp, Limit: 1},
	}}}}})
	errs["Apply"] = tryApply(ctx, s, put("r", 9, "lost"))
	group := func(name string, draw bool) {
		out, err := s.Group(ctx, []rowstore.Group{{Mutations: []rowstore.Mutation{put("r", 9, "lost")}, AssignTimestamp: draw}})
		if err == nil {
			err = out[0].Err
		}
		errs[name] = err
	}
	group("Group", false)
	group("Group with AssignTimestamp", true)
	_, errs["Split"] = s.Split(ctx, "t", 4)
	short, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	errs["Listen"] = s.Listen(short, func(rowstore.Wake) { cancel() })
	return errs
}

// TestDemoted makes a replica of the server behind the store's address, under its
// open connections: no call is answered, whether the replica takes writes or not.
func TestDemoted(t *testing.T) {
	t.Parallel()
	for _, readOnly := range []string{"yes", "no"} {
		t.Run("replica-read-only "+readOnly, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			one := testserver.NewRedis(t, map[string]string{"replica-read-only": readOnly})
			two := testserver.NewRedis(t, map[string]string{"replica-read-only": readOnly})
			s := bare(t, with(t, one.URL, "partitions", "3"))
			apply(t, s, put("r", 1, "old"))
			apply(t, s, put("q", 1, "old"))
			first, second := admin(t, one.URL), admin(t, two.URL)
			follow(t, second, one)
			promote(t, second)

			listening := make(chan struct{})
			lost := make(chan error, 1)
			go func() {
				var once bool
				lost <- s.Listen(ctx, func(rowstore.Wake) {
					if !once {
						once = true
						close(listening)
					}
				})
			}()
			await.Value(ctx, t, listening, lost)
			follow(t, first, two)
			for name, err := range everyCall(ctx, s) {
				require.ErrorIs(t, err, rowstore.ErrUnavailable, name)
				require.NotErrorIs(t, err, rowstore.ErrAmbiguous, name)
				require.ErrorContains(t, err, "replica", name)
			}
			select {
			case err := <-lost:
				require.ErrorIs(t, err, rowstore.ErrUnavailable)
			case <-time.After(60 * time.Second):
				t.Fatal("the listener did not hear of it")
			}
			err := openError(t, one.URL+"?prefix="+s.opts.Prefix)
			require.ErrorIs(t, err, rowstore.ErrUnavailable)

			promote(t, first)
			require.Eventually(t, func() bool {
				v, err := tryNewest(ctx, s, "r")
				return err == nil && v == "old"
			}, 30*time.Second, time.Millisecond)
			for name, err := range everyCall(ctx, s) {
				if name == "Listen" {
					require.ErrorIs(t, err, context.Canceled)
					continue
				}
				require.NoError(t, err, name)
			}
		})
	}
}

// TestReadsWhereWritesAreRefused reads on a primary that refuses everything that
// might write.
func TestReadsWhereWritesAreRefused(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	srv := testserver.NewRedis(t, nil)
	s := bare(t, with(t, srv.URL))
	apply(t, s, put("r", 1, "v"))
	c := admin(t, srv.URL)
	require.NoError(t, c.ConfigSet(ctx, "min-replicas-to-write", "1").Err())
	err := tryApply(ctx, s, put("r", 2, "w"))
	require.ErrorIs(t, err, rowstore.ErrUnavailable)
	require.ErrorContains(t, err, "too few replicas")
	require.NotErrorIs(t, err, rowstore.ErrAmbiguous)
	require.Equal(t, "v", newest(t, s, "r"))
	n := 0
	for _, err := range s.Scan(ctx, rowstore.ScanRange{Table: "t", Selectors: allVersions}) {
		require.NoError(t, err)
		n++
	}
	require.Equal(t, 1, n)
	// Nobody begins there: a primary that was cut off from its replicas hands out no snapshots beside a new one.
	_, err = s.Oracle().Draw(ctx, 1)
	require.ErrorIs(t, err, rowstore.ErrUnavailable)
	_, err = s.ReadSnapshot(ctx, []rowstore.SnapshotRead{beginOf("r", "c")})
	require.ErrorIs(t, err, rowstore.ErrUnavailable)
	require.NoError(t, c.ConfigSet(ctx, "min-replicas-to-write", "0").Err())
	apply(t, s, put("r", 2, "w"))
	require.Equal(t, "w", newest(t, s, "r"))
}

// TestOracleAfterDemotion draws on a server that was demoted, lost what it had
// drawn, and became the primary again, before the other one has drawn: its process
// is the same all the time, and its clock an hour behind the oracle.
func TestOracleAfterDemotion(t *testing.T) {
	t.Parallel()
	one, two := testserver.NewRedis(t, nil), testserver.NewRedis(t, nil)
	s := bare(t, with(t, one.URL))
	first, second := admin(t, one.URL), admin(t, two.URL)
	setOracle(t, first, s, func(ms, bound int64) (int64, int64) { return ms + 3_600_000, bound + 3_600_000 })
	follow(t, second, one)
	last := draw(t, s)
	// WAIT is about what its own connection wrote, and the draw came over another one.
	conn := first.Conn()
	defer func() { require.NoError(t, conn.Close()) }()
	require.NoError(t, conn.Set(context.Background(), s.parts[0].tag+"after", "", 0).Err())
	n, err := conn.Do(context.Background(), "WAIT", 1, 30_000).Int()
	require.NoError(t, err)
	require.Equal(t, 1, n)
	promote(t, second)
	for range 1000 {
		last = draw(t, s)
	}
	follow(t, first, two)
	promote(t, first)
	require.Greater(t, draw(t, s), last)

	// Nothing was lost: the oracle counts on.
	a := draw(t, s)
	require.Equal(t, a+1, draw(t, s))
}

// TestOracleAfterReload loads an old copy of all data into a running server. Only
// the clock tells then how far the oracle was.
func TestOracleAfterReload(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	srv := testserver.NewRedis(t, map[string]string{"enable-debug-command": "yes"})
	s := bare(t, with(t, srv.URL))
	c := admin(t, srv.URL)
	last := draw(t, s)
	old, err := c.Get(ctx, s.okey).Result()
	require.NoError(t, err)
	for range 100 {
		last = draw(t, s)
	}
	// With the log on, the server writes it out first, and nothing is lost.
	require.NoError(t, c.Do(ctx, "DEBUG", "LOADAOF").Err())
	next := draw(t, s)
	require.Greater(t, next, last)
	// An older state under the same run of the server: the clock is ahead of it.
	last = next
	require.NoError(t, c.Set(ctx, s.okey, old, 0).Err())
	require.Eventually(t, func() bool {
		now, err := c.Time(ctx).Result()
		return err == nil && now.UnixMilli() > last.Time().UnixMilli()
	}, 30*time.Second, time.Millisecond)
	require.Greater(t, draw(t, s), last)
}

// TestClusterMastersAreChecked gives one master of a Cluster a bad setting: Open
// refuses it, wherever it is in the list, and warns of what it only warns of.
func TestClusterMastersAreChecked(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	cl := testserver.NewRedisCluster(t, map[string]string{"appendfsync": "always"})
	url := with(t, cl.URL)
	s := bare(t, url)
	rep, err := s.Report(ctx)
	require.NoError(t, err)
	require.Empty(t, rep.Warnings)
	for i, addr := range cl.Addrs {
		c := admin(t, "redis://"+addr)
		require.NoError(t, c.ConfigSet(ctx, "maxmemory-policy", "allkeys-lru").Err())
		require.ErrorContains(t, openError(t, url), "noeviction", "master %d", i)
		require.ErrorContains(t, openError(t, with(t, cl.URL, "partitions", "1")), "noeviction", "master %d", i)
		require.NoError(t, c.ConfigSet(ctx, "maxmemory-policy", "noeviction").Err())

		require.NoError(t, c.ConfigSet(ctx, "appendfsync", "no").Err())
		rep, err := s.Report(ctx)
		require.NoError(t, err)
		require.Len(t, rep.Warnings, 1)
		require.Contains(t, rep.Warnings[0], "appendfsync is no")
		require.Contains(t, rep.Warnings[0], addr)
		require.NoError(t, c.ConfigSet(ctx, "appendfsync", "always").Err())
		require.NoError(t, c.ConfigSet(ctx, "no-appendfsync-on-rewrite", "yes").Err())
		rep, err = s.Report(ctx)
		require.NoError(t, err)
		require.Contains(t, strings.Join(rep.Warnings, "\n"), "no-appendfsync-on-rewrite")
		require.NoError(t, c.ConfigSet(ctx, "no-appendfsync-on-rewrite", "no").Err())
	}

	// The rows lie on more than one server, and the store knows on which.
	seen := map[string]bool{}
	for i := range 200 {
		shard := s.Shard("t", strconv.Itoa(i))
		require.Contains(t, cl.Addrs, shard)
		seen[shard] = true
	}
	require.Len(t, seen, 3)
}

// TestLaterMasterIsChecked makes a server with a bad setting a master of a Cluster
// while a store is open: none of its rows is touched there until it is mended.
func TestLaterMasterIsChecked(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	cl := testserver.NewRedisCluster(t, nil)
	s := bare(t, with(t, cl.URL, "partitions", "1"))
	apply(t, s, put("r", 1, "v"))
	slot, err := admin(t, "redis://"+cl.Addrs[0]).ClusterKeySlot(ctx, s.parts[0].tables).Result()
	require.NoError(t, err)
	from := -1
	for i, a := range cl.Addrs {
		if a == s.Shard("t", "r") {
			from = i
		}
	}
	require.GreaterOrEqual(t, from, 0)
	to := (from + 1) % len(cl.Addrs)
	old, next := admin(t, "redis://"+cl.Addrs[from]), admin(t, "redis://"+cl.Addrs[to])
	require.NoError(t, next.ConfigSet(ctx, "maxmemory-policy", "allkeys-lru").Err())
	// The store's connections to it are gone, as those to a new server would not be there yet.
	require.NoError(t, next.Do(ctx, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err())
	id, err := next.ClusterMyID(ctx).Result()
	require.NoError(t, err)
	from0, err := old.ClusterMyID(ctx).Result()
	require.NoError(t, err)
	require.NoError(t, next.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", from0).Err())
	require.NoError(t, old.Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", id).Err())
	host, port := cl.Nodes[to].Host, strconv.Itoa(cl.Nodes[to].Port)
	for {
		keys, err := old.ClusterGetKeysInSlot(ctx, int(slot), 100).Result()
		require.NoError(t, err)
		if len(keys) == 0 {
			break
		}
		for _, k := range keys {
			require.NoError(t, old.Migrate(ctx, host, port, k, 0, 5*time.Second).Err())
		}
	}
	for _, c := range []*goredis.Client{next, old} {
		require.NoError(t, c.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", id).Err())
	}
	require.ErrorContains(t, tryApply(ctx, s, put("r", 2, "w")), "noeviction")
	_, err = tryNewest(ctx, s, "r")
	require.ErrorContains(t, err, "noeviction")
	require.NoError(t, next.ConfigSet(ctx, "maxmemory-policy", "noeviction").Err())
	apply(t, s, put("r", 2, "w"))
	require.Equal(t, "w", newest(t, s, "r"))
}

// TestOpenDeadline opens a store on a server that is stopped.
func TestOpenDeadline(t *testing.T) {
	t.Parallel()
	srv := testserver.NewRedis(t, nil)
	url := with(t, srv.URL)
	require.NoError(t, srv.Pause())
	for _, u := range []string{url, strings.Replace(url, "redis://", "redis+cluster://", 1)} {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		_, err := OpenURL(ctx, u)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, rowstore.ErrUnavailable)
	}
	require.NoError(t, srv.Resume())
}

// TestAway meets servers that are away, in ways that tell for certain that nothing
// was done.
func TestAway(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	srv := testserver.NewRedis(t, map[string]string{"appendfsync": "always", "enable-debug-command": "yes"})
	s := bare(t, with(t, srv.URL, "read_timeout", "2s"))
	apply(t, s, put("r", 1, "v"))

	// A script that runs for long.
	busy := admin(t, srv.URL)
	require.NoError(t, busy.ConfigSet(ctx, "busy-reply-threshold", "1").Err())
	running := make(chan struct{})
	go func() {
		defer close(running)
		_ = busy.Eval(ctx, "while true do end", nil).Err()
	}()
	require.Eventually(t, func() bool {
		err := tryApply(ctx, s, put("r", 2, "w"))
		return err != nil && strings.Contains(err.Error(), "BUSY")
	}, 30*time.Second, time.Millisecond)
	err := tryApply(ctx, s, put("r", 2, "w"))
	require.ErrorIs(t, err, rowstore.ErrUnavailable)
	require.NotErrorIs(t, err, rowstore.ErrAmbiguous)
	require.NoError(t, admin(t, srv.URL).ScriptKill(ctx).Err())
	<-running

	require.NoError(t, srv.Kill())
	require.Error(t, tryApply(ctx, s, put("r", 3, "w")))
	for name, err := range everyCall(ctx, s) {
		require.ErrorIs(t, err, rowstore.ErrUnavailable, name)
		require.NotErrorIs(t, err, rowstore.ErrAmbiguous, name)
	}
	require.ErrorIs(t, openError(t, srv.URL), rowstore.ErrUnavailable)
	require.NoError(t, srv.Start())
	require.Eventually(t, func() bool {
		_, err := tryNewest(ctx, s, "r")
		return err == nil
	}, 30*time.Second, time.Millisecond)

	// An answer that never comes says nothing of a write.
	require.NoError(t, srv.Pause())
	err = tryApply(ctx, s, put("r", 4, "w"))
	require.ErrorIs(t, err, rowstore.ErrAmbiguous)
	require.NotErrorIs(t, err, rowstore.ErrUnavailable)
	require.NoError(t, srv.Resume())
}

// A server loses the write of a draw of as many timestamps as one may ask for, and starts anew. Its clock is behind.
func TestLargeDrawIsLost(t *testing.T) {
	t.Parallel()
	srv := testserver.NewRedis(t, nil)
	u := with(t, srv.URL)
	s := bare(t, u)
	c := admin(t, u)
	setOracle(t, c, s, func(ms, _ int64) (int64, int64) {
		return ms + time.Hour.Milliseconds(), ms + time.Hour.Milliseconds() + 3000
	})
	lost, err := c.Get(t.Context(), s.okey).Result()
	require.NoError(t, err)
	first, err := s.Oracle().Draw(t.Context(), maxDraw)
	require.NoError(t, err)
	require.NoError(t, c.Set(t.Context(), s.okey, lost, 0).Err())
	require.NoError(t, srv.Stop())
	require.NoError(t, srv.Start())
	var next rowstore.Timestamp
	require.Eventually(t, func() bool { next, err = s.Oracle().Draw(t.Context(), 1); return err == nil }, time.Minute, time.Millisecond)
	require.Greater(t, next, first+maxDraw-1)
}
