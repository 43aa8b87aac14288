package redis

import (
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

	"github.com/percolate-go/percolate/internal/await"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func columnName(i int) string { return fmt.Sprintf("c%05d", i) }

// fillWide writes versions of each column of a row at the timestamps first to last, as commits do.
func fillWide(t testing.TB, s *direct, row string, columns, first, last, together int) (calls int) {
	t.Helper()
	for ts := first; ts <= last; ts++ {
		for from := 0; from < columns; from += together {
			m := rowstore.Mutation{Table: "t", Row: row}
			for i := from; i < min(from+together, columns); i++ {
				m.Conditions = append(m.Conditions, rowstore.Absent(rowstore.Write, columnName(i), rowstore.Timestamp(ts)))
				m.Edits = append(m.Edits, rowstore.Put(rowstore.Write, columnName(i), rowstore.Timestamp(ts), []byte(columnName(i)+"@"+strconv.Itoa(ts))))
			}
			apply(t, s, m)
			calls++
		}
	}
	return calls
}

func readRow(t testing.TB, s *direct, row string, picks ...rowstore.Selector) []rowstore.Version {
	t.Helper()
	rows, err := s.Read(context.Background(), []rowstore.RowRead{{Table: "t", Row: row, Selectors: picks}})
	require.NoError(t, err)
	require.NoError(t, rows[0].Err)
	return rows[0].Versions
}

// fillDeep writes the first versions of each column of a row. Only the last column gets all of them from the store. The others get
// what the server then holds of it, under their own names, in a fraction of the time.
func fillDeep(t testing.TB, s *direct, c *goredis.Client, row string, columns, versions int) {
	t.Helper()
	ctx := context.Background()
	fillWide(t, s, row, columns, 1, 1, 500)
	last := columnName(columns - 1)
	m := rowstore.Mutation{Table: "t", Row: row}
	for ts := 2; ts <= versions; ts++ {
		m.Edits = append(m.Edits, rowstore.Put(rowstore.Write, last, rowstore.Timestamp(ts), []byte(last+"@"+strconv.Itoa(ts))))
	}
	apply(t, s, m)
	keys, err := c.Keys(ctx, "*/"+row).Result()
	require.NoError(t, err)
	slices.SortFunc(keys, func(a, b string) int { return strings.Compare(b, a) }) // }r: before }h:
	require.Len(t, keys, 2, "the row and its history")
	fields, _, err := c.HScan(ctx, keys[0], 0, "*"+last+"*", int64(10*columns)).Result()
	require.NoError(t, err)
	history, _, err := c.ZScan(ctx, keys[1], 0, "*"+last+"*", int64(10*columns)).Result()
	require.NoError(t, err)
	require.Greater(t, len(fields)/2+len(history)/2, versions/12)
	const others = `for i = tonumber(ARGV[2]), tonumber(ARGV[3]) do
		local name, fields, members = string.format('c%05d', i), {}, {}
		for j = 5, 4 + ARGV[4] do fields[#fields + 1] = string.gsub(ARGV[j], ARGV[1], name) end
		for j = 5 + ARGV[4], #ARGV, 2 do
			members[#members + 1] = ARGV[j + 1]
			members[#members + 1] = string.gsub(ARGV[j], ARGV[1], name)
		end
		redis.call('HSET', KEYS[1], unpack(fields))
		if #members > 0 then redis.call('ZADD', KEYS[2], unpack(members)) end
	end
	return 1`
	const together = 200
	for from := 0; from < columns-1; from += together {
		args := []any{last, from, min(from+together, columns-1) - 1, len(fields)}
		for _, x := range slices.Concat(fields, history) {
			args = append(args, x)
		}
		require.NoError(t, c.Eval(ctx, others, keys, args...).Err())
	}
}

// TestWideRow reads, writes and collects a row of 10,000 columns with 100 versions
// each: no call is much work for the server. It is long because each kind of call comes with what it may cost.
func TestWideRow(t *testing.T) {
	t.Parallel()
	const columns, versions, before = 10_000, 100, 90
	srv := testserver.NewRedis(t, map[string]string{"appendonly": "no"})
	s := bare(t, with(t, srv.URL))
	c := admin(t, srv.URL)
	ctx := context.Background()

	fillDeep(t, s, c, "wide", columns, before)
	sizes := &answerSizes{}
	s.nodes.(single).client.AddHook(sizes)
	work := watchWork(t, c)
	// Writing and collecting cost in proportion to the columns and the versions that a call names.
	const together, each = 500, 40
	work.bounded("writes", together*each, func() { fillWide(t, s, "wide", columns, before+1, versions, together) })

	snapshot := func(ts rowstore.Timestamp) rowstore.Selector {
		return rowstore.Selector{Family: rowstore.Write, Column: rowstore.AllColumns, To: ts, Limit: 1}
	}
	for _, ts := range []rowstore.Timestamp{versions, 10, 1} {
		work.bounded("snapshot", mostWork, func() {
			vs := readRow(t, s, "wide", snapshot(ts))
			require.Len(t, vs, columns)
			for i := range vs {
				require.Equal(t, columnName(i), vs[i].Column)
				require.Equal(t, ts, vs[i].TS)
				require.Equal(t, columnName(i)+"@"+strconv.Itoa(int(ts)), string(vs[i].Value))
			}
		})
	}
	work.bounded("everything", mostWork, func() {
		require.Len(t, readRow(t, s, "wide", allVersions...), columns*versions)
	})
	work.bounded("some columns", mostWork, func() {
		var picks []rowstore.Selector
		for i := range columns / 2 {
			picks = append(picks, rowstore.Selector{Family: rowstore.Write, Column: columnName(2 * i), To: 10, Limit: 1})
		}
		require.Len(t, readRow(t, s, "wide", picks...), columns/2)
	})
	work.bounded("scan", mostWork, func() {
		rows := 0
		for row, err := range s.Scan(ctx, rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{snapshot(7)}}) {
			require.NoError(t, err)
			require.Len(t, row.Versions, columns)
			rows++
		}
		require.Equal(t, 1, rows)
	})
	ts := rowstore.Timestamp(versions)
	work.bounded("one-phase commits", each, func() {
		for i := range 20 {
			ts++
			g, err := s.Group(ctx, []rowstore.Group{{Mutations: []rowstore.Mutation{onePhaseOn("wide", columnName(i), ts)}, AssignTimestamp: true}})
			require.NoError(t, err)
			require.True(t, g[0].Applied)
		}
	})
	collected := 0
	work.bounded("collection", 100*(each+versions), func() {
		for end := collected + columns/4; collected < end; collected += 100 {
			m := rowstore.Mutation{Table: "t", Row: "wide"}
			for i := collected; i < collected+100; i++ {
				m.Edits = append(m.Edits, rowstore.DeleteRange(rowstore.Write, columnName(i), 0, versions-1))
			}
			apply(t, s, m)
		}
	})
	vs := readRow(t, s, "wide", rowstore.Selector{Family: rowstore.Write, Column: rowstore.AllColumns, To: versions})
	require.Len(t, vs, collected+(columns-collected)*versions)
	require.LessOrEqual(t, sizes.most, 2*maxAnswer)
}

// onePhaseOn is the commit of one cell in one phase.
func onePhaseOn(row, column string, start rowstore.Timestamp) rowstore.Mutation {
	return rowstore.Mutation{
		Table: "t", Row: row,
		Conditions: []rowstore.Condition{
			rowstore.Absent(rowstore.Write, column, maxTS), rowstore.Absent(rowstore.Lock, column, 0),
			rowstore.Absent(rowstore.Mark, column, start),
		},
		Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, column, rowstore.AssignedTimestamp, []byte("drawn"))},
	}
}

// fillDeepColumn writes a column of a row at the timestamps 1, 2, ...
func fillDeepColumn(t testing.TB, s *direct, versions int) {
	t.Helper()
	for from := 1; from <= versions; from += 1000 {
		m := rowstore.Mutation{Table: "t", Row: "deep"}
		for ts := from; ts < from+1000; ts++ {
			m.Edits = append(m.Edits, rowstore.Put(rowstore.Write, "c", rowstore.Timestamp(ts), []byte("v")))
		}
		apply(t, s, m)
	}
}

// TestDeepColumn reads a column with very many versions.
func TestDeepColumn(t *testing.T) {
	t.Parallel()
	const versions = 100_000
	srv := testserver.NewRedis(t, map[string]string{"appendonly": "no"})
	s := bare(t, with(t, srv.URL))
	fillDeepColumn(t, s, versions)
	work := watchWork(t, admin(t, srv.URL))
	for _, p := range []rowstore.Selector{
		{Family: rowstore.Write, Column: "c", To: maxTS},
		{Family: rowstore.Write, Column: rowstore.AllColumns, To: maxTS},
		{Family: rowstore.Write, Column: "c", To: maxTS, Limit: versions - 5},
		{Family: rowstore.Write, Column: "c", From: 10, To: versions - 10},
	} {
		work.bounded("all versions", mostWork, func() {
			vs := readRow(t, s, "deep", p)
			require.Equal(t, min(p.To, versions), vs[0].TS)
			want := int(min(p.To, versions) - max(p.From, 1) + 1)
			if p.Limit > 0 {
				want = p.Limit
			}
			require.Len(t, vs, want)
		})
	}
}

// TestBigAnswers reads and begins with far more bytes than one run may answer.
func TestBigAnswers(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	srv := testserver.NewRedis(t, map[string]string{"appendonly": "no"})
	s := bare(t, with(t, srv.URL))
	const rows = 60
	value := strings.Repeat("x", 1<<20)
	var reads []rowstore.RowRead
	for i := range rows {
		row := strconv.Itoa(i)
		apply(t, s, rowstore.Mutation{Table: "t", Row: row, Edits: []rowstore.Edit{
			rowstore.Put(rowstore.Write, "c", 1, []byte(row)), rowstore.Put(rowstore.Data, "c", 1, []byte(row+value)),
		}})
		reads = append(reads, rowstore.RowRead{Table: "t", Row: row, Selectors: []rowstore.Selector{
			{Family: rowstore.Write, Column: "c", To: maxTS, Limit: 1}, {Family: rowstore.Data, Column: "c", From: 1, To: 1},
		}})
	}
	work := watchWork(t, admin(t, srv.URL))
	work.bounded("read", mostWork, func() {
		got, err := s.Read(ctx, reads)
		require.NoError(t, err)
		require.Len(t, got, rows)
		for i := range got {
			require.NoError(t, got[i].Err)
			require.Len(t, got[i].Versions, 2)
			require.Equal(t, strconv.Itoa(i), string(got[i].Versions[0].Value))
			require.Len(t, got[i].Versions[1].Value, len(strconv.Itoa(i))+len(value))
		}
	})
	work.bounded("scan", mostWork, func() {
		n := 0
		for row, err := range s.Scan(ctx, rowstore.ScanRange{Table: "t", Selectors: reads[0].Selectors}) {
			require.NoError(t, err)
			require.Len(t, row.Versions, 2)
			n++
		}
		require.Equal(t, rows, n)
	})
	// A snapshot's reads, of values that lie in the rows themselves.
	var ask rowstore.SnapshotRead
	for i := range 20 {
		row := "inline" + strconv.Itoa(i)
		apply(t, s, put(row, 1, value))
		ask.Reads = append(ask.Reads, rowstore.RowRead{Table: "t", Row: row, Selectors: []rowstore.Selector{
			{Family: rowstore.Write, Column: "c", To: rowstore.AssignedTimestamp, Limit: 1},
		}})
	}
	work.bounded("begin", mostWork, func() {
		got, err := s.ReadSnapshot(ctx, []rowstore.SnapshotRead{ask})
		require.NoError(t, err)
		require.NotZero(t, got[0].TS)
		for _, row := range got[0].Rows {
			require.NoError(t, row.Err)
			require.Len(t, row.Versions, 1)
			require.Len(t, row.Versions[0].Value, len(value))
		}
	})
}

// TestWideRowIsReadAtOneMoment changes two columns of a wide row together, again and
// again, while it is read in pieces.
func TestWideRowIsReadAtOneMoment(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s := bare(t, with(t, testserver.NewRedis(t, map[string]string{"appendonly": "no"}).URL))
	const columns = 5000
	fillWide(t, s, "wide", columns, 1, 2, 500)
	ts := rowstore.Timestamp(2)
	write := func() error {
		ts++
		return tryApply(context.Background(), s, rowstore.Mutation{Table: "t", Row: "wide", Edits: []rowstore.Edit{
			rowstore.Put(rowstore.Write, columnName(0), ts, nil), rowstore.Put(rowstore.Write, columnName(columns-1), ts, nil),
			rowstore.Delete(rowstore.Write, columnName(1), ts-1), rowstore.Put(rowstore.Write, columnName(1), ts, nil),
		}})
	}
	wrote, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if err := write(); err != nil {
				ended <- err
				return
			}
			select {
			case wrote <- struct{}{}:
			case <-time.After(5 * time.Millisecond):
			}
		}
		ended <- nil
	}()
	for range 20 {
		await.Value(ctx, t, wrote, ended)
		vs := readRow(t, s, "wide", allVersions...)
		newest := map[string]rowstore.Timestamp{}
		for _, v := range vs {
			newest[v.Column] = max(newest[v.Column], v.TS)
		}
		require.Len(t, newest, columns)
		require.Equal(t, newest[columnName(0)], newest[columnName(1)])
		require.Equal(t, newest[columnName(0)], newest[columnName(columns-1)])
	}
	cancel()
	require.NoError(t, await.Value(t.Context(), t, ended, nil))
}

// TestOldWideRow meets a row as earlier versions of the store left it: wide, with
// older writes of its columns among its fields.
func TestOldWideRow(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	srv := testserver.NewRedis(t, map[string]string{"appendonly": "no"})
	s := bare(t, with(t, srv.URL))
	c := admin(t, srv.URL)
	const columns, older = 2000, 12
	row := rowstore.Mutation{Table: "t", Row: "r", Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c00000", 1, nil)}}
	apply(t, s, row)
	key := s.parts[0].tag + "r:t/r"
	stamp := func(ts rowstore.Timestamp) string {
		_, hi := spanEnds('W', "x", ts+1, ts+1)
		return hi[len(hi)-8:]
	}
	for i := range columns {
		var fields []any
		for ts := 1; ts <= older; ts++ {
			fields = append(fields, string(appendField(nil, 'H', columnName(i)))+stamp(rowstore.Timestamp(ts)), strconv.Itoa(ts))
		}
		fields = append(fields, string(appendField(nil, 'W', columnName(i))), string(rune(4+8*older))+stamp(older+1)+strconv.Itoa(older+1))
		require.NoError(t, c.HSet(ctx, key, fields...).Err())
	}
	check := func(from int) {
		vs := readRow(t, s, "r", allVersions...)
		require.Len(t, vs, columns*(older+1)+from)
		at := rowstore.Timestamp(5)
		vs = readRow(t, s, "r", rowstore.Selector{Family: rowstore.Write, Column: rowstore.AllColumns, To: at, Limit: 1})
		require.Len(t, vs, columns)
		for _, v := range vs {
			if v.TS != at || string(v.Value) != "5" {
				require.Failf(t, "a version of another time", "%+v", v)
			}
		}
		vs = readRow(t, s, "r", rowstore.Selector{Family: rowstore.Write, Column: columnName(1), To: at, Limit: 1})
		require.Len(t, vs, 1)
		require.Equal(t, at, vs[0].TS)
	}
	work := watchWork(t, c)
	work.bounded("read", mostWork, func() { check(0) })
	ts := rowstore.Timestamp(older + 1)
	wrote := 0
	// The first write of a cell moves what version 2 left there, and looks for it among all fields of the row.
	work.bounded("write", 3*columns*(older+1), func() {
		ts++
		m := rowstore.Mutation{Table: "t", Row: "r"}
		for i := range 50 {
			m.Edits = append(m.Edits, rowstore.Put(rowstore.Write, columnName(i), ts, nil))
		}
		apply(t, s, m)
		wrote += 50
		g, err := s.Group(ctx, []rowstore.Group{{Mutations: []rowstore.Mutation{onePhaseOn("r", columnName(60+int(ts)), ts)}, AssignTimestamp: true}})
		require.NoError(t, err)
		require.True(t, g[0].Applied)
		wrote++
	})
	work.bounded("read after writes", mostWork, func() { check(wrote) })
}

// TestClientThatDoesNotRead has one client ask for much and read nothing, and
// another stop in the middle of a request: a third one goes on.
func TestClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	srv := testserver.NewRedis(t, map[string]string{"appendonly": "no"})
	s := bare(t, with(t, srv.URL))
	o, err := ParseURL(srv.URL)
	require.NoError(t, err)
	apply(t, s, put("big", 1, strings.Repeat("x", 1<<20)))
	key := s.parts[0].tag + "r:t/big"
	for range 20 {
		conn, err := net.Dial("tcp", o.Addrs[0])
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_, err = conn.Write([]byte(strings.Repeat(fmt.Sprintf("*2\r\n$7\r\nHGETALL\r\n$%d\r\n%s\r\n", len(key), key), 5)))
		require.NoError(t, err)
		half, err := net.Dial("tcp", o.Addrs[0])
		require.NoError(t, err)
		t.Cleanup(func() { _ = half.Close() })
		_, err = half.Write([]byte("*3\r\n$7\r\nEVALSHA\r\n$40\r\nabc"))
		require.NoError(t, err)
	}
	var took []time.Duration
	for i := range 200 {
		start := time.Now()
		apply(t, s, put("r", rowstore.Timestamp(i+1), "v"))
		require.Equal(t, "v", newest(t, s, "r"))
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	require.Less(t, took[len(took)/2], 100*time.Millisecond)
	require.NoError(t, ctx.Err())
}

// TestStatusOfAHotCell asks what became of a transaction on a cell with very many versions, as a reader that meets its lock does.
// The server answers a few versions.
func TestStatusOfAHotCell(t *testing.T) {
	t.Parallel()
	const versions = 20_000
	srv := testserver.NewRedis(t, map[string]string{"appendonly": "no"})
	s := bare(t, with(t, srv.URL))
	fillDeepColumn(t, s, versions)
	c := admin(t, srv.URL)
	sent := func() int {
		info, err := c.Info(context.Background(), "stats").Result()
		require.NoError(t, err)
		_, rest, _ := strings.Cut(info, "total_net_output_bytes:")
		n, err := strconv.Atoi(strings.TrimSpace(strings.SplitN(rest, "\n", 2)[0]))
		require.NoError(t, err)
		return n
	}
	for _, start := range []rowstore.Timestamp{versions + 1, versions - 3, versions - 100, versions / 2, 1} {
		before := sent()
		vs := readRow(t, s, "deep",
			rowstore.Selector{Family: rowstore.Lock, Column: "c", From: start, To: start, Limit: 1},
			rowstore.Selector{Family: rowstore.Write, Column: "c", From: start, To: maxTS, Limit: 32},
			rowstore.Selector{Family: rowstore.Write, Column: "c", To: start - 1, Limit: 1},
			rowstore.Selector{Family: rowstore.Mark, Column: "c", From: start, To: maxTS, Limit: 1})
		var want []rowstore.Timestamp
		for ts := rowstore.Timestamp(versions); ts >= start && len(want) < 32; ts-- {
			want = append(want, ts)
		}
		if start > 1 {
			want = append(want, start-1)
		}
		var got []rowstore.Timestamp
		for _, v := range vs {
			got = append(got, v.TS)
		}
		require.Equal(t, want, got)
		// An answer to INFO has some kilobytes itself.
		require.Less(t, sent()-before, 20_000, "from %d", start)
	}
	// The newest ones lie in the row's hash. Nothing else is asked for them.
	require.NoError(t, c.ConfigResetStat(context.Background()).Err())
	require.Len(t, readRow(t, s, "deep",
		rowstore.Selector{Family: rowstore.Write, Column: "c", From: versions - 3, To: maxTS, Limit: 32},
		rowstore.Selector{Family: rowstore.Write, Column: "c", To: versions - 4, Limit: 1}), 5)
	stats, err := c.Info(context.Background(), "commandstats").Result()
	require.NoError(t, err)
	require.Contains(t, stats, "cmdstat_hmget:")
	require.NotContains(t, stats, "cmdstat_zrangebylex:")
}
