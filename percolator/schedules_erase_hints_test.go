package percolator

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// Schedules in which names of erased rows are taken out of the hints of garbage, several of them at once.

// eraseOf erases rows of table t, and lets time pass.
func (w *world) eraseOf(c *client, from, to string) error {
	w.t.Helper()
	done := async(func() error {
		_, err := c.Erase(context.Background(), Range{Table: "t", From: from, To: to})
		return err
	})
	return w.passes(done)
}

// passes lets time pass until something is done.
func (w *world) passes(done <-chan error) (err error) {
	w.t.Helper()
	return w.passesWith(done, nil)
}

// passesWith is passes that does something before each second. While a call works, and sleeps for nothing, time hardly passes: a
// slow machine is not to make anything old.
func (w *world) passesWith(done <-chan error, step func()) (err error) {
	w.t.Helper()
	ticks := 0
	require.Eventually(w.t, func() bool {
		select {
		case err = <-done:
			return true
		default:
		}
		if step != nil {
			step()
		}
		if ticks++; ticks%4 == 0 || w.awaited() {
			w.clock.advance(time.Second)
		}
		return false
	}, patience, time.Millisecond)
	return err
}

// restsOfHints are calls that put a name into a hint.
func restsOfHints(name string) matcher {
	return func(x *call) bool {
		return edits(x, func(m *rowstore.Mutation, e *rowstore.Edit) bool {
			if m.Table != format.TableHints || e.Kind != rowstore.DoPut || e.Family != rowstore.Write {
				return false
			}
			h, err := format.DecodeHint(e.Value)
			return err == nil && slices.Contains(h.Rows, name)
		})
	}
}

// An Erase has read a hint that names rows of two customers, and stalls. Meanwhile the other customer is erased too, and the hint may have gone as a
// whole. The first one must not put back the name of the second.
func TestScheduleE_HintOfTwoErasures(t *testing.T) {
	t.Parallel()
	for name, meanwhile := range map[string]func(t *testing.T, w *world, other *client){
		"the other customer": func(t *testing.T, w *world, other *client) {
			require.NoError(t, w.eraseOf(other, "bob", "bob0"))
		},
		"both customers": func(t *testing.T, w *world, other *client) {
			require.NoError(t, w.eraseOf(other, "a", "c"))
		},
		"a collection, then the other customer": func(t *testing.T, w *world, other *client) {
			w.pass(2 * worldRetention)
			_, err := w.collectBy(other, GCOptions{})
			require.NoError(t, err)
			require.NotContains(t, w.storedHints("t"), "bob")
			require.NoError(t, w.eraseOf(other, "bob", "bob0"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.erasing()
			c, other, writer := w.client(), w.client(), w.client()
			for range 2 {
				for _, cell := range []Cell{ann1, bob, row("zoe")} {
					set(t, writer.DB, cell, "secret")
				}
			}
			w.stored(writer)
			require.Subset(t, w.storedHints("t"), map[string]int{"ann/1": 1, "bob": 1, "zoe": 1})
			p := c.hold(t, restsOfHints("bob"))
			done := async(func() error {
				_, err := c.Erase(context.Background(), annRange)
				return err
			})
			reached := async(func() error { p.wait(); return nil })
			require.NoError(t, w.passes(reached))
			meanwhile(t, w, other)
			require.NotContains(t, w.storedHints("t"), "bob")
			p.release(pass)
			require.NoError(t, w.passes(done))
			require.Empty(t, w.traces("ann/", "bob"))
		})
	}
}

// The calls that change a hint may be lost on their way, or their replies. The call comes back to the hint.
func TestScheduleE_LostRemovalOfHints(t *testing.T) {
	t.Parallel()
	of := func(family rowstore.Family, kind rowstore.EditKind) matcher {
		return both(op(faultstore.CallApply), func(x *call) bool {
			return len(x.Muts[0].Conditions) > 0 && edits(x, func(m *rowstore.Mutation, e *rowstore.Edit) bool {
				return m.Table == format.TableHints && e.Family == family && e.Kind == kind
			})
		})
	}
	for name, match := range map[string]matcher{
		"the token": of(rowstore.Lock, rowstore.DoPut), "the rest": restsOfHints("bob"), "all of it": of(rowstore.Write, rowstore.DoDelete),
	} {
		for fate, v := range map[string]verdict{"lost": lose, "reply lost": loseReply} {
			t.Run(name+", "+fate, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.erasing()
				c, writer := w.client(), w.client()
				for _, cells := range [][]Cell{{ann1, bob}, {ann2}} {
					for range 2 {
						require.NoError(t, writes(t, writer, "secret", cells...).Commit(t.Context()))
					}
					w.stored(writer)
				}
				lost := 0
				c.wire.AddRule(faultstore.Rule{Match: func(x *call) bool {
					if lost == 0 && match(x) {
						lost++
						return true
					}
					return false
				}, Fault: v})
				require.NoError(t, w.eraseOf(c, "ann/", "ann0"))
				require.Equal(t, 1, lost)
				require.Empty(t, w.traces("ann/"))
				require.Equal(t, 1, w.storedHints("t")["bob"])
			})
		}
	}
}

// The requests by which a process that erases stores and changes hints come once more, late: after it has ended, or while it stalls with what
// it has read of a hint. The other customer was erased meanwhile, and the hint may have been collected.
func TestScheduleE_HintRequestsTwice(t *testing.T) {
	t.Parallel()
	for _, stalls := range []bool{false, true} {
		for _, collected := range []bool{false, true} {
			t.Run(fmt.Sprint("stalls ", stalls, ", collected ", collected), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.erasing()
				c, other, writer := w.client(), w.client(), w.client()
				for range 2 {
					require.NoError(t, writes(t, writer, "secret", ann1, bob, row("zoe")).Commit(t.Context()))
				}
				w.stored(writer)
				if collected {
					// The hint is old enough when the erasure begins.
					w.pass(2 * worldRetention)
				}
				var sent []rowstore.Mutation
				c.wire.AddRule(faultstore.Rule{Match: func(x *call) bool {
					for _, m := range x.Muts {
						if m.Table == format.TableHints {
							sent = append(sent, m)
						}
					}
					return false
				}})
				var p *pause
				if stalls {
					p = c.hold(t, restsOfHints("bob"))
				}
				done := async(func() error { _, err := c.Erase(context.Background(), annRange); return err })
				if stalls {
					require.NoError(t, w.passes(async(func() error { p.wait(); return nil })))
				} else {
					require.NoError(t, w.passes(done))
				}
				require.NotEmpty(t, sent)
				require.NoError(t, w.eraseOf(other, "bob", "bob0"))
				if collected {
					_, err := w.collectBy(other, GCOptions{})
					require.NoError(t, err)
				}
				require.NotContains(t, w.storedHints("t"), "bob")
				for _, m := range sent {
					_, err := w.mem.Apply(t.Context(), []rowstore.Mutation{m}, rowstore.ApplyOptions{})
					require.NoError(t, err)
				}
				if stalls {
					p.release(pass)
					require.NoError(t, w.passes(done))
				}
				require.Empty(t, w.traces("ann/", "bob"))
				// Nothing stays of tokens and marks.
				w.pass(2 * worldRetention)
				_, err := w.collectBy(other, GCOptions{Full: true})
				require.NoError(t, err)
				require.Empty(t, w.hintTokens())
				require.Empty(t, w.hintsWith(rowstore.Mark))
			})
		}
	}
}

// An erasure dies while its token stands. The next one takes the hint over, and a collection removes a token that nothing is beside.
func TestScheduleE_TokenOfTheDead(t *testing.T) {
	t.Parallel()
	for _, arrives := range []bool{true, false} {
		w := newWorld(t)
		w.erasing()
		c, dead, writer := w.client(), w.client(), w.client()
		for range 2 {
			require.NoError(t, writes(t, writer, "secret", ann1, bob).Commit(t.Context()))
		}
		w.stored(writer)
		hint := w.hintRows()
		require.Len(t, hint, 1)
		p := dead.hold(t, restsOfHints("bob"))
		done := async(func() error { _, err := dead.Erase(context.Background(), annRange); return err })
		require.NoError(t, w.passes(async(func() error { p.wait(); return nil })))
		if arrives {
			require.NoError(t, w.eraseOf(c, "ann/", "ann0"))
			require.Empty(t, w.traces("ann/"))
			require.Equal(t, 1, w.storedHints("t")["bob"])
		} else {
			// A hint that was collected meanwhile is written as a token alone.
			_, err := w.mem.Apply(t.Context(), []rowstore.Mutation{{Table: format.TableHints, Row: hint[0], Edits: []rowstore.Edit{
				rowstore.DeleteRange(rowstore.Write, format.ColumnHint, 0, oracle.Max),
			}}}, rowstore.ApplyOptions{})
			require.NoError(t, err)
			require.Contains(t, w.hintTokens(), hint[0])
			require.NotContains(t, w.hintRows(), hint[0])
		}
		p.release(die)
		require.Error(t, w.passes(done))
		w.pass(2 * worldRetention)
		for _, full := range []bool{arrives, !arrives} {
			_, err := w.collectBy(c, GCOptions{Full: full})
			require.NoError(t, err)
		}
		require.Empty(t, w.hintTokens())
		require.Empty(t, w.hintsWith(rowstore.Mark))
		require.NotContains(t, w.hintRows(), hint[0])
	}
}

// A collection removes no hint in which a late token stands: the erasure could put the rest of it back, when nothing tells any more that it was removed.
func TestScheduleE_HintOfATokenIsNotCollected(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.erasing()
	c, writer := w.client(), w.client()
	for range 2 {
		require.NoError(t, writes(t, writer, "secret", ann1, bob).Commit(t.Context()))
	}
	w.stored(writer)
	hint := w.hintRows()
	require.Len(t, hint, 1)
	w.pass(2 * worldRetention)
	p := c.hold(t, restsOfHints("bob"))
	done := async(func() error { _, err := c.Erase(context.Background(), annRange); return err })
	require.NoError(t, w.passes(async(func() error { p.wait(); return nil })))
	report, err := w.collectBy(writer, GCOptions{})
	require.NoError(t, err)
	require.Zero(t, report.Hints)
	require.Contains(t, w.hintRows(), hint[0])
	require.Contains(t, w.hintTokens(), hint[0])
	p.release(pass)
	require.NoError(t, w.passes(done))
	require.Empty(t, w.traces("ann/"))
	w.pass(2 * worldRetention)
	_, err = w.collectBy(writer, GCOptions{})
	require.NoError(t, err)
	require.NotContains(t, w.hintRows(), hint[0])
}

// hintRows and hintTokens are the rows of hints, and those of them in which a token stands.
func (w *world) hintRows() []string   { return w.hintsWith(rowstore.Write) }
func (w *world) hintTokens() []string { return w.hintsWith(rowstore.Lock) }

func (w *world) hintsWith(f rowstore.Family) (rows []string) {
	w.t.Helper()
	for row, err := range w.mem.Scan(w.t.Context(), rowstore.ScanRange{Table: format.TableHints, Selectors: []rowstore.Selector{everything(f, format.ColumnHint)}}) {
		require.NoError(w.t, err)
		rows = append(rows, row.Row)
	}
	return rows
}

// The process that erases has a call under way that stores a hint, which it began before. The call may arrive late: Erase waits for it, and
// takes the name out of that hint too.
func TestScheduleE_HintUnderWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.erasing()
	c := w.client()
	set(t, c.DB, ann1, "old")
	set(t, c.DB, ann1, "new")
	held := c.hold(t, restsOfHints(ann1.Row))
	stored := async(func() error { return c.storeHints(context.Background()) })
	held.wait()
	steps, released := 0, false
	_, err := w.erase(c, func() {
		if steps++; steps == 500 { // time for all else
			released = true
			held.release(pass)
		}
	})
	require.NoError(t, err)
	require.True(t, released, "Erase did not wait")
	require.NoError(t, w.finish(stored))
	require.Empty(t, w.traces("ann/"))
}

// A process that erases has drawn a token, and is suspended for two retentions before it puts it to the hint. So the token is older than the safe point of
// the collection that follows. Its requests come twice all the same, and put back no name that was erased meanwhile.
func TestScheduleE_HintRequestsTwiceUnderAnOldToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.erasing()
	c, other, writer := w.client(), w.client(), w.client()
	for range 2 {
		require.NoError(t, writes(t, writer, "secret", ann1, bob, row("zoe")).Commit(t.Context()))
	}
	w.stored(writer)
	var sent []rowstore.Mutation
	c.wire.AddRule(faultstore.Rule{Match: func(x *call) bool {
		for _, m := range x.Muts {
			if m.Table == format.TableHints {
				sent = append(sent, m)
			}
		}
		return false
	}})
	p := c.hold(t, func(x *call) bool {
		return edits(x, func(m *rowstore.Mutation, e *rowstore.Edit) bool {
			return m.Table == format.TableHints && e.Kind == rowstore.DoPut && e.Family == rowstore.Lock
		})
	})
	done := async(func() error { _, err := c.Erase(context.Background(), annRange); return err })
	require.NoError(t, w.passes(async(func() error { p.wait(); return nil })))
	w.pass(2 * worldRetention)
	p.release(pass)
	require.NoError(t, w.passes(done))
	require.NotEmpty(t, sent)
	_, err := w.collectBy(other, GCOptions{})
	require.NoError(t, err)
	require.NotContains(t, w.storedHints("t"), "bob")
	require.NoError(t, w.eraseOf(other, "bob", "bob0"))
	for _, m := range sent {
		_, err := w.mem.Apply(t.Context(), []rowstore.Mutation{m}, rowstore.ApplyOptions{})
		require.NoError(t, err)
	}
	require.Empty(t, w.traces("ann/", "bob"))
}
