package rowstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/percolate-go/percolate/percolator/oracle"
)

// ErrInjected is matched by every error that a Faulty made itself. One that does
// not match ErrAmbiguous as well is certain: the store did nothing.
var ErrInjected = errors.New("rowstore: injected fault")

// CallKind is a kind of call that a Faulty can spoil.
type CallKind uint8

// The kinds of calls.
const (
	CallRead CallKind = 1 + iota
	CallApply
	CallGroup
	CallScan
	CallTables
	CallFlush
	CallDraw // of a timestamp, from the store's oracle
	CallSplit
	CallListen
	CallDrawRead
)

// lastCall is the last of the kinds.
const lastCall = CallDrawRead

var callNames = [...]string{"", "read", "apply", "group", "scan", "tables", "flush", "draw", "split", "listen", "draw and read"}

// String names the kind.
func (k CallKind) String() string {
	if int(k) < len(callNames) {
		return callNames[k]
	}
	return fmt.Sprintf("call kind %d", uint8(k))
}

// FaultKind says what goes wrong with a call.
type FaultKind uint8

// The kinds of faults. Those of a row go wrong in Read, DrawRead, Apply and Group only, Late
// and Twice in Apply and Group; in other calls they do nothing.
const (
	// NoFault: nothing goes wrong.
	NoFault FaultKind = iota
	// Fail: the call does not reach the store, and its caller knows. A Scan or
	// Tables may first yield some (Fault.Rows).
	Fail
	// LoseReply: the call reached the store (Fault.Applied) or did not, and its
	// caller cannot tell. Of an Apply or Group the error matches ErrAmbiguous.
	LoseReply
	// FailRow: one row, or group, of the batch (Fault.Row) fails for certain.
	FailRow
	// LoseRow: the outcome of one mutation or group of the batch (Fault.Row) is
	// unknown; Fault.Applied tells whether it was sent. A read row just fails.
	LoseRow
	// Delay: the call stands still for Fault.Delay before it reaches the store.
	Delay
	// Late: the caller is told that the outcome is unknown, and the call reaches the
	// store later: when Fault.Rows more calls of the wrapper have begun, or at
	// DeliverLate.
	Late
	// Twice: the call reaches the store twice in a row, and the answer is that to the
	// second arrival: what some drivers do.
	Twice
	// CrashClient: the process dies, after the store did the call (Fault.Applied) or
	// before. Every call of this wrapper fails from then on, for good.
	CrashClient
	// CrashStore: the store crashes and is there again at once (see Crasher). With
	// Fault.Applied it does so after it did the call, whose reply is lost, else
	// before it, and the call finds the restarted store.
	CrashStore
)

var faultNames = [...]string{"no fault", "fail", "lose reply", "fail row", "lose row", "delay", "late", "twice", "crash client", "crash store"}

// String names the kind.
func (k FaultKind) String() string {
	if int(k) < len(faultNames) {
		return faultNames[k]
	}
	return fmt.Sprintf("fault kind %d", uint8(k))
}

// Fault is what happens to one call. The zero value is that nothing does.
type Fault struct {
	Kind FaultKind
	// Applied tells whether the store did the call, for LoseReply, LoseRow,
	// CrashClient and CrashStore.
	Applied bool
	Row     int           // for FailRow and LoseRow; taken modulo the length of the batch
	Rows    int           // for Fail of a Scan or Tables, and for Late
	Delay   time.Duration // for Delay
}

// Call is what a hook is told about a call. What it refers to is the caller's, and
// must be neither changed nor kept.
type Call struct {
	Seq    uint64 // 1 for the first call of the wrapper
	Kind   CallKind
	Reads  []RowRead    // CallRead
	Asks   []DrawRead   // CallDrawRead
	Muts   []Mutation   // CallApply
	Opts   ApplyOptions // CallApply
	Groups []Group      // CallGroup
	Range  ScanRange    // CallScan
	N      int          // CallDraw and CallSplit: how many
}

// Rates are the probabilities, between 0 and 1, that a call has a fault of each
// kind; at most one strikes. Their sum is at most 1.
type Rates struct {
	Fail, LoseReply, FailRow, LoseRow, Delay, Late, Twice, CrashClient, CrashStore float64
	// MaxDelay is the longest Delay. Default 1 ms.
	MaxDelay time.Duration
}

// FaultyOptions belong to a Faulty.
type FaultyOptions struct {
	// Seed makes the faults repeat, as far as the order of calls does. 0 draws one;
	// String tells which.
	Seed uint64
	// OnCall decides about each call, in place of the rates. It is called in the
	// goroutine of the call with no lock held, so it may block, and call the inner
	// store.
	OnCall func(Call) Fault
	// KeepOpen makes Close leave the inner store open: for tests in which several
	// clients, each behind a Faulty of its own, use one store.
	KeepOpen bool
}

// Faulty is a Store that loses, delays and spoils calls of another one, for tests.
// Without OnCall and before SetRates nothing goes wrong. It is a [Decorator] with
// the abilities of the inner store; timestamps drawn from its oracle pass through
// it too. All methods may be called concurrently.
type Faulty struct {
	inner   Store
	opts    FaultyOptions
	crasher Crasher // nil: the inner store has none

	mu      sync.Mutex
	rand    *rand.Rand
	rates   map[CallKind]Rates
	seq     uint64
	counts  map[CallKind]map[FaultKind]int
	late    []lateCall
	crashed bool
	closed  bool
}

type lateCall struct {
	due     uint64 // the number of the call that it arrives before
	deliver func()
}

// NewFaulty returns a Faulty over s.
func NewFaulty(s Store, opts FaultyOptions) *Faulty {
	if opts.Seed == 0 {
		opts.Seed = rand.Uint64()
	}
	f := &Faulty{
		inner:  s,
		opts:   opts,
		rand:   rand.New(rand.NewPCG(opts.Seed, 0)), //nolint:gosec // faults need no unpredictable numbers
		rates:  map[CallKind]Rates{},
		counts: map[CallKind]map[FaultKind]int{},
	}
	f.crasher, _ = Unwrap[Crasher](s)
	return f
}

var _ Decorator = (*Faulty)(nil)

// SetRates sets the probabilities for calls of the given kinds, without any for all
// kinds. It may be called at any time. It panics when they are no probabilities: a
// mistake of a test.
func (f *Faulty) SetRates(r Rates, kinds ...CallKind) {
	sum := 0.0
	for _, p := range r.list() {
		if p < 0 {
			panic("rowstore: a negative rate")
		}
		sum += p
	}
	if sum > 1+1e-9 {
		panic("rowstore: the rates' sum is over 1")
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

// list has the rates in the order of the kinds, from Fail on.
func (r Rates) list() [9]float64 {
	return [...]float64{r.Fail, r.LoseReply, r.FailRow, r.LoseRow, r.Delay, r.Late, r.Twice, r.CrashClient, r.CrashStore}
}

// Count tells how many faults of a kind struck, in calls of the given kinds, or
// without any in all. With NoFault it counts the calls that went well.
func (f *Faulty) Count(fault FaultKind, calls ...CallKind) int {
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
func (f *Faulty) Seed() uint64 { return f.opts.Seed }

// String tells the seed, and what struck so far, for a test's log.
func (f *Faulty) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "faulty: seed %d, %d calls", f.opts.Seed, f.seq)
	for k := CallRead; k <= lastCall; k++ {
		for fault := Fail; fault <= CrashStore; fault++ {
			if n := f.counts[k][fault]; n > 0 {
				fmt.Fprintf(&b, ", %s %s %d", k, fault, n)
			}
		}
	}
	return b.String()
}

// CrashClient makes every later call of the wrapper fail, as if its process had
// died. Calls under way end with an error too, whether the store did them or not.
func (f *Faulty) CrashClient() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.crashed = true
}

// DeliverLate makes all calls that are Late reach the store now, also after the
// client crashed.
func (f *Faulty) DeliverLate() {
	f.mu.Lock()
	late := f.late
	f.late = nil
	f.mu.Unlock()
	for _, l := range late {
		l.deliver()
	}
}

func injected(call Call, what string) error {
	return fmt.Errorf("%w: %s %d: %s", ErrInjected, call.Kind, call.Seq, what)
}

// unknown is injected for a reply that does not come.
func unknown(call Call, what string) error {
	err := injected(call, what)
	if call.Kind == CallApply || call.Kind == CallGroup {
		err = fmt.Errorf("%w (%w)", ErrAmbiguous, err)
	}
	return err
}

// begin decides about a call and does what comes before it. After an error it goes
// no further.
func (f *Faulty) begin(ctx context.Context, call *Call) (Fault, error) {
	if err := ctx.Err(); err != nil {
		return Fault{}, fmt.Errorf("faulty: %s: %w", call.Kind, err)
	}
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return Fault{}, fmt.Errorf("faulty: %s: %w", call.Kind, ErrClosed)
	}
	if f.crashed {
		f.mu.Unlock()
		return Fault{}, injected(*call, "the client crashed earlier")
	}
	f.seq++
	call.Seq = f.seq
	var due []lateCall
	kept := f.late[:0]
	for _, l := range f.late {
		if l.due <= f.seq {
			due = append(due, l)
		} else {
			kept = append(kept, l)
		}
	}
	f.late = kept
	var fault Fault
	if f.opts.OnCall == nil {
		fault = f.roll(*call)
	}
	f.mu.Unlock()
	for _, l := range due {
		l.deliver()
	}
	if f.opts.OnCall != nil {
		fault = f.opts.OnCall(*call)
	}
	if !call.may(fault.Kind) {
		fault = Fault{}
	}
	if fault.Kind == CrashStore && f.crasher == nil {
		return Fault{}, fmt.Errorf("faulty: %w: a crash of a store that is no Crasher", ErrInvalid)
	}
	f.mu.Lock()
	if f.counts[call.Kind] == nil {
		f.counts[call.Kind] = map[FaultKind]int{}
	}
	f.counts[call.Kind][fault.Kind]++
	if fault.Kind == CrashClient && !fault.Applied {
		f.crashed = true
	}
	f.mu.Unlock()

	switch fault.Kind {
	case Fail:
		if call.Kind != CallScan && call.Kind != CallTables {
			return fault, injected(*call, "failed")
		}
	case LoseReply:
		if !fault.Applied {
			return fault, unknown(*call, "the request was lost")
		}
	case Delay:
		timer := time.NewTimer(fault.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return fault, fmt.Errorf("faulty: %s: %w", call.Kind, ctx.Err())
		}
	case CrashClient:
		if !fault.Applied {
			return fault, unknown(*call, "the client crashed before it")
		}
	case CrashStore:
		if !fault.Applied {
			f.crasher.Crash()
		}
	}
	return fault, nil
}

// may tells whether a fault can strike a call.
func (c *Call) may(kind FaultKind) bool {
	switch kind {
	case FailRow, LoseRow:
		return len(c.Reads)+len(c.Asks)+len(c.Muts)+len(c.Groups) > 0
	case Late, Twice:
		return c.Kind == CallApply || c.Kind == CallGroup
	}
	return true
}

// end does what comes after a call to the store that gave err, and returns the
// error for the caller.
func (f *Faulty) end(call Call, fault Fault, err error) error {
	if fault.Kind == CrashStore && fault.Applied {
		f.crasher.Crash()
		return unknown(call, "the store crashed after it")
	}
	f.mu.Lock()
	if fault.Kind == CrashClient {
		f.crashed = true
	}
	crashed := f.crashed
	f.mu.Unlock()
	switch {
	case crashed:
		return unknown(call, "the client crashed after it")
	case fault.Kind == LoseReply && err == nil:
		return unknown(call, "the reply was lost")
	}
	return err
}

// roll draws a fault by the rates, with the lock held.
func (f *Faulty) roll(call Call) Fault {
	r := f.rates[call.Kind]
	x := f.rand.Float64()
	fault := Fault{Kind: NoFault, Applied: f.rand.IntN(2) == 0, Row: f.rand.IntN(1 << 20), Rows: f.rand.IntN(8)}
	longest := r.MaxDelay
	if longest <= 0 {
		longest = time.Millisecond
	}
	fault.Delay = time.Duration(f.rand.Int64N(int64(longest) + 1))
	for i, p := range r.list() {
		if x < p {
			fault.Kind = Fail + FaultKind(i)
			break
		}
		x -= p
	}
	if fault.Kind == CrashStore && f.crasher == nil {
		fault.Kind = NoFault
	}
	return fault
}

// Read implements Store.
func (f *Faulty) Read(ctx context.Context, reads []RowRead) ([]Row, error) {
	call := Call{Kind: CallRead, Reads: reads}
	fault, err := f.begin(ctx, &call)
	if err != nil {
		return nil, err
	}
	rows, err := f.inner.Read(ctx, reads)
	if err := f.end(call, fault, err); err != nil {
		return nil, err
	}
	if fault.Kind == FailRow || fault.Kind == LoseRow {
		i := fault.Row % len(rows)
		rows[i] = Row{Table: rows[i].Table, Row: rows[i].Row, Err: injected(call, "one row failed")}
	}
	return rows, nil
}

// Apply implements Store.
func (f *Faulty) Apply(ctx context.Context, muts []Mutation, opts ApplyOptions) ([]Outcome, error) {
	return spoil(ctx, f, Call{Kind: CallApply, Muts: muts, Opts: opts}, muts, spoilKind[Mutation, Outcome]{
		send: func(ctx context.Context, muts []Mutation) ([]Outcome, error) {
			return f.inner.Apply(ctx, muts, opts)
		},
		keep:   keepMutations,
		failed: func(err error) Outcome { return Outcome{Err: err} },
	})
}

// spoilKind is what differs between applies and groups.
type spoilKind[Q, A any] struct {
	send   func(context.Context, []Q) ([]A, error)
	keep   func([]Q, *arena, []Q) []Q
	failed func(error) A
}

func spoil[Q, A any](ctx context.Context, f *Faulty, call Call, asks []Q, kind spoilKind[Q, A]) ([]A, error) {
	fault, err := f.begin(ctx, &call)
	if err != nil {
		return nil, err
	}
	switch {
	case fault.Kind == Late:
		// The caller may change its slices, and end its context, before the call
		// arrives.
		kept := kind.keep(nil, &arena{}, asks)
		detached := context.WithoutCancel(ctx)
		f.mu.Lock()
		f.late = append(f.late, lateCall{call.Seq + uint64(max(fault.Rows, 0)) + 1, func() { _, _ = kind.send(detached, kept) }})
		f.mu.Unlock()
		return nil, unknown(call, "the request is late")
	case fault.Kind == Twice:
		if _, err := kind.send(ctx, asks); err != nil {
			return nil, f.end(call, fault, err)
		}
	case fault.Kind == FailRow || fault.Kind == LoseRow && !fault.Applied:
		i := fault.Row % len(asks)
		others := append(append(make([]Q, 0, len(asks)), asks[:i]...), asks[i+1:]...)
		answers, err := kind.send(ctx, others)
		if err := f.end(call, fault, err); err != nil {
			return nil, err
		}
		lost := injected(call, "one row failed")
		if fault.Kind == LoseRow {
			lost = unknown(call, "the request for one row was lost")
		}
		all := append(append(make([]A, 0, len(asks)), answers[:i]...), kind.failed(lost))
		return append(all, answers[i:]...), nil
	}
	answers, err := kind.send(ctx, asks)
	if err := f.end(call, fault, err); err != nil {
		return nil, err
	}
	if fault.Kind == LoseRow {
		answers[fault.Row%len(answers)] = kind.failed(unknown(call, "the reply for one row was lost"))
	}
	return answers, nil
}

// Scan implements Store.
func (f *Faulty) Scan(ctx context.Context, s ScanRange) iter.Seq2[Row, error] {
	return spoilSeq(ctx, f, Call{Kind: CallScan, Range: s}, func() iter.Seq2[Row, error] { return f.inner.Scan(ctx, s) })
}

// Tables implements Store.
func (f *Faulty) Tables(ctx context.Context) iter.Seq2[string, error] {
	return spoilSeq(ctx, f, Call{Kind: CallTables}, func() iter.Seq2[string, error] { return f.inner.Tables(ctx) })
}

func spoilSeq[T any](ctx context.Context, f *Faulty, call Call, start func() iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		call := call // the sequence may be used more than once
		var zero T
		fault, err := f.begin(ctx, &call)
		if err != nil {
			yield(zero, err)
			return
		}
		steps := 0
		for t, err := range start() {
			if err == nil && fault.Kind == Fail && steps >= fault.Rows {
				break
			}
			if err == nil && fault.Kind != LoseReply && fault.Kind != CrashStore && fault.Kind != CrashClient {
				err = f.end(call, Fault{}, nil) // the client may have crashed meanwhile
			}
			if err != nil {
				yield(zero, err)
				return
			}
			if !yield(t, nil) {
				return
			}
			steps++
		}
		switch {
		case fault.Kind == Fail:
			err = injected(call, fmt.Sprintf("failed after %d steps", steps))
		default:
			err = f.end(call, fault, nil)
		}
		if err != nil {
			yield(zero, err)
		}
	}
}

// Close implements Store. Calls that are Late by then never reach the store.
func (f *Faulty) Close() error {
	f.mu.Lock()
	again := f.closed
	f.closed, f.late = true, nil
	f.mu.Unlock()
	if again || f.opts.KeepOpen {
		return nil
	}
	return f.inner.Close()
}

// Offer implements Decorator.
func (f *Faulty) Offer(target any) bool {
	switch t := target.(type) {
	case *Grouper:
		inner, ok := Unwrap[Grouper](f.inner)
		if ok {
			*t = faultyGrouper{inner, f}
		}
		return ok
	case *Deferrer:
		inner, ok := Unwrap[Deferrer](f.inner)
		if ok {
			*t = faultyDeferrer{inner, f}
		}
		return ok
	case *OracleProvider:
		inner, ok := Unwrap[OracleProvider](f.inner)
		if ok {
			*t = faultyOracle{inner.Oracle(), f}
		}
		return ok
	case *DrawReader:
		inner, ok := Unwrap[DrawReader](f.inner)
		if ok {
			*t = faultyDrawReader{inner, f}
		}
		return ok
	case *Splitter:
		inner, ok := Unwrap[Splitter](f.inner)
		if ok {
			*t = faultySplitter{inner, f}
		}
		return ok
	case *Waker:
		inner, ok := Unwrap[Waker](f.inner)
		if ok {
			*t = faultyWaker{inner, f}
		}
		return ok
	case *Crasher:
		return offer(f.inner, t)
	case *Placer:
		return offer(f.inner, t)
	case *Limiter:
		return offer(f.inner, t)
	case *Sharder:
		return offer(f.inner, t)
	case *Reporter:
		return offer(f.inner, t)
	}
	return false
}

type faultyGrouper struct {
	Grouper
	f *Faulty
}

func (g faultyGrouper) Group(ctx context.Context, groups []Group) ([]GroupOutcome, error) {
	return spoil(ctx, g.f, Call{Kind: CallGroup, Groups: groups}, groups, spoilKind[Group, GroupOutcome]{
		send:   g.Grouper.Group,
		keep:   keepGroups,
		failed: func(err error) GroupOutcome { return GroupOutcome{Err: err} },
	})
}

type faultyDeferrer struct {
	inner Deferrer
	f     *Faulty
}

func (d faultyDeferrer) Flush(ctx context.Context) error {
	call := Call{Kind: CallFlush}
	fault, err := d.f.begin(ctx, &call)
	if err != nil {
		return err
	}
	return d.f.end(call, fault, d.inner.Flush(ctx))
}

// faultyOracle is both the ability and the oracle.
type faultyOracle struct {
	inner oracle.Oracle
	f     *Faulty
}

func (o faultyOracle) Oracle() oracle.Oracle { return o }

func (o faultyOracle) Draw(ctx context.Context, n int) (Timestamp, error) {
	call := Call{Kind: CallDraw, N: n}
	fault, err := o.f.begin(ctx, &call)
	if err != nil {
		return 0, err
	}
	ts, err := o.inner.Draw(ctx, n)
	if err := o.f.end(call, fault, err); err != nil {
		return 0, err
	}
	return ts, nil
}

type faultyDrawReader struct {
	inner DrawReader
	f     *Faulty
}

func (d faultyDrawReader) DrawRead(ctx context.Context, asks []DrawRead) ([]DrawnRows, error) {
	call := Call{Kind: CallDrawRead, Asks: asks}
	fault, err := d.f.begin(ctx, &call)
	if err != nil {
		return nil, err
	}
	answers, err := d.inner.DrawRead(ctx, asks)
	if err := d.f.end(call, fault, err); err != nil {
		return nil, err
	}
	if fault.Kind == FailRow || fault.Kind == LoseRow {
		answers[fault.Row%len(answers)] = DrawnRows{Err: injected(call, "one failed")}
	}
	return answers, nil
}

type faultySplitter struct {
	inner Splitter
	f     *Faulty
}

func (s faultySplitter) Split(ctx context.Context, table string, n int) ([]string, error) {
	call := Call{Kind: CallSplit, Range: ScanRange{Table: table}, N: n}
	fault, err := s.f.begin(ctx, &call)
	if err != nil {
		return nil, err
	}
	keys, err := s.inner.Split(ctx, table, n)
	if err := s.f.end(call, fault, err); err != nil {
		return nil, err
	}
	return keys, nil
}

type faultyWaker struct {
	inner Waker
	f     *Faulty
}

func (w faultyWaker) Listen(ctx context.Context, wake func(table string)) error {
	call := Call{Kind: CallListen}
	fault, err := w.f.begin(ctx, &call)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return err
	}
	return w.f.end(call, fault, w.inner.Listen(ctx, wake))
}
