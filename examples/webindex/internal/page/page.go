// Package page turns the HTML of a page into what a web index keeps of it: the
// title, the text, the terms and the links out. It is the one package that the
// observers and the independent check share.
//
// Its answers depend on the URL and the body alone, and change only together
// with [Version].
package page

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
	"golang.org/x/net/html/charset"
)

// Version changes whenever Parse would answer differently for the same page. A
// store remembers with which version its index was made.
const Version = "1"

// Limits of a page. They bound what one page can cost: the transactions that
// index it, and the rows that they write.
const (
	// MaxBody is the greatest length of a page, in bytes of UTF-8.
	MaxBody = 4 << 20
	// MaxURL is the greatest length of a page's URL, in bytes. The key of a link
	// holds two of them. Links to longer ones are dropped.
	MaxURL = 1000
	// MaxLinks is how many different targets a page may link to; later ones are
	// dropped.
	MaxLinks = 4000
	// MaxTerms is how many different terms of a page are indexed, the title's
	// first; later ones are dropped.
	MaxTerms = 20000

	maxAnchors   = 8   // different anchor texts of one link target
	maxAnchorLen = 200 // bytes of one anchor text
	maxTitleLen  = 500 // bytes
)

// ErrMalformed says that something is not an HTML page: binary data, or elements
// nested too deep. Match it with errors.Is.
var ErrMalformed = errors.New("malformed HTML")

// ErrTooLarge says that a page is longer than MaxBody.
var ErrTooLarge = errors.New("page too large")

// Link is a page that is linked to.
type Link struct {
	// Target is the normalized URL, without a fragment.
	Target string
	// Anchors are the different texts of the links to it, in the order of the page.
	// A link without text (around an image, say) adds none.
	Anchors []string
}

// Count says how often a term occurs in a page.
type Count struct {
	Title, Body int
}

// Page is what Parse finds.
type Page struct {
	Title string
	Text  string
	// Links has one entry for each different target, in byte order of the targets.
	// The page itself is not among them.
	Links []Link
	// Terms counts the terms of title and text.
	Terms map[string]Count
	// Words is how many terms the text has, repeated ones included.
	Words int
}

// Decode turns the bytes of an HTML file into UTF-8, by its byte order mark, the
// charset in contentType (which may be empty), its meta elements, or else a
// guess. Bytes that the encoding does not know become U+FFFD, as in a browser.
// Data with zero bytes in it is no text and matches ErrMalformed; data over
// MaxBody matches ErrTooLarge.
func Decode(data []byte, contentType string) ([]byte, error) {
	if len(data) > MaxBody {
		return nil, fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLarge, len(data), MaxBody)
	}
	enc, name, _ := charset.DetermineEncoding(data, contentType)
	text, err := enc.NewDecoder().Bytes(data)
	if err != nil {
		return nil, fmt.Errorf("%w: cannot decode as %s: %w", ErrMalformed, name, err)
	}
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	if i := bytes.IndexByte(text, 0); i >= 0 {
		return nil, fmt.Errorf("%w: binary data: a zero byte at offset %d of the text", ErrMalformed, i)
	}
	text = bytes.ToValidUTF8(text, []byte("\ufffd"))
	if len(text) > MaxBody {
		return nil, fmt.Errorf("%w: %d bytes as UTF-8, the limit is %d", ErrTooLarge, len(text), MaxBody)
	}
	return text, nil
}

// Normalize gives the form in which a page's URL is stored: an absolute http,
// https or file URL without fragment, user and default port, the host in lower
// case. For files it drops the query and a last "index.html", so that a link to
// a directory reaches its index.
func Normalize(raw string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return "", fmt.Errorf("bad URL: %w", err)
	}
	s, why := normalize(new(url.URL).ResolveReference(u)) // removes . and .. from the path
	if why != "" {
		return "", fmt.Errorf("bad URL %q: %s", raw, why)
	}
	return s, nil
}

func normalize(u *url.URL) (normal, why string) {
	n := url.URL{Scheme: strings.ToLower(u.Scheme), Host: strings.ToLower(u.Host), Path: u.Path, RawPath: u.RawPath}
	switch n.Scheme {
	case "http", "https":
		if n.Host == "" {
			return "", "it names no host"
		}
		n.RawQuery = strings.ReplaceAll(u.RawQuery, " ", "%20") // as browsers do
		if p := n.Port(); p == "" || (n.Scheme == "http" && p == "80") || (n.Scheme == "https" && p == "443") {
			n.Host = strings.TrimSuffix(n.Host, ":"+p)
		}
		if n.Path == "" {
			n.Path = "/"
		}
	case "file":
		n.RawPath = ""
		for _, index := range []string{"/index.html", "/index.htm"} {
			if dir, ok := strings.CutSuffix(n.Path, index); ok {
				n.Path = dir + "/"
			}
		}
	case "":
		return "", "it is not absolute"
	default:
		return "", "its scheme is not http, https or file"
	}
	if !strings.HasPrefix(n.Path, "/") {
		return "", "its path does not begin with a slash"
	}
	s := n.String()
	if len(s) > MaxURL {
		return "", fmt.Sprintf("it has %d bytes, the limit is %d", len(s), MaxURL)
	}
	// Keys of the index join URLs with zero bytes, and values with white space.
	if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == utf8.RuneError || unicode.IsSpace(r) }) {
		return "", "it holds white space or control characters"
	}
	return s, ""
}

// Parse reads a page. pageURL is its normalized URL, against which links are
// resolved; body is UTF-8 as Decode returns it. HTML with errors is read as a
// browser would; only what no parser can take matches ErrMalformed.
func Parse(pageURL string, body []byte) (*Page, error) {
	base, err := url.Parse(pageURL)
	if err != nil {
		return nil, fmt.Errorf("bad URL: %w", err)
	}
	root, err := html.Parse(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	c := collector{self: pageURL, base: base, targets: make(map[string]int)}
	c.walk(root)

	p := &Page{Title: cut(squeeze(c.title.String()), maxTitleLen), Text: squeeze(c.text.String()), Links: c.links}
	slices.SortFunc(p.Links, func(a, b Link) int { return strings.Compare(a.Target, b.Target) })
	p.Terms = make(map[string]Count)
	add := func(term string, d Count) {
		n, known := p.Terms[term]
		if !known && len(p.Terms) >= MaxTerms {
			return
		}
		p.Terms[term] = Count{Title: n.Title + d.Title, Body: n.Body + d.Body}
	}
	for term := range Terms(p.Title) {
		add(term, Count{Title: 1})
	}
	for term := range Terms(p.Text) {
		p.Words++
		add(term, Count{Body: 1})
	}
	return p, nil
}

type collector struct {
	self    string
	base    *url.URL
	hasBase bool
	title   strings.Builder
	titled  bool
	text    strings.Builder
	links   []Link
	targets map[string]int // target -> index in links
}

// walk visits the tree without recursion: the parser bounds its depth, but a
// later version of it may not.
func (c *collector) walk(root *html.Node) {
	type frame struct {
		n     *html.Node
		leave bool
	}
	type anchor struct {
		node *html.Node
		text strings.Builder
	}
	var open []*anchor
	emit := func(s string) {
		c.text.WriteString(s)
		for _, a := range open {
			a.text.WriteString(s)
		}
	}
	stack := []frame{{n: root}}
	for len(stack) > 0 {
		f := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		n := f.n
		if f.leave {
			if n.DataAtom == atom.A && len(open) > 0 && open[len(open)-1].node == n {
				a := open[len(open)-1]
				open = open[:len(open)-1]
				c.link(attr(n, "href"), a.text.String())
			}
			if breaks(n.DataAtom) {
				emit(" ")
			}
			continue
		}
		switch n.Type {
		case html.TextNode:
			emit(n.Data)
			continue
		case html.ElementNode:
			if n.Namespace == "" && c.special(n) {
				continue
			}
			if breaks(n.DataAtom) {
				emit(" ")
			}
			switch n.DataAtom {
			case atom.A:
				if hasAttr(n, "href") {
					open = append(open, &anchor{node: n})
				}
			case atom.Img:
				emit(" " + attr(n, "alt") + " ")
			case atom.Area:
				if hasAttr(n, "href") {
					c.link(attr(n, "href"), attr(n, "alt"))
				}
			default:
			}
		case html.DocumentNode:
		default:
			continue
		}
		stack = append(stack, frame{n: n, leave: true})
		for child := n.LastChild; child != nil; child = child.PrevSibling {
			stack = append(stack, frame{n: child})
		}
	}
}

// special handles the elements whose content is no text of the page; it answers
// whether n was one.
func (c *collector) special(n *html.Node) bool {
	switch n.DataAtom {
	case atom.Script, atom.Style, atom.Template, atom.Noscript, atom.Iframe, atom.Object:
		return true
	case atom.Title:
		if !c.titled {
			c.titled = true
			for child := n.FirstChild; child != nil; child = child.NextSibling {
				c.title.WriteString(child.Data)
			}
		}
		return true
	case atom.Base:
		if ref, err := url.Parse(strings.TrimSpace(attr(n, "href"))); err == nil && !c.hasBase && hasAttr(n, "href") {
			c.hasBase = true
			c.base = c.base.ResolveReference(ref)
		}
		return true
	default:
		return false
	}
}

func (c *collector) link(href, text string) {
	target, ok := Resolve(c.base, href)
	if !ok || target == c.self {
		return
	}
	i, known := c.targets[target]
	if !known {
		if len(c.links) >= MaxLinks {
			return
		}
		i = len(c.links)
		c.targets[target] = i
		c.links = append(c.links, Link{Target: target})
	}
	l := &c.links[i]
	text = cut(squeeze(text), maxAnchorLen)
	if text != "" && len(l.Anchors) < maxAnchors && !slices.Contains(l.Anchors, text) {
		l.Anchors = append(l.Anchors, text)
	}
}

// Resolve gives the normalized URL that href names on a page with the given
// base; ok is false when it names no page (a mail address, a script, nonsense).
func Resolve(base *url.URL, href string) (target string, ok bool) {
	ref, err := url.Parse(strings.TrimSpace(href))
	if err != nil {
		return "", false
	}
	target, why := normalize(base.ResolveReference(ref))
	return target, why == ""
}

func attr(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Namespace == "" && a.Key == key {
			return a.Val
		}
	}
	return ""
}

func hasAttr(n *html.Node, key string) bool {
	return slices.ContainsFunc(n.Attr, func(a html.Attribute) bool { return a.Namespace == "" && a.Key == key })
}

// breaks tells which elements stand apart from the text around them.
func breaks(a atom.Atom) bool {
	switch a {
	case atom.Address, atom.Article, atom.Aside, atom.Blockquote, atom.Br, atom.Button, atom.Caption, atom.Center,
		atom.Dd, atom.Details, atom.Div, atom.Dl, atom.Dt, atom.Fieldset, atom.Figcaption, atom.Figure, atom.Footer,
		atom.Form, atom.H1, atom.H2, atom.H3, atom.H4, atom.H5, atom.H6, atom.Header, atom.Hr, atom.Input, atom.Li,
		atom.Main, atom.Nav, atom.Ol, atom.Option, atom.P, atom.Pre, atom.Section, atom.Select, atom.Summary,
		atom.Table, atom.Tbody, atom.Td, atom.Textarea, atom.Tfoot, atom.Th, atom.Thead, atom.Tr, atom.Ul:
		return true
	default:
		return false
	}
}

// squeeze makes each run of white space and control characters one space, and
// none at the ends.
func squeeze(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	gap := false
	for _, r := range s {
		if unicode.IsSpace(r) || unicode.IsControl(r) {
			gap = true
			continue
		}
		if gap && b.Len() > 0 {
			b.WriteByte(' ')
		}
		gap = false
		b.WriteRune(r)
	}
	return b.String()
}

// cut shortens s to at most n bytes, between runes and without a space at the
// end.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return strings.TrimRight(s[:n], " ")
}
