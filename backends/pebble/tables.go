package pebble

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// Tables implements rowstore.Store. A key that names no table hides none: its error comes last.
func (s *Store) Tables(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		const page = 64
		last := ""
		fail := func(err error) {
			if !errors.Is(err, rowstore.ErrClosed) {
				err = fmt.Errorf("pebble: list tables: %w", err)
			}
			yield("", err)
		}
		var passed error
		for {
			tables, strange, err := s.tables(ctx, last, page)
			if err != nil {
				fail(err)
				return
			}
			passed = cmp.Or(passed, strange)
			for _, t := range tables {
				if !yield(t, nil) {
					return
				}
			}
			if len(tables) < page {
				break
			}
			last = tables[page-1]
		}
		if passed != nil {
			fail(passed)
		}
	}
}

// tables lists up to limit tables after last. strange is the error of the first key that it met there
// that names none.
func (s *Store) tables(ctx context.Context, last string, limit int) (tables []string, strange, err error) {
	if err := s.enter(ctx, "tables"); err != nil {
		return nil, nil, err
	}
	defer s.leave()
	it, durable, err := s.view(nil)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	c := tableCursor{it: it}
	from := []byte(nil)
	if last != "" {
		from = after(kit.AppendName(nil, last))
	}
	for i := range c.heads {
		if err := c.seek(ctx, i, from); err != nil {
			return nil, nil, err
		}
	}
	for len(tables) < limit {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		name, err := c.next(ctx)
		if err != nil {
			return nil, nil, err
		}
		if name == nil {
			break
		}
		tables = append(tables, kit.NameOf(name))
	}
	if durable != nil {
		if err := durable.wait(ctx); err != nil {
			return nil, nil, err
		}
	}
	return tables, c.strange, nil
}

// tableSpaces are the spaces in which a table may have keys: a row of the history has a
// head too.
var tableSpaces = [...]byte{spaceHead, spaceData, spaceNotify}

// tableCursor finds the names of tables in order.
type tableCursor struct {
	it *engine.Iterator
	// strange is the error of the first key that names no table.
	strange error
	// heads[i] is the form of the name of the first table not yet returned that has keys
	// in tableSpaces[i], nil if there is none.
	heads [len(tableSpaces)][]byte
}

// seek sets heads[i] to the first table at or after from.
func (c *tableCursor) seek(ctx context.Context, i int, from []byte) error {
	space := []byte{tableSpaces[i]}
	upper := []byte{tableSpaces[i] + 1}
	if tableSpaces[i] == spaceNotify {
		space = bySlot
	}
	c.it.SetBounds(append(slices.Clone(space), from...), upper)
	c.heads[i] = nil
	for ok, passed := c.it.First(), 1; ok; ok, passed = c.it.Next(), passed+1 {
		name, _, err := kit.CutRaw(c.it.Key()[len(space):])
		if err == nil && len(name) > 0 {
			c.heads[i] = slices.Clone(name)
			return nil
		}
		c.strange = cmp.Or(c.strange, corruptKey(c.it.Key()))
		if passed%256 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return c.it.Error()
}

// next returns the form of the next table's name, nil at the end.
func (c *tableCursor) next(ctx context.Context) ([]byte, error) {
	var first []byte
	for _, h := range c.heads {
		if h != nil && (first == nil || compareEscaped(h, first) < 0) {
			first = h
		}
	}
	if first == nil {
		return nil, nil
	}
	from := append(slices.Clone(first), escape, afterName)
	for i := range c.heads {
		if c.heads[i] != nil && bytes.Equal(c.heads[i], first) {
			if err := c.seek(ctx, i, from); err != nil {
				return nil, err
			}
		}
	}
	return first, nil
}

// compareEscaped compares two escaped names, whose ends are cut off, as the names.
// The end counts: it is less than an escaped 0x00.
func compareEscaped(a, b []byte) int {
	return bytes.Compare(append(slices.Clip(a), escape, endOfName), append(slices.Clip(b), escape, endOfName))
}
