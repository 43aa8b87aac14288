package kit

import "sync"

// Claims is who has what open in this process: a database that a caller gave to a backend,
// or the path of one. Two stores in one database would hand out the same timestamps, and
// the lock of a file does not always keep a process from locking it twice. A backend has
// one Claims of each kind, as a variable of its package. The zero value is ready to use.
// All methods may be called concurrently.
type Claims[K comparable] struct {
	mu    sync.Mutex
	taken map[K]bool
}

// Claim takes key for one store. ok is false while another store has it. The store calls
// release when it is closed, or when opening it fails. release is never nil and returns no
// error; if ok is false, or at the second call, it does nothing.
func (c *Claims[K]) Claim(key K) (release func() error, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken[key] {
		return func() error { return nil }, false
	}
	if c.taken == nil {
		c.taken = map[K]bool{}
	}
	c.taken[key] = true
	return sync.OnceValue(func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.taken, key)
		return nil
	}), true
}
