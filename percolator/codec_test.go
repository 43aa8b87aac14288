package percolator

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/percolate-go/percolate/percolator/oracle"
)

var (
	anyName  = rapid.Custom(func(t *rapid.T) string { return string(rapid.SliceOfN(rapid.Byte(), 1, 20).Draw(t, "bytes")) })
	anyTS    = rapid.Custom(func(t *rapid.T) Timestamp { return Timestamp(rapid.Uint64Max(uint64(oracle.Max)).Draw(t, "ts")) })
	anyBytes = func(most int) *rapid.Generator[[]byte] { return rapid.SliceOfN(rapid.Byte(), 0, most) }
)

func drawLock(t *rapid.T) lockValue {
	l := lockValue{
		kind:    kind(rapid.IntRange(1, 3).Draw(t, "kind")),
		notify:  rapid.Bool().Draw(t, "notify"),
		expiry:  anyTS.Draw(t, "expiry"),
		session: string(anyBytes(30).Draw(t, "session")),
		primary: Cell{anyName.Draw(t, "table"), anyName.Draw(t, "row"), anyName.Draw(t, "column")},
		value:   []byte{},
	}
	if l.kind == kindPut {
		if l.long = rapid.Bool().Draw(t, "long"); !l.long {
			l.value = anyBytes(shortValue).Draw(t, "value")
		}
	}
	return l
}

func drawWrite(t *rapid.T) writeValue {
	w := writeValue{kind: kind(rapid.IntRange(1, 2).Draw(t, "kind")), start: anyTS.Draw(t, "start"), value: []byte{}}
	if w.kind == kindPut {
		if w.long = rapid.Bool().Draw(t, "long"); !w.long {
			w.value = anyBytes(shortValue).Draw(t, "value")
		}
	}
	return w
}

func TestCodecsRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := drawLock(t)
		gotL, err := decodeLock(l.encode())
		require.NoError(t, err)
		require.Equal(t, l, gotL)

		w := drawWrite(t)
		gotW, err := decodeWrite(w.encode())
		require.NoError(t, err)
		require.Equal(t, w, gotW)

		ts := anyTS.Draw(t, "ack")
		gotA, err := decodeAck(encodeAck(ts))
		require.NoError(t, err)
		require.Equal(t, ts, gotA)

		f := failureRecord{anyTS.Draw(t, "change"), rapid.IntRange(0, math.MaxInt32).Draw(t, "attempts"), rapid.Bool().Draw(t, "parked"), anyTS.Draw(t, "until")}
		gotF, err := decodeFailure(f.encode())
		require.NoError(t, err)
		require.Equal(t, f, gotF)

		s := scanLease{string(anyBytes(30).Draw(t, "from")), string(anyBytes(30).Draw(t, "to"))}
		gotS, err := decodeScanLease(s.encode())
		require.NoError(t, err)
		require.Equal(t, s, gotS)

		c := Cell{anyName.Draw(t, "t"), anyName.Draw(t, "r"), anyName.Draw(t, "c")}
		cause := string(anyBytes(maxErrorText*2).Draw(t, "error"))
		name := anyName.Draw(t, "observer")
		b, err := encodeParked(name, c, f, errors.New(cause), ts)
		require.NoError(t, err)
		p, err := decodeParked(b)
		require.NoError(t, err)
		require.Equal(t, c, Cell{string(p.Table), string(p.Row), string(p.Column)})
		require.Equal(t, name, string(p.Observer))
		require.Equal(t, []any{f.change, f.attempts, ts}, []any{p.Change, p.Attempts, p.At})
		require.LessOrEqual(t, len(p.Error), maxErrorText)
		require.True(t, utf8.ValidString(p.Error))
		if len(cause) <= maxErrorText {
			require.Equal(t, strings.ToValidUTF8(cause, ""), p.Error)
		}
	})
	for _, b := range [][]byte{strongValue, weakValue} {
		k, err := decodeNotify(b)
		require.NoError(t, err)
		require.Equal(t, notifyKind(b[1]), k)
	}
}

func drawCatalog(t *rapid.T) catalog {
	settings := func() storedSettings {
		age := rapid.Int64Range(1, 1<<40).Draw(t, "age")
		lease := rapid.Int64Range(1, 1<<40).Draw(t, "lease")
		return storedSettings{age, age + lease + rapid.Int64Range(1, 1<<40).Draw(t, "more"), lease}
	}
	c := catalog{Oracle: rapid.String().Draw(t, "oracle"), Current: settings()}
	if rapid.Bool().Draw(t, "next") {
		next := settings()
		c.Next, c.NextFrom = &next, anyTS.Draw(t, "from")
		if rapid.Bool().Draw(t, "announced") {
			c.NextFrom = 0
		}
	}
	for range rapid.IntRange(0, 3).Draw(t, "past") {
		c.Past = append(c.Past, pastAge{rapid.Int64Range(1, c.Current.MaxTxnAgeMs).Draw(t, "past age"), anyTS.Draw(t, "until")})
	}
	for range rapid.IntRange(0, 3).Draw(t, "observers") {
		c.Observers = append(c.Observers, observerRecord{
			Name: []byte(anyName.Draw(t, "name")), Table: []byte(anyName.Draw(t, "table")), Column: []byte(anyName.Draw(t, "column")),
			Swept: anyTS.Draw(t, "swept"),
		})
	}
	return c
}

func TestCatalogRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := drawCatalog(t)
		b, err := c.encode()
		require.NoError(t, err)
		got, err := decodeCatalog(b)
		require.NoError(t, err)
		require.Equal(t, c, got)
		ts := anyTS.Draw(t, "at")
		s := got.at(ts)
		age, lease := got.outlasting(ts)
		require.LessOrEqual(t, s.MaxTxnAge, age)
		require.LessOrEqual(t, s.CatalogLease, lease)
		require.GreaterOrEqual(t, s.CatalogLease, got.leaseAt(ts))
		require.LessOrEqual(t, got.lastCommit(ts).Sub(ts), age)
		want := c.Current
		if c.Next != nil && c.NextFrom > 0 && ts >= c.NextFrom {
			want = *c.Next
		}
		require.Equal(t, want.settings(), s)
	})
}

func TestDecodersRefuseGarbage(t *testing.T) {
	t.Parallel()
	l := lockValue{kind: kindPut, primary: Cell{"t", "r", "c"}, value: []byte("v"), session: "s", expiry: 1}
	w := writeValue{kind: kindPut, start: 1, value: []byte("v")}
	long := func(b []byte) []byte { return append(b, make([]byte, 300)...) }
	locks := map[string][]byte{
		"nothing": nil, "one byte": {1}, "version": append([]byte{2}, l.encode()[1:]...), "cut": l.encode()[:8],
		"no kind": append([]byte{1, 0}, l.encode()[2:]...), "unknown flag": append([]byte{1, 0x81}, l.encode()[2:]...),
		"too long a value": long(l.encode()), "long and a value": append([]byte{1, byte(kindPut) | flagLong}, l.encode()[2:]...),
		"a delete with a value": append([]byte{1, byte(kindDelete)}, l.encode()[2:]...),
		"no primary":            (&lockValue{kind: kindPut, primary: Cell{"t", "", "c"}}).encode(),
		"a huge length":         {1, 1, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
	}
	for name, b := range locks {
		_, err := decodeLock(b)
		require.ErrorIs(t, err, ErrCorrupt, name)
	}
	for name, b := range map[string][]byte{
		"nothing": nil, "version": append([]byte{9}, w.encode()[1:]...), "cut": w.encode()[:9], "lock only": append([]byte{1, 3}, w.encode()[2:]...),
		"notify": append([]byte{1, 1 | flagNotify}, w.encode()[2:]...), "too long a value": long(w.encode()),
		"a delete with a value": append([]byte{1, 2}, w.encode()[2:]...), "a long delete": append([]byte{1, 2 | flagLong}, w.encode()[2:10]...),
	} {
		_, err := decodeWrite(b)
		require.ErrorIs(t, err, ErrCorrupt, name)
	}
	for name, text := range map[string]string{
		"nothing": "", "version": "\x02{}", "no JSON": "\x01{", "no settings": "\x01{}",
		"negative":        "\x01" + `{"current":{"max_txn_age_ms":-1,"retention_ms":5,"catalog_lease_ms":1}}`,
		"overflow":        "\x01" + `{"current":{"max_txn_age_ms":9000000000000000000,"retention_ms":9000000000000000001,"catalog_lease_ms":1}}`,
		"unsafe settings": "\x01" + `{"current":{"max_txn_age_ms":5,"retention_ms":6,"catalog_lease_ms":1}}`,
		"nameless":        "\x01" + `{"current":{"max_txn_age_ms":5,"retention_ms":60,"catalog_lease_ms":1},"observers":[{"table":"dA==","column":"dA=="}]}`,
		"unsafe next":     "\x01" + `{"current":{"max_txn_age_ms":5,"retention_ms":60,"catalog_lease_ms":1},"next":{}}`,
	} {
		_, err := decodeCatalog([]byte(text))
		require.ErrorIs(t, err, ErrCorrupt, name)
	}
	for _, b := range [][]byte{nil, {1}, {1, 2, 0, 0, 0}, {2, 0, 0, 0, 0}, {1, 0, 0, 0}, {1, 0, 0, 0, 0, 0}, {1, 0, 0x80}} {
		_, err := decodeFailure(b)
		require.ErrorIs(t, err, ErrCorrupt)
	}
	for _, b := range [][]byte{nil, {1}, {1, 0}, {1, 3}, {2, 1}, {1, 1, 1}} {
		_, err := decodeNotify(b)
		require.ErrorIs(t, err, ErrCorrupt)
	}
	for _, b := range [][]byte{nil, {1}, {2, 0, 0, 0, 0, 0, 0, 0, 0}, make([]byte, 10)} {
		_, err := decodeAck(b)
		require.ErrorIs(t, err, ErrCorrupt)
	}
	for _, b := range [][]byte{{1}, {2, 0, 0, 0, 0, 0, 0, 0, 1}, {1, 0, 0, 0, 0, 0, 0, 0, 0}, make([]byte, 10)} {
		_, err := decodeMark(b)
		require.ErrorIs(t, err, ErrCorrupt)
	}
	for _, b := range [][]byte{nil, {2}, {1, 5}, {1, 0, 0, 0}} {
		_, err := decodeScanLease(b)
		require.ErrorIs(t, err, ErrCorrupt)
	}
	for _, b := range [][]byte{nil, {2, '{', '}'}, {1, '{'}, {1}} {
		_, err := decodeParked(b)
		require.ErrorIs(t, err, ErrCorrupt)
	}
}

// fuzz checks a decoder: an error matches ErrCorrupt, and what it takes, it takes
// again after encoding, as the same.
func fuzz[V any](f *testing.F, seeds [][]byte, decode func([]byte) (V, error), encode func(V) []byte) {
	for _, s := range seeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		in := bytes.Clone(b)
		v, err := decode(b)
		require.Equal(t, in, bytes.Clone(b), "the decoder changed its input")
		if err != nil {
			require.ErrorIs(t, err, ErrCorrupt)
			return
		}
		again, err := decode(encode(v))
		require.NoError(t, err)
		require.Equal(t, v, again)
	})
}

func FuzzDecodeLock(f *testing.F) {
	l := lockValue{kind: kindPut, notify: true, expiry: 7, session: "s", primary: Cell{"t", "r", "c"}, value: []byte("v")}
	d := lockValue{kind: kindPut, long: true, primary: Cell{"t", "r", "c"}}
	fuzz(f, [][]byte{l.encode(), d.encode(), nil, {1, 1}}, decodeLock, func(l lockValue) []byte { return l.encode() })
}

func FuzzDecodeWrite(f *testing.F) {
	w, d := writeValue{kind: kindPut, start: 5, value: []byte("v")}, writeValue{kind: kindDelete, start: 6}
	fuzz(f, [][]byte{w.encode(), d.encode(), nil}, decodeWrite, func(w writeValue) []byte { return w.encode() })
}

func FuzzDecodeNotify(f *testing.F) {
	fuzz(f, [][]byte{strongValue, weakValue, nil}, decodeNotify, func(k notifyKind) []byte { return []byte{formatVersion, byte(k)} })
}

func FuzzDecodeAck(f *testing.F) {
	fuzz(f, [][]byte{encodeAck(1), nil}, decodeAck, encodeAck)
}

func FuzzDecodeMark(f *testing.F) {
	fuzz(f, [][]byte{encodeMark(1), nil}, decodeMark, func(start Timestamp) []byte {
		if start == 0 {
			return nil
		}
		return encodeMark(start)
	})
}

func FuzzDecodeFailure(f *testing.F) {
	r := failureRecord{change: 5, attempts: 3, parked: true, notBefore: 9}
	fuzz(f, [][]byte{r.encode(), nil}, decodeFailure, func(r failureRecord) []byte { return r.encode() })
}

func FuzzDecodeScanLease(f *testing.F) {
	fuzz(f, [][]byte{scanLease{"a", "b"}.encode(), nil}, decodeScanLease, scanLease.encode)
}

func FuzzDecodeCatalog(f *testing.F) {
	s := Settings{MaxTxnAge: time.Second, Retention: time.Hour, CatalogLease: time.Second}
	next := storeSettings(s)
	c := catalog{Current: storeSettings(s), Next: &next, NextFrom: 8, Observers: []observerRecord{{Name: []byte("n"), Table: []byte("t"), Column: []byte{0}}}}
	b, err := c.encode()
	require.NoError(f, err)
	fuzz(f, [][]byte{b, nil, []byte("\x01{}")}, decodeCatalog, func(c catalog) []byte {
		b, err := c.encode()
		if err != nil {
			panic(err)
		}
		return b
	})
}

func FuzzDecodeParked(f *testing.F) {
	b, err := encodeParked("o", Cell{"t", "r", "c"}, failureRecord{change: 1, attempts: 2}, errors.New("no"), 3)
	require.NoError(f, err)
	fuzz(f, [][]byte{b, nil, []byte("\x01{}")}, decodeParked, func(p parkedRecord) []byte {
		// The encoder takes the parts of a record.
		b, err := encodeParked(string(p.Observer), Cell{string(p.Table), string(p.Row), string(p.Column)},
			failureRecord{change: p.Change, attempts: p.Attempts}, errors.New(p.Error), p.At)
		if err != nil {
			panic(err)
		}
		if len(p.Error) > maxErrorText || p.Observer == nil || p.Table == nil || p.Row == nil || p.Column == nil {
			// Not what the encoder makes: cut, or empty in place of absent.
			return mustMarshalParked(p)
		}
		return b
	})
}

func TestEscape(t *testing.T) {
	t.Parallel()
	// Few letters, so that names which differ in little meet often.
	name := rapid.Custom(func(t *rapid.T) string {
		return string(rapid.SliceOfN(rapid.SampledFrom([]byte{0, 0, 1, 'a', 'p', 0xff}), 1, 8).Draw(t, "bytes"))
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := name.Draw(t, "a"), name.Draw(t, "b")
		stored := escape(a)
		require.False(t, reserved(stored), "a user's name is stored under a reserved one")
		back, ok := unescape(stored)
		require.True(t, ok)
		require.Equal(t, a, back)
		require.Equal(t, a == b, escape(a) == escape(b))
		// Any stored name is either reserved or that of one user's name.
		if user, ok := unescape(b); ok {
			require.Equal(t, b, escape(user))
			require.False(t, reserved(b))
		} else {
			require.True(t, reserved(b))
		}
		c := Cell{a, b, name.Draw(t, "column")}
		require.Equal(t, c, c.stored().public())
	})
	for _, own := range []string{tableCatalog, tableSessions, tableScanLeases, tableParked, ackColumn("o", "c"), parkedColumn("o", "c")} {
		require.True(t, reserved(own))
	}
	for _, tables := range []string{tableCatalog, tableSessions, tableScanLeases, tableParked} {
		require.NotEqual(t, tables, escape(tables), "a user's table may have any name")
	}
}

func TestOwnColumns(t *testing.T) {
	t.Parallel()
	name := rapid.Custom(func(t *rapid.T) string {
		return string(rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 2, 'a', 'p'}), 1, 6).Draw(t, "bytes"))
	})
	rapid.Check(t, func(t *rapid.T) {
		o1, o2 := name.Draw(t, "o1"), name.Draw(t, "o2")
		c1, c2 := escape(name.Draw(t, "c1")), escape(name.Draw(t, "c2"))
		require.Equal(t, o1 == o2 && c1 == c2, ackColumn(o1, c1) == ackColumn(o2, c2))
		require.Equal(t, o1 == o2 && c1 == c2, parkedColumn(o1, c1) == parkedColumn(o2, c2))
		require.NotEqual(t, ackColumn(o1, c1), parkedColumn(o2, c2))
		require.Equal(t, o1 == o2 && c1 == c2, parkedIndex(o1, Cell{"t", "r", c1}) == parkedIndex(o2, Cell{"t", "r", c2}))
		for prefix, column := range map[string]string{prefixAck: ackColumn(o1, c1), prefixParked: parkedColumn(o1, c1)} {
			p, o, c, ok := splitOwnColumn(column)
			require.True(t, ok)
			require.Equal(t, []string{prefix, o1, c1}, []string{p, o, c})
		}
		_, _, _, ok := splitOwnColumn(c1)
		require.False(t, ok, "a user's column is none of the library's")
	})
	require.LessOrEqual(t, len(ackColumn(strings.Repeat("o", maxObserverName), escape("\x00c"))), ownColumnSpace+len("\x00c"))
}

func TestCellString(t *testing.T) {
	t.Parallel()
	require.Equal(t, "t/r/c", Cell{"t", "r", "c"}.String())
	require.Equal(t, `"a/b"/"\x00"/"é"`, Cell{"a/b", "\x00", "é"}.String())
	name := rapid.Custom(func(t *rapid.T) string {
		return string(rapid.SliceOfN(rapid.SampledFrom([]byte{'a', '/', '"', '\\', 0, 0xff}), 1, 4).Draw(t, "bytes"))
	})
	rapid.Check(t, func(t *rapid.T) {
		a := Cell{name.Draw(t, "t1"), name.Draw(t, "r1"), name.Draw(t, "c1")}
		b := Cell{name.Draw(t, "t2"), name.Draw(t, "r2"), name.Draw(t, "c2")}
		require.Equal(t, a == b, a.String() == b.String())
	})
}

func mustMarshalParked(p parkedRecord) []byte {
	b, err := json.Marshal(p)
	if err != nil {
		panic(err)
	}
	return append([]byte{formatVersion}, b...)
}
