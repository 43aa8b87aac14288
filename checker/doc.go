// Package checker judges histories of transactions: whether what the clients of a
// database saw is possible under snapshot isolation, or under serializability. It needs
// nothing of the database: any system's history will do.
//
// # Recording
//
// A [Recorder] takes down what transactions read and wrote, when, and how they ended. It
// keeps that in memory, or writes it as JSON lines that survive the death of the
// program; [ReadFiles] puts the histories of several programs together, and [Export]
// writes one for elle-cli.
//
//	rec := checker.NewRecorder(file, nil)
//	r := rec.Begin(process)
//	tx, err := db.Begin(ctx)
//	r.Start(tx.StartTimestamp())
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
// Two checkers keep each other honest. [CheckTimestamps] takes the timestamps at their
// word and makes sure that every read and write fits them; it misses nothing that has
// timestamps, takes all workloads, and knows the ledger of observers. [CheckValues]
// looks at values alone, as Elle does, so a wrong oracle cannot fool it; it names what
// it finds by the anomalies of the literature. Both promise that what they report is
// wrong, provided that the history is true.
//
// The program cmd/percolator-check runs both over files.
package checker
