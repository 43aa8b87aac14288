package postgres

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// slotted is a notification in a slot that is not always that of its row, so that many rows of one slot need not be found by
// trying. Only scans of slots may look at those.
type slotted struct {
	slot int
	note
}

// putSlotted puts lines into the table notify as they are.
func putSlotted(ctx context.Context, t *testing.T, direct, schema string, lines []slotted) {
	t.Helper()
	_, err := connect(ctx, t, direct).CopyFrom(ctx, pgx.Identifier{schema, "notify"}, []string{"tab", "key", "col", "ts", "val", "slot"},
		pgx.CopyFromSlice(len(lines), func(i int) ([]any, error) {
			l := &lines[i]
			return []any{[]byte(l.tab), []byte(l.key), []byte(l.col), l.ts, l.val, int32(l.slot)}, nil //nolint:gosec // small
		}))
	require.NoError(t, err)
}

func notifyPick(column string, limit int) []rowstore.Selector {
	return []rowstore.Selector{{Family: rowstore.Notify, Column: column, To: oracle.Max, Limit: limit}}
}

// statements counts the statements of a scan of slots.
func statements(ctx context.Context, s *plainStore, r rowstore.ScanRange, lines int) (rows []rowstore.Row, n int, err error) {
	ask, wider := slotAsk{r: scanAsk{r, new(bool)}, hi: afterAll}, 0
	ask.r.Slots = slices.Clone(r.Slots)
	for {
		ask.lines, ask.bytes = lines<<wider, pageBytes<<wider
		p, err := s.slotPage(ctx, ask)
		if err != nil {
			return nil, 0, err
		}
		n++
		rows = append(rows, p.rows...)
		if p.end {
			return rows, n, nil
		}
		wider = ask.next(p, wider)
	}
}

// linesOfSlots are notifications of table t and some beside it, and the rows of t by slot.
func linesOfSlots(rng *rand.Rand) (lines []slotted, want map[int][]string) {
	keys := []string{"\x00", "\x00\x00", "\x00\xff", "\xff", "\xff\x00", strings.Repeat("\xff", maxRow), strings.Repeat("\xff", maxRow-1), "'\\"}
	for i := range 120 {
		keys = append(keys, fmt.Sprintf("%c%d%c", byte(rng.UintN(256)), i, byte(rng.UintN(256))))
	}
	want = map[int][]string{}
	for i, key := range keys {
		slot := []int{0, 7, 7, 7, 8, 1000, rowstore.Slots - 1}[i%7]
		want[slot] = append(want[slot], key)
		for ts := range 1 + rng.IntN(4) {
			lines = append(lines, slotted{slot, note{"t", key, fmt.Sprint("c", rng.IntN(3), ts), int64(ts + 1), []byte("v")}})
		}
	}
	for ts := range 500 {
		lines = append(lines, slotted{7, note{"t", "wide", "c", int64(ts + 1), nil}})
	}
	want[7] = append(want[7], "wide")
	lines = append(lines, slotted{7, note{"s", "other", "c", 1, nil}}, slotted{7, note{"u", "other", "c", 1, nil}})
	return lines, want
}

// Pages of every length, which end within slots and within rows, make the same scan.
func TestSlotPages(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	s := openTest(t, with(direct, "schema", schema, "coalesce", "off"))
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a test
	lines, want := linesOfSlots(rng)
	putSlotted(ctx, t, direct, schema, lines)
	of := map[string]int{}
	for _, l := range lines {
		of[l.tab+" "+l.key]++
	}
	for _, slots := range [][]rowstore.SlotRange{
		{{First: 0, Last: rowstore.Slots - 1}},
		{{First: 0, Last: 0}, {First: rowstore.Slots - 1, Last: rowstore.Slots - 1}},
		{{First: 3, Last: 7}, {First: 8, Last: 8}, {First: 9, Last: 999}, {First: 1001, Last: 2000}},
		{{First: 8, Last: 1000}},
		{{First: 9, Last: 999}},
	} {
		for _, from := range []string{"", "\x00", "m", "wide", "wide\x00", afterAll} {
			var expect []string
			for _, slot := range slices.Sorted(maps.Keys(want)) {
				if !slices.ContainsFunc(slots, func(r rowstore.SlotRange) bool { return int(r.First) <= slot && slot <= int(r.Last) }) {
					continue
				}
				sorted := slices.Clone(want[slot])
				slices.Sort(sorted)
				for _, key := range sorted {
					if slot > int(slots[0].First) || key >= from {
						expect = append(expect, key)
					}
				}
			}
			r := rowstore.ScanRange{Table: "t", Slots: slots, From: from, Selectors: notifyPick(rowstore.AllColumns, 0)}
			check := func(rows []rowstore.Row, what string) {
				t.Helper()
				var got []string
				for _, row := range rows {
					got = append(got, row.Row)
					require.Len(t, row.Versions, of["t "+row.Row], "row %q", row.Row)
				}
				require.Equal(t, expect, got, "%s, slots %v from %q", what, slots, from)
			}
			for _, lines := range []int{1, 3, 97} {
				if lines == 1 && from != "" && from != "m" {
					continue // it takes long
				}
				rows, _, err := statements(ctx, s.plain, r, lines)
				require.NoError(t, err)
				check(rows, fmt.Sprint("in pages of ", lines))
			}
			for _, limit := range []int{0, 1, 7} {
				r.Limit = limit
				expect := expect[:min(len(expect), cmp.Or(limit, len(expect)))]
				var got []string
				for row, err := range s.Scan(ctx, r) {
					require.NoError(t, err)
					got = append(got, row.Row)
				}
				require.Equal(t, slices.Clone(expect), got)
			}
		}
	}
}

// Pages are bounded in bytes, and have a row at least: also one of more lines, or of more bytes, than a page has.
func TestWideRowsInSlots(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	s := openTest(t, with(direct, "schema", schema, "coalesce", "off"))
	var lines []slotted
	for ts := range maxSlotLook + 500 {
		lines = append(lines, slotted{7, note{"t", "wide", "c", int64(ts + 1), nil}})
	}
	for i := range 8 {
		lines = append(lines, slotted{8, note{"t", fmt.Sprint("heavy", i%2), "c", int64(i + 1), make([]byte, pageBytes/2)}})
	}
	lines = append(lines, slotted{6, note{"t", "before", "c", 1, nil}}, slotted{9, note{"t", "after", "c", 1, nil}})
	putSlotted(ctx, t, direct, schema, lines)
	r := rowstore.ScanRange{Table: "t", Slots: []rowstore.SlotRange{{First: 6, Last: 7}, {First: 8, Last: 9}}, Selectors: notifyPick("c", 0)}
	rows, n, err := statements(ctx, s.plain, r, maxSlotLook)
	require.NoError(t, err)
	require.Greater(t, n, 4)
	want := map[string]int{"before": 1, "wide": maxSlotLook + 500, "heavy0": 4, "heavy1": 4, "after": 1}
	for _, row := range rows {
		require.Len(t, row.Versions, want[row.Row], "row %q", row.Row)
	}
	require.Len(t, rows, len(want))
	r.Selectors = notifyPick("c", 3)
	r.Limit = 3
	seen := 0
	for row, err := range s.Scan(ctx, r) {
		require.NoError(t, err)
		require.Len(t, row.Versions, min(3, want[row.Row]), "row %q", row.Row)
		seen++
	}
	require.Equal(t, 3, seen)
}

// A statement of a scan of slots looks at a bounded number of lines, whether they match or not, and at none in other
// slots; and so does one of a scan in the order of rows.
func TestSlotScanLooksAtBoundedLines(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	server := testserver.NewPostgres(t, map[string]string{"max_wal_size": "4GB", "autovacuum": "off"})
	s := openTest(t, with(server.URL, "schema", "bounds", "coalesce", "off", "pool_max_conns", "1"))
	const lines = 200_000
	sqlDo(t, server.URL, fmt.Sprintf(`INSERT INTO bounds.notify (tab, key, col, ts, slot)
		SELECT 't', ('r' || lpad(i::text, 8, '0'))::bytea, CASE WHEN i IN (1, 100001, %d) THEN 'd' ELSE 'c' END::bytea, 5, i %% 1000 * 64 FROM generate_series(1, %[1]d) i; ANALYZE bounds.notify`, lines))
	var odd []rowstore.SlotRange // between the slots that hold something
	for slot := 1; slot < rowstore.Slots; slot += 64 {
		odd = append(odd, rowstore.SlotRange{First: uint16(slot), Last: uint16(slot + 62)}) //nolint:gosec // a slot
	}
	all := []rowstore.SlotRange{{First: 0, Last: rowstore.Slots - 1}}
	for name, c := range map[string]struct {
		r          rowstore.ScanRange
		statements int
		rows       int
	}{
		"nothing in them": {rowstore.ScanRange{Slots: odd}, 1, 0},
		"one slot":        {rowstore.ScanRange{Slots: []rowstore.SlotRange{{First: 640, Last: 640}}}, 1, 200},
		"few of many":     {rowstore.ScanRange{Slots: all, Selectors: notifyPick("d", 0)}, lines/maxSlotLook + 2, 3},
	} {
		c.r.Table = "t"
		if c.r.Selectors == nil {
			c.r.Selectors = notifyPick("c", 0)
		}
		rows, n, err := statements(ctx, s.plain, c.r, maxSlotLook)
		require.NoError(t, err, name)
		require.LessOrEqual(t, n, c.statements, name)
		require.Len(t, rows, c.rows, name)
		require.GreaterOrEqual(t, n, c.statements-2, name)
	}
	// The server counts the lines that it reads. A scan of what is not there reads none, and one of a slot its own.
	read := func() (n int) {
		var last int
		require.Eventually(t, func() bool {
			_, err := fmt.Sscan(sqlDo(t, server.URL, "SELECT idx_tup_read + 0 FROM pg_stat_user_indexes WHERE schemaname = 'bounds' AND indexrelname = 'notify_pkey'"), &n)
			require.NoError(t, err)
			same := n == last
			last = n
			return same
		}, testWait, testSettle)
		return n
	}
	require.NoError(t, s.Close())
	before := read()
	own := openTest(t, with(server.URL, "schema", "bounds", "coalesce", "off", "pool_max_conns", "1"))
	_, _, err := statements(ctx, own.plain, rowstore.ScanRange{Table: "t", Slots: odd, Selectors: notifyPick("c", 0)}, maxSlotLook)
	require.NoError(t, err)
	_, _, err = statements(ctx, own.plain, rowstore.ScanRange{Table: "t", Slots: []rowstore.SlotRange{{First: 640, Last: 640}}, Selectors: notifyPick("c", 0)}, maxSlotLook)
	require.NoError(t, err)
	require.NoError(t, own.Close())
	require.Less(t, read()-before, 1000, "lines of the index that were read")
}

// What is left of notifications that are gone stays in the index while an old transaction is open. A scan of slots
// passes that of its own slots, and not all there is.
func TestSlotScanPassesLittleOfWhatIsGone(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	server := testserver.NewPostgres(t, map[string]string{"max_wal_size": "4GB", "autovacuum": "off"})
	s := openTest(t, with(server.URL, "schema", "gone", "coalesce", "off", "pool_max_conns", "1"))
	const lines = 200_000
	old := connect(ctx, t, server.URL)
	_, err := old.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM gone.meta")
	require.NoError(t, err)
	sqlDo(t, server.URL, fmt.Sprintf(`INSERT INTO gone.notify (tab, key, col, ts, slot)
		SELECT 't', ('r' || i)::bytea, 'c', 5, i %% 1000 * 64 FROM generate_series(1, %d) i; ANALYZE gone.notify`, lines))
	sqlDo(t, server.URL, `DELETE FROM gone.notify WHERE key <> 'r999'`)
	require.NoError(t, s.Close())
	// The server counts the lines that it passes, and tells when a session has ended.
	passed := func() (n int) {
		last := -1
		require.Eventually(t, func() bool {
			_, err := fmt.Sscan(sqlDo(t, server.URL, "SELECT idx_tup_read + 0 FROM pg_stat_user_indexes WHERE schemaname = 'gone' AND indexrelname = 'notify_pkey'"), &n)
			require.NoError(t, err)
			same := n == last
			last = n
			return same
		}, testWait, testSettle)
		return n
	}
	for _, c := range []struct {
		slots      []rowstore.SlotRange
		rows, most int
	}{
		{[]rowstore.SlotRange{{First: 0, Last: 63}, {First: 999 * 64, Last: rowstore.Slots - 1}}, 1, lines / 4},
		{[]rowstore.SlotRange{{First: 0, Last: 63}, {First: 999*64 + 1, Last: rowstore.Slots - 1}}, 0, lines / 4},
		{[]rowstore.SlotRange{{First: 640, Last: 640}}, 0, 1000},
	} {
		before := passed()
		s := openTest(t, with(server.URL, "schema", "gone", "coalesce", "off", "pool_max_conns", "1"))
		rows, _, err := statements(ctx, s.plain, rowstore.ScanRange{Table: "t", Slots: c.slots, Selectors: notifyPick("c", 0)}, maxSlotLook)
		require.NoError(t, err)
		require.Len(t, rows, c.rows)
		require.NoError(t, s.Close())
		n := passed() - before
		require.Less(t, n, c.most)
		require.GreaterOrEqual(t, n, 200, "what is gone in its own slots counts")
	}
}

// Scans in the order of rows find every notification, however many there are, with those of other families and
// without, forwards and backwards.
func TestRowOrderOfNotifications(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	server := testserver.NewPostgres(t, map[string]string{"max_wal_size": "4GB"})
	s := openTest(t, with(server.URL, "schema", "order", "coalesce", "off"))
	s.plain.mostKeys = 1000
	const rows = 4_000
	var lines []slotted
	var keys []string
	for i := range rows {
		key := fmt.Sprintf("r%06d", i*7919%rows)
		keys = append(keys, key)
		lines = append(lines, slotted{int(rowstore.Slot("t", key)), note{"t", key, "c", 5, nil}})
	}
	slices.Sort(keys)
	putSlotted(ctx, t, server.URL, "order", lines)
	// Rows with a write, some of them notified.
	sqlDo(t, server.URL, fmt.Sprintf(`INSERT INTO "order".cell (tab, key, col, write_ts) SELECT 't', ('r' || lpad((i * 10)::text, 6, '0') || CASE WHEN i %% 2 = 0 THEN 'x' ELSE '' END)::bytea, 'c', 5
		FROM generate_series(0, %d) i`, rows/10-1))
	for _, c := range []rowstore.ScanRange{
		{},
		{Reverse: true},
		{From: keys[10], To: keys[rows-10]},
		{From: keys[10], To: keys[rows-10] + "\x00", Reverse: true},
		{Limit: 1},
		{Limit: 3, Reverse: true},
		{Limit: 1200, From: keys[2_500]},
		{From: keys[5], To: keys[5]},
		{From: "s"},
	} {
		for _, mixed := range []bool{false, true} {
			r := c
			r.Table, r.Selectors = "t", notifyPick("c", 1)
			all := slices.Clone(keys)
			if mixed {
				r.Selectors = append(r.Selectors, rowstore.Selector{Family: rowstore.Write, To: oracle.Max})
				for i := 0; i < rows/10; i += 2 {
					all = append(all, fmt.Sprintf("r%06dx", i*10))
				}
				slices.Sort(all)
			}
			var want []string
			for _, key := range all {
				if key >= r.From && (r.To == "" || key < r.To) {
					want = append(want, key)
				}
			}
			if r.Reverse {
				slices.Reverse(want)
			}
			if r.Limit > 0 {
				want = want[:r.Limit]
			}
			var got []string
			for row, err := range s.Scan(ctx, r) {
				require.NoError(t, err)
				got = append(got, row.Row)
				if versions := 1; mixed && len(row.Row) == 7 && row.Row[6] == '0' && (row.Row[5]-'0')%2 == 1 {
					versions++
					require.Len(t, row.Versions, versions, "row %q", row.Row)
				}
			}
			require.Equal(t, len(want), len(got), "%+v", r)
			require.True(t, slices.Equal(want, got), "%+v", r)
		}
	}
}

// A row that is scanned for its writes and its notifications is seen at one moment, and one that is notified all the time
// is always seen.
func TestNotifiedRowsAtOneMoment(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	s := openTest(t, with(direct, "schema", schema))
	writer := openTest(t, with(direct, "schema", schema, "coalesce", "off"))
	row := func(i int) string { return fmt.Sprintf("r%02d", i) }
	const rows = 40
	change := func(i int, ts rowstore.Timestamp) error {
		edits := []rowstore.Edit{
			rowstore.Put(rowstore.Write, "c", ts, nil), rowstore.Put(rowstore.Notify, "c", ts, nil),
			rowstore.DeleteRange(rowstore.Notify, "c", 0, ts-1),
		}
		_, err := writer.Apply(ctx, []rowstore.Mutation{{Table: "t", Row: row(i), Edits: edits}}, rowstore.ApplyOptions{Deferred: true})
		return err
	}
	for i := range rows {
		require.NoError(t, change(i, 10))
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var failed error
	changes := 0
	wg.Go(func() {
		for ts := rowstore.Timestamp(11); failed == nil; ts++ {
			select {
			case <-stop:
				return
			default:
				failed = change(changes%rows, ts)
				changes++
			}
		}
	})
	all := []rowstore.Selector{{Family: rowstore.Write, To: oracle.Max, Limit: 1}, {Family: rowstore.Notify, To: oracle.Max}}
	for round := range 60 {
		r := rowstore.ScanRange{Table: "t", Selectors: all, Reverse: round%2 == 1}
		if round%3 == 2 {
			r = rowstore.ScanRange{Table: "t", Selectors: all[1:], Slots: []rowstore.SlotRange{{First: 0, Last: rowstore.Slots - 1}}}
		}
		n := 0
		for row, err := range s.Scan(ctx, r) {
			require.NoError(t, err)
			n++
			require.Len(t, row.All(rowstore.Notify, "c"), 1, "row %q", row.Row)
			if len(r.Slots) == 0 {
				require.Equal(t, row.Newest(rowstore.Write, "c").TS, row.Newest(rowstore.Notify, "c").TS, "row %q", row.Row)
			}
		}
		require.Equal(t, rows, n, "round %d", round)
	}
	close(stop)
	wg.Wait()
	require.NoError(t, failed)
	require.Greater(t, changes, rows)
}
