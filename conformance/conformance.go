package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Category names a group of tests that a backend can leave out, with [Without].
type Category string

// The categories of the store's contract.
const (
	// Conditions: every kind of condition at its boundaries, and the report of a
	// failed one.
	Conditions Category = "Conditions"
	// Edits: puts, deletes, ranges, marks, and mutations that are all or nothing.
	Edits Category = "Edits"
	// Reads: selectors, their limits, their union and its order.
	Reads Category = "Reads"
	// Scans: ranges, directions, limits, loops that stop or call the store, and
	// the list of tables.
	Scans Category = "Scans"
	// Names: names and values of any bytes and of many lengths.
	Names Category = "Names"
	// Sizes: large values, wide rows, long histories, big batches.
	Sizes Category = "Sizes"
	// Arguments: a store refuses bad arguments, and then writes nothing.
	Arguments Category = "Arguments"
	// Contexts: contexts that end before, during and between calls.
	Contexts Category = "Contexts"
	// Closing: what happens after and around Close.
	Closing Category = "Closing"
	// Concurrency: many goroutines on one store.
	Concurrency Category = "Concurrency"
	// Random: random calls, compared with memstore.Store.
	Random Category = "Random"
	// Groups: the optional Grouper, with and without AssignTimestamp.
	Groups Category = "Groups"
	// Oracles: the optional OracleProvider.
	Oracles Category = "Oracles"
	// Deferring: the optional Deferrer and its incarnation.
	Deferring Category = "Deferring"
	// Splitting: the optional Splitter.
	Splitting Category = "Splitting"
	// Slots: the optional SlotScanner.
	Slots Category = "Slots"
	// Waking: the optional Waker.
	Waking Category = "Waking"
)

// The categories of the part about transactions.
const (
	// Transactions: reads, own writes, scans, snapshots, errors.
	Transactions Category = "Transactions"
	// Anomalies: Hermitage's list, under both isolation levels.
	Anomalies Category = "Anomalies"
	// DeadClients: clients that die at each step of a commit.
	DeadClients Category = "DeadClients"
	// LostReplies: calls whose result the client never learns.
	LostReplies Category = "LostReplies"
	// Workloads: concurrent transactions whose invariants are checked.
	Workloads Category = "Workloads"
	// Collection: garbage collection, and the versions that it must leave.
	Collection Category = "Collection"
)

// Observing is the category of the part about observers.
const Observing Category = "Observing"

// Open opens a store for a test. The store must be empty, and in a name space of its
// own, because tests run at the same time. The suite closes it. Open cleans up anything
// else through t.Cleanup. It fails the test if it cannot open the store.
type Open func(t testing.TB) rowstore.Store

// Option changes what a run does.
type Option func(*config)

type config struct {
	without map[Category]string
	scale   float64
	serial  bool
	hang    time.Duration
	db      []percolator.Option
	hooks   func(t testing.TB) Hooked
}

// Without leaves out the tests of categories. Each test is reported as skipped, with the
// reason. The reason must not be empty, and there must be a category.
func Without(reason string, categories ...Category) Option {
	return func(cfg *config) {
		if reason == "" || len(categories) == 0 {
			panic("conformance: Without needs a reason and a category")
		}
		for _, c := range categories {
			cfg.without[c] = reason
		}
	}
}

// Scale multiplies how often the tests repeat what they repeat: 1 is the default,
// 0.1 suits a server that answers slowly, 10 a long run at night. Each test does
// its least work at any factor. With -short the factor is divided by four.
func Scale(factor float64) Option {
	return func(cfg *config) { cfg.scale = factor }
}

// Serial runs the tests one after another, for a server that cannot hold many
// stores at once.
func Serial() Option {
	return func(cfg *config) { cfg.serial = true }
}

// Patience sets how long a test may take. After that time, the test fails because it
// hangs. Default 3 min. With less than 16 s, calls over a store that hangs have less time
// to end after their contexts: an eighth of d, else two seconds.
func Patience(d time.Duration) Option {
	return func(cfg *config) { cfg.hang = d }
}

// DBOptions gives options to every percolator.New of the parts about transactions and
// observers, before the options of the tests themselves. A store without an oracle of
// its own needs WithOracle, say.
func DBOptions(opts ...percolator.Option) Option {
	return func(cfg *config) { cfg.db = append(cfg.db, opts...) }
}

// Run runs the whole suite against the stores that open opens. Each of the three parts
// is a subtest.
func Run(t *testing.T, open Open, opts ...Option) {
	for _, p := range parts() {
		t.Run(p.name, func(t *testing.T) { runPart(t, p.tests, open, opts) })
	}
}

// RunStore runs the part about the store's own contract. It checks package rowstore
// sentence by sentence, and needs no transactions.
func RunStore(t *testing.T, open Open, opts ...Option) {
	runPart(t, storeTests(), open, opts)
}

// RunTransactions runs the part about transactions over the store.
func RunTransactions(t *testing.T, open Open, opts ...Option) {
	runPart(t, transactionTests(), open, opts)
}

// RunObservers runs the part about observers and workers over the store.
func RunObservers(t *testing.T, open Open, opts ...Option) {
	runPart(t, observerTests(), open, opts)
}

// RunHooks runs only the tests of all parts that need hooks, for a server on which those
// that open gives run elsewhere.
func RunHooks(t *testing.T, open Open, opts ...Option) {
	var tests []test
	for _, p := range parts() {
		for _, tc := range p.tests {
			if tc.category == Reopening || tc.category == Breaking {
				tests = append(tests, tc)
			}
		}
	}
	runPart(t, tests, open, opts)
}

// test is one entry of the suite's list.
type test struct {
	name     string
	category Category
	run      func(t testing.TB, e *env)
}

type part struct {
	name  string
	tests []test
}

func parts() []part {
	return []part{{"Store", storeTests()}, {"Transactions", transactionTests()}, {"Observers", observerTests()}}
}

// Tests lists the names of all tests, as "Part/Name".
func Tests() []string {
	var all []string
	for _, part := range parts() {
		for _, tc := range part.tests {
			all = append(all, part.name+"/"+tc.name)
		}
	}
	return all
}

func runPart(t *testing.T, tests []test, open Open, opts []Option) {
	t.Helper()
	e := newEnv(open, opts)
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			if reason, out := e.cfg.without[tc.category]; out {
				t.Skipf("category %s is left out: %s", tc.category, reason)
			}
			if !e.cfg.serial {
				t.Parallel()
			}
			tc.run(t, e)
		})
	}
}

// env is what the tests of a run share.
type env struct {
	open  Open
	cfg   config
	probe struct {
		sync.Mutex
		done, groups, draws, defers bool
	}
	stacks sync.Once
}

func newEnv(open Open, opts []Option) *env {
	e := &env{open: open, cfg: config{without: map[Category]string{}, scale: 1, hang: 3 * time.Minute}}
	for _, o := range opts {
		o(&e.cfg)
	}
	if testing.Short() {
		e.cfg.scale /= 4
	}
	return e
}

// store opens a store that is closed when the test ends.
func (e *env) store(t testing.TB) rowstore.Store {
	t.Helper()
	s := e.open(t)
	if s == nil {
		t.Fatal("the function that opens a store returned nil")
	}
	atend.Do(t, func() {
		if err := s.Close(); err != nil {
			t.Errorf("closing the store: %v", err)
		}
	})
	return s
}

// n scales a number of repetitions, never below least.
func (e *env) n(base, least int) int {
	return max(least, int(float64(base)*e.cfg.scale))
}

// context ends with the test, or when the test hangs. If it hangs, all goroutines are
// shown, once in a run, because the error of a call that ends so tells little.
func (e *env) context(t testing.TB) context.Context {
	t.Helper()
	if _, ok := t.(*testing.B); ok {
		return context.Background() // as long as it takes
	}
	ctx, cancel := context.WithTimeout(context.Background(), e.cfg.hang)
	shown := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(shown)
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return
		}
		t.Errorf("the test hangs: it is not done after %v (see Patience)", e.cfg.hang)
		e.stacks.Do(func() { t.Logf("all goroutines:\n%s", stacks()) })
	})
	atend.Do(t, func() {
		if !stop() {
			<-shown
		}
		cancel()
	})
	return ctx
}

// stacks shows the stack of every goroutine.
func stacks() []byte {
	buf := make([]byte, 1<<16)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) || len(buf) >= 1<<24 {
			return buf[:n]
		}
		buf = make([]byte, 2*len(buf))
	}
}

// seeded returns a source of random numbers whose seed is printed.
func seeded(t testing.TB) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // repeatable, not secret
}

// fork returns a source for another goroutine, since a *rand.Rand has no lock.
func fork(r *rand.Rand) *rand.Rand {
	return rand.New(rand.NewPCG(r.Uint64(), r.Uint64())) //nolint:gosec // repeatable, not secret
}

// key makes a row key that sorts by n.
func key(n int) string { return fmt.Sprintf("row%06d", n) }

// storeTests is the list of the first part.
func storeTests() []test {
	return slices.Concat(
		conditionTests(), editTests(), readTests(), scanTests(), nameTests(), sizeTests(), argumentTests(), contextTests(), closingTests(),
		concurrencyTests(), groupTests(), oracleTests(), otherAbilityTests(), slotTests(), limitTests(), costTests(), hookTests(), randomTests())
}

// transactionTests is the list of the second part.
func transactionTests() []test {
	return slices.Concat(anomalyTests(), txnTests(), deadClientTests(), lostReplyTests(), workloadTests(), collectionTests(), txnHookTests())
}
