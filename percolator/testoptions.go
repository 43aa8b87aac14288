package percolator

import "github.com/percolate-go/percolate/internal/coretest/hook"

// The options that only tests and measurements need. Package internal/coretest has them
// for other packages of this repository.

func init() {
	hook.Options.WithoutOnePhase = func() any { return withoutOnePhase() }
	hook.Options.WithoutGroups = func() any { return withoutGroups() }
	hook.Options.WithoutDeferred = func() any { return withoutDeferred() }
	hook.Options.WithSeed = func(seed uint64) any { return withSeed(seed) }
	hook.Options.WithOwnership = func(owns hook.Owns) any { return withOwnership(owns) }
}

// withoutOnePhase makes every transaction commit in two phases, even where the store
// could commit it in one.
func withoutOnePhase() Option { return func(o *options) { o.onePhase = false } }

// withoutGroups makes secondaries commit after the primary, even where the store could
// commit them together with it. It includes withoutOnePhase.
func withoutGroups() Option { return func(o *options) { o.onePhase, o.groups = false, false } }

// withoutDeferred makes every batch durable before the next step.
func withoutDeferred() Option { return func(o *options) { o.deferred = false } }

// withSeed makes the DB's jitter and random choices repeatable. 0, the default, takes a
// random seed.
func withSeed(seed uint64) Option { return func(o *options) { o.seed = seed } }

// withOwnership makes the DB's workers ask which changes are their own, each time that
// it matters. They are no members, so no shares answer that. owns must not wait: it is
// asked under the worker's lock.
func withOwnership(owns hook.Owns) Option { return func(o *options) { o.owns = owns } }
