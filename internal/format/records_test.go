package format

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

var (
	anyName  = rapid.Custom(func(t *rapid.T) string { return string(rapid.SliceOfN(rapid.Byte(), 1, 20).Draw(t, "bytes")) })
	anyTS    = rapid.Custom(func(t *rapid.T) Timestamp { return Timestamp(rapid.Uint64Max(uint64(oracle.Max)).Draw(t, "ts")) })
	anyBytes = func(most int) *rapid.Generator[[]byte] { return rapid.SliceOfN(rapid.Byte(), 0, most) }
)

func drawLock(t *rapid.T) Lock {
	l := Lock{
		Kind:    Kind(rapid.IntRange(1, 3).Draw(t, "kind")),
		Notify:  rapid.Bool().Draw(t, "notify"),
		Expiry:  anyTS.Draw(t, "expiry"),
		Session: string(anyBytes(30).Draw(t, "session")),
		Primary: Cell{anyName.Draw(t, "table"), anyName.Draw(t, "row"), anyName.Draw(t, "column")},
		Value:   []byte{},
	}
	if l.Kind == KindPut {
		if l.Long = rapid.Bool().Draw(t, "long"); !l.Long {
			l.Value = anyBytes(ShortValue).Draw(t, "value")
		}
	}
	if l.Notify {
		l.Cascade = drawCascade(t).Encode()
	}
	return l
}

func drawCascade(t *rapid.T) Cascade {
	c := Cascade{Hops: rapid.IntRange(0, MaxHops).Draw(t, "hops")}
	if rapid.Bool().Draw(t, "sampled") {
		c.Span.Trace[rapid.IntRange(0, 15).Draw(t, "byte")] = rapid.ByteMin(1).Draw(t, "trace")
		c.Span.ID[rapid.IntRange(0, 7).Draw(t, "byte")] = rapid.ByteMin(1).Draw(t, "span")
		c.Span.Flags = rapid.Byte().Draw(t, "flags")
	}
	return c
}

func drawWrite(t *rapid.T) Write {
	w := Write{Kind: Kind(rapid.IntRange(1, 2).Draw(t, "kind")), Start: anyTS.Draw(t, "start"), Value: []byte{}}
	if w.Kind == KindPut {
		if w.Long = rapid.Bool().Draw(t, "long"); !w.Long {
			w.Value = anyBytes(ShortValue).Draw(t, "value")
		}
	}
	return w
}

func TestCodecsRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := drawLock(t)
		gotL, err := DecodeLock(l.Encode())
		require.NoError(t, err)
		require.Equal(t, l, gotL)

		w := drawWrite(t)
		gotW, err := DecodeWrite(w.Encode())
		require.NoError(t, err)
		require.Equal(t, w, gotW)

		ts := anyTS.Draw(t, "ack")
		gotA, err := DecodeAck(EncodeAck(ts))
		require.NoError(t, err)
		require.Equal(t, ts, gotA)

		f := Failure{anyTS.Draw(t, "change"), rapid.IntRange(0, math.MaxInt32).Draw(t, "attempts"), rapid.Bool().Draw(t, "parked"), anyTS.Draw(t, "until"), rapid.Bool().Draw(t, "replay")}
		gotF, err := DecodeFailure(f.Encode())
		require.NoError(t, err)
		require.Equal(t, f, gotF)

		m := Member{From: anyTS.Draw(t, "member from"), Until: anyTS.Draw(t, "member until"), Lease: time.Duration(rapid.Int64Range(0, 1e12).Draw(t, "lease")) * time.Microsecond}
		for range rapid.IntRange(0, 3).Draw(t, "works") {
			m.Works = append(m.Works, MemberWork{anyName.Draw(t, "o"), anyName.Draw(t, "t"), anyName.Draw(t, "c"), rapid.IntRange(0, math.MaxInt32).Draw(t, "weight")})
		}
		gotM, err := DecodeMember(m.Encode())
		require.NoError(t, err)
		require.Equal(t, m, gotM)

		var answer Answer
		for range rapid.IntRange(0, 3).Draw(t, "answers") {
			answer.Works = append(answer.Works, WorkCount{rapid.Uint64().Draw(t, "begun"), rapid.Uint32().Draw(t, "running")})
		}
		gotAnswer, err := DecodeAnswer(answer.Encode())
		require.NoError(t, err)
		require.Equal(t, answer, gotAnswer)

		c := Cell{anyName.Draw(t, "t"), anyName.Draw(t, "r"), anyName.Draw(t, "c")}
		cause := string(anyBytes(MaxErrorText*2).Draw(t, "error"))
		name := anyName.Draw(t, "observer")
		made := NewParked(name, c, f, errors.New(cause), ts)
		b, err := made.Encode()
		require.NoError(t, err)
		p, err := DecodeParked(b)
		require.NoError(t, err)
		require.Equal(t, made, p)
		require.Equal(t, c, p.Cell())
		require.Equal(t, name, string(p.Observer))
		require.Equal(t, []any{f.Change, f.Attempts, ts}, []any{p.Change, p.Attempts, p.At})
		require.LessOrEqual(t, len(p.Error), MaxErrorText)
		require.True(t, utf8.ValidString(p.Error))
		if len(cause) <= MaxErrorText {
			require.Equal(t, strings.ToValidUTF8(cause, ""), p.Error)
		}
	})
	for _, b := range [][]byte{StrongNotification, WeakNotification} {
		k, err := DecodeNotification(b)
		require.NoError(t, err)
		require.Equal(t, NotifyKind(b[1]), k)
	}
}

func TestNotificationsRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		cascade := drawCascade(t)
		k := NotifyKind(rapid.IntRange(1, 2).Draw(t, "kind of notification"))
		n := EncodeNotification(k, cascade.Encode())
		gotK, err := DecodeNotification(n)
		require.NoError(t, err)
		require.Equal(t, k, gotK)
		gotC, err := CascadeOf(n)
		require.NoError(t, err)
		require.Equal(t, cascade, gotC)
		require.LessOrEqual(t, len(cascade.Encode()), MaxCascade)
	})
}

func TestDecodersRefuseGarbage(t *testing.T) {
	t.Parallel()
	l := Lock{Kind: KindPut, Primary: Cell{"t", "r", "c"}, Value: []byte("v"), Session: "s", Expiry: 1}
	w := Write{Kind: KindPut, Start: 1, Value: []byte("v")}
	long := func(b []byte) []byte { return append(b, make([]byte, 300)...) }
	locks := map[string][]byte{
		"nothing": nil, "one byte": {1}, "version": append([]byte{0}, l.Encode()[1:]...), "no version": append([]byte{99}, l.Encode()[1:]...), "cut": l.Encode()[:8],
		"no kind": append([]byte{1, 0}, l.Encode()[2:]...), "unknown flag": append([]byte{1, 0x81}, l.Encode()[2:]...),
		"too long a value": long(l.Encode()), "long and a value": append([]byte{1, byte(KindPut) | flagLong}, l.Encode()[2:]...),
		"a delete with a value":          append([]byte{1, byte(KindDelete)}, l.Encode()[2:]...),
		"no primary":                     (&Lock{Kind: KindPut, Primary: Cell{"t", "", "c"}}).Encode(),
		"a huge length":                  {1, 1, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
		"a cascade that notifies nobody": []byte("\x01\x11\x00\x00\x01t\x01r\x01c\x01\x05"),
		"a cascade of nothing":           []byte("\x01\x15\x00\x00\x01t\x01r\x01c\x01\x00"),
		"a cascade that is cut":          []byte("\x01\x15\x00\x00\x01t\x01r\x01c\x02\x05"),
		"no cascade":                     []byte("\x01\x15\x00\x00\x01t\x01r\x01c"),
	}
	for name, b := range locks {
		_, err := DecodeLock(b)
		require.ErrorIs(t, err, ErrCorrupt, name)
	}
	for name, b := range map[string][]byte{
		"nothing": nil, "version": append([]byte{0}, w.Encode()[1:]...), "cut": w.Encode()[:9], "lock only": append([]byte{1, 3}, w.Encode()[2:]...),
		"notify": append([]byte{1, 1 | flagNotify}, w.Encode()[2:]...), "cascade": append([]byte{1, 1 | flagCascade}, w.Encode()[2:]...), "too long a value": long(w.Encode()),
		"a delete with a value": append([]byte{1, 2}, w.Encode()[2:]...), "a long delete": append([]byte{1, 2 | flagLong}, w.Encode()[2:10]...),
	} {
		_, err := DecodeWrite(b)
		require.ErrorIs(t, err, ErrCorrupt, name)
	}
	for _, b := range [][]byte{nil, {1}, {1, 4, 0, 0, 0}, {0, 0, 0, 0, 0}, {1, 0, 0, 0}, {1, 0, 0, 0, 0, 0}, {1, 0, 0x80}} {
		_, err := DecodeFailure(b)
		require.ErrorIs(t, err, ErrCorrupt)
	}
	for _, b := range [][]byte{nil, {1}, {1, 0}, {1, 3}, {0, 1}, {1, 1, 1}, {1, 0x10, 1}, {1, 0x13, 1}, {1, 0x21, 1}, {1, 0x11}, {1, 0x12, 0}} {
		_, err := DecodeNotification(b)
		require.ErrorIs(t, err, ErrCorrupt)
	}
	for _, b := range [][]byte{nil, {1}, {0, 0, 0, 0, 0, 0, 0, 0, 0}, make([]byte, 10)} {
		_, err := DecodeAck(b)
		require.ErrorIs(t, err, ErrCorrupt)
	}
	for _, b := range [][]byte{{1}, {0, 0, 0, 0, 0, 0, 0, 0, 1}, {1, 0, 0, 0, 0, 0, 0, 0, 0}, make([]byte, 10)} {
		_, err := DecodeMark(b)
		require.ErrorIs(t, err, ErrCorrupt)
	}
	for _, b := range []string{
		"", "\x00", "\x01", "\x01\x05", "\x01\x05\x00\x00", // cut off
		"\x01\x05\x00\x00\x01", "\x01\x05\x00\x00\x01\x01o\x01t\x01c", "\x01\x05\x00\x00\x01\x01o\x01t\x05c\x01", // in its works
		"\x01\x05\x00\x00\xff\xff\xff\xff\x7f",                     // more works than bytes
		"\x01\x05\x00\x00\x00x",                                    // too long
		"\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x00\x00", // a time that no oracle has
	} {
		_, err := DecodeMember([]byte(b))
		require.ErrorIs(t, err, ErrCorrupt, "%q", b)
	}
	for _, b := range [][]byte{nil, {0, '{', '}'}, {1, '{'}, {1}} {
		_, err := DecodeParked(b)
		require.ErrorIs(t, err, ErrCorrupt)
	}
}

func TestCatalogsThatAreGarbage(t *testing.T) {
	t.Parallel()
	byTable := func(tables string) string {
		return "\x03" + `{"current":{"max_txn_age_ms":5,"retention_ms":60,"catalog_lease_ms":1,"tables":[` + tables + `]},"by_table":true}`
	}
	_, err := DecodeCatalog([]byte(byTable(`{"table":"dA==","max_txn_age_ms":4,"retention_ms":50}`)))
	require.NoError(t, err)
	for name, text := range map[string]string{
		"nothing": "", "version": "\x00{}", "no JSON": "\x01{", "nameless": "\x01" + `{"tables":[{}]}`,
		"twice": "\x01" + `{"tables":[{"table":"dA=="},{"table":"dA=="}]}`, "no time": "\x01" + `{"tables":[{"table":"dA==","safepoint":18446744073709551615}]}`,
	} {
		_, err := DecodeTableSafePoints([]byte(text))
		require.ErrorIs(t, err, ErrCorrupt, name)
	}
	hold := `{"name":"aA==","at":1,"until":2}`
	for name, text := range map[string]string{
		"nothing": "", "version": "\x00{}", "no JSON": "\x01{", "nameless": "\x01" + `{"holds":[{"at":1}]}`, "of nothing": "\x01" + `{"holds":[{"name":"aA=="}]}`,
		"twice": "\x01" + `{"holds":[` + hold + `,` + hold + `]}`, "no time": "\x01" + `{"holds":[{"name":"aA==","at":1,"until":18446744073709551615}]}`,
		"long name": "\x01" + `{"holds":[{"name":"` + strings.Repeat("AAAA", 43) + `","at":1}]}`, "too many": "\x01" + `{"holds":[` + strings.TrimSuffix(strings.Repeat(hold+",", MaxHolds+1), ",") + `]}`,
	} {
		_, err := DecodeHolds([]byte(text))
		require.ErrorIs(t, err, ErrCorrupt, name)
	}
	for name, text := range map[string]string{
		"nothing": "", "version": "\x00{}", "no JSON": "\x02{", "no settings": "\x02{}",
		"negative":        "\x02" + `{"current":{"max_txn_age_ms":-1,"retention_ms":5,"catalog_lease_ms":1}}`,
		"overflow":        "\x02" + `{"current":{"max_txn_age_ms":9000000000000000000,"retention_ms":9000000000000000001,"catalog_lease_ms":1}}`,
		"unsafe settings": "\x02" + `{"current":{"max_txn_age_ms":5,"retention_ms":6,"catalog_lease_ms":1}}`,
		"nameless":        "\x02" + `{"current":{"max_txn_age_ms":5,"retention_ms":60,"catalog_lease_ms":1},"observers":[{"table":"dA==","column":"dA=="}]}`,
		"unsafe next":     "\x02" + `{"current":{"max_txn_age_ms":5,"retention_ms":60,"catalog_lease_ms":1},"next":{}}`,
		"too many tables": byTable(strings.TrimSuffix(strings.Repeat(`{"table":"dA=="},`, MaxTables+1), ",")),
		"nameless table":  byTable(`{"retention_ms":50}`), "own table": byTable(`{"table":"AGE="}`), "table twice": byTable(`{"table":"dA=="},{"table":"dA=="}`),
		"longer retention": byTable(`{"table":"dA==","retention_ms":61}`), "longer age": byTable(`{"table":"dA==","max_txn_age_ms":6}`),
		"unsafe table": byTable(`{"table":"dA==","retention_ms":6}`), "negative table": byTable(`{"table":"dA==","max_txn_age_ms":-1}`),
		"tables in version 2": "\x02" + byTable(`{"table":"dA=="}`)[1:], "version 4 for nothing": "\x04" + `{"current":{"max_txn_age_ms":5,"retention_ms":60,"catalog_lease_ms":1}}`,
		"paused in version 2":    "\x02" + `{"current":{"max_txn_age_ms":5,"retention_ms":60,"catalog_lease_ms":1},"observers":[{"name":"bw==","table":"dA==","column":"dA==","paused":true}]}`,
		"version 5 for nothing":  "\x05" + `{"current":{"max_txn_age_ms":5,"retention_ms":60,"catalog_lease_ms":1}}`,
		"hints in version 4":     "\x04" + `{"current":{"max_txn_age_ms":5,"retention_ms":60,"catalog_lease_ms":1},"controlled":true,"hinted":true}`,
		"hints from nowhere":     "\x05" + `{"current":{"max_txn_age_ms":5,"retention_ms":60,"catalog_lease_ms":1},"hinted":true,"hints_from":18446744073709551615}`,
		"dated before hinted":    "\x04" + `{"current":{"max_txn_age_ms":5,"retention_ms":60,"catalog_lease_ms":1},"controlled":true,"hints_from":5}`,
		"version 10 for nothing": "\x0a" + `{"current":{"max_txn_age_ms":5,"retention_ms":60,"catalog_lease_ms":1}}`,
		"cascades in version 5":  "\x05" + `{"current":{"max_txn_age_ms":5,"retention_ms":60,"catalog_lease_ms":1},"hinted":true,"cascades":true}`,
		"cascades from nowhere":  "\x0a" + `{"current":{"max_txn_age_ms":5,"retention_ms":60,"catalog_lease_ms":1},"cascades":true,"cascades_from":18446744073709551615}`,
		"dated before cascades":  "\x05" + `{"current":{"max_txn_age_ms":5,"retention_ms":60,"catalog_lease_ms":1},"hinted":true,"cascades_from":5}`,
		"version 3 for nothing":  "\x03" + `{"current":{"max_txn_age_ms":5,"retention_ms":60,"catalog_lease_ms":1}}`,
	} {
		_, err := DecodeCatalog([]byte(text))
		require.ErrorIs(t, err, ErrCorrupt, name)
	}
}

func TestAnswersThatAreGarbage(t *testing.T) {
	t.Parallel()
	for _, b := range []string{
		"", "\x00", "\x01", "\x01\x01", "\x01\x01\x05", "\x01\x02\x05\x00\x05", // cut off
		"\x01\x01\x05\xff\xff\xff\xff\x7f",                     // more runs at once than there can be
		"\x01\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x00", // a count that no program has
		"\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00",     // more observers than bytes
		"\x01\x00x", "\x01\x01\x05\x00x", // too long
	} {
		_, err := DecodeAnswer([]byte(b))
		require.ErrorIs(t, err, ErrCorrupt, "%q", b)
	}
}

// A record of a newer program is not taken for damage.
func TestDecodersRefuseNewerVersions(t *testing.T) {
	t.Parallel()
	newer := func(b []byte) []byte { return append([]byte{Version + 1}, b[1:]...) }
	l := Lock{Kind: KindPut, Primary: Cell{"t", "r", "c"}, Session: "s", Expiry: 1}
	w := Write{Kind: KindPut, Start: 1}
	f := Failure{Change: 1, Attempts: 1}
	for name, decode := range map[string]func() error{
		"lock":           func() error { _, err := DecodeLock(newer(l.Encode())); return err },
		"write":          func() error { _, err := DecodeWrite(newer(w.Encode())); return err },
		"catalog":        func() error { _, err := DecodeCatalog([]byte{CatalogVersion + 1, '{', '}'}); return err },
		"holds":          func() error { _, err := DecodeHolds([]byte{Version + 1, '{', '}'}); return err },
		"failure":        func() error { _, err := DecodeFailure(newer(f.Encode())); return err },
		"notification":   func() error { _, err := DecodeNotification(newer(WeakNotification)); return err },
		"acknowledgment": func() error { _, err := DecodeAck(newer(EncodeAck(1))); return err },
		"mark":           func() error { _, err := DecodeMark(newer(EncodeMark(1))); return err },
		"member":         func() error { _, err := DecodeMember(newer((&Member{From: 5}).Encode())); return err },
		"answer":         func() error { _, err := DecodeAnswer(newer((&Answer{}).Encode())); return err },
		"parked record":  func() error { _, err := DecodeParked([]byte{Version + 1, '{', '}'}); return err },
	} {
		err := decode()
		require.ErrorIs(t, err, rowstore.ErrFormat, name)
		require.NotErrorIs(t, err, ErrCorrupt, name)
		require.ErrorContains(t, err, "newer", name)
	}
	_, err := DecodeCatalog([]byte("\x01{}"))
	require.ErrorIs(t, err, rowstore.ErrFormat)
	require.ErrorContains(t, err, "older")

	c := Catalog{Current: Settings{MaxTxnAgeMs: 1, RetentionMs: 10, CatalogLeaseMs: 2}}
	b, err := c.Encode()
	require.NoError(t, err)
	raised, older := RaiseCatalog(append([]byte{1}, b[1:]...))
	require.True(t, older)
	require.Equal(t, b, raised)
	for _, other := range [][]byte{nil, {}, b, []byte("\x03{}"), {0}} {
		raised, older = RaiseCatalog(other)
		require.False(t, older)
		require.Equal(t, other, raised)
	}
}

// fuzz checks a decoder: an error matches ErrCorrupt or rowstore.ErrFormat, and what it takes, it takes
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
			if !errors.Is(err, rowstore.ErrFormat) {
				require.ErrorIs(t, err, ErrCorrupt)
			}
			return
		}
		again, err := decode(encode(v))
		require.NoError(t, err)
		require.Equal(t, v, again)
	})
}

func FuzzDecodeLock(f *testing.F) {
	l := Lock{Kind: KindPut, Notify: true, Expiry: 7, Session: "s", Primary: Cell{"t", "r", "c"}, Value: []byte("v")}
	d := Lock{Kind: KindPut, Long: true, Primary: Cell{"t", "r", "c"}}
	c := l
	c.Cascade = Cascade{Hops: 300}.Encode()
	fuzz(f, [][]byte{l.Encode(), d.Encode(), c.Encode(), nil, {1, 1}}, DecodeLock, func(l Lock) []byte { return l.Encode() })
}

func FuzzDecodeWrite(f *testing.F) {
	w, d := Write{Kind: KindPut, Start: 5, Value: []byte("v")}, Write{Kind: KindDelete, Start: 6}
	fuzz(f, [][]byte{w.Encode(), d.Encode(), nil}, DecodeWrite, func(w Write) []byte { return w.Encode() })
}

func FuzzDecodeNotify(f *testing.F) {
	fuzz(f, [][]byte{StrongNotification, WeakNotification, nil}, DecodeNotification, func(k NotifyKind) []byte { return []byte{Version, byte(k)} })
}

// FuzzDecodeCascade takes the cascade of a notification apart. Each one has one form.
func FuzzDecodeCascade(f *testing.F) {
	span := Span{Trace: [16]byte{1}, ID: [8]byte{2}, Flags: 1}
	for _, c := range []Cascade{{Hops: 1}, {Hops: MaxHops}, {Span: span}, {Hops: 300, Span: span}} {
		f.Add(c.Encode())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := DecodeCascade(b)
		if err != nil {
			require.ErrorIs(t, err, ErrCorrupt)
			return
		}
		require.Equal(t, b, c.Encode())
		got, err := CascadeOf(EncodeNotification(NotifyWeak, b))
		require.NoError(t, err)
		require.Equal(t, c, got)
	})
}

func TestCascadesThatAreGarbage(t *testing.T) {
	t.Parallel()
	span := string((Cascade{Span: Span{Trace: [16]byte{15: 1}, ID: [8]byte{7: 1}}}).Encode())
	for name, b := range map[string]string{
		"nothing": "", "it says nothing": "\x00", "cut number": "\x80", "needless bytes": "\x81\x00", "over the most": "\x80\x80\x80\x80\x08",
		"cut": span[:25], "too long": span + "\x00", "no trace": "\x01" + strings.Repeat("\x00", 16) + span[17:], "no span": span[:17] + strings.Repeat("\x00", 9),
	} {
		_, err := DecodeCascade([]byte(b))
		require.ErrorIs(t, err, ErrCorrupt, name)
	}
	_, err := DecodeCascade([]byte("\xff\xff\xff\xff\x07"))
	require.NoError(t, err, "the most hops")
	for _, c := range []Cascade{{}, {Hops: -1}, {Span: Span{Trace: [16]byte{1}}}, {Span: Span{ID: [8]byte{1}, Flags: 1}}} {
		require.Nil(t, c.Encode())
	}
	many := uint64(MaxHops) + 1
	require.Equal(t, Cascade{Hops: MaxHops}.Encode(), Cascade{Hops: int(many)}.Encode()) //nolint:gosec // it fits
	none := Lock{Kind: KindPut, Primary: Cell{"t", "r", "c"}, Cascade: []byte{5}}
	l, err := DecodeLock(none.Encode())
	require.NoError(t, err)
	require.Nil(t, l.Cascade, "it notifies nobody")
}

func FuzzDecodeAck(f *testing.F) {
	fuzz(f, [][]byte{EncodeAck(1), nil}, DecodeAck, EncodeAck)
}

func FuzzDecodeMark(f *testing.F) {
	fuzz(f, [][]byte{EncodeMark(1), nil}, DecodeMark, func(start Timestamp) []byte {
		if start == 0 {
			return nil
		}
		return EncodeMark(start)
	})
}

func FuzzDecodeFailure(f *testing.F) {
	r := Failure{Change: 5, Attempts: 3, Parked: true, NotBefore: 9}
	fuzz(f, [][]byte{r.Encode(), nil}, DecodeFailure, func(r Failure) []byte { return r.Encode() })
}

func FuzzDecodeMember(f *testing.F) {
	m := Member{From: 5, Until: 9, Lease: time.Second, Works: []MemberWork{{"o", "t", "c", 16}}}
	fuzz(f, [][]byte{m.Encode(), nil}, DecodeMember, func(m Member) []byte { return m.Encode() })
}

func FuzzDecodeAnswer(f *testing.F) {
	a := Answer{Works: []WorkCount{{1 << 40, 16}, {0, 0}}}
	fuzz(f, [][]byte{a.Encode(), nil}, DecodeAnswer, func(a Answer) []byte { return a.Encode() })
}

func FuzzDecodeCatalog(f *testing.F) {
	settings := Settings{MaxTxnAgeMs: 1000, RetentionMs: 3600 * 1000, CatalogLeaseMs: 1000}
	next := settings
	c := Catalog{Current: settings, Next: &next, NextFrom: 8, Observers: []Observer{{Name: []byte("n"), Table: []byte("t"), Column: []byte{0}}}}
	b, err := c.Encode()
	require.NoError(f, err)
	c.ByTable, c.Current.Tables = true, []Table{{Name: []byte("t"), RetentionMs: 5000, MaxTxnAgeMs: 10}}
	byTable, err := c.Encode()
	require.NoError(f, err)
	fuzz(f, [][]byte{b, byTable, nil, []byte("\x02{}")}, DecodeCatalog, func(c Catalog) []byte {
		b, err := c.Encode()
		if err != nil {
			panic(err)
		}
		return b
	})
}

func FuzzDecodeHolds(f *testing.F) {
	h := Holds{[]Hold{{[]byte("h"), 3, 9, 4}}}
	b, err := h.Encode()
	require.NoError(f, err)
	fuzz(f, [][]byte{b, nil, []byte("\x01{}")}, DecodeHolds, func(h Holds) []byte {
		b, err := h.Encode()
		if err != nil {
			panic(err)
		}
		return b
	})
}

func FuzzDecodeTableSafePoints(f *testing.F) {
	p := TableSafePoints{[]TableSafePoint{{[]byte("t"), 3, 4}}}
	b, err := p.Encode()
	require.NoError(f, err)
	fuzz(f, [][]byte{b, nil, []byte("\x01{}")}, DecodeTableSafePoints, func(p TableSafePoints) []byte {
		b, err := p.Encode()
		if err != nil {
			panic(err)
		}
		return b
	})
}

func FuzzDecodeCollected(f *testing.F) {
	c := collected()
	b, err := c.Encode()
	require.NoError(f, err)
	fuzz(f, [][]byte{b, nil, []byte("\x01{}")}, DecodeCollected, func(c Collected) []byte {
		b, err := c.Encode()
		if err != nil {
			panic(err)
		}
		return b
	})
}

func FuzzDecodeParked(f *testing.F) {
	p := NewParked("o", Cell{"t", "r", "c"}, Failure{Change: 1, Attempts: 2}, errors.New("no"), 3)
	b, err := p.Encode()
	require.NoError(f, err)
	fuzz(f, [][]byte{b, nil, []byte("\x01{}")}, DecodeParked, func(p Parked) []byte {
		b, err := p.Encode()
		if err != nil {
			panic(err)
		}
		return b
	})
}

// What is stored stays readable: a record of this version has exactly these bytes.
func TestBytes(t *testing.T) {
	t.Parallel()
	lock := Lock{Kind: KindPut, Notify: true, Expiry: 300, Session: "s1", Primary: Cell{"t", "\x00r", "c"}, Value: []byte("v")}
	long := Lock{Kind: KindPut, Long: true, Primary: Cell{"t", "r", "c"}}
	only := Lock{Kind: KindLock, Expiry: oracle.Max, Primary: Cell{"t", "r", "c"}}
	write, deleted := Write{Kind: KindPut, Start: 0x0102030405060708, Value: []byte("v")}, Write{Kind: KindDelete, Start: 1}
	longWrite := Write{Kind: KindPut, Long: true, Start: 2}
	failure := Failure{Change: 300, Attempts: 5, Parked: true, NotBefore: 1}
	parked := NewParked("o", Cell{"t", "\xff", "c"}, failure, errors.New("no\xff"), 9)
	next := Settings{MaxTxnAgeMs: 2000, RetentionMs: 7200000, CatalogLeaseMs: 1000}
	catalog := Catalog{
		Oracle: "tso", Current: Settings{MaxTxnAgeMs: 1000, RetentionMs: 3600000, CatalogLeaseMs: 500}, Next: &next, NextFrom: 7, Past: []PastAge{{500, 6}},
		Observers: []Observer{{Name: []byte("o"), Table: []byte("t"), Column: []byte("\x00\x00c"), Since: 3, Swept: 4}},
	}
	byTable := Catalog{Current: Settings{MaxTxnAgeMs: 1000, RetentionMs: 3600000, CatalogLeaseMs: 500, Tables: []Table{{[]byte("q"), 100, 60000, 5}, {Name: []byte("\x00\x00r"), RetentionMs: 7}}}, ByTable: true}
	points := TableSafePoints{[]TableSafePoint{{[]byte("q"), 9, 5}}}
	controlled := Catalog{Current: Settings{MaxTxnAgeMs: 1000, RetentionMs: 3600000, CatalogLeaseMs: 500}, Controlled: true, Observers: []Observer{{Name: []byte("o"), Table: []byte("t"), Column: []byte("c"), Paused: true}}}
	hinted := Catalog{Current: Settings{MaxTxnAgeMs: 1000, RetentionMs: 3600000, CatalogLeaseMs: 500}, Hinted: true, HintsFrom: 6}
	replayed := Catalog{Current: hinted.Current, Hinted: true, Replays: true, ReplaysFrom: 6, RowDeletes: true, RowDeletesFrom: 7}
	renamed := Catalog{Current: hinted.Current, Renamed: true, Observers: []Observer{{Name: []byte("o"), Table: []byte("t"), Column: []byte("c"), Called: []byte("n"), Aliases: [][]byte{[]byte("m")}}}}
	cascading := Catalog{Current: hinted.Current, Hinted: true, Cascades: true, CascadesFrom: 6}
	span := Span{Trace: [16]byte{1, 15: 0x16}, ID: [8]byte{0x21, 7: 0x28}, Flags: 1}
	followed := lock
	followed.Cascade = Cascade{Hops: 300}.Encode()
	again := Failure{Change: 300, Attempts: 5, NotBefore: 1, Replay: true}
	replay := Replay{Observer: []byte("o"), Table: []byte("t"), Column: []byte("\x00\x00c"), From: []byte("a"), ID: 9, Next: []byte("b\x00"), Cells: 3}
	held := Holds{[]Hold{{[]byte("h\xff"), 3, 9, 4}}}
	encoded := func(b []byte, err error) string {
		require.NoError(t, err)
		return string(b)
	}
	for want, got := range map[string]string{
		"\x01\x05\xac\x02\x02s1\x01t\x02\x00r\x01cv":                      string(lock.Encode()),
		"\x01\x09\x00\x00\x01t\x01r\x01c":                                 string(long.Encode()),
		"\x01\x03\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x00\x01t\x01r\x01c": string(only.Encode()),
		"\x01\x01\x01\x02\x03\x04\x05\x06\x07\x08v":                       string(write.Encode()),
		"\x01\x02\x00\x00\x00\x00\x00\x00\x00\x01":                        string(deleted.Encode()),
		"\x01\x09\x00\x00\x00\x00\x00\x00\x00\x02":                        string(longWrite.Encode()),
		"\x01":            string(TimestampOnly),
		"\x01\x01 strong": string(StrongNotification) + " strong",
		"\x01\x02 weak":   string(WeakNotification) + " weak",
		"\x01\x00\x00\x00\x00\x00\x00\x01\x02 mark":               string(EncodeMark(0x0102)) + " mark",
		"\x01\x00\x00\x00\x00\x00\x00\x01\x02 ack":                string(EncodeAck(0x0102)) + " ack",
		"\x01\x01\xac\x02\x01\x05":                                string(failure.Encode()),
		"\x01\xac\x02\x09\xc0\x84\x3d\x01\x01o\x01t\x02\x00c\x10": string((&Member{300, 9, time.Second, []MemberWork{{"o", "t", "\x00c", 16}}}).Encode()),
		"\x01" + `{"observer":"bw==","table":"dA==","row":"/w==","column":"Yw==","change":300,"attempts":5,"error":"no","at":9}`: encoded(parked.Encode()),
		"\x02" + `{"oracle":"tso","current":{"max_txn_age_ms":1000,"retention_ms":3600000,"catalog_lease_ms":500},` +
			`"next":{"max_txn_age_ms":2000,"retention_ms":7200000,"catalog_lease_ms":1000},"next_from":7,"past":[{"max_txn_age_ms":500,"until":6}],` +
			`"observers":[{"name":"bw==","table":"dA==","column":"AABj","since":3,"swept":4}]}`: encoded(catalog.Encode()),
		"\x03" + `{"oracle":"","current":{"max_txn_age_ms":1000,"retention_ms":3600000,"catalog_lease_ms":500,` +
			`"tables":[{"table":"cQ==","max_txn_age_ms":100,"retention_ms":60000,"since":5},{"table":"AABy","retention_ms":7}]},"by_table":true}`: encoded(byTable.Encode()),
		"\x04" + `{"oracle":"","current":{"max_txn_age_ms":1000,"retention_ms":3600000,"catalog_lease_ms":500},"controlled":true,"observers":[{"name":"bw==","table":"dA==","column":"Yw==","paused":true}]}`:                   encoded(controlled.Encode()),
		"\x05" + `{"oracle":"","current":{"max_txn_age_ms":1000,"retention_ms":3600000,"catalog_lease_ms":500},"hinted":true,"hints_from":6}`:                                                                                   encoded(hinted.Encode()),
		"\x07" + `{"oracle":"","current":{"max_txn_age_ms":1000,"retention_ms":3600000,"catalog_lease_ms":500},"hinted":true,"replays":true,"replays_from":6,"row_deletes":true,"row_deletes_from":7}`:                          encoded(replayed.Encode()),
		"\x08" + `{"oracle":"","current":{"max_txn_age_ms":1000,"retention_ms":3600000,"catalog_lease_ms":500},"renamed":true,"observers":[{"name":"bw==","table":"dA==","column":"Yw==","called":"bg==","aliases":["bQ=="]}]}`: encoded(renamed.Encode()),
		"\x0a" + `{"oracle":"","current":{"max_txn_age_ms":1000,"retention_ms":3600000,"catalog_lease_ms":500},"hinted":true,"cascades":true,"cascades_from":6}`:                                                                encoded(cascading.Encode()),
		"\x01\x15\xac\x02\x02s1\x01t\x02\x00r\x01c\x02\xac\x02v": string(followed.Encode()),
		"\x01\x11\x05": string(EncodeNotification(NotifyStrong, Cascade{Hops: 5}.Encode())),
		"\x01\x12\x00\x01" + strings.Repeat("\x00", 14) + "\x16\x21" + strings.Repeat("\x00", 6) + "\x28\x01": string(EncodeNotification(NotifyWeak, Cascade{Span: span}.Encode())),
		"\x01\x02\xac\x02\x01\x05": string(again.Encode()),
		"\x01" + `{"observer":"bw==","table":"dA==","column":"AABj","from":"YQ==","id":9,"next":"YgA=","cells":3}`: encoded(replay.Encode()),
		"\x01\x00\x00\x00\x00\x00\x00\x01\x02 session":                                                             string(Session{0x0102}.Encode()) + " session",
		"\x01\x01a\x00\x02\x00b": string((&Hint{[]string{"a", "", "\x00b"}}).Encode()),
		"\x01" + `{"holds":[{"name":"aP8=","at":3,"until":9,"placed":4}]}`: encoded(held.Encode()),
		"\x01" + `{"tables":[{"table":"cQ==","safepoint":9,"clean":5}]}`:   encoded(points.Encode()),
	} {
		require.Equal(t, want, got)
	}
}

func FuzzDecodePeriodic(f *testing.F) {
	encode := func(p Periodic) []byte {
		b, err := p.Encode()
		if err != nil {
			panic(err)
		}
		return b
	}
	p := Periodic{Since: 5, Version: 1, Schedule: []byte("every minute"), Next: 7}
	fuzz(f, [][]byte{encode(p), nil, []byte("\x01{\"next\":1,\"schedule\":\"\"}")}, DecodePeriodic, encode)
}
