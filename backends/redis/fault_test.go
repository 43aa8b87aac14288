package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/restarttest"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

const secret = "s3cr3t-pass"

// admin is a plain client of a test's server.
func admin(t testing.TB, raw string) *goredis.Client {
	t.Helper()
	o, err := ParseURL(raw)
	require.NoError(t, err)
	c := newClient(&o, o.Addrs[0], nil)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func put(row string, ts rowstore.Timestamp, value string) rowstore.Mutation {
	return rowstore.Mutation{Table: "t", Row: row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", ts, []byte(value))}}
}

// apply applies one mutation, and fails the test if it cannot.
func apply(t testing.TB, s rowstore.Store, m rowstore.Mutation) {
	t.Helper()
	require.NoError(t, tryApply(context.Background(), s, m))
}

func tryApply(ctx context.Context, s rowstore.Store, m rowstore.Mutation) error {
	out, err := s.Apply(ctx, []rowstore.Mutation{m}, rowstore.ApplyOptions{})
	if err == nil {
		err = out[0].Err
	}
	return err
}

// newest reads the newest write of a row, "" for none.
func newest(t testing.TB, s rowstore.Store, row string) string {
	t.Helper()
	v, err := tryNewest(context.Background(), s, row)
	require.NoError(t, err)
	return v
}

func tryNewest(ctx context.Context, s rowstore.Store, row string) (string, error) {
	rows, err := s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: row, Selectors: []rowstore.Selector{
		{Family: rowstore.Write, Column: "c", To: maxTS, Limit: 1},
	}}})
	if err != nil {
		return "", err
	}
	if rows[0].Err != nil {
		return "", rows[0].Err
	}
	if v := rows[0].Newest(rowstore.Write, "c"); v != nil {
		return string(v.Value), nil
	}
	return "", nil
}

// draw draws one timestamp through a store's oracle.
func draw(t testing.TB, s *direct) rowstore.Timestamp {
	t.Helper()
	ts, err := s.Oracle().Draw(context.Background(), 1)
	require.NoError(t, err)
	return ts
}

func openError(t *testing.T, raw string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s, err := OpenURL(ctx, raw)
	if err == nil {
		require.NoError(t, s.Close())
	}
	require.Error(t, err)
	require.NotContains(t, err.Error(), secret)
	return err
}

func TestScriptsSurviveFlush(t *testing.T) {
	t.Parallel()
	srv := testserver.NewRedis(t, nil)
	url := with(t, srv.URL)
	s := bare(t, url)
	c := admin(t, url)
	for i := range 3 {
		apply(t, s, put("r", rowstore.Timestamp(i+1), strconv.Itoa(i)))
		require.NoError(t, c.ScriptFlush(context.Background()).Err())
		require.Equal(t, strconv.Itoa(i), newest(t, s, "r"))
		require.NoError(t, c.ScriptFlush(context.Background()).Err())
		draw(t, s)
		require.NoError(t, c.ScriptFlush(context.Background()).Err())
	}
}

func TestRestart(t *testing.T) {
	t.Parallel()
	srv := testserver.NewRedis(t, map[string]string{"appendfsync": "always"})
	s := bare(t, with(t, srv.URL))
	last := draw(t, s)
	for round, down := range []func() error{srv.Stop, srv.Kill, srv.Kill} {
		value := "v" + strconv.Itoa(round)
		apply(t, s, put("r", rowstore.Timestamp(round+1), value))
		require.NoError(t, down())
		err := tryApply(context.Background(), s, put("r", 100, "lost"))
		require.Error(t, err)
		// The second try finds no server at all: nothing can have happened.
		err = tryApply(context.Background(), s, put("r", 100, "lost"))
		require.Error(t, err)
		require.NotErrorIs(t, err, rowstore.ErrAmbiguous)
		require.NoError(t, srv.Start())
		require.Eventually(t, func() bool {
			_, err := tryNewest(context.Background(), s, "r")
			return err == nil
		}, 30*time.Second, time.Millisecond)
		require.Equal(t, value, newest(t, s, "r"))
		next := draw(t, s)
		require.Greater(t, next, last)
		last = next
	}
}

// TestOracleAfterLoss puts the oracle's state back to what a crash would leave
// that lost the last writes, with a clock that is behind.
func TestOracleAfterLoss(t *testing.T) {
	t.Parallel()
	srv := testserver.NewRedis(t, nil)
	url := with(t, srv.URL)
	s := bare(t, url)
	c := admin(t, url)
	ctx := context.Background()

	// The clock is set back by an hour: the stored state is an hour ahead of it.
	setOracle(t, c, s, func(ms, bound int64) (int64, int64) { return ms + 3_600_000, bound + 3_600_000 })
	a := draw(t, s)
	b := draw(t, s)
	require.Equal(t, a+1, b, "the oracle counts on while its clock is behind")

	// A server that starts from a state that lacks the last seconds.
	lost, err := c.Get(ctx, s.okey).Result()
	require.NoError(t, err)
	for range 1000 {
		b = draw(t, s)
	}
	require.NoError(t, c.Set(ctx, s.okey, lost, 0).Err())
	require.NoError(t, srv.Stop())
	require.NoError(t, srv.Start())
	require.Eventually(t, func() bool {
		next, err := s.Oracle().Draw(ctx, 1)
		if err != nil {
			return false
		}
		require.Greater(t, next, b)
		return true
	}, 30*time.Second, time.Millisecond)

	// What is no oracle is refused.
	require.NoError(t, c.Set(ctx, s.okey, "x", 0).Err())
	_, err = s.Oracle().Draw(ctx, 1)
	require.ErrorContains(t, err, "not an oracle")
}

// setOracle changes the oracle's milliseconds and bound.
func setOracle(t testing.TB, c *goredis.Client, s *direct, f func(ms, bound int64) (int64, int64)) {
	t.Helper()
	ctx := context.Background()
	v, err := c.Get(ctx, s.okey).Result()
	require.NoError(t, err)
	num := func(s string) (n int64) {
		for i := range len(s) {
			n = n<<8 | int64(s[i])
		}
		return n
	}
	six := func(n int64) string {
		return string([]byte{byte(n >> 40), byte(n >> 32), byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
	}
	ms, bound := f(num(v[7:13]), num(v[16:22]))
	require.NoError(t, c.Set(ctx, s.okey, v[:7]+six(ms)+v[13:16]+six(bound)+v[22:], 0).Err())
}

func TestPause(t *testing.T) {
	t.Parallel()
	srv := testserver.NewRedis(t, nil)
	s := bare(t, with(t, srv.URL, "read_timeout", "300ms", "write_timeout", "300ms", "dial_timeout", "300ms"))
	apply(t, s, put("r", 1, "before"))
	require.NoError(t, srv.Pause())
	// With a deadline, with a cancellation, and with neither.
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	_, err := tryNewest(ctx, s, "r")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	cancel()
	ctx, cancel = context.WithCancel(context.Background())
	time.AfterFunc(50*time.Millisecond, cancel)
	err = tryApply(ctx, s, put("cancelled", 2, "x"))
	require.ErrorIs(t, err, context.Canceled)
	err = tryApply(context.Background(), s, put("late", 2, "x"))
	require.Error(t, err)
	for _, err := range s.Scan(context.Background(), rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{{Family: rowstore.Write, To: maxTS}}}) {
		require.Error(t, err)
	}
	require.NoError(t, srv.Resume())
	require.Eventually(t, func() bool {
		v, err := tryNewest(context.Background(), s, "r")
		return err == nil && v == "before"
	}, 30*time.Second, time.Millisecond)
	apply(t, s, put("r", 2, "after"))
	require.Equal(t, "after", newest(t, s, "r"))
}

// TestLateRequestsAreRefused sends a request whose time is over by the server's
// clock, as one that sat in a stopped server's socket.
func TestLateRequestsAreRefused(t *testing.T) {
	t.Parallel()
	s := bare(t, with(t, testserver.Redis(t)))
	ctx := context.Background()
	c, err := s.nodes.of(ctx, 0)
	require.NoError(t, err)
	clock, err := s.clockOf(ctx, c)
	require.NoError(t, err)
	// The store believes that the server is an hour behind: it learns better from
	// the refusal, and sends again what was certainly not applied.
	clock.saw(clock.after(0) - 3_600_000)
	apply(t, s, put("r", 1, "v"))
	require.Equal(t, "v", newest(t, s, "r"))
	// Once more, with no time at all: refused for good, and for certain.
	s.lateAfter = -time.Hour
	err = tryApply(ctx, s, put("r", 2, "late"))
	require.ErrorIs(t, err, errLate)
	require.NotErrorIs(t, err, rowstore.ErrAmbiguous)
	require.Equal(t, "v", newest(t, s, "r"))
}

// TestRefusals has servers and databases that Open does not take. It is long because it is
// a list of them, each with what makes it so and what is said of it.
func TestRefusals(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	srv := testserver.NewRedis(t, nil)
	url := with(t, srv.URL)
	c := admin(t, url)

	t.Run("Eviction", func(t *testing.T) {
		require.NoError(t, c.ConfigSet(ctx, "maxmemory-policy", "allkeys-lru").Err())
		err := openError(t, url)
		require.ErrorContains(t, err, "noeviction")
		require.NotErrorIs(t, err, rowstore.ErrInvalid, "the doctor makes no finding of what is wrong with the options")
		require.NoError(t, c.ConfigSet(ctx, "maxmemory-policy", "noeviction").Err())
	})
	t.Run("Partitions", func(t *testing.T) {
		url := with(t, srv.URL, "partitions", "3")
		o, err := ParseURL(url)
		require.NoError(t, err)
		s := bare(t, url)
		require.Len(t, s.parts, 3)
		o.Partitions = 4
		_, err = Open(ctx, o)
		require.ErrorContains(t, err, "has 3 partitions and not 4")
		require.ErrorIs(t, err, rowstore.ErrInvalid)
		o.Partitions, o.NoCoalesce = 0, true
		again, err := Open(ctx, o)
		require.NoError(t, err)
		require.Len(t, again.direct.parts, 3)
		require.NoError(t, again.Close())
		require.NoError(t, c.HSet(ctx, s.parts[0].tag+"m", "format", 9).Err())
		err = openError(t, url)
		require.ErrorIs(t, err, rowstore.ErrFormat)
		require.ErrorContains(t, err, "format version 9")
		_, err = New(ctx, c, Options{Prefix: o.Prefix})
		require.ErrorIs(t, err, rowstore.ErrFormat)
		require.NoError(t, c.Ping(ctx).Err(), "a New that failed leaves the client open")
	})
	t.Run("ForeignKeys", func(t *testing.T) {
		for i, kind := range []string{"m", "o", "t", "short oracle"} {
			url := with(t, srv.URL)
			o, err := ParseURL(url)
			require.NoError(t, err)
			tag := "{" + o.Prefix + ":0}"
			if i == 1 {
				require.NoError(t, c.RPush(ctx, tag+kind, "x").Err())
			} else if i == 3 {
				require.NoError(t, c.Set(ctx, tag+"o", "x", 0).Err())
			} else {
				require.NoError(t, c.Set(ctx, tag+kind, "x", 0).Err())
			}
			err = openError(t, url)
			require.ErrorIs(t, err, rowstore.ErrFormat)
			require.ErrorContains(t, err, "in use by something else")
		}
	})
	t.Run("Unreachable", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		addr := l.Addr().String()
		require.NoError(t, l.Close())
		err = openError(t, "redis://u:"+secret+"@"+addr)
		require.ErrorContains(t, err, "refused")
		err = openError(t, "redis://u:"+secret+"@no-such-host.invalid")
		require.ErrorContains(t, err, "no-such-host.invalid")
	})
	t.Run("TLSRefused", func(t *testing.T) {
		require.ErrorContains(t, openError(t, strings.Replace(url, "redis://", "rediss://", 1)), "tls")
	})
	t.Run("NotACluster", func(t *testing.T) {
		err := openError(t, strings.Replace(url, "redis://", "redis+cluster://", 1))
		require.ErrorIs(t, err, rowstore.ErrInvalid)
		require.ErrorContains(t, err, "does not run in cluster mode")
	})
}

// TestLostRecord loses all data of a server under an open store, which goes on: then
// Open says what happened and how to go on, and both ways work.
func TestLostRecord(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	srv := testserver.NewRedis(t, nil)
	url := with(t, srv.URL)
	c := admin(t, url)
	for round := range 3 {
		s := bare(t, url)
		require.NoError(t, c.FlushAll(ctx).Err())
		if round != 1 {
			draw(t, s)
		}
		if round != 2 {
			apply(t, s, put("r", 5, "since"))
		}
		err := openError(t, url)
		require.ErrorIs(t, err, rowstore.ErrCorrupt)
		require.ErrorContains(t, err, "lost its record")
		require.ErrorContains(t, err, "programs went on writing")
		record := s.parts[0].tag + "m"
		require.ErrorContains(t, err, "HSET "+record+" format 3 partitions N spread S")
		require.NoError(t, s.Close())
		if round == 0 {
			require.NoError(t, c.HSet(ctx, record, "format", formatVersion, "partitions", 1, "spread", spreadSlots).Err())
			require.Equal(t, "since", newest(t, bare(t, url), "r"))
			continue
		}
		keys, err := c.Keys(ctx, "{"+s.opts.Prefix+":*").Result()
		require.NoError(t, err)
		require.NotEmpty(t, keys)
		require.NoError(t, c.Del(ctx, keys...).Err())
		require.Empty(t, newest(t, bare(t, url), "r"))
	}
}

// readmeACL is the command with which the README makes a user of a store.
func readmeACL(t testing.TB, user, prefix string) (command []any) {
	t.Helper()
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, text, found := strings.Cut(string(readme), "ACL SETUSER app ")
	require.True(t, found)
	text, _, found = strings.Cut(text, "```")
	require.True(t, found)
	command = append(command, "ACL", "SETUSER", user)
	for _, rule := range strings.Fields(strings.NewReplacer("PREFIX", prefix, "PASSWORD", secret).Replace(text)) {
		command = append(command, rule)
	}
	return command
}

// requireWideRow writes a row that is too much for one run of a script, and has it read and scanned.
func requireWideRow(t testing.TB, s rowstore.Store) {
	t.Helper()
	ctx := context.Background()
	m := rowstore.Mutation{Table: "wide", Row: "r"}
	var picks []rowstore.Selector
	for _, column := range []string{"a", "b", "c"} {
		m.Edits = append(m.Edits, rowstore.Put(rowstore.Write, column, 1, bytes.Repeat([]byte(column), 600_000)))
		picks = append(picks, rowstore.Selector{Family: rowstore.Write, Column: column, To: maxTS, Limit: 1})
	}
	apply(t, s, m)
	rows, err := s.Read(ctx, []rowstore.RowRead{{Table: "wide", Row: "r", Selectors: picks}})
	require.NoError(t, err)
	require.NoError(t, rows[0].Err)
	require.Len(t, rows[0].Versions, 3)
	found := 0
	for row, err := range s.Scan(ctx, rowstore.ScanRange{Table: "wide", Selectors: allVersions}) {
		require.NoError(t, err)
		found += len(row.Versions)
	}
	require.Equal(t, 3, found)
}

// The number of the database may be above those that the server has.
func TestDatabaseOfTheServer(t *testing.T) {
	t.Parallel()
	o, err := ParseURL(with(t, testserver.Redis(t)))
	require.NoError(t, err)
	o.DB = 1 << 20
	_, err = Open(t.Context(), o)
	require.ErrorIs(t, err, rowstore.ErrInvalid)
	require.ErrorContains(t, err, "no database of that number")
	require.NotErrorIs(t, err, rowstore.ErrUnavailable)
	o.DB = math.MaxInt32 + 1
	_, err = Open(t.Context(), o)
	require.ErrorIs(t, err, rowstore.ErrInvalid)
}

// TestPermissionsOfTheREADME takes away what only the reading of a wide row needs: Open says at once that it is missing, and leaves
// the connections of a client that the program has as they were.
func TestPermissionsOfTheREADME(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	srv := testserver.NewRedis(t, nil)
	c := admin(t, srv.URL)
	for _, command := range []string{"watch", "unwatch", "multi", "exec", "hscan"} {
		t.Run(command, func(t *testing.T) {
			o, err := ParseURL(with(t, srv.URL))
			require.NoError(t, err)
			user := "no" + command
			require.NoError(t, c.Do(ctx, append(readmeACL(t, user, o.Prefix), "-"+command)...).Err())
			_ = bare(t, with(t, srv.URL, "prefix", o.Prefix)) // the store is there
			o.Username, o.Password = user, secret
			_, err = Open(ctx, o)
			require.ErrorIs(t, err, rowstore.ErrDenied)
			require.ErrorContains(t, err, "ermission")

			his := newClient(&o, o.Addrs[0], nil)
			defer func() { require.NoError(t, his.Close()) }()
			_, err = New(ctx, his, Options{Prefix: o.Prefix})
			require.ErrorIs(t, err, rowstore.ErrDenied)
			require.Equal(t, "PONG", his.Ping(ctx).Val(), "no transaction is open")
		})
	}
}

// A user who lacks a command is refused before there is a record, which says the number of partitions for good.
func TestNoRecordWithoutPermission(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	srv := testserver.NewRedis(t, nil)
	c := admin(t, srv.URL)
	for i, command := range []string{
		"get", "set", "mget", "hset", "hget", "hmget", "hgetall", "hdel", "hlen", "hexists", "hscan", "zadd", "zrem", "zcard", "zrange",
		"zrangebylex", "zrevrangebylex", "zremrangebylex", "sadd", "srem", "smembers", "exists", "type", "publish", "time", "info",
		"eval", "evalsha", "watch", "unwatch", "multi", "exec",
	} {
		o, err := ParseURL(with(t, srv.URL))
		require.NoError(t, err)
		user := fmt.Sprint("lacks", i)
		require.NoError(t, c.Do(ctx, append(readmeACL(t, user, o.Prefix), "-"+command)...).Err())
		o.Username, o.Password = user, secret
		_, err = Open(ctx, o)
		require.ErrorIs(t, err, rowstore.ErrDenied, command)
		require.Empty(t, c.Keys(ctx, "{"+o.Prefix+":*").Val(), "without %s", command)
	}
	// Keys of the last partition may be missing, and the channel.
	o, err := ParseURL(with(t, srv.URL))
	require.NoError(t, err)
	require.NoError(t, c.Do(ctx, "ACL", "SETUSER", "few", "on", ">"+secret, "&*", "+@all", "~{"+o.Prefix+":[0-9]}*").Err())
	require.NoError(t, c.Do(ctx, "ACL", "SETUSER", "deaf", "on", ">"+secret, "resetchannels", "+@all", "~*").Err())
	for _, user := range []string{"few", "deaf"} {
		o.Username, o.Password, o.Partitions = user, secret, 12
		_, err = Open(ctx, o)
		require.ErrorIs(t, err, rowstore.ErrDenied, user)
		require.Empty(t, c.Keys(ctx, "{"+o.Prefix+":*").Val(), user)
	}
}

func TestPasswordsAndPermissions(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	srv := testserver.NewRedis(t, nil)
	url := with(t, srv.URL)
	o, err := ParseURL(url)
	require.NoError(t, err)
	c := admin(t, url)
	addr := o.Addrs[0]
	require.NoError(t, c.Do(ctx, readmeACL(t, "app", o.Prefix)...).Err())
	good := "redis://app:" + secret + "@" + addr + "/?prefix=" + o.Prefix
	s := openURL(t, good)
	apply(t, s, put("r", 1, "v"))
	requireWideRow(t, s)
	openURL(t, "redis://app:"+secret+"@"+addr+"/?prefix="+o.Prefix+"&partitions=1")
	// Stores with prefixes that begin alike are others.
	for _, other := range []string{o.Prefix + ":x", o.Prefix + ":7", o.Prefix + "x", o.Prefix[:2]} {
		require.ErrorContains(t, openError(t, "redis://app:"+secret+"@"+addr+"/?prefix="+other), "ermission", other)
		for _, kind := range []string{"m", "o", "r:t/r"} {
			said, err := c.Do(ctx, "ACL", "DRYRUN", "app", "GET", "{"+other+":0}"+kind).Text()
			require.NoError(t, err)
			require.Contains(t, said, "no permissions to access", other)
		}
	}

	err = openError(t, "redis://app:"+secret+"wrong@"+addr)
	require.ErrorContains(t, err, "user or password is wrong")
	require.ErrorIs(t, err, rowstore.ErrDenied)
	require.NoError(t, c.Do(ctx, "ACL", "SETUSER", "noscript", "reset", "on", ">"+secret, "~*", "&*", "+@all", "-zadd").Err())
	err = openError(t, "redis://noscript:"+secret+"@"+addr+"/?prefix=other")
	require.ErrorContains(t, err, "ermission")
	require.ErrorIs(t, err, rowstore.ErrDenied)
	require.NoError(t, c.ConfigSet(ctx, "requirepass", secret).Err())
	err = openError(t, "redis://"+addr)
	require.ErrorContains(t, err, "none was given")
	require.ErrorIs(t, err, rowstore.ErrDenied)
	require.NoError(t, c.Do(ctx, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err())
	require.Eventually(t, func() bool {
		v, err := tryNewest(ctx, s, "r")
		return err == nil && v == "v"
	}, 30*time.Second, time.Millisecond)
}

// A user who lacks a command cannot use a store of version 3, and so does not make one of a store
// that others use.
func TestMigrateWithoutPermission(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	srv := testserver.NewRedis(t, nil)
	c := admin(t, srv.URL)
	for _, command := range []string{
		"set", "mget", "hset", "hsetnx", "zadd", "zrem", "zrange", "zrangebylex", "hexists", "publish", "time", "info", "smembers",
		"hget", "hmget", "hgetall", "hdel", "hlen", "zremrangebylex",
	} {
		t.Run(command, func(t *testing.T) {
			url := with(t, srv.URL)
			prefix := version1(t, c, url)
			o, err := ParseURL(url)
			require.NoError(t, err)
			require.NoError(t, c.Do(ctx, "ACL", "SETUSER", "no"+command, "reset", "on", ">"+secret, "~*", "&*", "+@all", "-"+command).Err())
			require.ErrorContains(t, openError(t, "redis://no"+command+":"+secret+"@"+o.Addrs[0]+"/?prefix="+prefix), "ermission")

			tag := "{" + prefix + ":0}"
			require.Equal(t, "1", c.HGet(ctx, tag+"m", "format").Val())
			require.Len(t, oldIndexes(t, c, prefix), 9)
			_, err = c.Eval(ctx, drawOf1, []string{tag + "o", tag + "t", tag + "x"}, 1).Result()
			require.NoError(t, err, "the program of version 1 goes on")
			require.Equal(t, 3*21, findsAll(t, bare(t, url), tablesOf1...), "and somebody else may migrate the store")
		})
	}
}

// TestUpdatesOutlastARestart restarts the server under a program, in order and not: none
// of its Updates fails.
func TestUpdatesOutlastARestart(t *testing.T) {
	t.Parallel()
	srv := testserver.NewRedis(t, map[string]string{"appendfsync": "always"})
	o, err := ParseURL(with(t, srv.URL))
	require.NoError(t, err)
	s, err := Open(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	db, err := percolator.New(t.Context(), s, percolator.WithStorePatience(2*time.Minute))
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close(context.Background())) }()
	restarttest.Outlast(t, db,
		func() error { return errors.Join(srv.Stop(), srv.Start()) },
		func() error { return errors.Join(srv.Kill(), srv.Start()) },
	)
}
