package kit_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

func TestHub(t *testing.T) {
	t.Parallel()
	var h kit.Hub
	h.Tell("nobody listens")
	ctx, cancel := context.WithCancel(t.Context())
	woken := make(chan string)
	ended := make(chan error, 1)
	go func() { ended <- h.Listen(ctx, func(table string) { woken <- table }) }()
	require.Empty(t, <-woken, "whoever begins to listen looks everywhere")
	h.Tell()
	h.Tell("a")
	require.Equal(t, "a", <-woken)
	// While the listener is busy, tables gather, each once.
	h.Tell("b")
	for range 3 {
		h.Tell("c", "d")
	}
	got := map[string]int{}
	for len(got) < 3 {
		got[<-woken]++
	}
	require.Equal(t, map[string]int{"b": 1, "c": 1, "d": 1}, got)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.Zero(t, kit.Listeners(&h), "it is forgotten")
	h.Tell("nobody listens any more")
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
