// Package combine keeps values that everybody adds to: counters, maxima, sets that grow. One cell for such a value would
// be hot: of the transactions that change it at the same time, only one commits. Here [Combiner.Add] never
// waits for another Add and never conflicts with one, however old its transaction's snapshot is and in whatever process the other one is, and
// [Combiner.Get] is exact at its snapshot: it has
// what was committed below it, and what its own transaction has added, no more and no less.
//
//	visits, err := combine.New(db, "visits", typed.Number[int64]{}, combine.Sum[int64])
//
//	err = db.Update(ctx, func(tx *percolator.Txn) error {
//		...
//		return visits.Add(ctx, tx, "/index.html", 1) // with everything else that tx does, or not at all
//	})
//
//	err = db.View(ctx, func(tx *percolator.Txn) (err error) {
//		n, err = visits.Get(ctx, tx, "/index.html")
//		return err
//	})
//
// [Combiner.AddNow] adds outside of any transaction of yours. Calls of one process that come together share one
// transaction, so it is far cheaper than an Update for each. Where something is the matter with some of the values, because a server is away, say, each value is added
// by itself, so that calls for the others go on after a second or two, or, if the fault is one of writes alone, after the store's patience or 30 s.
//
// # What merging must be
//
// A value is made of parts, merged in any order. So merge must be commutative and associative, as sums, maxima and
// unions are. Nothing can be taken back from a maximum, a minimum or a union. And it must not fail for some of the parts of a value that all together can be merged: a [Sum] of a type that is
// too small does. Then Add, Get and Combine are [ErrMerge], though the value itself would fit.
//
// This is not for limits. A transaction that reads a value, finds it below a limit and adds to it does not
// conflict with another one that does the same, so both commit: that is a write skew. A stock that must not become negative
// is a cell of its own that is read with [percolator.Txn.GetForUpdate].
//
// # Where the data lie
//
// The table belongs to the Combiner alone. A value has a row for its base and a row for each slot. A slot is a name that
// one open transaction has at a time: a transaction takes a free slot of its process in which nobody has committed since it began, or a new one, adds
// in the row of that slot, and gives the
// slot back when it ends. The timestamp of the first transaction that has used a slot is its name, so no two processes have the same one.
//
//   - Two adders never write the same cell while both are open, so no Add conflicts with another one, on whatever isolation level. (A
//     Serializable transaction that calls Get reads all parts, and so conflicts with all who add.) No correctness depends on
//     that: an Add reads its cell and writes it, so if two transactions had one slot, the store would find the conflict.
//   - Get reads the rows of the value with one scan, at one snapshot, and merges them. That is a row for each transaction that
//     was open at the same time as others within the last seconds, in all processes, and some more (below).
//   - An Add costs one read of a row, which comes with the start timestamp where the store can do that, and one write.
//
// Slots of processes that ended, or are less busy now, leave cells behind. A cell that was not written for 10 seconds is idle. For
// each eighth new cell the transaction that makes it looks for idle ones of the value; if there are at least [Options.Idle], it first combines
// them: a transaction of its own merges them into the base and deletes them. That takes a transaction that adds a second at most, and a quarter of the time that its caller has left; the
// next one that looks goes on. [Combiner.Combine] does so at any time. A
// row has two cells in turn. An adder whose cell was not written for 5 seconds takes the other one, so adders stay out of the way of those
// who combine. An Add conflicts with one who combines only if both cells are idle at that moment, or if its transaction lasts for 5 seconds, so that its snapshot is
// older than what was combined; then one of the two is
// run again. A Serializable transaction that adds has read both cells, so it conflicts, too, if the other one is removed as idle meanwhile, also by the combining that it did itself. Two that combine the same value may conflict; the one that is late leaves it to the other.
//
// If combining fails because a value cannot be decoded or merged, nothing is removed, Add goes on, and Get and Combine
// tell. A value that is merged must fit into a cell (percolator.Limits.Value): one that has grown beyond it cannot be combined any more, so Get
// reads more and more rows.
//
// # Retention
//
// A hot value leaves many versions. Give the table a short history, and look no further back:
//
//	err := db.ConfigureTable(ctx, "visits", percolator.TableSettings{MaxTxnAge: 30 * time.Second, Retention: time.Minute})
//
// That bounds the transactions that add to the same MaxTxnAge. A Get as of a time before the retention is refused
// ([percolator.ErrSnapshotTooOld]), never wrong.
package combine
