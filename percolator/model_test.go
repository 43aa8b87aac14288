package percolator

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// TestTransactionsAgainstAModel does what transactions may do, in any order and several at once, beside a model of it in maps. It compares each
// answer, and each commit with what must conflict and what must not.
func TestTransactionsAgainstAModel(t *testing.T) {
	t.Parallel()
	for name, opts := range ways {
		for kind, store := range map[string][]memstore.Option{"": nil, " that draws": {memstore.WithApplyTimestamps()}} {
			t.Run(name+kind, func(t *testing.T) {
				t.Parallel()
				seed := rand.Uint64() //nolint:gosec // a seed that is printed
				t.Logf("seed %d", seed)
				m := newModel(t, seed, newWorld(t, store...), opts...)
				for range 100 {
					m.sequence()
				}
				t.Logf("%d commits, %d conflicts", len(m.commits), m.conflicts)
				require.Greater(t, len(m.commits), 100)
				require.Greater(t, m.conflicts, 10)
			})
		}
	}
}

// Few names, so that calls meet each other, of bytes that some encoding could take for its own.
var (
	modelTables  = []string{"t", "t\xff"}
	modelRows    = []string{"\x00", "a", "a\x00", "a\x00\xff", "b\xff", "\xff\xff"}
	modelColumns = []string{"v", "v\x00", "\x00", "\xfe/\"%"}
	modelBounds  = append([]string{"", "a\xff", "\xff"}, modelRows...)
)

type (
	// modelState is the value of each cell that has one, and when it was committed.
	modelState map[Cell]modelValue
	modelValue struct {
		value string
		at    Timestamp // 0 for what the transaction itself has set
	}
	// modelCommit is what a commit changed, and what there was after it.
	modelCommit struct {
		at      Timestamp
		touched map[Cell]bool    // written or locked: true if a value changed
		deleted map[rowName]bool // true if there was a value
		state   modelState
		failed  bool // it met a conflict, and changed nothing: whoever is older may meet what it left
		did     []string
	}
	// modelTxn is an open transaction.
	modelTxn struct {
		tx      *Txn
		serial  bool
		after   int // commits[:after] are in its snapshot
		state   modelState
		wrote   map[Cell]bool // true: it surely takes part in conflicts
		locked  map[Cell]bool
		deleted map[rowName]bool // true if it saw a value
		read    map[Cell]bool
		scanned []Range
		did     []string
	}
	model struct {
		t         *testing.T
		random    *rand.Rand
		w         *world
		clients   []*client
		commits   []modelCommit
		open      []*modelTxn
		conflicts int
		values    int
	}
)

func newModel(t *testing.T, seed uint64, w *world, opts ...Option) *model {
	w.rowDeletes()
	c, _ := indexed(t, w, opts...)
	other := w.client(opts...)
	require.NoError(t, other.KeepIndex(byValue()))
	m := &model{t: t, random: rand.New(rand.NewPCG(seed, 0)), w: w, clients: []*client{c, other}} //nolint:gosec // a seed that is printed
	return m
}

func pick[T any](m *model, of []T) T { return of[m.random.IntN(len(of))] }

func (m *model) cell() Cell {
	return Cell{pick(m, modelTables), pick(m, modelRows), pick(m, modelColumns)}
}

// value is one that was never set before, so that index entries of different rows do not meet.
func (m *model) value(c Cell) string {
	m.values++
	v := fmt.Sprintf("\xff\x00%d", m.values)
	if c.Column == "v" {
		return v
	}
	switch m.random.IntN(4) {
	case 0:
		return ""
	case 1:
		return v + strings.Repeat("\x00long", 100)
	default:
		return v
	}
}

func (m *model) state() modelState {
	if len(m.commits) == 0 {
		return modelState{}
	}
	return m.commits[len(m.commits)-1].state
}

// sequence is some steps of some transactions, all of which end.
func (m *model) sequence() {
	for range 1 + m.random.IntN(40) {
		if len(m.open) == 0 || len(m.open) < 3 && m.random.IntN(4) == 0 {
			m.begin()
			continue
		}
		x := pick(m, m.open)
		if m.random.IntN(8) == 0 {
			m.end(x)
			continue
		}
		m.step(x)
	}
	for len(m.open) > 0 {
		m.end(m.open[0])
	}
	m.look()
	switch m.random.IntN(8) {
	case 0:
		m.deleteRange()
	case 1:
		m.w.pass(worldLease)
	case 2:
		_, err := m.w.collect(pick(m, m.clients), 0)
		require.NoError(m.t, err)
	}
}

func (m *model) begin() {
	x := &modelTxn{
		after: len(m.commits), state: maps.Clone(m.state()), wrote: map[Cell]bool{}, locked: map[Cell]bool{},
		deleted: map[rowName]bool{}, read: map[Cell]bool{}, serial: m.random.IntN(3) == 0,
	}
	level := SnapshotIsolation
	if x.serial {
		level = Serializable
	}
	x.tx = begin(m.t, pick(m, m.clients), WithIsolation(level))
	x.did = []string{fmt.Sprintf("begin of %p at %d, serializable %v", x, x.tx.start, x.serial)}
	m.open = append(m.open, x)
}

func (m *model) step(x *modelTxn) {
	ctx := m.t.Context()
	c := m.cell()
	note := func(format string, args ...any) { x.did = append(x.did, fmt.Sprintf(format, args...)) }
	switch m.random.IntN(12) {
	case 0, 1:
		v := m.value(c)
		note("set %v %.20q", c, v)
		given := []byte(v)
		m.ok(x, x.tx.Set(c, given))
		for i := range given {
			given[i] = '!' // the value was copied
		}
		x.state[c] = modelValue{value: v}
		x.wrote[c] = true
	case 2:
		note("delete %v", c)
		m.ok(x, x.tx.Delete(c))
		delete(x.state, c)
		x.wrote[c] = true
	case 3:
		note("delete row %q %q", c.Table, c.Row)
		m.ok(x, x.tx.DeleteRow(ctx, c.Table, c.Row))
		x.deleteRow(c.rowName(), m.before(x))
	case 4:
		note("lock %v", c)
		v, err := x.tx.GetForUpdate(ctx, c)
		m.is(x, c, v, err)
		x.locked[c] = true
		x.read[c] = true
	case 5:
		cells := []Cell{c, m.cell(), m.cell(), c}
		note("get many %v", cells)
		values, err := x.tx.GetMany(ctx, cells...)
		m.ok(x, err)
		for _, c := range cells {
			v, has := values[c]
			if err = nil; !has {
				err = ErrNotFound
			}
			m.is(x, c, slices.Clone(v), err)
			x.read[c] = true
		}
	case 6:
		note("prefetch %v", c)
		m.ok(x, x.tx.Prefetch(c.Table, c.Row, c.Column, pick(m, modelColumns)))
	case 7:
		note("read the index")
		info, err := x.tx.Index(ctx, "by value")
		m.ok(x, err)
		require.Equal(m.t, IndexReadable, info.State)
		m.entries(x)
	case 8, 9:
		m.scan(x)
	default:
		note("get %v", c)
		v, err := x.tx.Get(ctx, c)
		m.is(x, c, v, err)
		x.read[c] = true
	}
}

// before is the state that a transaction's snapshot has.
func (m *model) before(x *modelTxn) modelState {
	if x.after == 0 {
		return nil
	}
	return m.commits[x.after-1].state
}

func (x *modelTxn) deleteRow(row rowName, before modelState) {
	saw := false
	for c := range before {
		saw = saw || c.rowName() == row
	}
	x.deleted[row] = saw
	for c := range x.state {
		if c.rowName() == row {
			delete(x.state, c)
		}
	}
	for c := range x.wrote {
		if c.rowName() == row {
			x.wrote[c] = false // taken back
		}
	}
}

func (m *model) ok(x *modelTxn, err error) {
	m.t.Helper()
	require.NoError(m.t, err, m.story(x))
}

func (m *model) story(x *modelTxn) string {
	var b strings.Builder
	for _, d := range x.did {
		b.WriteString("\n" + d)
	}
	return b.String()
}

// since are the commits after a transaction's snapshot.
func (m *model) since(x *modelTxn) (all string) {
	for _, c := range m.commits[x.after:] {
		all += fmt.Sprintf("\n%d failed %v touched %v deleted %v: %v", c.at, c.failed, c.touched, c.deleted, strings.Join(c.did, "\n  "))
	}
	return all
}

func (m *model) is(x *modelTxn, c Cell, v []byte, err error) {
	m.t.Helper()
	want, has := x.state[c]
	if !has {
		require.ErrorIs(m.t, err, ErrNotFound, "%v:%s", c, m.story(x))
		return
	}
	require.NoError(m.t, err, "%v:%s", c, m.story(x))
	require.NotNil(m.t, v)
	require.Equal(m.t, want.value, string(v), "%v:%s", c, m.story(x))
	for i := range v {
		v[i] = '!' // it belongs to the caller
	}
}

func (m *model) bounds() (from, to string) {
	for {
		from, to = pick(m, modelBounds), pick(m, modelBounds)
		if to == "" || from <= to {
			return from, to
		}
	}
}

func (m *model) scan(x *modelTxn) {
	from, to := m.bounds()
	r := Range{Table: pick(m, modelTables), From: from, To: to, Reverse: m.random.IntN(2) == 0, Timestamps: m.random.IntN(2) == 0}
	if m.random.IntN(2) == 0 {
		r.Columns = []string{pick(m, modelColumns), pick(m, modelColumns)}
	}
	if m.random.IntN(3) == 0 {
		r.Limit = 1 + m.random.IntN(3)
	}
	x.did = append(x.did, fmt.Sprintf("scan %+q", fmt.Sprintf("%+v", r)))
	want := x.rows(r)
	writes := m.random.IntN(2) == 0
	n := 0
	for row, err := range x.tx.Scan(m.t.Context(), r) {
		m.ok(x, err)
		require.Less(m.t, n, len(want), "row %q:%s", row.Key, m.story(x))
		require.Equal(m.t, want[n], row, m.story(x))
		n++
		if writes { // what is written within the loop is not visited
			c := Cell{r.Table, pick(m, modelRows), pick(m, modelColumns)}
			v := m.value(c)
			x.did = append(x.did, fmt.Sprintf("in the scan, set %v %.20q", c, v))
			m.ok(x, x.tx.Set(c, []byte(v)))
			x.state[c], x.wrote[c] = modelValue{value: v}, true
		}
	}
	require.Equal(m.t, len(want), n, m.story(x))
	if r.Limit == 0 || n < r.Limit {
		x.scanned = append(x.scanned, r)
	}
}

func (r *Range) has(c Cell) bool {
	return c.Table == r.Table && c.Row >= r.From && (r.To == "" || c.Row < r.To) && (r.Columns == nil || slices.Contains(r.Columns, c.Column))
}

func (x *modelTxn) rows(r Range) (rows []Row) {
	byKey := map[string]*Row{}
	for c, v := range x.state {
		if !r.has(c) {
			continue
		}
		row := byKey[c.Row]
		if row == nil {
			row = &Row{Key: c.Row, Columns: map[string][]byte{}}
			if r.Timestamps {
				row.Timestamps = map[string]Timestamp{}
			}
			byKey[c.Row] = row
		}
		row.Columns[c.Column] = append([]byte{}, v.value...)
		if r.Timestamps && v.at != 0 {
			row.Timestamps[c.Column] = v.at
		}
	}
	for _, k := range slices.Sorted(maps.Keys(byKey)) {
		rows = append(rows, *byKey[k])
	}
	if r.Reverse {
		slices.Reverse(rows)
	}
	if r.Limit > 0 && len(rows) > r.Limit {
		rows = rows[:r.Limit]
	}
	return rows
}

// entries compares the index with the rows.
func (m *model) entries(x *modelTxn) {
	want, got := map[string]string{}, map[string]string{}
	for c, v := range x.state {
		if c.Table == "t" && c.Column == "v" {
			want[v.value] = c.Row
		}
	}
	for row, err := range x.tx.Scan(m.t.Context(), Range{Table: "i"}) {
		m.ok(x, err)
		got[row.Key] = string(row.Columns["row"])
	}
	require.Equal(m.t, want, got, m.story(x))
}

// conflict tells whether a transaction must meet a conflict with a commit after its snapshot, and whether it may.
func (x *modelTxn) conflict(c *modelCommit) (must, may bool) {
	writes := func(cell Cell) bool { return x.wrote[cell] || x.locked[cell] }
	for cell, changed := range c.touched {
		switch {
		case x.wrote[cell], x.locked[cell] && changed:
			must = true
		case x.serial && changed && (x.read[cell] || slices.ContainsFunc(x.scanned, func(r Range) bool { return r.has(cell) })):
			must = true
		case has(x.wrote, cell), x.locked[cell], x.serial:
			may = true
		}
		may = may || has(x.deleted, cell.rowName())
	}
	for row := range x.deleted {
		for cell, changed := range c.touched {
			must = must || cell.rowName() == row && changed
		}
		may = may || has(c.deleted, row)
	}
	for row := range c.deleted {
		for cell := range x.wrote {
			if cell.rowName() == row {
				must, may = must || x.wrote[cell], true
			}
		}
		for cell := range x.locked {
			may = may || cell.rowName() == row && writes(cell)
		}
		may = may || x.serial
	}
	return must && !c.failed, must || may
}

func has[K comparable, V any](m map[K]V, k K) bool { _, is := m[k]; return is }

func (m *model) end(x *modelTxn) {
	m.open = slices.DeleteFunc(m.open, func(o *modelTxn) bool { return o == x })
	if m.random.IntN(10) == 0 {
		require.NoError(m.t, x.tx.Rollback(m.t.Context()))
		return
	}
	effect := false // a transaction without one commits as if it came first
	for _, sure := range x.wrote {
		effect = effect || sure
	}
	for _, saw := range x.deleted {
		effect = effect || saw
	}
	must, may := false, false
	for i := x.after; i < len(m.commits); i++ {
		a, b := x.conflict(&m.commits[i])
		if must, may = must || a, may || b; a {
			x.did = append(x.did, fmt.Sprintf("it must conflict with the commit at %d: %v %v", m.commits[i].at, m.commits[i].touched, m.commits[i].deleted))
		}
	}
	before := m.state()
	err := x.tx.Commit(m.t.Context())
	if err != nil {
		require.ErrorIs(m.t, err, ErrConflict, m.story(x))
		require.True(m.t, may, "a conflict with nothing: %v%s\n%v", err, m.story(x), m.since(x))
		require.Error(m.t, errors.Unwrap(err))
		m.conflicts++
		m.committed(x, m.state(), true)
		return
	}
	if x.tx.CommitTimestamp() == 0 {
		require.False(m.t, effect, m.story(x))
		return
	}
	must = must && effect
	require.False(m.t, must, "a conflict was passed over:%s", m.story(x))
	m.committed(x, before, false)
}

func (m *model) committed(x *modelTxn, before modelState, failed bool) {
	c := modelCommit{at: x.tx.CommitTimestamp(), touched: map[Cell]bool{}, deleted: x.deleted, state: maps.Clone(before), failed: failed, did: x.did}
	require.True(m.t, failed || c.at > x.tx.start, m.story(x))
	for cell := range before {
		if has(x.deleted, cell.rowName()) {
			c.touched[cell] = true
			delete(c.state, cell)
		}
	}
	for cell, sure := range x.wrote {
		v, is := x.state[cell]
		c.touched[cell] = c.touched[cell] || sure && (is || has(before, cell))
		if is {
			v.at = c.at
			c.state[cell] = v
		} else {
			delete(c.state, cell)
		}
	}
	for cell := range x.locked {
		if !has(c.touched, cell) {
			c.touched[cell] = false
		}
	}
	if failed {
		c.state = before
	}
	m.commits = append(m.commits, c)
}

// look compares what there is with the model, and what there was.
func (m *model) look() {
	c := pick(m, m.clients)
	x := &modelTxn{tx: begin(m.t, c), state: m.state(), did: []string{"a look"}}
	for _, table := range modelTables {
		r := Range{Table: table, Timestamps: true}
		var got []Row
		for row, err := range x.tx.Scan(m.t.Context(), r) {
			m.ok(x, err)
			got = append(got, row)
		}
		require.Equal(m.t, x.rows(r), got)
	}
	m.entries(x)
	require.NoError(m.t, x.tx.Rollback(m.t.Context()))
	if len(m.commits) == 0 {
		return
	}
	old := m.commits[max(0, len(m.commits)-1-m.random.IntN(20))]
	if old.failed {
		return
	}
	x = &modelTxn{tx: begin(m.t, c, WithAsOfTimestamp(old.at)), state: old.state, did: []string{fmt.Sprintf("a look back to %d", old.at)}}
	for _, table := range modelTables {
		for _, want := range x.rows(Range{Table: table}) {
			for column, v := range want.Columns {
				got, err := x.tx.Get(m.t.Context(), Cell{table, want.Key, column})
				if errors.Is(err, ErrSnapshotTooOld) {
					continue // collected
				}
				m.ok(x, err)
				require.True(m.t, bytes.Equal(v, got), m.story(x))
			}
		}
	}
	require.NoError(m.t, x.tx.Rollback(m.t.Context()))
}

// deleteRange deletes between transactions.
func (m *model) deleteRange() {
	from, to := m.bounds()
	r := Range{Table: pick(m, modelTables), From: from, To: to}
	if m.random.IntN(2) == 0 {
		r.Columns = []string{pick(m, modelColumns)}
	}
	c := pick(m, m.clients)
	_, err := c.DeleteRange(m.t.Context(), r)
	require.NoError(m.t, err)
	state := maps.Clone(m.state())
	for cell := range state {
		if r.has(cell) {
			delete(state, cell)
		}
	}
	at, err := c.Now(m.t.Context())
	require.NoError(m.t, err)
	m.commits = append(m.commits, modelCommit{at: at, state: state})
}
