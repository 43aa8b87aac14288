package rowstore

// Placer is the optional ability of a store that is made of several, to tell which
// of them is authoritative: the one that holds the oracle, the sessions, the
// catalog and the safe point. A transaction that writes there has its primary
// there, and batches are deferred only when every row of the transaction is
// there. Without it every table is.
type Placer interface {
	// Authoritative tells whether table lives in the authoritative store. It is a
	// pure function.
	Authoritative(table string) bool
}
