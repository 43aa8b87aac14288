// Package coretest has the options of package percolator that only tests and
// measurements need. Users do not see them.
package coretest

import (
	"github.com/percolate-go/percolate/internal/coretest/hook"
	"github.com/percolate-go/percolate/percolator"
)

// WithoutOnePhase makes every transaction commit in two phases, even where the store
// could commit it in one.
func WithoutOnePhase() percolator.Option { return option(hook.Options.WithoutOnePhase()) }

// WithoutGroups makes secondaries commit after the primary, even where the store could
// commit them together with it. It includes WithoutOnePhase.
func WithoutGroups() percolator.Option { return option(hook.Options.WithoutGroups()) }

// WithoutDeferred makes every batch durable before the next step.
func WithoutDeferred() percolator.Option { return option(hook.Options.WithoutDeferred()) }

// WithSeed makes the DB's jitter and random choices repeatable. 0, the default, takes a
// random seed.
func WithSeed(seed uint64) percolator.Option { return option(hook.Options.WithSeed(seed)) }

// WithOwnership makes the DB's workers ask which changes are their own, each time that
// it matters, in place of sharing them out with other workers. owns must not wait.
func WithOwnership(owns func(observer string, c percolator.Cell) bool) percolator.Option {
	return option(hook.Options.WithOwnership(func(observer, table, row, column string) bool {
		return owns(observer, percolator.Cell{Table: table, Row: row, Column: column})
	}))
}

func option(o any) percolator.Option { return o.(percolator.Option) }
