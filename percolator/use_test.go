package percolator

import (
	"context"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// Schedules of who goes by which revision of the catalog.

// recordOf is the record of a client, nil without one.
func (w *world) recordOf(c *client) *format.Use {
	w.t.Helper()
	rows, err := w.mem.Read(w.t.Context(), []rowstore.RowRead{{Table: format.TableCatalog, Row: format.RowCatalog, Selectors: []rowstore.Selector{
		everything(rowstore.Mark, c.uses.id),
	}}})
	require.NoError(w.t, err)
	if len(rows[0].Versions) == 0 {
		return nil
	}
	use, err := format.DecodeUse(rows[0].Versions[0].Value)
	require.NoError(w.t, err)
	return &use
}

// sweeps publishes an observer and sweeps for it.
func (w *world) sweeps(c *client) <-chan error {
	w.t.Helper()
	var s saw
	wk := watching(w.t, c, s.observer("o"))
	require.NoError(w.t, wk.publish(w.t.Context()))
	return async(func() error { return wk.sweepNew(context.Background()) })
}

// waits makes sure that a sweep waits for others, and lets it look again.
func (w *world) waits(swept <-chan error) {
	w.t.Helper()
	_, ended := w.clock.sleeps(w.t, 64*worldLease/firstLook, swept)
	require.False(w.t, ended, "the sweep did not wait for a process that goes by an older catalog")
}

// ends lets time pass until a sweep has ended, but no lease.
func (w *world) ends(swept <-chan error) {
	w.t.Helper()
	w.clock.advance(64 * worldLease / firstLook)
	require.NoError(w.t, w.finish(swept))
}

// reads makes a client read the catalog.
func reads(t testing.TB, c *client) *catalogView {
	t.Helper()
	v, err := c.loadCatalog(t.Context())
	require.NoError(t, err)
	return v
}

// commitUnderWay begins a commit of rowA and holds it where it has yet to get its
// timestamp.
func commitUnderWay(t testing.TB, c *client, onePhase bool) (p *pause, done <-chan error) {
	t.Helper()
	tx := writes(t, c, "1", rowA)
	match := c.commitDraw()
	if onePhase {
		match = commitPoint(rowA)
	}
	p = c.hold(t, match)
	done = commit(c, tx)
	p.wait()
	return p, done
}

// A process that has read the new catalog still holds up the sweep as long as a commit
// of its is under way that goes by the old one. Then the sweep goes on, and sees it.
func TestSweepWaitsForACommitByAnOlderCatalog(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		t1, c := w.client(append(opts, withoutDeferred())...), w.client()
		p, done := commitUnderWay(t, t1, len(opts) == 0)
		swept := w.sweeps(c)
		old := w.recordOf(t1).Revision
		require.Greater(t, reads(t, t1).revision, old)
		w.waits(swept)
		require.Equal(t, old, w.recordOf(t1).Revision, "a commit goes by that revision")
		p.release(pass)
		require.NoError(t, w.finish(done))
		require.Eventually(t, func() bool { return w.recordOf(t1).Revision > old }, patience, time.Millisecond)
		w.ends(swept)
		require.Len(t, w.notified(rowA), 1)
	})
}

// The sweep's snapshot is drawn after the records were read. A commit by an older catalog
// may get its timestamp, and its process's record may move on, until they are read.
func TestSweepIsLaterThanTheRecords(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		t1, c := w.client(append(opts, withoutDeferred())...), w.client()
		p := c.hold(t, func(x *call) bool {
			return x.Kind == faultstore.CallRead && x.Reads[0].Table == format.TableCatalog && x.Reads[0].Selectors[0].Family == rowstore.Mark
		})
		swept := w.sweeps(c)
		p.wait()
		set(t, t1.DB, rowA, "1")
		require.Empty(t, w.notified(rowA), "the commit goes by the older catalog")
		v := reads(t, t1)
		require.Equal(t, v.revision, w.recordOf(t1).Revision)
		p.release(pass)
		require.NoError(t, w.finish(swept))
		require.Len(t, w.notified(rowA), 1)
	})
}

// A commit in one step whose fate is unknown holds up the sweep until its view ends: it
// may arrive until then.
func TestSweepWaitsForACommitOfUnknownFate(t *testing.T) {
	t.Parallel()
	for _, closes := range []bool{false, true} {
		w := newWorld(t)
		t1, c := w.client(), w.client()
		tx := writes(t, t1, "1", rowA)
		ctx, cancel := context.WithCancel(t.Context())
		t1.wire.AddRule(faultstore.Rule{Match: commitPoint(rowA), Before: func(context.Context, *call) verdict {
			cancel()
			return lose
		}})
		require.ErrorIs(t, tx.Commit(ctx), ErrUndetermined)
		late := t1.wire.sent(commitPoint(rowA))[0]
		swept := w.sweeps(c)
		old := w.recordOf(t1).Revision
		if closes {
			require.NoError(t, t1.Close(t.Context()))
		} else {
			reads(t, t1)
		}
		w.waits(swept)
		require.NotNil(t, w.recordOf(t1))
		require.Equal(t, old, w.recordOf(t1).Revision)
		require.Equal(t, 1, again(t, late))
		w.pass(worldLease + time.Second)
		require.NoError(t, w.finish(swept))
		require.Len(t, w.notified(rowA), 1)
		if !closes {
			reads(t, t1)
			require.Empty(t, t1.uses.doubtful, "the view has ended")
		}
	}
}

// A record that is stored after the catalog was read proves nothing: the observer may
// have been published between the two.
func TestRecordIsStoredBeforeTheCatalogIsRead(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		t1, c := w.client(opts...), w.client()
		// Nothing was heard of t1 for long.
		condemned, err := c.condemnUses(t.Context())
		require.NoError(t, err)
		require.Len(t, condemned, 1)
		w.clock.advance(worldLease + time.Second)
		require.NoError(t, c.buryUses(t.Context(), condemned))
		require.Nil(t, w.recordOf(t1))
		p := t1.holdReply(t, func(x *call) bool { return x.Kind == faultstore.CallRead && x.Reads[0].Table == format.TableCatalog }, pass)
		done := async(func() error {
			_, err := t1.loadCatalog(context.Background())
			return err
		})
		p.wait()
		require.NoError(t, w.finish(w.sweeps(c)), "nobody goes by an older catalog")
		p.release(pass)
		require.NoError(t, w.finish(done))
		set(t, t1.DB, rowA, "1")
		require.Len(t, w.notified(rowA), 1)
		require.NotNil(t, w.recordOf(t1))
	})
}

// A record that is condemned is no record: it may be gone before a view that was read
// with it ends. Whoever lives stores it anew, and it stays.
func TestCondemnedRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t1, c := w.client(), w.client()
	condemned, err := c.condemnUses(t.Context())
	require.NoError(t, err)
	require.True(t, w.recordOf(t1).Condemned)
	again, err := c.condemnUses(t.Context())
	require.NoError(t, err)
	require.Equal(t, condemned, again, "it is condemned once")
	reads(t, t1)
	require.False(t, w.recordOf(t1).Condemned)
	require.NoError(t, c.buryUses(t.Context(), condemned))
	require.NotNil(t, w.recordOf(t1), "its process lives")
	// A condemned record still counts for those that wait.
	swept := w.sweeps(c)
	_, err = c.condemnUses(t.Context())
	require.NoError(t, err)
	w.waits(swept)
	reads(t, t1)
	w.ends(swept)
}

// A garbage collection removes what processes leave that die.
func TestRecordsOfTheDeadAreCollected(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t1, c := w.client(), w.client()
	_, err := w.collect(c, 0)
	require.NoError(t, err)
	require.Nil(t, w.recordOf(t1))
	require.False(t, w.recordOf(c).Condemned, "the collector lives")
	require.NoError(t, w.finish(w.sweeps(c)), "nobody goes by an older catalog")
	set(t, t1.DB, rowA, "1") // it was not dead
	require.Len(t, w.notified(rowA), 1)
}

// Thousands that died are forgotten in a few calls.
func TestManyRecordsOfTheDead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	ts, err := c.Now(t.Context())
	require.NoError(t, err)
	m := rowstore.Mutation{Table: format.TableCatalog, Row: format.RowCatalog}
	for range 3000 {
		m.Edits = append(m.Edits, rowstore.Put(rowstore.Mark, c.uniqueID(), ts, format.Use{Revision: c.known().revision}.Encode()))
	}
	_, err = w.mem.Apply(t.Context(), []rowstore.Mutation{m}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	changes := func(x *call) bool {
		return x.Kind == faultstore.CallApply && x.Muts[0].Table == format.TableCatalog && x.Muts[0].Edits[0].Column != format.ColumnCollected
	}
	before := len(c.wire.sent(changes))
	_, err = w.collect(c, 0)
	require.NoError(t, err)
	require.LessOrEqual(t, len(c.wire.sent(changes))-before, 6)
	records, err := c.readUses(t.Context())
	require.NoError(t, err)
	require.Len(t, records, 1)
}

// A record stays until every view is over that was read before it was condemned: a
// process that does not read the catalog meanwhile may still commit by such a view.
func TestCondemnedRecordStaysForALease(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		t1, c, gc := w.client(opts...), w.client(), w.client()
		collected := async(func() error {
			_, err := gc.CollectGarbage(context.Background(), GCOptions{})
			return err
		})
		_, ended := w.clock.sleeps(t, worldLease, collected)
		require.False(t, ended)
		require.NotNil(t, w.recordOf(t1))
		require.True(t, w.recordOf(t1).Condemned)
		reads(t, gc) // of those that live, only t1 is not heard of
		swept := w.sweeps(c)
		w.waits(swept)
		set(t, t1.DB, rowA, "1")
		require.Empty(t, w.notified(rowA), "the commit goes by the older catalog")
		w.pass(worldLease + time.Second)
		require.NoError(t, w.finish(swept))
		require.NoError(t, w.finish(collected))
		require.Len(t, w.notified(rowA), 1)
	})
}

// A damaged record may be of any revision.
func TestDamagedRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	ts, err := c.Now(t.Context())
	require.NoError(t, err)
	_, err = w.mem.Apply(t.Context(), []rowstore.Mutation{{Table: format.TableCatalog, Row: format.RowCatalog, Edits: []rowstore.Edit{
		rowstore.Put(rowstore.Mark, "damaged", ts, []byte("x")),
	}}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	swept := w.sweeps(c)
	w.waits(swept)
	w.pass(worldLease + time.Second)
	require.NoError(t, w.finish(swept))
	_, err = w.collect(c, 0)
	require.NoError(t, err)
	require.NoError(t, w.finish(w.sweeps(c)))
	records, err := c.readUses(t.Context())
	require.NoError(t, err)
	require.Len(t, records, 1)
}

// What opening, committing, a new observer and closing cost.
func TestCallsForTheCatalog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.client()
	set(t, first.DB, rowA, "0")
	counted := func(c *client, do func()) (calls []faultstore.CallKind) {
		before := len(c.wire.sent(anyCall))
		do()
		for _, x := range c.wire.sent(anyCall)[before:] {
			calls = append(calls, x.Kind)
		}
		return calls
	}
	draw, read, apply := faultstore.CallDraw, faultstore.CallRead, faultstore.CallApply
	c := w.client()
	var opened []faultstore.CallKind
	for _, x := range c.wire.sent(anyCall) {
		opened = append(opened, x.Kind)
	}
	require.Equal(t, []faultstore.CallKind{draw, read, apply, read}, opened)
	require.Equal(t, []faultstore.CallKind{draw, faultstore.CallGroup}, counted(c, func() { set(t, c.DB, rowA, "1") }))
	require.Equal(t, []faultstore.CallKind{draw, read}, counted(c, func() { reads(t, c) }))
	swept := w.sweeps(first)
	require.Equal(t, []faultstore.CallKind{draw, read, apply}, counted(c, func() { reads(t, c) }), "a new observer costs one call more")
	w.clock.advance(time.Second)
	require.NoError(t, w.finish(swept))
	require.Equal(t, []faultstore.CallKind{draw, read}, counted(c, func() { reads(t, c) }), "nobody waits for a change that is known")
	require.Equal(t, []faultstore.CallKind{apply, apply}, counted(c, func() { require.NoError(t, c.Close(t.Context())) }), "its hints, and its record")
	require.Nil(t, w.recordOf(c))
}

// While the store takes its time with a record, commits that end do not send more of them.
func TestRecordMovesOnceAtATime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t1, c := w.client(), w.client()
	swept := w.sweeps(c)
	records := func(x *call) bool { return x.Kind == faultstore.CallApply && x.Muts[0].Table == format.TableCatalog }
	before := len(t1.wire.sent(records))
	free := make(chan struct{})
	t1.wire.AddRule(faultstore.Rule{Match: records, Times: -1, Before: func(context.Context, *call) verdict {
		<-free
		return pass
	}})
	done := async(func() error { _, err := t1.loadCatalog(context.Background()); return err })
	require.Eventually(t, func() bool { return len(t1.wire.sent(records)) > before }, patience, time.Millisecond)
	for range 20 {
		set(t, t1.DB, rowA, "1")
	}
	w.waits(swept)
	close(free)
	require.NoError(t, w.finish(done))
	w.ends(swept)
	require.NoError(t, t1.Close(t.Context())) // waits for what goes on in the background
	require.Len(t, t1.wire.sent(records)[before:], 2, "one record, and its removal")
}

// Opening data with another oracle writes nothing.
func TestRefusedOpenLeavesNoRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	_, err := New(t.Context(), newWire(w.mem), WithOracle("other", w.mem.Oracle()))
	require.ErrorIs(t, err, ErrInvalid)
	records, err := c.readUses(t.Context())
	require.NoError(t, err)
	require.Len(t, records, 1)
}

// frozen is a clock that nobody ever moves.
type frozen struct{ stoppedClock }

func (frozen) Sleep(ctx context.Context, d time.Duration) error {
	if d > 0 {
		<-ctx.Done()
	}
	return ctx.Err()
}

// The first observer is ready although no time passes.
func TestFirstObserverNeedsNoTime(t *testing.T) {
	t.Parallel()
	var clock frozen
	db := open(t, memstore.New(memstore.WithClock(clock.Now)), WithClock(clock))
	w, _, _ := running(t, db, WorkerConfig{GCInterval: -1}, Observer{Name: "o", Table: "t", Column: "v", Func: func(context.Context, *Txn, Cell) error { return nil }})
	select {
	case <-w.ready:
	case <-time.After(patience):
		require.FailNow(t, "the observer waits for the time to pass")
	}
}

// Workers that live are told of a new observer by a push, and nobody waits for a lease.
func TestNewObserverAmongWorkers(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	long := WithSettings(Settings{MaxTxnAge: time.Hour, Retention: 24 * time.Hour, CatalogLease: 10 * time.Minute})
	nothing := func(context.Context, *Txn, Cell) error { return nil }
	for _, name := range []string{"one", "two", "three"} {
		db := open(t, &tapped{Store: mem}, long)
		w, _, _ := running(t, db, WorkerConfig{GCInterval: -1}, Observer{Name: name, Table: "t", Column: "v", Func: nothing})
		select {
		case <-w.ready:
		case <-time.After(patience):
			require.FailNow(t, "the observer waits for a lease", name)
		}
	}
}

// lower makes the catalog one of version 1, which knows no records.
func (w *world) lower() {
	w.t.Helper()
	w.lowerTo(1)
}

// lowerTo makes the catalog one of an older version.
func (w *world) lowerTo(version byte) {
	w.t.Helper()
	at := rowstore.RowRead{Table: format.TableCatalog, Row: format.RowCatalog, Selectors: []rowstore.Selector{
		everything(rowstore.Write, rowstore.AllColumns), everything(rowstore.Mark, rowstore.AllColumns),
	}}
	rows, err := w.mem.Read(w.t.Context(), []rowstore.RowRead{at})
	require.NoError(w.t, err)
	m := rowstore.Mutation{Table: at.Table, Row: at.Row}
	for _, v := range rows[0].Versions {
		switch {
		case v.Column == format.ColumnConfig:
			value := append([]byte{version}, v.Value[1:]...)
			value = regexp.MustCompile(`,"hinted":true(,"hints_from":\d+)?`).ReplaceAll(value, []byte(map[byte]string{3: `,"by_table":true`, 4: `,"controlled":true`}[version]))
			m.Edits = append(m.Edits, rowstore.Put(v.Family, v.Column, v.TS, value))
		case v.Column == format.ColumnResolved, v.Column == format.ColumnSwept, v.Family == rowstore.Mark && version == 1:
			m.Edits = append(m.Edits, rowstore.Delete(v.Family, v.Column, v.TS))
		}
	}
	require.Greater(w.t, len(m.Edits), 2)
	_, err = w.mem.Apply(w.t.Context(), []rowstore.Mutation{m}, rowstore.ApplyOptions{})
	require.NoError(w.t, err)
}

// A catalog of version 1 is raised when it is met, whatever becomes of the reply. What a
// program of version 1 commits by its view, which names no observer, is found by a sweep: it
// waits for a lease. Later ones do not.
func TestCatalogOfVersion1IsRaised(t *testing.T) {
	t.Parallel()
	for name, fate := range map[string]*verdict{"raised": nil, "reply lost": &loseReply, "request lost": &lose} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			old := w.client() // its record goes: it is as one of version 1
			w.lower()
			wi := newWire(w.mem)
			changes := func(c *call) bool {
				return slices.ContainsFunc(c.Mutations(), func(m rowstore.Mutation) bool { return m.Table == format.TableCatalog })
			}
			if fate != nil {
				wi.verdict(changes, *fate)
			}
			c := w.clientOver(wi)
			require.NotEmpty(t, wi.sent(changes))
			rows, err := w.mem.Read(t.Context(), []rowstore.RowRead{{Table: format.TableCatalog, Row: format.RowCatalog, Selectors: []rowstore.Selector{
				everything(rowstore.Write, format.ColumnConfig), everything(rowstore.Mark, format.UseOfVersion1),
			}}})
			require.NoError(t, err)
			require.Len(t, rows[0].Versions, 2)
			require.EqualValues(t, format.PlainCatalogVersion, rows[0].Newest(rowstore.Write, format.ColumnConfig).Value[0])

			swept := w.sweeps(c)
			w.waits(swept)
			set(t, old.DB, rowA, "1")
			require.Empty(t, w.notified(rowA), "the commit goes by the older catalog")
			w.pass(worldLease + time.Second)
			require.NoError(t, w.finish(swept))
			require.Len(t, w.notified(rowA), 1)

			_, err = w.collect(c, 0)
			require.NoError(t, err)
			require.NoError(t, w.finish(w.sweeps(w.client())), "nobody is of version 1 any more")
		})
	}
}
