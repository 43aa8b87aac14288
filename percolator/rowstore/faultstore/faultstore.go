// Package faultstore loses, delays and spoils calls of a store, for tests.
package faultstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"strings"
	"sync"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/internal/arena"
)

// ErrInjected is matched by every error that a Store of this package made itself. If such
// an error of an Apply or a Group, or of one of its mutations or groups, does not match
// rowstore.ErrAmbiguous, the store beneath certainly did nothing of that. Errors of other
// calls do not tell whether the store did the call, and match it only if Fault.Err does,
// since these calls change no rows: a draw whose reply was lost has drawn its timestamps, and a flush has flushed.
var ErrInjected = errors.New("faultstore: injected fault")

// Options change what a Store does. The zero value is ready to use.
type Options struct {
	// Seed makes the faults repeat if the calls come in the same order. With 0, New draws
	// a seed, and String tells which.
	Seed uint64
	// OnCall decides about each call, instead of the rates. It is called in the goroutine
	// of the call with no lock held, so it may block, and may call the inner store.
	OnCall func(Call) Fault
	// Watch, if not nil, is told about each call before anything is decided. It may keep
	// the call. It is called with a lock held, so it must not use the Store.
	Watch func(*Call)
	// KeepOpen makes Close leave the inner store open: for tests in which several
	// clients, each behind a Store of its own, use one inner store.
	KeepOpen bool
}

// Store is a [rowstore.Store] that loses, delays and spoils calls of another one, for tests.
// Without OnCall, rules and rates nothing goes wrong. It is a [rowstore.Decorator] with
// the abilities of the inner store. Draws from its oracle can have faults too. All methods
// may be called concurrently.
type Store struct {
	inner     rowstore.Store
	opts      Options
	abilities rowstore.Abilities

	mu      sync.Mutex
	rand    *rand.Rand
	rates   map[CallKind]Rates
	seq     uint64
	counts  map[CallKind]map[FaultKind]int
	late    []lateCall
	rules   []*Added
	outlive bool           // see Outlive
	sent    sync.WaitGroup // changes under way, from Outlive on
	died    chan struct{}  // closed when crashed is set
	crashed bool
	closed  bool
	over    chan struct{} // closed when the first Close has ended
}

type lateCall struct {
	due     uint64 // the number of the call that it arrives before
	deliver func()
}

// New returns a Store over s.
func New(s rowstore.Store, opts Options) *Store {
	if opts.Seed == 0 {
		opts.Seed = rand.Uint64()
	}
	f := &Store{
		inner:  s,
		opts:   opts,
		over:   make(chan struct{}),
		rand:   rand.New(rand.NewPCG(opts.Seed, 0)), //nolint:gosec // faults need no unpredictable numbers
		rates:  map[CallKind]Rates{},
		counts: map[CallKind]map[FaultKind]int{},
		died:   make(chan struct{}),
	}
	f.abilities = f.treatment().Of(s)
	return f
}

var _ rowstore.Decorator = (*Store)(nil)

// SetRates sets the probabilities for calls of the given kinds, or of all kinds if none is
// given. You may call it at any time. It panics if a rate is negative or their sum is over
// 1.
func (f *Store) SetRates(r Rates, kinds ...CallKind) {
	sum := 0.0
	for _, p := range r.list() {
		if p < 0 {
			panic("faultstore: a negative rate")
		}
		sum += p
	}
	if sum > 1+1e-9 {
		panic("faultstore: the rates' sum is over 1")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(kinds) == 0 {
		for k := CallRead; k <= lastCall; k++ {
			kinds = append(kinds, k)
		}
	}
	for _, k := range kinds {
		f.rates[k] = r
	}
}

// Count tells how many faults of a kind struck calls of the given kinds, or of all kinds if
// none is given. With NoFault it counts the calls without a fault.
func (f *Store) Count(fault FaultKind, calls ...CallKind) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	if len(calls) == 0 {
		for _, c := range f.counts {
			n += c[fault]
		}
	}
	for _, k := range calls {
		n += f.counts[k][fault]
	}
	return n
}

// Seed is the seed of the faults.
func (f *Store) Seed() uint64 { return f.opts.Seed }

// String tells the seed and the faults so far, for a test's log.
func (f *Store) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "faultstore: seed %d, %d calls", f.opts.Seed, f.seq)
	for k := CallRead; k <= lastCall; k++ {
		for fault := Fail; fault <= lastFault; fault++ {
			if n := f.counts[k][fault]; n > 0 {
				fmt.Fprintf(&b, ", %s %s %d", k, fault, n)
			}
		}
	}
	return b.String()
}

// CrashClient makes every later call fail, as if this client's process had died. Calls
// under way end with an error too, whether the store did them or not. The errors of later
// calls match rowstore.ErrClosed, so that nothing goes on trying.
func (f *Store) CrashClient() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.crash()
}

// DeliverLate makes all Late calls reach the store now, even after the client crashed.
func (f *Store) DeliverLate() {
	f.mu.Lock()
	late := f.late
	f.late = nil
	f.mu.Unlock()
	for _, l := range late {
		l.deliver()
	}
}

// Read implements Store.
func (f *Store) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	call := &Call{Kind: CallRead, Reads: reads}
	fault, err := f.begin(ctx, call)
	if err != nil {
		return nil, err
	}
	rows, err := f.inner.Read(ctx, reads)
	call.Rows = rows
	if err := f.end(ctx, call, fault, err); err != nil {
		return nil, err
	}
	if fault.Kind == FailRow || fault.Kind == LoseRow {
		i := fault.row(len(rows))
		rows[i] = rowstore.Row{Table: rows[i].Table, Row: rows[i].Row, Err: failure(call, fault, "one row failed")}
	}
	return rows, nil
}

// Apply implements Store.
func (f *Store) Apply(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	return spoil(ctx, f, &Call{Kind: CallApply, Muts: muts, Opts: opts}, muts, spoilKind[rowstore.Mutation, rowstore.Outcome]{
		send: func(ctx context.Context, muts []rowstore.Mutation) ([]rowstore.Outcome, error) {
			return f.inner.Apply(ctx, muts, opts)
		},
		note:   func(c *Call, outs []rowstore.Outcome) { c.Outcomes = outs },
		keep:   arena.KeepMutations,
		failed: func(err error) rowstore.Outcome { return rowstore.Outcome{Err: err} },
	})
}

// Scan implements Store.
func (f *Store) Scan(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return spoilSeq(ctx, f, &Call{Kind: CallScan, Range: s}, func() iter.Seq2[rowstore.Row, error] { return f.inner.Scan(ctx, s) })
}

// Tables implements Store.
func (f *Store) Tables(ctx context.Context) iter.Seq2[string, error] {
	return spoilSeq(ctx, f, &Call{Kind: CallTables}, func() iter.Seq2[string, error] { return f.inner.Tables(ctx) })
}

// Close implements Store. Late calls that have not arrived by then never do.
func (f *Store) Close() error {
	f.mu.Lock()
	again := f.closed
	f.closed, f.late = true, nil
	f.mu.Unlock()
	if again {
		<-f.over
		return nil
	}
	defer close(f.over)
	f.sent.Wait()
	if f.opts.KeepOpen {
		return nil
	}
	return f.inner.Close()
}
