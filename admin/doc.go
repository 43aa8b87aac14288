// Package admin looks into a database of package percolator: its tables and cells, observers and what waits for
// them, locks and whose they are, processes, holds, and garbage. It says in words why a cell waits. The
// command cmd/percolator is a thin layer over it.
//
//	r, err := admin.Of(db)
//	w, err := r.Why(ctx, percolator.Cell{Table: "order", Row: "17", Column: "state"})
//	for _, line := range w.Lines {
//		fmt.Println(line)
//	}
//
// [Reader.Doctor] looks at all of that, at the store's settings and at the clocks, and says what is wrong or risky, and what to
// change.
//
// # Looking never writes
//
// A [Reader] calls nothing of a store but Read, Scan, Tables and Report, and draws timestamps. So it resolves no lock,
// fences no transaction and opens no session, and the database is the same after it has looked. [percolator.DB] reads
// in another way: a Get rolls a dead transaction back, and DB.Outcome fences. A Reader waits for no
// lock either: where a transaction that is not decided stands in the way of an answer, the answer says so. [MeasureLoad] is no
// method of it: it commits, in a table of its own, and removes what it wrote.
//
// # Bounded
//
// Each call looks at a bounded number of rows, which its arguments say, and most need one to three round trips.
// So a page may ask for everything each second, over any number of rows. A list that is not whole has More set, or
// returns where its next page begins, and a count that is not exact has AtLeast set. No call is repeated if a server is away: an error that
// matches [rowstore.ErrUnavailable] is returned at once.
//
// # Bytes
//
// Names and values may hold any bytes. [Bytes] and [Stamp] have forms that can be typed, and that
// text and JSON use: see there.
package admin
