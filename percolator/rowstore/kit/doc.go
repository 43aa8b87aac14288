// Package kit has what authors of backends share: the parts of a rowstore.Store that are
// the same over every database. A backend needs none of it, and takes what fits.
//
//   - Calls and Close: [Gate] lets calls in, ends them when the store is closed, and says
//     so in their errors. [Turn] is a lock that honours contexts.
//     [Claims] keeps two stores out of one database.
//   - Keys: [AppendName] and [AppendTimestamp] make keys whose byte order is the order of
//     names, and of timestamps from new to old.
//   - Rows, two ways. [Layout] keeps each version under a key of its own, over any ordered
//     key-value database with transactions: it reads, scans, judges and edits over two
//     small interfaces, [Reader] and [Txn]; [CursorReader] makes a Reader of cursors. For a
//     database that changes one value at a time, [Select], [Newest] and [Edited] do the same
//     with a row as one sorted slice.
//   - Conditions: [Judge] finds the first condition of a mutation that does not hold.
//     [CheckApply] and [CheckGroup] check arguments and limits.
//   - Timestamps: [BoundedOracle] for a store in one process, [SwapOracle] over a value
//     that is changed by compare-and-swap, and [BatchOracle] to share round trips of
//     either. [Pending] keeps readers from missing a commit whose timestamp is drawn
//     inside a group. [TimestampThenRead] is a SnapshotReader in two calls, and
//     [TimestampThenScan] does the same for a SnapshotScanner.
//   - Notifications: [Hub] wakes those who listen, and [Wakes] says when.
//   - Scans by pages, and lists of tables: [Pages] and [Names].
//   - URLs: [Params] reads the parameters of a store's URL, with clear errors.
//   - Reports: [Features] lists what a store can do.
//
// The example examples/boltstore is a whole backend made of these, and docs/backends.md
// walks through it.
package kit
