package explore

import (
	"context"
	"fmt"
	"slices"

	"github.com/percolate-go/percolate/percolator"
)

// What WaitIdle promises, and how it is judged.

// quiet is a WaitIdle that returned nil, between two events.
type quiet struct {
	client   string
	names    []string // of the worker's observers
	from, to int
}

// waitIdle waits until nothing is left for a worker, and keeps what that promises.
func (c *Client) waitIdle(ctx context.Context, w *percolator.Worker, observers []percolator.Observer) error {
	waits := func(now bool) {
		c.w.mu.Lock()
		defer c.w.mu.Unlock()
		c.waits = now
	}
	q := quiet{client: c.Name, from: c.w.history.event()}
	waits(true)
	err := w.WaitIdle(ctx)
	waits(false)
	if err != nil {
		return fmt.Errorf("waiting until nothing is left: %w", err)
	}
	q.to = c.w.history.event()
	for i := range observers {
		q.names = append(q.names, observers[i].Name)
	}
	h := &c.w.history
	h.mu.Lock()
	defer h.mu.Unlock()
	h.quiets = append(h.quiets, q)
	return nil
}

// checkQuiets makes sure that nothing was left where a worker found nothing left.
func (w *world) checkQuiets(versions map[percolator.Cell][]version) error {
	if !w.program.Idle {
		return nil
	}
	for _, q := range w.history.quiets {
		if err := w.checkQuiet(q, versions); err != nil {
			return err
		}
	}
	return nil
}

// cellVersion is a change of an observed cell.
type cellVersion struct {
	cell percolator.Cell
	version
}

// checkQuiet follows the chain from what was there when WaitIdle was called. Each change in it was to be
// covered, when WaitIdle returned, by a run of each of the worker's observers, whoever ran it; and what such a run has written is
// in the chain too. What others have committed meanwhile is not. Moments are those at which things were there:
// a transaction may have drawn its commit timestamp long before.
func (w *world) checkQuiet(q quiet, versions map[percolator.Cell][]version) error {
	changes := func(in func(v *version) bool) (all []cellVersion) {
		for _, cell := range w.program.Observed {
			for i := range versions[cell] {
				if v := &versions[cell][i]; in(v) {
					all = append(all, cellVersion{cell, *v})
				}
			}
		}
		return all
	}
	chain := changes(func(v *version) bool { at := w.history.landing(v.by); return at > 0 && at < q.from })
	for i := 0; i < len(chain); i++ {
		c := &chain[i]
		for _, name := range w.program.names(c.cell.Column) {
			if !slices.Contains(q.names, name) {
				continue
			}
			runs := w.runsOf(name, c.cell, versions)
			at := slices.IndexFunc(runs, func(r committedRun) bool { return r.start >= c.at })
			if at < 0 || w.history.landing(runs[at].rec.id) > q.to {
				return fmt.Errorf("the worker of %s found nothing left, and no run of %q had seen the change of %v at %d, by %s: the chain was %v",
					q.client, name, c.cell, uint64(c.at), c.by, chain)
			}
			for _, led := range changes(func(v *version) bool { return v.by == runs[at].rec.id }) {
				if !slices.Contains(chain, led) {
					chain = append(chain, led)
				}
			}
		}
	}
	return nil
}

// landing is the event when a transaction was committed, 0 if it was not.
func (h *history) landing(id string) int {
	for _, r := range h.records {
		if r.id == id {
			return h.landed[r.start]
		}
	}
	return 0
}
