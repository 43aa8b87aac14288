package admin_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// byRows hides that a store finds notifications by slots: then they come by their rows.
type byRows struct {
	rowstore.Store
	mem *memstore.Store
}

func (b byRows) Oracle() oracle.Oracle { return b.mem.Oracle() }

// pages asks for pages until there are no more, and returns the keys of all items, each of which must come once.
func pages[T any](t *testing.T, limit int, ask func(from admin.Bytes, limit int) ([]T, admin.Bytes, error), key func(T) string) (keys []string) {
	t.Helper()
	seen := map[string]bool{}
	for from := admin.Bytes(""); ; {
		items, next, err := ask(from, limit)
		require.NoError(t, err)
		require.LessOrEqual(t, len(items), limit)
		for _, x := range items {
			k := key(x)
			require.False(t, seen[k], "%s came twice", k)
			seen[k] = true
			keys = append(keys, k)
		}
		if next == "" {
			return keys
		}
		require.NotEqual(t, from, next)
		from = next
	}
}

// work makes a database in which 23 cells have notifications, parked runs and timers.
func work(t *testing.T, store rowstore.Store) *percolator.DB {
	t.Helper()
	ctx := t.Context()
	db, err := percolator.New(ctx, store, percolator.WithLogger(slog.New(slog.DiscardHandler)), percolator.WithSettings(percolator.Settings{CatalogLease: 10 * time.Millisecond}))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close(context.Background())) })
	w := percolator.NewWorker(db, percolator.WorkerConfig{GCInterval: -1})
	park := func(context.Context, *percolator.Txn, percolator.Cell) error {
		return percolator.Park(errors.New("no"))
	}
	require.NoError(t, w.Observe(percolator.Observer{Name: "o", Table: "t", Column: "c", Func: park}))
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		for i := range 23 {
			if err := tx.Set(cell(fmt.Sprintf("r%02d", i)), nil); err != nil {
				return err
			}
		}
		return nil
	}))
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(running) }()
	require.NoError(t, w.WaitIdle(ctx))
	stop()
	require.NoError(t, <-ended)
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		for i := range 23 {
			c := cell(fmt.Sprintf("r%02d", i))
			if err := errors.Join(tx.NotifyAfter(ctx, c, time.Duration(1+i%5)*time.Hour), tx.Set(c, []byte("anew"))); err != nil {
				return err
			}
		}
		return nil
	}))
	return db
}

func TestPages(t *testing.T) {
	t.Parallel()
	plain := memstore.New()
	for name, store := range map[string]rowstore.Store{"by slots": memstore.New(), "by rows": byRows{plain, plain}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, db := t.Context(), work(t, store)
			r, err := admin.Of(db)
			require.NoError(t, err)
			for _, limit := range []int{1, 5, 23, 100} {
				backlog := pages(t, limit, func(from admin.Bytes, limit int) ([]admin.Notified, admin.Bytes, error) {
					return r.Backlog(ctx, "t", "c", from, limit)
				},
					func(n admin.Notified) string { return n.Cell.String() })
				require.Len(t, backlog, 23)
				parked := pages(t, limit, func(from admin.Bytes, limit int) ([]admin.Parked, admin.Bytes, error) {
					return r.Parked(ctx, "o", from, limit)
				},
					func(p admin.Parked) string { return p.Cell.String() })
				require.Len(t, parked, 23)
				timers := pages(t, limit, func(from admin.Bytes, limit int) ([]admin.Timer, admin.Bytes, error) {
					return r.Timers(ctx, "t", from, limit)
				},
					func(x admin.Timer) string { return x.Due.Format(time.RFC3339Nano) + " " + x.Cell.String() })
				require.Len(t, timers, 23)
				require.IsIncreasing(t, dues(timers))
			}
			none, next, err := r.Parked(ctx, "another", "", 10)
			require.NoError(t, err)
			require.Empty(t, none)
			require.Empty(t, next)
		})
	}
}

// TestParkedRun finds one run among others, by each name of its observer, and as long as it is parked.
func TestParkedRun(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), work(t, memstore.New())
	r, err := admin.Of(db)
	require.NoError(t, err)
	find := func(observer, row string) bool {
		t.Helper()
		run, found, err := r.ParkedRun(ctx, observer, cell(row))
		require.NoError(t, err)
		if found {
			require.Equal(t, cell(row), run.Name())
			require.Contains(t, run.Error, "no")
			require.Equal(t, 1, run.Attempts)
		}
		return found
	}
	require.True(t, find("o", "r07"))
	require.False(t, find("another", "r07"))
	require.False(t, find("o", "r99"))
	require.NoError(t, db.RenameObserver(ctx, "o", "new"))
	require.True(t, find("o", "r07"))
	require.True(t, find("new", "r07"))
	require.NoError(t, db.Release(ctx, percolator.ParkedRun{Observer: "new", Cell: cell("r07")}))
	require.False(t, find("new", "r07"))
	require.NoError(t, db.RemoveObserver(ctx, "new"))
	require.True(t, find("o", "r08"), "what it left is found by the name under which it is stored")
	for _, bad := range []percolator.Cell{{}, {Table: "t", Row: "r"}} {
		_, _, err = r.ParkedRun(ctx, "o", bad)
		require.ErrorIs(t, err, percolator.ErrInvalid)
	}
	_, _, err = r.ParkedRun(ctx, "", cell("r07"))
	require.ErrorIs(t, err, percolator.ErrInvalid)
}

// dues are the due times of timers, each with its place, so that equal ones increase too.
func dues(keys []string) (out []string) {
	for i, k := range keys {
		out = append(out, fmt.Sprintf("%.20s %04d", k, i))
	}
	return out
}

func TestPagesOfProcesses(t *testing.T) {
	t.Parallel()
	db, _, r := open(t)
	ends := now(t, db).Add(time.Minute)
	for i := range 7 {
		id := fmt.Sprintf("p%d", i)
		session(t, db, id, ends)
		record := format.Member{Works: []format.MemberWork{{Observer: "o", Table: "t", Column: "c", Weight: 1}}}
		apply(t, db, format.TableMembers, id, rowstore.Put(rowstore.Lock, format.ColumnMember, 1, record.Encode()), rowstore.Put(rowstore.Write, format.ColumnLease, ends, nil))
	}
	for _, limit := range []int{1, 3, 7, 8} {
		sessions := pages(t, limit, func(from admin.Bytes, limit int) ([]admin.Session, admin.Bytes, error) {
			return r.Sessions(t.Context(), from, limit)
		},
			func(s admin.Session) string { return s.ID })
		require.Len(t, sessions, 7)
		members := pages(t, limit, func(from admin.Bytes, limit int) ([]admin.Member, admin.Bytes, error) {
			return r.Members(t.Context(), from, limit)
		},
			func(m admin.Member) string { return m.ID })
		require.Len(t, members, 7)
	}
}

// TestReplays shows replays by their records, whose values lie apart.
func TestReplays(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), work(t, memstore.New())
	r, err := admin.Of(db)
	require.NoError(t, err)
	list, more, err := r.Replays(ctx, 0)
	require.NoError(t, err)
	require.Empty(t, list)
	require.False(t, more)
	start := now(t, db)
	for i := range 3 {
		record := format.Replay{Observer: []byte("o"), Table: []byte("t"), Column: []byte("c"), From: fmt.Appendf(nil, "r0%d", i), To: []byte("r1"), ID: start - percolator.Timestamp(i), Next: []byte("r05"), Cells: 4}
		b, err := record.Encode()
		require.NoError(t, err)
		c := record.Cell()
		write := format.Write{Kind: format.KindPut, Start: start, Long: true}
		apply(t, db, c.Table, c.Row, rowstore.Put(rowstore.Data, c.Column, start, b), rowstore.Put(rowstore.Write, c.Column, now(t, db), write.Encode()))
	}
	list, more, err = r.Replays(ctx, 3)
	require.NoError(t, err)
	require.False(t, more)
	require.Len(t, list, 3)
	require.Equal(t, admin.Replay{
		Observer: "o", Table: "t", Column: "c", From: "r02", To: "r1", Began: admin.Stamp(start - 2), Age: list[0].Age, Next: "r05", Cells: 4,
	}, list[0])
	list, more, err = r.Replays(ctx, 2)
	require.NoError(t, err)
	require.True(t, more)
	require.Len(t, list, 2)
}

// TestVersions is the history without values, short or long.
func TestVersions(t *testing.T) {
	t.Parallel()
	db, _, r := open(t)
	none, err := r.History(t.Context(), cell("r"), 0, 0)
	require.NoError(t, err)
	require.Empty(t, none.Versions)
	set(t, db, cell("r"), "short")
	set(t, db, cell("r"), strings.Repeat("long", format.ShortValue))
	with, err := r.History(t.Context(), cell("r"), 0, 0)
	require.NoError(t, err)
	require.Len(t, with.Versions, 2)
	without, err := r.Versions(t.Context(), cell("r"), 0, 0)
	require.NoError(t, err)
	for i := range with.Versions {
		require.NotEmpty(t, with.Versions[i].Value)
		with.Versions[i].Value = ""
	}
	require.Equal(t, with, without)
}

// history reads a history page by page.
func history(t *testing.T, r *admin.Reader, c percolator.Cell, limit int, page func(admin.History)) (versions []admin.Version) {
	t.Helper()
	for to, more := percolator.Timestamp(0), true; more; {
		h, err := r.History(t.Context(), c, to, limit)
		require.NoError(t, err)
		require.NotEmpty(t, h.Versions)
		page(h)
		versions = append(versions, h.Versions...)
		more, to = h.More, percolator.Timestamp(h.Next)
	}
	return versions
}

// TestHistoryOfWideValues has versions of a mebibyte among short ones. A page holds some megabytes, however many versions it may have, and the
// pages together hold each version once.
func TestHistoryOfWideValues(t *testing.T) {
	t.Parallel()
	db, store, r := open(t)
	wide := strings.Repeat("w", 1<<20)
	var want []percolator.Timestamp
	for i := range 150 {
		value := "short"
		if i%5 == 0 {
			value = wide
		}
		want = append(want, set(t, db, cell("r"), value))
	}
	slices.Reverse(want)
	store.looking = true
	defer func() { store.looking = false }()
	for _, limit := range []int{1, 7, 100, 1000} {
		var got []percolator.Timestamp
		pages := 0
		for _, v := range history(t, r, cell("r"), limit, func(h admin.History) {
			pages++
			size := 0
			for _, v := range h.Versions {
				size += len(v.Value)
			}
			require.LessOrEqual(t, len(h.Versions), limit)
			require.LessOrEqual(t, size, 8<<20+8*len(wide))
			require.True(t, !h.More || len(h.Versions) == limit || size >= 8<<20, "a page of %d versions and %d bytes has room", len(h.Versions), size)
		}) {
			got = append(got, percolator.Timestamp(v.Commit))
			require.True(t, v.Value == "short" || string(v.Value) == wide)
		}
		require.Equal(t, want, got, "limit %d", limit)
		require.GreaterOrEqual(t, pages, 3)
	}
	without, err := r.Versions(t.Context(), cell("r"), 0, 1000)
	require.NoError(t, err)
	require.Len(t, without.Versions, 150, "versions without values are not many bytes")
}

// TestHistoryAroundTheSafePoint goes on behind a page that ends above the safe point, below which one version follows.
func TestHistoryAroundTheSafePoint(t *testing.T) {
	t.Parallel()
	db, _, r := open(t)
	old := set(t, db, cell("r"), "old")
	kept := set(t, db, cell("r"), "kept")
	safe := now(t, db)
	newest := set(t, db, cell("r"), "new")
	apply(t, db, format.TableCatalog, format.RowCatalog, rowstore.Put(rowstore.Write, format.ColumnSafePoint, safe, format.TimestampOnly))
	require.Less(t, old, kept)
	for _, limit := range []int{1, 2, 3} {
		var got []percolator.Timestamp
		for _, v := range history(t, r, cell("r"), limit, func(admin.History) {}) {
			got = append(got, percolator.Timestamp(v.Commit))
		}
		require.Equal(t, []percolator.Timestamp{newest, kept}, got, "limit %d", limit)
	}
}

// TestHistoryUnderALock has a newest version that is committed and not rolled forward yet: the cell has its lock, and the primary the write. It is a
// version like others, on the first page and nowhere else.
func TestHistoryUnderALock(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"new", strings.Repeat("long", 100)} {
		db, store, r := open(t)
		a, b := cell("a"), cell("b")
		first := set(t, db, b, "first")
		second := set(t, db, b, "second")
		start := now(t, db)
		prewrite(t, db, start, "gone", value, a, b)
		before := now(t, db)
		write := format.Write{Kind: format.KindPut, Start: start, Long: len(value) > format.ShortValue}
		commit := now(t, db)
		apply(t, db, a.Table, a.Row, rowstore.Delete(rowstore.Lock, a.Column, start), rowstore.Put(rowstore.Write, a.Column, commit, write.Encode()))
		store.looking = true
		for _, limit := range []int{1, 2, 3, 100} {
			got := history(t, r, b, limit, func(h admin.History) {
				require.Nil(t, h.Pending)
				require.LessOrEqual(t, len(h.Versions), limit)
			})
			require.Len(t, got, 3)
			require.Equal(t, admin.Version{Commit: admin.Stamp(commit), Start: admin.Stamp(start), Value: admin.Bytes(value)}, got[0])
			require.Equal(t, []admin.Stamp{admin.Stamp(second), admin.Stamp(first)}, []admin.Stamp{got[1].Commit, got[2].Commit}, "limit %d", limit)
		}
		earlier, err := r.History(t.Context(), b, before, 100)
		require.NoError(t, err)
		require.Len(t, earlier.Versions, 2, "it was committed above the timestamp that was asked for")
		without, err := r.Versions(t.Context(), b, 0, 100)
		require.NoError(t, err)
		require.Equal(t, admin.Stamp(commit), without.Versions[0].Commit)
		store.looking = false
	}
}
