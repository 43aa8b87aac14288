package percolator

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// longName is a name of so many bytes that shares none of them with others.
func longName(begin string, n int) string {
	random := rand.New(rand.NewPCG(uint64(n), 1)) //nolint:gosec // a test
	b := []byte(begin)
	for range n {
		b = append(b, byte(random.IntN(256)))
	}
	return string(b)
}

// A row that cannot be read is found also if its name is long. If that takes too many scans for once, the next collection goes on where this one has ended, and
// meanwhile the hints of the other tables are dropped.
func TestCollectionFindsLongNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, _, _ := w.damageable(ErrCorrupt)
	c := w.clientOver(newWireTo(s, w.mem), WithLimits(Limits{Row: 1 << 11}), withProbes(mostProbes/8))
	medium, long := longName("m", 250), longName("n", 1250)
	for range 3 {
		for _, name := range []string{"a", medium, long, "z"} {
			set(t, c.DB, row(name), "1")
		}
		set(t, c.DB, Cell{"u", "r", "v"}, "1")
	}
	w.stored(c)
	w.clock.advance(2 * worldRetention)
	s.damage(medium)
	report, err := w.collect(c, 0)
	require.NoError(t, err, "it is found at once")
	require.Equal(t, 1, report.Damaged)
	require.Equal(t, map[string]int{medium: 1}, w.storedHints("t"))
	probes := 0
	u, err := c.findUnreadable(t.Context(), rowstore.ScanRange{Table: "t", From: "a\x00", Selectors: newestPicks}, fmt.Errorf("%w: x", ErrCorrupt), &probes)
	require.NoError(t, err)
	require.Equal(t, medium, u.from)
	require.Less(t, probes, 5, "it is remembered")
	s.mend()

	for range 3 {
		set(t, c.DB, row(long), "1")
		set(t, c.DB, row("z"), "1")
		set(t, c.DB, Cell{"u", "r", "v"}, "1")
	}
	w.stored(c)
	s.damage(long)
	failed := 0
	for {
		w.clock.advance(2 * worldRetention)
		_, err = w.collect(c, 0)
		require.Equal(t, 1, w.versionsIn("z"), "what lies behind is collected")
		require.Empty(t, w.storedHints("u"))
		if err == nil {
			break
		}
		require.ErrorIs(t, err, ErrCorrupt)
		require.NotEmpty(t, w.storedHints("t"), "they may be needed")
		failed++
		require.Less(t, failed, 5)
	}
	require.Equal(t, 2, failed)
	require.Equal(t, map[string]int{long: 1}, w.storedHints("t"))
	s.mend()
	w.clock.advance(2 * worldRetention)
	_, err = w.collect(c, 0)
	require.NoError(t, err)
	require.Equal(t, 1, w.versionsIn(long))
}

// What searches remember is bounded, and goes where everything can be read.
func TestSought(t *testing.T) {
	t.Parallel()
	s := &sought{}
	require.Empty(t, s.next("t", ""))
	s.remove("t", "a")
	for _, name := range []string{"b", "a", "b", "c"} {
		s.add("t", name)
	}
	s.add("u", "z")
	require.Equal(t, []string{"a", "b", "c"}, s.tables["t"])
	require.Equal(t, "b", s.next("t", "a\x00"))
	require.Empty(t, s.next("t", "d"))
	s.remove("t", "b")
	require.Equal(t, "c", s.next("t", "b"))
	require.Equal(t, 3, s.bytes)
	s.add("t", strings.Repeat("x", mostSought+1))
	require.Equal(t, 3, s.bytes)
	s.add("t", strings.Repeat("x", mostSought))
	require.Equal(t, mostSought, s.bytes)
	require.Empty(t, s.next("u", ""))
}

// However many rows cannot be read, few are in memory.
func TestFewDamagedRowsAreInMemory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	p := &gcPass{db: c.DB, view: c.known(), report: &GCReport{}}
	col := p.collection("t", mustNow(t, c))
	failed := fmt.Errorf("%w: x", ErrCorrupt)
	n := max(mostKnown, 2*mostUnread) + 10
	for i := range n {
		r := rowstore.Row{Table: "t", Row: fmt.Sprintf("r%06d", i)}
		require.NoError(t, col.look(t.Context(), &r))
		require.NoError(t, col.pass(t.Context(), r.Row, failed))
		require.LessOrEqual(t, len(col.unread), mostUnread)
		require.LessOrEqual(t, len(col.later), hintsAtOnce)
		require.LessOrEqual(t, len(col.damage.known), mostKnown)
	}
	require.Equal(t, n, p.report.Damaged)
}
