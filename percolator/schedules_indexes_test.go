package percolator

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// Schedules in which an index begins, is read and ends while others write its column.

// byValue is an index of the column of the rows of these tests: the entry of a value names its row.
func byValue() Upkeep {
	return Upkeep{Name: "by value", Table: "t", Column: "v", Entries: "i", Definition: "1", Keep: func(_ context.Context, tx *Txn, changes []RowChange) error {
		for _, c := range changes {
			if c.OldFound {
				if err := tx.Delete(entryOf(string(c.Old))); err != nil {
					return err
				}
			}
		}
		for _, c := range changes {
			if c.NewFound {
				if err := tx.Set(entryOf(string(c.New)), []byte(c.Row)); err != nil {
					return err
				}
			}
		}
		return nil
	}}
}

func entryOf(value string) Cell { return Cell{"i", value, "row"} }

// move moves an index of a world on while the clock is moved for whoever waits.
func (w *world) move(c *client, info IndexInfo, to ...IndexState) IndexInfo {
	w.t.Helper()
	for _, s := range to {
		done := async(func() (err error) { info, err = c.MoveIndex(context.Background(), info, s); return err })
		require.NoError(w.t, w.sleepOut(done))
	}
	return info
}

// sleepOut moves the time on until a call ends.
func (w *world) sleepOut(done <-chan error) error {
	w.t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case err := <-done:
			return err
		case <-timeout:
			require.FailNow(w.t, "a call hangs")
		case <-time.After(time.Millisecond):
			w.pass(worldLease / 4)
		}
	}
}

// indexed is a client that has defined the index and made it readable, with no other process at work.
func indexed(t testing.TB, w *world, opts ...Option) (*client, IndexInfo) {
	t.Helper()
	c := w.client(opts...)
	info, err := c.DefineIndex(t.Context(), byValue())
	require.NoError(t, err)
	require.Equal(t, IndexMaintained, info.State)
	return c, w.move(c, info, IndexBuilding, IndexReadable)
}

// firstWrite is the first call of a commit that changes something.
func firstWrite(x *call) bool { return edits(x, puts(rowstore.Lock)) || edits(x, puts(rowstore.Write)) }

// A commit that goes by a view without the index is under way, at its first write or at the draw of its timestamp. Whoever builds the index waits until
// it has ended, or its view has. Then it does not commit without the entry.
func TestScheduleI_WriterWithAnOldView(t *testing.T) {
	for name, at := range map[string]func(c *client) matcher{
		"first write": func(*client) matcher { return firstWrite },
		"timestamp":   func(c *client) matcher { return c.commitDraw() },
	} {
		for _, keeps := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				eachWorld2(t, func(t *testing.T, w *world, opts ...Option) { writerWithAnOldView(t, w, at, keeps, opts...) })
			})
		}
	}
}

// The same where one step commits.
func TestScheduleI_WriterWithAnOldViewInOnePhase(t *testing.T) {
	t.Parallel()
	for _, keeps := range []bool{false, true} {
		writerWithAnOldView(t, newWorld(t), func(*client) matcher { return firstWrite }, keeps)
	}
}

func writerWithAnOldView(t *testing.T, w *world, at func(c *client) matcher, keeps bool, opts ...Option) {
	writer, builder := w.client(opts...), w.client(opts...)
	if keeps {
		require.NoError(t, writer.KeepIndex(byValue()))
	}
	tx := writes(t, writer, "1", rowA)
	p := writer.hold(t, at(writer))
	done := commit(writer, tx)
	p.wait()
	info, err := builder.DefineIndex(t.Context(), byValue())
	require.NoError(t, err)
	moving := async(func() (err error) {
		info, err = builder.MoveIndex(context.Background(), info, IndexBuilding)
		return err
	})
	for range 20 {
		select {
		case <-moving:
			require.FailNow(t, "a commit without the index is under way")
		case <-time.After(time.Millisecond):
		}
	}
	require.NoError(t, w.sleepOut(moving))
	p.release(pass)
	err = w.finish(done)
	if keeps {
		require.ErrorIs(t, err, ErrConflict)
	} else {
		require.ErrorIs(t, err, ErrIndexed)
	}
	require.Equal(t, "none", value(t, builder, rowA))
	if !keeps {
		return
	}
	set(t, writer.DB, rowA, "1")
	require.Equal(t, "a", value(t, builder, entryOf("1")))
}

// A program that does not know the index is refused by whatever writes the column, as soon as it can know of it; others are kept.
func TestScheduleI_UnknowingWriter(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		stranger := w.client(opts...)
		c, _ := indexed(t, w, opts...)
		set(t, c.DB, rowA, "1")
		require.Equal(t, "a", value(t, c, entryOf("1")))
		old := begin(t, stranger)
		require.NoError(t, old.Set(rowA, []byte("2")), "it cannot know yet")
		w.pass(worldLease)
		require.ErrorIs(t, old.Commit(t.Context()), ErrIndexed)
		tx := begin(t, stranger)
		require.ErrorIs(t, tx.Set(rowA, []byte("2")), ErrIndexed)
		require.ErrorIs(t, tx.Delete(rowA), ErrIndexed)
		require.ErrorIs(t, tx.Set(entryOf("2"), nil), ErrIndexed)
		require.NoError(t, tx.Set(Cell{"t", "a", "w"}, nil))
		require.NoError(t, tx.Commit(t.Context()))
		require.ErrorIs(t, stranger.Update(t.Context(), func(tx *Txn) error { return tx.Delete(rowA) }), ErrIndexed)

		// One that defines it otherwise, and one that writes the entries by itself.
		other := byValue()
		other.Definition = "2"
		require.NoError(t, stranger.KeepIndex(other))
		require.ErrorIs(t, stranger.Update(t.Context(), func(tx *Txn) error { return tx.Delete(rowA) }), ErrIndexed)
		_, err := stranger.DefineIndex(t.Context(), other)
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, `"1"`)
		require.ErrorIs(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Delete(entryOf("1")) }), ErrIndexed)

		require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Set(rowA, []byte("3")) }))
		require.Equal(t, "none", value(t, c, entryOf("1")))
		require.Equal(t, "a", value(t, c, entryOf("3")))
	})
}

// A commit that keeps the index is under way when nobody keeps it any more. Whoever removes the entries waits for it, and it does
// not leave one behind.
func TestScheduleI_KeeperWithAnOldView(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		c, info := indexed(t, w, opts...)
		writer := w.client(opts...)
		require.NoError(t, writer.KeepIndex(byValue()))
		tx := writes(t, writer, "1", rowA)
		p := writer.hold(t, writer.commitDraw())
		done := commit(writer, tx)
		p.wait()
		info, err := c.MoveIndex(t.Context(), info, IndexBuilding)
		require.NoError(t, err)
		info = w.move(c, info, IndexDropping)
		require.NoError(t, w.sleepOut(async(func() error { return c.AwaitIndex(context.Background(), info) })))
		p.release(pass)
		require.ErrorIs(t, w.finish(done), ErrConflict)
		w.move(c, info, IndexAbsent)
		set(t, writer.DB, rowA, "1")
		require.Equal(t, "none", value(t, c, entryOf("1")))
	})
}

// A process whose view is of long ago takes an index for readable that nobody keeps any more.
func TestScheduleI_ReaderWithAnOldView(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, info := indexed(t, w)
	reader := w.client()
	see := func(opts ...TxnOption) IndexState {
		tx := begin(t, reader, opts...)
		info, err := tx.Index(t.Context(), "by value")
		require.NoError(t, err)
		return info.State
	}
	require.Equal(t, IndexReadable, see())
	require.Equal(t, IndexBuilding, see(WithAsOfTimestamp(info.At-1)), "it was not readable at that snapshot")
	w.move(c, info, IndexBuilding, IndexDropping)
	require.Equal(t, IndexDropping, see())
	require.NoError(t, reader.KeepIndex(byValue()))
	set(t, reader.DB, rowA, "1") // nobody keeps it
	require.Equal(t, "none", value(t, c, entryOf("1")))
}

// A process that builds, or that removes entries, stands still until somebody else has moved the index on.
func TestScheduleI_LateBuilder(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		c, info := indexed(t, w, opts...)
		late := w.client(opts...)
		tx := begin(t, late, WithIndexUpkeep(info))
		require.NoError(t, tx.Set(entryOf("1"), []byte("a")))
		before := info
		info = w.move(c, info, IndexBuilding, IndexDropping)
		w.pass(worldLease)
		require.ErrorIs(t, tx.Commit(t.Context()), ErrIndexChanged)
		_, err := late.MoveIndex(t.Context(), before, IndexBuilding)
		require.ErrorIs(t, err, ErrIndexChanged)
		require.ErrorIs(t, late.AwaitIndex(t.Context(), before), ErrIndexChanged)
		w.move(c, info, IndexAbsent)
		require.NoError(t, w.sleepOut(async(func() error { _, err := late.MoveIndex(context.Background(), info, IndexAbsent); return err })), "it is done")
		again, err := c.DefineIndex(t.Context(), byValue())
		require.NoError(t, err)
		require.NotEqual(t, before.Since, again.Since)
		_, err = late.MoveIndex(t.Context(), IndexInfo{Name: "by value", State: IndexMaintained, Since: before.Since}, IndexBuilding)
		require.ErrorIs(t, err, ErrIndexChanged)
	})
}

// An index that has left a state and is back in it is not what somebody knew of it.
func TestScheduleI_SameStateAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, info := indexed(t, w)
	late := w.client()
	before := w.move(c, info, IndexBuilding)
	tx := begin(t, late, WithIndexUpkeep(before))
	require.NoError(t, tx.Set(entryOf("1"), []byte("a")))
	w.move(c, before, IndexReadable, IndexBuilding)
	w.pass(worldLease)
	require.ErrorIs(t, tx.Commit(t.Context()), ErrIndexChanged)
	require.ErrorIs(t, w.sleepOut(async(func() error { _, err := late.MoveIndex(context.Background(), before, IndexReadable); return err })), ErrIndexChanged)
}

// Who writes the entries of an index by itself writes those of no other one.
func TestUpkeepOfAnotherIndex(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, _ := indexed(t, w)
	other := byValue()
	other.Name, other.Column, other.Entries = "other", "w", "j"
	info, err := c.DefineIndex(t.Context(), other)
	require.NoError(t, err)
	for table, want := range map[string]error{"i": ErrIndexed, "j": nil} {
		tx := begin(t, c, WithIndexUpkeep(info))
		require.NoError(t, tx.Set(Cell{table, "1", "row"}, []byte("a")))
		require.ErrorIs(t, tx.Commit(t.Context()), want, table)
	}
}

// What a transaction writes after it has read the index is kept too, and what was kept before is taken back.
func TestScheduleI_IndexReadWithinTheTransaction(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		ctx := t.Context()
		c, _ := indexed(t, w, opts...)
		set(t, c.DB, rowA, "0")
		tx := begin(t, c)
		for _, v := range []string{"1", "2", "3"} {
			require.NoError(t, tx.Set(rowA, []byte(v)))
			_, err := tx.Index(ctx, "by value")
			require.NoError(t, err)
			got, err := tx.Get(ctx, entryOf(v))
			require.NoError(t, err)
			require.Equal(t, "a", string(got))
		}
		require.Equal(t, 3, len(tx.writes.list), "the cell, and two entries")
		require.NoError(t, tx.Set(rowA, []byte("4")))
		require.NoError(t, tx.Commit(ctx))
		for _, v := range []string{"0", "1", "2", "3"} {
			require.Equal(t, "none", value(t, c, entryOf(v)))
		}
		require.Equal(t, "a", value(t, c, entryOf("4")))

		// An upkeep that fails fails the commit, and nothing is written.
		bad := byValue()
		bad.Keep = func(context.Context, *Txn, []RowChange) error { return errTest }
		require.NoError(t, c.KeepIndex(bad))
		require.ErrorIs(t, c.Update(ctx, func(tx *Txn) error { return tx.Set(rowA, []byte("5")) }), errTest)
		require.Equal(t, "4", value(t, c, rowA))
	})
}

// The old value comes from a read that the transaction has made, if it has.
func TestUpkeepReadsNothingTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, _ := indexed(t, w)
	set(t, c.DB, rowA, "1")
	tx := begin(t, c)
	got, err := tx.Get(t.Context(), rowA)
	require.NoError(t, err)
	got[0] = 'x' // the caller's own
	require.NoError(t, tx.Set(rowA, []byte("2")))
	c.wire.forget()
	require.NoError(t, tx.Commit(t.Context()))
	require.Empty(t, c.wire.sent(func(x *call) bool { return x.Kind == faultstore.CallRead }))
	require.Equal(t, "none", value(t, c, entryOf("1")))
	require.Equal(t, "a", value(t, c, entryOf("2")))
}

func TestIndexesAreOfVersion7(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stored := func() byte {
		rows, err := w.mem.Read(t.Context(), []rowstore.RowRead{{Table: format.TableCatalog, Row: format.RowCatalog, Selectors: []rowstore.Selector{everything(rowstore.Write, format.ColumnConfig)}}})
		require.NoError(t, err)
		return rows[0].Versions[0].Value[0]
	}
	c := w.client()
	require.EqualValues(t, format.HintedVersion, stored())
	info, err := c.DefineIndex(t.Context(), byValue())
	require.NoError(t, err)
	require.EqualValues(t, format.IndexesVersion, stored())
	all, err := c.Indexes(t.Context())
	require.NoError(t, err)
	require.Equal(t, []IndexInfo{info}, all)
	again, err := c.DefineIndex(t.Context(), byValue())
	require.NoError(t, err)
	require.Equal(t, info, again)
	w.move(c, info, IndexDropping, IndexAbsent)
	require.EqualValues(t, format.IndexesVersion, stored())
}

func TestIndexesThatCannotBe(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, info := indexed(t, w)
	for _, change := range []func(u *Upkeep){
		func(u *Upkeep) { u.Name = "" },
		func(u *Upkeep) { u.Name = string(make([]byte, format.MaxIndexName+1)) },
		func(u *Upkeep) { u.Definition = string(make([]byte, format.MaxIndexDefinition+1)) },
		func(u *Upkeep) { u.Keep = nil },
		func(u *Upkeep) { u.Entries = "t" },
		func(u *Upkeep) { u.Entries = "" },
		func(u *Upkeep) { u.Table = "" },
		func(u *Upkeep) { u.Column = "" },
		func(u *Upkeep) { u.Definition = "2" },
	} {
		u := byValue()
		change(&u)
		require.ErrorIs(t, c.KeepIndex(u), ErrInvalid)
		_, err := c.DefineIndex(t.Context(), u)
		require.ErrorIs(t, err, ErrInvalid)
	}
	for _, u := range []Upkeep{
		{Name: "other", Table: "t", Column: "v", Entries: "i", Keep: byValue().Keep},
		{Name: "a third", Table: "i", Column: "row", Entries: "j", Keep: byValue().Keep},
		{Name: "a fourth", Table: "u", Column: "v", Entries: "t", Keep: byValue().Keep},
	} {
		_, err := c.DefineIndex(t.Context(), u)
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, "by value")
	}
	for _, to := range []IndexState{IndexAbsent, IndexMaintained, IndexReadable, IndexDropping, -1} {
		_, err := c.MoveIndex(t.Context(), info, to)
		require.ErrorIs(t, err, ErrInvalid)
	}
	require.False(t, errors.Is(ErrIndexed, ErrConflict))
}

// An upkeep has locked a cell that the transaction writes, or locks, afterwards. What the upkeep did is taken back, and what the transaction did is not.
func TestScheduleI_UpkeepHasLockedTheCell(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		ctx := t.Context()
		c, _ := indexed(t, w, opts...)
		set(t, c.DB, rowB, "0")
		set(t, c.DB, Cell{"u", "a", "v"}, "0")
		locks := byValue()
		keep := locks.Keep
		locks.Keep = func(ctx context.Context, tx *Txn, changes []RowChange) error {
			for _, cell := range []Cell{{"u", "a", "v"}, {"u", "b", "v"}} {
				if _, err := tx.GetForUpdate(ctx, cell); err != nil && !errors.Is(err, ErrNotFound) {
					return err
				}
			}
			return keep(ctx, tx, changes)
		}
		require.NoError(t, c.KeepIndex(locks))
		tx := begin(t, c)
		require.NoError(t, tx.Set(rowA, []byte("1")))
		_, err := tx.Index(ctx, "by value")
		require.NoError(t, err)
		require.NoError(t, tx.Set(Cell{"u", "a", "v"}, []byte("1")))
		_, err = tx.GetForUpdate(ctx, Cell{"u", "b", "v"})
		require.ErrorIs(t, err, ErrNotFound)
		require.NoError(t, c.KeepIndex(byValue())) // it locks nothing any more
		set(t, c.DB, Cell{"u", "b", "v"}, "2")
		require.ErrorIs(t, tx.Commit(ctx), ErrConflict, "the lock is lost")

		require.NoError(t, c.KeepIndex(locks))
		require.NoError(t, c.Update(ctx, func(tx *Txn) error {
			if err := tx.Set(rowA, []byte("1")); err != nil {
				return err
			}
			if _, err := tx.Index(ctx, "by value"); err != nil {
				return err
			}
			return tx.Set(Cell{"u", "a", "v"}, []byte("1"))
		}))
		require.Equal(t, "1", value(t, c, Cell{"u", "a", "v"}), "the write is lost")
		require.Equal(t, "a", value(t, c, entryOf("1")))
	})
}
