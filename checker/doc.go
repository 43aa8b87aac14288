// Package checker judges histories of transactions. It tells whether snapshot
// isolation, or serializability, allows what the clients of a database saw. It needs
// nothing but the history, so it can judge any system.
//
// # Recording
//
// A [Recorder] records what transactions read and wrote, when, and how they ended. It
// keeps the history in memory, or writes it as JSON lines that survive the death of the
// program. [ReadFiles] puts the histories of several programs together. [Export] writes
// a history for elle-cli.
//
//	rec := checker.NewRecorder(file, nil)
//	r := rec.Begin(process)
//	tx, err := db.Begin(ctx)
//	start, err := tx.StartTimestamp(ctx)
//	r.Start(start)
//	v, err := tx.Get(ctx, cell)
//	r.Read(cell.String(), decode(v), err == nil)
//	...
//	r.Committing()
//	if err := tx.Commit(ctx); err == nil {
//		r.Committed(tx.CommitTimestamp())
//	} else if errors.Is(err, percolator.ErrUndetermined) {
//		r.Unknown(err)
//	} else {
//		r.Aborted(err)
//	}
//
// # Judging
//
// Two checkers keep each other honest. [CheckTimestamps] trusts the timestamps and
// makes sure that every read and write fits them. It misses nothing that has
// timestamps, takes all workloads, and knows the ledger of observers. [CheckValues]
// looks at values alone, as Elle does, so a wrong oracle cannot fool it. It names its
// findings by the anomalies of the literature. If the history is true, everything that
// either checker reports is really wrong.
//
// The program cmd/percolator-check runs both over files.
package checker
