package pebble

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// BenchmarkNotifyingCommit commits a write with a notification in one group, and removes the
// notification in another, as a program and its worker do, over a backlog of other
// notifications. The store is in memory, so the time is that of the processor.
func BenchmarkNotifyingCommit(b *testing.B) {
	for _, backlog := range []int{0, 10_000, 500_000} {
		b.Run(fmt.Sprintf("backlog=%d", backlog), func(b *testing.B) {
			s, err := Open(b.Context(), Options{})
			require.NoError(b, err)
			defer s.Close()
			for from := 0; from < backlog; from += 1000 {
				muts := make([]rowstore.Mutation, 1000)
				for i := range muts {
					muts[i] = rowstore.Mutation{Table: "t", Row: benchKey((from+i)*7919) + "b", Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "balance", 1, nil)}}
				}
				_, err := s.Apply(b.Context(), muts, rowstore.ApplyOptions{})
				require.NoError(b, err)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				row := benchKey(i * 7919 % benchRows)
				out, err := s.Group(b.Context(), []rowstore.Group{{AssignTimestamp: true, Mutations: []rowstore.Mutation{{
					Table: "t", Row: row,
					Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Lock, "balance", 0)},
					Edits:      []rowstore.Edit{rowstore.Put(rowstore.Write, "balance", rowstore.AssignedTimestamp, nil), rowstore.Put(rowstore.Notify, "balance", rowstore.AssignedTimestamp, nil)},
				}}}})
				if err != nil || !out[0].Applied {
					b.Fatal(err, out)
				}
				if _, err := s.Apply(b.Context(), []rowstore.Mutation{{
					Table: "t", Row: row, Edits: []rowstore.Edit{rowstore.Delete(rowstore.Notify, "balance", out[0].Commit)},
				}}, rowstore.ApplyOptions{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkBacklogInRowOrder scans for all of a backlog in the order of rows.
func BenchmarkBacklogInRowOrder(b *testing.B) {
	for _, backlog := range []int{10_000, 100_000, 500_000} {
		b.Run(fmt.Sprintf("backlog=%d", backlog), func(b *testing.B) {
			s, err := Open(b.Context(), Options{})
			require.NoError(b, err)
			defer s.Close()
			fillNotes(b, s, backlog)
			for b.Loop() {
				n := 0
				for _, err := range s.Scan(b.Context(), rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{{Family: rowstore.Notify, To: oracle.Max}}}) {
					require.NoError(b, err)
					n++
				}
				require.Equal(b, backlog, n)
			}
		})
	}
}

func fillNotes(tb testing.TB, s *Store, backlog int) {
	tb.Helper()
	for from := 0; from < backlog; from += 1000 {
		muts := make([]rowstore.Mutation, 1000)
		for i := range muts {
			muts[i] = rowstore.Mutation{Table: "t", Row: benchKey((from + i) * 7919), Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "balance", 1, nil)}}
		}
		_, err := s.Apply(tb.Context(), muts, rowstore.ApplyOptions{})
		require.NoError(tb, err)
	}
}

// BenchmarkSlotScan scans a thousand ranges of slots for the 1,000 notifications in them, alone
// and among a million others, with the copy of the notifications in memory and without.
func BenchmarkSlotScan(b *testing.B) {
	for _, others := range []int{0, 1_000_000} {
		for _, dropped := range []bool{false, true} {
			b.Run(fmt.Sprintf("others=%d/dropped=%v", others, dropped), func(b *testing.B) {
				s, err := Open(b.Context(), Options{})
				require.NoError(b, err)
				defer s.Close()
				// Every 64th slot is asked for.
				var asked, other []string
				for i := 0; len(asked) < 1000 || len(other) < others; i++ {
					row := benchKey(i)
					if rowstore.Slot("t", row)%64 == 0 {
						asked = append(asked, row)
					} else {
						other = append(other, row)
					}
				}
				notify(b, s, "t", other[:others], rowstore.Put(rowstore.Notify, "c", 1, nil))
				notify(b, s, "t", asked[:1000], rowstore.Put(rowstore.Notify, "c", 1, nil))
				var ranges []rowstore.SlotRange
				for slot := 0; slot < rowstore.Slots; slot += 64 {
					ranges = append(ranges, rowstore.SlotRange{First: uint16(slot), Last: uint16(slot)}) //nolint:gosec // a slot
				}
				if dropped {
					dropNotes(s)
				}
				for b.Loop() {
					n := 0
					for _, err := range s.Scan(b.Context(), rowstore.ScanRange{Table: "t", Slots: ranges, Selectors: []rowstore.Selector{{Family: rowstore.Notify, To: oracle.Max}}}) {
						require.NoError(b, err)
						n++
					}
					require.Equal(b, 1000, n)
				}
			})
		}
	}
}
