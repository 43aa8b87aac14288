package pebble

import (
	"bytes"
	"errors"
	"hash/maphash"
	"sync/atomic"

	engine "github.com/cockroachdb/pebble/v2"
)

// The heads that were read or written last are kept in memory, and so is the knowledge
// that a column has none. A transaction reads a head and then checks conditions on it,
// and the engine's Get is the most expensive part of both.
//
// The cache is divided among the stripes. A stripe allocates its part with its first
// entry, so a large cache costs a small store nothing. An entry changes only under its
// stripe's lock. A writer stores what it has just written; a reader stores what it has
// just read, which no writer can change meanwhile. So an entry is always what the engine
// has.
const (
	// cacheSlot is the memory in bytes that is planned for an entry, and the greatest
	// length of a key and its head that are kept.
	cacheSlot = 512
	// ways is the number of entries among which one is found.
	ways = 2
)

// cached is a head in memory. It never changes.
type cached struct {
	key     []byte
	value   []byte // the encoded head
	present bool   // the column has one
}

// bucket is where the entries of some columns of one stripe are.
type bucket [ways]atomic.Pointer[cached]

// cacheBuckets returns how many buckets a stripe has.
func cacheBuckets(size int64) int {
	n := 1
	for left := size / (ways * cacheSlot * stripeCount); left >= 2; left /= 2 {
		n *= 2
	}
	return n
}

// bucket returns where the entry with that key is or would be. The stripe is held.
func (s *Store) bucket(stripe uint32, key []byte) *bucket {
	at := &s.stripes[stripe].buckets
	all := at.Load()
	if all == nil {
		// The first of several readers wins. A store of few rows never makes most.
		made := make([]bucket, s.perStripe)
		if all = &made; !at.CompareAndSwap(nil, all) {
			all = at.Load()
		}
	}
	return &(*all)[int(maphash.Bytes(s.seed, key))&(s.perStripe-1)]
}

// getHead returns the encoded head with that key, which is of a row of that stripe.
// The stripe is held. The bytes never change.
func (s *Store) getHead(stripe uint32, key []byte) (value []byte, present bool, err error) {
	b := s.bucket(stripe, key)
	for i := range b {
		if c := b[i].Load(); c != nil && bytes.Equal(c.key, key) {
			return c.value, c.present, nil
		}
	}
	v, closer, err := s.db.Get(key)
	if err != nil && !errors.Is(err, engine.ErrNotFound) {
		return nil, false, err
	}
	c := &cached{}
	if err == nil {
		c.present = true
		buf := make([]byte, len(key)+len(v))
		n := copy(buf, key)
		copy(buf[n:], v)
		c.key, c.value = buf[:n:n], buf[n:]
		closer.Close()
	} else {
		c.key = bytes.Clone(key)
	}
	if len(c.key)+len(c.value) <= cacheSlot {
		b.put(c)
	}
	return c.value, c.present, nil
}

// put adds an entry, which becomes the first of its bucket.
func (b *bucket) put(c *cached) {
	first := b[0].Load()
	if first != nil && !bytes.Equal(first.key, c.key) {
		b[1].Store(first)
	} else if second := b[1].Load(); second != nil && bytes.Equal(second.key, c.key) {
		// Two readers may have put the same entry twice.
		b[1].Store(nil)
	}
	b[0].Store(c)
}

// replace puts the entry of a head that was written, if it has one, in the place of
// those with its key. The stripe is held for writing.
func (s *Store) replace(stripe uint32, key []byte, c *cached) {
	b := s.bucket(stripe, key)
	for i := range b {
		if old := b[i].Load(); old != nil && bytes.Equal(old.key, key) {
			b[i].Store(nil)
		}
	}
	if c != nil {
		b.put(c)
	}
}
