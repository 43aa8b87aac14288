// Package pebble keeps a row-transactional store in this process, on disk or in
// memory, with the engine github.com/cockroachdb/pebble.
//
// Importing it registers the URL schemes pebble and memory; [ParseURL] has the
// grammar. [Open] opens a store by its parts, and [New] puts one into a database
// that the program has opened itself.
//
// # Sharing a database
//
// A store that New puts into your database takes the keys that begin with the
// bytes 0x01 to 0x06 ([New] lists what it asks of the database). All other keys
// are yours. The store keeps copies of its rows in memory, so no one else may
// write, ingest or delete keys in that range while it is open, and a database has
// at most one store.
//
// The README says when to use this store, how it maps calls onto the engine, and
// what a crash can lose.
package pebble
