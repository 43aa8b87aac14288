package redis

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// fuzzReads are reads of each shape that is answered differently.
var fuzzReads = [][]rowstore.Selector{
	{{Family: rowstore.Write, Column: "c", To: oracle.Max, Limit: 1}, {Family: rowstore.Lock, Column: "c", To: oracle.Max, Limit: 1}},
	{{Family: rowstore.Write, Column: "c", From: 3, To: 9}, {Family: rowstore.Notify, Column: "d", To: oracle.Max}, {Family: rowstore.Data, Column: "c", From: 5, To: 5}},
	{{Family: rowstore.Write, Column: rowstore.AllColumns, To: oracle.Max}, {Family: rowstore.Mark, Column: rowstore.AllColumns, To: oracle.Max, Limit: 2}},
	{{Family: rowstore.Notify, Column: rowstore.AllColumns, To: oracle.Max}},
}

// cellBytes is a cell's field with a lock, a mark and a write.
func cellBytes() string {
	b := []byte{cellMark, flagLock | flagMark | flagWrite}
	for _, v := range []string{"lock", ""} {
		b = binary.BigEndian.AppendUint64(b, inv(7))
		b = binary.BigEndian.AppendUint32(b, uint32(len(v)))
		b = append(b, v...)
	}
	b = binary.BigEndian.AppendUint64(b, inv(5))
	return string(append(b, "value"...))
}

func noteBytes() string {
	b := binary.BigEndian.AppendUint64(nil, inv(8))
	b = binary.BigEndian.AppendUint32(b, 1)
	return string(append(b, 1))
}

func memberBytes(kind byte) string {
	b := appendField(nil, kind, "c")
	b = binary.BigEndian.AppendUint64(b, inv(4))
	return string(append(b, "old"...))
}

// chunkBytes is a chunk of the writes 4 and 3.
func chunkBytes() string {
	b := appendField(nil, 'C', "c")
	b = binary.BigEndian.AppendUint64(b, inv(3))
	for _, v := range []struct {
		ts    rowstore.Timestamp
		value string
	}{{4, "old"}, {3, ""}} {
		b = binary.BigEndian.AppendUint16(b, uint16(8+len(v.value)))
		b = binary.BigEndian.AppendUint64(b, inv(v.ts))
		b = append(b, v.value...)
	}
	return string(b)
}

// checkRow makes sure that a row from garbage is still a row.
func checkRow(t *testing.T, picks []rowstore.Selector, vs []rowstore.Version, answer string) {
	require.True(t, slices.IsSortedFunc(vs, rowstore.CompareVersions))
	size := 0
	for i, v := range vs {
		size += len(v.Value)
		require.True(t, i == 0 || rowstore.CompareVersions(vs[i-1], v) != 0, "each version once")
		require.True(t, slices.ContainsFunc(picks, func(p rowstore.Selector) bool {
			return p.Family == v.Family && (p.Column == rowstore.AllColumns || p.Column == v.Column) && v.TS >= p.From && v.TS <= p.To
		}), "%v was not asked for", v)
	}
	require.LessOrEqual(t, size, len(answer))
}

// FuzzAnswer decodes the answers of the scripts that read, begin and scan.
func FuzzAnswer(f *testing.F) {
	addAnswers(f)
	f.Fuzz(func(t *testing.T, how uint8, b []byte) {
		s := string(b)
		picks := fuzzReads[how%4]
		reads := []rowstore.RowRead{{Table: "t", Row: "r", Selectors: picks}}
		switch how / 4 % 3 {
		case 0:
			batch := readBatch{rows: []int{0}}
			batch.call.answer = s
			out := make([]rowstore.Row, 1)
			var d decoder
			if _, err := d.rows(reads, &batch, out); err == nil {
				checkRow(t, picks, out[0].Versions, s)
			}
		case 1:
			var few [8]beginField
			fields, ok := beginFields(picks, few[:0])
			if !ok {
				return
			}
			rows, err := begun(s, []rowstore.SnapshotRead{{Reads: reads}}, 1, len(fields))
			if err == nil && rows != nil {
				require.Len(t, rows, 1)
				checkRow(t, picks, rows[0].Rows[0].Versions, s)
			}
		case 2:
			sc := &scanner{r: rowstore.ScanRange{Table: "t", Selectors: picks, Reverse: how >= 128}, plan: newPlan(picks)}
			var c cursor
			if _, err := sc.answer(&c, s); err == nil {
				for _, row := range c.rows {
					checkRow(t, picks, row.versions, s)
				}
			}
			slots := &slotScanner{r: sc.r, plan: sc.plan}
			cursors := []*slotCursor{{}, {}}
			if wide, old, err := slots.pages(cursors, s); err == nil {
				require.LessOrEqual(t, len(wide)+len(old), 2)
				for _, c := range cursors {
					for _, row := range c.rows {
						checkRow(t, picks, row.versions, s)
					}
				}
			}
			size := 0
			if _, _, err := notifiedKeys(s, func(row string) { size += len(row) }); err == nil {
				require.LessOrEqual(t, size, len(s))
			}
		}
	})
}

// addAnswers adds answers as the scripts give them, and some that are cut off.
func addAnswers(f *testing.F) {
	f.Helper()
	var p packer
	answer := func(write func()) []byte {
		p.reset()
		write()
		return slices.Clone(p.bytes())
	}
	list := func(n int) { p.b = append(p.b, 0x90|byte(n)) }
	f.Add(uint8(0), answer(func() { p.str(cellBytes()) }))
	f.Add(uint8(0), answer(func() { p.bool(false) }))
	f.Add(uint8(0), answer(func() {
		list(2)
		p.items++
		p.str(memberBytes('W'))
		p.items--
		p.str(cellBytes())
		p.items--
	}))
	f.Add(uint8(1), answer(func() {
		list(2)
		p.items++
		p.str(chunkBytes())
		p.items--
		p.str(cellBytes())
		p.items--
		p.str(noteBytes())
		list(0)
	}))
	f.Add(uint8(1), answer(func() {
		list(3)
		p.str(cellBytes())
		p.str(noteBytes())
		list(1)
		p.str(memberBytes('D'))
		p.items -= 2
	}))
	f.Add(uint8(2), answer(func() {
		list(4)
		p.str(string(appendField(nil, 'W', "c")))
		p.str(cellBytes())
		p.str(string(appendField(nil, 'N', "c")))
		p.str(noteBytes())
		p.items -= 3
	}))
	f.Add(uint8(4), answer(func() { p.u32(1 << 30); p.u32(7); p.str(cellBytes()) }))
	f.Add(uint8(8), answer(func() { p.str("next"); p.str("row"); list(0) }))
	f.Add(uint8(8), answer(func() { p.bool(false) }))
	f.Add(uint8(8), answer(func() {
		p.str("[next")
		p.small(1)
		p.str("row")
		list(0)
		p.items--
		p.bool(false)
		p.small(0)
	}))
	f.Add(uint8(8), answer(func() { p.str("[next"); p.minusOne(); p.bool(false); p.small(0) }))
	f.Add(uint8(8), answer(func() { p.str("(next"); p.str("row\x00\xff"); p.str("row2") }))
	f.Add(uint8(0), []byte{0xdd, 0xff, 0xff, 0xff, 0xff})
	f.Add(uint8(0), []byte{0x91, 0xdd, 0xff, 0xff, 0xff, 0xff, 0xa0})
}

// FuzzStored decodes the fields and members that lie in the database.
func FuzzStored(f *testing.F) {
	for _, s := range []string{"", cellBytes(), cellBytes()[1:], "\xff", noteBytes(), chunkBytes(), memberBytes('W'), memberBytes('D'), "W1:c", "W99999999999999999999:c", "W-1:c", "W+1:c", "\x01short"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if vs, err := parseCell(nil, "c", s); err == nil {
			require.LessOrEqual(t, len(vs), 3)
		} else {
			require.ErrorIs(t, err, rowstore.ErrCorrupt)
		}
		if vs, err := parseNotes(nil, "c", s); err == nil {
			var b []byte
			for _, v := range vs {
				b = binary.BigEndian.AppendUint64(b, inv(v.ts))
				b = binary.BigEndian.AppendUint32(b, uint32(len(v.value)))
				b = append(b, v.value...)
			}
			require.Equal(t, s, string(b))
		} else {
			require.ErrorIs(t, err, rowstore.ErrCorrupt)
		}
		if vs, err := parseHistory(nil, s); err == nil {
			require.NotEmpty(t, vs)
			require.NotEmpty(t, vs[0].column)
			b := appendField(nil, s[0], vs[0].column)
			b = binary.BigEndian.AppendUint64(b, inv(vs[len(vs)-1].ts))
			if s[0] == 'C' {
				for _, v := range vs {
					b = binary.BigEndian.AppendUint16(b, uint16(8+len(v.value)))
					b = binary.BigEndian.AppendUint64(b, inv(v.ts))
					b = append(b, v.value...)
				}
			} else {
				require.Len(t, vs, 1)
				b = append(b, vs[0].value...)
			}
			again, err := parseHistory(nil, string(b))
			require.NoError(t, err)
			require.Equal(t, vs, again)
		}
	})
}

// FuzzParseURL reads URLs: what is wrong is said without the password.
func FuzzParseURL(f *testing.F) {
	const secret = "S3cr3tPassw0rd"
	for _, s := range []string{
		"redis://u:" + secret + "@h:1/2?prefix=p", "rediss+cluster://h1,h2:7?tls_server_name=x", "redis+sentinel://a,b/0?master=m&sentinel_password=" + secret,
		"unix:///run/redis.sock?db=1", "redis://[::1]:6379", "redis://:" + secret + "@h?pool_size=x", "redis://u:" + secret + "@h:99999", "redis://h/1?db=2",
		"redis://u:" + secret + "%zz@h", "redis://h?read_timeout=-1s", "", "redis:", "redis://?addr=h&addr=g",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		o, err := ParseURL(raw)
		if err != nil {
			require.ErrorIs(t, err, rowstore.ErrInvalid)
			if strings.Count(raw, secret) == 1 && (strings.Contains(o.Password, secret) || strings.Contains(o.SentinelPassword, secret)) {
				require.NotContains(t, err.Error(), secret)
			}
			return
		}
		require.NotEmpty(t, o.Addrs)
	})
}
