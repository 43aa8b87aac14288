package pebble

import (
	"context"
	"sync"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/record"
)

// commit is a batch that is visible and, until done is closed, perhaps not
// durable. It is done without an error only if it is durable, and every batch that was
// added before it too. So who waits for the newest batch that its answer shows has waited
// for all of them.
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

// durable tells whether the commit is known to be durable already.
func (c *commit) durable() bool {
	select {
	case <-c.done:
		return c.err == nil
	default:
		return false
	}
}

// mostUnsynced is how many batches may be under way to the disk. The engine takes record.SyncConcurrency-1, and then blocks
// whoever has a further one, whatever the context says. A writer has stripes and the gate then, so it waits for its turn before it
// takes those. What is left is for the program whose database it is (New).
const mostUnsynced = record.SyncConcurrency - 256

// syncer waits for the engine on behalf of everybody, because the engine's own
// wait does not honour a context, and may be done only once for each batch.
type syncer struct {
	turns chan struct{} // of batches, from before their stripes are taken until they are durable
	fail  func(error) error
	room  *room
	wg    sync.WaitGroup

	mu    sync.Mutex
	queue chan *commit // has room for all that the engine takes, so no sender waits
	last  *commit      // the newest in the queue; nil before the first
}

func newSyncer(fail func(error) error, r *room) *syncer {
	y := &syncer{turns: make(chan struct{}, mostUnsynced), queue: make(chan *commit, record.SyncConcurrency), fail: fail, room: r}
	y.wg.Add(1)
	go y.run()
	return y
}

func (y *syncer) run() {
	defer y.wg.Done()
	var failed error
	for c := range y.queue {
		if c.err == nil {
			if c.err = c.batch.SyncWait(); c.err == nil {
				_ = c.batch.Close()
			}
		}
		// The log goes on in another file later, which may be durable without the end of this one.
		if failed == nil && c.err != nil {
			failed = y.fail(c.err)
		}
		c.err, c.batch = failed, nil
		y.room.give(c.size)
		y.over()
		close(c.done)
	}
}

// turn waits until the engine takes a further batch at once. If it returns nil, either the
// batch is added, or over must be called. A nil syncer waits for nothing.
func (y *syncer) turn(ctx context.Context) error {
	if y == nil {
		return nil
	}
	select {
	case y.turns <- struct{}{}:
		return nil
	default:
	}
	select {
	case y.turns <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// over gives a turn back. run does for the batches that were added.
func (y *syncer) over() {
	if y != nil {
		<-y.turns
	}
}

// add registers a batch of so many bytes that the engine has taken, or has refused with an error. The
// batch has its turn.
func (y *syncer) add(b *engine.Batch, size int, err error) *commit {
	c := &commit{batch: b, size: size, done: make(chan struct{}), err: err}
	y.mu.Lock()
	defer y.mu.Unlock()
	y.last = c
	y.queue <- c
	return c
}

// barrier returns a commit that is done when all those added before it are, or nil
// if they are durable already.
func (y *syncer) barrier() *commit {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.last == nil || y.last.durable() {
		return nil
	}
	return y.last
}

// close ends the syncer; nobody adds any more.
func (y *syncer) close() {
	close(y.queue)
	y.wg.Wait()
}
