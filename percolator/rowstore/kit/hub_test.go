package kit_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

func at(table string, slots ...uint16) rowstore.Wake {
	return rowstore.Wake{Table: table, Slots: slots}
}

func TestHub(t *testing.T) {
	t.Parallel()
	var h kit.Hub
	h.Tell(at("nobody listens"))
	ctx, cancel := context.WithCancel(t.Context())
	woken, goOn := make(chan rowstore.Wake), make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- h.Listen(ctx, func(w rowstore.Wake) {
			woken <- w
			<-goOn
		})
	}()
	require.Zero(t, <-woken, "whoever begins to listen looks everywhere")
	goOn <- struct{}{}
	h.Tell()
	h.Tell(at("a"))
	require.Equal(t, at("a"), <-woken)
	// While the listener is busy, what it is told gathers.
	h.Tell(at("b", 1))
	for i := range uint16(3) {
		h.Tell(at("c", i), at("d"))
	}
	var got []rowstore.Wake
	for range 3 {
		goOn <- struct{}{}
		got = append(got, <-woken)
	}
	require.Equal(t, []rowstore.Wake{at("b", 1), at("c", 0, 1, 2), at("d")}, got)
	cancel()
	goOn <- struct{}{}
	require.ErrorIs(t, <-ended, context.Canceled)
	require.Zero(t, kit.Listeners(&h), "it is forgotten")
	h.Tell(at("nobody listens any more"))
}

// News forgets slots, and then tables, rather than grow.
func TestNews(t *testing.T) {
	t.Parallel()
	var n kit.News
	require.Empty(t, n.Take())
	slots := []uint16{1, 2}
	n.Add(at("a", slots...))
	slots[0] = 9
	n.Add(at("a", 2))
	n.Add(at("b"))
	n.Add(at("b", 3))
	require.Equal(t, []rowstore.Wake{at("a", 1, 2), at("b")}, n.Take(), "it keeps nothing of what it was given")
	require.Empty(t, n.Take())
	for range 3 {
		for i := range uint16(1025) {
			n.Add(at("many", i))
			n.Add(at("full", 0xffff-i%1024))
			n.Add(at("few", i%3, i%3, i%2))
		}
	}
	n.Add(at("same", make([]uint16, 5000)...))
	var all []uint16
	for i := range uint16(1024) {
		all = append(all, 0xffff-1023+i)
	}
	n.Add(at("more", append(all, 0)...))
	n.Add(at("together", all...))
	n.Add(at("together", all...))
	n.Add(at("apart", all[:512]...))
	n.Add(at("apart", 0))
	n.Add(at("apart", all[512:]...))
	got := n.Take()
	for i := range got {
		slices.Sort(got[i].Slots)
	}
	require.Equal(t, []rowstore.Wake{at("many"), at("full", all...), at("few", 0, 1, 2), at("same", 0), at("more"), at("together", all...), at("apart")}, got,
		"more than 1,024 different ones mean any row")
	for i := range 65 {
		n.Add(at(fmt.Sprint(i), 1))
	}
	n.Add(at("one more", 1))
	require.Equal(t, []rowstore.Wake{{}}, n.Take(), "any table")
}

func TestWakes(t *testing.T) {
	t.Parallel()
	notify, lock := rowstore.Put(rowstore.Notify, "c", 5, nil), rowstore.Put(rowstore.Lock, "c", 5, nil)
	gone := rowstore.Delete(rowstore.Lock, "c", 5)
	for _, c := range []struct {
		edits []rowstore.Edit
		want  bool
	}{
		{nil, false},
		{[]rowstore.Edit{gone, notify}, true},
		{[]rowstore.Edit{notify, lock}, false},
		{[]rowstore.Edit{lock}, false},
		{[]rowstore.Edit{rowstore.Delete(rowstore.Notify, "c", 5)}, false},
	} {
		require.Equal(t, c.want, kit.Wakes(&rowstore.Mutation{Edits: c.edits}), "%v", c.edits)
	}
}
