package conformance

import (
	"context"
	"slices"
	"time"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// gap is what a fault leaves between two steps that have to be one, as wide as that of a server.
const gap = time.Millisecond

// splitEarly gives a mutation as two: the one checks the conditions, and the other one checks all but those that pick picks and does the rest.
// some is false if there are none of these.
func splitEarly(m rowstore.Mutation, pick func(c rowstore.Condition) bool) (check, rest rowstore.Mutation, some bool) {
	check, rest = m, m
	check.Edits = nil
	rest.Conditions = slices.Clone(m.Conditions)
	for i, c := range rest.Conditions {
		if pick(c) {
			some = true
			// One that holds, in its place: Failed counts them.
			rest.Conditions[i] = rowstore.Absent(rowstore.Lock, "a column that nobody has", 0)
		}
	}
	return check, rest, some
}

// judgeEarly has Apply judge some conditions in a step of their own, before the others.
func (b *broken) judgeEarly(pick func(c rowstore.Condition) bool) {
	b.apply = func(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
		if err := rowstore.CheckBatch(muts); err != nil {
			return nil, err
		}
		checks, rests, some := slices.Clone(muts), slices.Clone(muts), false
		for i := range muts {
			check, rest, early := splitEarly(muts[i], pick)
			if !early {
				check.Conditions = nil
			}
			checks[i], rests[i], some = check, rest, some || early
		}
		if !some {
			return b.Store.Apply(ctx, muts, opts)
		}
		refused, err := b.Store.Apply(ctx, checks, rowstore.ApplyOptions{})
		if err != nil {
			return nil, err
		}
		time.Sleep(gap)
		for i := range refused {
			if !refused[i].Applied {
				rests[i] = checks[i] // changes nothing
			}
		}
		outs, err := b.Store.Apply(ctx, rests, opts)
		for i := range outs {
			if !refused[i].Applied {
				outs[i] = refused[i]
			}
		}
		return outs, err
	}
}

// judgeGroupsEarly is judgeEarly for Group.
func (b *broken) judgeGroupsEarly(pick func(c rowstore.Condition) bool) {
	b.group = func(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
		if err := rowstore.CheckGroups(b.Store, groups); err != nil {
			return nil, err
		}
		var all []rowstore.GroupOutcome
		for _, g := range groups {
			check, some := rowstore.Group{}, false
			g.Mutations = slices.Clone(g.Mutations)
			for i, m := range g.Mutations {
				first, rest, early := splitEarly(m, pick)
				check.Mutations, g.Mutations[i], some = append(check.Mutations, first), rest, some || early
			}
			if some {
				out, err := b.Store.Group(ctx, []rowstore.Group{check})
				if err != nil {
					return nil, err
				}
				if !out[0].Applied {
					all = append(all, out[0])
					continue
				}
				time.Sleep(gap)
			}
			out, err := b.Store.Group(ctx, []rowstore.Group{g})
			if err != nil {
				return nil, err
			}
			all = append(all, out[0])
		}
		return all, nil
	}
}

func isPresent(c rowstore.Condition) bool { return c.Kind == rowstore.IfPresent }

func isAbsentAt(c rowstore.Condition) bool { return c.Kind == rowstore.IfAbsentAt }

func isAbsentMark(c rowstore.Condition) bool {
	return c.Kind == rowstore.IfAbsent && c.Family == rowstore.Mark
}

func isAbsentLock(c rowstore.Condition) bool {
	return c.Kind == rowstore.IfAbsent && c.Family == rowstore.Lock
}
