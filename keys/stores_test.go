package keys

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/percolator"
)

func TestMain(m *testing.M) { everystore.Main(m) }

// inOrder are tuples in their order, among them all that stores may take for something else: zeros, what ends with them, and bytes that are no text.
func inOrder() (all []Key) {
	first := []Key{Key("").Bytes(nil), Key("").Bytes([]byte{0}), Key("").Bytes([]byte{0, 0xff}), Key("").Bytes([]byte{0xff, 0xff})}
	for _, s := range []string{"", "\x00", "\x00\x00", "\x00\xff", "\x01", "a", "a\x00", "a\x00b", "a\x01", "aa", "ab", "é", "\xff"} {
		first = append(first, Key("").Text(s))
	}
	for _, n := range []int64{math.MinInt64, -257, -256, -255, -1, 0, 1, 255, 256, math.MaxInt64} {
		first = append(first, Key("").Int(n))
	}
	first = append(first, Key("").Uint(math.MaxUint64), Key("").Time(time.Unix(-1, 0)), Key("").Time(time.Unix(0, 0)), Key("").Time(time.Unix(0, 1)))
	for _, k := range first {
		all = append(all, k, k.Text(""), k.Text("x"), k.Int(7))
	}
	return all
}

// TestOrderInEveryStore has rows that two processes write, in any order. Each store gives them in the order of the tuples, and those that begin with some elements.
func TestOrderInEveryStore(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64() //nolint:gosec // a seed that is printed
	t.Logf("seed %d", seed)
	want := inOrder()
	everystore.Pairs(t, func(t *testing.T, one, two *percolator.DB) {
		ctx := t.Context()
		random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // as above
		order := random.Perm(len(want))
		for i, db := range []*percolator.DB{one, two} {
			require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
				for j, at := range order {
					if j%2 != i {
						continue
					}
					if err := tx.Set(percolator.Cell{Table: "tuples", Row: string(want[at]), Column: "c"}, nil); err != nil {
						return err
					}
				}
				return nil
			}))
		}
		for _, db := range []*percolator.DB{one, two} {
			require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
				require.Equal(t, want, scanned(t, tx, percolator.Range{Table: "tuples"}))
				for i := 0; i < len(want); i += 4 {
					require.Equal(t, want[i:i+4], scanned(t, tx, want[i].Range("tuples")), "%v", want[i])
				}
				return nil
			}))
		}
	})
}

func scanned(t *testing.T, tx *percolator.Txn, r percolator.Range) (all []Key) {
	t.Helper()
	for row, err := range tx.Scan(t.Context(), r) {
		require.NoError(t, err)
		all = append(all, Key(row.Key))
	}
	return all
}
