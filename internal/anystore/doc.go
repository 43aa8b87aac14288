// Package anystore runs the conformance suite against a store of the user's own,
// named by a URL:
//
//	make conformance STORE=redis://localhost:6379/0
//
// Every test gets a name space of its own in that store (a schema, a key prefix, a
// directory), which is removed when the test is over. Nothing else is touched. It
// has tests only.
package anystore
