// Package simulate runs the real workers, up to a thousand of them, against one store in
// memory whose calls take time. Time is simulated (testing/synctest), so the processor is
// no limit: what a run shows is what the protocol itself costs as workers are added, and
// what comes of changes while workers start, stop, hang and die.
//
// Its tests are scenarios: a backlog, changes at a steady rate, workers with different
// observers, idle ones, WaitIdle among them, more of them at once, a rolling restart, a death, several ways
// to hang, and some of these over a store without a push. Each shows a table of how often functions were called for a change, how many
// calls to the store that took, and how long from the commit to the run, and fails if a bar
// is missed. In a plain test run they are small.
//
//	make simulate                                   # all of them whole; this takes an hour
//	make simulate SIMULATE_RUN=Kill                 # one of them
//	go test ./internal/simulate -v -args -workers 1,8 -changes 500 -concurrency 4
package simulate
