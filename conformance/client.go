package conformance

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

type (
	call = faultstore.Call
	fate = faultstore.Fault
)

// What becomes of a call.
var (
	goesThrough = fate{}
	diesBefore  = fate{Kind: faultstore.CrashClient}                // the client is dead before the call leaves
	diesAfter   = fate{Kind: faultstore.CrashClient, Applied: true} // the call is carried out, and the client is dead before the answer comes
	lostBefore  = fate{Kind: faultstore.LoseReply}                  // the answer is "unknown"; nothing happened
	lostAfter   = fate{Kind: faultstore.LoseReply, Applied: true}   // the answer is "unknown"; it happened
	lostLate    = fate{Kind: faultstore.Late, Rows: -1}             // the answer is "unknown"; it happens a little later
	refused     = fate{Kind: faultstore.Fail}                       // a certain error
)

// changes tells whether a call may change something.
func changes(c *call) bool {
	return c.Kind == faultstore.CallApply || c.Kind == faultstore.CallGroup
}

// commits tells whether a call makes the writes of tx visible: its commit point,
// its secondaries, or all of it in one phase. What others do for it does not count,
// nor what it does for others.
func commits(c *call, tx *percolator.Txn) bool {
	draws := slices.ContainsFunc(c.Groups, func(g rowstore.Group) bool { return g.AssignTimestamp })
	for _, m := range c.Mutations() {
		own := draws
		for _, cond := range m.Conditions {
			own = own || cond.Kind == rowstore.IfPresent && cond.TS == startOf(tx)
		}
		if own && puts(&m, rowstore.Write) {
			return true
		}
	}
	return false
}

// prewrites tells whether a call puts a lock in a user's table.
func prewrites(c *call) bool {
	return slices.ContainsFunc(c.Mutations(), func(m rowstore.Mutation) bool { return puts(&m, rowstore.Lock) })
}

// puts tells whether a mutation puts a version of a family in a user's table.
func puts(m *rowstore.Mutation, f rowstore.Family) bool {
	return !format.Reserved(m.Table) && slices.ContainsFunc(m.Edits, func(e rowstore.Edit) bool {
		return e.Kind == rowstore.DoPut && e.Family == f
	})
}

// client is a store as one process sees it. Several share the store beneath: Close
// ends the client alone. It has all abilities of the store.
type client struct{ *faultstore.Store }

func newClient(inner rowstore.Store) *client {
	return &client{faultstore.New(inner, faultstore.Options{KeepOpen: true})}
}

// on sets a hook, which decides what becomes of each call; nil lets everything through.
func (c *client) on(hook func(ctx context.Context, cl *call) fate) {
	if hook == nil {
		c.SetRules()
		return
	}
	c.SetRules(faultstore.Rule{Times: -1, Before: hook})
}

// dieAt makes the client die at its next call but step, before or after that is carried out.
func (c *client) dieAt(step int, after bool) {
	var calls atomic.Int64
	c.on(func(context.Context, *call) fate {
		switch {
		case int(calls.Add(1))-1 != step:
			return goesThrough
		case after:
			return diesAfter
		}
		return diesBefore
	})
}

// died tells whether the client has died.
func (c *client) died() bool {
	select {
	case <-c.Crashed():
		return true
	default:
		return false
	}
}

// living returns a context that ends with ctx, and when the client dies: a process that is
// dead waits for nothing.
func (c *client) living(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		select {
		case <-c.Crashed():
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// close closes the client's DB, which waits for what goes on in the background, unless
// the client dies meanwhile: its calls get no answers then.
func (c *client) close(ctx context.Context, db *percolator.DB) {
	ctx, cancel := c.living(ctx)
	defer cancel()
	_ = db.Close(ctx)
}
