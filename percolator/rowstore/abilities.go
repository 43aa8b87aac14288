package rowstore

import (
	"context"
	"fmt"
	"reflect"
)

// Abilities holds every optional interface of a store, nil where the store lacks it. It is
// the one list of them: whoever adds an optional interface to this package adds a field
// here and one in [Treatment].
type Abilities struct {
	Grouper         Grouper
	Deferrer        Deferrer
	OracleProvider  OracleProvider
	SnapshotReader  SnapshotReader
	Splitter        Splitter
	SlotScanner     SlotScanner
	SnapshotScanner SnapshotScanner
	Waker           Waker
	Limiter         Limiter
	Sharder         Sharder
	Placer          Placer
	Reporter        Reporter
	Crasher         Crasher
}

// AbilitiesOf finds the abilities of a store, each as [Unwrap] finds it. Those of nil are
// none. Call it once, when you make what uses the store: it allocates nothing, but it
// looks through all that is around the store.
func AbilitiesOf(s Store) Abilities {
	if s == nil {
		return Abilities{}
	}
	if d, ok := s.(Decorator); ok {
		return d.Abilities()
	}
	var a Abilities
	if w, ok := s.(Wrapper); ok {
		a = AbilitiesOf(w.Unwrap())
	}
	own(s, &a.Grouper)
	own(s, &a.Deferrer)
	own(s, &a.OracleProvider)
	own(s, &a.SnapshotReader)
	own(s, &a.Splitter)
	own(s, &a.SlotScanner)
	own(s, &a.SnapshotScanner)
	own(s, &a.Waker)
	own(s, &a.Limiter)
	own(s, &a.Sharder)
	own(s, &a.Placer)
	own(s, &a.Reporter)
	own(s, &a.Crasher)
	return a
}

// own sets *to if s itself has the ability.
func own[T any](s Store, to *T) {
	if t, ok := s.(T); ok {
		*to = t
	}
}

// Treatment says how a wrapper treats each ability of the store beneath it. Each function
// gets the store's ability and returns what the wrapper offers in its place; it is called
// only if the store has the ability. Use [Pass] to offer the store's own, and [Hide] to
// offer none.
//
//	w.abilities = rowstore.Treatment{
//		Grouper:  func(g rowstore.Grouper) rowstore.Grouper { return countedGrouper{g, w} },
//		Splitter: rowstore.Pass[rowstore.Splitter],
//		Crasher:  rowstore.Hide[rowstore.Crasher],
//		// and so on: every field
//	}.Of(store)
//
// Every field must be set. A wrapper that forgets an ability would hide it without a word,
// or let it go round what the wrapper does.
type Treatment struct {
	Grouper         func(Grouper) Grouper
	Deferrer        func(Deferrer) Deferrer
	OracleProvider  func(OracleProvider) OracleProvider
	SnapshotReader  func(SnapshotReader) SnapshotReader
	Splitter        func(Splitter) Splitter
	SlotScanner     func(SlotScanner) SlotScanner
	SnapshotScanner func(SnapshotScanner) SnapshotScanner
	Waker           func(Waker) Waker
	Limiter         func(Limiter) Limiter
	Sharder         func(Sharder) Sharder
	Placer          func(Placer) Placer
	Reporter        func(Reporter) Reporter
	Crasher         func(Crasher) Crasher
}

// Of returns the abilities of a wrapper that treats those of s so. It panics if a field of
// t is nil, whether or not s has that ability: the first test that makes the wrapper finds
// the omission.
func (t Treatment) Of(s Store) Abilities {
	a := AbilitiesOf(s)
	return Abilities{
		Grouper:         treat("Grouper", a.Grouper, t.Grouper),
		Deferrer:        treat("Deferrer", a.Deferrer, t.Deferrer),
		OracleProvider:  treat("OracleProvider", a.OracleProvider, t.OracleProvider),
		SnapshotReader:  treat("SnapshotReader", a.SnapshotReader, t.SnapshotReader),
		Splitter:        treat("Splitter", a.Splitter, t.Splitter),
		SlotScanner:     treat("SlotScanner", a.SlotScanner, t.SlotScanner),
		SnapshotScanner: treat("SnapshotScanner", a.SnapshotScanner, t.SnapshotScanner),
		Waker:           treat("Waker", a.Waker, t.Waker),
		Limiter:         treat("Limiter", a.Limiter, t.Limiter),
		Sharder:         treat("Sharder", a.Sharder, t.Sharder),
		Placer:          treat("Placer", a.Placer, t.Placer),
		Reporter:        treat("Reporter", a.Reporter, t.Reporter),
		Crasher:         treat("Crasher", a.Crasher, t.Crasher),
	}
}

func treat[T any](name string, have T, how func(T) T) T {
	if how == nil {
		panic(fmt.Sprintf("rowstore: a wrapper does not say how it treats %s", name))
	}
	if any(have) == nil {
		return have
	}
	return how(have)
}

// Pass is the [Treatment] of an ability that a wrapper does not change.
func Pass[T any](ability T) T { return ability }

// Hide is the [Treatment] of an ability that a wrapper does not offer.
func Hide[T any](T) T {
	var none T
	return none
}

// fieldOf finds the field of Abilities that holds an interface.
var fieldOf = func() map[reflect.Type]int {
	fields := map[reflect.Type]int{}
	all := reflect.TypeFor[Abilities]()
	for i := range all.NumField() {
		fields[all.Field(i).Type] = i
	}
	return fields
}()

// abilityOf returns the ability T of a. It says false if a lacks it, or T is no ability.
func abilityOf[T any](a Abilities) (T, bool) {
	i, ok := fieldOf[reflect.TypeFor[T]()]
	if !ok {
		var none T
		return none, false
	}
	t, ok := reflect.ValueOf(a).Field(i).Interface().(T)
	return t, ok
}

// Placer is the optional ability of a store that is made of several, to tell which of them
// is authoritative: the one that holds the oracle, the sessions, the catalog and the safe
// point. A transaction that writes there has its primary there, and batches are deferred
// only if every row of the transaction is there. Without this ability every table is
// authoritative.
type Placer interface {
	// Authoritative tells whether table lives in the authoritative store. It is a
	// pure function.
	Authoritative(table string) bool
}

// StrayFinder is a Placer that can look for a row in the stores in which it should not be, since its table lives
// elsewhere. So nobody makes a database anew in one store while another holds it: see [Strays]. A wrapper that changes the Placer must keep it.
type StrayFinder interface {
	Placer
	// Strays reads a row in every store but its own, and returns the names of those in which
	// a Selector matches something, in byte order. Errors are those of a Read; if one store
	// fails, the call fails. It may be called concurrently.
	Strays(ctx context.Context, read RowRead) ([]string, error)
}

// Strays asks the [StrayFinder] of a store. Over a store without one it finds none.
func Strays(ctx context.Context, s Store, read RowRead) ([]string, error) {
	p, _ := Unwrap[Placer](s)
	if f, ok := p.(StrayFinder); ok {
		return f.Strays(ctx, read)
	}
	return nil, nil
}

// Crasher is implemented by stores that can do, for tests, what a crash of their server
// does: deferred batches that are not durable yet are lost, and the incarnation changes.
type Crasher interface {
	Crash()
}
