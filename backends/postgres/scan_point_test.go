package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// scan_point answers what scan_page does, wherever pages end: within a row, between two, and by the lines, the looks or the bytes.
func TestScanPointIsScanPage(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	s := openTest(t, with(direct, "schema", fresh(t, direct), "coalesce", "off")).plain
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	columns := []string{"a", "aa", "b", "c", "\x00d", "\xff"}
	_, err := s.Apply(ctx, randomRows(r, columns), rowstore.ApplyOptions{})
	require.NoError(t, err)
	found := 0
	for range 300 {
		ask := scanAsk{ScanRange: rowstore.ScanRange{Table: "t", Reverse: r.IntN(2) == 0}, settled: new(bool)}
		at := rowstore.Timestamp(1 + r.IntN(110))
		if r.IntN(5) == 0 {
			at = oracle.Max
		}
		for _, i := range r.Perm(len(columns))[:1+r.IntN(3)] {
			ask.Selectors = append(ask.Selectors, rowstore.Selector{Family: rowstore.Lock, Column: columns[i], To: rowstore.Timestamp(r.IntN(120))},
				rowstore.Selector{Family: rowstore.Mark, Column: columns[i], To: rowstore.Timestamp(r.IntN(120))},
				rowstore.Selector{Family: rowstore.Write, Column: columns[i], From: rowstore.Timestamp(r.IntN(2) * r.IntN(50)), To: at, Limit: 1})
		}
		if r.IntN(3) == 0 {
			ask.Selectors = []rowstore.Selector{{Family: rowstore.Lock, Column: rowstore.AllColumns, To: at, Limit: 1}, {Family: rowstore.Write, Column: rowstore.AllColumns, To: at, Limit: 1}}
		}
		point, ok := newPointScan(s, ask)
		require.True(t, ok)
		lo, hi := fmt.Sprintf("row%02d", r.IntN(60)), afterAll
		if r.IntN(2) == 0 {
			hi = fmt.Sprintf("row%02d", r.IntN(60))
		}
		size, look := 1+r.IntN(8), 1+r.IntN(40)
		if r.IntN(4) == 0 {
			size, look = firstPage, firstLook
		}
		point.look, point.bytes = look, pageBytes*look/firstLook
		want := allPages(ctx, t, s.page, ask, lo, hi, firstPage, firstLook)
		require.Equal(t, want, allPages(ctx, t, point.page, ask, lo, hi, size, look), "%+v from %q to %q, %d rows and %d lines", ask.ScanRange, lo, hi, size, look)
		found += len(want)
	}
	require.Greater(t, found, 1000)
}

// randomRows are mutations of an empty table. Some rows are wide, and some columns have much history.
func randomRows(r *rand.Rand, columns []string) []rowstore.Mutation {
	var muts []rowstore.Mutation
	for i := range 60 {
		m := rowstore.Mutation{Table: "t", Row: fmt.Sprintf("row%02d%s", i, strings.Repeat("\x00", r.IntN(3)))}
		wide := 0
		if i%20 == 7 {
			wide = 300
		}
		for j := range len(columns) + wide {
			column := fmt.Sprintf("wide%03d", j)
			if j < len(columns) {
				column = columns[j]
			}
			if r.IntN(3) == 0 {
				continue
			}
			for range r.IntN(4) * r.IntN(4) {
				m.Edits = append(m.Edits, rowstore.Put(rowstore.Write, column, rowstore.Timestamp(1+r.IntN(100)), []byte(strings.Repeat("v", r.IntN(200)))))
			}
			if r.IntN(4) == 0 {
				m.Edits = append(m.Edits, rowstore.Put(rowstore.Lock, column, rowstore.Timestamp(1+r.IntN(100)), []byte("lock")))
			}
			if r.IntN(4) == 0 {
				m.Edits = append(m.Edits, rowstore.Put(rowstore.Mark, column, rowstore.Timestamp(1+r.IntN(100)), nil))
			}
		}
		if len(m.Edits) > 0 {
			muts = append(muts, oncePerVersion(m))
		}
	}
	return muts
}

// oncePerVersion leaves out what is put twice.
func oncePerVersion(m rowstore.Mutation) rowstore.Mutation {
	seen := map[string]bool{}
	edits := m.Edits
	m.Edits = nil
	for _, e := range edits {
		key := fmt.Sprint(e.Family, e.Column, e.TS)
		if e.Family != rowstore.Write {
			key = fmt.Sprint(e.Family, e.Column)
		}
		if !seen[key] {
			seen[key] = true
			m.Edits = append(m.Edits, e)
		}
	}
	return m
}

// allPages is scanRows, with pages of a size.
func allPages(ctx context.Context, t *testing.T, read pageOf, ask scanAsk, lo, hi string, size, look int) (rows []rowstore.Row) {
	t.Helper()
	least := look
	for lo < hi {
		p, err := read(ctx, ask, lo, hi, size, look)
		require.NoError(t, err)
		rows = append(rows, p.rows...)
		if p.end {
			return rows
		}
		from := &lo
		if ask.Reverse {
			from = &hi
		}
		if *from == p.next {
			look *= 2
		} else {
			look = least
		}
		*from = p.next
	}
	return rows
}

// What is not a snapshot of single columns is not for scan_point.
func TestScansForScanPage(t *testing.T) {
	t.Parallel()
	lock, write := rowstore.Selector{Family: rowstore.Lock, Column: "c", To: 5}, rowstore.Selector{Family: rowstore.Write, Column: "c", To: 5, Limit: 1}
	all, later, deep := write, write, write
	all.Column, later.To, deep.Limit = rowstore.AllColumns, 6, 0
	for i, picks := range [][]rowstore.Selector{
		{lock}, {lock, all}, {write, later}, {deep}, {{Family: rowstore.Data, Column: "c", To: 5}}, {{Family: rowstore.Notify, Column: "c", To: 5}, write},
	} {
		_, ok := newPointScan(nil, scanAsk{ScanRange: rowstore.ScanRange{Selectors: picks}})
		require.False(t, ok, "%d", i)
	}
	_, ok := newPointScan(nil, scanAsk{ScanRange: rowstore.ScanRange{Selectors: []rowstore.Selector{lock, {Family: rowstore.Mark, Column: "c", To: 5}, write}}})
	require.True(t, ok)
}

// A scan at a snapshot is one statement, which draws the timestamp, where the bound of the oracle has room, and says how old the rows
// are. On a connection that knows nothing of the oracle it draws, or says nothing.
func TestScanPointDraws(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	url := with(direct, "schema", schema, "coalesce", "off", "pool_max_conns", "1")
	other := openTest(t, url)
	_, err := other.Apply(ctx, []rowstore.Mutation{put("a", 5), put("b", 6)}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	last := draw(ctx, t, other)
	bound := func(of string) { sqlDo(t, direct, "UPDATE "+newNames(schema).schema+".oracle SET bound = "+of) }
	for _, c := range []struct {
		name    string
		prepare func(s *Store)
		start   rowstore.Timestamp // 0 for one that is drawn
		silent  bool               // it cannot tell the age
	}{
		{"a connection that knows nothing", func(*Store) {}, 0, false},
		{"a connection that knows nothing, at a timestamp", func(*Store) {}, last, true},
		{"a connection that has drawn", func(s *Store) { draw(ctx, t, s) }, 0, false},
		{"a connection that has drawn, at a timestamp", func(s *Store) { draw(ctx, t, s) }, last, false},
		{"the bound is reached, and nobody knows", func(*Store) { bound("0") }, 0, false},
		{"the bound is reached, and was far away", func(s *Store) { draw(ctx, t, s); bound("0") }, 0, false},
	} {
		s := openTest(t, url)
		c.prepare(s)
		last = draw(ctx, t, other)
		at := &rowstore.ScanSnapshot{Start: c.start}
		rows := 0
		for row, err := range s.Scan(ctx, rowstore.ScanRange{Table: "t", Snapshot: at, Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: "c", To: rowstore.AssignedTimestamp, Limit: 1}}}) {
			require.NoError(t, err, c.name)
			require.NotEmpty(t, row.Versions)
			rows++
		}
		require.Equal(t, 2, rows, c.name)
		switch {
		case c.silent:
			require.Zero(t, at.Latest, c.name)
		default:
			require.GreaterOrEqual(t, at.Latest, max(last, at.Start), c.name)
		}
		if c.start == 0 {
			require.Greater(t, at.Start, last, c.name)
			require.Greater(t, draw(ctx, t, other), at.Start, c.name)
		} else {
			require.Equal(t, c.start, at.Start)
		}
	}
}

// How old the rows of a scan are is told by the last timestamp after they were read. Here the scan waits for a transaction that might have drawn,
// and another draws meanwhile. A function that looks before it waits tells too little.
func TestScanPointTellsItsAgeAfterItsRows(t *testing.T) {
	t.Parallel()
	direct := testserver.Postgres(t)
	for name, early := range map[string]bool{"Whole": false, "LooksEarly": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			schema := fresh(t, direct)
			n := newNames(schema)
			s := openTest(t, with(direct, "schema", schema, "coalesce", "off", "application_name", n.channel))
			if early {
				last, drawn := "pg_sequence_last_value("+n.expand(clockSQL)+");", "write_ts := NULL;\n\tEND IF;\n"
				broken := replaceAll(t, "mark_ts := "+last, "mark_ts := looked;", drawn, drawn+"\tlooked := "+last+"\n")(n.functions())
				sqlDo(t, direct, "SET search_path = pg_catalog, pg_temp;"+n.expand(dropFunctions+broken))
			}
			out, err := s.Apply(ctx, []rowstore.Mutation{put("a", 5)}, rowstore.ApplyOptions{})
			require.NoError(t, err)
			require.True(t, out[0].Applied)
			other := openTest(t, with(direct, "schema", schema))
			holder, watcher := connect(ctx, t, direct), connect(ctx, t, direct)
			require.NoError(t, exec(ctx, holder, n.expand("BEGIN; SELECT pg_advisory_xact_lock('{{transactions}}'::bigint | (pg_current_xact_id()::text::bigint & 4294967295))")))
			at := &rowstore.ScanSnapshot{}
			done := make(chan error, 1)
			go func() {
				_, _, err := scanOf(ctx, s, rowstore.ScanRange{Snapshot: at, Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: "c", To: rowstore.AssignedTimestamp, Limit: 1}}}, 0)
				done <- err
			}()
			waitsForLock(ctx, t, watcher, n.channel, done)
			meanwhile := draw(ctx, t, other)
			require.NoError(t, exec(ctx, holder, "ROLLBACK"))
			require.NoError(t, <-done)
			require.Less(t, at.Start, meanwhile)
			require.Equal(t, !early, at.Latest >= meanwhile, "it tells %d, and %d was drawn before its rows were read", uint64(at.Latest), uint64(meanwhile))
		})
	}
}
