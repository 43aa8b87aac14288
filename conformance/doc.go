// Package conformance is the suite that every backend passes. A backend runs it
// with one line in a test of its own:
//
//	func TestConformance(t *testing.T) {
//		conformance.Run(t, func(t testing.TB) rowstore.Store { return openEmpty(t) })
//	}
//
// The suite has three parts. The first holds a store to the contract of package
// rowstore: named cases for its sentences, random calls compared with
// rowstore.Memory one by one, and concurrent runs. The second runs transactions
// over the store, the third observers. [RunStore], [RunTransactions] and
// [RunObservers] run one part alone; a new backend starts with the first.
//
// What a backend does not have (an optional interface) is skipped with that as
// the reason. What it has and breaks on purpose is left out with [Without], which
// takes a reason and shows it.
//
// What one handle on the data cannot see needs hooks: [WithHooks] gives the suite stores
// that it may open again, crash and break, and [Proxy] breaks connections for it.
package conformance
