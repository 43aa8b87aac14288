package warc

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func record(version, typ, uri, block string) string {
	return fmt.Sprintf("WARC/%s\r\nWARC-Type: %s\r\nWARC-Record-ID: <urn:uuid:1>\r\nWARC-Date: 2024-05-06T07:08:09Z\r\n"+
		"WARC-Target-URI: %s\r\nContent-Length: %d\r\n\r\n%s\r\n\r\n", version, typ, uri, len(block), block)
}

func gz(parts ...string) []byte {
	var b bytes.Buffer
	for _, p := range parts {
		w := gzip.NewWriter(&b)
		_, _ = w.Write([]byte(p))
		_ = w.Close()
	}
	return b.Bytes()
}

func readAll(t testing.TB, data []byte) (recs []*Record, blocks []string, err error) {
	t.Helper()
	r, err := NewReader(bytes.NewReader(data), "test.warc")
	require.NoError(t, err)
	for {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) && !errors.Is(err, ErrMalformed) {
			return recs, blocks, nil
		}
		if err != nil {
			_, again := r.Next()
			require.Equal(t, err, again)
			return recs, blocks, err
		}
		b, err := io.ReadAll(rec.Block)
		if err != nil {
			return recs, blocks, err
		}
		require.Len(t, b, int(rec.Length))
		recs, blocks = append(recs, rec), append(blocks, string(b))
	}
}

func TestReadForms(t *testing.T) {
	t.Parallel()
	a, b, c := record("1.0", "response", "<http://a/>", "first\r\n\r\nblock"), record("1.1", "Resource", "http://b/", ""), record("1.0", "revisit", "http://c/", strings.Repeat("z", 100000))
	ga, gb := gz(a), gz(b)
	for name, form := range map[string]struct {
		data    []byte
		offsets []int64
	}{
		"plain":                 {[]byte(a + b + c), []int64{0, int64(len(a)), int64(len(a) + len(b))}},
		"a member each":         {gz(a, b, c), []int64{0, int64(len(ga)), int64(len(ga) + len(gb))}},
		"one member":            {gz(a + b + c), []int64{0, 0, 0}},
		"members cut elsewhere": {gz(a+b[:10], b[10:], c), []int64{0, 0, int64(len(gz(a+b[:10], b[10:])))}},
		"empty members":         {gz("", a, "", b, c), []int64{int64(len(gz(""))), int64(len(gz("", a, ""))), int64(len(gz("", a, "", b)))}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			recs, blocks, err := readAll(t, form.data)
			require.NoError(t, err)
			require.Len(t, recs, 3)
			require.Equal(t, []string{"first\r\n\r\nblock", "", strings.Repeat("z", 100000)}, blocks)
			for i, r := range recs {
				require.Equal(t, form.offsets[i], r.Offset, "record %d", i+1)
				require.Equal(t, i+1, r.Number)
				require.Equal(t, time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC), r.Date)
			}
			require.Equal(t, "http://a/", recs[0].TargetURI)
			require.Equal(t, "resource", recs[1].Type)
			require.Equal(t, "<urn:uuid:1>", recs[2].Get("warc-RECORD-id"))
		})
	}
}

func TestSkipsUnreadBlocks(t *testing.T) {
	t.Parallel()
	r, err := NewReader(iotest.OneByteReader(strings.NewReader(record("1.0", "response", "http://a/", "12345")+record("1.0", "response", "http://b/", "678"))), "x")
	require.NoError(t, err)
	first, err := r.Next()
	require.NoError(t, err)
	_, err = io.ReadFull(first.Block, make([]byte, 2))
	require.NoError(t, err)
	second, err := r.Next()
	require.NoError(t, err)
	require.Equal(t, "http://b/", second.TargetURI)
	_, err = first.Block.Read(make([]byte, 1))
	require.Error(t, err)
	_, err = r.Next()
	require.ErrorIs(t, err, io.EOF)
}

func TestHeaderForms(t *testing.T) {
	t.Parallel()
	recs, blocks, err := readAll(t, []byte("WARC/1.1\nwarc-type:  response \nWARC-Record-ID: <x>\nWARC-Date: 2024-05-06T07:08:09.123456Z\nX-Long: one\r\n  two\nCONTENT-LENGTH: 2\n\nok\n\n"))
	require.NoError(t, err)
	require.Equal(t, []string{"ok"}, blocks)
	require.Equal(t, "one two", recs[0].Get("X-Long"))
	require.Equal(t, "response", recs[0].Type)
}

func TestMalformed(t *testing.T) {
	t.Parallel()
	good := record("1.0", "response", "http://a/", "block")
	replace := func(old, by string) string {
		require.Contains(t, good, old)
		return strings.Replace(good, old, by, 1)
	}
	compressed := gz(good, good)
	broken := bytes.Clone(compressed)
	broken[len(broken)-6] ^= 0x55 // in the checksum
	for name, c := range map[string]struct {
		data   []byte
		record int
		offset int64
		want   string
	}{
		"empty":               {nil, 1, 0, "the file ends"},
		"not a WARC":          {[]byte("<html>\n"), 1, 0, "begins with"},
		"old version":         {[]byte(replace("1.0", "0.17")), 1, 0, "WARC/0.17"},
		"second record":       {[]byte(good + "garbage\n"), 2, int64(len(good)), `begins with "garbage"`},
		"no length":           {[]byte(replace("Content-Length", "X-Length")), 1, 0, "Content-Length is missing"},
		"negative length":     {[]byte(replace("Content-Length: 5", "Content-Length: -5")), 1, 0, "Content-Length"},
		"huge length":         {[]byte(replace("Content-Length: 5", "Content-Length: 99999999999999999999")), 1, 0, "Content-Length"},
		"length twice":        {[]byte(replace("Content-Length: 5", "Content-Length: 5\r\nContent-Length: 6")), 1, 0, "twice"},
		"short length":        {[]byte(replace("Content-Length: 5", "Content-Length: 4")), 1, 0, "not followed by two line ends"},
		"long length":         {[]byte(replace("Content-Length: 5", "Content-Length: 50")), 1, 0, "the file ends inside the block"},
		"bad date":            {[]byte(replace("2024-05-06", "2024-15-06")), 1, 0, "WARC-Date"},
		"no colon":            {[]byte(replace("WARC-Type: response", "WARC-Type response")), 1, 0, "name: value"},
		"continuation first":  {[]byte(replace("WARC-Type", " WARC-Type")), 1, 0, "continuation"},
		"cut in the header":   {[]byte(good + good[:40]), 2, int64(len(good)), "the file ends inside the header"},
		"cut after the block": {[]byte(good[:len(good)-2]), 1, 0, "line ends after the block"},
		"endless line":        {[]byte("WARC/1.0\r\nX: " + strings.Repeat("x", 100000)), 1, 0, "longer than"},
		"gzip cut":            {compressed[:len(compressed)-15], 2, int64(len(gz(good))), "unexpected EOF"},
		"gzip broken":         {broken, 2, int64(len(gz(good))), "gzip"},
		"gzip then garbage":   {append(bytes.Clone(compressed), "this is no gzip member"...), 2, int64(len(gz(good))), fmt.Sprintf("gzip member at offset %d", len(compressed))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := readAll(t, c.data)
			require.ErrorIs(t, err, ErrMalformed)
			var e *Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, "test.warc", e.File)
			require.Equal(t, c.record, e.Record, err)
			require.Equal(t, c.offset, e.Offset, err)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func FuzzReader(f *testing.F) {
	good := record("1.0", "response", "http://a/", "HTTP/1.1 200 OK\r\n\r\n<p>")
	for _, s := range []string{"", good, good + record("1.1", "resource", "<http://b/>", "x"), good[:50], "WARC/1.0\r\nA:b\r\n c\r\n\r\n", "\x1f\x8b"} {
		f.Add([]byte(s))
		f.Add(gz(s))
	}
	f.Add(gz(good[:20], good[20:]))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := NewReader(bytes.NewReader(data), "fuzz")
		require.NoError(t, err)
		last := int64(-1)
		for {
			rec, err := r.Next()
			if err != nil {
				require.True(t, errors.Is(err, ErrMalformed) != (err == io.EOF), "%v", err) //nolint:errorlint // exactly io.EOF
				return
			}
			require.GreaterOrEqual(t, rec.Offset, last)
			require.Less(t, rec.Offset, int64(len(data)))
			last = rec.Offset
			if rec.Number%2 == 0 {
				continue // its block is passed over by Next
			}
			n, err := io.Copy(io.Discard, rec.Block)
			if err != nil {
				require.ErrorIs(t, err, ErrMalformed)
				return
			}
			require.Equal(t, rec.Length, n)
		}
	})
}
