package percolator

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// heard keeps what is logged, also by what goes on in the background.
type heard struct {
	mu   sync.Mutex
	text strings.Builder
}

func (h *heard) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text.Write(p)
}

func (h *heard) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text.String()
}

// damageable is a world's store in which rows can be damaged, and a client of it. What it says goes into said.
func (w *world) damageable(kind error) (s *damagedRows, c *client, said *heard) {
	w.t.Helper()
	s, said = &damagedRows{damagedStore: &damagedStore{Store: w.mem, kind: kind, rows: map[string]bool{}}}, &heard{}
	return s, w.clientOver(newWireTo(s, w.mem), WithLogger(slog.New(slog.NewTextHandler(said, nil)))), said
}

// versionsIn counts the versions of a row's column v.
func (w *world) versionsIn(name string) int {
	w.t.Helper()
	r := w.raw(row(name))
	return len(r.All(rowstore.Write, "v"))
}

var kindsOfDamage = []error{ErrCorrupt, ErrFormat}

// A scan goes on behind rows that cannot be read, whatever their names are, and finds these.
func TestScanPast(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, c, _ := w.damageable(ErrCorrupt)
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test
	letters := []string{"\x00", "a", "b", "\xfe", "\xff", "user/"}
	picks := []rowstore.Selector{everything(rowstore.Write, rowstore.AllColumns)}
	for n := range 60 {
		s.mend()
		table := fmt.Sprint("table", n)
		names := map[string]bool{}
		var good, bad []string
		for range random.IntN(20) + 1 {
			name := letters[random.IntN(len(letters))]
			for range random.IntN(4) {
				name += letters[random.IntN(len(letters))]
			}
			if names[name] {
				continue
			}
			names[name] = true
			_, err := w.mem.Apply(t.Context(), []rowstore.Mutation{{Table: table, Row: name, Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "v", 1, nil)}}}, rowstore.ApplyOptions{})
			require.NoError(t, err)
			if random.IntN(3) == 0 {
				bad = append(bad, name)
			} else {
				good = append(good, name)
			}
		}
		s.damage(bad...)
		slices.Sort(good)
		slices.Sort(bad)
		from, to := "", ""
		if n%3 == 1 {
			from = letters[random.IntN(len(letters))]
		}
		if n%2 == 1 {
			to = letters[random.IntN(len(letters))]
		}
		within := func(all []string) []string {
			return slices.DeleteFunc(slices.Clone(all), func(name string) bool { return name < from || to != "" && name >= to })
		}
		scan := func(limit int) (found, left []string) {
			for row, err := range c.scanPast(t.Context(), rowstore.ScanRange{Table: table, From: from, To: to, Limit: limit, Selectors: picks}, func(u unreadable) error {
				name, ok := u.row()
				require.True(t, ok)
				require.ErrorIs(t, u.err, ErrCorrupt)
				left = append(left, name)
				return nil
			}) {
				require.NoError(t, err)
				found = append(found, row.Row)
			}
			return found, left
		}
		found, left := scan(0)
		require.ElementsMatch(t, within(good), found)
		require.ElementsMatch(t, within(bad), left)
		if len(found) > 0 {
			require.True(t, slices.IsSorted(found))
			some, _ := scan(1)
			require.Equal(t, found[:1], some)
		}
	}
}

// The walk ends where it is told to, where another error comes, and where nothing can be read. A row that was mended meanwhile is read.
func TestScanPastEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, c, _ := w.damageable(ErrCorrupt)
	for _, name := range []string{"a", "b", "c"} {
		set(t, c.DB, row(name), "1")
	}
	s.damage("b")
	r := rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{everything(rowstore.Write, "v")}}
	walk := func(left func(unreadable) error) (found []string, err error) {
		for row, err := range c.scanPast(t.Context(), r, left) {
			if err != nil {
				return found, err
			}
			found = append(found, row.Row)
		}
		return found, nil
	}
	_, err := walk(func(unreadable) error { return errTest })
	require.ErrorIs(t, err, errTest)
	probes := 2 * mostProbes
	_, err = c.findUnreadable(t.Context(), r, fmt.Errorf("%w: x", ErrCorrupt), &probes)
	require.ErrorIs(t, err, ErrCorrupt)
	probes = 0
	_, err = c.findUnreadable(t.Context(), r, errTest, &probes)
	require.ErrorIs(t, err, errTest)
	s.mend()
	u, err := c.findUnreadable(t.Context(), r, fmt.Errorf("%w: x", ErrCorrupt), &probes)
	require.NoError(t, err)
	require.NoError(t, u.err)
	// What a scan fails at is no row.
	strange := strangeKeys{w.mem}
	d := w.clientOver(newWireTo(strange, w.mem), withProbes(mostProbes/8))
	u, err = d.findUnreadable(t.Context(), r, fmt.Errorf("%w: x", ErrCorrupt), new(int))
	require.NoError(t, err)
	_, ok := u.row()
	require.False(t, ok)
	require.LessOrEqual(t, u.from, strangeKey)
	require.Greater(t, u.to, "b")
	require.LessOrEqual(t, u.to, "c")
	for range 3 {
		set(t, d.DB, row("c"), "2")
	}
	w.clock.advance(2 * worldRetention)
	_, err = w.collect(d, 0)
	require.ErrorIs(t, err, ErrCorrupt, "it cannot be hinted")
	require.Equal(t, 1, w.versionsIn("c"))
}

// strangeKeys fails scans of table t at a key that lies between its rows and is none.
type strangeKeys struct{ *memstore.Store }

var strangeKey = "b" + strings.Repeat("x", mostProbes/4)

func (s strangeKeys) Scan(ctx context.Context, r rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return func(yield func(rowstore.Row, error) bool) {
		if r.Table == "t" && len(r.Slots) == 0 && r.From <= strangeKey && (r.To == "" || r.To > strangeKey) {
			before := r
			before.To = strangeKey
			for row, err := range s.Store.Scan(ctx, before) {
				if !yield(row, err) {
					return
				}
			}
			yield(rowstore.Row{}, fmt.Errorf("%w: a strange key", ErrCorrupt))
			return
		}
		s.Store.Scan(ctx, r)(yield)
	}
}

// A row that cannot be read keeps its own garbage and no other's, is said once in a collection, makes no collection look at all rows, and is collected when it
// can be read again.
func TestCollectionPassesDamagedRows(t *testing.T) {
	t.Parallel()
	for _, kind := range kindsOfDamage {
		for _, full := range []bool{false, true} {
			t.Run(fmt.Sprint(kind, ", full ", full), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				s, c, said := w.damageable(kind)
				names := []string{"a", "b", "b\x00", "row 1", "row 2", "row 3", "z"}
				bad := []string{"b", "b\x00", "row 2"}
				for range 3 {
					for _, name := range append(names, "other") {
						set(t, c.DB, row(name), "1")
					}
					set(t, c.DB, Cell{"u", "r", "v"}, "1")
				}
				s.damage(bad...)
				w.clock.advance(2 * worldRetention)
				report, err := w.collectBy(c, GCOptions{Full: full})
				require.NoError(t, err)
				require.Equal(t, full, report.Full)
				require.Equal(t, []int{len(bad), 6, 12}, []int{report.Damaged, report.Rows, report.Versions})
				for _, name := range names {
					require.Equal(t, map[bool]int{false: 1, true: 3}[slices.Contains(bad, name)], w.versionsIn(name), name)
				}
				require.Equal(t, len(bad), strings.Count(said.String(), "level=ERROR"), said.String())
				require.Equal(t, 1, strings.Count(said.String(), `row="row 2"`))
				require.Equal(t, map[string]int{"b": 1, "b\x00": 1, "row 2": 1}, w.storedHints("t"), "the others are dropped")
				v, err := c.loadCatalog(t.Context())
				require.NoError(t, err)
				require.Equal(t, report.SafePoint, v.collected.All, "what could be removed was")
				require.Equal(t, uint64(len(bad)), c.Stats().GCDamaged)
				require.Zero(t, c.Stats().GCFailures)
				// It is read again in each retention, and all rows once in ten.
				fulls := 0
				for range 2 * gcFullAfter {
					w.clock.advance(worldRetention + worldRetention/10)
					report, err := w.collectBy(c, GCOptions{})
					require.NoError(t, err)
					require.Equal(t, len(bad), report.Damaged)
					if report.Full {
						fulls++
					}
				}
				require.LessOrEqual(t, fulls, 3)
				s.mend()
				w.clock.advance(worldRetention + worldRetention/10)
				report = w.hintedCollect(c)
				require.Equal(t, []int{0, len(bad), 2 * len(bad)}, []int{report.Damaged, report.Rows, report.Versions})
				require.Empty(t, w.storedHints("t"))
			})
		}
	}
}

// A row whose older versions cannot be read, or which cannot be changed, loses nothing: newer versions never go before older ones.
func TestCollectionPassesDamagedHistories(t *testing.T) {
	t.Parallel()
	for _, refuses := range []bool{false, true} {
		for _, full := range []bool{false, true} {
			t.Run(fmt.Sprint("refused ", refuses, ", full ", full), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				s, c, said := w.damageable(ErrCorrupt)
				s.onlyReads, s.refuses = true, refuses
				for _, name := range []string{"a", "b", "c"} {
					w.history(row(name), 40, false)
					set(t, c.DB, row(name), "1")
					set(t, c.DB, row(name), "2")
				}
				w.clock.advance(2 * worldRetention)
				s.damage("b")
				report, err := w.collectBy(c, GCOptions{Full: full})
				require.NoError(t, err)
				require.Equal(t, []int{1, 1, 42, 1}, []int{report.Damaged, w.versionsIn("a"), w.versionsIn("b"), w.versionsIn("c")})
				require.Equal(t, 1, strings.Count(said.String(), "level=ERROR"), said.String())
				s.mend()
				w.clock.advance(worldRetention + worldRetention/10)
				w.hintedCollect(c)
				require.Equal(t, 1, w.versionsIn("b"))
			})
		}
	}
}

// A record of the library that cannot be decoded is one of its row.
func TestCollectionPassesUnknownRecords(t *testing.T) {
	t.Parallel()
	for _, full := range []bool{false, true} {
		w := newWorld(t)
		c := w.client()
		for range 3 {
			for _, name := range []string{"a", "b", "c"} {
				set(t, c.DB, row(name), "1")
			}
		}
		r := w.raw(row("b"))
		newest := r.Newest(rowstore.Write, "v").TS
		put := func(value []byte) {
			_, err := w.mem.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: "b", Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "v", newest, value)}}}, rowstore.ApplyOptions{})
			require.NoError(t, err)
		}
		whole := r.Newest(rowstore.Write, "v").Value
		put([]byte("\x01damaged"))
		w.clock.advance(2 * worldRetention)
		report, err := w.collectBy(c, GCOptions{Full: full})
		require.NoError(t, err)
		require.Equal(t, []int{1, 1, 3, 1}, []int{report.Damaged, w.versionsIn("a"), w.versionsIn("b"), w.versionsIn("c")})
		put(whole)
		w.clock.advance(worldRetention + worldRetention/10)
		w.hintedCollect(c)
		require.Equal(t, 1, w.versionsIn("b"))
	}
}

// A hint that cannot be read is as good as lost, and stays until all rows are looked at. It does not hold up the others.
func TestCollectionPassesDamagedHints(t *testing.T) {
	t.Parallel()
	for _, decodes := range []bool{false, true} {
		w := newWorld(t)
		s, c, _ := w.damageable(ErrCorrupt)
		other := w.client()
		set(t, other.DB, rowA, "1")
		set(t, other.DB, rowA, "2")
		w.stored(other)
		hints := w.hintRows()
		require.Len(t, hints, 1)
		if decodes {
			s.damage(hints...)
		} else {
			read, err := w.mem.Read(t.Context(), []rowstore.RowRead{{Table: format.TableHints, Row: hints[0], Selectors: newestPicks}})
			require.NoError(t, err)
			_, err = w.mem.Apply(t.Context(), []rowstore.Mutation{{Table: format.TableHints, Row: hints[0], Edits: []rowstore.Edit{
				rowstore.Put(rowstore.Write, format.ColumnHint, read[0].Newest(rowstore.Write, format.ColumnHint).TS, []byte("\x01x")),
			}}}, rowstore.ApplyOptions{})
			require.NoError(t, err)
		}
		for range 2 {
			set(t, c.DB, row("z"), "1")
		}
		w.clock.advance(2 * worldRetention)
		report := w.hintedCollect(c)
		require.Equal(t, []int{1, 2, 1}, []int{report.Damaged, w.versionsIn("a"), w.versionsIn("z")})
		require.Equal(t, hints, w.hintRows())
		_, err := w.collect(c, 0)
		require.NoError(t, err)
		require.Equal(t, 1, w.versionsIn("a"))
		s.mend()
		_, err = w.collect(c, 0)
		require.NoError(t, err)
		require.Empty(t, w.hintRows())
	}
}

// A notified row that cannot be read does not fail the collection, nor one in the tables that are collected as a whole.
func TestCollectionPassesDamagedNotifications(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	s, c, _ := w.damageable(ErrCorrupt)
	names := notifyRows(t, c, 20)
	w.unobserved(c, "o")
	for _, name := range []string{"lease a", "lease b"} {
		_, err := w.mem.Apply(t.Context(), []rowstore.Mutation{{Table: format.TableSweeps, Row: name, Edits: []rowstore.Edit{
			rowstore.Put(rowstore.Write, format.ColumnLease, mustNow(t, c), nil),
		}}}, rowstore.ApplyOptions{})
		require.NoError(t, err)
	}
	s.damage(names[3], "lease a")
	w.clock.advance(2 * worldRetention)
	_, err := w.collect(c, 0)
	require.NoError(t, err)
	left := 0
	for _, name := range names {
		if len(w.notified(row(name))) > 0 {
			left++
			require.Equal(t, rowstore.Slot("t", names[3]), rowstore.Slot("t", name))
		}
	}
	require.Equal(t, 1, left)
	require.Equal(t, []string{"lease a"}, w.leases())
	s.mend()
	_, err = w.collect(c, 0)
	require.NoError(t, err)
	require.Empty(t, w.versions(rowstore.Notify))
	require.Empty(t, w.leases())
}

// Damaged rows in more slots than a look leaves out do not fail the collection either.
func TestCollectionPassesManyDamagedNotifications(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	s, c, _ := w.damageable(ErrCorrupt)
	names := notifyRows(t, c, 8*mostDamaged)
	w.unobserved(c, "o")
	bad := map[uint16]bool{}
	for _, name := range names[:4*mostDamaged] {
		s.damage(name)
		bad[rowstore.Slot("t", name)] = true
	}
	require.Greater(t, len(bad), 2*mostDamaged)
	w.clock.advance(2 * worldRetention)
	report, err := w.collect(c, 0)
	require.NoError(t, err)
	require.GreaterOrEqual(t, report.Damaged, len(bad))
	for _, name := range names {
		if !bad[rowstore.Slot("t", name)] {
			require.Empty(t, w.notified(row(name)))
		}
	}
}

// leases are those of sweeps.
func (w *world) leases() (names []string) {
	w.t.Helper()
	for row, err := range w.mem.Scan(w.t.Context(), rowstore.ScanRange{Table: format.TableSweeps, Selectors: newestPicks}) {
		require.NoError(w.t, err)
		names = append(names, row.Row)
	}
	return names
}

// unobserved removes an observer from the catalog, and nothing else of it.
func (w *world) unobserved(c *client, name string) {
	w.t.Helper()
	_, err := c.changeCatalog(w.t.Context(), func(v *catalogView) (bool, error) {
		v.Observers = slices.DeleteFunc(v.Observers, func(o format.Observer) bool { return string(o.Name) == name })
		return true, nil
	})
	require.NoError(w.t, err)
}

// An erasure must have removed everything, so it passes no row by.
func TestErasurePassesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, c, _ := w.damageable(ErrCorrupt)
	p := &gcPass{db: c.DB, view: c.known(), report: &GCReport{}, erases: []span{{table: "t"}}, erased: mustNow(t, c)}
	for range 3 {
		set(t, c.DB, rowA, "1")
	}
	s.damage("a")
	require.ErrorIs(t, p.removeVersions(t.Context(), "t", mustNow(t, c)), ErrCorrupt)
}

// A timer whose row cannot be read, or whose row of the index, stops no other timer of its shard.
func TestDamagedRowStopsNoTimers(t *testing.T) {
	t.Parallel()
	for _, index := range []bool{false, true} {
		t.Run(fmt.Sprint("of the index ", index), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.timers()
			w.observed("t", "v", "o")
			s, c, _ := w.damageable(ErrCorrupt)
			wk := watching(t, c, Observer{Name: "other", Table: "t", Column: "other", Func: func(context.Context, *Txn, Cell) error { return nil }})
			require.NoError(t, wk.publish(t.Context()))
			var dropped, kept []Cell
			for i := range 20 {
				dropped, kept = append(dropped, row(fmt.Sprint("dropped", i))), append(kept, Cell{"t", fmt.Sprint("kept", i), "other"})
				w.timer(c, dropped[i], later)
				w.timer(c, kept[i], later)
			}
			w.unobserved(c, "o")
			w.pass(later)
			bad := dropped[7]
			if !index {
				s.damage(bad.Row)
				require.ErrorIs(t, wk.fireDue(t.Context()), ErrCorrupt)
			} else {
				page, _, err := c.timersIn(t.Context(), shardOf(bad.Row), "", oracle.Max)
				require.NoError(t, err)
				i := slices.IndexFunc(page, func(d dueTimer) bool { return d.cell.Row == bad.Row })
				s.damage(page[i].row)
				require.NoError(t, wk.fireDue(t.Context()))
			}
			for i := range kept {
				require.NotEmpty(t, w.notified(kept[i]))
				require.Equal(t, dropped[i] == bad, w.hasTimer(dropped[i]))
			}
			require.Equal(t, 1, w.indexed())
			s.mend()
			fires(t, wk)
			require.Zero(t, w.indexed())
			require.False(t, w.hasTimer(bad))
		})
	}
}
