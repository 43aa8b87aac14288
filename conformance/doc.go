// Package conformance is the test suite that every backend passes. A backend runs it
// with one line in a test of its own:
//
//	func TestConformance(t *testing.T) {
//		conformance.Run(t, func(t testing.TB) rowstore.Store { return openEmpty(t) })
//	}
//
// The suite has three parts. The first checks a store against the contract of package
// rowstore: named cases for its sentences, random calls compared with
// memstore.Store one by one, and concurrent runs. The second runs transactions
// over the store, the third observers. [RunStore], [RunTransactions] and
// [RunObservers] run one part alone; a new backend starts with the first.
//
// If a backend does not have an optional interface, the tests of that interface are
// skipped with that as the reason. If it has one and breaks the contract on purpose,
// leave those tests out with [Without], which takes a reason and shows it.
//
// Some tests need more than one handle on the data; they need hooks. [WithHooks] gives
// the suite stores that it may open again, crash and break. [Proxy] breaks connections
// for such stores.
package conformance
