package percolator

import (
	"context"
	"sync"
)

// hotCells has a queue for each cell at which transactions of this process have met a
// conflict. Transactions that run again take turns there. Without the queues, the
// writers of a hot cell would keep failing together: only one attempt of each round
// would commit. With them, a process looks like one writer to the others. A transaction
// without a conflict does not queue, so it pays nothing. Correctness does not depend on
// the queues: the store finds the conflicts.
type hotCells struct {
	mu     sync.Mutex
	queues map[Cell]*hotCell
}

type hotCell struct {
	turn  chan struct{} // holds one token while it is nobody's turn
	users int           // how many have it or wait for it; guarded by hotCells.mu
}

// wait returns when it is the caller's turn at a cell; done ends the turn.
func (h *hotCells) wait(ctx context.Context, c Cell) (done func(), err error) {
	h.mu.Lock()
	q := h.queues[c]
	if q == nil {
		if h.queues == nil {
			h.queues = make(map[Cell]*hotCell)
		}
		q = &hotCell{turn: make(chan struct{}, 1)}
		q.turn <- struct{}{}
		h.queues[c] = q
	}
	q.users++
	h.mu.Unlock()
	leave := func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if q.users--; q.users == 0 {
			delete(h.queues, c)
		}
	}
	select {
	case <-q.turn:
		return func() {
			q.turn <- struct{}{}
			leave()
		}, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// turn is a transaction's turn at the cell of its last conflict, if it has one.
type turn struct {
	cell Cell
	done func()
}

func (t *turn) end() {
	if t.done != nil {
		t.done()
	}
	*t = turn{}
}
