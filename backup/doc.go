// Package backup writes a database of package percolator to a file, and restores it into an empty store of any backend: with the
// original timestamps, and with what its observers have done and have yet to do. After a restore no observer runs again for what it
// had done, and none misses what it had not. The package also exports and imports values alone. The commands backup, restore, export and
// import of cmd/percolator are a thin layer over it.
//
//	_, err := backup.Write(ctx, db, "shop.backup", backup.Options{})
//	store, err := rowstore.Open(ctx, "postgres://shop@db/restored")
//	_, err = backup.Restore(ctx, store, "shop.backup", backup.RestoreOptions{})
//
// # One moment
//
// A backup is of one snapshot, the time when it began. A hold keeps its history ([percolator.DB.Hold]), and transactions and workers go on
// meanwhile. Locks in the way are resolved as every reader does: those of the dead are rolled forward or back, those of the living are waited
// for. So Write may write to the database, but never what is not already decided. The catalog is that of the snapshot too.
//
// # What becomes of each record
//
// Kept, with its timestamp:
//
//   - The newest committed value of each cell, and of long values the data. Cells of recipes and of periodics are ordinary ones.
//   - A delete, if its column has observers, which can tell it from a cell that never was. Any other leaves nothing.
//   - Acknowledgments and failure records, which are cells beside those that they are of; so are requests of a replay.
//   - Timers, which are such cells too.
//   - Parked runs and replays under way, which are rows of tables of the library's own.
//   - What an observer of old values saw last ([percolator.Change]), if that is not the newest value. It is put where a collection puts it.
//   - The catalog: settings, observers, indexes and their states, paused observers.
//
// Made anew:
//
//   - Notifications. Those at or below the snapshot that still stand are kept. A run from after the snapshot has cleared others: its
//     acknowledgment shows that, and the notification is made anew from the change that it was for. A weak notification ([percolator.Txn.Notify])
//     leaves nothing behind when it is cleared. So Write looks at weak notifications before it reads the rows, and once more afterwards. If a run of about the
//     time of the snapshot has left no trace of what it was for, the cell is notified again. So after a restore, an observer may run once too often for a cell that
//     was notified within a catalog lease of the snapshot. It misses a weak notification only if a run within that lease was for it together with something later than the
//     snapshot, such as a change: nothing tells which of the two the run was for.
//   - The index of timers: a row for each timer. One of a timer that is gone would lead nowhere.
//   - The safe point, which becomes the snapshot: there is no history before it. Reads below it fail with percolator.ErrSnapshotTooOld.
//   - The mark that all rows were read by a collection: there is none, so the first collection reads them all, and finds what no hint tells of.
//   - The name of the oracle, which is that of the store that is restored into.
//
// Left out:
//
//   - Older versions, but for what observers saw last.
//   - Locks, since none is in the way of the snapshot any more. Those that were put later belong to later transactions.
//   - Marks of roll backs: they stop transactions that began before the snapshot, and no process of the old store may use the new one.
//   - Notices, which are the primaries of transactions that write nothing, and are deleted as soon as they are written.
//   - Sessions, members, claims, leases of sweeps, and the records of who goes by which catalog: they are of processes.
//   - Holds, which are of readers that read elsewhere, and hints of garbage, since the garbage is not there.
//   - Safe points of tables, which are below the snapshot.
//
// An observer that is removed while a backup runs is in it, and looks for what it has not seen once more after a restore: its notifications
// may have been cleared without a trace.
//
// Of what observers of old values saw last, a collection keeps what the newest acknowledgment is of, hold or not. If an observer had not seen a
// change for longer than history is kept, runs for it while the backup does, and the row is collected before the backup comes to it, what it saw last before is gone. Then Write
// fails with an error that matches [ErrLapsed]. Begin a new backup.
//
// # The file
//
// The file begins with a magic and a version, and consists of compressed blocks. Each has a checksum that goes on from the one before, so
// that the last one is of the whole file: a bit that is flipped, a block that is missing and a file that ends too early are found, and told apart. A restore
// checks all of it before it writes anything. While a backup is not complete its name ends with [Incomplete]. If it is cut off, it goes on from the last block that is
// whole.
//
// # Caveats
//
// A backup has everything, also values that are secret; the file can be read by its owner alone. What was erased after the backup is in it.
// A database with holds is one that older programs refuse, see DB.Hold. A restored database and the one that it came from have nothing to do with each other: stop the
// processes of one before you start those of the other, if they write to the same places outside.
package backup
