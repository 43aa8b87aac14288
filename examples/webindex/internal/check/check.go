// Package check recomputes a web index from its pages, in one pass and by other
// means than the observers: it reads every page into memory, works out everything
// at once, and compares the result with what the tables hold, row by row. Of the
// index's own code it uses the HTML parser and its terms, and nothing else.
package check

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"

	"github.com/percolate-go/percolate/examples/webindex/internal/page"
	"github.com/percolate-go/percolate/percolator"
)

// Report is the result of a check.
type Report struct {
	// Pages and Cells are how many pages were recomputed and how many stored values
	// compared.
	Pages, Cells int
	// Digest stands for the set of pages and their contents. Two checks with equal
	// digests looked at the same pages.
	Digest string
	// Count is how many differences there are, and Differences are the first of
	// them, a line each.
	Count       int
	Differences []string
}

// OK tells that there is no difference.
func (r Report) OK() bool { return r.Count == 0 }

// key names a stored value.
type key struct{ table, row, column string }

func (k key) String() string {
	return fmt.Sprintf("table %s, row %q, column %s", k.table, strings.ReplaceAll(k.row, "\x00", " "), k.column)
}

// Run checks the index in db, in one snapshot. It keeps at most maxDifferences
// lines. While observers have work left there are differences, naturally.
func Run(ctx context.Context, db *percolator.DB, maxDifferences int) (Report, error) {
	var r Report
	err := db.View(ctx, func(tx *percolator.Txn) (err error) {
		r, err = run(ctx, tx, maxDifferences)
		return err
	})
	if err != nil {
		return Report{}, fmt.Errorf("checking the index: %w", err)
	}
	return r, nil
}

func run(ctx context.Context, tx *percolator.Txn, maxDifferences int) (Report, error) {
	var r Report
	pages, hashes, odd, err := readPages(ctx, tx)
	if err != nil {
		return r, err
	}
	r.Pages = len(pages)
	digest := sha256.New()
	for _, u := range slices.Sorted(maps.Keys(hashes)) {
		fmt.Fprintf(digest, "%s %s\n", u, hashes[u])
	}
	r.Digest = fmt.Sprintf("%x", digest.Sum(nil))

	want := expect(pages, hashes)
	differ := func(line string) {
		if r.Count++; len(r.Differences) < maxDifferences {
			r.Differences = append(r.Differences, line)
		}
	}
	for _, line := range odd {
		differ(line)
	}
	for _, table := range []string{"doc", "link", "dup", "cluster", "term", "stat"} {
		for row, err := range tx.Scan(ctx, percolator.Range{Table: table}) {
			if err != nil {
				return r, err
			}
			for _, column := range slices.Sorted(maps.Keys(row.Columns)) {
				r.Cells++
				k := key{table, row.Key, column}
				is := string(row.Columns[column])
				should, ok := want[k]
				delete(want, k)
				switch {
				case !ok:
					differ(fmt.Sprintf("%v: %s is stored, but nothing should be", k, short(is)))
				case should != is:
					differ(fmt.Sprintf("%v: %s is stored, but it should be %s", k, short(is), short(should)))
				}
			}
		}
	}
	left := slices.SortedFunc(maps.Keys(want), func(a, b key) int {
		return strings.Compare(a.table+"\x00"+a.row+"\x00"+a.column, b.table+"\x00"+b.row+"\x00"+b.column)
	})
	for _, k := range left {
		differ(fmt.Sprintf("%v: nothing is stored, but it should be %s", k, short(want[k])))
	}
	return r, nil
}

// readPages reads every page and the hash of its body. odd says what is wrong with the rows
// of pages themselves.
func readPages(ctx context.Context, tx *percolator.Txn) (pages map[string]*page.Page, hashes map[string]string, odd []string, err error) {
	pages = make(map[string]*page.Page)
	hashes = make(map[string]string)
	for row, err := range tx.Scan(ctx, percolator.Range{Table: "page", Columns: []string{"body", "hash", "source"}}) {
		if err != nil {
			return nil, nil, nil, err
		}
		body, ok := row.Columns["body"]
		if !ok {
			odd = append(odd, fmt.Sprintf("table page, row %q has no body", row.Key))
			continue
		}
		p, err := page.Parse(row.Key, body)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("page %s: %w", row.Key, err)
		}
		hash := fmt.Sprintf("%x", sha256.Sum256(body))
		if string(row.Columns["hash"]) != hash {
			odd = append(odd, fmt.Sprintf("table page, row %q: the hash stored is %s, that of the body %s", row.Key, row.Columns["hash"], hash))
		}
		member := percolator.Range{Table: "source", From: string(row.Columns["source"]) + "\x00" + row.Key, Limit: 1}
		listed := false
		for m, err := range tx.Scan(ctx, member) {
			if err != nil {
				return nil, nil, nil, err
			}
			listed = m.Key == member.From
		}
		if !listed {
			odd = append(odd, fmt.Sprintf("page %s is not among those of its source %q", row.Key, row.Columns["source"]))
		}
		pages[row.Key], hashes[row.Key] = p, hash
	}
	return pages, hashes, odd, nil
}

func short(s string) string {
	if len(s) > 60 {
		return fmt.Sprintf("%q... (%d bytes)", s[:60], len(s))
	}
	return fmt.Sprintf("%q", s)
}

// values are what is stored in each cell.
type values map[key]string

// expect works out every value that the tables must hold, from the pages alone.
func expect(pages map[string]*page.Page, hashes map[string]string) values {
	want := make(values)
	inverted := want.links(pages)
	want.clusters(pages, hashes, inverted)
	want.docs(pages, hashes)
	return want
}

// inverted are the links: who links to a page, with which texts.
type inverted map[string]map[string][]string

// links adds the links, inverted, and returns them.
func (want values) links(pages map[string]*page.Page) inverted {
	links := make(inverted)
	for source, p := range pages {
		for _, l := range p.Links {
			if links[l.Target] == nil {
				links[l.Target] = make(map[string][]string)
			}
			links[l.Target][source] = l.Anchors
			want[key{"link", l.Target + "\x00" + source, "anchor"}] = strings.Join(l.Anchors, "\t")
		}
	}
	return links
}

// clusters adds the clusters of equal content, the canonical page of each with its
// postings, and the number of those.
func (want values) clusters(pages map[string]*page.Page, hashes map[string]string, inverted inverted) {
	clusters := make(map[string][]string)
	for u, hash := range hashes {
		clusters[hash] = append(clusters[hash], u)
	}
	indexed := make(map[string]int) // shard -> pages
	for hash, members := range clusters {
		slices.SortFunc(members, func(a, b string) int {
			if d := len(inverted[b]) - len(inverted[a]); d != 0 {
				return d
			}
			return strings.Compare(a, b)
		})
		canonical := members[0]
		want[key{"cluster", hash, "canonical"}] = canonical
		for _, m := range members {
			want[key{"dup", hash + "\x00" + m, "n"}] = fmt.Sprint(len(inverted[m]))
			want[key{"dup", hash + "\x00" + m, "told"}] = canonical
		}
		indexed[shard(canonical)]++

		want.postings(pages[canonical], canonical, members, inverted)
	}
	for s, n := range indexed {
		want[key{"stat", s, "docs"}] = fmt.Sprint(n)
	}
}

// postings adds those of a canonical page: its own terms, and those of the links to all
// members of its cluster.
func (want values) postings(p *page.Page, canonical string, members []string, inverted inverted) {
	type tally struct{ title, body, links int }
	tallies := make(map[string]*tally)
	at := func(term string) *tally {
		if tallies[term] == nil {
			tallies[term] = new(tally)
		}
		return tallies[term]
	}
	for term, n := range p.Terms {
		at(term).title, at(term).body = n.Title, n.Body
	}
	for _, m := range members {
		for _, anchors := range inverted[m] {
			// One link counts once for a term, in however many of its texts it is.
			for _, term := range slices.Compact(slices.Sorted(page.Terms(strings.Join(anchors, " ")))) {
				at(term).links++
			}
		}
	}
	var record strings.Builder
	for _, term := range slices.Sorted(maps.Keys(tallies)) {
		n := tallies[term]
		w := weight(n.title, n.body, n.links, p.Words)
		want[key{"term", term + "\x00" + canonical, "w"}] = w
		fmt.Fprintf(&record, "%s\t%s\n", term, w)
	}
	want[key{"doc", canonical, "indexed"}] = record.String()
}

// docs adds what is kept of every page.
func (want values) docs(pages map[string]*page.Page, hashes map[string]string) {
	for u, p := range pages {
		want[key{"doc", u, "hash"}] = hashes[u]
		want[key{"doc", u, "done"}] = hashes[u]
		want[key{"doc", u, "title"}] = p.Title
		want[key{"doc", u, "text"}] = p.Text
		var terms, links strings.Builder
		fmt.Fprintln(&terms, p.Words)
		for _, term := range slices.Sorted(maps.Keys(p.Terms)) {
			fmt.Fprintf(&terms, "%s\t%d\t%d\n", term, p.Terms[term].Title, p.Terms[term].Body)
		}
		for _, l := range p.Links {
			fmt.Fprintln(&links, strings.Join(append([]string{l.Target}, l.Anchors...), "\t"))
		}
		want[key{"doc", u, "terms"}] = terms.String()
		want[key{"doc", u, "links"}] = links.String()
	}
}

// weight is the weight of a term in a page as README.md defines it, in exact
// arithmetic: 2200 tf / (tf + 1200), where tf is 2000*400*body/(400+words) + 4000
// title + 2000 digits, digits is how many binary digits the number of links has,
// each quotient is rounded down, and the least weight is 1.
func weight(title, body, links, words int) string {
	tf := new(big.Int).Quo(big.NewInt(2000*400*int64(body)), big.NewInt(400+int64(words)))
	tf.Add(tf, big.NewInt(4000*int64(title)))
	for n := links; n > 0; n /= 2 {
		tf.Add(tf, big.NewInt(2000))
	}
	w := new(big.Int).Mul(tf, big.NewInt(2200))
	w.Quo(w, new(big.Int).Add(tf, big.NewInt(1200)))
	if w.Sign() == 0 {
		w.SetInt64(1)
	}
	return w.String()
}

// shard is the low 10 bits of the FNV-1a hash of a URL, as three hexadecimal
// digits.
func shard(u string) string {
	var h uint64 = 0x811c9dc5
	for _, b := range []byte(u) {
		h = ((h ^ uint64(b)) * 0x01000193) & 0xffffffff
	}
	return fmt.Sprintf("%03x", h&0x3ff)
}
