// Package once does things once for a key, and keeps the answer for a time: a request that a client sends again, a message that
// arrives twice, a commit whose outcome was not known.
//
//	payments, err := once.New(db, "payment", typed.JSON[Receipt]{}, once.Options{Keep: 24 * time.Hour})
//
//	receipt, first, err := payments.Do(ctx, request.IdempotencyKey, func(ctx context.Context, tx *percolator.Txn) (Receipt, error) {
//		... // whatever it takes, through tx
//	})
//
// [Keys.Do] calls the function in a transaction that also stores the answer, in one cell of the key. So the function's writes and
// the answer take effect together or not at all. Of calls with the same key at the same time one takes effect; the others conflict on the
// cell, run again, and find the answer. If Do ends with percolator.ErrUndetermined, call it again with the same key: it returns the
// answer if there is one. [Keys.Within] is the same as a part of your own transaction.
//
// # Claims
//
// What has an effect outside of the database (a letter, a call of another service) cannot be a part of a transaction. [Keys.Claim] lets one process at a
// time do it: it stores a claim that ends by itself. Then the process acts, and calls [Claim.Finish] in a transaction that stores the answer, and that
// begins after the claim; that of an observer's run began before it. If
// the process dies in between, another one may claim the key when the lease has ended. It cannot know how far the first one came. So an effect outside may happen
// twice; if it must not, give [Claim.Epoch] to the other side. Epochs of a key rise, and who has seen one must refuse lower ones: a process that
// was suspended may act after its successor. What Finish writes never happens twice.
// A claim that has ended stays for Options.Keep, so a process that was late can finish, if nobody else has claimed the key.
//
// # How long an answer is kept
//
// Times are those of the oracle: an answer is kept from the beginning of its transaction for Options.Keep, and then counts as not there. If
// the oracle's time stands still, nothing ends meanwhile; if it jumps ahead, answers and claims end early.
//
// A key is one row with one cell. Do costs a read, which comes with the start timestamp where the store can do that, and a write. For one of
// 16 keys that are written somebody also looks at 128 rows in a random place of the table, in a transaction of its own, and removes those that have
// ended. In a transaction that takes a second at most, however many keys it writes. So about a tenth of the table is of keys that have ended, as long as there are calls. [Keys.Sweep] removes all of them; use it if answers must be gone
// in time. The rows lie in the order of a hash of the key, so that keys which grow do not make one place of the store hot.
//
// The table belongs to the package alone. The retention of its history need not be as long as Keep. A short one keeps it small
// (percolator.DB.ConfigureTable), and bounds the transactions that use it to its MaxTxnAge.
package once
