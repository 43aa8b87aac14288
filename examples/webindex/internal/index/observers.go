package index

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/percolate-go/percolate/examples/webindex/internal/page"
	"github.com/percolate-go/percolate/percolator"
)

// The observers. Each recomputes one thing from what its snapshot shows and
// writes what differs, so running one too often changes nothing. Every
// transaction that changes what another observer's result depends on notifies
// that observer's cell in the same commit; so after the last change there is
// always one more run that sees it. Where many sources feed one result, the
// notification is weak, so that they do not conflict (section 2.4 of the paper).
//
//	parse       page.body        strong  by the loader
//	inlinks     doc.inlinks      weak    by parse of the page and of pages that link to it
//	cluster     cluster.members  weak    by parse and inlinks of members
//	index       doc.index        weak    by cluster and inlinks, by parse of a removed page, by itself
//	searchable  doc.done         strong  by index
const (
	columnInlinks = "inlinks"
	columnMembers = "members"
	columnIndex   = "index"
	columnDone    = "done"
)

const (
	// maxPostings is how many postings one run of index changes at most.
	maxPostings = 1000
	// maxTold is how many members of a cluster one run tells at most.
	maxTold = 500
	// shards is how many rows the count of indexed pages is spread over.
	shards = 1024
)

func (x *Index) observers() []percolator.Observer {
	return []percolator.Observer{
		{Name: "parse", Table: tablePage, Column: "body", Func: x.parse},
		{Name: "inlinks", Table: tableDoc, Column: columnInlinks, Func: x.inlinks, Prefetch: []string{"hash"}},
		{Name: "cluster", Table: tableCluster, Column: columnMembers, Func: x.cluster},
		{Name: "index", Table: tableDoc, Column: columnIndex, Func: x.index, Prefetch: []string{"hash", "terms", "indexed", columnDone}},
		{Name: "searchable", Table: tableDoc, Column: columnDone, Func: x.searchable},
	}
}

// Observe registers the observers with a worker.
func (x *Index) Observe(w *percolator.Worker) error {
	for _, o := range x.observers() {
		run := o.Func
		o.Func = func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
			x.calls.Add(1)
			return run(ctx, tx, c)
		}
		if err := w.Observe(o); err != nil {
			return fmt.Errorf("registering the observers: %w", err)
		}
	}
	return nil
}

// WaitObserved waits until the observers are known to the database, after a
// worker was started. Pages may be loaded before, but those are found only when
// the worker looks at all old data, one catalog lease later.
func (x *Index) WaitObserved(ctx context.Context) error {
	for {
		known, err := x.db.Observers(ctx)
		if err != nil {
			return fmt.Errorf("waiting for the observers to be known: %w", err)
		}
		missing := slices.ContainsFunc(x.observers(), func(o percolator.Observer) bool {
			return !slices.ContainsFunc(known, func(k percolator.ObserverInfo) bool { return k.Name == o.Name && k.Table == o.Table })
		})
		if !missing {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(2 * time.Millisecond): // look again
		}
	}
}

// parse takes a page apart after it was loaded, changed or removed.
func (x *Index) parse(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
	u := c.Row
	have, err := tx.GetMany(ctx, pageBody(u), docCell(u, "hash"), docCell(u, "links"))
	if err != nil {
		return err
	}
	body, exists := have[pageBody(u)]
	oldHash, known := have[docCell(u, "hash")]
	newHash := ""
	if exists {
		newHash = Hash(body)
	}
	if string(oldHash) == newHash {
		return nil // also where the page was removed before it was parsed
	}

	var links []page.Link
	if exists {
		p, err := page.Parse(u, body)
		if err != nil {
			return fmt.Errorf("parsing %s: %w", u, err)
		}
		links = p.Links
		err = errors.Join(
			tx.Set(docCell(u, "hash"), []byte(newHash)),
			tx.Set(docCell(u, "title"), []byte(p.Title)),
			tx.Set(docCell(u, "text"), []byte(p.Text)),
			tx.Set(docCell(u, "terms"), encodeTerms(p)),
			tx.Set(docCell(u, "links"), encodeLinks(links)),
			tx.Set(dupCell(newHash, u, "n"), []byte("0")), // inlinks counts
			tx.Notify(docCell(u, columnInlinks)),
		)
		if err != nil {
			return err
		}
	} else {
		for _, column := range []string{"hash", "title", "text", "terms", "links"} {
			if err := tx.Delete(docCell(u, column)); err != nil {
				return err
			}
		}
		if err := tx.Notify(docCell(u, columnIndex)); err != nil {
			return err
		}
	}
	if known {
		// Both are deleted whether they exist or not: that makes this transaction
		// conflict with one that is setting them.
		err := errors.Join(
			tx.Delete(dupCell(string(oldHash), u, "n")),
			tx.Delete(dupCell(string(oldHash), u, "told")),
			tx.Notify(clusterCell(string(oldHash), columnMembers)),
		)
		if err != nil {
			return err
		}
	}
	return x.relink(tx, u, decodeLinks(have[docCell(u, "links")]), links)
}

// relink changes the inverted links of u from the old ones, target to anchors, to
// the new ones.
func (x *Index) relink(tx *percolator.Txn, u string, old map[string]string, links []page.Link) error {
	for _, l := range links {
		anchors := strings.Join(l.Anchors, "\t")
		was, had := old[l.Target]
		delete(old, l.Target)
		if had && was == anchors {
			continue
		}
		if err := errors.Join(tx.Set(linkAnchor(l.Target, u), []byte(anchors)), tx.Notify(docCell(l.Target, columnInlinks))); err != nil {
			return err
		}
	}
	for _, target := range slices.Sorted(maps.Keys(old)) {
		if err := errors.Join(tx.Delete(linkAnchor(target, u)), tx.Notify(docCell(target, columnInlinks))); err != nil {
			return err
		}
	}
	return nil
}

// inlinks counts the pages that link to a page, and passes on that the links, or
// the page itself, changed.
func (x *Index) inlinks(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
	u := c.Row
	have, err := tx.GetMany(ctx, docCell(u, "hash"))
	if err != nil {
		return err
	}
	hash, exists := have[docCell(u, "hash")]
	if !exists {
		return nil // parse notifies again when the page comes
	}
	n := 0
	for _, err := range tx.Scan(ctx, under(tableLink, u, "anchor")) {
		if err != nil {
			return err
		}
		n++
	}
	nCell, toldCell := dupCell(string(hash), u, "n"), dupCell(string(hash), u, "told")
	member, alone, err := readMember(ctx, tx, string(hash), u)
	if err != nil {
		return err
	}
	canonical, decided := member[toldCell]
	was, err := strconv.Atoi(string(member[nCell]))
	if err != nil {
		return fmt.Errorf("%w: links to %s: %w", errStored, u, err)
	}
	if n == was && decided {
		// Nothing that cluster looks at changed, but anchor texts may have.
		return tx.Notify(docCell(string(canonical), columnIndex))
	}
	if n != was {
		if err := tx.Set(nCell, strconv.AppendInt(nil, int64(n), 10)); err != nil {
			return err
		}
	}
	if alone && n > was && string(canonical) == u {
		// The usual case: more links to the only page with its content, which stays
		// canonical. Should a run of cluster prefer another page that comes meanwhile,
		// because it does not see the new links, it tells this one so: writing the same
		// cell here makes one of the two conflict and look again.
		return errors.Join(tx.Set(toldCell, canonical), tx.Notify(docCell(u, columnIndex)))
	}
	return tx.Notify(clusterCell(string(hash), columnMembers))
}

// readMember reads what a cluster keeps of a member, and tells whether that is its
// only one.
func readMember(ctx context.Context, tx *percolator.Txn, hash, u string) (member map[percolator.Cell][]byte, alone bool, err error) {
	r := under(tableDup, hash, "n", "told")
	r.Limit = 2 // a second one says that there are others
	member = make(map[percolator.Cell][]byte)
	rows := 0
	for row, err := range tx.Scan(ctx, r) {
		if err != nil {
			return nil, false, err
		}
		rows++
		for column, value := range row.Columns {
			member[dupCell(hash, second(row.Key), column)] = value
		}
	}
	if rows < 2 {
		return member, true, nil
	}
	member, err = tx.GetMany(ctx, dupCell(hash, u, "n"), dupCell(hash, u, "told"))
	return member, false, err
}

// readMembers returns the URLs of all members of a cluster.
func readMembers(ctx context.Context, tx *percolator.Txn, hash string) ([]string, error) {
	var members []string
	for row, err := range tx.Scan(ctx, under(tableDup, hash, "n")) {
		if err != nil {
			return nil, err
		}
		members = append(members, second(row.Key))
	}
	return members, nil
}

// cluster chooses the canonical page of a cluster: the member with the most pages
// that link to it, and of those the one whose URL is first.
func (x *Index) cluster(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
	hash := c.Row
	type member struct{ url, told string }
	var members []member
	canonical, most := "", -1
	for row, err := range tx.Scan(ctx, under(tableDup, hash, "n", "told")) {
		if err != nil {
			return err
		}
		m := member{url: second(row.Key), told: string(row.Columns["told"])}
		n, err := strconv.Atoi(string(row.Columns["n"]))
		if err != nil {
			return fmt.Errorf("%w: member %s of cluster %s: %w", errStored, m.url, hash, err)
		}
		if n > most { // rows come in the order of their URLs
			canonical, most = m.url, n
		}
		members = append(members, m)
	}
	chosen := clusterCell(hash, "canonical")
	have, err := tx.GetMany(ctx, chosen)
	if err != nil {
		return err
	}
	old, decided := have[chosen]
	if canonical == "" {
		if decided {
			return tx.Delete(chosen)
		}
		return nil
	}
	if string(old) != canonical {
		if err := tx.Set(chosen, []byte(canonical)); err != nil {
			return err
		}
	}
	// The canonical page's postings depend on who the members are, and on the links
	// to all of them. Each member's depend on which page is canonical; what it was
	// told last is kept beside it, so that none is missed, however runs interleave.
	if err := tx.Notify(docCell(canonical, columnIndex)); err != nil {
		return err
	}
	told := 0
	for _, m := range members {
		if m.told == canonical {
			continue
		}
		if told++; told > maxTold && m.url != canonical {
			return tx.Notify(c) // the rest in another transaction
		}
		if err := errors.Join(tx.Set(dupCell(hash, m.url, "told"), []byte(canonical)), tx.Notify(docCell(m.url, columnIndex))); err != nil {
			return err
		}
	}
	return nil
}

// index brings the postings of a page in line with its terms and the anchor texts
// of its cluster if it is canonical, and removes them if it is not.
func (x *Index) index(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
	u := c.Row
	indexed, done := docCell(u, "indexed"), docCell(u, columnDone)
	have, err := tx.GetMany(ctx, docCell(u, "hash"), docCell(u, "terms"), indexed, done)
	if err != nil {
		return err
	}
	hash, exists := have[docCell(u, "hash")]
	var want map[string]int
	canonical := false
	if exists {
		member, alone, err := readMember(ctx, tx, string(hash), u)
		if err != nil {
			return err
		}
		told, decided := member[dupCell(string(hash), u, "told")]
		if !decided {
			return nil // cluster notifies again when it has decided
		}
		if canonical = string(told) == u; canonical {
			members := []string{u}
			if !alone {
				if members, err = readMembers(ctx, tx, string(hash)); err != nil {
					return err
				}
			}
			if want, err = wantedWeights(ctx, tx, members, have[docCell(u, "terms")]); err != nil {
				return err
			}
		}
	}
	record, wasIndexed := have[indexed]
	is, err := decodeWeights(record)
	if err != nil {
		return fmt.Errorf("page %s: %w", u, err)
	}
	complete, changed, err := repost(tx, u, is, want)
	if err != nil {
		return err
	}

	isIndexed := canonical || len(is) > 0
	switch {
	case isIndexed && (changed || !wasIndexed):
		err = tx.Set(indexed, encodeWeights(slices.Sorted(maps.Keys(is)), is))
	case !isIndexed && wasIndexed:
		err = tx.Delete(indexed)
	}
	if err == nil && isIndexed != wasIndexed {
		err = count(ctx, tx, u, isIndexed)
	}
	if err != nil {
		return err
	}
	if !complete {
		return tx.Notify(c) // the rest in another transaction
	}
	doneHash, wasDone := have[done]
	switch {
	case exists && string(doneHash) != string(hash):
		return tx.Set(done, hash)
	case !exists && wasDone:
		return tx.Delete(done)
	}
	return nil
}

// wantedWeights computes the postings of a canonical page from its terms, and from the links to all members of its cluster.
func wantedWeights(ctx context.Context, tx *percolator.Txn, members []string, terms []byte) (map[string]int, error) {
	words, counts, err := decodeTerms(terms)
	if err != nil {
		return nil, err
	}
	anchors := make(map[string]int) // term -> links that have it
	texts := make(map[string]int)   // many links have the same text
	for _, m := range members {
		for row, err := range tx.Scan(ctx, under(tableLink, m, "anchor")) {
			if err != nil {
				return nil, err
			}
			texts[string(row.Columns["anchor"])]++
		}
	}
	for text, links := range texts {
		seen := make(map[string]bool)
		for t := range page.Terms(text) {
			if !seen[t] {
				seen[t] = true
				anchors[t] += links
			}
		}
	}
	want := make(map[string]int, len(counts)+len(anchors))
	for t, n := range counts {
		want[t] = weight(n, anchors[t], words)
	}
	for t, n := range anchors {
		if _, ok := counts[t]; !ok {
			want[t] = weight(page.Count{}, n, words)
		}
	}
	return want, nil
}

// repost changes postings of u from is to want, maxPostings at most, and changes
// is along.
func repost(tx *percolator.Txn, u string, is, want map[string]int) (complete, changed bool, err error) {
	var diff []string
	for t, w := range want {
		if is[t] != w { // weights are never 0
			diff = append(diff, t)
		}
	}
	for t := range is {
		if _, ok := want[t]; !ok {
			diff = append(diff, t)
		}
	}
	slices.Sort(diff)
	complete = len(diff) <= maxPostings
	for _, t := range diff[:min(len(diff), maxPostings)] {
		if w, ok := want[t]; ok {
			is[t] = w
			err = tx.Set(termWeight(t, u), strconv.AppendInt(nil, int64(w), 10))
		} else {
			delete(is, t)
			err = tx.Delete(termWeight(t, u))
		}
		if err != nil {
			return false, false, err
		}
	}
	return complete, len(diff) > 0, nil
}

// count keeps the number of indexed pages, which ranking needs.
func count(ctx context.Context, tx *percolator.Txn, u string, up bool) error {
	cell := statDocs(shard(u))
	have, err := tx.GetMany(ctx, cell)
	if err != nil {
		return err
	}
	n := 0
	if v, ok := have[cell]; ok {
		if n, err = strconv.Atoi(string(v)); err != nil {
			return fmt.Errorf("%w: count of pages: %w", errStored, err)
		}
	}
	if n--; up {
		n += 2
	}
	if n == 0 {
		return tx.Delete(cell)
	}
	return tx.Set(cell, []byte(strconv.Itoa(n)))
}

func shard(u string) string {
	h := uint32(2166136261) // FNV-1a
	for i := range len(u) {
		h = (h ^ uint32(u[i])) * 16777619
	}
	return fmt.Sprintf("%03x", h%shards)
}

// searchable notes when a page that this process loaded has come through.
func (x *Index) searchable(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
	hash, err := tx.Get(ctx, c)
	if errors.Is(err, percolator.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	x.pages.Add(1)
	x.latency.searchable(c.Row, string(hash), time.Now())
	return nil
}
