package kit

import (
	"bytes"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Judge looks for the first condition of a mutation that does not hold. newest returns the
// newest version of a family and column of the mutation's row with a timestamp from one to
// another, both included, or nil if there is none; its value may be memory of the store's,
// Judge copies what it keeps. incarnation is the store's, "" if it defers nothing.
//
// The outcome has Applied true if every condition holds, else Failed and Broke; the caller
// sets the rest. An error is one of newest, as it is.
func Judge(m *rowstore.Mutation, incarnation string, newest func(family rowstore.Family, column string, from, to rowstore.Timestamp) (*rowstore.Version, error)) (rowstore.Outcome, error) {
	out := rowstore.Outcome{Incarnation: incarnation}
	for i := range m.Conditions {
		c := &m.Conditions[i]
		holds := c.Incarnation == incarnation
		var broke *rowstore.Version
		if c.Kind != rowstore.IfIncarnation {
			to := c.TS
			if c.Kind == rowstore.IfAbsent {
				to = oracle.Max
			}
			v, err := newest(c.Family, c.Column, c.TS, to)
			if err != nil {
				return rowstore.Outcome{Incarnation: incarnation}, err
			}
			if holds = v == nil; c.Kind == rowstore.IfPresent {
				holds = !holds
			} else {
				broke = v
			}
		}
		if !holds {
			out.Failed = i
			if broke != nil {
				out.Broke = *broke
				out.Broke.Value = bytes.Clone(broke.Value)
			}
			return out, nil
		}
	}
	out.Applied = true
	return out, nil
}

// CheckApply checks the arguments of an Apply against the rules of the seam and the limits
// of the store: rowstore.CheckBatch and rowstore.CheckLimits.
func CheckApply(limits rowstore.Limits, muts []rowstore.Mutation) error {
	if err := rowstore.CheckBatch(muts); err != nil {
		return err
	}
	return rowstore.CheckLimits(limits, muts)
}

// CheckGroup is CheckApply for the groups that the Grouper g is given:
// rowstore.CheckGroups and rowstore.CheckGroupLimits.
func CheckGroup(g rowstore.Grouper, limits rowstore.Limits, groups []rowstore.Group) error {
	if err := rowstore.CheckGroups(g, groups); err != nil {
		return err
	}
	return rowstore.CheckGroupLimits(limits, groups)
}
