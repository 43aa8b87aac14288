package redis

import (
	"context"
	"slices"
	"strings"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

const (
	// keptBytes bounds the row keys that scanNotified keeps in memory, about.
	keptBytes = 8 << 20
	// keptSpare is how many rows more than the limit it keeps: some may not match.
	keptSpare = 1000
)

// scanNotified visits notified rows in the order of their keys. Their index has the order of
// the slots, so it walks through the keys of all notified rows of the table, keeps
// the first ones of the range, as many as may be in memory, and reads these; then it walks
// again for those behind them. A row that matches all the time is in the index all the time, so
// the walk that keeps its neighbours meets it.
func (s *direct) scanNotified(ctx context.Context, r rowstore.ScanRange, yield func(rowstore.Row) bool) error {
	given, page := 0, scanFirstPage
	for {
		count := 0
		if r.Limit > 0 {
			count = r.Limit - given + keptSpare
		}
		k := keeper{from: r.From, to: r.To, reverse: r.Reverse, count: count, bytes: keptBytes}
		if err := s.walkNotified(ctx, r.Table, k.add); err != nil {
			return err
		}
		rows, all := k.rows()
		for len(rows) > 0 {
			if r.Limit > 0 {
				page = min(page, r.Limit-given+8)
			}
			n := min(page, len(rows))
			size, err := s.readNotified(ctx, r, rows[:n], func(row rowstore.Row) bool {
				given++
				return yield(row) && given != r.Limit && ctx.Err() == nil
			})
			if err != nil || size < 0 {
				return err
			}
			rows = rows[n:]
			if page = min(4*page, scanMaxPage); size > maxAnswer/4 {
				page = max(n/4, 1)
			}
		}
		if all {
			return nil
		}
		if r.Reverse {
			r.To = k.worst
		} else {
			r.From = k.worst + "\x00"
		}
	}
}

// readNotified reads rows and yields those in which something matches. size is how much they
// hold, or -1 if yield said that there is enough.
func (s *direct) readNotified(ctx context.Context, r rowstore.ScanRange, keys []string, yield func(rowstore.Row) bool) (size int, err error) {
	reads := make([]rowstore.RowRead, len(keys))
	for i, key := range keys {
		reads[i] = rowstore.RowRead{Table: r.Table, Row: key, Selectors: r.Selectors}
	}
	rows, err := s.Read(ctx, reads)
	if err != nil {
		return 0, err
	}
	for i := range rows {
		if rows[i].Err != nil {
			return 0, rows[i].Err
		}
		if len(rows[i].Versions) == 0 {
			continue
		}
		for _, v := range rows[i].Versions {
			size += len(v.Value)
		}
		if !yield(rows[i]) {
			return -1, ctx.Err()
		}
	}
	return size, nil
}

// walkNotified tells the keys of the notified rows of a table, in no order, each once. It
// asks all partitions together, for a bounded number each time.
func (s *direct) walkNotified(ctx context.Context, table string, add func(row string)) error {
	name := escapeTable(table)
	bounds := make(map[int]string, len(s.parts))
	for i := range s.parts {
		bounds[i] = "-"
	}
	for len(bounds) > 0 {
		calls := make([]*call, 0, len(bounds))
		parts := make([]int, 0, len(bounds))
		for i := range s.parts {
			lo, more := bounds[i]
			if !more {
				continue
			}
			steps, bytes := share(len(bounds))
			tag := s.parts[i].tag
			var p packer
			p.reset()
			p.str(tag + "s:" + name)
			p.str(s.oldIndex(i, name))
			p.str(lo)
			p.u32(steps)
			p.u32(bytes)
			c := &call{part: i, script: notifiedScript}
			c.arg.b = p.bytes()
			calls, parts = append(calls, c), append(parts, i)
		}
		if err := s.runAll(ctx, calls); err != nil {
			return err
		}
		for j, c := range calls {
			bound, old, err := notifiedKeys(c.answer, add)
			switch {
			case err != nil:
				return err
			case old:
				if err := s.move(ctx, parts[j], table); err != nil {
					return err
				}
			case bound == "":
				delete(bounds, parts[j])
			default:
				bounds[parts[j]] = bound
			}
		}
	}
	return nil
}

// notifiedKeys reads a page of keys. bound is where the next one begins, "" at the end. If
// the partition has an index of version 1, the page is empty.
func notifiedKeys(answer string, add func(row string)) (bound string, old bool, err error) {
	u := unpacker{s: answer}
	n := u.list()
	if u.tooMuch() {
		return "", true, u.done()
	}
	bound, _ = u.string()
	for range n - 1 {
		row, ok := u.string()
		if !ok {
			return "", false, errAnswer
		}
		// The answer is large, and few of its keys are kept.
		add(unescapeRow(row))
	}
	return bound, false, u.done()
}

// keeper keeps the first row keys of a range among many.
type keeper struct {
	from, to     string // as in ScanRange
	reverse      bool
	count, bytes int // the most that it keeps; a count of 0 is any number
	kept         []string
	size         int
	worst        string // the last one that is kept, if cut
	cut          bool   // some behind worst were dropped
}

// add is told of one row. It may forget some that it keeps, when they are twice too many.
func (k *keeper) add(row string) {
	if row < k.from || k.to != "" && row >= k.to || k.cut && k.compare(row, k.worst) > 0 {
		return
	}
	k.kept = append(k.kept, strings.Clone(row))
	k.size += len(row) + 16
	if k.size > 2*k.bytes || k.count > 0 && len(k.kept) > 2*k.count {
		k.trim()
	}
}

func (k *keeper) compare(a, b string) int {
	if k.reverse {
		a, b = b, a
	}
	return strings.Compare(a, b)
}

// trim drops what is too much, but for one row.
func (k *keeper) trim() {
	slices.SortFunc(k.kept, k.compare)
	k.size = 0
	for i, row := range k.kept {
		k.size += len(row) + 16
		if i > 0 && k.size > k.bytes || k.count > 0 && i == k.count {
			k.size -= len(row) + 16
			clear(k.kept[i:])
			k.kept = k.kept[:i]
			k.cut, k.worst = true, k.kept[i-1]
			return
		}
	}
}

// rows returns what was kept, in order, and whether it is all.
func (k *keeper) rows() (rows []string, all bool) {
	k.trim()
	return k.kept, !k.cut
}
