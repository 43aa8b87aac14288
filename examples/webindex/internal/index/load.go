package index

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/examples/webindex/internal/source"
	"github.com/percolate-go/percolate/percolator"
)

// historyKept is how many changes of a page its history lists.
const historyKept = 20

// LoadStats counts what Load did. Its fields may be read while Load runs.
type LoadStats struct {
	Read      atomic.Int64 // pages read from the source, all below included
	Added     atomic.Int64
	Changed   atomic.Int64
	Unchanged atomic.Int64
	Removed   atomic.Int64
	Older     atomic.Int64 // captures older than what is stored
}

// Load writes the pages of a prepared source, each in one transaction, with
// loaders pages at a time (at least 1). A page whose content is stored already is
// not written again. When the source is complete, pages that it brought earlier
// and does not have now are removed. Load returns when all of that is committed;
// the observers may still be at work.
//
// Several processes may load at once, also the same source.
func (x *Index) Load(ctx context.Context, src source.Source, loaders int, stats *LoadStats) error {
	// What the source had is read first, so that a page which another process adds
	// meanwhile, and which this one's listing lacks, stays.
	gone := make(map[string]bool)
	if src.Complete() {
		err := x.db.View(ctx, func(tx *percolator.Txn) error {
			clear(gone)
			for row, err := range tx.Scan(ctx, under(tableSource, src.ID(), "in")) {
				if err != nil {
					return err
				}
				gone[second(row.Key)] = true
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("listing the pages of source %s: %w", src.ID(), err)
		}
	}

	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(max(1, loaders))
	var listing error
	for item, err := range src.Items(gctx) {
		if err != nil {
			listing = err
			break
		}
		delete(gone, item.URL)
		g.Go(func() error {
			p, err := item.Read(gctx)
			if err != nil {
				return err
			}
			return x.put(gctx, src.ID(), p, stats)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if listing != nil {
		return listing
	}

	g, gctx = errgroup.WithContext(ctx)
	g.SetLimit(max(1, loaders))
	for u := range gone {
		g.Go(func() error { return x.forget(gctx, src.ID(), u, stats) })
	}
	return g.Wait()
}

// Hash is the content hash by which duplicates are found.
func Hash(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// put writes one page if it differs from what is stored.
func (x *Index) put(ctx context.Context, id string, p source.Page, stats *LoadStats) error {
	hash := ""
	if !p.Gone {
		hash = Hash(p.Body)
	}
	var done *atomic.Int64
	var pending *pendingPage
	err := x.db.Update(ctx, func(tx *percolator.Txn) error {
		pending.abandoned() // of the attempt before
		done, pending = &stats.Unchanged, nil
		have, err := tx.GetMany(ctx, pageHash(p.URL), pageSource(p.URL), pageFetched(p.URL))
		if err != nil {
			return err
		}
		oldHash, exists := have[pageHash(p.URL)]
		owner := string(have[pageSource(p.URL)])

		if fetched, ok := have[pageFetched(p.URL)]; ok && !p.Fetched.IsZero() {
			then, err := time.Parse(time.RFC3339Nano, string(fetched))
			if err != nil {
				return fmt.Errorf("%w: when the page was fetched: %w", errStored, err)
			}
			if p.Fetched.Before(then) {
				done = &stats.Older
				return nil
			}
		}
		if err := setFetched(tx, p, have[pageFetched(p.URL)]); err != nil {
			return err
		}
		if p.Gone {
			if !exists {
				return nil
			}
			done = &stats.Removed
			return remove(ctx, tx, p.URL, owner)
		}
		if owner != id {
			if owner != "" {
				if err := tx.Delete(sourceMember(owner, p.URL)); err != nil {
					return err
				}
			}
			if err := errors.Join(tx.Set(pageSource(p.URL), []byte(id)), tx.Set(sourceMember(id, p.URL), nil)); err != nil {
				return err
			}
		}
		if exists && string(oldHash) == hash {
			return nil
		}
		done = &stats.Changed
		if !exists {
			done = &stats.Added
		}
		pending = x.latency.begin(p.URL, hash)
		return errors.Join(
			tx.Set(pageBody(p.URL), p.Body),
			tx.Set(pageHash(p.URL), []byte(hash)),
			remember(ctx, tx, p.URL, "loaded "+hash+" "+strconv.Itoa(len(p.Body))),
		)
	})
	if err != nil {
		pending.abandoned()
		return fmt.Errorf("loading %s: %w", p.URL, err)
	}
	pending.committed(time.Now())
	done.Add(1)
	stats.Read.Add(1)
	return nil
}

// setFetched stores when a page was fetched, also of one that is gone: an older
// capture that is loaded later must not bring it back.
func setFetched(tx *percolator.Txn, p source.Page, old []byte) error {
	if p.Fetched.IsZero() {
		if old == nil {
			return nil
		}
		return tx.Delete(pageFetched(p.URL))
	}
	now := p.Fetched.UTC().Format(time.RFC3339Nano)
	if now == string(old) {
		return nil
	}
	return tx.Set(pageFetched(p.URL), []byte(now))
}

// forget removes a page that its source has no more, unless another source has
// taken it over.
func (x *Index) forget(ctx context.Context, id, u string, stats *LoadStats) error {
	removed := false
	err := x.db.Update(ctx, func(tx *percolator.Txn) error {
		removed = false
		have, err := tx.GetMany(ctx, pageHash(u), pageSource(u))
		if err != nil {
			return err
		}
		if string(have[pageSource(u)]) != id {
			return tx.Delete(sourceMember(id, u))
		}
		removed = true
		return remove(ctx, tx, u, id)
	})
	if err != nil {
		return fmt.Errorf("removing %s: %w", u, err)
	}
	if removed {
		stats.Removed.Add(1)
	}
	return nil
}

func remove(ctx context.Context, tx *percolator.Txn, u, owner string) error {
	return errors.Join(
		tx.Delete(pageBody(u)),
		tx.Delete(pageHash(u)),
		tx.Delete(pageSource(u)),
		tx.Delete(sourceMember(owner, u)),
		remember(ctx, tx, u, "removed"),
	)
}

// remember adds a line to the page's history and drops the oldest beyond
// historyKept.
func remember(ctx context.Context, tx *percolator.Txn, u, event string) error {
	r := under(tableHistory, u, "event")
	r.Reverse = true
	n := 0
	for row, err := range tx.Scan(ctx, r) {
		if err != nil {
			return err
		}
		if n++; n >= historyKept {
			if err := tx.Delete(percolator.Cell{Table: tableHistory, Row: row.Key, Column: "event"}); err != nil {
				return err
			}
		}
	}
	start, err := tx.StartTimestamp(ctx)
	if err != nil {
		return err
	}
	return tx.Set(historyEvent(u, start), []byte(event))
}

// Change is one line of a page's history.
type Change struct {
	// At is when the change was made.
	At time.Time
	// Hash is that of the new content, "" when the page was removed.
	Hash string
	// Size is the length of the new content in bytes.
	Size int
	// Until is a snapshot in which the change holds and the next one does not yet;
	// 0 for the newest change.
	Until percolator.Timestamp
}

func decodeChange(key string, event []byte) (start percolator.Timestamp, c Change, err error) {
	ts, err := strconv.ParseUint(second(key), 16, 64)
	if err != nil {
		return 0, Change{}, fmt.Errorf("%w: history: %w", errStored, err)
	}
	start = percolator.Timestamp(ts)
	c.At = start.Time()
	if rest, ok := strings.CutPrefix(string(event), "loaded "); ok {
		hash, size, _ := strings.Cut(rest, " ")
		c.Hash = hash
		if c.Size, err = strconv.Atoi(size); err != nil {
			return 0, Change{}, fmt.Errorf("%w: history: %w", errStored, err)
		}
	}
	return start, c, nil
}
