package redis

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Tables lists the tables that hold anything.
func (s *direct) Tables(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		tables, err := s.tables(ctx)
		if err != nil {
			yield("", fmt.Errorf("redis: tables: %w", err))
			return
		}
		for _, t := range tables {
			if !yield(t, nil) {
				return
			}
		}
	}
}

func (s *direct) tables(ctx context.Context) ([]string, error) {
	calls := make([]*call, len(s.parts))
	for i := range calls {
		calls[i] = &call{part: i, script: tablesScript}
	}
	if err := s.runAll(ctx, calls); err != nil {
		return nil, err
	}
	var all []string
	for _, c := range calls {
		u := unpacker{s: c.answer}
		for range u.list() {
			name, _ := u.string()
			all = append(all, unescapeTable(name))
		}
		if err := u.done(); err != nil {
			return nil, err
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	if i, ok := slices.BinarySearch(all, probeTable); ok {
		all = slices.Delete(all, i, i+1)
	}
	return all, nil
}

// Split cuts a table by the ranks of its rows: a few keys of each partition's
// index, at equal distances.
func (s *direct) Split(ctx context.Context, table string, n int) ([]string, error) {
	if table == "" || n < 1 {
		return nil, fmt.Errorf("redis: split: %w: table %q into %d parts", rowstore.ErrInvalid, table, n)
	}
	if err := checkNames(table, ""); err != nil {
		return nil, err
	}
	// Each partition holds a like share of the keys, so that a few samples of each
	// make enough for all.
	each := min(max(16*n/len(s.parts), 16), 4096)
	if len(s.parts) == 1 {
		each = min(n-1, maxSamples)
	}
	if each == 0 {
		if err := s.begin(ctx); err != nil {
			return nil, fmt.Errorf("redis: split: %w", err)
		}
		s.end()
		return nil, nil
	}
	calls := make([]*call, len(s.parts))
	for i := range calls {
		calls[i] = &call{part: i, script: splitScript, args: []any{s.parts[i].tag + "i:" + escapeTable(table), each}}
	}
	if err := s.runAll(ctx, calls); err != nil {
		return nil, fmt.Errorf("redis: split: %w", err)
	}
	var all []string
	for _, c := range calls {
		u := unpacker{s: c.answer}
		for range u.list() {
			row, _ := u.string()
			all = append(all, row)
		}
		if err := u.done(); err != nil {
			return nil, fmt.Errorf("redis: split: %w", err)
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	if len(all) <= n-1 {
		return all, nil
	}
	cuts := make([]string, 0, n-1)
	for i := 1; i < n; i++ {
		cuts = append(cuts, all[len(all)*i/n])
	}
	return slices.Compact(cuts), nil
}
