-- The functions that most calls are, and those of schema_apply.sql and schema_general.sql, are made twice: once
-- with clauses that set what they need for the time of a call, for any session; and once without, named ..._ready,
-- since the clauses cost more than a short call itself. Those are for sessions that have the settings already, and
-- refuse others at their beginning. Before that has been looked at, such a function may run in any session: so everything up to there
-- is written with its schema, the types of variables and operators too, and a variable has no default there.

-- read_point reads single columns: lock, mark, newest write, and where that is
-- above p_ts, the bundle with the newest that is not.
--
-- A reader must not miss a write whose timestamp is below one that was drawn before the call; see drawn_sql.go. So
-- it first takes the lock of each row, which are in p_lock, and lets it go, or waits for transactions: p_settle says how. A row that is
-- busy is not read, and a line with i below 0 says so. Then the statement that reads has a snapshot
-- of its own, newer than the time when it had all locks, as it is in a function that is volatile, in a transaction that is read committed.
-- So no function that reads may ever be declared stable.
CREATE FUNCTION {{schema}}.read_point{{set}}(p_settle integer, p_lock bigint[], p_tab bytea[], p_key bytea[], p_col bytea[], p_ts bigint[])
RETURNS TABLE (i integer, lock_ts bigint, lock_val bytea, mark_ts bigint, mark_val bytea,
	write_ts bigint, write_val bytea, past bytea)
LANGUAGE plpgsql {{settings}} AS $body$
#variable_conflict use_column
DECLARE
	{{settle_vars}}
BEGIN
	{{session}}
	IF current_setting('transaction_isolation') <> 'read committed' OR pg_is_in_recovery() THEN
		PERFORM {{schema}}.guard();
	END IF;
	{{settle}}
	RETURN QUERY
	{{points}}
END
$body$;

-- scan_point answers what read_point does for rows in the order of their keys, of the columns p_cols, or of all where that is
-- null: p_n lines at most. It looks at p_look lines at most, and takes lines only until they have about
-- p_bytes; the line at which it stopped for that, which may be of another column, has looked: how many there were. So the last row is whole only if the range ends with
-- it. All lines are of one moment.
--
-- With p_lag, it draws p_ts first, as snapshot_point does. Then the first line has no key, but in write_ts what was drawn, and
-- in lock_ts the bound; where the function draw has to be called first, that is all. The last line has no key either, and in
-- mark_ts the last timestamp that had been drawn when the lines had been read.
--
-- Every step keeps the order of the index, so nothing is sorted, and no more lines are looked at than are
-- needed. The settings say so to the planner. They last until the transaction ends, and a plan lasts longer.
CREATE FUNCTION {{schema}}.scan_point{{set}}(p_lag bigint, p_ahead bigint, p_bound bigint, p_settle integer, p_tab bytea, p_lo bytea, p_hi bytea, p_reverse boolean, p_n bigint, p_look bigint, p_bytes bigint,
	p_cols bytea[], p_ts bigint)
RETURNS TABLE (key bytea, lock_ts bigint, lock_val bytea, mark_ts bigint, mark_val bytea, write_ts bigint, write_val bytea, past bytea, col bytea, looked bigint)
LANGUAGE plpgsql {{settings}} AS $body$
#variable_conflict use_column
DECLARE
	{{draw_vars}}
	{{barrier_vars}}
BEGIN
	{{session}}
	IF current_setting('transaction_isolation') <> 'read committed' OR pg_is_in_recovery() THEN
		PERFORM {{schema}}.guard();
	END IF;
	IF p_lag IS NOT NULL THEN
		PERFORM set_config('synchronous_commit', 'off', true);
		{{wait}}
		{{bound}}
		{{step_alone}}
		{{first}}
		lock_ts := v_bound;
		write_ts := v_first;
		RETURN NEXT;
		IF v_first IS NULL THEN
			RETURN;
		END IF;
		p_ts := v_first;
		lock_ts := NULL;
		write_ts := NULL;
	END IF;
	IF p_settle > 0 AND {{in_flight}} THEN
		{{barrier}}
	END IF;
	PERFORM set_config('enable_sort', 'off', true), set_config('enable_bitmapscan', 'off', true),
		set_config('max_parallel_workers_per_gather', '0', true);
	IF p_reverse THEN
		RETURN QUERY {{range_desc}}
	ELSE
		RETURN QUERY {{range}}
	END IF;
	mark_ts := pg_sequence_last_value({{clock}});
	RETURN NEXT;
END
$body$;

-- snapshot_point draws as many timestamps as one step of the clock has, and then does what read_point does. A null in p_ts
-- stands for the timestamp of the ask with the number in p_ask, which is so much above the first one. The
-- first line has i = 0, and in write_ts the first of the timestamps; that is null, and there is no other line, where the
-- function draw has to be called first. p_bound is the durable bound of the oracle, if the caller knows it; in lock_ts it gets
-- the one that was used. A caller that knows none may come near it, and does not know it, so it is refused there.
--
-- Each statement of a function that is volatile has a snapshot of its own. So the read sees what was committed when
-- the timestamps were drawn.
CREATE FUNCTION {{schema}}.snapshot_point{{set}}(p_lag bigint, p_ahead bigint, p_bound bigint, p_ask bigint[],
	p_settle integer, p_lock bigint[], p_tab bytea[], p_key bytea[], p_col bytea[], p_ts bigint[])
RETURNS TABLE (i integer, lock_ts bigint, lock_val bytea, mark_ts bigint, mark_val bytea,
	write_ts bigint, write_val bytea, past bytea)
LANGUAGE plpgsql {{settings}} AS $body$
#variable_conflict use_column
DECLARE
	{{draw_vars}}
	{{settle_vars}}
BEGIN
	{{session}}
	IF current_setting('transaction_isolation') <> 'read committed' OR pg_is_in_recovery() THEN
		PERFORM {{schema}}.guard();
	END IF;
	PERFORM set_config('synchronous_commit', 'off', true);
	{{wait}}
	{{bound}}
	-- The step has the oracle's lock. To let it go before the read costs more than a small read has it held.
	IF cardinality(p_lock) > {{few}} THEN
		{{step_alone}}
	ELSE
		v_last := {{step}};
	END IF;
	{{first}}
	i := 0;
	lock_ts := v_bound;
	write_ts := v_first;
	RETURN NEXT;
	IF v_first IS NULL THEN
		RETURN;
	END IF;
	p_ts := ARRAY(SELECT coalesce(t.ts, v_first + t.ask) FROM unnest(p_ts, p_ask) t(ts, ask));
	{{settle}}
	RETURN QUERY
	{{points}}
END
$body$;

-- read_any answers any picks, with more versions than asked for where that is
-- simpler: the caller selects again. Bundles of older writes come as they are, as
-- family {{bundle}}. p_mask has a bit for each family, so that
-- branches without picks cost nothing; a null p_col means all columns, a null
-- p_lim no limit. p_slot has the slots of the rows whose notifications are picked, and may be
-- null where none are. It is one statement, because a row is answered from one view. p_settle and p_lock are as in
-- read_point; a row that is busy has a line with i = -2 minus its number.
CREATE FUNCTION {{schema}}.read_any{{set}}(p_settle integer, p_lock bigint[], p_mask integer, p_i integer[], p_tab bytea[], p_key bytea[], p_fam smallint[],
	p_col bytea[], p_from bigint[], p_to bigint[], p_lim bigint[], p_slot integer[])
RETURNS TABLE (i integer, fam smallint, col bytea, ts bigint, val bytea)
LANGUAGE plpgsql {{settings}} AS $body$
#variable_conflict use_column
DECLARE
	{{settle_vars}}
BEGIN
	{{session}}
	IF current_setting('transaction_isolation') <> 'read committed' OR pg_is_in_recovery() THEN
		PERFORM {{schema}}.guard();
	END IF;
	{{settle}}
	IF v_busy IS NOT NULL THEN
		RETURN QUERY SELECT -2 - u.i, NULL::smallint, NULL::bytea, NULL::bigint, NULL::bytea FROM unnest(p_i, p_lock) AS u(i, lock) WHERE u.lock = ANY (v_busy);
	END IF;
	RETURN QUERY
	WITH u AS MATERIALIZED (
		SELECT * FROM unnest(p_i, p_tab, p_key, p_fam, p_col, p_from, p_to, p_lim, p_slot, p_lock) AS u(i, tab, key, fam, col, lo, hi, lim, slot, lock)
		WHERE v_busy IS NULL OR u.lock <> ALL (v_busy)
	), cells AS MATERIALIZED (
		SELECT u.i, u.fam, u.tab, u.key, u.lo, u.hi, u.lim, c.col, c.lock_ts, c.lock_val, c.write_ts, c.write_val, c.mark_ts, c.mark_val, c.past_oldest, c.past
		FROM u CROSS JOIN LATERAL (
			SELECT * FROM {{schema}}.cell c WHERE c.tab = u.tab AND c.key = u.key AND c.col = u.col OFFSET 0
		) c
		WHERE (p_mask & 22) <> 0 AND u.fam IN (1, 2, 4) AND u.col IS NOT NULL
		UNION ALL
		SELECT u.i, u.fam, u.tab, u.key, u.lo, u.hi, u.lim, c.col, c.lock_ts, c.lock_val, c.write_ts, c.write_val, c.mark_ts, c.mark_val, c.past_oldest, c.past
		FROM u CROSS JOIN LATERAL (
			SELECT * FROM {{schema}}.cell c WHERE c.tab = u.tab AND c.key = u.key OFFSET 0
		) c
		WHERE (p_mask & 22) <> 0 AND u.fam IN (1, 2, 4) AND u.col IS NULL
	)
	SELECT c.i, c.fam, c.col, c.lock_ts, c.lock_val FROM cells c WHERE c.fam = 1 AND c.lock_ts BETWEEN c.lo AND c.hi
	UNION ALL
	SELECT c.i, c.fam, c.col, c.mark_ts, c.mark_val FROM cells c WHERE c.fam = 4 AND c.mark_ts BETWEEN c.lo AND c.hi
	UNION ALL
	SELECT c.i, c.fam, c.col, c.write_ts, c.write_val FROM cells c WHERE c.fam = 2 AND c.write_ts BETWEEN c.lo AND c.hi
	UNION ALL
	SELECT c.i, {{bundle}}::smallint, c.col, c.past_oldest, c.past FROM cells c
	WHERE c.fam = 2 AND c.write_ts > c.lo AND NOT (c.lim IS NOT DISTINCT FROM 1 AND c.write_ts <= c.hi) AND c.past_oldest <= c.hi
	UNION ALL
	SELECT c.i, {{bundle}}::smallint, c.col, o.lo, o.vals FROM cells c CROSS JOIN LATERAL (
		-- The bundle that may hold the lower end of the range: none before it is looked at.
		SELECT CASE WHEN c.lo > 0 THEN (
			SELECT o.lo FROM {{schema}}.past o
			WHERE o.tab = c.tab AND o.key = c.key AND o.col = c.col AND o.lo <= c.lo ORDER BY o.lo DESC LIMIT 1
		) END AS lo OFFSET 0
	) l CROSS JOIN LATERAL (
		SELECT o.lo, o.vals FROM {{schema}}.past o
		WHERE c.write_ts > c.lo AND NOT (c.lim IS NOT DISTINCT FROM 1 AND (c.write_ts <= c.hi OR coalesce(c.past_oldest <= c.hi, false)))
			AND o.tab = c.tab AND o.key = c.key AND o.col = c.col AND o.lo <= c.hi AND o.lo >= coalesce(l.lo, 0) AND o.hi >= c.lo
		ORDER BY o.lo DESC LIMIT c.lim
	) o WHERE c.fam = 2
	UNION ALL
	SELECT u.i, u.fam, u.col, d.ts, d.val FROM u CROSS JOIN LATERAL (
		SELECT d.ts, d.val FROM {{schema}}.data d
		WHERE d.tab = u.tab AND d.key = u.key AND d.col = u.col AND d.ts BETWEEN u.lo AND u.hi
		ORDER BY d.ts DESC LIMIT u.lim
	) d WHERE (p_mask & 8) <> 0 AND u.fam = 3 AND u.col IS NOT NULL
	UNION ALL
	SELECT u.i, u.fam, d.col, d.ts, d.val FROM u CROSS JOIN LATERAL (
		SELECT d.col, d.ts, d.val, row_number() OVER (PARTITION BY d.col ORDER BY d.ts DESC) AS n FROM {{schema}}.data d
		WHERE d.tab = u.tab AND d.key = u.key AND d.ts BETWEEN u.lo AND u.hi
	) d WHERE (p_mask & 8) <> 0 AND u.fam = 3 AND u.col IS NULL AND (u.lim IS NULL OR d.n <= u.lim)
	UNION ALL
	SELECT u.i, u.fam, u.col, n.ts, n.val FROM u CROSS JOIN LATERAL (
		SELECT n.ts, n.val FROM {{schema}}.notify n
		WHERE n.tab = u.tab AND n.slot = u.slot AND n.key = u.key AND n.col = u.col AND n.ts BETWEEN u.lo AND u.hi
		ORDER BY n.ts DESC LIMIT u.lim
	) n WHERE (p_mask & 32) <> 0 AND u.fam = 5 AND u.col IS NOT NULL
	UNION ALL
	SELECT u.i, u.fam, n.col, n.ts, n.val FROM u CROSS JOIN LATERAL (
		SELECT n.col, n.ts, n.val, row_number() OVER (PARTITION BY n.col ORDER BY n.ts DESC) AS n FROM {{schema}}.notify n
		WHERE n.tab = u.tab AND n.slot = u.slot AND n.key = u.key AND n.ts BETWEEN u.lo AND u.hi
	) n WHERE (p_mask & 32) <> 0 AND u.fam = 5 AND u.col IS NULL AND (u.lim IS NULL OR n.n <= u.lim);
END
$body$;
