// Package index finds rows by what a column holds: users by their address, orders by their day, pages by their words.
//
//	byMail, err := index.New(db, "user by mail", typed.Column[User]{Table: "user", Name: "profile", Codec: typed.JSON[User]{}},
//		func(_ string, u User) ([]keys.Key, error) { return []keys.Key{keys.Key("").Text(u.Mail)}, nil },
//		index.Options{Unique: true})
//
//	report, err := byMail.Build(ctx, index.Pace{}) // once; again is no harm
//
//	row, err := byMail.Find(ctx, tx, keys.Key("").Text("ann@example.org"))
//
// After [New], whatever transaction of the same DB writes the column keeps the index too, at its commit: through [typed.Column], Txn.Set, an observer. So the
// entries change together with the data, in the same transaction, and a lookup misses nothing and finds nothing that is gone. A transaction
// sees its own writes in the index.
//
// An Index with [Options.Unique] lets one row have a value. The entry is a cell that is named by the value alone, so two transactions that want the
// same value conflict there, and the second one gets [ErrNotUnique]. What counts is the transaction as a whole: it may give a row the
// value that it takes from another one, and swap two.
//
// # All writers
//
// The definition is in the catalog, which every process has a view of. A process that does not know the index, because its program does not
// call New, or calls it with another Version or other Options, cannot write the column any more: it gets percolator.ErrIndexed, within a catalog lease of the first
// Build. So call New in every program that writes the column before you call Build in one. The table of the entries is protected in the same way.
//
// To change what is indexed, make an index with another name, build it, use it in all programs, and [Drop] the old one.
//
// # Building
//
// [Index.Build] waits until every process keeps the index, and then goes over the data in small transactions while everybody writes. It ends when it
// has compared all entries with all data once more. It can be ended and goes on where it was, also in another process. Until it has ended, lookups are [ErrNotReadable].
// So are lookups at snapshots from before.
//
// [Index.Check] compares the entries with the data, and [Index.Repair] makes them fit. They differ if the function of the values was changed without its
// Version, or if a cell could not be decoded when it was replaced: its entries stay then, because nobody knows them. A cell counts as one that cannot be decoded
// if the codec panics or its error matches typed.ErrDecode or typed.ErrKeyGone. Any other error may pass, and typed.ErrVersion says that a newer program knows the value. With those
// the write fails, and so do Build, Check and Repair.
//
// # Kept by an observer
//
// [Observed] is the other kind: an observer keeps the entries, a moment after the data. A write costs no more than that of an observed column, and every program may
// write. A lookup reads the rows that it finds again, so that each one does have the value; it misses rows whose change was a moment ago. There is no unique one.
// Take it where many write, and few look up who can wait: search, lists, reports.
//
//	byTag, err := index.NewObserved(db, "note by tag", notes, tags, index.ObservedOptions{})
//
//	err = worker.Observe(byTag.Observer()) // and Run, in one process or in many
//
//	err = byTag.Build(ctx, index.Pace{}) // once: it waits until the observer has seen what is there
//
//	for row, err := range byTag.Lookup(ctx, tx, keys.Key("").Text("urgent")) {
//		// row.Key, row.Value
//	}
//
// # What can be seen
//
// The entries hold the values of the index and the keys of the rows in the clear, in the names of rows, where no codec hides them. So [New] refuses a column that is encrypted
// (typed.Encrypted) unless [Options.Clear] is set. To destroy the key of a row does not take its entries away: write or delete the row first. DB.Erase of the
// rows takes their entries away, and the history of the table of the entries with them; over TiKV the names of entries stay. To erase in that table is percolator.ErrIndexed.
// The observer of an Observed deletes the entries of rows that are erased, if it could tell their values: delete a row, wait for the observer (percolator.DB.WaitObserved), and destroy its key
// only then. After an erasure call Observed.Repair, which removes what is left of dropped runs and of values that nobody could decode. The history of the entries stays for the retention of their table: set a short one with percolator.DB.ConfigureTable; it
// bounds the age of transactions that look up, too.
//
// # What it costs
//
// A transaction that writes the column reads the old value, unless it has read it already, and writes an entry for each value that is new, and a deletion
// for each that is gone. A value that stays costs nothing. A unique index reads the entries too, and the row that has a value which another one wants. An entry is a row of its own. A value or a key of a row that is
// too long for that is cut, with a hash: lookups are exact all the same, and only the order among values of 512 bytes and more is that of their first 479 bytes.
//
// The history of the entries' table may be kept for a shorter time than that of the data (percolator.DB.ConfigureTable); that bounds the
// transactions that write the column to its MaxTxnAge, too.
package index
