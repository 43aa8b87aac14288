package index

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// Index is a web index in a database. Its methods may be called concurrently.
type Index struct {
	db      *percolator.DB
	latency *latency
	calls   atomic.Uint64 // of observers' functions
	pages   atomic.Uint64 // of these: that found a page searchable
}

// ErrFormat says that a store holds an index of another version of this program.
var ErrFormat = errors.New("the store's index has another format")

// New opens the index in db, or begins one in an empty db. An index that another
// version of this program made gives an error that matches ErrFormat.
func New(ctx context.Context, db *percolator.DB) (*Index, error) {
	err := db.Update(ctx, func(tx *percolator.Txn) error {
		have, err := tx.Get(ctx, metaFormat)
		switch {
		case errors.Is(err, percolator.ErrNotFound):
			return tx.Set(metaFormat, []byte(format))
		case err != nil:
			return err
		case string(have) != format:
			return fmt.Errorf("%w: it is %q, this program's is %q; load into a new store", ErrFormat, have, format)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("opening the index: %w", err)
	}
	return &Index{db: db, latency: newLatency()}, nil
}

// Latency returns the times from the commit of a page to the page being
// searchable, of the pages that this process has loaded and whose last observer
// ran in it.
func (x *Index) Latency() Latency { return x.latency.distribution() }

// Searchable returns how many pages Latency is about; it is cheap.
func (x *Index) Searchable() int {
	x.latency.mu.Lock()
	defer x.latency.mu.Unlock()
	return len(x.latency.took)
}

// Calls returns how many functions of observers were called in this process, and how many
// of these calls were the last one that a page needs. It is cheap.
func (x *Index) Calls() (all, pages uint64) { return x.calls.Load(), x.pages.Load() }

// Counts is how much the index holds.
type Counts struct {
	Pages    int // loaded
	Indexed  int // canonical pages, one for each content
	Clusters int // contents that more than one page has
	Links    int
	Postings int
}

// Count scans the index; it takes time in proportion to its size.
func (x *Index) Count(ctx context.Context) (Counts, error) {
	var c Counts
	err := x.db.View(ctx, func(tx *percolator.Txn) error {
		c = Counts{}
		for _, t := range []struct {
			table, column string
			n             *int
		}{{tablePage, "hash", &c.Pages}, {tableDoc, "indexed", &c.Indexed}, {tableLink, "anchor", &c.Links}, {tableTerm, "w", &c.Postings}} {
			for _, err := range tx.Scan(ctx, percolator.Range{Table: t.table, Columns: []string{t.column}}) {
				if err != nil {
					return err
				}
				*t.n++
			}
		}
		last, members := "", 0
		for row, err := range tx.Scan(ctx, percolator.Range{Table: tableDup, Columns: []string{"n"}}) {
			if err != nil {
				return err
			}
			hash := row.Key[:len(row.Key)-len(second(row.Key))]
			if hash != last {
				last, members = hash, 0
			}
			if members++; members == 2 {
				c.Clusters++
			}
		}
		return nil
	})
	return c, err
}

// InLink is a link to a page.
type InLink struct {
	Source  string
	Anchors []string
}

// Info is all that is known about a page.
type Info struct {
	URL, Title, Text string
	// Exists is false for a page that was never loaded or was removed, at the
	// snapshot asked for.
	Exists bool
	// Source is what loaded the page, Fetched when it was fetched, if that is known.
	Source  string
	Fetched time.Time
	// Hash is that of the content. Canonical is the page that is indexed for it,
	// Duplicates are the other pages with the same content.
	Hash, Canonical string
	Duplicates      []string
	// InLinks are at most maxShown links from other pages, and InLinkCount is how
	// many there are.
	InLinks     []InLink
	InLinkCount int
	// OutLinks are the targets of the page's links.
	OutLinks []string
	// History are the last changes, newest first, also of a page that is gone.
	History []Change
}

// maxShown bounds what Page returns of a list.
const maxShown = 200

// Page returns what is known about a page, at the newest state or, if at is not
// 0, as it was in an earlier snapshot. The history is always the newest. A
// snapshot whose history was collected gives an error that matches
// percolator.ErrSnapshotTooOld.
func (x *Index) Page(ctx context.Context, u string, at percolator.Timestamp) (Info, error) {
	var info Info
	var opts []percolator.TxnOption
	if at != 0 {
		opts = append(opts, percolator.WithAsOfTimestamp(at))
	}
	err := x.db.View(ctx, func(tx *percolator.Txn) (err error) {
		info, err = readPage(ctx, tx, u)
		return err
	}, opts...)
	if err != nil {
		return Info{}, fmt.Errorf("page %s: %w", u, err)
	}
	err = x.db.View(ctx, func(tx *percolator.Txn) error {
		info.History = nil
		r := under(tableHistory, u, "event")
		r.Reverse = true
		var until percolator.Timestamp
		for row, err := range tx.Scan(ctx, r) {
			if err != nil {
				return err
			}
			start, c, err := decodeChange(row.Key, row.Columns["event"])
			if err != nil {
				return err
			}
			// The change after this one read this one's result, so its start is a
			// snapshot that shows it.
			c.Until, until = until, start
			info.History = append(info.History, c)
		}
		return nil
	})
	if err != nil {
		return Info{}, fmt.Errorf("page %s: history: %w", u, err)
	}
	return info, nil
}

func readPage(ctx context.Context, tx *percolator.Txn, u string) (Info, error) {
	info := Info{URL: u}
	have, err := tx.GetMany(ctx, pageHash(u), pageSource(u), pageFetched(u), docCell(u, "hash"), docCell(u, "title"), docCell(u, "text"), docCell(u, "links"))
	if err != nil {
		return Info{}, err
	}
	_, info.Exists = have[pageHash(u)]
	info.Source = string(have[pageSource(u)])
	if f, ok := have[pageFetched(u)]; ok {
		if info.Fetched, err = time.Parse(time.RFC3339Nano, string(f)); err != nil {
			return Info{}, fmt.Errorf("%w: when the page was fetched: %w", errStored, err)
		}
	}
	info.Hash = string(have[docCell(u, "hash")])
	info.Title, info.Text = string(have[docCell(u, "title")]), string(have[docCell(u, "text")])
	for _, l := range sortedLinks(have[docCell(u, "links")]) {
		if len(info.OutLinks) == maxShown {
			break
		}
		info.OutLinks = append(info.OutLinks, l)
	}
	for row, err := range tx.Scan(ctx, under(tableLink, u, "anchor")) {
		if err != nil {
			return Info{}, err
		}
		if info.InLinkCount++; len(info.InLinks) < maxShown {
			info.InLinks = append(info.InLinks, InLink{Source: second(row.Key), Anchors: splitAnchors(row.Columns["anchor"])})
		}
	}
	if info.Hash == "" {
		return info, nil
	}
	cluster, err := tx.GetMany(ctx, clusterCell(info.Hash, "canonical"))
	if err != nil {
		return Info{}, err
	}
	info.Canonical = string(cluster[clusterCell(info.Hash, "canonical")])
	r := under(tableDup, info.Hash, "n")
	r.Limit = maxShown
	for row, err := range tx.Scan(ctx, r) {
		if err != nil {
			return Info{}, err
		}
		if m := second(row.Key); m != u {
			info.Duplicates = append(info.Duplicates, m)
		}
	}
	return info, nil
}
