package tikvraw

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/percolate-go/percolate/internal/contexts"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// cleaner removes keys that nothing points to any more, behind the backs of the calls
// that let them go. One goroutine runs while there is something to remove, and what
// comes in meanwhile goes with its next batch. What it cannot remove stays as garbage
// for Sweep.
type cleaner struct {
	s   *Store
	ctx context.Context // ended by close
	end context.CancelFunc
	wg  sync.WaitGroup

	mu      sync.Mutex
	waiting []garbage
	stale   []marker
	running bool
	closed  bool
	// seen has the notification markers that scans met without a notification, and
	// when that was first. It was cleared of old ones last at forgot.
	seen   map[string]time.Time
	forgot time.Time
}

// marker is the marker of a row's notifications that the row's head does not know.
type marker struct {
	key, head []byte
	id        uint64
}

const (
	// queueMax bounds what waits for removal: an outage must not fill the memory.
	queueMax = 1 << 16
	// seenMax bounds what is remembered of stale markers.
	seenMax = 1 << 12
)

func newCleaner(s *Store) *cleaner {
	c := &cleaner{s: s, seen: map[string]time.Time{}}
	c.ctx, c.end = context.WithCancel(context.Background())
	return c
}

// add hands over keys to be removed. It does not wait.
func (c *cleaner) add(keys ...garbage) {
	if len(keys) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.waiting)+len(keys) > queueMax || c.s.outdated.Load() != nil {
		return
	}
	c.waiting = append(c.waiting, keys...)
	c.start()
}

// met notes a notification marker that its row's head does not know. A swap that will
// point to it may be under way. So only a marker that was met again after a time is
// removed, and then with the care that Sweep takes.
func (c *cleaner) met(m marker) {
	if c.s.opts.AsIs {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	first, ok := c.seen[string(m.key)]
	now := c.s.opts.clock()
	switch {
	case c.closed || c.s.outdated.Load() != nil:
	case !ok:
		// If it is full, the marker has its turn when others are gone. To forget those instead
		// would mean that of many markers none is ever met again.
		if len(c.seen) < seenMax || c.forget(now) {
			c.seen[string(m.key)] = now
		}
	case now.Sub(first) >= c.s.opts.staleAfter && len(c.stale) < queueMax:
		delete(c.seen, string(m.key))
		c.stale = append(c.stale, m)
		c.start()
	}
}

// forget makes room for markers that scans meet: it drops those that no scan has met again for
// long, because their swap came or somebody else has removed them. It tells whether there is room.
func (c *cleaner) forget(now time.Time) bool {
	if now.Sub(c.forgot) >= c.s.opts.staleAfter || now.Before(c.forgot) {
		c.forgot = now
		maps.DeleteFunc(c.seen, func(_ string, first time.Time) bool {
			return now.Sub(first) >= 10*c.s.opts.staleAfter || now.Before(first)
		})
	}
	return len(c.seen) < seenMax
}

// start runs the goroutine, with the lock held.
func (c *cleaner) start() {
	if !c.running {
		c.running = true
		c.wg.Add(1)
		go c.run()
	}
}

func (c *cleaner) run() {
	defer c.wg.Done()
	for {
		c.mu.Lock()
		waiting, stale := c.waiting, c.stale
		c.waiting, c.stale = nil, nil
		if len(waiting) == 0 && len(stale) == 0 {
			c.running = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		for part := range slices.Chunk(waiting, batchKeys) {
			if c.s.outdated.Load() != nil || c.remove(part) != nil {
				break // Sweep finds what is left
			}
		}
		for _, m := range stale {
			if c.s.outdated.Load() != nil {
				break
			}
			_, _ = c.s.reclaim(c.ctx, m.head, []sideKey{{key: m.key, id: m.id}})
		}
	}
}

// remove deletes keys. A chunk goes after the values that only it points to, so that
// Sweep still finds those if this does not get far.
func (c *cleaner) remove(all []garbage) error {
	var keys [][]byte
	var chunks [][]byte
	for _, g := range all {
		if g.head == nil {
			keys = append(keys, g.key)
			continue
		}
		raw, err := c.s.raw.get(c.ctx, g.key)
		if err != nil {
			return err
		}
		if raw == nil {
			continue
		}
		entries, err := decodeChunk(raw, g.family, g.column)
		if err != nil {
			return fmt.Errorf("%w (key %q)", err, g.key)
		}
		for _, e := range entries {
			if e.value.id != 0 {
				keys = append(keys, c.s.keys.side(g.head, e.value.id, kindValue))
			}
		}
		chunks = append(chunks, g.key)
	}
	for _, keys := range [][][]byte{keys, chunks} {
		var err error
		switch len(keys) {
		case 0:
		case 1:
			err = c.s.raw.delete(c.ctx, keys[0])
		default:
			err = c.s.raw.batchDelete(c.ctx, keys)
		}
		if err != nil {
			return err
		}
	}
	for _, g := range all {
		if g.marker != 0 {
			c.s.hints.gone(g.marker)
		}
	}
	return nil
}

// close removes what waits, for a while, and stops.
func (c *cleaner) close(patience time.Duration) {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	defer time.AfterFunc(patience, c.end).Stop()
	c.wg.Wait()
	c.end()
}

// idle waits until nothing waits for removal; for tests.
func (c *cleaner) idle() {
	c.wg.Wait()
}

// sideKey is a key that a row's head should point to.
type sideKey struct {
	key  []byte
	id   uint64 // of a notification marker, its markerID
	kind byte   // 0 for a notification marker
}

// reclaim removes those of a row's keys that its head does not point to, and returns
// how many. A head that points to none of them now may do so next, by a swap that is
// under way. So the head is written anew first, with another tag and nothing else
// changed: every such swap fails from then on, and its author writes other keys.
// An error that is not nil leaves them for the next time.
func (s *Store) reclaim(ctx context.Context, head []byte, keys []sideKey) (int, error) {
	done, err := s.turns.take(ctx, head)
	if err != nil {
		return 0, err
	}
	defer done()
	raw, err := s.raw.get(ctx, head)
	if err != nil {
		return 0, err
	}
	r, err := s.decodeRow(head, raw)
	if err != nil {
		return 0, err
	}
	dead, err := r.unknown(ctx, keys)
	if err != nil || len(dead) == 0 {
		return 0, err
	}
	fenced := *r.head
	fenced.tag = newID()
	next := fenced.encode()
	met, swapped, err := s.raw.cas(ctx, head, raw, next)
	if err != nil {
		s.cache.drop(head)
		return 0, err
	}
	if !swapped && !bytes.Equal(met, next) {
		s.cache.put(head, met)
		return 0, nil
	}
	s.cache.put(head, next)
	return len(dead), s.raw.batchDelete(ctx, dead)
}

// knows tells whether a notification marker is the row's, by the id in its key.
func (r *row) knows(id uint64) bool { return r.index != 0 && markerID(r.index) == id }

// unknown returns the keys that the head does not point to.
func (r *row) unknown(ctx context.Context, keys []sideKey) ([][]byte, error) {
	known := map[uint64]bool{}
	values := func(entries []entry) {
		for _, e := range entries {
			known[e.value.id] = true
		}
	}
	values(r.entries)
	for _, c := range r.head.chunks {
		known[c.id] = true
	}
	var dead [][]byte
	loaded := false
	for _, k := range keys {
		if k.kind == 0 {
			if !r.knows(k.id) {
				dead = append(dead, k.key)
			}
			continue
		}
		if !known[k.id] && k.kind == kindValue && !loaded {
			loaded = true
			for _, c := range r.head.chunks {
				if !c.values {
					continue
				}
				entries, err := r.load(ctx, c)
				if err != nil {
					return nil, err
				}
				values(entries)
			}
		}
		if !known[k.id] {
			dead = append(dead, k.key)
		}
	}
	return dead, nil
}

// SweepResult says what a Sweep found.
type SweepResult struct {
	// Keys is how many keys were looked at that a row's head should point to.
	Keys int
	// Removed is how many of them no head pointed to.
	Removed int
}

// sweepPage is how many keys a sweep looks at in one go.
const sweepPage = 1024

// Sweep looks through the store for garbage: long values, older versions and markers
// of notifications that were written for a change that did not happen, or were to be
// removed after one that did, when a process died or the cluster did not answer. It
// may run beside everything else and more than once at a time. An open store does it
// by itself from time to time; see Options.SweepEvery.
//
// It costs one request for each thousand such keys and one for each 128 rows that
// have any. It honours ctx; with an error the result tells what was done before. Keys
// and rows that it does not understand, because they are damaged or another
// application's, it leaves alone and goes on; the first error of these comes at the end.
func (s *Store) Sweep(ctx context.Context) (SweepResult, error) {
	return s.sweep(ctx, 0)
}

// sweeping is a sweep under way.
type sweeping struct {
	SweepResult
	passed error // the first error of what it passed over
}

// pass returns an error that ends the sweep. One of a key or a row that this program does not understand does not: it
// would keep all that lies behind from ever being looked at.
func (w *sweeping) pass(err error) error {
	if !unreadable(err) {
		return err
	}
	if w.passed == nil {
		w.passed = err
	}
	return nil
}

// sweep pauses after each page for as long as the page took, times rest.
func (s *Store) sweep(ctx context.Context, rest int) (SweepResult, error) {
	var done sweeping
	for _, space := range []byte{spaceSide, spaceIndex} {
		from := s.keys.space(space)
		to := s.keys.space(space + 1)
		for more := true; more; {
			began := time.Now()
			var err error
			if from, more, err = s.sweepSome(ctx, space, from, to, &done); err != nil {
				return done.SweepResult, s.gate.Fail("sweep", err)
			}
			if rest > 0 && more {
				if err := contexts.Sleep(ctx, time.Since(began)*time.Duration(rest)); err != nil {
					return done.SweepResult, s.gate.Fail("sweep", err)
				}
			}
		}
	}
	return done.SweepResult, s.gate.Fail("sweep", done.passed)
}

func (s *Store) sweepSome(ctx context.Context, space byte, from, to []byte, done *sweeping) (next []byte, more bool, err error) {
	ctx, end, err := s.begin(ctx, "sweep")
	if err != nil {
		return nil, false, err
	}
	defer end()
	page, more, err := s.keysFrom(ctx, from, to, sweepPage)
	if err != nil || len(page) == 0 {
		return nil, false, err
	}
	var asks []*ask
	var keys [][]sideKey
	for _, p := range page {
		var head []byte
		k := sideKey{key: p.key}
		if space == spaceSide {
			head, k.id, k.kind, err = s.keys.parseSide(p.key)
		} else {
			var m marked
			m, err = s.keys.parseIndex(p.key)
			head, k.id = s.keys.row(spaceHead, m.table, m.row), m.id
		}
		if err != nil {
			if err = done.pass(err); err != nil {
				return nil, false, err
			}
			continue
		}
		if n := len(asks); n == 0 || !bytes.Equal(asks[n-1].key, head) {
			asks, keys = append(asks, &ask{key: head}), append(keys, nil)
		}
		keys[len(keys)-1] = append(keys[len(keys)-1], k)
		done.Keys++
	}
	if err := s.readHeads(ctx, asks, false); err != nil {
		return nil, false, err
	}
	for i, a := range asks {
		n, err := s.sweepRow(ctx, a, keys[i])
		done.Removed += n
		if err = done.pass(err); err != nil {
			return nil, false, err
		}
	}
	last := page[len(page)-1].key
	return append(bytes.Clone(last), 0), more, nil
}

// sweepRow removes those of a row's keys that its head, which was read, does not point to.
func (s *Store) sweepRow(ctx context.Context, a *ask, keys []sideKey) (removed int, err error) {
	r, err := s.decodeRow(a.key, a.raw)
	if err != nil {
		return 0, err
	}
	dead, err := r.unknown(ctx, keys)
	if err == nil && len(dead) > 0 {
		removed, err = s.reclaim(ctx, a.key, keys)
	}
	if errors.Is(err, errMoved) {
		err = nil
	}
	return removed, err
}

// sweepSometimes runs a sweep whenever the last one of anybody is older than
// Options.SweepEvery, until ctx ends. The processes that use a store agree through
// one key.
func (s *Store) sweepSometimes(ctx context.Context) {
	key := s.keys.space(spaceSweep)
	for {
		// Not all at once, and soon enough after the time has come.
		wait := s.opts.SweepEvery/16 + time.Duration(rand.Int64N(int64(s.opts.SweepEvery/16)+1))
		if contexts.Sleep(ctx, wait) != nil {
			return
		}
		raw, err := s.raw.get(ctx, key)
		if err != nil {
			continue
		}
		now := s.opts.clock()
		if !s.sweepIsDue(raw, now) {
			continue
		}
		mine := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(now.UnixMilli())), newID())
		met, swapped, err := s.raw.cas(ctx, key, raw, mine)
		if err == nil && (swapped || bytes.Equal(met, mine)) {
			_, _ = s.sweep(ctx, 1) // what it did not reach is there the next time
		}
	}
}

// sweepIsDue tells whether the sweep that a process claimed is long ago. A claim far in the future is of a process whose
// clock was wrong, and must not keep all others from sweeping until their clocks are there.
func (s *Store) sweepIsDue(claim []byte, now time.Time) bool {
	if len(claim) != 16 {
		return true
	}
	ago := now.Sub(time.UnixMilli(int64(binary.BigEndian.Uint64(claim)))) //nolint:gosec // as it was written
	return ago >= s.opts.SweepEvery || ago <= -s.opts.SweepEvery
}

var _ rowstore.Store = (*Store)(nil)
