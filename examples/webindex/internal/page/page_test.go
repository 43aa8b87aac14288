package page

import (
	"net/url"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParse(t *testing.T) {
	t.Parallel()
	p, err := Parse("https://example.com/a/b.html", []byte(`<!doctype html>
<title> The  first
 page </title><title>second</title>
<style>p { color: red }</style><script>var hidden = 1</script>
<h1>Head</h1><p>Some <b>bo</b>ld text&amp;more.<a href="c.html#x">to <i>C</i></a>
<a href="../d.html">D</a> <a href="/a/c.html">again C</a> <a href="c.html">to C</a>
<a href="#top">self</a> <a href="b.html">self</a> <a href="mailto:x@y.z">mail</a> <a href="javascript:x()">js</a>
<a href="HTTPS://Example.COM:443"><img src=x alt="the logo"></a> <a name="n">no link</a>
<table><tr><td>one<td>two</table>`))
	require.NoError(t, err)
	require.Equal(t, "The first page", p.Title)
	require.Equal(t, []Link{
		{Target: "https://example.com/", Anchors: []string{"the logo"}},
		{Target: "https://example.com/a/c.html", Anchors: []string{"to C", "again C"}},
		{Target: "https://example.com/d.html", Anchors: []string{"D"}},
	}, p.Links)
	require.Equal(t, "Head Some bold text&more.to C D again C to C self self mail js the logo no link one two", p.Text)
	require.Equal(t, Count{Title: 1}, p.Terms["first"])
	require.Equal(t, Count{Body: 1}, p.Terms["bold"])
	require.NotContains(t, p.Terms, "hidden")
	require.NotContains(t, p.Terms, "color")
	require.NotContains(t, p.Terms, "the")
}

func TestParseBase(t *testing.T) {
	t.Parallel()
	p, err := Parse("https://example.com/a/b.html", []byte(`<base href="../z/"><base href="/no/"><a href=q.html>q</a>`))
	require.NoError(t, err)
	require.Equal(t, []Link{{Target: "https://example.com/z/q.html", Anchors: []string{"q"}}}, p.Links)
}

func TestParseTooDeep(t *testing.T) {
	t.Parallel()
	_, err := Parse("https://example.com/", []byte(strings.Repeat("<div>", 10000)))
	require.ErrorIs(t, err, ErrMalformed)
}

func TestParseBounds(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for i := range MaxLinks + 10 {
		b.WriteString(`<a href="p` + strings.Repeat("x", i%7) + string(rune('a'+i%26)) + `/` + url.PathEscape(string(rune(0x4e00+i))) + `">l</a> `)
	}
	for i := range MaxTerms + 10 {
		b.WriteString(" w" + string(rune('a'+i%26)) + string(rune('a'+i/26%26)) + string(rune('a'+i/676%26)) + string(rune('a'+i/17576%26)))
	}
	p, err := Parse("https://example.com/", []byte(b.String()))
	require.NoError(t, err)
	require.Len(t, p.Links, MaxLinks)
	require.Len(t, p.Terms, MaxTerms)
}

func TestNormalize(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"http://Example.com":                "http://example.com/",
		"http://example.com:80/x?q=1#f":     "http://example.com/x?q=1",
		"https://example.com:8443/":         "https://example.com:8443/",
		"https://user:pw@example.com/":      "https://example.com/",
		"file:///docs/index.html?x":         "file:///docs/",
		"file:///docs/sub/":                 "file:///docs/sub/",
		"http://example.com/a/./b/../c":     "http://example.com/a/c",
		"http://example.com/a b?c d":        "http://example.com/a%20b?c%20d",
		"file:///docs/a%20b%41.html":        "file:///docs/a%20bA.html",
		"http://example.com/a/index.html":   "http://example.com/a/index.html",
		"http://example.com/caf\u00e9/%2F":  "http://example.com/caf\u00e9/%2F",
		"https://[2001:DB8::1]:443/x":       "https://[2001:db8::1]/x",
		"https://[2001:DB8::1]/x?a=b&c=d#e": "https://[2001:db8::1]/x?a=b&c=d",
	} {
		got, err := Normalize(raw)
		require.NoError(t, err, raw)
		again, err := Normalize(got)
		require.NoError(t, err, raw)
		require.Equal(t, got, again, "%s: not a fixed point", raw)
		if !strings.Contains(raw, "\u00e9") {
			require.Equal(t, want, got)
		}
	}
	for _, raw := range []string{"", "x.html", "ftp://a/b", "http:///x", "http://a/\x00", "mailto:a@b", "http://a/" + strings.Repeat("x", MaxURL), "%zz"} {
		_, err := Normalize(raw)
		require.Error(t, err, "%q", raw)
	}
}

func TestDecode(t *testing.T) {
	t.Parallel()
	got, err := Decode([]byte("caf\xe9"), "text/html; charset=iso-8859-1")
	require.NoError(t, err)
	require.Equal(t, "caf\u00e9", string(got))
	got, err = Decode([]byte("\xfe\xff\x00h\x00i"), "")
	require.NoError(t, err)
	require.Equal(t, "hi", string(got))
	got, err = Decode([]byte(`<meta charset="windows-1252">`+"\x80"), "")
	require.NoError(t, err)
	require.Equal(t, `<meta charset="windows-1252">`+"\u20ac", string(got))
	_, err = Decode([]byte("GIF89a\x00\x01"), "text/html; charset=utf-8")
	require.ErrorIs(t, err, ErrMalformed)
	_, err = Decode(make([]byte, MaxBody+1), "")
	require.ErrorIs(t, err, ErrTooLarge)
}

func TestTerms(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"hello", "world2", "io", "readall", "\u6f22", "\u5b57", "ok", "stra\u00dfe"},
		slices.Collect(Terms("Hello, the world2! io.ReadAll \u6f22\u5b57ok x STRA\u00dfE "+strings.Repeat("long", 20))))
	for range Terms("one two three") {
		break // an early stop must not panic
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"", "<p>text", "<a href=x>y</a>", "<a href='http://[::1'>z</a>", "<title>a<title>b", "<table><a href=1><tr><td>2</a>",
		"<base href='//x'><a href=''>", "<svg><a href=q>w</a><title>t</title></svg>", "\x00\xff", "<a href=a><a href=b>c",
		strings.Repeat("<b>", 600),
	} {
		f.Add("https://example.com/dir/page.html", []byte(s))
	}
	f.Fuzz(func(t *testing.T, pageURL string, data []byte) {
		u, err := Normalize(pageURL)
		if err != nil {
			return
		}
		body, err := Decode(data, "")
		if err != nil {
			return
		}
		require.True(t, utf8.Valid(body))
		p, err := Parse(u, body)
		if err != nil {
			require.ErrorIs(t, err, ErrMalformed)
			return
		}
		require.True(t, slices.IsSortedFunc(p.Links, func(a, b Link) int { return strings.Compare(a.Target, b.Target) }))
		for _, l := range p.Links {
			n, err := Normalize(l.Target)
			require.NoError(t, err)
			require.Equal(t, l.Target, n)
			require.NotEqual(t, u, l.Target)
			for _, a := range l.Anchors {
				require.NotEmpty(t, a)
				require.Equal(t, squeeze(a), a)
				require.NotContains(t, a, "\t")
			}
		}
		words := 0
		for term, n := range p.Terms {
			require.NotEmpty(t, term)
			require.LessOrEqual(t, len(term), MaxTermLen)
			require.Equal(t, []string{term}, slices.Collect(Terms(term)))
			words += n.Body
		}
		require.LessOrEqual(t, words, p.Words)
	})
}
