package explore

import (
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// Who owns which change. In a program that is Owned, workers do not share the changes out
// among themselves: each asks the explorer whether a change is its own. At first all own
// everything, or nobody does anything. At each call of a worker the explorer may take an
// observer from it for a while (Budget.Move). So changes have two owners, or one, or none,
// and that may change between any two calls of a run.

// bereft is how long a worker owns no change of an observer that was taken from it: for
// one look or two.
const bereft = 1500 * time.Millisecond

// owns answers a client's worker.
func (c *Client) owns(observer string, _ percolator.Cell) bool {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	return !c.w.now.Before(c.w.owned) && !c.w.now.Before(c.bereft[observer])
}

// works notes which observers a client's worker runs.
func (c *Client) works(observers []percolator.Observer) {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	for i := range observers {
		c.observers = append(c.observers, observers[i].Name)
	}
}

// moves lists the observers that can be taken from the workers whose calls are under way.
func (w *world) moves(calls []*request) (faults []choice) {
	if w.left.Move == 0 || !w.program.Owned || w.now.Before(w.owned) {
		return nil
	}
	asks := map[*Client]bool{}
	for _, r := range calls {
		if c := r.client; c != nil && !asks[c] {
			asks[c] = true
			for _, name := range c.observers {
				if !w.now.Before(c.bereft[name]) {
					faults = append(faults, choice{label: c.Name + " owns nothing of " + name + " for a while", client: c.id, fault: true, do: func() {
						w.mu.Lock()
						defer w.mu.Unlock()
						w.left.Move--
						w.fired["move"]++
						c.bereft[name] = w.now.Add(bereft)
					}})
				}
			}
		}
	}
	return faults
}
