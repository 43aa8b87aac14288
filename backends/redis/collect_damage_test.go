package redis

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// A collection passes rows that somebody has damaged on the server, in whatever way, and collects the others: those that hints name, and all.
func TestCollectionBesideDamage(t *testing.T) {
	t.Parallel()
	s := openURL(t, with(t, testserver.Redis(t))).(*Store)
	db, err := percolator.New(t.Context(), s, percolator.WithSettings(percolator.Settings{
		MaxTxnAge: 20 * time.Millisecond, Retention: 24 * time.Hour, CatalogLease: 20 * time.Millisecond,
	}))
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close(t.Context())) }()
	const rows = 30
	bad := map[string]bool{}
	change := func() {
		for i := range rows {
			name := fmt.Sprint("r", i)
			err := error(percolator.ErrTxnTooOld)
			for !bad[name] && errors.Is(err, percolator.ErrTxnTooOld) { // the machine may stand still for that long
				err = db.Update(t.Context(), func(tx *percolator.Txn) error {
					return tx.Set(percolator.Cell{Table: "t", Row: name, Column: "c"}, []byte("x"))
				})
			}
			if !bad[name] {
				require.NoError(t, err)
			}
		}
	}
	versions := func(name string) int {
		got, err := s.Read(t.Context(), []rowstore.RowRead{{Table: "t", Row: name, Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: "c", To: maxTS}}}})
		require.NoError(t, err)
		return len(got[0].Versions)
	}
	change()
	change()
	// Damaged are a cell, and the kind of a row's key, and of the key of a row's history.
	damage(t, s.direct, "r7", "W1:c", "\xff\x05ab")
	c := admin(t, testserver.Redis(t))
	key := func(kind, row string) string {
		return s.direct.parts[s.direct.partOf("t", row)].tag + kind + ":t/" + row
	}
	require.NoError(t, c.Del(t.Context(), key("r", "r11"), key("h", "r13")).Err())
	require.NoError(t, c.Set(t.Context(), key("r", "r11"), "no hash", 0).Err())
	require.NoError(t, c.Set(t.Context(), key("h", "r13"), "no sorted set", 0).Err())
	bad["r7"], bad["r11"], bad["r13"] = true, true, true
	for _, full := range []bool{true, false} {
		change()
		require.Eventually(t, func() bool {
			_, err := db.CollectGarbage(t.Context(), percolator.GCOptions{Keep: time.Nanosecond, Full: full})
			require.NoError(t, err)
			for i := range rows {
				if name := fmt.Sprint("r", i); !bad[name] && versions(name) > 1 {
					return false
				}
			}
			return true
		}, time.Minute, time.Millisecond, "full %v", full)
	}
	report, err := db.CollectGarbage(t.Context(), percolator.GCOptions{Keep: time.Nanosecond, Full: true})
	require.NoError(t, err)
	require.Equal(t, len(bad), report.Damaged)
}
