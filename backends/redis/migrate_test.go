package redis

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// What a program of version 1 wrote, and its scripts.
var (
	//go:embed testdata/version1/store.json
	storeOf1 []byte
	//go:embed testdata/version1/write.lua
	writeOf1 string
	//go:embed testdata/version1/draw.lua
	drawOf1 string
	//go:embed testdata/version1/begin.lua
	beginOf1 string
	//go:embed testdata/version1/open.lua
	openOf1 string
)

var tablesOf1 = []string{"t", "a/b%", "\x00\xff"}

// version1 puts a store of version 1 with three partitions under the prefix of a URL.
func version1(t testing.TB, c goredis.Cmdable, url string) (prefix string) {
	t.Helper()
	o, err := ParseURL(url)
	require.NoError(t, err)
	var keys []struct {
		Key   []byte
		Type  string
		Items [][]byte
	}
	require.NoError(t, json.Unmarshal(storeOf1, &keys))
	require.NotEmpty(t, keys)
	ctx := context.Background()
	pipe := c.Pipeline()
	for _, k := range keys {
		key := "{" + o.Prefix + ":" + strings.TrimPrefix(string(k.Key), "{")
		var items []any
		for _, i := range k.Items {
			items = append(items, i)
		}
		switch k.Type {
		case "string":
			pipe.Set(ctx, key, k.Items[0], 0)
		case "set":
			pipe.SAdd(ctx, key, items...)
		case "hash":
			pipe.HSet(ctx, key, items...)
		case "zset":
			for _, i := range k.Items {
				pipe.ZAdd(ctx, key, goredis.Z{Member: i})
			}
		}
	}
	_, err = pipe.Exec(ctx)
	require.NoError(t, err)
	return o.Prefix
}

func ofNotify() []rowstore.Selector {
	return []rowstore.Selector{{Family: rowstore.Notify, To: maxTS}}
}

// notifiedIn is the notified rows of a table in the order of their keys, by a scan that uses no
// index of notifications.
func notifiedIn(t testing.TB, s rowstore.Store, table string) []string {
	t.Helper()
	rows := []string{}
	for row, err := range s.Scan(context.Background(), rowstore.ScanRange{Table: table, Selectors: append(ofNotify(), rowstore.Selector{Family: rowstore.Data, To: maxTS})}) {
		require.NoError(t, err)
		if slices.ContainsFunc(row.Versions, func(v rowstore.Version) bool { return v.Family == rowstore.Notify }) {
			rows = append(rows, row.Row)
		}
	}
	return rows
}

func scanKeys(t testing.TB, s rowstore.Store, r rowstore.ScanRange) []string {
	t.Helper()
	r.Selectors = ofNotify()
	rows := []string{}
	for row, err := range s.Scan(context.Background(), r) {
		require.NoError(t, err)
		rows = append(rows, row.Row)
	}
	return rows
}

func everySlot() []rowstore.SlotRange { return []rowstore.SlotRange{{Last: rowstore.Slots - 1}} }

// findsAll compares both scans of notifications with notifiedIn.
func findsAll(t testing.TB, s rowstore.Store, tables ...string) (rows int) {
	t.Helper()
	for _, table := range tables {
		want := notifiedIn(t, s, table)
		rows += len(want)
		require.Equal(t, want, scanKeys(t, s, rowstore.ScanRange{Table: table}), "in the order of rows, table %q", table)
		slices.SortFunc(want, func(a, b string) int {
			if d := int(rowstore.Slot(table, a)) - int(rowstore.Slot(table, b)); d != 0 {
				return d
			}
			return strings.Compare(a, b)
		})
		require.Equal(t, want, scanKeys(t, s, rowstore.ScanRange{Table: table, Slots: everySlot()}), "in the order of slots, table %q", table)
	}
	return rows
}

// oldIndexes is the keys of indexes of version 1.
func oldIndexes(t testing.TB, c goredis.Cmdable, prefix string) []string {
	t.Helper()
	keys, err := c.Keys(context.Background(), "{"+prefix+":*}n:*").Result()
	require.NoError(t, err)
	return keys
}

// A store of version 1 is migrated by Open, and a program of version 1 begins nothing more.
func TestMigrate(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := with(t, testserver.Redis(t))
	c := admin(t, url)
	prefix := version1(t, c, url)
	require.Len(t, oldIndexes(t, c, prefix), 9)
	tag := "{" + prefix + ":0}"
	first, err := c.Eval(ctx, drawOf1, []string{tag + "o", tag + "t", tag + "x"}, 1).Result()
	require.NoError(t, err, "the program of version 1 draws")
	require.NotEmpty(t, first)
	_, err = OpenURL(ctx, url+"&asis=true")
	require.ErrorIs(t, err, rowstore.ErrFormat)
	require.Len(t, oldIndexes(t, c, prefix), 9)
	s := bare(t, url)
	require.Len(t, s.parts, 3)
	require.False(t, s.bySlot, "rows stay where they are")
	require.Equal(t, map[string]string{"format": "3", "partitions": "3", "spread": "rows"}, c.HGetAll(ctx, tag+"m").Val())
	require.Empty(t, oldIndexes(t, c, prefix))
	require.Equal(t, 3*21, findsAll(t, s, tablesOf1...))
	rows, err := s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: "r3", Selectors: ofNotify()}})
	require.NoError(t, err)
	require.Len(t, rows[0].Versions, 3)

	// The program of version 1 is refused before it writes.
	_, err = c.Eval(ctx, drawOf1, []string{tag + "o", tag + "t", tag + "x"}, 1).Result()
	require.ErrorContains(t, err, "no timestamps left")
	var p packer
	p.reset()
	p.small(1)
	p.u32(1000)
	_, err = c.Eval(ctx, beginOf1, []string{tag + "o", tag + "t", tag + "x"}, p.bytes()).Result()
	require.ErrorContains(t, err, "no timestamps left")
	_, err = writeAs1(ctx, c, s, true, "t", "late", rowstore.Put(rowstore.Notify, "c", 9, nil))
	require.ErrorContains(t, err, "no timestamps left")
	require.NotContains(t, notifiedIn(t, s, "t"), "late")
	got, err := c.Eval(ctx, openOf1, []string{tag + "m", tag + "o", tag + "t"}, 1, 3).StringSlice()
	require.NoError(t, err)
	require.Equal(t, []string{"3", "3"}, got, "its Open sees another version")

	draw(t, s)
	require.NoError(t, s.Close())
	again := bare(t, url)
	require.Equal(t, 3*21, findsAll(t, again, tablesOf1...))
	for _, table := range tablesOf1 {
		for _, row := range notifiedIn(t, again, table) {
			apply(t, again, rowstore.Mutation{Table: table, Row: row, Edits: []rowstore.Edit{
				rowstore.DeleteRange(rowstore.Notify, "c", 0, maxTS), rowstore.DeleteRange(rowstore.Notify, "d\x00\x01", 0, maxTS),
			}})
		}
	}
	require.Zero(t, findsAll(t, again, tablesOf1...))
	left, err := c.Keys(ctx, "{"+prefix+":*}[sn]:*").Result()
	require.NoError(t, err)
	require.Empty(t, left, "nothing is left behind in an index")
}

// In a Cluster the indexes lie on several servers. All who open the store move them.
func TestMigrateCluster(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := with(t, testserver.NewRedisCluster(t, map[string]string{"cluster-node-timeout": "15000"}).URL)
	o, err := ParseURL(url)
	require.NoError(t, err)
	c := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: o.Addrs})
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	prefix := version1(t, c, url)
	var opening sync.WaitGroup
	for range 3 {
		opening.Go(func() {
			s, err := OpenURL(ctx, url)
			if err != nil {
				t.Error(err)
				return
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	opening.Wait()
	s := bare(t, url)
	require.Len(t, s.parts, 3)
	require.False(t, s.bySlot)
	require.Equal(t, 3*21, findsAll(t, s, tablesOf1...))
	for i := range 3 {
		tag := fmt.Sprintf("{%s:%d}", prefix, i)
		for _, table := range tablesOf1 {
			require.Zero(t, c.Exists(ctx, tag+"n:"+escapeTable(table)).Val())
			require.NotZero(t, c.Exists(ctx, tag+"s:"+escapeTable(table)).Val())
		}
	}
	// A later version stops the writes of each partition.
	row := func(part int) rowstore.Mutation {
		for i := 0; ; i++ {
			if m := put(fmt.Sprint("new", i), 1, "v"); s.partOf("t", m.Row) == part {
				return m
			}
		}
	}
	require.NoError(t, c.Set(ctx, s.parts[1].tag+"l", "4", 0).Err())
	apply(t, s, row(2))
	require.ErrorIs(t, tryApply(ctx, s, row(1)), rowstore.ErrFormat)
}

// writeAs1 does what a program of version 1 does that has the store open.
func writeAs1(ctx context.Context, c *goredis.Client, s *direct, draws bool, table, row string, edits ...rowstore.Edit) (string, error) {
	var e writeEncoder
	part := s.partOf(table, row)
	okey := ""
	if draws {
		okey = s.okey
	}
	e.begin(okey, s.channel)
	m := rowstore.Mutation{Table: table, Row: row, Edits: edits}
	end := e.group(1, draws, 0)
	oldMutation(&e, s.parts[part].tag, &m)
	e.endGroup(end)
	b := e.bytes()
	for i := range edits {
		var was, is packer
		is.member(rowstore.Slot(table, row), row, edits[i].Column)
		was.str(escapeRow(row) + "\x00\x01" + edits[i].Column)
		b = bytes.ReplaceAll(b, is.b, was.b)
	}
	return c.Eval(ctx, writeOf1, []string{s.parts[part].tables, s.parts[part].never}, b).Text()
}

// A program of version 1 ends a transaction for which it drew before the migration. What it
// notifies is found by stores that were open already, and what was removed meanwhile is not.
func TestMigrateFindsWhatComesLate(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := with(t, testserver.Redis(t))
	c := admin(t, url)
	prefix := version1(t, c, url)
	s := bare(t, url)
	late := func(table, row string, edits ...rowstore.Edit) {
		t.Helper()
		_, err := writeAs1(ctx, c, s, false, table, row, edits...)
		require.NoError(t, err)
	}
	for round, slots := range [][]rowstore.SlotRange{everySlot(), nil} {
		for _, table := range tablesOf1 {
			row := fmt.Sprint("late\x00", round)
			late(table, row, rowstore.Put(rowstore.Notify, "c", 9, nil))
			late(table, row+"x", rowstore.Put(rowstore.Notify, "c", 9, nil))
			require.NotEmpty(t, oldIndexes(t, c, prefix))
			apply(t, s, rowstore.Mutation{Table: table, Row: row + "x", Edits: []rowstore.Edit{rowstore.Delete(rowstore.Notify, "c", 9)}})
			// The column is notified already, so this one puts nothing into an index.
			apply(t, s, rowstore.Mutation{Table: table, Row: row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "c", 10, nil)}})
			require.Contains(t, scanKeys(t, s, rowstore.ScanRange{Table: table, Slots: slots}), row)
			require.Empty(t, oldIndexes(t, c, prefix))
		}
		findsAll(t, s, tablesOf1...)
	}
	// What it removes leaves a member behind, which finds nothing and harms nobody.
	late("t", "a", rowstore.DeleteRange(rowstore.Notify, "c", 0, maxTS), rowstore.DeleteRange(rowstore.Notify, "d\x00\x01", 0, maxTS))
	findsAll(t, s, "t")
	require.NotContains(t, scanKeys(t, s, rowstore.ScanRange{Table: "t"}), "a")
	apply(t, s, rowstore.Mutation{Table: "t", Row: "a", Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "c", 10, nil)}})
	findsAll(t, s, "t")
	// Open looks too.
	late("t", "later", rowstore.Put(rowstore.Notify, "c", 9, nil))
	require.NotEmpty(t, oldIndexes(t, c, prefix))
	bare(t, url)
	require.Empty(t, oldIndexes(t, c, prefix))
	require.Contains(t, scanKeys(t, s, rowstore.ScanRange{Table: "t", Slots: everySlot()}), "later")
}

// mortal is a connection of a program that is killed when it has written so many times: the
// last request reaches the server or not, and no answer comes.
type mortal struct {
	net.Conn
	left    *atomic.Int64
	reaches bool
}

func (m mortal) Write(b []byte) (int, error) {
	left := m.left.Add(-1)
	if left > 0 || left == 0 && m.reaches {
		return m.Conn.Write(b)
	}
	_ = m.Conn.Close()
	return 0, io.ErrClosedPipe
}

func (m mortal) Read(b []byte) (int, error) {
	if m.left.Load() <= 0 {
		_ = m.Conn.Close()
		return 0, io.EOF
	}
	return m.Conn.Read(b)
}

// Open is killed at each of its requests. The next one goes on.
func TestMigrateInterrupted(t *testing.T) {
	t.Parallel()
	url := testserver.Redis(t)
	addr := hostOf(t, url)
	states, halves := map[string]bool{}, 0
	for n, died := 1, 0; ; n++ {
		url := with(t, url)
		c := admin(t, url)
		prefix := version1(t, c, url)
		var left atomic.Int64
		left.Store(int64(n))
		o := goredis.Options{Addr: addr, MaxRetries: -1, DialerRetries: 1, Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if left.Load() <= 0 {
				return nil, io.EOF
			}
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			return mortal{conn, &left, n%2 == 0}, err
		}}
		client := goredis.NewClient(&o)
		s, err := New(t.Context(), client, Options{Prefix: prefix})
		if err == nil {
			require.Greater(t, died, 15, "Open has more steps")
			require.Greater(t, len(states), 4, "it was killed in the middle of a migration")
			require.Positive(t, halves, "it was killed between the oracle and the record")
			require.NoError(t, s.Close())
			require.NoError(t, client.Close())
			return
		}
		died++
		require.NoError(t, client.Close())
		format := c.HGet(t.Context(), "{"+prefix+":0}m", "format").Val()
		states[fmt.Sprint(format, len(oldIndexes(t, c, prefix)))] = true
		if format == "1" && requireHalfDone(t, url, c) {
			halves++
		}
		again := bare(t, url)
		require.Empty(t, oldIndexes(t, c, prefix))
		require.Equal(t, 3*21, findsAll(t, again, tablesOf1...), "killed at request %d", n)
		require.Equal(t, "3", c.HGet(t.Context(), again.parts[0].tag+"m", "format").Val())
		for _, p := range again.parts {
			require.Equal(t, "3", c.Get(t.Context(), p.tag+"l").Val(), "killed at request %d", n)
		}
		require.NoError(t, again.Close())
	}
}

// writingAs1 notifies rows as a program of version 1 does, so many before it returns, which
// makes several steps of a migration, and others until stop is called.
func writingAs1(t *testing.T, c *goredis.Client, prefix string, before int) (wrote chan string, stop func()) {
	t.Helper()
	s := newDirect(Options{Prefix: prefix, Partitions: 3})
	defer s.stop()
	wrote = make(chan string, 10_000)
	write := func(row string) error {
		_, err := writeAs1(context.Background(), c, s, false, "t", row, rowstore.Put(rowstore.Notify, "c", 9, nil))
		if err == nil {
			wrote <- row
		}
		return err
	}
	for i := range before {
		require.NoError(t, write(fmt.Sprint("before", i)))
	}
	ctx, end := context.WithCancel(t.Context())
	began, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(wrote)
		for i := 0; i < cap(wrote)-before; i++ {
			err := write(fmt.Sprint("meanwhile", i))
			if i == 0 {
				close(began)
			}
			if err != nil || ctx.Err() != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	<-began
	return wrote, func() {
		end()
		require.NoError(t, <-ended)
	}
}

// Many programs migrate at once, and a program of version 1 goes on as long as it can.
func TestMigrateAtOnce(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := with(t, testserver.Redis(t))
	c := admin(t, url)
	prefix := version1(t, c, url)
	wrote, stop := writingAs1(t, c, prefix, 3000)
	stores := make([]*Store, 6)
	var opening sync.WaitGroup
	for i := range stores {
		opening.Go(func() {
			o, err := ParseURL(url)
			if err == nil {
				stores[i], err = Open(ctx, o)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	opening.Wait()
	stop()
	want := map[string]bool{}
	for row := range wrote {
		want[row] = true
	}
	require.Greater(t, len(want), 3000)
	for _, s := range stores {
		require.NotNil(t, s)
		lost := maps.Clone(want)
		for _, row := range scanKeys(t, s, rowstore.ScanRange{Table: "t", Slots: everySlot()}) {
			delete(lost, row)
		}
		require.Empty(t, slices.Collect(maps.Keys(lost)))
	}
	findsAll(t, stores[0], tablesOf1...)
	require.Empty(t, oldIndexes(t, c, prefix))
	for _, s := range stores {
		require.NoError(t, s.Close())
	}
}

// A store that a program of a later version has raised is refused: at Open, at each draw, and at
// each write, before anything is written.
func TestLaterVersion(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := with(t, testserver.Redis(t), "partitions", "3")
	c := admin(t, url)
	s := bare(t, url)
	apply(t, s, put("r", 1, "before"))
	refused := func(err error) {
		t.Helper()
		require.ErrorIs(t, err, rowstore.ErrFormat)
		require.ErrorContains(t, err, "format version 4")
		require.NotErrorIs(t, err, rowstore.ErrAmbiguous)
	}
	was := c.Get(ctx, s.okey).Val()
	require.Len(t, was, 62)
	require.NoError(t, c.SetRange(ctx, s.okey, 6, "\x04").Err())
	_, err := s.Oracle().Draw(ctx, 1)
	refused(err)
	_, err = s.ReadSnapshot(ctx, []rowstore.SnapshotRead{{Reads: []rowstore.RowRead{{Table: "t", Row: "r", Selectors: []rowstore.Selector{
		{Family: rowstore.Write, Column: "c", To: rowstore.AssignedTimestamp, Limit: 1},
	}}}}})
	refused(err)
	for _, m := range []rowstore.Mutation{
		onePhase("one", 5), // quick
		{Table: "t", Row: "r", Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "c", rowstore.AssignedTimestamp, nil)}},
	} {
		outs, err := s.Group(ctx, []rowstore.Group{{AssignTimestamp: true, Mutations: []rowstore.Mutation{m}}})
		if err == nil {
			err = outs[0].Err
		}
		refused(err)
	}
	require.Empty(t, notifiedIn(t, s, "t"))
	// What draws nothing looks elsewhere.
	apply(t, s, put("r", 2, "after"))
	require.NoError(t, c.Set(ctx, s.parts[0].tag+"l", "4", 0).Err())
	refused(tryApply(ctx, s, put("r", 3, "no")))
	require.Equal(t, "after", newest(t, s, "r"), "nothing was written, and reads go on")
	require.NoError(t, c.HSet(ctx, s.parts[0].tag+"m", "format", 4).Err())
	refused(openError(t, url))
	// All is as it was.
	require.NoError(t, c.HSet(ctx, s.parts[0].tag+"m", "format", 3).Err())
	require.NoError(t, c.Del(ctx, s.parts[0].tag+"l").Err())
	require.NoError(t, c.Set(ctx, s.okey, was, 0).Err())
	apply(t, bare(t, url), put("r", 3, "again"))
}

// A backup of version 1 is put in the place of a store that is open. It writes nothing more until
// it is opened again, which migrates.
func TestEarlierVersionUnderAnOpenStore(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := with(t, testserver.Redis(t))
	c := admin(t, url)
	prefix := version1(t, c, url)
	s := bare(t, url)
	keys, err := c.Keys(ctx, "{"+prefix+":*").Result()
	require.NoError(t, err)
	require.NoError(t, c.Del(ctx, keys...).Err())
	version1(t, c, url)
	_, err = s.Oracle().Draw(ctx, 1)
	require.ErrorIs(t, err, rowstore.ErrFormat)
	require.ErrorContains(t, err, "format version 1")
	require.ErrorContains(t, err, "open the store anew")
	again := bare(t, url)
	require.Equal(t, 3*21, findsAll(t, again, tablesOf1...))
	draw(t, s)
	// The record says version 3, and the oracle does not: somebody made the record by hand.
	tag := s.parts[0].tag
	v := c.Get(ctx, tag+"o").Val()
	require.NoError(t, c.Set(ctx, tag+"o", v[7:], 0).Err())
	_, err = s.Oracle().Draw(ctx, 1)
	require.ErrorIs(t, err, rowstore.ErrFormat)
	last := draw(t, bare(t, url))
	require.Greater(t, draw(t, s), last)
	// A record that does not say what puts rows into partitions is not guessed at.
	require.NoError(t, c.HDel(ctx, tag+"m", "spread").Err())
	require.ErrorIs(t, openError(t, url), rowstore.ErrCorrupt)
	require.NoError(t, c.HSet(ctx, tag+"m", "spread", "rows").Err())
	// What is not an index's is not taken for one.
	require.NoError(t, c.ZAdd(ctx, tag+"n:t", goredis.Z{Member: "garbage"}).Err())
	for _, slots := range [][]rowstore.SlotRange{everySlot(), nil} {
		for _, err := range s.Scan(ctx, rowstore.ScanRange{Table: "t", Slots: slots, Selectors: ofNotify()}) {
			require.ErrorIs(t, err, rowstore.ErrCorrupt)
		}
	}
	require.ErrorIs(t, openError(t, url), rowstore.ErrCorrupt)
}

// serverTime is how long the scripts of a server took.
func serverTime(t testing.TB, c *goredis.Client) time.Duration {
	t.Helper()
	text, err := c.Info(context.Background(), "commandstats").Result()
	require.NoError(t, err)
	_, text, _ = strings.Cut(text, "cmdstat_evalsha:")
	_, text, _ = strings.Cut(text, "usec=")
	text, _, _ = strings.Cut(text, ",")
	if text == "" {
		return 0
	}
	us, err := strconv.Atoi(text)
	require.NoError(t, err)
	return time.Duration(us) * time.Microsecond
}

// Each step of a migration is bounded, however much there is.
func TestMigrateInBoundedSteps(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	srv := testserver.NewRedis(t, nil)
	url := with(t, srv.URL)
	c := admin(t, url)
	version1(t, c, url)
	s := bare(t, url)
	const rows = 20_000
	part := s.parts[0].tag
	pipe := c.Pipeline()
	for i := range rows {
		row := fmt.Sprint("many", i)
		pipe.HSet(ctx, part+"r:t/"+row, "N1:c", noteBytes())
		pipe.ZAdd(ctx, part+"n:t", goredis.Z{Member: row + "\x00\x01c"})
	}
	_, err := pipe.Exec(ctx)
	require.NoError(t, err)
	began, before := serverTime(t, c), calls(t, c)
	require.NoError(t, s.move(ctx, 0, "t"))
	n := calls(t, c) - before
	t.Logf("%d rows were moved in %d steps, which took %v on the server", rows, n, serverTime(t, c)-began)
	require.GreaterOrEqual(t, n, rows/maxMoved)
	require.EqualValues(t, 0, c.Exists(ctx, part+"n:t").Val())
	moved, err := c.ZCount(ctx, part+"s:t", "-inf", "+inf").Result()
	require.NoError(t, err)
	require.GreaterOrEqual(t, moved, int64(rows))
}
