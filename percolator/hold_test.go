package percolator

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// stores matches a call that stores a version of a column of the catalog's row.
func stores(column string) matcher {
	return func(c *call) bool {
		for _, m := range c.Mutations() {
			if m.Table != format.TableCatalog {
				continue
			}
			for _, e := range m.Edits {
				if e.Kind == rowstore.DoPut && e.Family == rowstore.Write && e.Column == column {
					return true
				}
			}
		}
		return false
	}
}

// held places a hold at the present.
func held(t testing.TB, c *client, name string, ttl time.Duration) *Hold {
	t.Helper()
	h, err := c.Hold(t.Context(), name, 0, ttl)
	require.NoError(t, err)
	return h
}

const longTTL = 100 * worldRetention

// A hold keeps what can be read at its timestamp, until it is released or its time is over.
func TestHoldKeepsHistory(t *testing.T) {
	for _, release := range []bool{true, false} {
		t.Run(fmt.Sprint("released ", release), func(t *testing.T) {
			eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
				ctx := t.Context()
				c, other := w.client(opts...), w.client(opts...)
				w.shortened(c)
				set(t, c.DB, rowA, longText)
				set(t, c.DB, queueA, "1")
				h := held(t, c, "backup", 3*worldRetention)
				set(t, c.DB, rowA, "2")
				require.NoError(t, c.Update(ctx, func(tx *Txn) error { return tx.Delete(queueA) }))
				w.clock.advance(2 * worldRetention)
				for range 2 {
					report, err := w.collect(other, 0)
					require.NoError(t, err)
					require.Equal(t, h.At(), report.SafePoint)
					_, err = w.collectWithin(other)
					require.NoError(t, err)
					safe, err := other.TableSafePoint(ctx, "queue")
					require.NoError(t, err)
					require.Equal(t, h.At(), safe)
				}
				for _, reader := range []*client{c, other, w.client()} {
					tx := begin(t, reader, WithAsOfTimestamp(h.At()))
					v, err := tx.Get(ctx, rowA)
					require.NoError(t, err)
					require.Equal(t, longText, string(v))
					v, err = tx.Get(ctx, queueA)
					require.NoError(t, err)
					require.Equal(t, "1", string(v))
				}
				if release {
					require.NoError(t, h.Release(ctx))
					require.NoError(t, h.Release(ctx), "it is released")
				} else {
					w.clock.advance(worldRetention)
				}
				require.ErrorIs(t, h.Renew(ctx, time.Hour), ErrHoldEnded)
				report, err := w.collect(other, 0)
				require.NoError(t, err)
				require.Greater(t, report.SafePoint, h.At())
				_, err = begin(t, c, WithAsOfTimestamp(h.At())).Get(ctx, rowA)
				require.ErrorIs(t, err, ErrSnapshotTooOld)
				_, err = c.Hold(ctx, "backup", h.At(), time.Hour)
				require.ErrorIs(t, err, ErrSnapshotTooOld)
				infos, err := c.Holds(ctx)
				require.NoError(t, err)
				require.Empty(t, infos)
			})
		})
	}
}

// A hold that is placed between the choice of a safe point and its publication: the
// collection looks again. Guards: a safe point is published only with the holds that it was chosen by.
func TestHoldWithinAPublication(t *testing.T) {
	t.Parallel()
	for name, column := range map[string]string{"of the database": format.ColumnSafePoint, "of tables": format.ColumnOfTables} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			ctx := t.Context()
			c, collector := w.client(), w.client()
			if column == format.ColumnOfTables {
				w.shortened(c)
			}
			set(t, c.DB, rowA, "1")
			set(t, c.DB, queueA, "1")
			at, err := c.Now(ctx)
			require.NoError(t, err)
			set(t, c.DB, rowA, "2")
			set(t, c.DB, queueA, "2")
			w.clock.advance(2 * worldRetention)
			p := collector.hold(t, stores(column))
			done := async(func() error {
				_, err := w.collect(collector, 0)
				return err
			})
			p.wait()
			h, err := c.Hold(ctx, "backup", at, longTTL)
			require.NoError(t, err)
			p.release(pass)
			require.NoError(t, w.finish(done))
			for _, safe := range []func() (Timestamp, error){
				func() (Timestamp, error) { return c.SafePoint(ctx) },
				func() (Timestamp, error) { return c.TableSafePoint(ctx, "queue") },
			} {
				s, err := safe()
				require.NoError(t, err)
				require.LessOrEqual(t, s, h.At())
			}
			_, err = begin(t, c, WithAsOfTimestamp(at)).Get(ctx, queueA)
			require.NoError(t, err)
		})
	}
}

// A safe point that is published between the look of a hold and its placing: the hold is too
// old. Guards: a hold is placed only if no safe point lies above it.
func TestPublicationWithinAHold(t *testing.T) {
	t.Parallel()
	for name, within := range map[string]bool{"of the database": false, "of a table": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			ctx := t.Context()
			c, collector := w.client(), w.client()
			if within {
				w.shortened(c)
			}
			require.NoError(t, c.raiseControlled(ctx))
			set(t, c.DB, rowA, "1")
			at, err := c.Now(ctx)
			require.NoError(t, err)
			w.clock.advance(2 * worldRetention)
			held := c.hold(t, stores(format.ColumnHolds))
			placing := async(func() error {
				_, err := c.Hold(ctx, "backup", at, longTTL)
				return err
			})
			held.wait()
			if within {
				_, err = w.collectWithin(collector)
			} else {
				_, err = w.collect(collector, 0)
			}
			require.NoError(t, err)
			held.release(pass)
			require.ErrorIs(t, w.finish(placing), ErrSnapshotTooOld)
			infos, err := c.Holds(ctx)
			require.NoError(t, err)
			require.Empty(t, infos)
		})
	}
}

// A renewal that is stored after the hold's time was over, and a collection went by that: the
// hold has ended. Guards: a renewal is stored only if no safe point lies above the hold.
func TestRenewalAfterAPublication(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	c, collector := w.client(), w.client()
	h := held(t, c, "backup", worldRetention)
	set(t, c.DB, rowA, "1")
	p := c.hold(t, stores(format.ColumnHolds))
	renewing := async(func() error { return h.Renew(ctx, longTTL) })
	p.wait()
	w.clock.advance(2 * worldRetention)
	report, err := w.collect(collector, 0)
	require.NoError(t, err)
	require.Greater(t, report.SafePoint, h.At())
	p.release(pass)
	require.ErrorIs(t, w.finish(renewing), ErrHoldEnded)
	infos, err := c.Holds(ctx)
	require.NoError(t, err)
	require.Empty(t, infos)
}

// Renewals keep a hold for as long as they come, and its cost is shown.
func TestHoldsAreListed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	c := w.client()
	h := held(t, c, "b", time.Hour)
	other, err := w.client().Hold(ctx, "a\xff", h.At()-1, longTTL)
	require.NoError(t, err)
	for range 30 {
		w.clock.advance(50 * time.Minute)
		require.NoError(t, h.Renew(ctx, time.Hour))
	}
	infos, err := c.Holds(ctx)
	require.NoError(t, err)
	require.Len(t, infos, 2)
	require.Equal(t, []string{"a\xff", "b"}, []string{infos[0].Name, infos[1].Name})
	require.Equal(t, []Timestamp{other.At(), h.At()}, []Timestamp{infos[0].At, infos[1].At})
	require.Equal(t, 25*time.Hour, infos[1].Age.Round(time.Second))
	require.Equal(t, 25*time.Hour-worldRetention, infos[1].Extra.Round(time.Second))
	require.Equal(t, 25*time.Hour, c.view.Load().asOf.Sub(infos[1].Placed).Round(time.Second))
	require.Equal(t, time.Hour, infos[1].Until.Sub(c.view.Load().asOf).Round(time.Second))
	report, err := w.collect(c, 0)
	require.NoError(t, err)
	require.Equal(t, other.At(), report.SafePoint, "the oldest counts")
	require.NoError(t, c.ReleaseHold(ctx, "a\xff"))
	require.NoError(t, c.ReleaseHold(ctx, "nobody"))
	require.ErrorIs(t, other.Renew(ctx, time.Hour), ErrHoldEnded)
	report, err = w.collect(c, 0)
	require.NoError(t, err)
	require.Equal(t, h.At(), report.SafePoint)

	// The same name: the same hold again, or an error.
	again, err := c.Hold(ctx, "b", h.At(), 2*time.Hour)
	require.NoError(t, err)
	require.Equal(t, h.At(), again.At())
	_, err = c.Hold(ctx, "b", 0, time.Hour)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "stands at")
	// A hold of the same name that somebody else has placed since is not released.
	require.NoError(t, again.Release(ctx))
	newer := held(t, c, "b", time.Hour)
	require.NoError(t, h.Release(ctx))
	require.NoError(t, newer.Renew(ctx, time.Hour))
}

func TestHoldRefuses(t *testing.T) {
	t.Parallel()
	t.Run("no hold", func(t *testing.T) {
		t.Parallel()
		for _, h := range []*Hold{nil, {}} {
			require.ErrorIs(t, h.Renew(t.Context(), time.Hour), ErrInvalid)
			require.ErrorIs(t, h.Release(t.Context()), ErrInvalid)
			require.Zero(t, h.At())
		}
	})
	w := newWorld(t)
	ctx := t.Context()
	c := w.client()
	now, err := c.Now(ctx)
	require.NoError(t, err)
	for name, bad := range map[string]struct {
		name string
		at   Timestamp
		ttl  time.Duration
		err  error
	}{
		"no name":        {"", 0, time.Hour, ErrInvalid},
		"long name":      {strings.Repeat("n", 129), 0, time.Hour, ErrInvalid},
		"no time":        {"n", 0, 0, ErrInvalid},
		"too short":      {"n", 0, time.Microsecond, ErrInvalid},
		"negative":       {"n", 0, -time.Hour, ErrInvalid},
		"too long a ttl": {"n", 0, 1<<63 - 1, ErrInvalid},
		"the future":     {"n", now.Add(time.Hour), time.Hour, ErrSnapshotInFuture},
	} {
		_, err := c.Hold(ctx, bad.name, bad.at, bad.ttl)
		require.ErrorIs(t, err, bad.err, name)
	}
	require.Empty(t, c.wire.sent(stores(format.ColumnHolds)))
	require.False(t, c.known().Controlled, "nothing was changed")
	for i := range format.MaxHolds {
		held(t, c, fmt.Sprint(i), time.Hour)
	}
	_, err = c.Hold(ctx, "one more", 0, time.Hour)
	require.ErrorIs(t, err, ErrInvalid)
	require.NoError(t, c.ReleaseHold(ctx, "7"))
	held(t, c, "one more", time.Hour)
	w.clock.advance(time.Hour + time.Second)
	held(t, c, "another", time.Hour)
	infos, err := c.Holds(ctx)
	require.NoError(t, err)
	require.Len(t, infos, 1, "the others have ended, and make room")
}

// From the first hold on, programs of the version before are refused.
func TestHoldsRaiseTheCatalog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	w.lowerTo(format.PlainCatalogVersion)
	stored := func() byte {
		rows, err := w.mem.Read(t.Context(), []rowstore.RowRead{{Table: format.TableCatalog, Row: format.RowCatalog, Selectors: []rowstore.Selector{everything(rowstore.Write, format.ColumnConfig)}}})
		require.NoError(t, err)
		return rows[0].Newest(rowstore.Write, format.ColumnConfig).Value[0]
	}
	require.EqualValues(t, format.PlainCatalogVersion, stored())
	h := held(t, c, "b", time.Hour)
	require.EqualValues(t, format.ControlledVersion, stored())
	require.NoError(t, h.Release(t.Context()))
	require.EqualValues(t, format.ControlledVersion, stored())
	require.NoError(t, c.ConfigureTable(t.Context(), "queue", short))
	require.EqualValues(t, format.ControlledVersion, stored())
}

// Calls of a hold that fail, get lost, or lose their replies: what the caller was told holds.
func TestHoldCutAtEachCall(t *testing.T) {
	t.Parallel()
	for _, v := range []verdict{die, dieAfter, refuse, loseReply} {
		t.Run(v.String(), func(t *testing.T) {
			t.Parallel()
			cutAtEachCall(t, v)
		})
	}
}

func cutAtEachCall(t *testing.T, v verdict) {
	placed := 0
	for n, fired := 0, true; fired; n++ {
		w := newWorld(t)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		c, cut := w.client(), w.client()
		set(t, c.DB, rowA, "1")
		r := cut.wire.AddRule(faultstore.Rule{Match: anyCall, Skip: n, Fault: v})
		h, err := cut.Hold(ctx, "backup", 0, longTTL)
		fired = r.Remove() > 0
		if err != nil {
			continue
		}
		placed++
		set(t, c.DB, rowA, "2")
		w.clock.advance(2 * worldRetention)
		report, err := w.collect(c, 0)
		require.NoError(t, err)
		require.Equal(t, h.At(), report.SafePoint)
	}
	require.Positive(t, placed)
}

// Workers do not collect again and again what a hold keeps.
func TestCollectionIsNotDueUnderAHold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	w.shortened(c)
	worker := NewWorker(c.DB, WorkerConfig{GCInterval: time.Hour})
	h := held(t, c, "backup", longTTL)
	w.clock.advance(2 * worldRetention)
	due := func() (time.Duration, time.Duration) {
		v, err := c.loadCatalog(t.Context())
		require.NoError(t, err)
		within, _ := worker.nextShort(v, v.asOf)
		return worker.collectionDue(v), within
	}
	all, short := due()
	require.Negative(t, all, "there is something below the hold")
	require.Positive(t, short)
	_, err := w.collect(c, 0)
	require.NoError(t, err)
	all, short = due()
	require.Equal(t, time.Hour, all)
	require.Zero(t, short)
	require.NoError(t, h.Release(t.Context()))
	all, short = due()
	require.Negative(t, all)
	require.Positive(t, short)
}
