package memstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Flush implements Deferrer.
func (m *Store) Flush(ctx context.Context) error {
	if err := m.enter(ctx, "flush"); err != nil {
		return err
	}
	defer m.mu.Unlock()
	m.undo = nil
	return nil
}

// Crash implements Crasher. It does what a crash of a database server does: every change
// of an Apply with Deferred since the last undeferred change or Flush is lost, and
// the incarnation changes. The rest survives, and timestamps do not go back.
func (m *Store) Crash() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, u := range slices.Backward(m.undo) {
		m.set(u.table, u.row, u.versions)
	}
	m.undo = nil
	m.newIncarnation()
	// A notification whose removal was lost is there again.
	m.hub.Tell(rowstore.Wake{})
}

// Reopen returns a Store with the data of m, for tests: it does what a process does that
// opens the data of one that ended. Timestamps go on from there. It returns an error if m
// is not closed. After Crash and Close, what the crash lost stays lost.
func (m *Store) Reopen() (*Store, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		return nil, errors.New("memory: opening again: the store is in use")
	}
	again := New(func(next *Store) {
		next.clock, next.limits, next.applyTimestamps, next.drawn = m.clock, m.limits, m.applyTimestamps, m.drawn
	})
	// Rows are never changed in place, but tables are.
	m.tables.Scan(func(name string, t *tableRows) bool {
		again.tables.Set(name, &tableRows{rows: *t.rows.Copy(), notified: *t.notified.Copy(), bySlot: *t.bySlot.Copy()})
		return true
	})
	return again, nil
}

// newIncarnation chooses a value that no Store of this process had before, and that
// another process is unlikely to have.
func (m *Store) newIncarnation() {
	m.crashes++
	m.incarnation = fmt.Sprintf("memory-%p-%d-%d", m, time.Now().UnixNano(), m.crashes)
}
