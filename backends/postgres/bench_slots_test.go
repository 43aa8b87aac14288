package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// BenchmarkNotified measures what a change costs that observers wait for: the commit puts a notification, and the
// run of the observer removes it.
func BenchmarkNotified(b *testing.B) {
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprintf("goroutines=%d", n), func(b *testing.B) {
			s := benchStore(b)
			p, _ := rowstore.Unwrap[rowstore.OracleProvider](s)
			parallel(b, n, func(r *rand.Rand) error {
				ctx := context.Background()
				ts, err := p.Oracle().Draw(ctx, 1)
				if err != nil {
					return err
				}
				row := benchKey(r.IntN(benchRows()))
				for _, e := range []rowstore.Edit{rowstore.Put(rowstore.Notify, "balance", ts, []byte{1}), rowstore.Delete(rowstore.Notify, "balance", ts)} {
					edits := []rowstore.Edit{rowstore.Put(rowstore.Mark, "balance", ts, nil), e}
					if _, err := s.Apply(ctx, []rowstore.Mutation{{Table: "accounts", Row: row, Edits: edits}}, rowstore.ApplyOptions{Deferred: true}); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}

// BenchmarkNotifiedBatch is the same for one caller, by the number of rows in a call.
func BenchmarkNotifiedBatch(b *testing.B) {
	ctx := context.Background()
	for _, n := range []int{1, 32} {
		b.Run(fmt.Sprintf("rows=%d", n), func(b *testing.B) {
			s := benchStore(b, "coalesce", "off")
			p, _ := rowstore.Unwrap[rowstore.OracleProvider](s)
			r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // repeatable
			for range b.N {
				ts, err := p.Oracle().Draw(ctx, 1)
				require.NoError(b, err)
				var puts, deletes []rowstore.Mutation
				for _, k := range r.Perm(benchRows())[:n] {
					m := rowstore.Mutation{Table: "accounts", Row: benchKey(k)}
					m.Edits = []rowstore.Edit{rowstore.Put(rowstore.Mark, "balance", ts, nil), rowstore.Put(rowstore.Notify, "balance", ts, []byte{1})}
					puts = append(puts, m)
					m.Edits = []rowstore.Edit{rowstore.Put(rowstore.Mark, "balance", ts, nil), rowstore.Delete(rowstore.Notify, "balance", ts)}
					deletes = append(deletes, m)
				}
				for _, muts := range [][]rowstore.Mutation{puts, deletes} {
					_, err := s.Apply(ctx, muts, rowstore.ApplyOptions{Deferred: true})
					require.NoError(b, err)
				}
			}
		})
	}
}

// BenchmarkSlotScan finds 256 notified rows among a million, in ranges of slots, as a worker does; and walks through all
// of them in the order of rows.
func BenchmarkSlotScan(b *testing.B) {
	ctx := context.Background()
	s := benchStore(b, "coalesce", "off")
	const rows = 1_000_000
	if !loaded["notified"] {
		loaded["notified"] = true
		conn, err := pgx.Connect(ctx, benchURL(b))
		require.NoError(b, err)
		defer func() { require.NoError(b, conn.Close(ctx)) }()
		_, err = conn.CopyFrom(ctx, pgx.Identifier{"bench", "notify"}, []string{"tab", "key", "col", "ts", "val", "slot"},
			pgx.CopyFromSlice(rows, func(i int) ([]any, error) {
				key := benchKey(i)
				return []any{[]byte("notified"), []byte(key), []byte("c"), int64(5), []byte{1}, int32(rowstore.Slot("notified", key))}, nil
			}))
		require.NoError(b, err)
		sqlDo(b, benchURL(b), "VACUUM ANALYZE bench.notify")
	}
	var thousand []rowstore.SlotRange
	for i := range uint16(1000) {
		thousand = append(thousand, rowstore.SlotRange{First: i * 65, Last: i*65 + 3})
	}
	notify := []rowstore.Selector{{Family: rowstore.Notify, Column: "c", To: oracle.Max, Limit: 16}}
	for name, r := range map[string]rowstore.ScanRange{
		"slots/first=256":     {Table: "notified", Slots: []rowstore.SlotRange{{First: 0, Last: rowstore.Slots - 1}}, Limit: 256},
		"slots/ranges=1000":   {Table: "notified", Slots: thousand, Limit: 256},
		"slots/one":           {Table: "notified", Slots: thousand[500:501]},
		"slots/all-ranges":    {Table: "notified", Slots: thousand},
		"slots/no-table":      {Table: "nothing", Slots: thousand, Limit: 256},
		"slots/other-column":  {Table: "notified", Slots: thousand[:10], Selectors: []rowstore.Selector{{Family: rowstore.Notify, Column: "d", To: oracle.Max}}},
		"rows/first=256":      {Table: "notified", Limit: 256},
		"rows/last=256":       {Table: "notified", Limit: 256, Reverse: true},
		"rows/all":            {Table: "notified"},
		"rows/all-and-writes": {Table: "accounts", Selectors: []rowstore.Selector{notify[0], {Family: rowstore.Write, To: oracle.Max, Limit: 1}}},
	} {
		b.Run(name, func(b *testing.B) {
			if r.Selectors == nil {
				r.Selectors = notify
			}
			n := 0
			for range b.N {
				n = 0
				for _, err := range s.Scan(ctx, r) {
					require.NoError(b, err)
					n++
				}
			}
			b.ReportMetric(float64(n), "rows")
		})
	}
}
