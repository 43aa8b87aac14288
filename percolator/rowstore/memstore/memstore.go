// Package memstore is a store in this process's memory: the reference that every backend
// is compared with, and a store for tests.
package memstore

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tidwall/btree"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// Store is a [rowstore.Store] in this process's memory, with every optional ability that one
// server can have. It is the reference: the plainest code that keeps each promise of package
// rowstore. The conformance suite compares every backend with it. It serves tests: its data
// ends with the process.
//
// One mutex covers everything, so each call is atomic as a whole, and the calls have one
// order.
type Store struct {
	clock  func() time.Time
	limits rowstore.Limits

	mu     sync.Mutex
	tables btree.Map[string, *tableRows]
	// undo holds, oldest first, the rows as they were before each deferred change that is
	// not durable yet. An undeferred change makes every earlier one durable, so deferred
	// changes are the last of all changes. Undoing them, newest first, gives the state of
	// the last durable moment.
	undo            []undo
	crashes         int
	incarnation     string
	drawn           rowstore.Timestamp // the greatest timestamp that was handed out
	applyTimestamps bool
	hub             kit.Hub
	life            context.Context // ended by Close
	end             context.CancelFunc
	closed          bool
}

type tableRows struct {
	// A row's slice never changes: a mutation puts a new slice in its place. So views and
	// undo records are the slices themselves.
	rows btree.Map[string, []rowstore.Version]
	// notified has the keys of the rows that hold a Notify, so that a search for
	// notifications skips all other rows.
	notified btree.Map[string, struct{}]
	// bySlot has the same keys in the order of their slots (slotKey).
	bySlot btree.Map[string, struct{}]
}

type undo struct {
	table, row string
	versions   []rowstore.Version
}

// Option changes a Store that New makes.
type Option func(*Store)

// WithClock makes the oracle take wall time from now instead of time.Now. If the clock goes
// back, timestamps run ahead of it; they never go back. The function is called with a lock
// held and must not call the store.
func WithClock(now func() time.Time) Option {
	return func(m *Store) { m.clock = now }
}

// WithLimits gives the store limits, by which it refuses mutations and groups. With 128
// operations, for example, it is a store like etcd. The default is no limits.
func WithLimits(l rowstore.Limits) Option {
	return func(m *Store) { m.limits = l }
}

// WithApplyTimestamps makes the store draw timestamps in an Apply that asks for them. This
// saves a store in memory nothing; it serves tests of callers that ask.
func WithApplyTimestamps() Option {
	return func(m *Store) { m.applyTimestamps = true }
}

// New returns an empty store.
func New(opts ...Option) *Store {
	m := &Store{clock: time.Now}
	for _, o := range opts {
		o(m)
	}
	m.life, m.end = context.WithCancel(context.Background())
	m.newIncarnation()
	return m
}

var (
	_ rowstore.Store           = (*Store)(nil)
	_ rowstore.Grouper         = (*Store)(nil)
	_ rowstore.Deferrer        = (*Store)(nil)
	_ rowstore.OracleProvider  = (*Store)(nil)
	_ rowstore.SnapshotReader  = (*Store)(nil)
	_ rowstore.Splitter        = (*Store)(nil)
	_ rowstore.SlotScanner     = (*Store)(nil)
	_ rowstore.SnapshotScanner = (*Store)(nil)
	_ rowstore.Waker           = (*Store)(nil)
	_ rowstore.Limiter         = (*Store)(nil)
	_ rowstore.Reporter        = (*Store)(nil)
	_ rowstore.Crasher         = (*Store)(nil)
)

// enter locks the store. It returns an error, and does not lock, if the context ended or the
// store is closed.
func (m *Store) enter(ctx context.Context, what string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("memory: %s: %w", what, err)
	}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return fmt.Errorf("memory: %s: %w", what, rowstore.ErrClosed)
	}
	return nil
}

// Apply implements Store.
func (m *Store) Apply(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	err := rowstore.CheckBatch(muts)
	if err == nil {
		err = rowstore.CheckLimits(m.limits, muts)
	}
	if err != nil {
		return nil, fmt.Errorf("memory: apply: %w", err)
	}
	if err := m.enter(ctx, "apply"); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	outcomes, before := make([]rowstore.Outcome, len(muts)), len(m.undo)
	for i := range muts {
		outcomes[i] = m.judge(&muts[i])
		if outcomes[i].Applied {
			m.edit(&muts[i], 0)
		}
	}
	if !opts.Deferred && len(m.undo) > before {
		m.undo = nil
	}
	if opts.AssignTimestamp && m.applyTimestamps {
		// If no timestamps are left, the caller draws one itself and gets that error.
		if first, err := m.draw(len(muts)); err == nil {
			for i := range outcomes {
				if outcomes[i].Applied {
					outcomes[i].Timestamp = first + rowstore.Timestamp(i)
				}
			}
		}
	}
	return outcomes, nil
}

// Group implements Grouper.
func (m *Store) Group(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
	err := rowstore.CheckGroups(m, groups)
	if err == nil {
		err = rowstore.CheckGroupLimits(m.limits, groups)
	}
	if err != nil {
		return nil, fmt.Errorf("memory: group: %w", err)
	}
	if err := m.enter(ctx, "group"); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	outcomes, before := make([]rowstore.GroupOutcome, len(groups)), len(m.undo)
	for i := range groups {
		outcomes[i] = m.group(&groups[i])
	}
	if len(m.undo) > before {
		m.undo = nil
	}
	return outcomes, nil
}

func (m *Store) group(g *rowstore.Group) rowstore.GroupOutcome {
	out := rowstore.GroupOutcome{Incarnation: m.incarnation}
	for i := range g.Mutations {
		if o := m.judge(&g.Mutations[i]); !o.Applied {
			out.Failed, out.Outcome = i, o
			return out
		}
	}
	if g.AssignTimestamp {
		ts, err := m.draw(1)
		if err != nil {
			out.Err = err
			return out
		}
		if g.NotAfter != 0 && ts > g.NotAfter {
			out.TooLate = true
			return out
		}
		out.Commit = ts
	}
	for i := range g.Mutations {
		m.edit(&g.Mutations[i], out.Commit)
	}
	out.Applied = true
	return out
}

// GroupKey implements Grouper: any rows may share a group.
func (m *Store) GroupKey(table, row string) string { return "memory" }

// AssignsTimestamps implements Grouper. Timestamps are drawn under the lock that readers
// take, so a reader with a greater timestamp reads after the group.
func (m *Store) AssignsTimestamps(key string) bool { return key == "memory" }

// Listen implements Waker.
func (m *Store) Listen(ctx context.Context, wake func(rowstore.Wake)) error {
	if err := m.enter(ctx, "listen"); err != nil {
		return err
	}
	m.mu.Unlock()
	listening, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.life, cancel)()
	_ = m.hub.Listen(listening, wake) // it says no more than that a context ended
	if err := ctx.Err(); err != nil {
		return err
	}
	return fmt.Errorf("memory: listen: %w", rowstore.ErrClosed)
}

// Limits implements Limiter.
func (m *Store) Limits() rowstore.Limits { return m.limits }

// Report implements Reporter.
func (m *Store) Report(ctx context.Context) (rowstore.Report, error) {
	if err := m.enter(ctx, "report"); err != nil {
		return rowstore.Report{}, err
	}
	defer m.mu.Unlock()
	return rowstore.Report{
		Backend: "memory",
		Features: []rowstore.Feature{
			{Name: rowstore.FeatureGroups, Supported: true},
			{Name: rowstore.FeatureOnePhase, Supported: true},
			{Name: rowstore.FeatureDeferred, Supported: true, Reason: "until Crash is called"},
			{Name: rowstore.FeatureOracle, Supported: true},
			{Name: rowstore.FeatureSnapshots, Supported: true},
			{Name: rowstore.FeatureSplit, Supported: true},
			{Name: rowstore.FeatureSlots, Supported: true},
			{Name: rowstore.FeatureScans, Supported: true},
			{Name: rowstore.FeatureWake, Supported: true},
			{Name: "durable", Reason: "the data is gone when the process ends"},
		},
	}, nil
}

// Close implements Store.
func (m *Store) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.closed = true
		m.end()
	}
	return nil
}

func (m *Store) versions(table, row string) []rowstore.Version {
	t, ok := m.tables.Get(table)
	if !ok {
		return nil
	}
	versions, _ := t.rows.Get(row)
	return versions
}

// set replaces the versions of a row, in both indexes. A row or a table without versions
// does not exist.
func (m *Store) set(table, row string, versions []rowstore.Version) {
	t, ok := m.tables.Get(table)
	if !ok {
		if len(versions) == 0 {
			return
		}
		t = &tableRows{}
		m.tables.Set(table, t)
	}
	if len(versions) == 0 {
		t.rows.Delete(row)
		t.notify(table, row, false)
		if t.rows.Len() == 0 {
			m.tables.Delete(table)
		}
		return
	}
	t.rows.Set(row, versions)
	// Notify is the greatest family, so its versions are the last.
	t.notify(table, row, versions[len(versions)-1].Family == rowstore.Notify)
}

// notify notes whether a row holds a Notify.
func (t *tableRows) notify(table, row string, holds bool) {
	if _, held := t.notified.Get(row); held == holds {
		return
	}
	at := slotKey(rowstore.Slot(table, row), row)
	if holds {
		t.notified.Set(row, struct{}{})
		t.bySlot.Set(at, struct{}{})
	} else {
		t.notified.Delete(row)
		t.bySlot.Delete(at)
	}
}

// slotKey orders rows by their slots.
func slotKey(slot uint16, row string) string {
	return string([]byte{byte(slot >> 8), byte(slot)}) + row
}

// judge tells whether every condition of a mutation holds.
func (m *Store) judge(mut *rowstore.Mutation) rowstore.Outcome {
	versions := m.versions(mut.Table, mut.Row)
	out, _ := kit.Judge(mut, m.incarnation, func(family rowstore.Family, column string, from, to rowstore.Timestamp) (*rowstore.Version, error) {
		return kit.Newest(versions, family, column, from, to), nil
	})
	return out
}

// edit makes the edits of a mutation whose conditions hold. assigned replaces
// AssignedTimestamp.
func (m *Store) edit(mut *rowstore.Mutation, assigned rowstore.Timestamp) {
	if len(mut.Edits) == 0 {
		return
	}
	old := m.versions(mut.Table, mut.Row)
	m.undo = append(m.undo, undo{mut.Table, mut.Row, old})
	m.set(mut.Table, mut.Row, kit.Edited(old, mut.Edits, assigned))
	if kit.Wakes(mut) {
		m.hub.Tell(rowstore.Wake{Table: mut.Table, Slots: []uint16{rowstore.Slot(mut.Table, mut.Row)}})
	}
}

func splitSlotKey(key string) (slot uint16, row string) {
	return uint16(key[0])<<8 | uint16(key[1]), key[2:]
}

// ScansSlots implements SlotScanner.
func (m *Store) ScansSlots() {}

// ScansSnapshots implements SnapshotScanner.
func (m *Store) ScansSnapshots() {}
