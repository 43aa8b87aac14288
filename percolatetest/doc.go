// Package percolatetest is for tests of programs that use package percolator.
//
// [Open] gives a test a database in memory, and [RunUntilIdle] runs observers over it until
// nothing is left to do. Both work in a bubble of package testing/synctest.
//
// # Every interleaving
//
// [Explore] runs transactions and observers in every order in which they can meet. A test names
// its clients, its observers and what must hold; Explore finds the schedule that breaks it, if
// there is one, and prints it in words:
//
//	Finally: account/a/balance is 1 instead of 2
//	schedule:
//		client 1: snapshot
//			# reads account/a/balance = "0"
//		client 2: snapshot
//			# reads account/a/balance = "0"
//		...
//
// [Replay] runs such a schedule again, under a debugger say.
//
// Where a transaction takes its snapshot and where it commits, it stops, and each order of these
// steps is a schedule. A transaction takes its snapshot where it begins: in Begin, or with the
// first read, or at the commit if it reads nothing. Between its steps a client does everything
// without a stop. A run of an observer takes its snapshot when it begins. An observer's function may
// make transactions of its own beside that of its run, on the DB that Setup got or on a client's: they
// stop likewise, and schedules call them "own". It must pass the context on that it got, or one made of it: the context tells
// whose a transaction is. On the DB of Setup, one that neither a client nor a run makes is an error. In
// Setup, in the runs that come of it before the clients begin, and in the checks nothing stops.
//
// Faults are further steps, if the Program allows some: a commit that meets a conflict, one that
// ends in ErrUndetermined, and the death of a process. Where a timer waits, it is a step that its
// time comes.
//
// The report says "complete" if there are no other schedules. Two schedules count as one if they
// differ only in the order of steps that cannot matter to each other: two snapshots, or two
// commits of different rows with nobody looking in between. Explore does not see who looks past
// the database, or as of a timestamp: Program.EveryOrder is for such programs. Otherwise the report
// says "bounded", with the number of schedules.
//
// A run that fails, or asks for another attempt (percolator.RetryAfter), waits for it while time goes on, and
// others may stand still meanwhile: so a lease that they have may end. Program.Retries bounds that.
//
// # What is not explored
//
// What functions do beside transactions is no step: a message, say, is sent in the same moment in which the
// transaction before it commits. To have it come later, read something first in a transaction: that is a
// place to stop. The order of such places matters then, and Explore does not know it: set Program.EveryOrder. A call that shares a
// transaction with others, as AddNow of package combine, is nobody's, and so an error on the DB of Setup.
//
// A commit is one step here, also where a store would need two phases: package percolator has an
// explorer of its own for the steps within. A commit that does take two phases (of a transaction
// under Serializable that has scanned) meets no faults. Garbage collection does not run.
// DB.Outcome, and the other calls of a DB beside its transactions, are no steps: they happen with
// the step before them.
//
// # What a program must do
//
// A program must do the same each time that it gets the same schedule: it has no random values,
// no order of a map, and no state left from the schedule before. Setup runs at the beginning of
// each schedule and resets what functions keep outside the database. A schedule that fails is run
// again, and if it differs, the message says at which step.
//
//   - A client's transactions come from one goroutine. Two that stop at once are an error.
//   - The time is that of a bubble of package testing/synctest. It begins in the year 2000 and
//     stands still until somebody sleeps; a sleep costs nothing. Who sleeps for longer than ten
//     minutes may sleep until all others have ended, and for longer than a day, for ever.
//   - A client may wait for another one, for example by a channel that Setup made. If all of them
//     wait, that is an error. A channel that was made before Explore, a mutex and a call of the
//     network do not count as waiting: the schedule stands still until they let the client go on,
//     at worst until the time of the test is over.
//   - A loop that polls has schedules without an end. It is an error after Program.Steps.
//   - A panic of a client, of Setup or of a check is an error, with its schedule. So is a method
//     of a test that ends the goroutine, such as FailNow, in an observer's function too. A panic of
//     an observer's function is a failure of the run, as in a Worker: the run is repeated, and
//     parked at last.
//   - A process that dies runs deferred functions and nothing else.
package percolatetest
