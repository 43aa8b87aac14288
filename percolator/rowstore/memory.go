package rowstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/tidwall/btree"

	"github.com/percolate-go/percolate/percolator/oracle"
)

// Memory is a Store in this process's memory, with every optional ability. It is
// the reference: the plainest code that keeps each promise of the seam, which
// the suite compares every backend with. It serves tests; what it holds is gone
// with the process.
//
// One mutex covers everything, so each call is atomic as a whole, and every
// call's effect has one place in one order.
type Memory struct {
	clock  func() time.Time
	limits Limits

	mu     sync.Mutex
	tables btree.Map[string, *memoryTable]
	// undo holds, oldest first, what rows were before each deferred change that is
	// not durable yet. Deferred changes are a suffix of all changes, because an
	// undeferred one makes every earlier one durable: so taking these back, newest
	// first, gives the state of the last durable moment.
	undo        []memoryUndo
	crashes     int
	incarnation string
	drawn       Timestamp // the greatest timestamp that was handed out
	applyDraw   bool
	listeners   map[*memoryListener]struct{}
	done        chan struct{}
	closed      bool
}

type memoryTable struct {
	// A row's slice is never changed once it is here: a mutation puts a new one in
	// its place. So views and undo records are the slices themselves.
	rows btree.Map[string, []Version]
	// notified has the keys of the rows that hold a Notify, so that a search for
	// notifications does not pass the other rows.
	notified btree.Map[string, struct{}]
}

type memoryUndo struct {
	table, row string
	versions   []Version
}

type memoryListener struct {
	tables map[string]struct{}
	signal chan struct{} // of capacity 1
}

// MemoryOption changes a Memory that NewMemory makes.
type MemoryOption func(*Memory)

// WithClock makes the oracle of a Memory take wall time from now in place of
// time.Now. A clock that goes back makes timestamps run ahead of it, never go
// back. The function is called with a lock held and must not call the store.
func WithClock(now func() time.Time) MemoryOption {
	return func(m *Memory) { m.clock = now }
}

// WithLimits gives a Memory limits to refuse mutations and groups by: with 128
// operations, say, it is a store like etcd. The default is none.
func WithLimits(l Limits) MemoryOption {
	return func(m *Memory) { m.limits = l }
}

// WithApplyDraw makes a Memory draw timestamps in an Apply that asks for them. It has
// nothing to gain by that; it is there so that those who ask can be tested.
func WithApplyDraw() MemoryOption {
	return func(m *Memory) { m.applyDraw = true }
}

// NewMemory returns an empty store.
func NewMemory(opts ...MemoryOption) *Memory {
	m := &Memory{
		clock:     time.Now,
		listeners: map[*memoryListener]struct{}{},
		done:      make(chan struct{}),
	}
	for _, o := range opts {
		o(m)
	}
	m.newIncarnation()
	return m
}

var (
	_ Store          = (*Memory)(nil)
	_ Grouper        = (*Memory)(nil)
	_ Deferrer       = (*Memory)(nil)
	_ OracleProvider = (*Memory)(nil)
	_ DrawReader     = (*Memory)(nil)
	_ Splitter       = (*Memory)(nil)
	_ Waker          = (*Memory)(nil)
	_ Limiter        = (*Memory)(nil)
	_ Reporter       = (*Memory)(nil)
	_ Crasher        = (*Memory)(nil)
)

// enter locks the store, unless the call has to end at once.
func (m *Memory) enter(ctx context.Context, what string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("memory: %s: %w", what, err)
	}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return fmt.Errorf("memory: %s: %w", what, ErrClosed)
	}
	return nil
}

// Read implements Store.
func (m *Memory) Read(ctx context.Context, reads []RowRead) ([]Row, error) {
	if err := CheckReads(reads); err != nil {
		return nil, fmt.Errorf("memory: read: %w", err)
	}
	if err := m.enter(ctx, "read"); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	return m.read(reads), nil
}

func (m *Memory) read(reads []RowRead) []Row {
	rows := make([]Row, len(reads))
	for i, r := range reads {
		rows[i] = Row{Table: r.Table, Row: r.Row, Versions: selectVersions(m.versions(r.Table, r.Row), r.Picks)}
	}
	return rows
}

// Apply implements Store.
func (m *Memory) Apply(ctx context.Context, muts []Mutation, opts ApplyOptions) ([]Outcome, error) {
	err := CheckBatch(muts)
	if err == nil {
		err = CheckLimits(m.limits, muts)
	}
	if err != nil {
		return nil, fmt.Errorf("memory: apply: %w", err)
	}
	if err := m.enter(ctx, "apply"); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	outcomes := make([]Outcome, len(muts))
	for i := range muts {
		outcomes[i] = m.judge(&muts[i])
		if outcomes[i].Applied {
			m.edit(&muts[i], 0)
		}
	}
	if !opts.Deferred {
		m.undo = nil
	}
	if opts.Draw && m.applyDraw {
		// Without timestamps left the caller draws by himself, and learns why not.
		if first, err := m.draw(len(muts)); err == nil {
			for i := range outcomes {
				if outcomes[i].Applied {
					outcomes[i].Drawn = first + Timestamp(i)
				}
			}
		}
	}
	return outcomes, nil
}

// Group implements Grouper.
func (m *Memory) Group(ctx context.Context, groups []Group) ([]GroupOutcome, error) {
	err := CheckGroups(m, groups)
	if err == nil {
		err = CheckGroupLimits(m.limits, groups)
	}
	if err != nil {
		return nil, fmt.Errorf("memory: group: %w", err)
	}
	if err := m.enter(ctx, "group"); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	outcomes := make([]GroupOutcome, len(groups))
	for i := range groups {
		outcomes[i] = m.group(&groups[i])
	}
	m.undo = nil
	return outcomes, nil
}

func (m *Memory) group(g *Group) GroupOutcome {
	out := GroupOutcome{Incarnation: m.incarnation}
	for i := range g.Mutations {
		if o := m.judge(&g.Mutations[i]); !o.Applied {
			out.Failed, out.Outcome = i, o
			return out
		}
	}
	if g.Draw {
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
func (m *Memory) GroupKey(table, row string) string { return "memory" }

// Draws implements Grouper. Timestamps are drawn under the lock that readers
// take, so whoever draws a greater one reads after the group.
func (m *Memory) Draws(key string) bool { return key == "memory" }

// Scan implements Store.
func (m *Memory) Scan(ctx context.Context, s ScanRange) iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		if err := CheckScan(s); err != nil {
			yield(Row{}, fmt.Errorf("memory: scan: %w", err))
			return
		}
		visited, at := 0, ""
		for s.Limit == 0 || visited < s.Limit {
			if err := m.enter(ctx, "scan of table "+s.Table); err != nil {
				yield(Row{}, err)
				return
			}
			key, versions, more := m.next(&s, at)
			m.mu.Unlock()
			if !more {
				return
			}
			at = key
			if len(versions) == 0 {
				continue // next looked at enough rows for one turn
			}
			visited++
			if !yield(Row{Table: s.Table, Row: key, Versions: versions}, nil) {
				return
			}
		}
	}
}

// next finds the first row of s beyond the key after ("" is none yet) that
// matches. It gives up after some rows, so that neither the lock nor a cancelled
// scan lasts long, and then returns the last key that it looked at, no versions,
// and true.
func (m *Memory) next(s *ScanRange, after string) (key string, versions []Version, more bool) {
	table, ok := m.tables.Get(s.Table)
	if !ok {
		return "", nil, false
	}
	const turn = 1024
	looked := 0
	visit := func(row string) bool {
		if s.Reverse {
			if s.To != "" && row >= s.To || after != "" && row >= after {
				return true
			}
			if row < s.From {
				return false
			}
		} else {
			if row == after {
				return true
			}
			if s.To != "" && row >= s.To {
				return false
			}
		}
		all, _ := table.rows.Get(row)
		key, more, versions = row, true, selectVersions(all, s.Picks)
		looked++
		return len(versions) == 0 && looked < turn
	}
	from := max(s.From, after)
	if s.Reverse {
		from = s.To
		if after != "" {
			from = after
		}
	}
	if onlyNotify(s.Picks) {
		walk(&table.notified, from, s.Reverse, visit)
	} else {
		walk(&table.rows, from, s.Reverse, visit)
	}
	if more && len(versions) == 0 && looked < turn {
		return "", nil, false
	}
	return key, versions, more
}

func walk[V any](keys *btree.Map[string, V], from string, reverse bool, visit func(string) bool) {
	each := func(key string, _ V) bool { return visit(key) }
	switch {
	case !reverse:
		keys.Ascend(from, each)
	case from == "":
		keys.Reverse(each)
	default:
		keys.Descend(from, each)
	}
}

func onlyNotify(picks []Pick) bool {
	return !slices.ContainsFunc(picks, func(p Pick) bool { return p.Family != Notify })
}

// Tables implements Store.
func (m *Memory) Tables(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if err := m.enter(ctx, "tables"); err != nil {
			yield("", err)
			return
		}
		names := m.tables.Keys()
		m.mu.Unlock()
		for _, name := range names {
			if err := ctx.Err(); err != nil {
				yield("", fmt.Errorf("memory: tables: %w", err))
				return
			}
			if !yield(name, nil) {
				return
			}
		}
	}
}

// Flush implements Deferrer.
func (m *Memory) Flush(ctx context.Context) error {
	if err := m.enter(ctx, "flush"); err != nil {
		return err
	}
	defer m.mu.Unlock()
	m.undo = nil
	return nil
}

// Crash implements Crasher. It does what a crash of a database server does: every change
// of an Apply with Deferred since the last undeferred Apply, Group or Flush is
// lost, and the incarnation is another one. The rest survives, timestamps too.
func (m *Memory) Crash() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, u := range slices.Backward(m.undo) {
		m.set(u.table, u.row, u.versions)
	}
	m.undo = nil
	m.newIncarnation()
	// A notification whose removal was lost is there again.
	m.wake("")
}

// Reopen returns a Memory with what m holds, as a process has it that opens the data of
// one that ended: for tests. Timestamps go on from there. It returns an error when m is
// not closed. After Crash and Close, what the crash lost is lost.
func (m *Memory) Reopen() (*Memory, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		return nil, errors.New("memory: opening again: the store is in use")
	}
	again := NewMemory(func(next *Memory) {
		next.clock, next.limits, next.applyDraw, next.drawn = m.clock, m.limits, m.applyDraw, m.drawn
	})
	// Rows are never changed in place, but tables are.
	m.tables.Scan(func(name string, t *memoryTable) bool {
		again.tables.Set(name, &memoryTable{rows: *t.rows.Copy(), notified: *t.notified.Copy()})
		return true
	})
	return again, nil
}

// newIncarnation chooses a value that no Memory of this process had before,
// and that another process is unlikely to have.
func (m *Memory) newIncarnation() {
	m.crashes++
	m.incarnation = fmt.Sprintf("memory-%p-%d-%d", m, time.Now().UnixNano(), m.crashes)
}

// Oracle implements OracleProvider.
func (m *Memory) Oracle() oracle.Oracle { return memoryOracle{m} }

type memoryOracle struct{ m *Memory }

func (o memoryOracle) Draw(ctx context.Context, n int) (Timestamp, error) {
	if n < 1 {
		return 0, fmt.Errorf("memory: draw of %d timestamps: %w", n, ErrInvalid)
	}
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("memory: draw: %w", err)
	}
	o.m.mu.Lock()
	defer o.m.mu.Unlock()
	if o.m.closed {
		return 0, fmt.Errorf("memory: draw: %w (%w)", oracle.ErrClosed, ErrClosed)
	}
	return o.m.draw(n)
}

func (m *Memory) draw(n int) (Timestamp, error) {
	first := max(m.drawn+1, oracle.FromTime(m.clock()))
	last := first + Timestamp(n) - 1
	if last > oracle.Max || last < first {
		return 0, fmt.Errorf("memory: draw of %d timestamps: the greatest timestamp is reached", n)
	}
	m.drawn = last
	return first, nil
}

// DrawRead implements DrawReader.
func (m *Memory) DrawRead(ctx context.Context, asks []DrawRead) ([]DrawnRows, error) {
	if err := CheckDrawReads(asks); err != nil {
		return nil, fmt.Errorf("memory: draw and read: %w", err)
	}
	if err := m.enter(ctx, "draw and read"); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	answers := make([]DrawnRows, len(asks))
	for i := range asks {
		ts, err := m.draw(1)
		if err != nil {
			return nil, err
		}
		answers[i] = DrawnRows{TS: ts, Rows: m.read(asks[i].At(ts))}
	}
	return answers, nil
}

// Split implements Splitter.
func (m *Memory) Split(ctx context.Context, table string, n int) ([]string, error) {
	if table == "" || n < 1 {
		return nil, fmt.Errorf("memory: split of table %q into %d parts: %w", table, n, ErrInvalid)
	}
	if err := m.enter(ctx, "split of table "+table); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	t, ok := m.tables.Get(table)
	if !ok {
		return nil, nil
	}
	var keys []string
	rows := t.rows.Len()
	n = min(n, rows)
	for i := 1; i < n; i++ {
		key, _, _ := t.rows.GetAt(int(int64(i) * int64(rows) / int64(n)))
		keys = append(keys, key)
	}
	return keys, nil
}

// Listen implements Waker.
func (m *Memory) Listen(ctx context.Context, wake func(table string)) error {
	l := &memoryListener{tables: map[string]struct{}{"": {}}, signal: make(chan struct{}, 1)}
	if err := m.enter(ctx, "listen"); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return err
	}
	m.listeners[l] = struct{}{}
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		delete(m.listeners, l)
		m.mu.Unlock()
	}()
	l.signal <- struct{}{}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-m.done:
			return fmt.Errorf("memory: listen: %w", ErrClosed)
		case <-l.signal:
		}
		m.mu.Lock()
		tables := l.tables
		l.tables = map[string]struct{}{}
		m.mu.Unlock()
		for t := range tables {
			wake(t)
		}
	}
}

// wake tells every listener of a table that has notifications, with the lock
// held.
func (m *Memory) wake(table string) {
	for l := range m.listeners {
		l.tables[table] = struct{}{}
		select {
		case l.signal <- struct{}{}:
		default: // it was told already, and will find this table too
		}
	}
}

// Limits implements Limiter.
func (m *Memory) Limits() Limits { return m.limits }

// Report implements Reporter.
func (m *Memory) Report(ctx context.Context) (Report, error) {
	if err := m.enter(ctx, "report"); err != nil {
		return Report{}, err
	}
	defer m.mu.Unlock()
	return Report{
		Backend: "memory",
		Features: []Feature{
			{Name: "group commit", Supported: true},
			{Name: "one-phase commit", Supported: true},
			{Name: "deferred durability", Supported: true, Reason: "until Crash is called"},
			{Name: "timestamps", Supported: true},
			{Name: "split", Supported: true},
			{Name: "wake-up", Supported: true},
			{Name: "durable", Reason: "the data is gone when the process ends"},
		},
	}, nil
}

// Close implements Store.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.closed = true
		close(m.done)
	}
	return nil
}

func (m *Memory) versions(table, row string) []Version {
	t, ok := m.tables.Get(table)
	if !ok {
		return nil
	}
	versions, _ := t.rows.Get(row)
	return versions
}

// set puts versions in the place of a row's, in both indexes. A row or a table
// without versions does not exist.
func (m *Memory) set(table, row string, versions []Version) {
	t, ok := m.tables.Get(table)
	if !ok {
		if len(versions) == 0 {
			return
		}
		t = &memoryTable{}
		m.tables.Set(table, t)
	}
	if len(versions) == 0 {
		t.rows.Delete(row)
		t.notified.Delete(row)
		if t.rows.Len() == 0 {
			m.tables.Delete(table)
		}
		return
	}
	t.rows.Set(row, versions)
	// Notify is the greatest family, so its versions are the last.
	if versions[len(versions)-1].Family == Notify {
		t.notified.Set(row, struct{}{})
	} else {
		t.notified.Delete(row)
	}
}

// judge tells whether every condition of a mutation holds.
func (m *Memory) judge(mut *Mutation) Outcome {
	out := Outcome{Incarnation: m.incarnation}
	versions := m.versions(mut.Table, mut.Row)
	for i, c := range mut.Conditions {
		var holds bool
		var broke *Version
		switch c.Kind {
		case IfAbsent:
			// The first at or below the greatest timestamp is the newest.
			broke = find(versions, c.Family, c.Column, oracle.Max)
			if broke != nil && broke.TS < c.TS {
				broke = nil
			}
			holds = broke == nil
		case IfAbsentAt:
			broke = find(versions, Lock, c.Column, c.TS)
			if broke != nil && broke.TS != c.TS {
				broke = nil
			}
			holds = broke == nil
		case IfPresent:
			v := find(versions, Lock, c.Column, c.TS)
			holds = v != nil && v.TS == c.TS
		case IfIncarnation:
			holds = c.Is == m.incarnation
		}
		if !holds {
			out.Failed = i
			if broke != nil {
				out.Broke = *broke
				out.Broke.Value = bytes.Clone(broke.Value)
			}
			return out
		}
	}
	out.Applied = true
	return out
}

// find returns the newest version of family in column at or below ts, or nil.
func find(versions []Version, family Family, column string, ts Timestamp) *Version {
	i, _ := slices.BinarySearchFunc(versions, Version{Family: family, Column: column, TS: ts}, CompareVersions)
	if i < len(versions) && versions[i].Family == family && versions[i].Column == column {
		return &versions[i]
	}
	return nil
}

// edit makes the edits of a mutation whose conditions hold; drawn takes the place
// of Drawn.
func (m *Memory) edit(mut *Mutation, drawn Timestamp) {
	if len(mut.Edits) == 0 {
		return
	}
	old := m.versions(mut.Table, mut.Row)
	var puts []Version
	var gone []span
	notifies, locks := false, false
	for _, e := range mut.Edits {
		if e.TS == Drawn {
			e.TS = drawn
		}
		from, to := e.TS, e.TS
		switch e.Kind {
		case DoPut:
			if e.Family == Rollback {
				if mark := find(old, Rollback, e.Column, oracle.Max); mark != nil && mark.TS > e.TS {
					continue
				}
				from = 0
			}
			notifies = notifies || e.Family == Notify
			locks = locks || e.Family == Lock
			v := Version{Family: e.Family, Column: e.Column, TS: e.TS}
			if len(e.Value) > 0 {
				v.Value = bytes.Clone(e.Value)
			}
			puts = append(puts, v)
		case DoDeleteRange:
			to = e.To
		}
		if s := versionsBetween(old, e.Family, e.Column, from, to); s.from < s.to {
			gone = append(gone, s)
		}
	}
	m.undo = append(m.undo, memoryUndo{mut.Table, mut.Row, old})
	m.set(mut.Table, mut.Row, merged(old, gone, puts))
	if notifies && !locks {
		m.wake(mut.Table)
	}
}

// span is a part of a row's versions, by their places.
type span struct{ from, to int }

// versionsBetween finds the versions of family in column from one timestamp to another.
func versionsBetween(versions []Version, family Family, column string, from, to Timestamp) span {
	if from > to {
		return span{}
	}
	i, _ := slices.BinarySearchFunc(versions, Version{Family: family, Column: column, TS: to}, CompareVersions)
	j, there := slices.BinarySearchFunc(versions, Version{Family: family, Column: column, TS: from}, CompareVersions)
	if there {
		j++
	}
	return span{i, j}
}

// merged returns versions without those that are gone, and with puts. It costs as much as
// the row is large, however many edits there are.
func merged(versions []Version, gone []span, puts []Version) []Version {
	slices.SortFunc(gone, func(a, b span) int { return a.from - b.from })
	slices.SortFunc(puts, CompareVersions)
	kept, at := make([]Version, 0, len(versions)), 0
	for _, g := range gone {
		kept = append(kept, versions[at:g.from]...)
		at = g.to
	}
	kept = append(kept, versions[at:]...)
	if len(puts) == 0 {
		return kept
	}
	all := make([]Version, 0, len(kept)+len(puts))
	for _, v := range puts {
		i, _ := slices.BinarySearchFunc(kept, v, CompareVersions)
		all = append(append(all, kept[:i]...), v)
		kept = kept[i:]
	}
	return append(all, kept...)
}

// selectVersions returns copies of the versions that any of the picks selects.
func selectVersions(versions []Version, picks []Pick) []Version {
	var chosen []int
	for _, p := range picks {
		if p.Column == AllColumns {
			// No column sorts before "", so this is where the family begins.
			i, _ := slices.BinarySearchFunc(versions, Version{Family: p.Family, TS: oracle.Max}, CompareVersions)
			for i < len(versions) && versions[i].Family == p.Family {
				chosen = choose(chosen, versions, p, versions[i].Column)
				column := versions[i].Column
				// The lowest timestamp is 1, so the next column begins where 0 would stand.
				i, _ = slices.BinarySearchFunc(versions, Version{Family: p.Family, Column: column}, CompareVersions)
			}
			continue
		}
		chosen = choose(chosen, versions, p, p.Column)
	}
	if len(picks) > 1 {
		slices.Sort(chosen)
		chosen = slices.Compact(chosen)
	}
	if len(chosen) == 0 {
		return nil
	}
	out := make([]Version, len(chosen))
	for i, c := range chosen {
		out[i] = versions[c]
		out[i].Value = bytes.Clone(out[i].Value)
	}
	return out
}

func choose(chosen []int, versions []Version, p Pick, column string) []int {
	i, _ := slices.BinarySearchFunc(versions, Version{Family: p.Family, Column: column, TS: p.To}, CompareVersions)
	for n := 0; i < len(versions) && (p.Limit == 0 || n < p.Limit); i, n = i+1, n+1 {
		v := &versions[i]
		if v.Family != p.Family || v.Column != column || v.TS < p.From {
			break
		}
		chosen = append(chosen, i)
	}
	return chosen
}
