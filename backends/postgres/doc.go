// Package postgres is the row-transactional store over Postgres 14 or newer. It
// registers the URL schemes postgres and postgresql; see [ParseURL] for the parameters.
// [OpenURL] and [Open] make a pool of connections of their own. [New] takes a pool that the
// program has, and that it goes on to use for SQL of its own. README.md says how each call maps
// onto statements, what a crash can lose and which permissions are needed.
//
// # How a row is kept
//
// The table cell has one line for each column of each row: its lock, its mark and
// its newest committed write, side by side. No index holds these, and the pages
// are left part empty, so that an update touches the heap page alone (a HOT update).
// The write that a commit replaces stays in the line, in a list of the newest of
// the older writes. A list that has grown long goes to a table of its own, as one
// entry, so that history costs one entry of an index for several commits and not for
// each. Long values and notifications have tables of their own too; so a scan for
// notifications costs what there are of them.
//
// # How a batch is one statement
//
// A batch is a call of a function on the server with one array for each argument.
// Functions are used, rather than plain statements, for three reasons: their plans
// stay in the server's session also where a pooler forbids prepared statements;
// they can pin the planner to the only plan that is right for a batch; and they
// run several statements in one round trip, each with a fresh view.
//
// Mutations that judge and change each cell by itself, which are all that
// transactions are made of, go through a compiled statement for their shape:
// prewrite, commit, or any other. It judges the conditions in the snapshot and,
// since an UPDATE that waited for a row's lock looks again at that row alone, once
// more on the row that it changes. If then only a part of a mutation or a group
// holds, all is rolled back and judged anew, and so it is when it would have to wait for
// somebody else out of the order of keys. Everything else, and whatever lost
// such a race, goes through a function that locks the rows one after the other in
// the order of their keys, and judges only then.
//
// # How timestamps come along
//
// A timestamp drawn by the statement that reads would be useless: the statement's
// view is older. But two transactions may travel in one round trip, and the server
// begins the second when the first has ended. So a start timestamp is drawn just before
// the first read, and a commit timestamp just after the prewrites can be seen, without
// a round trip of their own.
//
// # Defaults of the administrator
//
// Each transaction is read committed and has the durability that the caller asked
// for, whatever the server's defaults are, and looks up names in the system's schema and
// in its own alone, whatever the search path is. A default that forbids writes is respected. Where the default isolation is another,
// BEGIN and COMMIT travel with the statement; it stays one round trip.
package postgres
