package percolator

import (
	"context"
	"iter"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// scanning counts the calls of a client, and calls a function before its first Read, which follows a scan.
type scanning struct {
	abilities
	scans, draws, reads int
	middle              func()
}

// Abilities implements rowstore.Decorator.
func (s *scanning) Abilities() rowstore.Abilities {
	has := s.abilities.Abilities()
	has.OracleProvider = s
	return has
}

func (s *scanning) Scan(ctx context.Context, r rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	s.scans++
	return s.Store.Scan(ctx, r)
}

func (s *scanning) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	s.reads++
	if f := s.middle; f != nil {
		s.middle = nil
		f()
	}
	return s.Store.Read(ctx, reads)
}

func (s *scanning) Oracle() oracle.Oracle {
	return slowly{s.Store.Oracle(), func() { s.draws++ }}
}

func (s *scanning) calls() [3]int {
	n := [3]int{s.scans, s.draws, s.reads}
	s.scans, s.draws, s.reads = 0, 0, 0
	return n
}

// A transaction that begins with a short scan makes one call, which draws its timestamp, and whose answer tells how
// old it is. One with an old timestamp makes one call for a scan. Without the ability there is a draw before and after.
func TestShortScanIsOneCall(t *testing.T) {
	t.Parallel()
	for _, can := range []bool{true, false} {
		w := newWorld(t)
		c := w.client()
		for _, cell := range []Cell{row("a"), row("b"), row("c")} {
			set(t, c.DB, cell, cell.Row)
		}
		s := &scanning{abilities: abilities{Store: w.mem, groups: true, snapshotReads: true, scans: can}}
		r := w.suspended(s)
		require.NoError(t, r.View(t.Context(), func(*Txn) error { return nil }))
		s.calls()
		tx, err := r.Begin(t.Context())
		require.NoError(t, err)
		s.calls()
		after := map[bool]int{true: 0, false: 1}[can] // draws for a chunk
		scan := func(tx *Txn, r Range, want ...string) {
			t.Helper()
			var got []string
			for row, err := range tx.Scan(t.Context(), r) {
				require.NoError(t, err)
				got = append(got, row.Key)
			}
			require.Equal(t, want, got)
		}
		scan(tx, Range{Table: "t"}, "a", "b", "c")
		require.Equal(t, [3]int{1, after, 0}, s.calls(), "in a transaction that has begun")
		for _, ranged := range []struct {
			r    Range
			want []string
		}{
			{Range{Table: "t"}, []string{"a", "b", "c"}},
			{Range{Table: "t", Reverse: true, Limit: 2}, []string{"c", "b"}},
			{Range{Table: "t", From: "x"}, nil},
			{Range{Table: "none", Columns: []string{"v"}}, nil},
		} {
			before, err := c.draw(t.Context())
			require.NoError(t, err)
			require.NoError(t, r.View(t.Context(), func(tx *Txn) error {
				scan(tx, ranged.r, ranged.want...)
				require.Equal(t, [3]int{1, 2 * after, 0}, s.calls(), "%+v", ranged.r)
				require.Greater(t, startOf(tx), before)
				scan(tx, ranged.r, ranged.want...)
				require.Equal(t, [3]int{1, after, 0}, s.calls(), "%+v again", ranged.r)
				return nil
			}))
		}
		// What it writes after a scan is refused if another has written since.
		conflict := r.Update(t.Context(), func(tx *Txn) error {
			scan(tx, Range{Table: "t"}, "a", "b", "c")
			set(t, c.DB, row("b"), "theirs")
			return tx.Set(row("b"), []byte("ours"))
		}, WithMaxAttempts(1))
		require.ErrorIs(t, conflict, ErrConflict)
		require.Equal(t, "theirs", get(t, r, row("b")))
	}
}

// A scan meets a lock, or a long value, and the process is suspended before it reads on, while another deletes what it is
// about to read, and collects. The age that the scan told is not that of what was read later.
func TestSuspendedWithinAScan(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]string{"lock": "old", "long value": longText} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			c := w.client()
			set(t, c.DB, rowA, value)
			set(t, c.DB, rowB, "other")
			if name == "lock" {
				dead := w.client(withoutGroups())
				dead.wire.verdict(commitPoint(rowA), die)
				require.Error(t, writes(t, dead, "dead", rowA, rowC).Commit(t.Context()))
				require.NoError(t, dead.drained(t.Context()))
				w.pass(worldSession + time.Second)
			}
			s := &scanning{abilities: abilities{Store: w.mem, snapshotReads: true, scans: true}}
			r := w.suspended(s)
			require.Equal(t, "other", get(t, r, rowB)) // it knows the catalog
			s.middle = func() {
				require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Delete(rowA) }))
				w.clock.advance(25 * time.Hour)
				_, err := w.collect(c, 0)
				require.NoError(t, err)
			}
			err := r.View(t.Context(), func(tx *Txn) error { return scanError(tx.Scan(t.Context(), Range{Table: "t"})) })
			require.Nil(t, s.middle, "nothing was read after the scan")
			require.ErrorIs(t, err, ErrSnapshotTooOld)
		})
	}
}
