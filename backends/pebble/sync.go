package pebble

import (
	"context"
	"sync"
	"sync/atomic"

	engine "github.com/cockroachdb/pebble/v2"
)

// commit is a batch that is visible and, until done is closed, perhaps not
// durable. The engine's log is durable up to some point, never in holes: when a
// batch is, every batch that was written before it is too.
type commit struct {
	batch *engine.Batch
	size  int // of the batch
	done  chan struct{}
	err   error // set before done is closed
}

// wait returns when the commit is durable.
func (c *commit) wait(ctx context.Context) error {
	select {
	case <-c.done:
		return c.err
	default:
	}
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// syncer waits for the engine on behalf of everybody, because the engine's own
// wait does not honour a context, and may be done only once for each batch.
type syncer struct {
	queue       chan *commit
	outstanding atomic.Int64 // those added and not done
	fail        func(error) error
	room        *room
	wg          sync.WaitGroup
}

func newSyncer(fail func(error) error, r *room) *syncer {
	// The engine itself admits about 500 batches that are not durable.
	y := &syncer{queue: make(chan *commit, 1024), fail: fail, room: r}
	y.wg.Add(1)
	go y.run()
	return y
}

func (y *syncer) run() {
	defer y.wg.Done()
	for c := range y.queue {
		if c.batch != nil {
			if err := c.batch.SyncWait(); err != nil {
				c.err = y.fail(err)
			} else {
				_ = c.batch.Close()
			}
			c.batch = nil
			y.room.give(c.size)
		}
		y.outstanding.Add(-1)
		close(c.done)
	}
}

// add registers a batch that the engine has taken.
func (y *syncer) add(b *engine.Batch) *commit {
	c := &commit{batch: b, done: make(chan struct{})}
	if b != nil {
		c.size = b.Len()
	}
	y.outstanding.Add(1)
	y.queue <- c
	return c
}

// barrier returns a commit that is done when all those added before it are, or nil
// if they are done already.
func (y *syncer) barrier() *commit {
	if y.outstanding.Load() == 0 {
		return nil
	}
	return y.add(nil)
}

// close ends the syncer; nobody adds any more.
func (y *syncer) close() {
	close(y.queue)
	y.wg.Wait()
}
