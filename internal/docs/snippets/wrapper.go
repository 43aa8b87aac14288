package snippets

import (
	"context"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// docs/backends.md

type counting struct {
	rowstore.Store
	abilities rowstore.Abilities
	groups    int
}

type countedGrouper struct {
	rowstore.Grouper
	c *counting
}

func (g countedGrouper) Group(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
	g.c.groups += len(groups)
	return g.Grouper.Group(ctx, groups)
}

// Counting returns a store that counts the groups of s.
func Counting(s rowstore.Store) rowstore.Store {
	c := &counting{Store: s}
	c.abilities = rowstore.Treatment{
		Grouper:  func(g rowstore.Grouper) rowstore.Grouper { return countedGrouper{g, c} },
		Splitter: rowstore.Pass[rowstore.Splitter], // the store's own
		Crasher:  rowstore.Hide[rowstore.Crasher],  // none
		// ... and every other field
	}.Of(s)
	return c
}

func (c *counting) Abilities() rowstore.Abilities { return c.abilities }
