// Package simulate runs the real workers, up to a thousand of them, against one store in
// memory whose calls take time. Time is simulated (testing/synctest), so the processor is
// no limit: what a run shows is what the protocol itself costs as workers are added. How
// many changes a second they handle, how often a function is called for nothing, and how
// many calls a change costs the store.
//
//	make simulate                                   # 1 to 1,000 workers
//	go test ./internal/simulate -v -args -workers 1,8 -changes 500 -concurrency 4
package simulate
