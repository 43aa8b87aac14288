package postgres

// A group may draw its commit timestamp inside its transaction: the one-phase commit. Between the draw and the
// moment when its writes can be seen, somebody may draw a later timestamp and read. Advisory locks of the transaction make
// readers of just those rows wait; see "One phase" in the README for the proof. The order of all locks is: the
// transaction's own name, rows (ascending), the oracle's lock (let go at once), lines of tables.

// The advisory locks of this package are of the kind with one number of 64 bits. Its upper half, which pg_locks shows as
// classid, is a class: one for rows, one for transactions. The lower half is a hash of the row, or of
// the transaction's number the lower 32 bits.
func lockClass(what, schema string) int64 {
	return int64(hash(what, schema) &^ (1<<32 - 1)) //nolint:gosec // any number will do
}

// rowLock returns the number of the advisory lock of a row. Two rows may share one: then their transactions wait for
// each other needlessly.
func (n *names) rowLock(table, row string) int64 {
	const offset, prime = 2166136261, 16777619 // FNV-1a
	h := uint32(offset)
	for i := range len(table) {
		h = (h ^ uint32(table[i])) * prime
	}
	h = (h ^ 0xff) * prime
	for i := range len(row) {
		h = (h ^ uint32(row[i])) * prime
	}
	return n.rows | int64(h)
}

const (
	// maxOwnRows is the most rows of groups that draw, in one call: each is a lock in the memory that all sessions of
	// the server share, which by default has room for 64 of each session. A larger group is refused.
	maxOwnRows = 512
	// maxReadRows is the most rows that a call reads with a lock of each. One of more waits for transactions.
	maxReadRows = 256
	// fewReads is how many columns a call may read with the oracle's lock held. What it answers fits into the
	// buffers of a connection, since the core puts only short values beside a write. So it ends soon, whatever its client does.
	fewReads = 8
)

// How a call makes sure that what it reads holds every write with a timestamp below those that were
// drawn before the call, as schema_reads.sql has it.
const (
	settleNot     = 0 // it need not, since a call before it did
	settleTry     = 1 // by locks of the rows; those that are busy are told and not read
	settleWait    = 2 // by locks of the rows, in ascending order, which it waits for
	settleBarrier = 3 // by waiting for the transactions in flight
	settleBriefly = 4 // as settleWait, for a short time: other callers, whose rows were read, wait for this call
)

// patience bounds the wait for a lock of another transaction that draws, or of its readers. Such a transaction lasts as long as its
// flush, and the wait for standbys. Where these hang, readers end, and do not hold all connections.
const patience = `PERFORM set_config('lock_timeout', '10s', true);`

// inFlightSQL tells whether a transaction with a number is in flight anywhere on the server. One that draws has
// its number before it draws. xmin of a snapshot is the least number in flight, or where there is none the one after the last that
// ended. Its age is 0 if the server has given out no number from there on. So reads pay for locks only while somebody writes.
//
// age asks for the newest number once in a transaction, so nothing may call it before the draw. Where the draw
// itself has given the transaction a number, age goes by that one. It is above the number of everybody who has drawn
// before, because the server gives it while it holds the sequence.
const inFlightSQL = `age(pg_snapshot_xmin(pg_current_snapshot())::xid) <> 0`

// Each fills in something of the functions.
const (
	// ownSQL takes the locks of a transaction that draws: its name, before any other lock, so that a transaction
	// which waits for its name holds nothing; then its rows, those that it writes for itself and those that it judges alone
	// shared. Then it makes a step of the sequence.
	ownSQL = patience + `
		PERFORM pg_advisory_xact_lock('{{transactions}}'::bigint | (pg_current_xact_id()::text::bigint & 4294967295));
		` + ownRowsSQL + `
		PERFORM set_config('lock_timeout', '0', true);
		` + boundSQL + `
		` + stepAloneSQL + `
		` + firstSQL
	// boundSQL is the durable bound that a step must stay below: the caller's, or that of the oracle if no other server has
	// taken over. firstSQL takes the first timestamp of a step that did. A caller who knows no bound may come near it, and does not learn of it.
	boundSQL = `v_bound := coalesce(p_bound, (SELECT o.bound FROM {{schema}}.oracle o JOIN {{schema}}.incarnation y ON y.id = o.incarnation));`
	firstSQL = `IF v_last <= v_bound - (CASE WHEN p_bound IS NULL THEN p_ahead / 4 ELSE 0 END) THEN
			v_first := v_last - 4095;
		END IF;`
	// stepAloneSQL makes a step of the sequence. The step has the oracle's lock, which must not last until the
	// transaction ends: every draw would wait for its flush, or for a client that takes a large answer slowly. What is taken
	// within a block is let go when the block is undone, and neither a variable nor the sequence goes back.
	stepAloneSQL = `BEGIN
			v_last := {{step}};
			RAISE SQLSTATE 'PC006';
		EXCEPTION WHEN SQLSTATE 'PC006' THEN
			NULL;
		END;`
	ownRowsSQL = `PERFORM CASE WHEN u.own THEN pg_advisory_xact_lock(u.l) IS NULL ELSE pg_advisory_xact_lock_shared(u.l) IS NULL END
			FROM unnest(p_lock, p_own) AS u(l, own);`
	// settleSQL makes sure of what settleTry and the others say. No lock lasts longer than this: that it was to be had says
	// enough, and a client that takes a large answer slowly must not hold up those who commit. A lock
	// that nothing waits for is one of the session, let go in the same expression, where no statement can be cancelled; a block would
	// cost more. Waiting for a lock of the session may leave it behind when it is cancelled, so those are of the transaction,
	// within a block.
	settleSQL = `IF p_settle > 0 AND ` + inFlightSQL + ` THEN
		IF p_settle = 1 THEN
			` + trySQL + `
		ELSIF p_settle IN (2, 4) THEN
			PERFORM set_config('lock_timeout', CASE p_settle WHEN 2 THEN '10s' ELSE '500ms' END, true);
			BEGIN
				PERFORM pg_advisory_xact_lock_shared(l) FROM unnest(p_lock) l;
				RAISE SQLSTATE 'PC006';
			EXCEPTION WHEN SQLSTATE 'PC006' THEN
				NULL;
			END;
		END IF;
		` + barrierSQL + `
	END IF;`
	trySQL = `SELECT array_agg(l) INTO v_busy FROM unnest(p_lock) l
				WHERE NOT CASE WHEN pg_try_advisory_lock_shared(l) THEN pg_advisory_unlock_shared(l) ELSE false END;`
	// barrierSQL waits for the transactions in flight: those that the snapshot lists, and those that began since, or at least
	// too late for the list. It stands in a transaction that has no number itself. Savepoints have numbers too, and a stranger may have
	// a million of them. Then it asks for the names that are taken: who draws has taken his name before.
	barrierSQL = `IF p_settle = 3 THEN
		` + patience + `
		v_snap := pg_current_snapshot();
		v_xmax := pg_snapshot_xmax(v_snap)::text::bigint;
		IF age(pg_snapshot_xmax(v_snap)::xid) < 4096 THEN
			v_ids := ARRAY(SELECT x::text::bigint FROM pg_snapshot_xip(v_snap) x)
				|| ARRAY(SELECT generate_series(v_xmax, v_xmax + age(pg_snapshot_xmax(v_snap)::xid) - 1));
		ELSE
			v_ids := ARRAY(SELECT l.objid::bigint FROM pg_locks l WHERE l.locktype = 'advisory' AND l.objsubid = 1
				AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
				AND l.classid = '{{transactions_class}}'::oid AND l.mode = 'ExclusiveLock' AND l.granted);
		END IF;
		FOR v_part IN 1 .. cardinality(v_ids) BY 64 LOOP
			BEGIN
				PERFORM pg_advisory_xact_lock_shared('{{transactions}}'::bigint | (x & 4294967295)) FROM unnest(v_ids[v_part:v_part + 63]) x;
				RAISE SQLSTATE 'PC006';
			EXCEPTION WHEN SQLSTATE 'PC006' THEN
				NULL;
			END;
		END LOOP;
	END IF;`
	ownParams = `p_lock bigint[], p_own boolean[], p_late bigint[], p_lag bigint, p_ahead bigint, p_bound bigint`
	ownVars   = `v_bound bigint;
	v_last  bigint;
	v_first bigint;`
	barrierVars = `v_snap  pg_catalog.pg_snapshot;
	v_xmax  bigint;
	v_ids   bigint[];`
)
