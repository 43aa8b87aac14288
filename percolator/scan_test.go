package percolator

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// scanned commits a transaction in the middle of a scan: it has been given n of the
// rows of r, and then writes out and commits.
type scanned struct {
	name string
	r    Range
	n    int
}

// within commits in the loop body, pulled between two rows of an iterator, with
// another scan of the same table going on.
var scanWays = map[string]func(t testing.TB, tx *Txn, s scanned, out Cell) error{
	"in the loop": func(t testing.TB, tx *Txn, s scanned, out Cell) error {
		n, committed := 0, false
		var result error
		for _, err := range tx.Scan(t.Context(), s.r) {
			if committed {
				require.ErrorIs(t, err, ErrTxnDone)
				break
			}
			require.NoError(t, err)
			if n++; n == s.n {
				require.NoError(t, tx.Set(out, []byte("saw")))
				committed, result = true, tx.Commit(t.Context())
			}
		}
		require.True(t, committed)
		return result
	},
	"pulled": func(t testing.TB, tx *Txn, s scanned, out Cell) error {
		next, stop := iter.Pull2(tx.Scan(t.Context(), s.r))
		defer stop()
		other, stopOther := iter.Pull2(tx.Scan(t.Context(), Range{Table: "elsewhere"}))
		defer stopOther()
		never, stopNever := iter.Pull2(tx.Scan(t.Context(), Range{Table: "s"}))
		defer stopNever()
		_ = never
		for range s.n {
			_, err, ok := next()
			require.True(t, ok)
			require.NoError(t, err)
			_, err, _ = other()
			require.NoError(t, err)
		}
		require.NoError(t, tx.Set(out, []byte("saw")))
		return tx.Commit(t.Context())
	},
	"left": func(t testing.TB, tx *Txn, s scanned, out Cell) error {
		n := 0
		for _, err := range tx.Scan(t.Context(), s.r) {
			require.NoError(t, err)
			if n++; n == s.n {
				break
			}
		}
		require.NoError(t, tx.Set(out, []byte("saw")))
		return tx.Commit(t.Context())
	},
}

// A Serializable transaction that commits while one of its scans goes on has read what
// it was given and all that lies before it, and nothing beyond.
func TestCommitWithinAScan(t *testing.T) {
	t.Parallel()
	at := func(key string) Cell { return Cell{"s", key, "v"} }
	scans := []scanned{
		{"forward", Range{Table: "s"}, 2}, // given d and f
		{"columns", Range{Table: "s", Columns: []string{"v"}}, 2},
		{"limit", Range{Table: "s", Limit: 2}, 2},
		{"reverse", Range{Table: "s", Reverse: true, To: "g"}, 2}, // given f and d
	}
	changes := []struct {
		key   string
		seen  map[string]bool // by the scan's direction
		erase bool
	}{
		{"c", map[string]bool{"forward": true}, false},                  // a row between those that were given
		{"e", map[string]bool{"forward": true, "reverse": true}, false}, // one that was passed over: it has no value
		{"f", map[string]bool{"forward": true, "reverse": true}, true},
		{"d", map[string]bool{"forward": true, "reverse": true}, false},
		{"g", map[string]bool{}, false},
	}
	for way, opts := range ways {
		for how, commitIn := range scanWays {
			for _, s := range scans {
				for _, change := range changes {
					t.Run(fmt.Sprintf("%s/%s/%s/%s", way, how, s.name, change.key), func(t *testing.T) {
						t.Parallel()
						w := newWorld(t)
						c, other := w.client(opts...), w.client()
						for _, key := range []string{"d", "e", "f", "h"} {
							set(t, c.DB, at(key), "1")
							set(t, c.DB, Cell{"elsewhere", key, "v"}, "1")
						}
						require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Delete(at("e")) }))
						tx := begin(t, c, WithIsolation(Serializable))
						require.NoError(t, other.Update(t.Context(), func(tx *Txn) error {
							if change.erase {
								return tx.Delete(at(change.key))
							}
							return tx.Set(at(change.key), []byte("2"))
						}))
						err := commitIn(t, tx, s, rowA)
						direction := "forward"
						if s.r.Reverse {
							direction = "reverse"
						}
						if change.seen[direction] {
							require.ErrorIs(t, err, ErrConflict)
							require.Equal(t, "none", value(t, c, rowA))
						} else {
							require.NoError(t, err)
							require.Equal(t, "saw", value(t, c, rowA))
						}
					})
				}
			}
		}
	}
}

// Two transactions that each commit within a scan of what the other writes make no
// write skew, however their scans interleave.
func TestNoWriteSkewWithinScans(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		set(t, db, rowA, "1")
		set(t, db, rowB, "1")
		skew := func(out Cell, body func()) error {
			tx, err := db.Begin(ctx, WithIsolation(Serializable))
			require.NoError(t, err)
			sum := 0
			for row, err := range tx.Scan(ctx, Range{Table: "t"}) {
				require.NoError(t, err)
				if string(row.Columns["v"]) == "1" {
					sum++
				}
				if row.Key == "b" {
					body()
					require.Equal(t, 2, sum)
					require.NoError(t, tx.Set(out, []byte("0")))
					return tx.Commit(ctx)
				}
			}
			return nil
		}
		var inner error
		outer := skew(rowA, func() { inner = skew(rowB, func() {}) })
		require.NoError(t, inner)
		require.ErrorIs(t, outer, ErrConflict)
	})
}

// What a transaction scans counts once, however many rows it was given.
func TestAScanIsOneRange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	for i := range 10 {
		set(t, c.DB, row(fmt.Sprint(i)), "1")
	}
	tx := begin(t, c, WithIsolation(Serializable))
	require.NoError(t, scanError(tx.Scan(t.Context(), Range{Table: "t"})))
	require.Equal(t, []readRange{{table: "t"}}, tx.ranges)
	for _, err := range tx.Scan(t.Context(), Range{Table: "t", From: "3"}) {
		require.NoError(t, err)
		break
	}
	require.Equal(t, []readRange{{table: "t"}, {table: "t", from: "3", to: "3\x00"}}, tx.ranges)
	require.NoError(t, scanError(tx.Scan(t.Context(), Range{Table: "none"})))
	require.Len(t, tx.ranges, 3, "that a range is empty was learnt too")
	c.wire.AddRule(faultstore.Rule{Match: op(faultstore.CallScan), Fault: refuse})
	require.ErrorIs(t, scanError(tx.Scan(t.Context(), Range{Table: "t"})), faultstore.ErrInjected)
	require.Len(t, tx.ranges, 3, "a scan that failed at once told nothing")
}

// A scan with a Limit over many deleted rows asks the store seldom, in both directions, and
// finds its own rows among them.
func TestScanOverDeletedRowsTakesFewCalls(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	const deleted = 3000
	for from := 0; from < deleted; from += 500 {
		for _, change := range []func(tx *Txn, c Cell) error{
			func(tx *Txn, c Cell) error { return tx.Set(c, []byte("1")) },
			func(tx *Txn, c Cell) error { return tx.Delete(c) },
		} {
			require.NoError(t, c.Update(t.Context(), func(tx *Txn) error {
				for i := range 500 {
					if err := change(tx, row(fmt.Sprintf("m%05d", from+i))); err != nil {
						return err
					}
				}
				return nil
			}))
		}
	}
	for _, name := range []string{"a", "z1", "z2"} {
		set(t, c.DB, row(name), "1")
	}
	for _, reverse := range []bool{false, true} {
		tx := begin(t, c)
		require.NoError(t, tx.Set(row("m01000"), []byte("own")))
		scans, draws := len(c.wire.sent(op(faultstore.CallScan))), len(c.wire.sent(op(faultstore.CallDraw)))
		var found []string
		for r, err := range tx.Scan(t.Context(), Range{Table: "t", Limit: 4, Reverse: reverse}) {
			require.NoError(t, err)
			found = append(found, r.Key)
		}
		want := []string{"a", "m01000", "z1", "z2"}
		if reverse {
			slices.Reverse(want)
		}
		require.Equal(t, want, found)
		require.LessOrEqual(t, len(c.wire.sent(op(faultstore.CallScan)))-scans, 10)
		require.LessOrEqual(t, len(c.wire.sent(op(faultstore.CallDraw)))-draws, 10)
	}
}

// A scan with a Limit fetches no more long values than it hands out, also behind deleted rows.
func TestLimitedScanFetchesWhatItHandsOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	const deleted, live = 600, 200
	require.NoError(t, c.Update(t.Context(), func(tx *Txn) error {
		for i := range deleted + live {
			if err := tx.Set(row(fmt.Sprintf("%05d", i)), []byte(longText)); err != nil {
				return err
			}
		}
		return nil
	}))
	require.NoError(t, c.drained(t.Context()))
	require.NoError(t, c.Update(t.Context(), func(tx *Txn) error {
		for i := range deleted {
			if err := tx.Delete(row(fmt.Sprintf("%05d", i))); err != nil {
				return err
			}
		}
		return nil
	}))
	require.NoError(t, c.drained(t.Context()))
	for _, reverse := range []bool{false, true} {
		for _, own := range []int{0, 2} {
			tx := begin(t, c)
			want := row(fmt.Sprintf("%05d", deleted+own)).Row
			for i := range own {
				require.NoError(t, tx.Delete(row(fmt.Sprintf("%05d", deleted+i))))
			}
			if reverse {
				want = row(fmt.Sprintf("%05d", deleted+live-1)).Row
			}
			before := len(c.wire.sent(op(faultstore.CallRead)))
			for r, err := range tx.Scan(t.Context(), Range{Table: "t", Limit: 1, Reverse: reverse}) {
				require.NoError(t, err)
				require.Equal(t, want, r.Key)
			}
			fetched := 0
			for _, x := range c.wire.sent(op(faultstore.CallRead))[before:] {
				for _, r := range x.Reads {
					if r.Table == "t" && r.Selectors[0].Family == rowstore.Data {
						fetched++
					}
				}
			}
			require.Equal(t, 1+own, fetched)
		}
	}
}

// A Limit may be as great as an int can be.
func TestScanWithTheGreatestLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	for _, r := range []Cell{rowA, rowB, rowC} {
		set(t, c.DB, r, "1")
	}
	tx := begin(t, c)
	require.NoError(t, tx.Set(row("d"), []byte("own")))
	var found []string
	for r, err := range tx.Scan(t.Context(), Range{Table: "t", Limit: math.MaxInt}) {
		require.NoError(t, err)
		found = append(found, r.Key)
	}
	require.Equal(t, []string{"a", "b", "c", "d"}, found)
}

// A long scan keeps no more than a chunk of what it has found.
func TestScanKeepsAChunk(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	const rows = 10 * scanChunk
	tx, err := c.Begin(t.Context())
	require.NoError(t, err)
	for i := range rows {
		require.NoError(t, tx.Set(Cell{"t", fmt.Sprintf("%06d", i), "v"}, []byte("1")))
	}
	require.NoError(t, tx.Commit(t.Context()))
	reader, err := c.Begin(t.Context())
	require.NoError(t, err)
	s := newScan(reader, Range{Table: "t"})
	found := 0
	_, err = s.run(t.Context(), func(Row, error) bool { found++; return true })
	require.NoError(t, err)
	require.Equal(t, rows, found)
	require.LessOrEqual(t, cap(s.values), 2*scanChunk)
}

// A scan holds a few long values beside the row at hand, however many rows are looked at together.
func TestScanHoldsFewLongValues(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	const size, rows = longBytes / 4, 24
	for i := range rows {
		set(t, c.DB, row(fmt.Sprintf("%03d", i)), strings.Repeat("x", size))
	}
	set(t, c.DB, row("zzz"), "short")
	longs := func(x *call) bool {
		return x.Kind == faultstore.CallRead && len(x.Reads[0].Selectors) == 1 && x.Reads[0].Selectors[0].Family == rowstore.Data
	}
	for _, few := range []int{firstLongs, longBytes / size} { // the first scan does not know how long they are
		c.wire.forget()
		s := newScan(begin(t, c), Range{Table: "t"})
		found := 0
		_, err := s.run(t.Context(), func(r Row, err error) bool {
			require.NoError(t, err)
			found++
			asked, held := 0, 0
			for _, x := range c.wire.sent(longs) {
				require.LessOrEqual(t, len(x.Reads), few)
				asked += len(x.Reads)
			}
			require.Less(t, asked-found, few, "they are asked for when they are handed out")
			for _, v := range s.values {
				if len(v.value) == size {
					held++
				}
			}
			require.LessOrEqual(t, held, 1, "only those of this row")
			if r.Key == "zzz" {
				require.Equal(t, "short", string(r.Columns["v"]))
			} else {
				require.Len(t, r.Columns["v"], size)
			}
			return true
		})
		require.NoError(t, err)
		require.Equal(t, rows+1, found)
	}
	// GetMany asks for as few at once.
	c.wire.forget()
	cells := make([]Cell, rows)
	for i := range cells {
		cells[i] = row(fmt.Sprintf("%03d", i))
	}
	values, err := begin(t, c).GetMany(t.Context(), cells...)
	require.NoError(t, err)
	require.Len(t, values, rows)
	require.Len(t, c.wire.sent(longs), rows*size/longBytes)
}

// Values of usual sizes come many at a time, also behind one that is very long.
func TestScanOfUsualValuesTakesFewCalls(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	require.NoError(t, c.Update(t.Context(), func(tx *Txn) error {
		for i := range 20 * readLongs {
			if err := tx.Set(row(fmt.Sprintf("%05d", i)), []byte(longText)); err != nil {
				return err
			}
		}
		return nil
	}))
	require.NoError(t, c.drained(t.Context()))
	scan := func(r Range) (calls int) {
		c.wire.forget()
		n := 0
		for _, err := range begin(t, c).Scan(t.Context(), r) {
			require.NoError(t, err)
			n++
		}
		require.Positive(t, n)
		return len(c.wire.sent(op(faultstore.CallRead)))
	}
	limited := Range{Table: "t", Limit: readLongs}
	require.Equal(t, 2, scan(limited), "nothing is known of the table")
	require.Equal(t, 1, scan(limited))
	require.Equal(t, 20, scan(Range{Table: "t"}))
	set(t, c.DB, row("00000"), strings.Repeat("x", 2*longBytes))
	require.LessOrEqual(t, scan(Range{Table: "t"}), 20+10)
	require.Equal(t, 20, scan(Range{Table: "t", From: "00001"}))
}
