package redis

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// asked is the work of one command that a client sent: fields, members and keys that it, or
// what its script called, can have looked at or written.
type asked struct {
	name string
	work int
}

// workLog is what a server does, as it says itself (MONITOR), with what its scripts do. It
// counts work and no time, which a busy machine stretches.
type workLog struct {
	t     testing.TB
	c     *goredis.Client
	lines *bufio.Reader
}

// watchWork begins to watch.
func watchWork(t testing.TB, c *goredis.Client) *workLog {
	t.Helper()
	conn, err := net.Dial("tcp", c.Options().Addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = conn.Write([]byte("MONITOR\r\n"))
	require.NoError(t, err)
	w := &workLog{t, c, bufio.NewReaderSize(conn, 1<<20)}
	line, err := w.lines.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "+OK\r\n", line)
	return w
}

// take returns what clients asked for since the last time, in order.
func (w *workLog) take() []asked {
	w.t.Helper()
	end := fmt.Sprintf("%q \"the end %d\"", "echo", prefixes.Add(1))
	require.NoError(w.t, w.c.Echo(context.Background(), strings.TrimSuffix(strings.TrimPrefix(end, `"echo" "`), `"`)).Err())
	fields := map[string]int{} // of hashes that were read as a whole
	var all []asked
	for {
		line, err := w.lines.ReadString('\n')
		require.NoError(w.t, err)
		if strings.Contains(line, end) {
			return all
		}
		_, rest, _ := strings.Cut(line, " [")
		from, rest, ok := strings.Cut(rest, "] ")
		require.True(w.t, ok, line)
		name, args := words(rest)
		n := w.work(name, args, fields)
		if strings.HasSuffix(from, " lua") {
			require.NotEmpty(w.t, all)
			all[len(all)-1].work += n
		} else {
			all = append(all, asked{name, n})
		}
	}
}

// words returns the name and the arguments of a command, as MONITOR quotes them.
func words(s string) (name string, args []string) {
	var all []string
	for begin, i := -1, 0; i < len(s); i++ {
		switch {
		case s[i] == '\\':
			i++
		case s[i] == '"' && begin < 0:
			begin = i
		case s[i] == '"':
			all = append(all, s[begin:i+1])
			begin = -1
		}
	}
	return strings.ToUpper(strings.Trim(all[0], `"`)), all[1:]
}

// work is how much a command can have looked at or written.
func (w *workLog) work(name string, args []string, fields map[string]int) int {
	w.t.Helper()
	number := func(quoted string) int {
		n, err := strconv.Atoi(strings.Trim(quoted, `"`))
		require.NoError(w.t, err)
		return n
	}
	switch name {
	case "HGETALL", "HKEYS", "HVALS", "SMEMBERS":
		if _, ok := fields[args[0]]; !ok {
			key, err := strconv.Unquote(args[0])
			require.NoError(w.t, err)
			n := w.c.HLen
			if name == "SMEMBERS" {
				n = w.c.SCard
			}
			size, err := n(context.Background(), key).Result()
			require.NoError(w.t, err)
			fields[args[0]] = int(size)
		}
		return fields[args[0]]
	case "HSCAN":
		at := slices.Index(args, `"count"`)
		require.Positive(w.t, at, "an HSCAN without a limit")
		return number(args[at+1])
	case "ZRANGEBYLEX", "ZREVRANGEBYLEX":
		require.Len(w.t, args, 6, "a range without a limit")
		return 4 + number(args[5])
	case "HMGET", "HDEL", "MGET", "ZREM":
		return len(args)
	case "HSET", "ZADD":
		return len(args) / 2
	case "ZREMRANGEBYLEX":
		return 4 // and what it removes
	case "ZRANGE":
		from, to := number(args[1]), number(args[2])
		require.LessOrEqual(w.t, from, to, "a range from the end, of any length")
		require.GreaterOrEqual(w.t, from, 0)
		return 5 + to - from
	case "EVAL", "EVALSHA", "EXISTS", "TYPE", "ROLE", "TIME", "GET", "SET", "INCRBY", "DEL", "HGET", "HLEN", "HEXISTS", "HSTRLEN", "SADD", "SREM", "SCARD", "SISMEMBER",
		"ZCARD", "ZRANK", "ZSCORE", "ZADDNX", "PUBLISH", "WATCH", "UNWATCH", "MULTI", "EXEC", "SCRIPT", "INFO", "PING", "CONFIG", "CLIENT", "HELLO", "ACL":
		return 1
	}
	require.Fail(w.t, "nobody knows what it costs", name)
	return 1
}

// bounded runs f, and requires that no command that was sent to the server meanwhile was more work than most.
func (w *workLog) bounded(what string, most int, f func()) {
	w.t.Helper()
	w.take()
	f()
	all := w.take()
	require.NotEmpty(w.t, all)
	greatest := slices.MaxFunc(all, func(a, b asked) int { return a.work - b.work })
	w.t.Logf("%s: %d commands, the greatest (%s) looks at up to %d", what, len(all), greatest.name, greatest.work)
	require.LessOrEqual(w.t, greatest.work, most, "%s: %s", what, greatest.name)
}

// What a run of a script that reads may look at. A range counts here as the most that it may answer, and in
// the script as what it answered: at most double.
const (
	mostWork   = 5 * maxSteps / 2
	mostLonger = 5 * wideSteps / 2
)

// answerSizes is a hook that notes the greatest answer to a command, in bytes.
type answerSizes struct{ most int }

func (a *answerSizes) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (a *answerSizes) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		err := next(ctx, cmd)
		a.saw(cmd)
		return err
	}
}

func (a *answerSizes) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			a.saw(cmd)
		}
		return err
	}
}

func (a *answerSizes) saw(cmd goredis.Cmder) {
	size := 0
	switch cmd := cmd.(type) {
	case *goredis.Cmd:
		text, _ := cmd.Val().(string)
		size = len(text)
	case *goredis.ScanCmd:
		page, _ := cmd.Val()
		for _, s := range page {
			size += len(s)
		}
	case *goredis.SliceCmd:
		for _, v := range cmd.Val() {
			s, _ := v.(string)
			size += len(s)
		}
	}
	a.most = max(a.most, size)
}

// meddler changes a row before each end of a transaction on the store's connections, so that no
// reading in pieces is of one moment.
type meddler struct {
	change func()
	ends   int
}

func (m *meddler) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (m *meddler) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook { return next }

func (m *meddler) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		if cmds[0].Name() == "multi" && m.change != nil {
			m.ends++
			m.change()
		}
		return next(ctx, cmds)
	}
}

// A row that somebody changes all the time, while it is read in pieces, is never read by a run without a
// bound. The newest writes of its columns are read nevertheless. To read all of it fails, with an error after
// which the caller may ask again. It is long because each way to end is tried on the same row, which takes long to fill.
func TestWideRowBesideAWriter(t *testing.T) {
	t.Parallel()
	const columns, versions = 10_000, 5
	url := with(t, newRedis(t))
	s, writer := bare(t, url), bare(t, url)
	c := admin(t, url)
	fillDeep(t, s, c, "wide", columns, versions)
	for i := range 30 { // while the row is narrow, so that its older writes lie in every place
		for ts := range rowstore.Timestamp(i) {
			apply(t, s, rowstore.Mutation{Table: "t", Row: "mid", Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, fmt.Sprintf("early%02d", i), 1+ts, []byte("v"))}})
		}
	}
	fillDeep(t, s, c, "mid", 500, 30)
	s.opts.ReadTimeout = 10 * time.Millisecond // how long the store tries; the connections have theirs
	ts := rowstore.Timestamp(versions)
	row := "wide"
	m := &meddler{change: func() {
		ts++
		apply(t, writer, rowstore.Mutation{Table: "t", Row: row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, columnName(0), ts, nil)}})
	}}
	s.nodes.(single).client.AddHook(m)
	read := func(ctx context.Context, picks ...rowstore.Selector) ([]rowstore.Version, error) {
		rows, err := s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: row, Selectors: picks}})
		if err != nil {
			return nil, err
		}
		return rows[0].Versions, rows[0].Err
	}
	work := watchWork(t, c)
	before := worked(t, c)
	defer func() { t.Logf("the server worked for %v", worked(t, c)-before) }()
	work.bounded("the newest", mostLonger, func() {
		vs, err := read(t.Context(), rowstore.Selector{Family: rowstore.Write, Column: rowstore.AllColumns, To: maxTS, Limit: 1})
		require.NoError(t, err)
		require.Len(t, vs, columns)
		require.Equal(t, ts, vs[0].TS)
		require.Equal(t, wideTries, m.ends)
	})
	work.bounded("some columns", mostLonger, func() {
		var picks []rowstore.Selector
		for i := range columns {
			picks = append(picks, rowstore.Selector{Family: rowstore.Write, Column: columnName(i), To: maxTS, Limit: 1})
		}
		vs, err := read(t.Context(), picks...)
		require.NoError(t, err)
		require.Len(t, vs, columns)
	})
	// All versions of a row that the longer run has room for, and one run of the usual kind has not.
	ofWide := ts
	row, ts = "mid", 30
	m.ends = 0
	work.bounded("everything of a smaller row", mostLonger, func() {
		vs, err := read(t.Context(), allVersions...)
		require.NoError(t, err)
		require.Equal(t, wideTries, m.ends)
		require.Equal(t, readRow(t, writer, row, allVersions...), vs)
	})
	row, ts = "wide", ofWide
	m.ends = 0
	work.bounded("everything", mostLonger, func() {
		_, err := read(t.Context(), allVersions...)
		require.ErrorIs(t, err, rowstore.ErrUnavailable)
		require.NotErrorIs(t, err, rowstore.ErrAmbiguous)
		require.ErrorContains(t, err, "somebody changed it")
		require.GreaterOrEqual(t, m.ends, wideTries)
		for _, err := range s.Scan(t.Context(), rowstore.ScanRange{Table: "t", From: row, Selectors: allVersions}) {
			require.ErrorIs(t, err, rowstore.ErrUnavailable)
		}
	})
	// It goes on until the caller gives up.
	s.opts.ReadTimeout = time.Hour
	change := m.change
	ctx, giveUp := context.WithCancel(t.Context())
	m.ends = 0
	m.change = func() {
		if m.ends > wideTries+2 {
			giveUp()
		}
		change()
	}
	_, err := read(ctx, allVersions...)
	require.ErrorIs(t, err, context.Canceled)
	// And until nobody changes the row any more.
	s.calls.Wait() // that the call above left behind
	m.ends = 0
	m.change = func() {
		if m.ends < wideTries+2 {
			change()
		}
	}
	vs, err := read(t.Context(), allVersions...)
	require.NoError(t, err)
	require.Len(t, vs, columns*versions+int(ts)-versions)
	require.Equal(t, wideTries+2, m.ends)
}

// newRedis is a server of the test's own, which writes no file.
func newRedis(t testing.TB) string {
	t.Helper()
	return testserver.NewRedis(t, map[string]string{"appendonly": "no"}).URL
}
