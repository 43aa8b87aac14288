package conformance

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func concurrencyTests() []test {
	return []test{
		{"CounterOnOneRow", Concurrency, counterOnOneRow},
		{"CountersOnManyRows", Concurrency, countersOnManyRows},
		{"OneWinnerOfALock", Concurrency, oneWinnerOfALock},
		{"ViewsAreNotTorn", Concurrency, viewsAreNotTorn},
		{"AcknowledgedIsVisible", Concurrency, acknowledgedIsVisible},
		{"BatchesInOppositeOrders", Concurrency, batchesInOppositeOrders},
		{"MarksOnlyRise", Concurrency, marksOnlyRise},
		{"FenceOrPrewrite", Concurrency, fenceOrPrewrite},
		{"CommitOrRollback", Concurrency, commitOrRollback},
	}
}

// apply1 applies one mutation from any goroutine.
func apply1(h *harness, m rowstore.Mutation) (rowstore.Outcome, error) {
	out, err := h.s.Apply(h.ctx, []rowstore.Mutation{m}, rowstore.ApplyOptions{})
	if err != nil {
		return rowstore.Outcome{}, fmt.Errorf("applying to row %q: %w", m.Row, err)
	}
	if len(out) != 1 {
		return rowstore.Outcome{}, fmt.Errorf("%d outcomes of one mutation", len(out))
	}
	return out[0], out[0].Err
}

// group1 is apply1 by a group, of a row that may be in one.
func group1(h *harness, m rowstore.Mutation) (rowstore.Outcome, error) {
	outs, err := grouper(h.s).Group(h.ctx, []rowstore.Group{{Mutations: []rowstore.Mutation{m}}})
	if err != nil {
		return rowstore.Outcome{}, fmt.Errorf("applying to row %q by a group: %w", m.Row, err)
	}
	if len(outs) != 1 {
		return rowstore.Outcome{}, fmt.Errorf("%d outcomes of one group", len(outs))
	}
	if outs[0].Applied {
		return rowstore.Outcome{Applied: true}, outs[0].Err
	}
	return outs[0].Outcome, outs[0].Err
}

// read1 reads one row of table "t" from any goroutine.
func read1(h *harness, row string, picks ...rowstore.Selector) (rowstore.Row, error) {
	rows, err := h.s.Read(h.ctx, []rowstore.RowRead{{Table: "t", Row: row, Selectors: picks}})
	if err != nil {
		return rowstore.Row{}, fmt.Errorf("reading row %q: %w", row, err)
	}
	if len(rows) != 1 {
		return rowstore.Row{}, fmt.Errorf("%d answers of one read", len(rows))
	}
	return rows[0], rows[0].Err
}

// newestWrite selects the newest write of column "c".
var newestWrite = rowstore.Selector{Family: rowstore.Write, Column: "c", To: oracle.Max, Limit: 1}

func counterOnOneRow(t testing.TB, e *env) { counters(t, e, 1, 8, e.n(60, 15)) }

func countersOnManyRows(t testing.TB, e *env) { counters(t, e, 5, 8, e.n(60, 15)) }

// counters has workers count in rows, each step under the condition that nobody
// else took it. The versions of a row are its whole history: since each holds who
// wrote it, they prove that each step had one winner, who was told so.
func counters(t testing.TB, e *env, rows, workers, wins int) {
	h := e.harness(t)
	rng := seeded(t)
	won := make([]map[string]bool, workers)
	var lost atomic.Int64
	var g errgroup.Group
	for w := range workers {
		rng := fork(rng)
		won[w] = map[string]bool{}
		g.Go(func() error {
			for n := 0; n < wins; {
				row := key(rng.IntN(rows))
				r, err := read1(h, row, newestWrite)
				if err != nil {
					return err
				}
				next := rowstore.Timestamp(1)
				if v := r.Newest(rowstore.Write, "c"); v != nil {
					next = v.TS + 1
				}
				runtime.Gosched() // between the look and the change, so that they collide
				id := fmt.Sprintf("%d/%d", w, n)
				out, err := apply1(h, mut(row, when(rowstore.Absent(rowstore.Write, "c", next)),
					write(ver(rowstore.Write, "c", next, id)), write(ver(rowstore.Data, "d", next, id))))
				if err != nil {
					return err
				}
				if out.Applied {
					won[w][fmt.Sprintf("%s@%d=%s", row, next, id)] = true
					n++
					continue
				}
				lost.Add(1)
				if out.Broke.TS < next || string(out.Broke.Value) == id {
					return fmt.Errorf("step %d of row %q broke on %v", next, row, out.Broke)
				}
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	total := 0
	for i := range rows {
		all := h.read(key(i), pick(rowstore.Write))
		data := h.read(key(i), pick(rowstore.Data))
		require.Len(t, data, len(all), "both columns of each step")
		for j, v := range all {
			require.Equal(t, rowstore.Timestamp(len(all)-j), v.TS, "no step is missing") //nolint:gosec // positive
			require.Equal(t, string(v.Value), string(data[j].Value))
			claimed := 0
			for _, mine := range won {
				if mine[fmt.Sprintf("%s@%d=%s", key(i), v.TS, v.Value)] {
					claimed++
				}
			}
			require.Equal(t, 1, claimed, "step %d of %q has one winner", v.TS, key(i))
		}
		total += len(all)
	}
	require.Equal(t, workers*wins, total)
	t.Logf("%d steps, %d lost", total, lost.Load())
}

// oneWinnerOfALock has workers lock, write under the lock, and unlock.
func oneWinnerOfALock(t testing.TB, e *env) {
	h := e.harness(t)
	const workers = 6
	wins := e.n(40, 10)
	var inside, sum atomic.Int64
	var g errgroup.Group
	for w := range workers {
		g.Go(func() error {
			for n := 0; n < wins; {
				ts := rowstore.Timestamp(1 + w + workers*n) //nolint:gosec // positive
				out, err := apply1(h, mut("row", when(rowstore.Absent(rowstore.Lock, "c", 0)), write(ver(rowstore.Lock, "c", ts, fmt.Sprint(w)))))
				if err != nil {
					return err
				}
				if !out.Applied {
					if out.Broke.Family != rowstore.Lock || out.Broke.TS == ts {
						return fmt.Errorf("the lock broke on %v", out.Broke)
					}
					time.Sleep(50 * time.Microsecond) // one that only tried again would take the winner's processor
					continue
				}
				if inside.Add(1) != 1 {
					return fmt.Errorf("two hold the lock")
				}
				runtime.Gosched()
				sum.Add(1)
				inside.Add(-1)
				out, err = apply1(h, mut("row", when(rowstore.Present("c", ts)), rowstore.Delete(rowstore.Lock, "c", ts)))
				if err != nil {
					return err
				}
				if !out.Applied {
					return fmt.Errorf("the lock at %d is gone", ts)
				}
				n++
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	require.EqualValues(t, workers*wins, sum.Load())
	require.Empty(t, h.all("row"))
}

// viewsAreNotTorn changes several columns and families of rows together, and
// reads them in every way meanwhile.
func viewsAreNotTorn(t testing.TB, e *env) {
	h := e.harness(t)
	const rows = 3
	for i := range rows {
		h.put(key(i), wholeRow(1)...)
	}
	var stop atomic.Bool
	var g, readers errgroup.Group
	for i := range rows {
		g.Go(func() error {
			for ts := rowstore.Timestamp(2); !stop.Load(); ts++ {
				if _, err := apply1(h, mut(key(i), nil, wholeRow(ts)...)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for w := range 3 {
		readers.Go(func() error {
			for i := range e.n(120, 20) {
				views, err := viewRows(h, rows, w, i%2 == 1)
				if err != nil {
					return err
				}
				for j := range views {
					if err := notTorn(&views[j]); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	err := readers.Wait()
	stop.Store(true)
	require.NoError(t, g.Wait())
	require.NoError(t, err)
}

var wholeColumns = []string{"a", "b", "c\x00", "d"}

// wholeRow changes every column of a row, in three families, with one timestamp.
func wholeRow(ts rowstore.Timestamp) []rowstore.Edit {
	var all []rowstore.Edit
	for _, c := range wholeColumns {
		value := num(ts)
		all = append(all, write(ver(rowstore.Write, c, ts, value)), write(ver(rowstore.Data, c, ts, value)), write(ver(rowstore.Notify, c, ts, value)))
		if ts > 1 {
			all = append(all, rowstore.DeleteRange(rowstore.Notify, c, 0, ts-1))
		}
		if ts > 3 {
			all = append(all, rowstore.DeleteRange(rowstore.Write, c, 0, ts-3), rowstore.Delete(rowstore.Data, c, ts-3))
		}
	}
	return all
}

// notTorn makes sure that all columns and families of a row are of one wholeRow.
func notTorn(r *rowstore.Row) error {
	first := r.Newest(rowstore.Write, "a")
	for _, c := range wholeColumns {
		w, d, n := r.All(rowstore.Write, c), r.All(rowstore.Data, c), r.All(rowstore.Notify, c)
		if len(w) == 0 || len(d) == 0 || len(n) != 1 || w[0].TS != first.TS || d[0].TS != first.TS || n[0].TS != first.TS ||
			len(w) != len(r.All(rowstore.Write, "a")) || len(d) != len(w) {
			return fmt.Errorf("row %q is torn: %v", r.Row, r.Versions)
		}
	}
	return nil
}

// viewRows reads rows that wholeRow wrote: with a selector for all columns (how is 0),
// with one for each column (1), or by a scan (2).
func viewRows(h *harness, rows, how int, reverse bool) ([]rowstore.Row, error) {
	picks := []rowstore.Selector{pick(rowstore.Write), pick(rowstore.Data), pick(rowstore.Notify)}
	if how == 2 {
		scanned, err := collect(h.ctx, h.s, rowstore.ScanRange{Table: "t", Selectors: picks, Reverse: reverse})
		if err == nil && len(scanned) != rows {
			err = fmt.Errorf("a scan visited %d of %d rows", len(scanned), rows)
		}
		return scanned, err
	}
	if how == 1 {
		var onePick []rowstore.Selector
		for _, p := range picks {
			for _, c := range wholeColumns {
				p.Column = c
				onePick = append(onePick, p)
			}
		}
		picks = onePick
	}
	reads := make([]rowstore.RowRead, rows)
	for j := range reads {
		reads[j] = rowstore.RowRead{Table: "t", Row: key(j), Selectors: picks}
	}
	answers, err := h.s.Read(h.ctx, reads)
	if err != nil {
		return nil, fmt.Errorf("reading: %w", err)
	}
	for j := range answers {
		if answers[j].Err != nil {
			return nil, answers[j].Err
		}
	}
	return answers, nil
}

// acknowledgedIsVisible checks real time: what was acknowledged before a call
// began is in its answer, whichever goroutine asks, and by whichever method.
func acknowledgedIsVisible(t testing.TB, e *env) {
	h := e.harness(t)
	const rows = 4
	acked := make([]atomic.Uint64, rows)
	for i := range rows {
		h.put(key(i), write(ver(rowstore.Write, "c", 1, "")))
		acked[i].Store(1)
	}
	var stop atomic.Bool
	var g, readers errgroup.Group
	for i := range rows {
		g.Go(func() error {
			for ts := uint64(2); !stop.Load(); ts++ {
				if _, err := apply1(h, mut(key(i), nil, write(ver(rowstore.Write, "c", rowstore.Timestamp(ts), "")))); err != nil {
					return err
				}
				acked[i].Store(ts)
			}
			return nil
		})
	}
	for w := range 4 {
		readers.Go(func() error {
			for i := range e.n(300, 80) {
				row := i % rows
				least := rowstore.Timestamp(acked[row].Load())
				var got rowstore.Timestamp
				switch w {
				case 0, 1:
					r, err := read1(h, key(row), newestWrite)
					if err != nil {
						return err
					}
					if v := r.Newest(rowstore.Write, "c"); v != nil {
						got = v.TS
					}
				case 2:
					out, err := apply1(h, mut(key(row), when(rowstore.Absent(rowstore.Write, "c", 1))))
					if err != nil {
						return err
					}
					got = out.Broke.TS
				case 3:
					scanned, err := collect(h.ctx, h.s, rowstore.ScanRange{Table: "t", From: key(row), Limit: 1, Selectors: []rowstore.Selector{newestWrite}})
					if err != nil {
						return err
					}
					if len(scanned) == 1 {
						got = scanned[0].Versions[0].TS
					}
				}
				if got < least {
					return fmt.Errorf("row %q: version %d was acknowledged before the call, which saw %d", key(row), least, got)
				}
			}
			return nil
		})
	}
	err := readers.Wait()
	stop.Store(true)
	require.NoError(t, g.Wait())
	require.NoError(t, err)
}

// batchesInOppositeOrders must neither deadlock nor mix up outcomes.
func batchesInOppositeOrders(t testing.TB, e *env) {
	h := e.harness(t)
	const workers, rows = 6, 12
	rounds := e.n(25, 8)
	rng := seeded(t)
	var wins [rows]atomic.Int64
	var g errgroup.Group
	for w := range workers {
		rng := fork(rng)
		g.Go(func() error {
			for i := range rounds {
				ts := rowstore.Timestamp(1 + w + workers*i) //nolint:gosec // positive
				order := rng.Perm(rows)
				muts := make([]rowstore.Mutation, rows)
				for j, r := range order {
					muts[j] = mut(key(r), when(rowstore.Absent(rowstore.Write, "c", ts)), write(ver(rowstore.Write, "c", ts, key(r))))
				}
				out, err := h.s.Apply(h.ctx, muts, rowstore.ApplyOptions{})
				if err != nil {
					return fmt.Errorf("applying a batch: %w", err)
				}
				for j, r := range order {
					switch {
					case out[j].Err != nil:
						return out[j].Err
					case out[j].Applied:
						wins[r].Add(1)
					case string(out[j].Broke.Value) != key(r) || out[j].Broke.TS <= ts:
						return fmt.Errorf("row %q at %d broke on %v", key(r), ts, out[j].Broke)
					}
				}
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	for r := range rows {
		require.Len(t, h.all(key(r)), int(wins[r].Load()), "each applied mutation left its version, and no other did")
	}
}

func marksOnlyRise(t testing.TB, e *env) {
	h := e.harness(t)
	const workers = 6
	rounds := e.n(60, 20)
	rng := seeded(t)
	var g errgroup.Group
	for w := range workers {
		rng := fork(rng)
		g.Go(func() error {
			var last rowstore.Timestamp
			for i := range rounds {
				ts := rowstore.Timestamp(1 + rng.IntN(100_000)) //nolint:gosec // positive
				if i == rounds/2 && w == 0 {
					ts = 200_000
				}
				if _, err := apply1(h, mut("row", nil, rowstore.Put(rowstore.Mark, "c", ts, nil))); err != nil {
					return err
				}
				r, err := read1(h, "row", pick(rowstore.Mark))
				if err != nil {
					return err
				}
				if len(r.Versions) != 1 {
					return fmt.Errorf("%d marks in a column", len(r.Versions))
				}
				if at := r.Versions[0].TS; at < ts || at < last {
					return fmt.Errorf("the mark is at %d, after %d and %d were put", at, last, ts)
				}
				last = r.Versions[0].TS
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	require.Equal(t, versions(ver(rowstore.Mark, "c", 200_000, "")), h.all("row"))
}

// fenceOrPrewrite has a transaction lock a row while somebody who found no trace of it there puts a mark in its way: one of the two
// comes too late, and is told so.
func fenceOrPrewrite(t testing.TB, e *env) {
	oneOfTwo(t, e, false, [2]func(row string) rowstore.Mutation{
		func(row string) rowstore.Mutation {
			return mut(row, when(rowstore.Absent(rowstore.Write, "c", 5), rowstore.Absent(rowstore.Lock, "c", 0), rowstore.Absent(rowstore.Mark, "c", 5)),
				write(ver(rowstore.Lock, "c", 5, "")))
		},
		func(row string) rowstore.Mutation {
			return mut(row, when(rowstore.AbsentAt("c", 5)), rowstore.Put(rowstore.Mark, "c", 5, nil))
		},
	})
}

// commitOrRollback has a transaction take its lock for a write while somebody takes it for a mark.
func commitOrRollback(t testing.TB, e *env) {
	mine := when(rowstore.Present("c", 5))
	oneOfTwo(t, e, true, [2]func(row string) rowstore.Mutation{
		func(row string) rowstore.Mutation {
			return mut(row, mine, rowstore.Delete(rowstore.Lock, "c", 5), write(ver(rowstore.Write, "c", 9, "")))
		},
		func(row string) rowstore.Mutation {
			return mut(row, mine, rowstore.Delete(rowstore.Lock, "c", 5), rowstore.Put(rowstore.Mark, "c", 5, nil))
		},
	})
}

// oneOfTwo makes two changes of each of many rows at the same time, locked rows or empty ones. Each change rules the other one out.
// Either may be a group.
func oneOfTwo(t testing.TB, e *env, locked bool, changes [2]func(row string) rowstore.Mutation) {
	h := e.harness(t)
	group := grouper(h.s)
	wins := [2]int{}
	for i := range e.n(80, 24) {
		row := key(i)
		if locked {
			h.put(row, write(ver(rowstore.Lock, "c", 5, "")))
		}
		var outs [2]rowstore.Outcome
		var g errgroup.Group
		begin := make(chan struct{})
		for k := range changes {
			who := (k + i/4) % 2 // either may be the first one to begin
			change, call := changes[who], apply1
			if i>>who&1 == 1 && group != nil && group.GroupKey("t", row) != "" {
				call = group1
			}
			g.Go(func() (err error) {
				<-begin
				outs[who], err = call(h, change(row))
				return err
			})
		}
		close(begin)
		require.NoError(t, g.Wait())
		require.NotEqual(t, outs[0].Applied, outs[1].Applied, "row %q: one of the two changes happens: %+v", row, outs)
		winner := 0
		if outs[1].Applied {
			winner = 1
		}
		wins[winner]++
		// What is there is what the winner put, and nothing of the other.
		want := []rowstore.Version{}
		for _, edit := range changes[winner](row).Edits {
			if edit.Kind == rowstore.DoPut {
				want = append(want, norm1(rowstore.Version{Family: edit.Family, Column: edit.Column, TS: edit.TS, Value: edit.Value}))
			}
		}
		require.Equal(t, want, h.all(row), "row %q, change %d", row, winner)
	}
	t.Logf("the first change won %d times, and the second one %d times", wins[0], wins[1])
}
