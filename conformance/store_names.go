package conformance

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func nameTests() []test {
	return []test{
		{"NamesOfAnyBytes", Names, namesOfAnyBytes},
		{"EveryByteInEveryPlace", Names, everyByteInEveryPlace},
		{"ValuesOfAnyBytes", Names, valuesOfAnyBytes},
		{"NamesDoNotRunTogether", Names, namesDoNotRunTogether},
		{"LongNames", Names, longNames},
		{"NamesOverTheLimit", Names, namesOverTheLimit},
		{"ScanIsInByteOrder", Names, scanIsInByteOrder},
	}
}

func sizeTests() []test {
	return []test{
		{"LargeValues", Sizes, largeValues},
		{"ValuesOverTheLimit", Sizes, valuesOverTheLimit},
		{"ValuesOfManySizes", Sizes, valuesOfManySizes},
		{"ManyColumns", Sizes, manyColumns},
		{"ManyVersions", Sizes, manyVersions},
		{"BigBatches", Sizes, bigBatches},
	}
}

// oddNames are names that encodings, patterns and quoting stumble over.
var oddNames = []string{
	"\x00", "\x00\x00", "\x01", "\xff", "\xff\xff", "\xff\x00", "\x00\xff", "a", "a\x00", "a\x00\x00", "a\x00b", "a\x01", "a\xff", "ab",
	"A", " ", "  ", "a ", " a", "\n", "a\r\nb", "\t", "'", "''", "\"", "`", "\\", "\\x00", "\\0", "%", "%00", "_", "*", "?", "[a]", "{a}", "{}",
	"a{b}c", ":", "a:b", "a/b", "/", ".", "..", ";", "--", "$1", "#", "nil", "null", "0", "00", "-1", "é", "e\u0301", "日本", "\U0001F600",
	"\xc3\x28", "\xed\xa0\x80", "\xf8\x88\x80\x80\x80", "\xc0\x80", "lock", "write", "!meta", strings.Repeat("x", 100),
}

// oddNames are those that the store takes as a table, as a row and as a column.
func (h *harness) oddNames() []string {
	l := limitsOf(h.s)
	most := length(l.Table, length(l.Row, length(l.Column, math.MaxInt)))
	return slices.DeleteFunc(slices.Clone(oddNames), func(n string) bool { return len(n) > most })
}

// mostValue is how long a value the tests try: most, or what the store takes in one step.
func (h *harness) mostValue(most int) int {
	l := limitsOf(h.s)
	most = length(l.Value, most)
	if l.Bytes > 0 {
		most = min(most, l.Bytes-64) // with its names
	}
	return most
}

func namesOfAnyBytes(t testing.TB, e *env) {
	h := e.harness(t)
	oddNames := h.oddNames()
	// Each as a table, as a row and as a column, together with one other.
	type address struct{ table, row, column string }
	var all []address
	for i, n := range oddNames {
		o := oddNames[(i+7)%len(oddNames)]
		all = append(all, address{n, "r", "c"}, address{"t", n, "c"}, address{"t", "r", n}, address{n, o, n})
	}
	for i, a := range all {
		var edits []rowstore.Edit
		for _, f := range families {
			edits = append(edits, write(ver(f, a.column, 5, fmt.Sprintf("%d/%d", f, i))))
		}
		out := h.apply(rowstore.Mutation{Table: a.table, Row: a.row, Conditions: when(rowstore.Absent(rowstore.Lock, a.column, 0)), Edits: edits})
		require.True(t, out[0].Applied, "%q: every address is its own", a)
	}
	for i, a := range all {
		var want []rowstore.Version
		for _, f := range families {
			v := ver(f, a.column, 5, fmt.Sprintf("%d/%d", f, i))
			want = append(want, v)
			got := h.readOf(a.table, a.row, rowstore.Selector{Family: f, Column: a.column, To: oracle.Max})
			require.Equal(t, versions(v), got, "%q", a)
		}
		out := h.apply(rowstore.Mutation{Table: a.table, Row: a.row, Conditions: when(rowstore.Present(a.column, 5), rowstore.Absent(rowstore.Write, a.column, 0))})
		require.Equal(t, 1, out[0].Failed)
		require.Equal(t, norm1(want[1]), norm1(out[0].Broke), "%q", a)
	}
	var columns []rowstore.Version
	for _, v := range h.read("r", pick(rowstore.Notify)) {
		columns = append(columns, ver(v.Family, v.Column, v.TS, ""))
	}
	var want []rowstore.Version
	for _, n := range oddNames {
		want = append(want, ver(rowstore.Notify, n, 5, ""))
	}
	require.Equal(t, versions(want...), columns)
}

func everyByteInEveryPlace(t testing.TB, e *env) {
	h := e.harness(t)
	name := func(b int, format string) string { return fmt.Sprintf(format, string([]byte{byte(b)})) } //nolint:gosec // one byte
	formats := []string{"%s", "a%sb"}
	var muts []rowstore.Mutation
	for b := range 256 {
		for _, f := range formats {
			n := name(b, f)
			muts = append(muts, rowstore.Mutation{Table: "rows", Row: n, Edits: []rowstore.Edit{write(ver(rowstore.Write, n, 5, n)), write(ver(rowstore.Notify, n, 5, n))}})
		}
	}
	for chunk := range slices.Chunk(muts, 128) {
		h.apply(chunk...)
	}
	want := map[string][]rowstore.Version{}
	keys := []string{}
	for _, m := range muts {
		want[m.Row] = versions(ver(rowstore.Write, m.Row, 5, m.Row), ver(rowstore.Notify, m.Row, 5, m.Row))
		keys = append(keys, m.Row)
	}
	slices.Sort(keys)
	for _, p := range [][]rowstore.Selector{everything(), {pick(rowstore.Notify)}} {
		got := []string{}
		for _, r := range h.scan(rowstore.ScanRange{Table: "rows", Selectors: p}) {
			got = append(got, r.Row)
			if len(p) > 1 {
				require.Equal(t, want[r.Row], r.Versions)
			}
		}
		require.Equal(t, keys, got)
	}
	for _, k := range keys {
		require.Equal(t, want[k], h.readOf("rows", k, everything()...))
	}
}

func valuesOfAnyBytes(t testing.TB, e *env) {
	h := e.harness(t)
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	values := []string{string(every), strings.Repeat("\x00", 40), strings.Repeat("\xff", 40), "\xc3\x28", "\x80", "'; --", "\\x41", "0x41"}
	for i, value := range values {
		var want []rowstore.Version
		var puts []rowstore.Edit
		for _, f := range families {
			v := ver(f, "c", 5, value)
			want, puts = append(want, v), append(puts, write(v))
		}
		h.put(key(i), puts...)
		require.Equal(t, versions(want...), h.all(key(i)), "%q", value)
		h.breaks(key(i), 0, want[0], rowstore.AbsentAt("c", 5))
	}
}

// namesDoNotRunTogether puts the border between table, row and column into
// different places of the same bytes.
func namesDoNotRunTogether(t testing.TB, e *env) {
	h := e.harness(t)
	n := 0
	seen := map[[3]string]string{}
	for _, whole := range []string{"abcd", "a\x00b\x00", "\x00\x00\x00\x00", "\xff\xff\xff\xff", "a/b/", "a:b:", "{a}b", "\x01\x02\x01\x02"} {
		for i := 1; i < len(whole)-1; i++ {
			for j := i + 1; j < len(whole); j++ {
				a := [3]string{whole[:i], whole[i:j], whole[j:]}
				n++
				seen[a] = fmt.Sprint(n)
				out := h.apply(rowstore.Mutation{
					Table: a[0], Row: a[1], Conditions: when(rowstore.Absent(rowstore.Write, a[2], 0)),
					Edits: []rowstore.Edit{write(ver(rowstore.Write, a[2], 5, seen[a])), write(ver(rowstore.Notify, a[2], 5, seen[a]))},
				})
				require.True(t, out[0].Applied, "%q is an address of its own", a)
			}
		}
	}
	for a, value := range seen {
		require.Equal(t, versions(ver(rowstore.Write, a[2], 5, value)), h.readOf(a[0], a[1], rowstore.Selector{Family: rowstore.Write, Column: a[2], To: oracle.Max}), "%q", a)
	}
}

// length is how long a name the tests try: the store's own limit, if it has one.
func length(limit, most int) int {
	if limit > 0 {
		return min(limit, most)
	}
	return most
}

func longNames(t testing.TB, e *env) {
	h := e.harness(t)
	l := limitsOf(h.s)
	t.Logf("limits: %+v", l)
	most := 16 << 10
	if l.Bytes > 0 {
		most = min(most, l.Bytes/8) // a table, a row, a column in each family, and values
	}
	for _, fillWith := range []string{"x", "\x00", "\xff", "\x01"} {
		long := func(limit int) string { return strings.Repeat(fillWith, length(limit, most)) }
		table, row, column := long(l.Table), long(l.Row), long(l.Column)
		for _, a := range [][3]string{{table, "r", "c"}, {"t", row, "c"}, {"t", "r", column}, {table, row, column}} {
			var want []rowstore.Version
			var puts []rowstore.Edit
			for _, f := range families {
				v := ver(f, a[2], 5, "v")
				want, puts = append(want, v), append(puts, write(v))
			}
			out := h.apply(rowstore.Mutation{Table: a[0], Row: a[1], Edits: puts})
			require.True(t, out[0].Applied)
			require.Equal(t, versions(want...), h.readOf(a[0], a[1], rowstore.Selector{Family: rowstore.Lock, Column: a[2], To: 5},
				rowstore.Selector{Family: rowstore.Write, Column: a[2], To: 5}, rowstore.Selector{Family: rowstore.Data, Column: a[2], To: 5},
				rowstore.Selector{Family: rowstore.Mark, Column: a[2], To: 5}, rowstore.Selector{Family: rowstore.Notify, Column: a[2], To: 5}))
			if len(a[1]) > 1 {
				require.Empty(t, h.readOf(a[0], a[1][1:], everything()...), "one byte less is another name")
			}
			keys := h.keys(rowstore.ScanRange{Table: a[0], From: a[1], Limit: 1, Selectors: []rowstore.Selector{pick(rowstore.Notify)}})
			require.Equal(t, []string{a[1]}, keys)
		}
		require.Contains(t, h.tables(), table)
	}
}

func namesOverTheLimit(t testing.TB, e *env) {
	h, l := limited(t, e)
	x := func(n int) string { return strings.Repeat("x", n) }
	w := func(column, value string) []rowstore.Edit {
		return []rowstore.Edit{write(ver(rowstore.Write, column, 5, value))}
	}
	if l.Table > 0 {
		h.refuse("table", rowstore.Mutation{Table: x(l.Table + 1), Row: "r", Edits: w("c", "v")})
	}
	if l.Row > 0 {
		h.refuse("row", mut(x(l.Row+1), nil, w("c", "v")...))
	}
	if l.Column > 0 {
		h.refuse("column", mut("r", nil, w(x(l.Column+1), "v")...))
		for _, f := range families {
			h.refuse("column", mut("r", nil, write(ver(f, x(l.Column+1), 5, "v"))))
		}
	}
}

func valuesOverTheLimit(t testing.TB, e *env) {
	h, l := limited(t, e)
	const affordable = 32 << 20
	if l.Value == 0 || l.Value > affordable {
		t.Skipf("values up to the limit of %d bytes are not tried: more than %d", l.Value, affordable)
	}
	for _, f := range []rowstore.Family{rowstore.Data, rowstore.Write, rowstore.Lock} {
		h.refuse("value", mut("r", nil, rowstore.Put(f, "c", 5, make([]byte, l.Value+1))))
	}
	h.put("r", rowstore.Put(rowstore.Data, "c", 5, make([]byte, l.Value)))
	require.Len(t, h.all("r")[0].Value, l.Value, "a value of exactly the limit")
}

// limited skips the test if the store has no limits.
func limited(t testing.TB, e *env) (*harness, rowstore.Limits) {
	h := e.harness(t)
	l := ability[rowstore.Limiter](t, h.s, "Limiter").Limits()
	if l == (rowstore.Limits{}) {
		t.Skip("the store reports no limits")
	}
	return h, l
}

// refuse asserts that a mutation is too large, alone and beside another one, and that nothing is written then.
func (h *harness) refuse(what string, m rowstore.Mutation) {
	h.Helper()
	good := mut("good", nil, write(ver(rowstore.Write, "c", 5, "x")))
	for _, batch := range [][]rowstore.Mutation{{m}, {good, m}, {m, good}} {
		_, err := h.s.Apply(h.ctx, batch, rowstore.ApplyOptions{})
		require.ErrorIs(h, err, rowstore.ErrTooLarge, "a mutation with a %s over the limit", what)
		require.NotErrorIs(h, err, rowstore.ErrAmbiguous)
	}
	require.Empty(h, h.all("good"), "nothing is written then")
}

func scanIsInByteOrder(t testing.TB, e *env) {
	h := e.harness(t)
	rng := seeded(t)
	set := map[string]bool{}
	for _, n := range h.oddNames() {
		set[n] = true
	}
	alphabet := []byte{0, 1, 2, 0x7f, 0x80, 0xfe, 0xff, 'a', 'A', '/'}
	for len(set) < e.n(600, 300) {
		b := make([]byte, 1+rng.IntN(6))
		for i := range b {
			b[i] = alphabet[rng.IntN(len(alphabet))]
		}
		set[string(b)] = true
	}
	var muts []rowstore.Mutation
	keys := []string{}
	for k := range set {
		keys = append(keys, k)
		muts = append(muts, mut(k, nil, write(ver(rowstore.Write, "c", 5, k)), write(ver(rowstore.Notify, "c", 5, k))))
	}
	for chunk := range slices.Chunk(muts, 100) {
		h.apply(chunk...)
	}
	slices.Sort(keys)
	for _, f := range []rowstore.Family{rowstore.Write, rowstore.Notify} {
		p := []rowstore.Selector{pick(f)}
		require.Equal(t, keys, h.keys(rowstore.ScanRange{Selectors: p}))
		for range e.n(40, 10) {
			i, j := rng.IntN(len(keys)), rng.IntN(len(keys))
			want := []string{}
			if i < j {
				want = slices.Clone(keys[i:j])
			}
			require.Equal(t, want, h.keys(rowstore.ScanRange{From: keys[i], To: keys[j], Selectors: p}))
			slices.Reverse(want)
			require.Equal(t, want, h.keys(rowstore.ScanRange{From: keys[i], To: keys[j], Selectors: p, Reverse: true}))
		}
	}
}

func largeValues(t testing.TB, e *env) {
	h := e.harness(t)
	size := h.mostValue(1 << 20)
	rng := seeded(t)
	random := func() []byte {
		b := make([]byte, size)
		for i := range b {
			b[i] = byte(rng.Uint32()) //nolint:gosec // one byte of it
		}
		return b
	}
	values := [][]byte{random(), bytes.Repeat([]byte{0}, size), random()}
	for i, v := range values {
		h.put("row", rowstore.Put(rowstore.Data, "c", rowstore.Timestamp(i+1), v)) //nolint:gosec // small
	}
	got := h.read("row", pick(rowstore.Data))
	require.Len(t, got, len(values))
	for i, v := range got {
		require.True(t, bytes.Equal(values[len(values)-1-i], v.Value), "value %d", i)
	}
	// In the families where short values are usual, too.
	for _, f := range []rowstore.Family{rowstore.Lock, rowstore.Write} {
		h.put("row", rowstore.Put(f, "c", 9, values[0]))
	}
	out := h.apply(mut("row", when(rowstore.Absent(rowstore.Lock, "c", 0))))
	require.True(t, bytes.Equal(values[0], out[0].Broke.Value))
	rows := h.scan(rowstore.ScanRange{Selectors: []rowstore.Selector{pick(rowstore.Write)}})
	require.True(t, bytes.Equal(values[0], rows[0].Versions[0].Value))
}

func valuesOfManySizes(t testing.TB, e *env) {
	h := e.harness(t)
	var puts []rowstore.Edit
	var want []rowstore.Version
	for i, size := range []int{
		0, 1, 2, 30, 31, 32, 63, 64, 65, 126, 127, 128, 129, 254, 255, 256, 257, 511, 512, 1023, 1024, 1999, 2000, 2047, 2048, 4095, 4096, 8191, 8192,
		16383, 16384, 65535, 65536, 65537,
	} {
		if size > h.mostValue(size) {
			break // they rise
		}
		for _, f := range []rowstore.Family{rowstore.Lock, rowstore.Write, rowstore.Data, rowstore.Notify} {
			v := ver(f, fmt.Sprintf("c%d", i), 5, strings.Repeat("v", size))
			puts, want = append(puts, write(v)), append(want, v)
		}
	}
	h.put("row", puts...)
	require.Equal(t, versions(want...), h.all("row"))
}

func manyColumns(t testing.TB, e *env) {
	h := e.harness(t)
	n := 2000
	if limit := limitsOf(h.s).Operations; limit > 0 {
		n = min(n, limit-1)
	}
	locked := n / 3
	var puts []rowstore.Edit
	var want []rowstore.Version
	for i := range n {
		v := ver(rowstore.Write, key(i), 5, fmt.Sprint(i))
		puts, want = append(puts, write(v)), append(want, v)
	}
	h.put("row", puts...)
	h.put("row", write(ver(rowstore.Lock, key(locked), 6, "lock")))
	require.Equal(t, versions(want...), h.read("row", rowstore.Selector{Family: rowstore.Write, To: oracle.Max, Limit: 1}))
	require.Equal(t, versions(want...), h.scan(rowstore.ScanRange{Selectors: []rowstore.Selector{pick(rowstore.Write)}})[0].Versions)
	require.Equal(t, versions(want[locked]), h.read("row", rowstore.Selector{Family: rowstore.Write, Column: key(locked), To: oracle.Max}))

	// There is one selector and one condition for each column.
	var picks []rowstore.Selector
	var conds []rowstore.Condition
	for i := range n {
		picks = append(picks, rowstore.Selector{Family: rowstore.Write, Column: key(i), To: oracle.Max, Limit: 1})
		conds = append(conds, rowstore.Absent(rowstore.Write, key(i), 6))
	}
	require.Equal(t, versions(want...), h.read("row", picks...))
	h.holds("row", conds...)
	h.breaks("row", n, ver(rowstore.Lock, key(locked), 6, "lock"), append(conds, rowstore.Absent(rowstore.Lock, key(locked), 0))...)
	conds[n/2] = rowstore.Absent(rowstore.Write, key(n/2), 5)
	h.breaks("row", n/2, want[n/2], conds...)

	var deletes []rowstore.Edit
	for i := range n {
		if i != 42 {
			deletes = append(deletes, rowstore.Delete(rowstore.Write, key(i), 5))
		}
	}
	h.put("row", append(deletes, rowstore.Delete(rowstore.Lock, key(locked), 6))...)
	require.Equal(t, versions(want[42]), h.all("row"))
}

func manyVersions(t testing.TB, e *env) {
	h := e.harness(t)
	const n = 2000
	rng := seeded(t)
	order := rng.Perm(n)
	var want []rowstore.Version
	for i := range n {
		want = append(want, ver(rowstore.Write, "c", rowstore.Timestamp(i+1), fmt.Sprint(i+1))) //nolint:gosec // small
	}
	for chunk := range slices.Chunk(order, 200) {
		var puts []rowstore.Edit
		for _, i := range chunk {
			puts = append(puts, write(want[i]))
		}
		h.put("row", puts...)
	}
	at := func(from, to int) []rowstore.Version { return versions(want[from-1 : to]...) }
	require.Equal(t, at(1, n), h.all("row"))
	for range 50 {
		to := 1 + rng.IntN(n)
		require.Equal(t, at(to, to), h.read("row", rowstore.Selector{Family: rowstore.Write, Column: "c", To: rowstore.Timestamp(to), Limit: 1})) //nolint:gosec // small
		from := 1 + rng.IntN(to)
		require.Equal(t, at(from, to), h.read("row", rowstore.Selector{Family: rowstore.Write, From: rowstore.Timestamp(from), To: rowstore.Timestamp(to)})) //nolint:gosec // small
	}
	h.breaks("row", 0, want[n-1], rowstore.Absent(rowstore.Write, "c", 7))
	h.holds("row", rowstore.Absent(rowstore.Write, "c", n+1))
	h.put("row", rowstore.DeleteRange(rowstore.Write, "c", 0, n/2))
	require.Equal(t, at(n/2+1, n), h.all("row"))
	h.put("row", rowstore.DeleteRange(rowstore.Write, "c", n/2+2, oracle.Max))
	require.Equal(t, at(n/2+1, n/2+1), h.all("row"))
}

func bigBatches(t testing.TB, e *env) {
	h := e.harness(t)
	const n = 2000
	var muts []rowstore.Mutation
	var reads []rowstore.RowRead
	for i := range n {
		muts = append(muts, mut(key(i), when(rowstore.Absent(rowstore.Write, "c", 5), rowstore.Absent(rowstore.Lock, "c", 0)),
			write(ver(rowstore.Lock, "c", 5, fmt.Sprint(i))), write(ver(rowstore.Data, "c", 5, strings.Repeat("d", 300)))))
		reads = append(reads, rowstore.RowRead{Table: "t", Row: key(i), Selectors: []rowstore.Selector{pick(rowstore.Lock)}})
	}
	for _, o := range h.apply(muts...) {
		require.True(t, o.Applied)
	}
	for i, o := range h.apply(muts...) {
		require.False(t, o.Applied)
		require.Equal(t, 1, o.Failed)
		require.Equal(t, fmt.Sprint(i), string(o.Broke.Value))
	}
	rows, err := h.s.Read(h.ctx, reads)
	require.NoError(t, err)
	require.Len(t, rows, n)
	for i, r := range rows {
		require.NoError(t, r.Err)
		require.Equal(t, key(i), r.Row)
		require.Equal(t, versions(ver(rowstore.Lock, "c", 5, fmt.Sprint(i))), norm(r.Versions))
	}
}
