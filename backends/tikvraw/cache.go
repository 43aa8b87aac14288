package tikvraw

import (
	"container/list"
	"context"
	"sync"
)

// cache remembers the bytes of heads that were read or written last, absent ones as
// nil. What it says may be out of date: it is good for the expected value of a swap,
// which fails then, and for nothing else.
type cache struct {
	limit int

	mu   sync.Mutex
	size int
	all  map[string]*list.Element
	used list.List // of *cached, the last used in front
}

type cached struct {
	key string
	raw []byte
}

// overhead is about what an entry takes besides its bytes.
const overhead = 160

func (c *cached) size() int { return len(c.key) + len(c.raw) + overhead }

func newCache(limit int) *cache {
	return &cache{limit: limit, all: map[string]*list.Element{}}
}

// get returns a head's bytes as far as they are known. They must not be changed.
func (c *cache) get(key []byte) (raw []byte, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.all[string(key)]
	if !ok {
		return nil, false
	}
	c.used.MoveToFront(e)
	return e.Value.(*cached).raw, true
}

// put remembers a head's bytes, which the caller does not change any more.
func (c *cache) put(key, raw []byte) {
	n := &cached{key: string(key), raw: raw}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(n.key)
	if n.size() > c.limit/8 {
		return
	}
	c.all[n.key] = c.used.PushFront(n)
	c.size += n.size()
	for c.size > c.limit {
		c.remove(c.used.Back().Value.(*cached).key)
	}
}

// drop forgets a head.
func (c *cache) drop(key []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(string(key))
}

func (c *cache) remove(key string) {
	if e, ok := c.all[key]; ok {
		delete(c.all, key)
		c.size -= e.Value.(*cached).size()
		c.used.Remove(e)
	}
}

// turns lets the changes of a row go one after the other within this process: two at
// once would only fail each other's swap. Rows do not wait for each other.
type turns struct {
	mu  sync.Mutex
	all map[string]*turn
}

type turn struct {
	free  chan struct{} // holds a token while nobody has the turn
	users int           // who have it or wait for it; guarded by turns.mu
}

func newTurns() *turns {
	return &turns{all: map[string]*turn{}}
}

// take waits for the turn of a row. done gives it back.
func (t *turns) take(ctx context.Context, key []byte) (done func(), err error) {
	t.mu.Lock()
	n, ok := t.all[string(key)]
	if !ok {
		n = &turn{free: make(chan struct{}, 1)}
		n.free <- struct{}{}
		t.all[string(key)] = n
	}
	n.users++
	t.mu.Unlock()
	release := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if n.users--; n.users == 0 {
			delete(t.all, string(key))
		}
	}
	select {
	case <-n.free:
		return func() {
			n.free <- struct{}{}
			release()
		}, nil
	case <-ctx.Done():
		release()
		return nil, ctx.Err()
	}
}
