package keys

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/percolate-go/percolate/percolator"
)

// element is one of a tuple, with its place in the order of the kinds.
type element struct {
	kind  int
	bytes string
	int   int64
	time  time.Time
}

func (e element) append(k Key) Key {
	switch e.kind {
	case 0:
		return k.Bytes([]byte(e.bytes))
	case 1:
		return k.Text(e.bytes)
	case 2:
		return k.Int(e.int)
	}
	return k.Time(e.time)
}

func (e element) compare(o element) int {
	if c := cmp.Compare(e.kind, o.kind); c != 0 {
		return c
	}
	switch e.kind {
	case 0, 1:
		return strings.Compare(e.bytes, o.bytes)
	case 2:
		return cmp.Compare(e.int, o.int)
	}
	return e.time.Compare(o.time)
}

func (e element) read(r *Reader) element {
	got := element{kind: e.kind}
	switch e.kind {
	case 0:
		got.bytes = string(r.Bytes())
	case 1:
		got.bytes = r.Text()
	case 2:
		got.int = r.Int()
	default:
		got.time = r.Time()
	}
	return got
}

// elements are mostly close to each other and to the borders, where encodings go wrong.
func elements(t *rapid.T, label string) []element {
	text := rapid.StringOf(rapid.RuneFrom([]rune{0, 1, 'a', 'b', 0xff, 0x10ffff}))
	number := rapid.OneOf(rapid.Int64(), rapid.SampledFrom([]int64{
		math.MinInt64, math.MinInt64 + 1, math.MaxInt64, 0, 1, -1, 255, 256, -255, -256, 1 << 32, -1 << 32, 1<<32 - 1,
	}))
	at := rapid.Custom(func(t *rapid.T) time.Time {
		return time.Unix(rapid.Int64Range(-1<<40, 1<<40).Draw(t, "s"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns")).UTC()
	})
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) element {
		e := element{kind: rapid.IntRange(0, 3).Draw(t, "kind")}
		switch e.kind {
		case 0, 1:
			e.bytes = text.Draw(t, "text")
		case 2:
			e.int = number.Draw(t, "int")
		default:
			e.time = at.Draw(t, "time")
		}
		return e
	}), 0, 4).Draw(t, label)
}

func key(tuple []element) (k Key) {
	for _, e := range tuple {
		k = e.append(k)
	}
	return k
}

func TestOrderIsThatOfTuples(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a := elements(t, "a")
		b := elements(t, "b")
		if rapid.Bool().Draw(t, "same beginning") {
			b = append(slices.Clone(a[:rapid.IntRange(0, len(a)).Draw(t, "common")]), b...)
		}
		want := slices.CompareFunc(a, b, element.compare)
		if got := cmp.Compare(key(a), key(b)); got != want {
			t.Fatalf("%s and %s compare as %d, want %d", Describe(string(key(a))), Describe(string(key(b))), got, want)
		}
	})
}

func TestReadGivesWhatWasAppended(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tuple := elements(t, "tuple")
		k := key(tuple)
		if rapid.Bool().Draw(t, "spread") {
			s, err := NewSpread(rapid.IntRange(1, 256).Draw(t, "buckets"))
			if err != nil {
				t.Fatal(err)
			}
			k = s.Key(k)
		}
		r := Read(string(k))
		for i, e := range tuple {
			if !r.More() {
				t.Fatalf("no element %d", i)
			}
			if got := e.read(r); got.compare(e) != 0 || r.Err() != nil {
				t.Fatalf("element %d is %v, want %v: %v", i, got, e, r.Err())
			}
		}
		if err := r.End(); err != nil || r.More() {
			t.Fatalf("at the end: %v", err)
		}
	})
}

func TestRangeHoldsWhatBeginsWithTheElements(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		prefix, other := elements(t, "prefix"), elements(t, "other")
		if n := len(prefix); n > 0 && rapid.Bool().Draw(t, "nearly the same") {
			other = append(slices.Clone(prefix[:n-1]), other...)
			other = append(other, element{kind: prefix[n-1].kind, bytes: prefix[n-1].bytes + "\x00", int: prefix[n-1].int + 1, time: prefix[n-1].time.Add(1)})
			other[n-1], other[len(other)-1] = other[len(other)-1], other[n-1]
		}
		within := slices.Concat(prefix, other)
		r := key(prefix).Range("t")
		contains := func(k Key) bool { return string(k) >= r.From && (r.To == "" || string(k) < r.To) }
		if !contains(key(within)) {
			t.Fatalf("%q is not in %q to %q", key(within), r.From, r.To)
		}
		begins := len(other) >= len(prefix) && slices.CompareFunc(other[:len(prefix)], prefix, element.compare) == 0
		if contains(key(other)) != begins {
			t.Fatalf("%q in %q to %q: %v", key(other), r.From, r.To, !begins)
		}
	})
}

// The encoding is stored, so it may never change.
func TestEncodingIsFixed(t *testing.T) {
	t.Parallel()
	three, err := NewSpread(3)
	require.NoError(t, err)
	for want, k := range map[string]Key{
		"":                                     "",
		"\x02\x00":                             Key("").Text(""),
		"\x02a\x00\xffb\x00":                   Key("").Text("a\x00b"),
		"\x01\x00\xff\xff\x00":                 Key("").Bytes([]byte{0, 255}),
		"\x14":                                 Key("").Int(0),
		"\x15\x01":                             Key("").Int(1),
		"\x16\x01\x00":                         Key("").Uint(256),
		"\x13\xfe":                             Key("").Int(-1),
		"\x12\xfe\xff":                         Key("").Int(-256),
		"\x0c\x7f\xff\xff\xff\xff\xff\xff\xff": Key("").Int(math.MinInt64),
		"\x1c\xff\xff\xff\xff\xff\xff\xff\xff": Key("").Uint(math.MaxUint64),
		"\x40\x80\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x02": Key("").Time(time.Unix(1, 2)),
		"\x40\x7f\xff\xff\xff\xff\xff\xff\xff\x3b\x9a\xc9\xff": Key("").Time(time.Unix(0, -1)),
		"\x41\x00\x02ann\x00\x15\x01":                          Spread{}.Key(Key("").Text("ann")).Int(1),
		"\x41\x01\x02ann\x00":                                  three.Key(Key("").Text("ann")),
		"\x41\x00\x02bob\x00":                                  three.Key(Key("").Text("bob")),
	} {
		require.Equal(t, want, string(k), Describe(string(k)))
	}
}

func TestSpread(t *testing.T) {
	t.Parallel()
	for _, n := range []int{-1, 0, 257, math.MaxInt} {
		_, err := NewSpread(n)
		require.ErrorIs(t, err, percolator.ErrInvalid)
	}
	s, err := NewSpread(16)
	require.NoError(t, err)
	ranges := s.Ranges("t", Key("").Text("log"))
	require.Len(t, ranges, s.Buckets())
	filled := map[int]int{}
	for i := range 1000 {
		row := string(s.Key(Key("").Text("log").Int(int64(i))))
		in := slices.IndexFunc(ranges, func(r percolator.Range) bool { return row >= r.From && row < r.To })
		require.GreaterOrEqual(t, in, 0)
		filled[in]++
	}
	require.Len(t, filled, 16)
	for bucket, rows := range filled {
		require.Greater(t, rows, 30, "bucket %d", bucket)
	}
	require.Equal(t, 1, Spread{}.Buckets())
}

func TestReadOfSomethingElse(t *testing.T) {
	t.Parallel()
	read := map[string]func(r *Reader){
		"bytes": func(r *Reader) { r.Bytes() }, "text": func(r *Reader) { r.Text() }, "int": func(r *Reader) { r.Int() },
		"uint": func(r *Reader) { r.Uint() }, "time": func(r *Reader) { r.Time() },
	}
	for kind, rows := range map[string][]string{
		"bytes": {"", "\x01abc", "\x01a\x00\xff", "\x02a\x00", "plain"},
		"text":  {"", "\x02abc", "\x01a\x00", "\x14", "\xff"},
		"int":   {"", "\x15", "\x16\x00\x01", "\x0c\x00\x00\x00\x00\x00\x00\x00\x00", "\x1d123456789", string(Key("").Uint(math.MaxUint64))},
		"uint":  {"", "\x13\xfe", "\x13"},
		"time":  {"", "\x40short", "\x40\x80\x00\x00\x00\x00\x00\x00\x01\xff\xff\xff\xff", "\x41\x01"},
	} {
		for _, row := range rows {
			r := Read(row)
			read[kind](r)
			require.ErrorIs(t, r.Err(), ErrKey, "%s of %q", kind, row)
			first := r.Err()
			require.False(t, r.More())
			r.Text()
			require.Equal(t, first, r.End(), "the first error stays")
		}
	}
	r := Read(string(Key("").Int(1).Int(2)))
	require.EqualValues(t, 1, r.Int())
	require.ErrorContains(t, r.End(), "at byte 2 has further elements")
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, k := range []Key{
		"", Key("").Text(""), Key("").Text("a\x00b").Bytes(nil).Bytes([]byte{0, 0xff, 0}).Int(-1).Int(math.MinInt64).Uint(math.MaxUint64).Int(0),
		Key("").Time(time.Time{}).Time(time.Now()), Spread{}.Key(Key("").Int(7)), Spread{}.Key(""),
	} {
		require.NoError(t, k.Check(), "%q", k)
	}
	for _, k := range []Key{
		"ann@example.org", "\x00", "\xff", "\x02ann", "\x02a\x00\xff", Key("").Text("a") + "b", "\x15", "\x15\x00", "\x40short", "\x41", Key("").Int(1) + "\x41\x00", Key("").Int(1) + "\xff",
	} {
		require.ErrorIs(t, k.Check(), ErrKey, "%q", k)
	}
}

func FuzzRead(f *testing.F) {
	f.Add("\x02a\x00\xffb\x00\x15\x07")
	f.Fuzz(func(t *testing.T, row string) {
		_ = Describe(row)
		for _, read := range []func(r *Reader) Key{
			func(r *Reader) Key { return Key("").Bytes(r.Bytes()) }, func(r *Reader) Key { return Key("").Text(r.Text()) },
			func(r *Reader) Key { return Key("").Int(r.Int()) }, func(r *Reader) Key { return Key("").Uint(r.Uint()) },
			func(r *Reader) Key { return Key("").Time(r.Time()) },
		} {
			r := &Reader{key: row, left: row}
			if k := read(r); r.Err() == nil && string(k)+r.left != row {
				t.Fatalf("%q was read as %q", row, k)
			}
		}
		tuple := strings.HasPrefix(Describe(row), "(") || strings.Contains(Describe(row), ": (")
		if err := Key(row).Check(); (err == nil) != tuple {
			t.Fatalf("Check of %q, which is %s: %v", row, Describe(row), err)
		}
	})
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	k := Key("").Text("a\"b").Int(-7).Uint(math.MaxUint64).Bytes([]byte{1, 2}).Time(time.Unix(0, 5))
	require.Equal(t, `("a\"b", -7, 18446744073709551615, 0x0102, 1970-01-01T00:00:00.000000005Z)`, Describe(string(k)))
	require.Equal(t, `()`, Describe(""))
	require.Equal(t, `0: (7)`, Describe(string(Spread{}.Key(Key("").Int(7)))))
	require.Equal(t, `"plain"`, Describe("plain"))
}
