package postgres

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// writePasts writes 8 rows, with an older write for each length of the past, under one
// that no timestamp reaches.
func writePasts(ctx context.Context, t *testing.T, s rowstore.Store) {
	t.Helper()
	const future = oracle.Max - 5
	for i := range 8 {
		row := fmt.Sprint("row", i)
		for j := range i + 1 {
			at := rowstore.Timestamp(j + 1) //nolint:gosec // small
			if j == i {
				at = future
			}
			out, err := s.Apply(ctx, []rowstore.Mutation{{Table: "t", Row: row, Edits: []rowstore.Edit{
				rowstore.Put(rowstore.Write, "c", at, make([]byte, 60)),
			}}}, rowstore.ApplyOptions{})
			require.NoError(t, err)
			require.True(t, out[0].Applied)
		}
	}
}

// The timestamps that come with reads and with prewrites are in order with all
// others, and what is read is of the timestamp, however new the row is.
func TestTimestampsThatComeAlong(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	bouncer := testserver.NewPgBouncer(t, testserver.SharedPostgres(t), testserver.PgBouncerOptions{}).URL
	for name, dsn := range map[string]string{"direct": direct, "bouncer": bouncer, "serializable": with(direct, "default_transaction_isolation", "serializable")} {
		t.Run(name, func(t *testing.T) {
			s := openTest(t, with(dsn, "schema", fresh(t, direct), "coalesce", "off", "pool_max_conns", "1"))
			d, ok := rowstore.Unwrap[rowstore.SnapshotReader](s)
			require.True(t, ok)
			last := draw(ctx, t, s)
			writePasts(ctx, t, s)
			for round := range 3 {
				var asks []rowstore.SnapshotRead
				for i := range 8 {
					asks = append(asks, rowstore.SnapshotRead{Reads: []rowstore.RowRead{
						{Table: "t", Row: fmt.Sprint("row", i), Selectors: []rowstore.Selector{
							{Family: rowstore.Lock, Column: "c", To: rowstore.AssignedTimestamp, Limit: 1},
							{Family: rowstore.Write, Column: "c", To: rowstore.AssignedTimestamp, Limit: 1},
						}},
						{Table: "t", Row: fmt.Sprint("new", round), Selectors: []rowstore.Selector{{Family: rowstore.Lock, Column: "c", To: rowstore.AssignedTimestamp}}},
					}})
				}
				answers, err := d.ReadSnapshot(ctx, asks)
				require.NoError(t, err)
				for i, a := range answers {
					require.Greater(t, a.TS, last)
					last = a.TS
					if i == 0 {
						require.Empty(t, a.Rows[0].Versions)
					} else {
						require.Equal(t, rowstore.Timestamp(i), a.Rows[0].Newest(rowstore.Write, "c").TS) //nolint:gosec // small
						require.Len(t, a.Rows[0].Versions, 1)
					}
					require.Empty(t, a.Rows[1].Versions)
				}
				start := last
				out, err := s.Apply(ctx, []rowstore.Mutation{
					prewrite(fmt.Sprint("new", round), start), prewrite(fmt.Sprint("other", round), start), prewrite("row1", start),
				}, rowstore.ApplyOptions{Deferred: true, AssignTimestamp: true})
				require.NoError(t, err)
				require.True(t, out[0].Applied && out[1].Applied)
				require.False(t, out[2].Applied)
				require.Zero(t, out[2].Timestamp)
				if name == "direct" {
					require.Greater(t, out[0].Timestamp, last)
					require.Greater(t, out[1].Timestamp, out[0].Timestamp)
					last = out[1].Timestamp + 1
				} else {
					require.Zero(t, out[0].Timestamp, "there is no flight for two transactions here")
				}
				next := draw(ctx, t, s)
				require.Greater(t, next, last)
				last = next
			}
		})
	}
}
