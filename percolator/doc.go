// Package percolator gives transactions with snapshot isolation, and observers for
// incremental processing, to a database that has neither. It is the system of Peng and
// Dabek, "Large-scale Incremental Processing Using Distributed Transactions and
// Notifications" (OSDI 2010), as a library over a database that you already run.
//
// # Opening
//
// A [DB] is opened by the URL of a store. Import the backends that URLs may name:
//
//	import _ "github.com/percolate-go/percolate/backends/all"
//
//	db, err := percolator.Open(ctx, "pebble:/var/lib/shop")
//	defer db.Close(ctx)
//
// "memory:" keeps everything in memory and needs nothing. Pass a store that your
// program makes itself to [New].
//
// # Data
//
// A [Cell] is a column of a row of a table; each part is a string of any bytes, and
// nothing is declared beforehand. The rows of a table are in the byte order of their
// keys. Every committed version is kept for the retention (a day, unless [Settings] say
// otherwise), so that a transaction can read the past ([WithAsOf]).
//
// # Transactions
//
// [DB.Update] runs a function with a transaction and commits it; [DB.View] only reads.
// A transaction reads from the snapshot at its beginning and sees its own writes. It
// commits only if no other transaction has written, since then, a cell that it writes.
// After such a conflict Update runs the function again, from a new snapshot, 64 times at most ([WithMaxAttempts]); the
// function must have no effect but through its transaction. It uses the transaction in one goroutine at a time, and returns the errors of
// its methods: an error that is dropped does not end the transaction ([Txn]).
//
//	err := db.Update(ctx, func(tx *percolator.Txn) error {
//		from, err := tx.Get(ctx, percolator.Cell{Table: "account", Row: "ann", Column: "balance"})
//		if err != nil {
//			return err
//		}
//		...
//		return tx.Set(percolator.Cell{Table: "account", Row: "bob", Column: "balance"}, to)
//	})
//
// [DB.Begin], [Txn.Commit] and [Txn.Rollback] do the same by hand. The writes may be
// on any rows of any tables, also in different databases (router.Store).
//
// Snapshot isolation permits write skew: two transactions that each read what the other
// writes may both commit. [Txn.GetForUpdate] makes the one cell that matters conflict.
// WithIsolation([Serializable]) checks everything that was read, also scanned ranges,
// against other Serializable transactions.
//
// Commit has three outcomes that never blur: committed (nil), certainly not
// (ErrConflict, ErrTxnTooOld, and other errors), and ErrUndetermined, when the
// context ended before the answer was known. [DB.OutcomeOf] finds out later.
//
// # Observers
//
// An [Observer] is a function that runs when its column changes, in whatever row, by
// whatever process. It runs in a transaction, and its writes commit together with the
// acknowledgment of the change. So for each change at most one run takes effect, and no
// change is lost, even if the process that made it dies right after its commit. The
// writes of an observer may set off other observers. Changes that come faster than runs
// are collapsed: the function sees the newest value.
//
//	w := percolator.NewWorker(db, percolator.WorkerConfig{})
//	err := w.Observe(percolator.Observer{Name: "index", Table: "page", Column: "body", Func: index})
//	err = w.Run(ctx)
//
// A function that fails, or panics, is called again with a growing wait, and parked
// after MaxAttempts; [DB.Parked] lists what is parked and [DB.Release] lets
// it run again. [Txn.Notify] sets observers off without a write, so that many
// transactions can ask for the same work and not conflict. [Worker.WaitIdle] waits
// until there is nothing left to do, for all workers of the same observers.
//
// A new observer also runs for the existing data. That begins when every process knows
// of it: at once in a single process, some milliseconds later among workers that a push
// wakes, and one catalog lease after it was registered at the latest
// (Settings.CatalogLease, 10 seconds), where a process died or has nothing to do.
//
// # Operation
//
// Any number of processes may work on the same data. A process that dies may leave
// locks behind. Others that meet such a lock roll it forward or back, at the latest
// after the session lease (WithSessionLease). Workers collect garbage from time to
// time; [DB.CollectGarbage] does it at once. No transaction that writes may last longer
// than MaxTxnAge, an hour by default. No clock of any client matters for correctness:
// all order comes from the oracle.
package percolator
