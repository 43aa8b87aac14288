package percolator

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// away is a Memory whose server is away while it says so: for every call, for one row of
// a call, or for what is behind a row of a scan.
type away struct {
	*memstore.Store
	mu     sync.Mutex
	refuse func() bool // the next call
	partly bool        // only the last part of a call
	times  int         // how often it refused
}

var errAway = fmt.Errorf("test: connection refused: %w", rowstore.ErrUnavailable)

func (a *away) Close() error { return nil }

// is tells whether the next call is refused, and whether all of it is.
func (a *away) is() (refused, whole bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refuse == nil || !a.refuse() {
		return false, false
	}
	a.times++
	return true, !a.partly
}

// refused tells how many calls were refused so far. Sessions renew meanwhile.
func (a *away) refused() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.times
}

// awayParts answers a call, all of it or all but its last part refused.
func awayParts[P, A any](a *away, parts []P, f func([]P) ([]A, error), failed func(*A, error)) ([]A, error) {
	refused, whole := a.is()
	if refused && whole {
		return nil, errAway
	}
	if !refused {
		return f(parts)
	}
	n := len(parts) - 1
	answers := make([]A, 0, len(parts))
	if n > 0 {
		var err error
		if answers, err = f(parts[:n]); err != nil {
			return nil, err
		}
	}
	var last A
	failed(&last, errAway)
	return append(answers, last), nil
}

func (a *away) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	return awayParts(a, reads, func(r []rowstore.RowRead) ([]rowstore.Row, error) { return a.Store.Read(ctx, r) }, func(r *rowstore.Row, err error) { r.Err = err })
}

func (a *away) Apply(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	return awayParts(a, muts, func(m []rowstore.Mutation) ([]rowstore.Outcome, error) { return a.Store.Apply(ctx, m, opts) }, func(o *rowstore.Outcome, err error) { o.Err = err })
}

func (a *away) Group(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
	return awayParts(a, groups, func(g []rowstore.Group) ([]rowstore.GroupOutcome, error) { return a.Store.Group(ctx, g) }, func(o *rowstore.GroupOutcome, err error) { o.Err = err })
}

func (a *away) ReadSnapshot(ctx context.Context, asks []rowstore.SnapshotRead) ([]rowstore.SnapshotRows, error) {
	return awayParts(a, asks, func(d []rowstore.SnapshotRead) ([]rowstore.SnapshotRows, error) { return a.Store.ReadSnapshot(ctx, d) }, func(d *rowstore.SnapshotRows, err error) {
		d.TS, d.Rows = 1, []rowstore.Row{{Err: err}}
	})
}

func (a *away) Flush(ctx context.Context) error {
	if refused, _ := a.is(); refused {
		return errAway
	}
	return a.Store.Flush(ctx)
}

func (a *away) Report(ctx context.Context) (rowstore.Report, error) {
	if refused, _ := a.is(); refused {
		return rowstore.Report{}, errAway
	}
	return a.Store.Report(ctx)
}

func (a *away) Scan(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return func(yield func(rowstore.Row, error) bool) {
		for row, err := range a.Store.Scan(ctx, s) {
			if refused, _ := a.is(); refused {
				yield(rowstore.Row{}, errAway)
				return
			}
			if !yield(row, err) {
				return
			}
		}
	}
}

func (a *away) Tables(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if refused, _ := a.is(); refused {
			yield("", errAway)
			return
		}
		a.Store.Tables(ctx)(yield)
	}
}

func (a *away) Oracle() oracle.Oracle { return awayOracle{a} }

type awayOracle struct{ a *away }

func (o awayOracle) Draw(ctx context.Context, n int) (Timestamp, error) {
	if refused, _ := o.a.is(); refused {
		return 0, errAway
	}
	return o.a.Store.Oracle().Draw(ctx, n)
}

// everyThird refuses two calls of three.
func everyThird() func() bool {
	n := 0
	return func() bool { n++; return n%3 != 0 }
}

// While a server is away for a moment, nothing fails: every call is repeated, or the
// part of it that was refused.
func TestServerAwayForAMoment(t *testing.T) {
	t.Parallel()
	for name, opts := range ways {
		for _, partly := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, partly %v", name, partly), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					ctx := t.Context()
					store := &away{Store: memstore.New(), refuse: everyThird(), partly: partly}
					db, err := New(ctx, store, append([]Option{withSeed(1), WithSettings(Settings{MaxTxnAge: time.Minute, Retention: time.Hour, CatalogLease: 10 * time.Second})}, opts...)...)
					require.NoError(t, err)
					const rows = 20
					cells := make([]Cell, rows)
					for i := range cells {
						cells[i] = row(fmt.Sprintf("%02d", i))
					}
					for n := range 3 {
						require.NoError(t, db.Update(ctx, func(tx *Txn) error {
							for _, c := range cells {
								if v, err := tx.Get(ctx, c); n > 0 {
									require.NoError(t, err)
									require.Equal(t, fmt.Sprint(longText, n-1), string(v))
								} else {
									require.ErrorIs(t, err, ErrNotFound)
								}
								if err := tx.Set(c, []byte(fmt.Sprint(longText, n))); err != nil {
									return err
								}
							}
							return nil
						}))
					}
					require.NoError(t, db.View(ctx, func(tx *Txn) error {
						got, err := tx.GetMany(ctx, cells...)
						require.NoError(t, err)
						require.Len(t, got, rows)
						requireScans(t, tx, cells)
						return nil
					}))
					time.Sleep(2 * time.Hour)
					report, err := db.CollectGarbage(ctx, GCOptions{})
					require.NoError(t, err)
					require.Equal(t, 2*2*rows, report.Versions)
					require.Zero(t, db.Stats().Conflicts)
					require.Greater(t, store.refused(), 30)
					require.NoError(t, db.Close(ctx))
				})
			})
		}
	}
}

// requireScans scans a table in both directions, whole and with a limit, and finds the cells.
func requireScans(t *testing.T, tx *Txn, cells []Cell) {
	t.Helper()
	for _, reverse := range []bool{false, true} {
		for _, limit := range []int{0, 7} {
			var keys []string
			for r, err := range tx.Scan(t.Context(), Range{Table: "t", Reverse: reverse, Limit: limit}) {
				require.NoError(t, err)
				keys = append(keys, r.Key)
			}
			want := len(cells)
			if limit > 0 {
				want = limit
			}
			require.Len(t, keys, want)
			for i, key := range keys {
				j := i
				if reverse {
					j = len(cells) - 1 - i
				}
				require.Equal(t, cells[j].Row, key)
			}
		}
	}
}

// A server that stays away is given up after the patience that was asked for, or when
// the context ends, and the error says why.
func TestServerStaysAway(t *testing.T) {
	t.Parallel()
	for _, patience := range []time.Duration{-1, 0, 3 * time.Second, 20 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			store := &away{Store: memstore.New()}
			var opts []Option
			if patience != 20*time.Second { // the default
				opts = append(opts, WithStorePatience(patience))
			}
			db, err := New(t.Context(), store, opts...)
			require.NoError(t, err)
			set(t, db, rowA, "1")
			store.refuse = func() bool { return true }
			for what, f := range map[string]func(ctx context.Context) error{
				"read": func(ctx context.Context) error {
					return db.View(ctx, func(tx *Txn) error { _, err := tx.Get(ctx, rowA); return err })
				},
				"write": func(ctx context.Context) error {
					return db.Update(ctx, func(tx *Txn) error { return tx.Set(rowA, nil) })
				},
				"draw": func(ctx context.Context) error { _, err := db.Now(ctx); return err },
			} {
				began := time.Now()
				err = f(t.Context())
				require.ErrorIs(t, err, rowstore.ErrUnavailable, what)
				require.False(t, errors.Is(err, ErrUndetermined), what)
				took := time.Since(began)
				require.GreaterOrEqual(t, took, max(patience, 0), what)
				require.LessOrEqual(t, took, max(patience, 0)+time.Second, what)
				if patience > 0 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					err = f(ctx)
					cancel()
					require.ErrorIs(t, err, context.DeadlineExceeded, what)
					require.ErrorIs(t, err, rowstore.ErrUnavailable, what)
				}
			}
			store.refuse = nil
			require.Equal(t, "1", get(t, db, rowA))
			require.NoError(t, db.Close(t.Context()))
		})
	}
}

// A scan of slots that the store breaks off goes on behind the last row, in the order of the
// slots: it visits each row once.
func TestScanOfSlotsGoesOn(t *testing.T) {
	t.Parallel()
	n := 0
	store := &away{Store: memstore.New(), refuse: func() bool { n++; return n%3 == 0 }}
	patient := &patientStore{Store: store, patience: time.Minute, clock: systemClock{}, rand: newRandom(1)}
	for i := range 50 {
		_, err := store.Store.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: fmt.Sprint("row", i), Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "c", 1, nil)}}}, rowstore.ApplyOptions{})
		require.NoError(t, err)
	}
	picks := []rowstore.Selector{{Family: rowstore.Notify, Column: "c", To: oracle.Max}}
	for _, slots := range [][]rowstore.SlotRange{
		{{Last: rowstore.Slots - 1}},
		{{Last: 9_999}, {First: 20_000, Last: 20_001}, {First: 30_000, Last: rowstore.Slots - 1}},
	} {
		for _, limit := range []int{0, 7} {
			r := rowstore.ScanRange{Table: "t", Selectors: picks, Slots: slots, Limit: limit}
			rows := func(s rowstore.Store) (rows []string) {
				for row, err := range s.Scan(t.Context(), r) {
					require.NoError(t, err)
					rows = append(rows, row.Row)
				}
				return rows
			}
			before := n
			require.Equal(t, rows(store.Store), rows(patient))
			require.Greater(t, n, before+4, "the store was away during the scan")
		}
	}
}

// A commit timestamp that came with one part of the prewrites is older than the parts
// that were repeated, and counts for nothing.
func TestDrawnTimestampOfARepeatedBatch(t *testing.T) {
	t.Parallel()
	n := 0
	store := &away{Store: memstore.New(), partly: true, refuse: func() bool { n++; return n == 1 }}
	patient := &patientStore{Store: drawing{store}, patience: time.Minute, clock: systemClock{}, rand: newRandom(1)}
	put := func(row string) rowstore.Mutation {
		return rowstore.Mutation{Table: "t", Row: row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", 1, nil)}}
	}
	outs, err := patient.Apply(t.Context(), []rowstore.Mutation{put("a"), put("b")}, rowstore.ApplyOptions{AssignTimestamp: true})
	require.NoError(t, err)
	for _, o := range outs {
		require.True(t, o.Applied)
		require.Zero(t, o.Timestamp)
	}
	outs, err = patient.Apply(t.Context(), []rowstore.Mutation{put("a"), put("b")}, rowstore.ApplyOptions{AssignTimestamp: true})
	require.NoError(t, err)
	require.NotZero(t, outs[0].Timestamp)
}

// What is ambiguous is not repeated, whatever else a store says of it.
func TestAmbiguousIsNotRepeated(t *testing.T) {
	t.Parallel()
	for _, partly := range []bool{false, true} {
		store := &confused{Store: memstore.New(), partly: partly}
		patient := &patientStore{Store: store, patience: time.Minute, clock: systemClock{}, rand: newRandom(1)}
		outs, err := patient.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: "r"}}, rowstore.ApplyOptions{})
		if partly {
			require.NoError(t, err)
			err = outs[0].Err
		}
		require.ErrorIs(t, err, rowstore.ErrAmbiguous)
		require.Equal(t, 1, store.calls)
	}
}

// confused says of a write that it is both ambiguous and certain.
type confused struct {
	*memstore.Store
	partly bool
	calls  int
}

func (c *confused) Apply(_ context.Context, muts []rowstore.Mutation, _ rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	c.calls++
	if c.calls > 1 {
		return make([]rowstore.Outcome, len(muts)), nil
	}
	err := fmt.Errorf("%w: %w", rowstore.ErrAmbiguous, errAway)
	if c.partly {
		return []rowstore.Outcome{{Err: err}}, nil
	}
	return nil, err
}

// drawing answers ApplyOptions.AssignTimestamp.
type drawing struct{ *away }

func (d drawing) Apply(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	outs, err := d.away.Apply(ctx, muts, opts)
	for i := range outs {
		if outs[i].Applied {
			outs[i].Timestamp = 7
		}
	}
	return outs, err
}
