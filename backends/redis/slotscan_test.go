package redis

import (
	"context"
	"fmt"
	"math/rand/v2"
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

// The slots of the partitions lie side by side, whatever their number.
func TestSlotsOfPartitions(t *testing.T) {
	t.Parallel()
	for n := 1; n <= maxPartitions; n++ {
		next := 0
		for p := range n {
			r := slotsOf(p, n)
			require.EqualValues(t, next, r.First)
			require.GreaterOrEqual(t, r.Last, r.First)
			require.Equal(t, p, slotPartition(r.First, n))
			require.Equal(t, p, slotPartition(r.Last, n))
			next = int(r.Last) + 1
		}
		require.Equal(t, rowstore.Slots, next)
	}
}

// The keeper keeps the first keys, whatever their order and number, in bounded memory.
func TestKeeper(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		k := keeper{reverse: rng.IntN(2) == 0, bytes: rng.IntN(2000), count: rng.IntN(3) * rng.IntN(20)}
		if rng.IntN(2) == 0 {
			k.from, k.to = fmt.Sprint(rng.IntN(500)), fmt.Sprint(rng.IntN(1000))
		}
		var all []string
		for _, i := range rng.Perm(rng.IntN(1000)) {
			row := fmt.Sprint(i)
			k.add(row)
			if row >= k.from && (k.to == "" || row < k.to) {
				all = append(all, row)
			}
			require.LessOrEqual(t, len(k.kept)*17, 2*k.bytes+2*17)
		}
		slices.Sort(all)
		if k.reverse {
			slices.Reverse(all)
		}
		rows, whole := k.rows()
		require.Equal(t, len(rows) == len(all), whole)
		require.Equal(t, slices.Clone(all[:len(rows)]), append([]string(nil), rows...))
		if !whole {
			require.NotEmpty(t, rows, "a scan must come on")
			require.Equal(t, rows[len(rows)-1], k.worst)
		}
	}
}

// spreads opens a store of each kind: with one partition, with partitions by slot, with
// partitions by row, and the latter two in a Cluster.
func spreads(t *testing.T, f func(t *testing.T, s *direct)) {
	t.Helper()
	cluster := testserver.NewRedisCluster(t, map[string]string{"cluster-node-timeout": "15000"}).URL
	for name, url := range map[string]string{
		"one":             with(t, testserver.Redis(t)),
		"slots":           with(t, testserver.Redis(t), "partitions", "7"),
		"rows":            with(t, testserver.Redis(t), "partitions", "7"),
		"slots, cluster":  with(t, cluster, "partitions", "7"),
		"rows, cluster":   with(t, cluster, "partitions", "7"),
		"many partitions": with(t, testserver.Redis(t), "partitions", "64"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := bare(t, url)
			if strings.HasPrefix(name, "rows") {
				s = byRows(t, s, url)
			}
			f(t, s)
		})
	}
}

// byRows makes an empty store one that was made in version 1.
func byRows(t testing.TB, s *direct, url string) *direct {
	t.Helper()
	require.NoError(t, s.perform(context.Background(), func(ctx context.Context) error {
		c, err := s.nodes.of(ctx, 0)
		if err != nil {
			return err
		}
		return c.HSet(ctx, s.parts[0].tag+"m", "spread", spreadRows).Err()
	}))
	again := bare(t, url)
	require.False(t, again.bySlot)
	return again
}

// Scans of many single slots, and of random ranges, among rows of all slots; with pages and
// runs of the script that end anywhere.
func TestScanSlots(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	spreads(t, func(t *testing.T, s *direct) {
		rng := rand.New(rand.NewPCG(seed, 1))
		const rows = 4000
		bySlot := map[uint16][]string{}
		var muts []rowstore.Mutation
		for i := range rows {
			row := fmt.Sprintf("%c\x00%c\xff%d", byte(i), byte(i*7), i)
			slot := rowstore.Slot("t", row)
			bySlot[slot] = append(bySlot[slot], row)
			edits := []rowstore.Edit{rowstore.Put(rowstore.Notify, "c", 5, []byte("v"))}
			for c := range i % 3 {
				edits = append(edits, rowstore.Put(rowstore.Notify, "\x00\x01"+strconv.Itoa(c), 5, nil))
			}
			muts = append(muts, rowstore.Mutation{Table: "t", Row: row, Edits: edits})
		}
		for of := range slices.Chunk(muts, 500) {
			_, err := s.Apply(t.Context(), of, rowstore.ApplyOptions{})
			require.NoError(t, err)
		}
		for slot := range bySlot {
			slices.Sort(bySlot[slot])
		}
		want := func(ranges []rowstore.SlotRange) (all []string) {
			for _, r := range ranges {
				for slot := int(r.First); slot <= int(r.Last); slot++ {
					all = append(all, bySlot[uint16(slot)]...)
				}
			}
			return all
		}
		var odd []rowstore.SlotRange
		for slot := 1; slot < rowstore.Slots; slot += 4 {
			odd = append(odd, rowstore.SlotRange{First: uint16(slot), Last: uint16(slot)})
		}
		for i, ranges := range [][]rowstore.SlotRange{everySlot(), odd, randomSlots(rng, 1000), randomSlots(rng, 20), randomSlots(rng, 1)} {
			all := want(ranges)
			got := scanKeys(t, s, rowstore.ScanRange{Table: "t", Slots: ranges})
			require.Equal(t, all, append([]string(nil), got...), "ranges %d", i)
			for _, limit := range []int{1, 3, 100, 256, 2000} {
				got := scanKeys(t, s, rowstore.ScanRange{Table: "t", Slots: ranges, Limit: limit})
				require.Equal(t, all[:min(limit, len(all))], append([]string(nil), got...), "ranges %d, limit %d", i, limit)
			}
		}
		// In the order of rows.
		var sorted []string
		for _, m := range muts {
			sorted = append(sorted, m.Row)
		}
		slices.Sort(sorted)
		for range 10 {
			a, b := rng.IntN(rows), rng.IntN(rows)
			a, b = min(a, b), max(a, b)
			limit := rng.IntN(3) * rng.IntN(700)
			in := slices.Clone(sorted[a:b])
			r := rowstore.ScanRange{Table: "t", From: sorted[a], To: sorted[b], Limit: limit, Reverse: rng.IntN(2) == 0}
			if r.Reverse {
				slices.Reverse(in)
			}
			if limit > 0 {
				in = in[:min(limit, len(in))]
			}
			require.Equal(t, in, scanKeys(t, s, r))
		}
	})
}

func randomSlots(rng *rand.Rand, n int) (ranges []rowstore.SlotRange) {
	ends := rng.Perm(rowstore.Slots)[:2*n]
	slices.Sort(ends)
	for i := 0; i < len(ends); i += 2 {
		ranges = append(ranges, rowstore.SlotRange{First: uint16(ends[i]), Last: uint16(ends[i+1])})
	}
	return ranges
}

// All rows of a table are in one slot, and their keys are as long as they may be, or of bytes
// that mean something in the index.
func TestOneSlotHoldsAll(t *testing.T) {
	t.Parallel()
	s := bare(t, with(t, testserver.Redis(t), "partitions", "5"))
	shapes := []func(i int64) string{
		func(i int64) string { return strconv.FormatInt(i, 10) },
		func(i int64) string { return "\x00" + strconv.FormatInt(i, 10) + "\x00\x01" },
		func(i int64) string { return "\xff\x00\xff" + strconv.FormatInt(i, 10) + "\x00" },
	}
	// Slots whose bytes could be taken for a part of the row's key.
	const each = 8 // each takes 65,536 tries
	rows := map[uint16][]string{0x0000: nil, 0x0001: nil, 0x0100: nil, 0xffff: nil, 0x4f00: nil}
	for full, i := 0, int64(0); full < len(rows); i++ {
		row := shapes[i%int64(len(shapes))](i)
		slot := rowstore.Slot("t", row)
		if of, wanted := rows[slot]; wanted && len(of) < each {
			if rows[slot] = append(of, row); len(of)+1 == each {
				full++
			}
		}
	}
	var muts []rowstore.Mutation
	for slot, of := range rows {
		slices.Sort(of)
		for _, row := range of {
			require.Equal(t, slot, rowstore.Slot("t", row))
			muts = append(muts, rowstore.Mutation{Table: "t", Row: row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "\x00\x01", 5, nil)}})
		}
	}
	for i := range 20 {
		row := strings.Repeat("\x00", maxRow-10) + fmt.Sprintf("%010d", i)
		column := strings.Repeat("\x00", maxColumn)
		muts = append(muts, rowstore.Mutation{Table: "t", Row: row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, column, 5, nil)}})
	}
	for of := range slices.Chunk(muts, 10) {
		_, err := s.Apply(t.Context(), of, rowstore.ApplyOptions{})
		require.NoError(t, err)
	}
	require.Equal(t, len(muts), findsAll(t, s, "t"))
	for slot, of := range rows {
		one := []rowstore.SlotRange{{First: slot, Last: slot}}
		got := scanKeys(t, s, rowstore.ScanRange{Table: "t", Slots: one})
		require.Equal(t, of, got)
		require.Equal(t, got[5:], scanKeys(t, s, rowstore.ScanRange{Table: "t", Slots: one, From: got[5]}))
		require.Equal(t, got[3:5], scanKeys(t, s, rowstore.ScanRange{Table: "t", Slots: one, From: got[2] + "\x00", Limit: 2}))
		for i := range got {
			require.Equal(t, got[i:i+1], scanKeys(t, s, rowstore.ScanRange{Table: "t", Slots: one, From: got[i], Limit: 1}))
		}
	}
}

// Some notified rows are too wide for a run of the script, or fill it, between others.
func TestScanSlotsOfWideRows(t *testing.T) {
	t.Parallel()
	s := bare(t, with(t, testserver.Redis(t), "partitions", "3"))
	const columns = maxSteps + 500
	for i := range 20 {
		m := rowstore.Mutation{Table: "t", Row: fmt.Sprint("r", i)}
		switch i % 10 {
		case 3, 4:
			for c := range columns {
				m.Edits = append(m.Edits, rowstore.Put(rowstore.Notify, fmt.Sprint("c", c), 5, nil))
			}
		case 5, 6, 7:
			m.Edits = append(m.Edits, rowstore.Put(rowstore.Notify, "c", 5, make([]byte, maxAnswer/2)))
		default:
			m.Edits = append(m.Edits, rowstore.Put(rowstore.Notify, "c", 5, nil))
		}
		apply(t, s, m)
	}
	require.Equal(t, 20, findsAll(t, s, "t"))
	wide := 0
	for row, err := range s.Scan(t.Context(), rowstore.ScanRange{Table: "t", Slots: everySlot(), Selectors: ofNotify()}) {
		require.NoError(t, err)
		if len(row.Versions) == columns {
			wide++
		}
	}
	require.Equal(t, 4, wide)
	for _, limit := range []int{1, 7, 19} {
		require.Len(t, scanKeys(t, s, rowstore.ScanRange{Table: "t", Slots: everySlot(), Limit: limit}), limit)
	}
}

// calls counts the scripts that a server ran.
func calls(t testing.TB, c *goredis.Client) (n int) {
	t.Helper()
	text, err := c.Info(context.Background(), "commandstats").Result()
	require.NoError(t, err)
	for line := range strings.Lines(text) {
		for _, name := range []string{"cmdstat_evalsha:calls=", "cmdstat_eval:calls="} {
			if v, ok := strings.CutPrefix(line, name); ok {
				v, _, _ = strings.Cut(v, ",")
				i, err := strconv.Atoi(v)
				require.NoError(t, err)
				n += i
			}
		}
	}
	return n
}

// Pages of a backlog over 64 partitions take a call each, and a thousand ranges that hold
// nothing take as few as there are runs of the script.
func TestScanSlotsTakesFewCalls(t *testing.T) {
	t.Parallel()
	srv := testserver.NewRedis(t, nil)
	for _, spread := range []string{spreadSlots, spreadRows} {
		url := with(t, srv.URL, "partitions", "64")
		c := admin(t, url)
		s := bare(t, url)
		if spread == spreadRows {
			s = byRows(t, s, url)
		}
		const rows = 10_000
		var muts []rowstore.Mutation
		for i := range rows {
			muts = append(muts, rowstore.Mutation{Table: "t", Row: fmt.Sprint("row", i), Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "c", 5, nil)}})
		}
		for of := range slices.Chunk(muts, 500) {
			_, err := s.Apply(t.Context(), of, rowstore.ApplyOptions{})
			require.NoError(t, err)
		}
		before, found := calls(t, c), 0
		r := rowstore.ScanRange{Table: "t", Slots: everySlot(), Limit: 256}
		for {
			page := scanKeys(t, s, r)
			found += len(page)
			if len(page) < r.Limit {
				break
			}
			last := page[len(page)-1]
			r.From, r.Slots = last+"\x00", []rowstore.SlotRange{{First: rowstore.Slot("t", last), Last: rowstore.Slots - 1}}
		}
		took := calls(t, c) - before
		require.Equal(t, rows, found)
		t.Logf("by %s: %d calls for %d cells", spread, took, found)
		require.LessOrEqual(t, took, rows/100)

		// None of these slots holds anything, and rows of others lie between all of them.
		var none []rowstore.SlotRange
		full := map[uint16]bool{}
		for _, m := range muts {
			full[rowstore.Slot("t", m.Row)] = true
		}
		for slot := 0; slot < rowstore.Slots && len(none) < 1000; slot += 60 {
			if !full[uint16(slot)] {
				none = append(none, rowstore.SlotRange{First: uint16(slot), Last: uint16(slot)})
			}
		}
		require.Greater(t, len(none), 500)
		before = calls(t, c)
		require.Empty(t, scanKeys(t, s, rowstore.ScanRange{Table: "t", Slots: none, Limit: 256}))
		took = calls(t, c) - before
		t.Logf("by %s: %d calls for %d ranges without anything", spread, took, len(none))
		require.LessOrEqual(t, took, 64*len(none)/slotLook+2)
	}
}
