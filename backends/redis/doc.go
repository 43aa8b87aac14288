// Package redis keeps a row-transactional store in Redis or Valkey: one server,
// one that Sentinel watches, or a Cluster.
//
// Importing it registers the URL schemes redis, rediss and unix, and with
// +cluster and +sentinel the first two; see [ParseURL] for the grammar. [Open] opens
// a store by its parts, and [New] over a go-redis client that the program has.
//
// A row is one hash; its older versions lie apart in a sorted set. Each batch of
// reads or changes is one run of a Lua script, which Redis runs alone, so that a
// transaction on one server reads, checks, draws its timestamp and commits in two
// round trips. The README says what each call becomes, which settings the server
// needs, and what it can lose.
package redis
