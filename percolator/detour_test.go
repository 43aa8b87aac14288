package percolator

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// damagedStore has rows that cannot be read.
type damagedStore struct {
	*memstore.Store
	kind error // what their errors match
	mu   sync.Mutex
	rows map[string]bool
	seen map[string]int // how often scans have shown a row, if it is not nil
}

func (s *damagedStore) Scan(ctx context.Context, r rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return func(yield func(rowstore.Row, error) bool) {
		for row, err := range s.Store.Scan(ctx, r) {
			s.mu.Lock()
			if err == nil && s.rows[row.Row] {
				err = fmt.Errorf("%w: a row of a test", s.kind)
			}
			if err == nil && s.seen != nil {
				s.seen[row.Row]++
			}
			s.mu.Unlock()
			if !yield(row, err) || err != nil {
				return
			}
		}
	}
}

// A row that is damaged, or of a version that this program does not know, does not hide the notifications
// of others, and is reported. If very many are, the look fails.
func TestDamagedRowHidesNoOthers(t *testing.T) {
	t.Parallel()
	for _, kind := range []error{ErrCorrupt, ErrFormat, ErrForeign} {
		t.Run(kind.Error(), func(t *testing.T) {
			t.Parallel()
			requireDamagedRowHidesNoOthers(t, kind)
		})
	}
}

func requireDamagedRowHidesNoOthers(t *testing.T, kind error) {
	t.Helper()
	w := newWorld(t)
	w.observed("t", "v", "o")
	store := &damagedStore{Store: w.mem, kind: kind, rows: map[string]bool{}}
	var said strings.Builder
	c := w.clientOver(newWireTo(store, w.mem), WithLogger(slog.New(slog.NewTextHandler(&said, nil))))
	var rows saw
	wk := rowWorker(t, c, &rows)
	names := notifyRows(t, c, 1000)
	var good []string
	for i, name := range names {
		if store.rows[name] = i%400 == 1; !store.rows[name] && !sharesSlot(name, names[1], names[401], names[801]) {
			good = append(good, name)
		}
	}
	store.mu.Lock()
	store.seen = map[string]int{}
	store.mu.Unlock()
	ran := dealt(t, wk, &rows)
	for _, name := range good {
		_, found := slices.BinarySearch(ran, name)
		require.True(t, found, name)
	}
	store.mu.Lock()
	for _, name := range good {
		require.Equal(t, 1, store.seen[name], "what was found has run, and is not to be found again")
	}
	store.seen = nil
	store.mu.Unlock()
	require.Equal(t, 3, strings.Count(said.String(), "level=ERROR"), said.String())
	require.Equal(t, 3, strings.Count(said.String(), "a row of a test"))
	require.False(t, wk.lookUnderWay("t"), "it is not stuck")
	// A look for what pushes tell of goes on, too.
	set(t, c.DB, row(names[0]), "2")
	l, err := wk.look(t.Context(), "t", []uint16{rowstore.Slot("t", names[0]), rowstore.Slot("t", names[1]), rowstore.Slot("t", names[401])}, 0)
	require.NoError(t, err)
	require.Equal(t, 1, l.found)
	wk.tasks.Wait()
	notifyRows(t, c, 1000)
	for _, name := range names {
		store.rows[name] = true
	}
	_, err = wk.look(t.Context(), "t", nil, 0)
	require.ErrorIs(t, err, kind)
	store.mu.Lock()
	clear(store.rows)
	store.mu.Unlock()
	dealt(t, wk, &rows)
	require.Empty(t, w.versions(rowstore.Notify))
}

// A look fails at the first row of an unknown version where the catalog cannot be read either: then it is
// the whole database that this program does not know any more.
func TestNoDetourInADatabaseOfANewerVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	store := &damagedStore{Store: w.mem, kind: ErrFormat, rows: map[string]bool{}}
	wire := newWireTo(store, w.mem)
	c := w.clientOver(wire)
	var rows saw
	wk := rowWorker(t, c, &rows)
	store.rows[notifyRows(t, c, 10)[5]] = true
	raisedBeyond(t, w.mem)
	wire.forget()
	_, err := wk.look(t.Context(), "t", nil, 0)
	require.ErrorIs(t, err, ErrFormat)
	require.Len(t, wire.sent(scansOfT), 1)
	require.ErrorIs(t, wk.waitAfter(t.Context(), walkWait, 0, "a look", err), ErrFormat, "and the worker ends")
}

// The worker does not count as stuck because the last row of a look is damaged.
func TestDamagedRowAtTheEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	store := &damagedStore{Store: w.mem, kind: ErrCorrupt, rows: map[string]bool{}}
	c := w.clientOver(newWireTo(store, w.mem))
	var rows saw
	wk := rowWorker(t, c, &rows)
	names := notifyRows(t, c, 10)
	last := slices.MaxFunc(names, func(a, b string) int { return cmp.Compare(rowstore.Slot("t", a), rowstore.Slot("t", b)) })
	store.rows[last] = true
	require.Len(t, dealt(t, wk, &rows), len(names)-1)
	require.False(t, wk.lookUnderWay("t"))
	_, err := wk.look(t.Context(), "t", []uint16{rowstore.Slot("t", last)}, 0)
	require.NoError(t, err)
	require.False(t, wk.lookUnderWay("t"))
}

// sharesSlot tells whether a row lies in the slot of one of others.
func sharesSlot(name string, others ...string) bool {
	for _, other := range others {
		if rowstore.Slot("t", name) == rowstore.Slot("t", other) {
			return true
		}
	}
	return false
}

// Any ranges of slots are cut into halves, until there is one slot.
func TestHalves(t *testing.T) {
	t.Parallel()
	count := func(all []rowstore.SlotRange) (n int) {
		for _, r := range all {
			n += int(r.Last-r.First) + 1
		}
		return n
	}
	for _, all := range [][]rowstore.SlotRange{
		{{First: 7, Last: 7}},
		{{First: 0, Last: rowstore.Slots - 1}},
		{{First: 0, Last: 1}, {First: 5, Last: 5}},
		{{First: 1, Last: 1}, {First: 3, Last: 3}},
		{{First: 1, Last: 2}, {First: 4, Last: 5}},
		{{First: 9, Last: 9}, {First: 11, Last: 400}, {First: 65535, Last: 65535}},
	} {
		first, second := halves(all)
		n := count(all)
		require.Equal(t, max(1, n/2), count(first), "%v", all)
		require.Equal(t, n-max(1, n/2), count(second), "%v", all)
		var a, b slotSet
		for _, r := range all {
			for slot := int(r.First); slot <= int(r.Last); slot++ {
				a.add(uint16(slot)) //nolint:gosec // a slot
			}
		}
		for _, r := range append(append([]rowstore.SlotRange{}, first...), second...) {
			for slot := int(r.First); slot <= int(r.Last); slot++ {
				require.False(t, b.has(uint16(slot))) //nolint:gosec // a slot
				b.add(uint16(slot))                   //nolint:gosec // a slot
			}
		}
		require.Equal(t, a, b)
	}
}
