// Package redis keeps a row-transactional store in Redis or Valkey: one server,
// one that Sentinel watches, or a Cluster.
//
// Importing it registers the URL schemes redis, rediss and unix, and with
// +cluster and +sentinel the first two; see [ParseURL] for the grammar. A program
// that has the parts apart calls [Open].
//
// A row is one hash; its older versions lie apart in a sorted set. Each batch of
// reads or changes is one run of a Lua script, which Redis runs alone, so that a
// transaction on one server reads, checks, draws its timestamp and commits in two
// round trips. The README says what each call becomes, which settings the server
// needs, and what it can lose.
package redis
