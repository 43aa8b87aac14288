package percolator

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
)

// An observer has moved to another column with its name. What it left is removed alone: the other registration keeps what it has
// acknowledged, and its worker goes on.
func TestRemoveRegistration(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "\x00old", "o", "beside")
	w.observed("t", "v", "o")
	c := w.client()
	left := Cell{"t", "a", "\x00old"}
	set(t, c.DB, left, "1")
	set(t, c.DB, rowA, "1")
	worker := watching(t, c, Observer{Name: "o", Func: nothing})
	runs(t, worker, rowA)

	registered := func() (all []ObserverInfo) {
		all, err := c.Observers(t.Context())
		require.NoError(t, err)
		return all
	}
	before := registered()
	require.Len(t, before, 3)
	for name, of := range map[string]ObserverInfo{
		"made later":     {Name: "o", Table: "t", Column: "\x00old", Since: before[0].Since + 1},
		"another column": {Name: "o", Table: "t", Column: "nobody"},
		"another table":  {Name: "o", Table: "u", Column: "v"},
		"another name":   {Name: "p", Table: "t", Column: "v"},
		"a stored name":  {Name: "o", Table: "t", Column: format.Escape("\x00old")},
	} {
		require.NoError(t, c.RemoveRegistration(t.Context(), of), name)
		require.Equal(t, before, registered(), name)
	}
	for name, of := range map[string]ObserverInfo{
		"no name": {Table: "t", Column: "v"}, "no table": {Name: "o", Column: "v"}, "no column": {Name: "o", Table: "t"},
		"a long name": {Name: strings.Repeat("o", 129), Table: "t", Column: "v"},
	} {
		require.ErrorIs(t, c.RemoveRegistration(t.Context(), of), ErrInvalid, name)
	}
	require.ErrorIs(t, c.RemoveRegistration(t.Context(), ObserverInfo{Name: "o", Table: strings.Repeat("t", 1<<20), Column: "v"}), ErrTooLarge)

	require.NoError(t, c.RemoveRegistration(t.Context(), before[0]))
	require.Equal(t, before[1:], registered())
	require.NoError(t, c.RemoveRegistration(t.Context(), before[0]), "removing it twice is no error")
	w.pass(worldLease)
	rests(t, worker, rowA)
	set(t, c.DB, rowA, "2")
	runs(t, worker, rowA)
	set(t, c.DB, left, "2")
	require.NotEmpty(t, w.raw(left).Versions)
	runs(t, watching(t, c, Observer{Name: "beside", Column: "\x00old", Table: "t", Func: nothing}), left)
}

// A worker says what its observers have left on other columns.
func TestWorkerSaysWhatHasMoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "old", "moved", "stays")
	w.observed("t", "v", "another")
	var said strings.Builder
	c := w.clientOver(newWireTo(w.mem, w.mem), WithLogger(slog.New(slog.NewTextHandler(&said, nil))))
	worker := watching(t, c, Observer{Name: "moved", Func: nothing}, Observer{Name: "stays", Table: "t", Column: "old", Func: nothing})
	require.NoError(t, worker.publish(t.Context()))
	require.Equal(t, 1, strings.Count(said.String(), "another column"), said.String())
	require.Contains(t, said.String(), "observer=moved table=t column=old")
	require.NoError(t, c.RemoveRegistration(t.Context(), ObserverInfo{Name: "moved", Table: "t", Column: "old"}))
	said.Reset()
	require.NoError(t, watching(t, c, Observer{Name: "moved", Func: nothing}).publish(context.WithoutCancel(t.Context())))
	require.Empty(t, said.String())
}
