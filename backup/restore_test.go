package backup

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
	"github.com/percolate-go/percolate/percolator/rowstore/router"
)

var errCut = errors.New("the restore is cut off here")

// cutStore fails calls that write from some call on, before or after it does what they ask.
type cutStore struct {
	rowstore.Store
	left  int
	after bool
}

func (s *cutStore) Oracle() oracle.Oracle {
	p, _ := rowstore.Unwrap[rowstore.OracleProvider](s.Store)
	return p.Oracle()
}

func (s *cutStore) Apply(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	if s.left--; s.left >= 0 {
		return s.Store.Apply(ctx, muts, opts)
	}
	if s.after && s.left == -1 {
		_, err := s.Store.Apply(ctx, muts, opts)
		return nil, errors.Join(errCut, err)
	}
	return nil, errCut
}

// TestRestoreIsCutOff cuts a restore off at every call that writes. The store is no database then; the same backup goes on, and
// another one is refused.
func TestRestoreIsCutOff(t *testing.T) {
	t.Parallel()
	s, path, _, _ := filled(t)
	want := contents(t, path)
	other := backedUp(t, s.db, Options{})
	for cut := 0; ; cut++ {
		store := memstore.New()
		_, err := Restore(t.Context(), &cutStore{Store: store, left: cut, after: cut%2 == 0}, path, RestoreOptions{})
		if err == nil {
			require.Greater(t, cut, 10)
			require.NoError(t, store.Close())
			return
		}
		require.ErrorIs(t, err, errCut)
		if db, err := percolator.New(t.Context(), store); err == nil {
			// Only the last call makes it a database, and then it is whole.
			require.Equal(t, want, contents(t, backedUp(t, db, Options{})), "cut at call %d: half of a restore was taken for a database", cut)
			_, err = Restore(t.Context(), store, path, RestoreOptions{})
			require.ErrorIs(t, err, ErrNotEmpty)
			require.NoError(t, db.Close(t.Context()))
			continue
		} else if cut > 0 {
			require.ErrorIs(t, err, percolator.ErrFormat)
			require.ErrorContains(t, err, "has not ended")
			_, err = Restore(t.Context(), store, other, RestoreOptions{})
			require.ErrorIs(t, err, ErrNotEmpty)
			require.ErrorContains(t, err, "another backup")
		}
		r, err := Restore(t.Context(), store, path, RestoreOptions{})
		require.NoError(t, err)
		require.True(t, r.Resumed)
		db := everystore.Over(t, store)
		require.Equal(t, want, contents(t, backedUp(t, db, Options{})))
		require.NoError(t, db.Close(t.Context()))
	}
}

// TestLateRestore: a restore that was thought dead goes on after another call has ended, and programs work. It fails, and leaves their catalog alone.
func TestLateRestore(t *testing.T) {
	t.Parallel()
	_, path, _, _ := filled(t)
	store := memstore.New()
	var db *percolator.DB
	var catalog *rowstore.Version
	_, err := Restore(t.Context(), store, path, RestoreOptions{Progress: func(p Progress) {
		if p.Done < 0.1 || db != nil {
			return
		}
		_, err := Restore(t.Context(), store, path, RestoreOptions{})
		require.NoError(t, err)
		db = everystore.Over(t, store)
		require.NoError(t, db.Configure(t.Context(), percolator.Settings{Retention: 123 * time.Hour}))
		catalog, err = readCatalog(t.Context(), db)
		require.NoError(t, err)
	}})
	require.NotNil(t, db)
	require.ErrorIs(t, err, ErrNotEmpty)
	require.NotContains(t, err.Error(), "again to go on")
	after, err := readCatalog(t.Context(), db)
	require.NoError(t, err)
	require.Equal(t, catalog, after)
	require.NoError(t, db.Close(t.Context()))
}

// TestRestoreIntoData: nothing is written where anything is.
func TestRestoreIntoData(t *testing.T) {
	t.Parallel()
	s, path, _, _ := filled(t)
	_, err := Restore(t.Context(), s.db.Store(), path, RestoreOptions{})
	require.ErrorIs(t, err, ErrNotEmpty)
	require.ErrorIs(t, err, percolator.ErrInvalid)
	store := memstore.New()
	defer func() { _ = store.Close() }()
	_, err = store.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: "r", Edits: []rowstore.Edit{rowstore.Put(rowstore.Mark, "c", 5, nil)}}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	_, err = Restore(t.Context(), store, path, RestoreOptions{})
	require.ErrorIs(t, err, ErrNotEmpty)
}

// TestRestoreLooksIntoAllStores restores where another one of several stores holds a database, in tables that are not those of any data.
func TestRestoreLooksIntoAllStores(t *testing.T) {
	t.Parallel()
	source, err := percolator.New(t.Context(), memstore.New())
	require.NoError(t, err)
	require.NoError(t, source.Update(t.Context(), func(tx *percolator.Txn) error { return tx.Set(at("t", "r", "c"), nil) }))
	path := backedUp(t, source, Options{})
	require.NoError(t, source.Close(t.Context()))
	stores := map[string]rowstore.Store{"a": memstore.New(), "b": memstore.New()}
	over := func(authoritative string) rowstore.Store {
		r, err := router.New(router.Config{Stores: stores, Authoritative: authoritative})
		require.NoError(t, err)
		return r
	}
	db, err := percolator.New(t.Context(), faultstore.New(over("a"), faultstore.Options{KeepOpen: true}))
	require.NoError(t, err)
	require.NoError(t, db.Close(t.Context()))
	_, err = Restore(t.Context(), over("b"), path, RestoreOptions{})
	require.ErrorIs(t, err, ErrNotEmpty)
	require.ErrorContains(t, err, `"a"`)
	for name, err := range stores["b"].Tables(t.Context()) {
		require.NoError(t, err)
		require.Fail(t, "nothing is written", name)
	}
	require.NoError(t, over("b").Close())
}

// slowOracle is behind, and takes no large steps.
type slowOracle struct {
	oracle.Oracle
	behind time.Duration
}

func (o slowOracle) Draw(ctx context.Context, n int) (oracle.Timestamp, error) {
	if n > 1000 {
		return 0, rowstore.ErrTooLarge
	}
	ts, err := o.Oracle.Draw(ctx, n)
	return ts.Add(-o.behind), err
}

// TestOracleBehind restores with an oracle that is behind the backup: for a moment, for long, and one that can be moved on.
func TestOracleBehind(t *testing.T) {
	t.Parallel()
	_, path, _, r := filled(t)
	store := memstore.New()
	_, err := Restore(t.Context(), store, path, RestoreOptions{OracleName: "slow", Oracle: slowOracle{store.Oracle(), time.Hour}})
	require.ErrorIs(t, err, ErrOracleBehind)
	for table, err := range store.Tables(t.Context()) {
		require.NoError(t, err)
		t.Fatalf("table %q was written", table)
	}
	_, err = Restore(t.Context(), store, path, RestoreOptions{OracleName: "slow", Oracle: slowOracle{store.Oracle(), time.Since(r.Snapshot.Time()) + 300*time.Millisecond}})
	require.NoError(t, err)
	require.NoError(t, store.Close())

	// The oracle of a store in this process takes a large step.
	past := memstore.New(memstore.WithClock(func() time.Time { return time.Now().Add(-24 * time.Hour) }))
	_, err = Restore(t.Context(), past, path, RestoreOptions{})
	require.NoError(t, err)
	now, err := past.Oracle().Draw(t.Context(), 1)
	require.NoError(t, err)
	require.Greater(t, now, r.Snapshot)
	db := everystore.Over(t, past)
	_, err = db.Now(t.Context())
	require.NoError(t, err)
	// What is older than the backup cannot be asked for.
	err = db.View(t.Context(), func(tx *percolator.Txn) error {
		_, err := tx.Get(t.Context(), at("orders", "a00", "state"))
		return err
	}, percolator.WithAsOfTimestamp(r.Snapshot-1))
	require.ErrorIs(t, err, percolator.ErrSnapshotTooOld)
}

// TestRestoreOfAVerifiedFile reads the file once only, and finds out if it is not the one that was verified.
func TestRestoreOfAVerifiedFile(t *testing.T) {
	t.Parallel()
	s, path, file, _ := filled(t)
	v, err := Verify(t.Context(), path, nil)
	require.NoError(t, err)
	other := backedUp(t, s.db, Options{})
	damaged := bytes.Clone(file)
	damaged[len(damaged)-3] ^= 1
	bad := filepath.Join(t.TempDir(), "damaged")
	require.NoError(t, os.WriteFile(bad, damaged, 0o600))
	store := memstore.New()
	for _, file := range []string{other, bad} {
		_, err = Restore(t.Context(), store, file, RestoreOptions{Verified: v})
		require.ErrorIs(t, err, ErrDamaged)
		_, err = percolator.New(t.Context(), store)
		require.ErrorIs(t, err, percolator.ErrFormat, "a part of a restore was taken for a database")
	}
	r, err := Restore(t.Context(), store, path, RestoreOptions{Verified: v})
	require.NoError(t, err)
	require.True(t, r.Resumed)
	require.Equal(t, []any{v.ID, v.Rows, v.Cells, v.Bytes}, []any{r.ID, r.Rows, r.Cells, r.Bytes})
	require.Equal(t, contents(t, path), contents(t, backedUp(t, everystore.Over(t, store), Options{})))
}

// madeMeanwhile restores into a store, and makes a call once, while the file is checked.
func madeMeanwhile(t *testing.T, store rowstore.Store, path string, call func()) error {
	t.Helper()
	called := false
	_, err := Restore(t.Context(), store, path, RestoreOptions{Progress: func(p Progress) {
		if !called && p.Done < 0.1 {
			called = true
			call()
		}
	}})
	require.True(t, called)
	return err
}

// TestDatabaseMadeMeanwhile: a program makes a database in the store while the file is checked, which takes long. The restore leaves it alone.
func TestDatabaseMadeMeanwhile(t *testing.T) {
	t.Parallel()
	_, path, _, _ := filled(t)
	store := memstore.New()
	var db *percolator.DB
	err := madeMeanwhile(t, store, path, func() {
		db = everystore.Over(t, store)
		require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error { return tx.Set(at("mine", "r", "c"), []byte("v")) }))
	})
	require.ErrorIs(t, err, ErrNotEmpty)
	require.NotContains(t, err.Error(), "again to go on")
	require.Equal(t, map[percolator.Cell]string{at("mine", "r", "c"): "v"}, everyValue(t, db))
	// Another process finds the database too.
	other := everystore.Over(t, store)
	require.Equal(t, map[percolator.Cell]string{at("mine", "r", "c"): "v"}, everyValue(t, other))
}

// TestRestoresMeetInAStore: another backup is begun to be restored while the file is checked. The two do not mix.
func TestRestoresMeetInAStore(t *testing.T) {
	t.Parallel()
	s, path, _, _ := filled(t)
	other := backedUp(t, s.db, Options{})
	store := memstore.New()
	err := madeMeanwhile(t, store, path, func() {
		_, err := Restore(t.Context(), &cutStore{Store: store, left: 3}, other, RestoreOptions{})
		require.ErrorIs(t, err, errCut)
	})
	require.ErrorIs(t, err, ErrNotEmpty)
	r, err := Restore(t.Context(), store, other, RestoreOptions{})
	require.NoError(t, err)
	require.True(t, r.Resumed)
	require.Equal(t, contents(t, other), contents(t, backedUp(t, everystore.Over(t, store), Options{})))
}

// TestRowsMadeMeanwhile: somebody writes rows without a catalog while the file is checked. The restore finds them, also when it is called again.
func TestRowsMadeMeanwhile(t *testing.T) {
	t.Parallel()
	_, path, _, _ := filled(t)
	for _, row := range []rowstore.Mutation{{Table: "t", Row: "r"}, {Table: format.TableCatalog, Row: "z"}, {Table: format.TableCatalog, Row: "A"}} {
		store := memstore.New()
		row.Edits = []rowstore.Edit{rowstore.Put(rowstore.Mark, "c", 5, nil)}
		err := madeMeanwhile(t, store, path, func() {
			_, err := store.Apply(t.Context(), []rowstore.Mutation{row}, rowstore.ApplyOptions{})
			require.NoError(t, err)
		})
		require.ErrorIs(t, err, ErrNotEmpty)
		_, err = Restore(t.Context(), store, path, RestoreOptions{})
		require.ErrorIs(t, err, ErrNotEmpty)
		var tables []string
		for table, err := range store.Tables(t.Context()) {
			require.NoError(t, err)
			tables = append(tables, table)
		}
		require.Subset(t, []string{"t", format.TableCatalog}, tables)
		require.NoError(t, store.Close())
	}
}

// mumblingStore does what is asked in place of the catalog, and loses the answer. Then it is away for a read.
type mumblingStore struct {
	rowstore.Store
	lose  func(write int) bool // which answers
	wrote int
	away  bool
}

func (s *mumblingStore) Oracle() oracle.Oracle { return (&cutStore{Store: s.Store}).Oracle() }

func (s *mumblingStore) Apply(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	outs, err := s.Store.Apply(ctx, muts, opts)
	if err != nil || muts[0].Table != format.TableCatalog || !outs[0].Applied {
		return outs, err
	}
	if s.wrote++; s.lose(s.wrote) {
		s.away = true
		return nil, rowstore.ErrAmbiguous
	}
	return outs, nil
}

func (s *mumblingStore) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	if s.away {
		s.away = false
		return nil, rowstore.ErrUnavailable
	}
	return s.Store.Read(ctx, reads)
}

// TestLostAnswersOfMarkers loses the answer of each write in place of the catalog, the first and the last among them, and what the restore asks next. It finds what it has
// written itself.
func TestLostAnswersOfMarkers(t *testing.T) {
	t.Parallel()
	_, path, _, _ := filled(t)
	want := contents(t, path)
	for lost := 1; ; lost++ {
		store := memstore.New()
		through := &mumblingStore{Store: store, lose: func(n int) bool { return n == lost }}
		_, err := Restore(t.Context(), through, path, RestoreOptions{})
		require.NoError(t, err, "answer %d", lost)
		db := everystore.Over(t, store)
		require.Equal(t, want, contents(t, backedUp(t, db, Options{})))
		require.NoError(t, db.Close(t.Context()))
		if through.wrote < lost {
			require.Greater(t, lost, 3)
			return
		}
	}
}
