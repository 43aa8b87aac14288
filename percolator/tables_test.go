package percolator

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Bad settings of a table are refused before anything is written.
func TestConfigureTableRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	wrote := func() int { return len(c.wire.sent(func(x *call) bool { return len(x.Mutations()) > 0 })) }
	before := wrote()
	for name, bad := range map[string]struct {
		table string
		s     TableSettings
		err   error
	}{
		"no name":              {"", short, ErrInvalid},
		"too long a name":      {string(make([]byte, 4000)), short, ErrTooLarge},
		"negative retention":   {"q", TableSettings{Retention: -time.Hour}, ErrInvalid},
		"negative age":         {"q", TableSettings{MaxTxnAge: -1, Retention: time.Hour}, ErrInvalid},
		"less than it can be":  {"q", TableSettings{MaxTxnAge: time.Microsecond, Retention: time.Hour}, ErrInvalid},
		"age of the database":  {"q", TableSettings{Retention: time.Minute}, ErrInvalid},
		"retention of its age": {"q", TableSettings{MaxTxnAge: time.Minute, Retention: time.Minute}, ErrInvalid},
		"within the lease":     {"q", TableSettings{MaxTxnAge: time.Minute, Retention: time.Minute + worldLease}, ErrInvalid},
		"longer age":           {"q", TableSettings{MaxTxnAge: 2 * worldAge}, ErrInvalid},
		"longer retention":     {"q", TableSettings{Retention: 25 * time.Hour}, ErrInvalid},
		"not representable":    {"q", TableSettings{Retention: 1<<63 - 1}, ErrInvalid},
	} {
		err := c.ConfigureTable(t.Context(), bad.table, bad.s)
		require.ErrorIs(t, err, bad.err, name)
		require.ErrorContains(t, err, "ConfigureTable", name)
	}
	_, err := c.TableSafePoint(t.Context(), "")
	require.ErrorIs(t, err, ErrInvalid)
	_, err = c.CollectGarbage(t.Context(), GCOptions{Within: -1})
	require.ErrorIs(t, err, ErrInvalid)
	for _, s := range []Settings{{Retention: 1<<63 - 1}, {MaxTxnAge: -1}, {MaxTxnAge: 1<<63 - 1, Retention: 1<<63 - 1}} {
		require.ErrorIs(t, c.Configure(t.Context(), s), ErrInvalid)
	}
	require.Equal(t, before, wrote())
	require.Empty(t, c.TableSettings())

	// Odd names are names. What does not fit together with the database is refused there too.
	odd := "\x00catalog\xff"
	w.configuredTable(c, odd, short)
	require.Equal(t, map[string]TableSettings{odd: short}, c.TableSettings())
	require.NoError(t, c.ConfigureTable(t.Context(), odd, short), "it is so already")
	require.ErrorIs(t, c.Configure(t.Context(), Settings{CatalogLease: shortAge}), ErrInvalid)
	require.ErrorIs(t, c.Configure(t.Context(), Settings{MaxTxnAge: time.Second}), ErrInvalid)
	require.NoError(t, c.Configure(t.Context(), Settings{MaxTxnAge: 2 * worldAge}))
	err = c.ConfigureTable(t.Context(), "q", short)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "another change")
	// What the change under way leaves as it is asked for needs no change of its own, as when programs configure what they need at each start.
	require.NoError(t, c.ConfigureTable(t.Context(), odd, short))
	require.NoError(t, c.ConfigureTable(t.Context(), "q", TableSettings{}))
	require.NoError(t, c.Configure(t.Context(), Settings{Retention: c.Settings().Retention}))
	require.NoError(t, c.Configure(t.Context(), Settings{MaxTxnAge: 2 * worldAge}))
	require.ErrorIs(t, c.Configure(t.Context(), Settings{MaxTxnAge: c.Settings().MaxTxnAge}), ErrInvalid, "it would not hold")
}

// Several tables are set in one change: one of them after another would each wait for the one before to come into effect.
func TestConfigureTables(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, other := w.client(), w.client()
	settings := func() map[string]TableSettings {
		_, err := other.loadCatalog(t.Context())
		require.NoError(t, err)
		return other.TableSettings()
	}
	kept := map[string]TableSettings{"kept": short}
	require.NoError(t, c.ConfigureTables(t.Context(), nil))
	require.NoError(t, c.ConfigureTables(t.Context(), kept))
	w.pass(2*worldLease + time.Second)

	longer := TableSettings{MaxTxnAge: shortAge, Retention: 2 * short.Retention}
	// With one that is refused none is set.
	err := c.ConfigureTables(t.Context(), map[string]TableSettings{"a": short, "b": {Retention: -1}, "c": longer})
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, `"b"`)
	require.ErrorIs(t, c.ConfigureTables(t.Context(), map[string]TableSettings{"a": short, "": short}), ErrInvalid)
	require.ErrorIs(t, c.ConfigureTables(t.Context(), map[string]TableSettings{"a": short, "q": {Retention: 25 * time.Hour}}), ErrInvalid)
	require.Equal(t, kept, settings())
	require.True(t, other.known().inForce(other.known().asOf), "no change is under way")

	all := map[string]TableSettings{"a": short, "z": longer, "m": {}}
	require.NoError(t, c.ConfigureTables(t.Context(), all))
	require.NoError(t, other.ConfigureTables(t.Context(), all), "it will be so")
	require.NoError(t, other.ConfigureTable(t.Context(), "z", longer))
	require.ErrorContains(t, other.ConfigureTables(t.Context(), map[string]TableSettings{"a": short, "kept": longer}), "another change")
	w.pass(2*worldLease + time.Second)
	require.Equal(t, map[string]TableSettings{"kept": short, "a": short, "z": longer}, settings())

	require.NoError(t, c.ConfigureTables(t.Context(), map[string]TableSettings{"a": {}, "kept": {}}))
	w.pass(2*worldLease + time.Second)
	require.Equal(t, map[string]TableSettings{"z": longer}, settings())
}

// Every process knows the settings of a table, and a program of the version before stops at them.
func TestTableSettingsRaiseTheCatalog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	stored := func() []byte {
		rows, err := w.mem.Read(t.Context(), []rowstore.RowRead{{Table: format.TableCatalog, Row: format.RowCatalog, Selectors: []rowstore.Selector{everything(rowstore.Write, format.ColumnConfig)}}})
		require.NoError(t, err)
		return rows[0].Newest(rowstore.Write, format.ColumnConfig).Value
	}
	w.lowerTo(format.PlainCatalogVersion)
	w.configured(c, Settings{Retention: worldRetention + worldAge})
	require.EqualValues(t, format.PlainCatalogVersion, stored()[0], "programs of the version before know this")
	require.NoError(t, c.ConfigureTable(t.Context(), "queue", TableSettings{MaxTxnAge: shortAge}))
	require.EqualValues(t, format.TablesVersion, stored()[0], "before it takes effect")
	w.pass(2*worldLease + time.Second)
	require.Equal(t, map[string]TableSettings{"queue": {MaxTxnAge: shortAge, Retention: worldRetention + worldAge}}, w.client().TableSettings())
	w.configuredTable(c, "queue", TableSettings{})
	require.EqualValues(t, format.TablesVersion, stored()[0], "safe points of tables may be left, which that version does not know")

	// This program is as that one, when it meets a version after its own.
	later := stored()
	later[0] = format.CatalogVersion + 1
	now, err := c.Now(t.Context())
	require.NoError(t, err)
	old := w.client()
	tx := writes(t, old, "1", rowA)
	_, err = w.mem.Apply(t.Context(), []rowstore.Mutation{{Table: format.TableCatalog, Row: format.RowCatalog, Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, format.ColumnConfig, now, later)}}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	w.clock.advance(worldLease)
	require.ErrorIs(t, tx.Commit(t.Context()), ErrFormat)
	_, err = begin(t, old).Get(t.Context(), rowA)
	require.True(t, err == nil || errors.Is(err, ErrNotFound) || errors.Is(err, ErrFormat), "%v", err)
}

// What the library keeps beside the safe points cannot be read: nothing is guessed.
func TestDamagedSafePointsOfTables(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	now, err := c.Now(t.Context())
	require.NoError(t, err)
	for value, want := range map[string]error{"\x01{": ErrCorrupt, "\x02{}": ErrFormat} {
		_, err = w.mem.Apply(t.Context(), []rowstore.Mutation{{Table: format.TableCatalog, Row: format.RowCatalog, Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, format.ColumnOfTables, now, []byte(value))}}}, rowstore.ApplyOptions{})
		require.NoError(t, err)
		_, err = c.TableSafePoint(t.Context(), "t")
		require.ErrorIs(t, err, want)
	}
}
