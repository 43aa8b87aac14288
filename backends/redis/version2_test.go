package redis

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// The scripts of a program of version 2. Its arguments are those of this version.
var (
	//go:embed testdata/version2/write.lua
	writeOf2 string
	//go:embed testdata/version2/quick.lua
	quickOf2 string
	//go:embed testdata/version2/read.lua
	readOf2 string
	//go:embed testdata/version2/draw.lua
	drawOf2 string
	//go:embed testdata/version2/open.lua
	openOf2 string
)

// program2 is a program of version 2 that has a store open.
type program2 struct {
	c *goredis.Client
	s *direct // for names and encodings
}

// version2 makes a store of version 2 under the prefix of a URL.
func version2(t testing.TB, url string, partitions int) *program2 {
	t.Helper()
	o, err := ParseURL(url)
	require.NoError(t, err)
	o.Partitions = partitions
	p := &program2{admin(t, url), newDirect(o)}
	t.Cleanup(p.s.stop)
	p.s.bySlot = true
	got, err := p.c.Eval(t.Context(), openOf2, []string{p.s.parts[0].tag + "m", p.s.okey, p.s.parts[0].tables}, 2, partitions, "").StringSlice()
	require.NoError(t, err)
	require.Equal(t, []string{"2", fmt.Sprint(partitions), "slots", ""}, got)
	require.NoError(t, p.draw(t.Context()))
	return p
}

func (p *program2) draw(ctx context.Context) error {
	return p.c.Eval(ctx, drawOf2, []string{p.s.okey, p.s.parts[0].tables, p.s.parts[0].never}, 1).Err()
}

func (p *program2) mutate(ctx context.Context, m rowstore.Mutation) (string, error) {
	var e writeEncoder
	part := p.s.parts[p.s.partOf(m.Table, m.Row)]
	e.begin("", p.s.channel)
	end := e.group(1, false, 0)
	oldMutation(&e, part.tag, &m)
	e.endGroup(end)
	return p.c.Eval(ctx, writeOf2, []string{part.tables, part.never}, e.bytes()).Text()
}

// commit writes a cell in one phase.
func (p *program2) commit(ctx context.Context, m rowstore.Mutation) (string, error) {
	var e writeEncoder
	part := p.s.parts[p.s.partOf(m.Table, m.Row)]
	e.begin(p.s.okey, p.s.channel)
	if !e.quick(func(*rowstore.Mutation) string { return part.tag }, []rowstore.Mutation{m}, 0) {
		return "", fmt.Errorf("%+v is not quick", m)
	}
	return p.c.Eval(ctx, quickOf2, []string{part.tables, part.never}, e.bytes()).Text()
}

func (p *program2) read(ctx context.Context, row, column string, at rowstore.Timestamp) (string, error) {
	var e packer
	e.reset()
	e.allow(e.budget(), 1000, 1000)
	part := p.s.parts[p.s.partOf("t", row)]
	e.read(part.tag, &rowstore.RowRead{Table: "t", Row: row, Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: column, To: at, Limit: 1}}})
	return p.c.Eval(ctx, readOf2, []string{part.tables, part.never}, e.bytes()).Text()
}

// modelRow is a row as it should be: the writes of its columns by timestamp.
type modelRow struct {
	rnd    *rand.Rand
	name   string
	writes map[string]map[rowstore.Timestamp]string
	next   rowstore.Timestamp
}

func (m *modelRow) column() string { return columnName(m.rnd.IntN(3)) }

// some is a timestamp of a write of a column, or one beside it.
func (m *modelRow) some(column string) rowstore.Timestamp {
	all := slices.Sorted(maps.Keys(m.writes[column]))
	if len(all) == 0 {
		return m.next
	}
	return all[m.rnd.IntN(len(all))] + rowstore.Timestamp(m.rnd.IntN(3)) - 1
}

// value begins with a byte above zero, as each record does. Some are long.
func (m *modelRow) value() string {
	v := fmt.Sprintf("\x01%d", m.rnd.IntN(1000))
	switch m.rnd.IntN(12) {
	case 0:
		return v + strings.Repeat("x", 280+m.rnd.IntN(40))
	case 1:
		return "\xff\xff" + v
	}
	return v
}

// change makes up a mutation. The model is as it will be then.
func (m *modelRow) change() rowstore.Mutation {
	mut := rowstore.Mutation{Table: "t", Row: m.name}
	put := func(column string, ts rowstore.Timestamp) {
		v := m.value()
		mut.Edits = append(mut.Edits, rowstore.Put(rowstore.Write, column, ts, []byte(v)))
		if m.writes[column] == nil {
			m.writes[column] = map[rowstore.Timestamp]string{}
		}
		m.writes[column][ts] = v
	}
	switch n := m.rnd.IntN(40); {
	case n < 32:
		// Most writes are newer than what is there. Some come together.
		for range 1 + m.rnd.IntN(2)*m.rnd.IntN(20)*m.rnd.IntN(2) {
			m.next += 2
			put(m.column(), m.next)
		}
	case n < 35:
		c := m.column()
		put(c, max(m.some(c), 1))
	case n < 37:
		mut.Edits = append(mut.Edits, rowstore.Put(rowstore.Mark, m.column(), 1+m.next, nil))
	default:
		c := m.column()
		lo, hi := m.some(c), m.some(c)
		if m.rnd.IntN(2) == 0 {
			lo = 0
		}
		if m.rnd.IntN(12) == 0 {
			hi = maxTS
		}
		mut.Edits = append(mut.Edits, rowstore.DeleteRange(rowstore.Write, c, lo, hi))
		maps.DeleteFunc(m.writes[c], func(ts rowstore.Timestamp, _ string) bool { return ts >= lo && ts <= hi })
	}
	return mut
}

// selected is what a selector of writes finds.
func (m *modelRow) selected(p rowstore.Selector) []rowstore.Version {
	var all []rowstore.Version
	for c, writes := range m.writes {
		if p.Column != c && p.Column != rowstore.AllColumns {
			continue
		}
		var vs []rowstore.Version
		for ts, v := range writes {
			if ts >= p.From && ts <= p.To {
				vs = append(vs, rowstore.Version{Family: rowstore.Write, Column: c, TS: ts, Value: []byte(v)})
			}
		}
		slices.SortFunc(vs, func(a, b rowstore.Version) int { return cmp.Compare(b.TS, a.TS) })
		if p.Limit > 0 && len(vs) > p.Limit {
			vs = vs[:p.Limit]
		}
		all = append(all, vs...)
	}
	slices.SortFunc(all, rowstore.CompareVersions)
	return all
}

// check compares the row with the model by reads of each shape.
func (m *modelRow) check(t *testing.T, s *direct) {
	t.Helper()
	picks := []rowstore.Selector{{Family: rowstore.Write, Column: rowstore.AllColumns, To: maxTS}}
	for range 3 {
		c := m.column()
		lo, hi := m.some(c), m.some(c)
		picks = append(picks, rowstore.Selector{Family: rowstore.Write, Column: c, To: hi, Limit: 1},
			rowstore.Selector{Family: rowstore.Write, Column: c, From: lo, To: hi, Limit: m.rnd.IntN(4)},
			rowstore.Selector{Family: rowstore.Write, Column: rowstore.AllColumns, From: lo * rowstore.Timestamp(m.rnd.IntN(2)), To: hi, Limit: m.rnd.IntN(2)})
	}
	// The two newest writes come with a timestamp. It is above those of the model.
	newest := rowstore.Selector{Family: rowstore.Write, Column: m.column(), To: rowstore.AssignedTimestamp, Limit: 2}
	begun, err := s.ReadSnapshot(t.Context(), []rowstore.SnapshotRead{{Reads: []rowstore.RowRead{{Table: "t", Row: m.name, Selectors: []rowstore.Selector{newest}}}}})
	require.NoError(t, err)
	newest.To = maxTS
	require.Equal(t, m.selected(newest), begun[0].Rows[0].Versions, "%+v", newest)
	for _, p := range picks {
		want := m.selected(p)
		require.Equal(t, want, readRow(t, s, m.name, p), "%+v", p)
		vs, err := s.readWide(t.Context(), &rowstore.RowRead{Table: "t", Row: m.name, Selectors: []rowstore.Selector{p}})
		require.NoError(t, err)
		require.Equal(t, want, vs, "in pieces: %+v", p)
	}
}

// settled makes sure that nothing is left of a row whose versions are all removed.
func (m *modelRow) settled(t *testing.T, s *direct, c *goredis.Client) {
	t.Helper()
	mut := rowstore.Mutation{Table: "t", Row: m.name}
	for i := range 3 {
		mut.Edits = append(mut.Edits, rowstore.DeleteRange(rowstore.Write, columnName(i), 0, maxTS), rowstore.DeleteRange(rowstore.Mark, columnName(i), 0, maxTS))
	}
	apply(t, s, mut)
	tag := s.parts[s.partOf("t", m.name)].tag
	require.Zero(t, c.Exists(t.Context(), tag+"r:t/"+m.name, tag+"h:t/"+m.name).Val())
}

func newModel(t *testing.T, name string) *modelRow {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("row %s has the seed %d", name, seed)
	return &modelRow{rnd: rand.New(rand.NewPCG(seed, 0)), name: name, writes: map[string]map[rowstore.Timestamp]string{}, next: 10}
}

// TestHistory writes, overwrites and removes at random, and reads every version back.
func TestHistory(t *testing.T) {
	t.Parallel()
	url := with(t, testserver.Redis(t))
	s := bare(t, url)
	for round := range 10 {
		m := newModel(t, fmt.Sprint("r", round))
		for i := range 150 {
			apply(t, s, m.change())
			if i%30 == 0 {
				m.check(t, s)
			}
		}
		m.check(t, s)
		m.settled(t, s, admin(t, url))
	}
}

// TestMigrateVersion2 has a program of version 2 write rows, and one of this version go on with them.
func TestMigrateVersion2(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := with(t, testserver.Redis(t))
	p := version2(t, url, 3)
	var rows []*modelRow
	for i := range 10 {
		m := newModel(t, fmt.Sprint("r", i))
		rows = append(rows, m)
		for range 100 {
			_, err := p.mutate(ctx, m.change())
			require.NoError(t, err)
		}
	}
	for range 30 {
		_, err := p.commit(ctx, onePhaseOn("committed", "c", maxTS))
		require.NoError(t, err)
	}
	_, err := OpenURL(ctx, url+"&asis=true")
	var other *rowstore.LayoutError
	require.ErrorAs(t, err, &other)
	require.Equal(t, 2, other.Stored)
	require.False(t, other.Newer())
	require.NoError(t, p.draw(ctx), "nothing was migrated")

	s := bare(t, url)
	require.True(t, s.bySlot)
	require.Equal(t, map[string]string{"format": "3", "partitions": "3", "spread": "slots"}, p.c.HGetAll(ctx, s.parts[0].tag+"m").Val())
	var stamps []rowstore.Timestamp
	for i := range 30 {
		vs := readRow(t, s, "committed", rowstore.Selector{Family: rowstore.Write, Column: "c", To: maxTS})
		require.Len(t, vs, 30+i)
		if stamps != nil {
			require.Equal(t, stamps[0], vs[1].TS)
		}
		stamps = stamps[:0]
		for _, v := range vs {
			stamps = append(stamps, v.TS)
		}
		g, err := s.Group(ctx, []rowstore.Group{{Mutations: []rowstore.Mutation{onePhaseOn("committed", "c", maxTS)}, AssignTimestamp: true}})
		require.NoError(t, err)
		require.True(t, g[0].Applied)
	}
	for _, m := range rows {
		m.check(t, s)
		for i := range 60 {
			apply(t, s, m.change())
			if i%15 == 0 {
				m.check(t, s)
			}
		}
		m.check(t, s)
		m.settled(t, s, p.c)
	}
}

// TestVersion2IsRefused has a program of version 2 open while another one migrates the store.
func TestVersion2IsRefused(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := with(t, testserver.Redis(t))
	p := version2(t, url, 3)
	var rows []string
	for i := range 30 {
		rows = append(rows, fmt.Sprint("r", i))
	}
	write := func(row string, ts rowstore.Timestamp) rowstore.Mutation { return put(row, ts, "\x01value") }
	seen := map[int]bool{}
	for _, row := range rows {
		seen[p.s.partOf("t", row)] = true
		for ts := range rowstore.Timestamp(5) {
			_, err := p.mutate(ctx, write(row, ts+1))
			require.NoError(t, err)
		}
	}
	require.Len(t, seen, 3, "there are rows in each partition")
	s := bare(t, url)
	for _, row := range rows {
		_, err := p.mutate(ctx, write(row, 6))
		require.ErrorContains(t, err, "FORMAT 3")
		_, err = p.commit(ctx, onePhaseOn(row, "c", maxTS))
		require.ErrorContains(t, err, "FORMAT 3")
		_, err = p.read(ctx, row, "c", 2)
		require.NoError(t, err, "what it wrote itself it reads")
		require.Len(t, readRow(t, s, row, rowstore.Selector{Family: rowstore.Write, Column: "c", To: maxTS}), 5, "nothing was written")
	}
	require.ErrorContains(t, p.draw(ctx), "FORMAT 3")
	got, err := p.c.Eval(ctx, openOf2, []string{s.parts[0].tag + "m", s.okey, s.parts[0].tables}, 2, 3, "").StringSlice()
	require.NoError(t, err)
	require.Equal(t, "3", got[0], "its Open sees another version")

	// It reads no cell that this version has written, at whatever timestamp: it would miss
	// older writes.
	apply(t, s, write("r0", 6))
	apply(t, s, rowstore.Mutation{Table: "t", Row: "r1", Edits: []rowstore.Edit{rowstore.Put(rowstore.Lock, "c", 7, []byte("\x01lock"))}})
	apply(t, s, rowstore.Mutation{Table: "t", Row: "r2", Edits: []rowstore.Edit{rowstore.Put(rowstore.Mark, "c", 7, nil)}})
	apply(t, s, write("new", 6))
	for _, row := range []string{"r0", "r1", "r2", "new"} {
		raw := p.c.HGet(ctx, s.parts[s.partOf("t", row)].tag+"r:t/"+row, "W1:c").Val()
		require.NotZero(t, raw[0]&flagLock)
		_, _, _, ok := parseSized(raw[1:])
		require.False(t, ok, "version 2 takes the cell of row %s for damaged", row)
		for _, at := range []rowstore.Timestamp{2, 5, 6, maxTS} {
			_, err := p.read(ctx, row, "c", at)
			require.ErrorContains(t, err, "too short", "row %s", row)
		}
	}
}

// A backup of version 2 is put in the place of a store that is open.
func TestVersion2UnderAnOpenStore(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := with(t, testserver.Redis(t), "partitions", "3")
	s := bare(t, url)
	c := admin(t, url)
	keys, err := c.Keys(ctx, "{"+s.opts.Prefix+":*").Result()
	require.NoError(t, err)
	require.NoError(t, c.Del(ctx, keys...).Err())
	p := version2(t, url, 3)
	_, err = s.Oracle().Draw(ctx, 1)
	require.ErrorIs(t, err, rowstore.ErrFormat)
	require.ErrorContains(t, err, "format version 2")
	require.ErrorContains(t, err, "open the store anew")
	require.NoError(t, p.draw(ctx))
	last := draw(t, bare(t, url))
	require.Greater(t, draw(t, s), last)
	require.ErrorContains(t, p.draw(ctx), "FORMAT 3")
}
