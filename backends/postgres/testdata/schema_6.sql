-- The schema as programs that knew version 6 made it, to test the migration from it.

-- The tables of versions 5 and 6 of the schema. {{schema}} stands for the quoted name of the schema.

CREATE TABLE {{schema}}.meta (
	one     boolean PRIMARY KEY DEFAULT true CHECK (one),
	version integer NOT NULL
);

-- The current state of each column of each row. No index holds the columns after
-- the key, and pages are left part empty, so that an update stays on its page and
-- touches no index (HOT). A cell with all three timestamps null is a place holder
-- of a mutation under way.
--
-- past holds the newest of the older writes, newest first, each as timestamp (8
-- bytes), length (4) and value; past_lo is the oldest timestamp in it. A commit puts
-- the write that it replaces in front of it. Once that makes it as long as
-- 256 bytes it goes into the table past, all of it, in the same statement;
-- the next commit begins it anew. So a past of that length is in both places, and a
-- shorter one only here. Nothing else makes it longer.
CREATE TABLE {{schema}}.cell (
	tab bytea NOT NULL,
	key bytea NOT NULL,
	col bytea NOT NULL,
	lock_ts   bigint,
	write_ts  bigint,
	mark_ts   bigint,
	lock_val  bytea,
	write_val bytea,
	mark_val  bytea,
	past_lo   bigint,
	past      bytea,
	PRIMARY KEY (tab, key, col)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.1, autovacuum_analyze_scale_factor = 0.1);

-- Bundles of writes older than those in cell, laid out as cell.past is. lo is the
-- oldest timestamp in a bundle, and none is above hi. The ranges of a cell's bundles do not
-- overlap, so the newest write at or below a timestamp is in the bundle with the
-- greatest lo that is not above it.
CREATE TABLE {{schema}}.past (
	tab  bytea NOT NULL,
	key  bytea NOT NULL,
	col  bytea NOT NULL,
	lo   bigint NOT NULL,
	vals bytea NOT NULL,
	hi   bigint NOT NULL,
	PRIMARY KEY (tab, key, col, lo)
);

CREATE TABLE {{schema}}.data (
	tab bytea NOT NULL,
	key bytea NOT NULL,
	col bytea NOT NULL,
	ts  bigint NOT NULL,
	val bytea,
	PRIMARY KEY (tab, key, col, ts)
);

-- slot is what rowstore.Slot says of tab and key, and the client names it with every change: SQL cannot
-- compute it. It comes before the row in the key, so that a worker finds the rows in its own slots. There
-- is no index in the order of rows, since a commit would have to write that one too.
CREATE TABLE {{schema}}.notify (
	tab  bytea NOT NULL,
	key  bytea NOT NULL,
	col  bytea NOT NULL,
	ts   bigint NOT NULL,
	val  bytea,
	slot integer NOT NULL,
	PRIMARY KEY (tab, slot, key, col, ts)
) WITH (autovacuum_vacuum_scale_factor = 0.05);

-- Emptied by the recovery from a crash and by the promotion of a standby, never by
-- a clean stop: it changes whenever commits that were not flushed may be lost.
CREATE UNLOGGED TABLE {{schema}}.incarnation (
	one boolean PRIMARY KEY DEFAULT true CHECK (one),
	id  text NOT NULL
);

-- The oracle. The sequence counts in timestamps; a step of it is what most draws
-- take. It may fall back in a crash, so no timestamp above the bound, which is
-- flushed, is ever handed out, and the first draw of an incarnation starts above
-- the bound.
CREATE SEQUENCE {{schema}}.clock AS bigint INCREMENT 4096 MINVALUE 0 START 0 CACHE 1;
CREATE TABLE {{schema}}.oracle (
	one         boolean PRIMARY KEY DEFAULT true CHECK (one),
	bound       bigint NOT NULL,
	incarnation text NOT NULL
) WITH (fillfactor = 50);
INSERT INTO {{schema}}.oracle (bound, incarnation) VALUES (0, '');
-- The functions of version 6 of the schema. {{schema}} stands for the quoted name of
-- the schema, {{schema_literal}} for that name within an E'' literal, {{clock_lock}} for the number of the advisory lock that guards the
-- clock. Each function sets the search path (SET search_path = pg_catalog, pg_temp, and SET search_path = pg_catalog, pg_temp SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan too), or refuses any other (session.go), so that
-- every name in it means what is in pg_catalog or in this schema, whoever calls it with
-- whatever search path: a schema in which others may create is never looked into.
--
-- No literal has a backslash, but for E'' ones: a session may have standard_conforming_strings off.

CREATE FUNCTION {{schema}}.incarnation_id() RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
	v text;
BEGIN
	SELECT i.id INTO v FROM {{schema}}.incarnation i;
	IF NOT FOUND THEN
		INSERT INTO {{schema}}.incarnation (id) VALUES (gen_random_uuid()::text) ON CONFLICT DO NOTHING;
		SELECT i.id INTO v FROM {{schema}}.incarnation i;
	END IF;
	RETURN v;
END
$body$;

-- guard refuses what would make the functions below wrong: a snapshot that is
-- older than a statement's start, and a server that only follows another.
CREATE FUNCTION {{schema}}.guard() RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
	IF current_setting('transaction_isolation') <> 'read committed' THEN
		RAISE EXCEPTION 'percolator: the transaction is not read committed' USING ERRCODE = 'PC001';
	END IF;
	IF pg_is_in_recovery() THEN
		RAISE EXCEPTION 'percolator: the server is a standby' USING ERRCODE = 'PC003';
	END IF;
END
$body$;

-- durability sets what the administrator's defaults must not decide.
CREATE FUNCTION {{schema}}.durability(p_deferred boolean) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
	v text := current_setting('synchronous_commit');
BEGIN
	IF p_deferred THEN
		IF v <> 'off' THEN
			v := set_config('synchronous_commit', 'off', true);
		END IF;
	ELSE
		IF v <> 'on' AND v <> 'remote_apply' THEN
			v := set_config('synchronous_commit', 'on', true);
		END IF;
		-- A warning says that the commit was not waited for to the end.
		IF current_setting('client_min_messages') = 'error' THEN
			v := set_config('client_min_messages', 'warning', true);
		END IF;
	END IF;
END
$body$;

-- flush makes everything durable that was committed before. It has to write to the
-- log, because a commit that wrote nothing is not waited for.
CREATE FUNCTION {{schema}}.flush() RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
	PERFORM {{schema}}.guard();
	PERFORM {{schema}}.durability(false);
	PERFORM pg_logical_emit_message(true, 'percolator', '');
END
$body$;

-- draw hands out p_n consecutive timestamps: the first of them, null when the caller
-- has to ask again, and the bound as it is after that.
--
-- Most draws are one step of the sequence, under a shared lock. A draw that finds
-- the sequence behind the clock, or near the bound, or from before a crash, sets
-- it forward under the exclusive lock: setval must never overtake a nextval.
CREATE FUNCTION {{schema}}.draw(p_n bigint, p_lag bigint, p_ahead bigint, OUT first bigint, OUT bound bigint) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
#variable_conflict use_column
DECLARE
	v_last  bigint;
	v_now   bigint := (date_part('epoch', clock_timestamp()) * 1000)::bigint << 18;
	v_bound bigint;
	v_inc   text;
	v_same  boolean;
	v_first bigint;
BEGIN
	PERFORM {{schema}}.guard();
	PERFORM {{schema}}.durability(true);
	IF current_setting('lock_timeout') <> '0' THEN PERFORM set_config('lock_timeout', '0', true); END IF;
	SELECT o.bound, o.incarnation = i.id, c.last_value INTO v_bound, v_same, v_last
		FROM {{schema}}.clock c, {{schema}}.oracle o LEFT JOIN {{schema}}.incarnation i ON true;
	bound := v_bound;
	IF v_same AND p_n <= 4096 AND v_last + p_lag >= v_now AND v_last + greatest(p_ahead / 4, 4096) <= v_bound THEN
		PERFORM pg_advisory_xact_lock_shared('{{clock_lock}}'::bigint);
		v_first := nextval(E'{{schema_literal}}.clock'::regclass);
		IF v_first <= v_bound THEN
			first := v_first - 4095;
		END IF;
		RETURN;
	END IF;
	PERFORM pg_advisory_xact_lock('{{clock_lock}}'::bigint);
	v_inc := {{schema}}.incarnation_id();
	SELECT o.bound, o.incarnation = v_inc INTO v_bound, v_same FROM {{schema}}.oracle o;
	SELECT c.last_value INTO v_last FROM {{schema}}.clock c;
	v_first := greatest(v_last, v_now) + 1;
	IF NOT v_same THEN
		v_first := greatest(v_first, v_bound + 1);
	END IF;
	v_last := v_first + p_n - 1;
	PERFORM setval(E'{{schema_literal}}.clock'::regclass, v_last);
	IF NOT v_same OR v_last + p_ahead / 2 > v_bound THEN
		v_bound := v_last + p_ahead;
		UPDATE {{schema}}.oracle SET bound = v_bound, incarnation = v_inc;
		PERFORM {{schema}}.durability(false);
	END IF;
	first := v_first;
	bound := v_bound;
END
$body$;

-- past_entries takes a bundle apart: see cell.past.
CREATE FUNCTION {{schema}}.past_entries(p_vals bytea) RETURNS TABLE (ts bigint, entry bytea) LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
	v_at  integer := 1;
	v_len integer;
BEGIN
	WHILE v_at <= length(p_vals) LOOP
		v_len := 12 + ('x' || encode(substr(p_vals, v_at + 8, 4), 'hex'))::bit(32)::integer;
		ts := ('x' || encode(substr(p_vals, v_at, 8), 'hex'))::bit(64)::bigint;
		entry := substr(p_vals, v_at, v_len);
		RETURN NEXT;
		v_at := v_at + v_len;
	END LOOP;
END
$body$;

CREATE FUNCTION {{schema}}.past_entry(p_ts bigint, p_val bytea) RETURNS bytea LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS
	$body$ SELECT int8send(p_ts) || int4send(coalesce(length(p_val), 0)) || coalesce(p_val, '') $body$;

-- past_without gives a bundle without the writes from p_lo to p_hi, null when none is
-- left, and past_lowest the oldest timestamp of one.
CREATE FUNCTION {{schema}}.past_without(p_vals bytea, p_lo bigint, p_hi bigint) RETURNS bytea LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
	RETURN (SELECT string_agg(e.entry, '' ORDER BY e.ts DESC) FROM {{schema}}.past_entries(p_vals) e WHERE e.ts NOT BETWEEN p_lo AND p_hi);
END
$body$;

CREATE FUNCTION {{schema}}.past_lowest(p_vals bytea) RETURNS bigint LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
	RETURN (SELECT min(e.ts) FROM {{schema}}.past_entries(p_vals) e);
END
$body$;

-- past_put adds an older write of a cell to the table past, or puts it over the one
-- with its timestamp. The caller holds the cell, whose own past is empty.
CREATE FUNCTION {{schema}}.past_put(p_tab bytea, p_key bytea, p_col bytea, p_ts bigint, p_val bytea) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $body$
BEGIN
	UPDATE {{schema}}.past o SET vals = (
		SELECT string_agg(e.entry, '' ORDER BY e.ts DESC) FROM (
			SELECT x.ts, x.entry FROM {{schema}}.past_entries(o.vals) x WHERE x.ts <> p_ts
			UNION ALL SELECT p_ts, {{schema}}.past_entry(p_ts, p_val)
		) e)
	WHERE o.tab = p_tab AND o.key = p_key AND o.col = p_col AND o.lo <= p_ts AND o.hi >= p_ts;
	IF NOT FOUND THEN
		INSERT INTO {{schema}}.past (tab, key, col, lo, hi, vals)
		VALUES (p_tab, p_key, p_col, p_ts, p_ts, {{schema}}.past_entry(p_ts, p_val));
	END IF;
END
$body$;

-- past_cut removes the older writes of a cell from p_lo to p_hi from the table past.
-- The caller holds the cell.
CREATE FUNCTION {{schema}}.past_cut(p_tab bytea, p_key bytea, p_col bytea, p_lo bigint, p_hi bigint) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $body$
BEGIN
	DELETE FROM {{schema}}.past o
	WHERE o.tab = p_tab AND o.key = p_key AND o.col = p_col AND o.lo BETWEEN p_lo AND p_hi AND o.hi <= p_hi;
	IF EXISTS (SELECT FROM {{schema}}.past o
		WHERE o.tab = p_tab AND o.key = p_key AND o.col = p_col AND o.lo <= p_hi AND o.hi >= p_lo)
	THEN
		-- Only the two at the ends of the range are left.
		WITH cut AS MATERIALIZED (
			SELECT o.lo, min(e.ts) FILTER (WHERE e.ts NOT BETWEEN p_lo AND p_hi) AS lowest,
				max(e.ts) FILTER (WHERE e.ts NOT BETWEEN p_lo AND p_hi) AS highest,
				string_agg(e.entry, '' ORDER BY e.ts DESC) FILTER (WHERE e.ts NOT BETWEEN p_lo AND p_hi) AS vals
			FROM {{schema}}.past o CROSS JOIN LATERAL {{schema}}.past_entries(o.vals) e
			WHERE o.tab = p_tab AND o.key = p_key AND o.col = p_col AND o.lo <= p_hi AND o.hi >= p_lo
			GROUP BY o.lo
		), gone AS (
			DELETE FROM {{schema}}.past o USING cut
			WHERE cut.vals IS NULL AND o.tab = p_tab AND o.key = p_key AND o.col = p_col AND o.lo = cut.lo
		)
		UPDATE {{schema}}.past o SET lo = cut.lowest, hi = cut.highest, vals = cut.vals FROM cut
		WHERE cut.vals IS NOT NULL AND o.tab = p_tab AND o.key = p_key AND o.col = p_col AND o.lo = cut.lo;
	END IF;
END
$body$;

-- scan_page answers the picks for the next rows in key order that matched when it looked, at
-- most p_n of them. It looks at p_look lines of each table at most, and takes rows only until
-- they have about p_bytes; so it may stop before it found anything. The first line says where the next
-- page begins: its key is the next p_lo, or in reverse the next p_hi, and null where there is nothing
-- more. A row is matched as a whole, at one moment: one of which p_look did not show all is
-- left to the next page, and the caller looks further where that one makes no headway.
--
-- Of older writes it looks at the ends of bundles only, and the caller selects again. p_deep says that all older
-- writes are asked for, so that they count in p_bytes. Without p_read it answers the keys alone, one in each line.
--
-- It passes over notifications, which are in another order. Whoever asks for them too finds their rows with
-- scan_slots, asks here for the keys of the others, and reads all of them.
CREATE FUNCTION {{schema}}.scan_page(p_tab bytea, p_lo bytea, p_hi bytea, p_reverse boolean, p_n bigint, p_look bigint, p_bytes bigint,
	p_deep boolean, p_read boolean, p_mask integer, p_fam smallint[], p_col bytea[], p_from bigint[], p_to bigint[], p_lim bigint[])
RETURNS TABLE (key bytea, fam smallint, col bytea, ts bigint, val bytea)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan SET enable_sort = off SET enable_hashagg = off AS $body$
#variable_conflict use_column
DECLARE
	v_keys  bytea[] := '{}';
	v_sizes bigint[] := '{}';
	v_stop  bytea;
	t_keys  bytea[];
	t_sizes bigint[];
	t_m     boolean[];
	t_last  bigint;
	t_n     integer;
	t_stop  bytea;
	v_bytes bigint := 0;
	v_i     integer[];
	v_tab   bytea[];
	v_key   bytea[];
	v_fam   smallint[];
	v_col   bytea[];
	v_from  bigint[];
	v_to    bigint[];
	v_lim   bigint[];
BEGIN
	IF pg_is_in_recovery() THEN
		PERFORM {{schema}}.guard();
	END IF;
	IF (p_mask & 22) <> 0 THEN
		IF p_reverse THEN
SELECT array_agg(k.key), array_agg(k.m), array_agg(k.size), max(k.n) INTO t_keys, t_m, t_sizes, t_last FROM (
			SELECT g.key, bool_or(g.m) AS m, sum(g.size)::bigint AS size, max(g.n) AS n FROM (
				SELECT x.key, x.m, x.size, row_number() OVER (ORDER BY x.key DESC ROWS UNBOUNDED PRECEDING) AS n FROM (
					SELECT c.key, EXISTS (SELECT FROM unnest(p_fam, p_col, p_from, p_to) AS p(fam, col, lo, hi)
	WHERE (p.col IS NULL OR p.col = c.col) AND CASE p.fam
		WHEN 1 THEN c.lock_ts BETWEEN p.lo AND p.hi
		WHEN 4 THEN c.mark_ts BETWEEN p.lo AND p.hi
		WHEN 2 THEN c.write_ts >= p.lo AND p.lo <= p.hi AND (c.write_ts <= p.hi OR c.past_lo <= p.hi OR
			(SELECT o.hi FROM {{schema}}.past o WHERE o.tab = c.tab AND o.key = c.key AND o.col = c.col AND o.lo <= p.hi
				ORDER BY o.lo DESC LIMIT 1) >= p.lo)
		ELSE false END OFFSET 0) AS m, 64 + coalesce(octet_length(c.lock_val), 0) + coalesce(octet_length(c.write_val), 0) + coalesce(octet_length(c.mark_val), 0) +
		coalesce(octet_length(c.past), 0) + CASE WHEN p_deep THEN (SELECT coalesce(sum(octet_length(o.vals)), 0) FROM {{schema}}.past o
			WHERE o.tab = c.tab AND o.key = c.key AND o.col = c.col) ELSE 0 END AS size FROM {{schema}}.cell c
					WHERE c.tab = p_tab AND c.key >= p_lo AND c.key < p_hi ORDER BY c.key DESC LIMIT p_look
				) x
			) g GROUP BY g.key HAVING bool_or(g.m) OR max(g.n) = p_look ORDER BY g.key DESC LIMIT p_n
		) k;
ELSE
SELECT array_agg(k.key), array_agg(k.m), array_agg(k.size), max(k.n) INTO t_keys, t_m, t_sizes, t_last FROM (
			SELECT g.key, bool_or(g.m) AS m, sum(g.size)::bigint AS size, max(g.n) AS n FROM (
				SELECT x.key, x.m, x.size, row_number() OVER (ORDER BY x.key ASC ROWS UNBOUNDED PRECEDING) AS n FROM (
					SELECT c.key, EXISTS (SELECT FROM unnest(p_fam, p_col, p_from, p_to) AS p(fam, col, lo, hi)
	WHERE (p.col IS NULL OR p.col = c.col) AND CASE p.fam
		WHEN 1 THEN c.lock_ts BETWEEN p.lo AND p.hi
		WHEN 4 THEN c.mark_ts BETWEEN p.lo AND p.hi
		WHEN 2 THEN c.write_ts >= p.lo AND p.lo <= p.hi AND (c.write_ts <= p.hi OR c.past_lo <= p.hi OR
			(SELECT o.hi FROM {{schema}}.past o WHERE o.tab = c.tab AND o.key = c.key AND o.col = c.col AND o.lo <= p.hi
				ORDER BY o.lo DESC LIMIT 1) >= p.lo)
		ELSE false END OFFSET 0) AS m, 64 + coalesce(octet_length(c.lock_val), 0) + coalesce(octet_length(c.write_val), 0) + coalesce(octet_length(c.mark_val), 0) +
		coalesce(octet_length(c.past), 0) + CASE WHEN p_deep THEN (SELECT coalesce(sum(octet_length(o.vals)), 0) FROM {{schema}}.past o
			WHERE o.tab = c.tab AND o.key = c.key AND o.col = c.col) ELSE 0 END AS size FROM {{schema}}.cell c
					WHERE c.tab = p_tab AND c.key >= p_lo AND c.key < p_hi ORDER BY c.key ASC LIMIT p_look
				) x
			) g GROUP BY g.key HAVING bool_or(g.m) OR max(g.n) = p_look ORDER BY g.key ASC LIMIT p_n
		) k;
END IF;
		t_n := coalesce(cardinality(t_keys), 0);
		IF t_n = p_n OR t_last = p_look THEN
			t_stop := CASE WHEN t_m[t_n] <> p_reverse THEN t_keys[t_n] || decode('00', 'hex') ELSE t_keys[t_n] END;
			IF NOT t_m[t_n] THEN
				t_n := t_n - 1;
			END IF;
			v_stop := CASE WHEN p_reverse THEN greatest(v_stop, t_stop) ELSE least(v_stop, t_stop) END;
		END IF;
		v_keys := v_keys || t_keys[1:t_n];
		v_sizes := v_sizes || t_sizes[1:t_n];
	END IF;
	IF (p_mask & 8) <> 0 THEN
		IF p_reverse THEN
SELECT array_agg(k.key), array_agg(k.m), array_agg(k.size), max(k.n) INTO t_keys, t_m, t_sizes, t_last FROM (
			SELECT g.key, bool_or(g.m) AS m, sum(g.size)::bigint AS size, max(g.n) AS n FROM (
				SELECT x.key, x.m, x.size, row_number() OVER (ORDER BY x.key DESC ROWS UNBOUNDED PRECEDING) AS n FROM (
					SELECT c.key, EXISTS (SELECT FROM unnest(p_fam, p_col, p_from, p_to) AS p(fam, col, lo, hi)
	WHERE p.fam = 3 AND (p.col IS NULL OR p.col = c.col) AND c.ts BETWEEN p.lo AND p.hi OFFSET 0) AS m, 64 + coalesce(octet_length(c.val), 0) AS size FROM {{schema}}.data c
					WHERE c.tab = p_tab AND c.key >= p_lo AND c.key < p_hi ORDER BY c.key DESC LIMIT p_look
				) x
			) g GROUP BY g.key HAVING bool_or(g.m) OR max(g.n) = p_look ORDER BY g.key DESC LIMIT p_n
		) k;
ELSE
SELECT array_agg(k.key), array_agg(k.m), array_agg(k.size), max(k.n) INTO t_keys, t_m, t_sizes, t_last FROM (
			SELECT g.key, bool_or(g.m) AS m, sum(g.size)::bigint AS size, max(g.n) AS n FROM (
				SELECT x.key, x.m, x.size, row_number() OVER (ORDER BY x.key ASC ROWS UNBOUNDED PRECEDING) AS n FROM (
					SELECT c.key, EXISTS (SELECT FROM unnest(p_fam, p_col, p_from, p_to) AS p(fam, col, lo, hi)
	WHERE p.fam = 3 AND (p.col IS NULL OR p.col = c.col) AND c.ts BETWEEN p.lo AND p.hi OFFSET 0) AS m, 64 + coalesce(octet_length(c.val), 0) AS size FROM {{schema}}.data c
					WHERE c.tab = p_tab AND c.key >= p_lo AND c.key < p_hi ORDER BY c.key ASC LIMIT p_look
				) x
			) g GROUP BY g.key HAVING bool_or(g.m) OR max(g.n) = p_look ORDER BY g.key ASC LIMIT p_n
		) k;
END IF;
		t_n := coalesce(cardinality(t_keys), 0);
		IF t_n = p_n OR t_last = p_look THEN
			t_stop := CASE WHEN t_m[t_n] <> p_reverse THEN t_keys[t_n] || decode('00', 'hex') ELSE t_keys[t_n] END;
			IF NOT t_m[t_n] THEN
				t_n := t_n - 1;
			END IF;
			v_stop := CASE WHEN p_reverse THEN greatest(v_stop, t_stop) ELSE least(v_stop, t_stop) END;
		END IF;
		v_keys := v_keys || t_keys[1:t_n];
		v_sizes := v_sizes || t_sizes[1:t_n];
	END IF;
	IF (p_mask & (p_mask - 1)) <> 0 THEN
		-- Those up to where all of the tables were looked at.
		IF p_reverse THEN
			SELECT array_agg(m.k), array_agg(m.s) INTO v_keys, v_sizes FROM (
				SELECT u.k, sum(u.s)::bigint AS s FROM unnest(v_keys, v_sizes) AS u(k, s)
				WHERE v_stop IS NULL OR u.k >= v_stop GROUP BY u.k ORDER BY u.k DESC) m;
		ELSE
			SELECT array_agg(m.k), array_agg(m.s) INTO v_keys, v_sizes FROM (
				SELECT u.k, sum(u.s)::bigint AS s FROM unnest(v_keys, v_sizes) AS u(k, s)
				WHERE v_stop IS NULL OR u.k < v_stop GROUP BY u.k ORDER BY u.k) m;
		END IF;
	END IF;
	FOR j IN 1 .. coalesce(cardinality(v_keys), 0) LOOP
		v_bytes := v_bytes + v_sizes[j];
		IF j > 1 AND (v_bytes > p_bytes OR j > p_n) THEN
			v_keys := v_keys[1:j - 1];
			v_stop := CASE WHEN p_reverse THEN v_keys[j - 1] ELSE v_keys[j - 1] || decode('00', 'hex') END;
			EXIT;
		END IF;
	END LOOP;
	RETURN QUERY SELECT v_stop, 0::smallint, NULL::bytea, NULL::bigint, NULL::bytea;
	IF coalesce(cardinality(v_keys), 0) = 0 THEN
		RETURN;
	END IF;
	IF NOT p_read THEN
		RETURN QUERY SELECT k, 0::smallint, NULL::bytea, NULL::bigint, NULL::bytea FROM unnest(v_keys) k;
		RETURN;
	END IF;
	SELECT array_agg(k.i ORDER BY k.i, p.n), array_agg(p_tab), array_agg(k.key ORDER BY k.i, p.n), array_agg(p.fam ORDER BY k.i, p.n),
		array_agg(p.col ORDER BY k.i, p.n), array_agg(p.lo ORDER BY k.i, p.n), array_agg(p.hi ORDER BY k.i, p.n), array_agg(p.lim ORDER BY k.i, p.n)
	INTO v_i, v_tab, v_key, v_fam, v_col, v_from, v_to, v_lim
	FROM unnest(v_keys) WITH ORDINALITY AS k(key, i)
	CROSS JOIN unnest(p_fam, p_col, p_from, p_to, p_lim) WITH ORDINALITY AS p(fam, col, lo, hi, lim, n);
	RETURN QUERY SELECT v_keys[r.i], r.fam, r.col, r.ts, r.val
		FROM {{schema}}.read_any(p_mask, v_i, v_tab, v_key, v_fam, v_col, v_from, v_to, v_lim, NULL) r;
END
$body$;

-- scan_slots answers the notifications that match in ranges of slots, in the order of slots and rows: those of the rows
-- from p_lo up to p_hi, and in the first slot of the first range, from p_key on. It looks at p_look lines at
-- most, and takes lines only until they have about p_bytes. The line at which it stopped has stop, and comes
-- without a timestamp where it does not match; none has stop where there is nothing more. The lines of its row may
-- go on after it, so the caller begins again with that row, and looks further where that row alone fills a page.
--
-- The order of the ranges is that of the lines: a nested loop takes one range after the other, and stops with
-- the last line that it may look at. So nothing is sorted, which would look at the lines of every range.
CREATE FUNCTION {{schema}}.scan_slots(p_tab bytea, p_first integer[], p_last integer[], p_key bytea, p_lo bytea, p_hi bytea, p_look bigint, p_bytes bigint,
	p_fam smallint[], p_col bytea[], p_from bigint[], p_to bigint[])
RETURNS TABLE (slot integer, key bytea, col bytea, ts bigint, val bytea, stop boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan SET enable_sort = off SET enable_hashagg = off AS $body$
#variable_conflict use_column
DECLARE
	v_slot  integer := p_first[1];
	v_at    integer;
	v_found integer;
	v_width integer := 64;
	v_began timestamptz := clock_timestamp();
BEGIN
	IF pg_is_in_recovery() THEN
		PERFORM {{schema}}.guard();
	END IF;
	-- The ranges before the first notification hold none, and often it is the only one or lies behind them all. But
	-- the index keeps what is left of notifications that are gone until a vacuum, in all slots, and to pass all of that
	-- may take much longer than to pass what is in these ranges. So the search for the first one is given up soon.
	LOOP
		SELECT n.slot INTO v_found FROM {{schema}}.notify n
		WHERE n.tab = p_tab AND n.slot <= least(v_slot + v_width - 1, p_last[cardinality(p_last)]) AND (n.slot, n.key) >= (v_slot, CASE WHEN v_slot = p_first[1] THEN p_key ELSE '' END)
		ORDER BY n.slot, n.key LIMIT 1;
		IF FOUND THEN
			v_slot := v_found;
			EXIT;
		END IF;
		v_slot := v_slot + v_width;
		v_width := v_width * 2;
		EXIT WHEN v_slot > p_last[cardinality(p_last)] OR clock_timestamp() > v_began + interval '2 milliseconds';
	END LOOP;
	v_at := width_bucket(v_slot - 1, p_last) + 1;
	IF v_at > cardinality(p_last) THEN
		RETURN;
	END IF;
	RETURN QUERY
	SELECT g.slot, g.key, CASE WHEN g.m THEN g.col END, CASE WHEN g.m THEN g.ts END, CASE WHEN g.m THEN g.val END, g.n = p_look OR g.bytes >= p_bytes
	FROM (
		SELECT x.*, row_number() OVER (ROWS UNBOUNDED PRECEDING) AS n,
			sum(CASE WHEN x.m THEN x.size ELSE 0 END) OVER (ROWS UNBOUNDED PRECEDING) AS bytes
		FROM (
			SELECT c.slot, c.key, c.col, c.ts, c.val, c.key >= p_lo AND c.key < p_hi AND EXISTS (SELECT FROM unnest(p_fam, p_col, p_from, p_to) AS p(fam, col, lo, hi)
	WHERE p.fam = 5 AND (p.col IS NULL OR p.col = c.col) AND c.ts BETWEEN p.lo AND p.hi OFFSET 0) AS m, 64 + coalesce(octet_length(c.val), 0) AS size
			FROM unnest(p_first[v_at:], p_last[v_at:]) WITH ORDINALITY AS r(lo, hi, i)
			CROSS JOIN LATERAL (
				SELECT n.* FROM {{schema}}.notify n
				WHERE n.tab = p_tab AND n.slot <= r.hi AND (n.slot, n.key) >= (r.lo, CASE WHEN v_at = 1 AND r.i = 1 THEN p_key ELSE '' END)
				ORDER BY n.slot, n.key, n.col, n.ts LIMIT p_look
			) c LIMIT p_look
		) x
	) g WHERE CASE WHEN g.m THEN g.bytes - g.size < p_bytes ELSE g.n = p_look AND g.bytes < p_bytes END;
END
$body$;

-- next_table finds the first table after p_after in any of the three places, by one probe
-- of each index.
CREATE FUNCTION {{schema}}.next_table(p_after bytea) RETURNS bytea LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $body$
BEGIN
	RETURN (SELECT t.tab FROM (
		(SELECT c.tab FROM {{schema}}.cell c WHERE c.tab > p_after ORDER BY c.tab LIMIT 1) UNION ALL
		(SELECT c.tab FROM {{schema}}.data c WHERE c.tab > p_after ORDER BY c.tab LIMIT 1) UNION ALL
		(SELECT c.tab FROM {{schema}}.notify c WHERE c.tab > p_after ORDER BY c.tab LIMIT 1)) t
		ORDER BY t.tab LIMIT 1);
END
$body$;

-- sample_keys cuts a table by a sample of the pages of all tables: 300 pages, or 32 for each part where
-- that is more, up to 8192, whatever their number. The boundaries are the quantiles of the sample.
CREATE FUNCTION {{schema}}.sample_keys(p_tab bytea, p_fractions double precision[]) RETURNS TABLE (key bytea)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $body$
#variable_conflict use_column
BEGIN
	IF pg_is_in_recovery() THEN
		PERFORM {{schema}}.guard();
	END IF;
	RETURN QUERY SELECT DISTINCT s.k FROM (
		SELECT unnest(percentile_disc(p_fractions) WITHIN GROUP (ORDER BY c.key)) AS k
		FROM {{schema}}.cell c TABLESAMPLE SYSTEM (
			(SELECT least(100, 100.0 * least(8192, greatest(300, 32 * cardinality(p_fractions))) / greatest(1,
				pg_relation_size(E'{{schema_literal}}.cell'::regclass) / current_setting('block_size')::bigint)))
		) WHERE c.tab = p_tab) s
	WHERE s.k > (SELECT c.key FROM {{schema}}.cell c WHERE c.tab = p_tab ORDER BY c.key LIMIT 1)
	ORDER BY s.k;
END
$body$;
-- The functions that most calls are, and those of schema_apply.sql and schema_general.sql, are made twice: once
-- with clauses that set what they need for the time of a call, for any session; and once without, named ..._ready,
-- since the clauses cost more than a short call itself. Those are for sessions that have the settings already, and
-- refuse others at their beginning. Before that has been looked at, such a function may run in any session: so everything up to there
-- is written with its schema, the types of variables and operators too, and a variable has no default there.

-- read_point reads single columns: lock, mark, newest write, and where that is
-- above p_ts, the bundle with the newest that is not.
CREATE FUNCTION {{schema}}.read_point(p_tab bytea[], p_key bytea[], p_col bytea[], p_ts bigint[])
RETURNS TABLE (i integer, lock_ts bigint, lock_val bytea, mark_ts bigint, mark_val bytea,
	write_ts bigint, write_val bytea, past bytea)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $body$
#variable_conflict use_column
BEGIN
	
	IF pg_is_in_recovery() THEN
		PERFORM {{schema}}.guard();
	END IF;
	RETURN QUERY
	SELECT u.i::integer, c.lock_ts, c.lock_val, c.mark_ts, c.mark_val, c.write_ts, c.write_val,
		CASE WHEN c.write_ts > u.ts THEN
			CASE WHEN c.past_lo <= u.ts THEN c.past
			ELSE (
				SELECT o.vals FROM {{schema}}.past o
				WHERE o.tab = u.tab AND o.key = u.key AND o.col = u.col AND o.lo <= u.ts
				ORDER BY o.lo DESC LIMIT 1
			) END
		END
	FROM unnest(p_tab, p_key, p_col, p_ts) WITH ORDINALITY AS u(tab, key, col, ts, i)
	CROSS JOIN LATERAL (
		SELECT * FROM {{schema}}.cell c WHERE c.tab = u.tab AND c.key = u.key AND c.col = u.col OFFSET 0
	) c;
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
CREATE FUNCTION {{schema}}.snapshot_point(p_lag bigint, p_ahead bigint, p_bound bigint, p_ask bigint[],
	p_tab bytea[], p_key bytea[], p_col bytea[], p_ts bigint[])
RETURNS TABLE (i integer, lock_ts bigint, lock_val bytea, mark_ts bigint, mark_val bytea,
	write_ts bigint, write_val bytea, past bytea)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $body$
#variable_conflict use_column
DECLARE
	v_bound bigint;
	v_last  bigint;
	v_first bigint;
BEGIN
	
	IF current_setting('transaction_isolation') <> 'read committed' OR pg_is_in_recovery() THEN
		PERFORM {{schema}}.guard();
	END IF;
	PERFORM set_config('synchronous_commit', 'off', true);
	IF current_setting('lock_timeout') <> '0' THEN PERFORM set_config('lock_timeout', '0', true); END IF;
	v_bound := coalesce(p_bound, (SELECT o.bound FROM {{schema}}.oracle o JOIN {{schema}}.incarnation n ON n.id = o.incarnation));
	v_last := CASE
	WHEN (pg_catalog.pg_sequence_last_value(E'{{schema_literal}}.clock'::pg_catalog.regclass) OPERATOR(pg_catalog.+) p_lag) OPERATOR(pg_catalog.>=) ((pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000::double precision)::bigint OPERATOR(pg_catalog.<<) 18) THEN
		CASE WHEN pg_catalog.pg_advisory_xact_lock_shared('{{clock_lock}}'::bigint) IS NOT NULL THEN pg_catalog.nextval(E'{{schema_literal}}.clock'::pg_catalog.regclass) END
	WHEN pg_catalog.pg_try_advisory_xact_lock('{{clock_lock}}'::bigint) THEN
		CASE WHEN (greatest(pg_catalog.pg_sequence_last_value(E'{{schema_literal}}.clock'::pg_catalog.regclass), ((pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000::double precision)::bigint OPERATOR(pg_catalog.<<) 18)) OPERATOR(pg_catalog.+) 8192::bigint) OPERATOR(pg_catalog.<=) v_bound THEN
			pg_catalog.setval(E'{{schema_literal}}.clock'::pg_catalog.regclass, greatest(pg_catalog.pg_sequence_last_value(E'{{schema_literal}}.clock'::pg_catalog.regclass), ((pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000::double precision)::bigint OPERATOR(pg_catalog.<<) 18)) OPERATOR(pg_catalog.+) 4096::bigint) END
	END;
	IF v_last <= v_bound - (CASE WHEN p_bound IS NULL THEN p_ahead / 4 ELSE 0 END) THEN
		v_first := v_last - 4095;
	END IF;
	i := 0;
	lock_ts := v_bound;
	write_ts := v_first;
	RETURN NEXT;
	IF v_first IS NULL THEN
		RETURN;
	END IF;
	p_ts := ARRAY(SELECT coalesce(t.ts, v_first + t.ask) FROM unnest(p_ts, p_ask) t(ts, ask));
	RETURN QUERY
	SELECT u.i::integer, c.lock_ts, c.lock_val, c.mark_ts, c.mark_val, c.write_ts, c.write_val,
		CASE WHEN c.write_ts > u.ts THEN
			CASE WHEN c.past_lo <= u.ts THEN c.past
			ELSE (
				SELECT o.vals FROM {{schema}}.past o
				WHERE o.tab = u.tab AND o.key = u.key AND o.col = u.col AND o.lo <= u.ts
				ORDER BY o.lo DESC LIMIT 1
			) END
		END
	FROM unnest(p_tab, p_key, p_col, p_ts) WITH ORDINALITY AS u(tab, key, col, ts, i)
	CROSS JOIN LATERAL (
		SELECT * FROM {{schema}}.cell c WHERE c.tab = u.tab AND c.key = u.key AND c.col = u.col OFFSET 0
	) c;
END
$body$;

-- read_any answers any picks, with more versions than asked for where that is
-- simpler: the caller selects again. Bundles of older writes come as they are, as
-- family 100. p_mask has a bit for each family, so that
-- branches without picks cost nothing; a null p_col means all columns, a null
-- p_lim no limit. p_slot has the slots of the rows whose notifications are picked, and may be
-- null where none are. It is one statement, because a row is answered from one view.
CREATE FUNCTION {{schema}}.read_any(p_mask integer, p_i integer[], p_tab bytea[], p_key bytea[], p_fam smallint[],
	p_col bytea[], p_from bigint[], p_to bigint[], p_lim bigint[], p_slot integer[])
RETURNS TABLE (i integer, fam smallint, col bytea, ts bigint, val bytea)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $body$
#variable_conflict use_column
BEGIN
	
	IF pg_is_in_recovery() THEN
		PERFORM {{schema}}.guard();
	END IF;
	RETURN QUERY
	WITH u AS MATERIALIZED (
		SELECT * FROM unnest(p_i, p_tab, p_key, p_fam, p_col, p_from, p_to, p_lim, p_slot) AS u(i, tab, key, fam, col, lo, hi, lim, slot)
	), cells AS MATERIALIZED (
		SELECT u.i, u.fam, u.tab, u.key, u.lo, u.hi, u.lim, c.col, c.lock_ts, c.lock_val, c.write_ts, c.write_val, c.mark_ts, c.mark_val, c.past_lo, c.past
		FROM u CROSS JOIN LATERAL (
			SELECT * FROM {{schema}}.cell c WHERE c.tab = u.tab AND c.key = u.key AND c.col = u.col OFFSET 0
		) c
		WHERE (p_mask & 22) <> 0 AND u.fam IN (1, 2, 4) AND u.col IS NOT NULL
		UNION ALL
		SELECT u.i, u.fam, u.tab, u.key, u.lo, u.hi, u.lim, c.col, c.lock_ts, c.lock_val, c.write_ts, c.write_val, c.mark_ts, c.mark_val, c.past_lo, c.past
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
	SELECT c.i, 100::smallint, c.col, c.past_lo, c.past FROM cells c
	WHERE c.fam = 2 AND c.write_ts > c.lo AND NOT (c.lim IS NOT DISTINCT FROM 1 AND c.write_ts <= c.hi) AND c.past_lo <= c.hi
	UNION ALL
	SELECT c.i, 100::smallint, c.col, o.lo, o.vals FROM cells c CROSS JOIN LATERAL (
		-- The bundle that may hold the lower end of the range: none before it is looked at.
		SELECT CASE WHEN c.lo > 0 THEN (
			SELECT o.lo FROM {{schema}}.past o
			WHERE o.tab = c.tab AND o.key = c.key AND o.col = c.col AND o.lo <= c.lo ORDER BY o.lo DESC LIMIT 1
		) END AS lo OFFSET 0
	) l CROSS JOIN LATERAL (
		SELECT o.lo, o.vals FROM {{schema}}.past o
		WHERE c.write_ts > c.lo AND NOT (c.lim IS NOT DISTINCT FROM 1 AND (c.write_ts <= c.hi OR coalesce(c.past_lo <= c.hi, false)))
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
-- apply_prewrite runs groups of changes of single cells, each group all or none.
--
-- p_g numbers the group of each cell; cells come in key order, and the update takes
-- them in that order. Whatever is waited for after it might be held by a batch that waits
-- for one of those cells, so that wait is short: then the batch gives way (55P03), and the
-- caller has it done by apply_general, which takes everything in order. p_mode is 0 where each group is one cell, 1 where
-- groups are larger and expected to apply, and 2 where they may well fail and are
-- judged once before anything is touched. Writes that are the newest no longer go to
-- cell.past, and in bundles to the table past; see there. p_ig and p_is require an incarnation of
-- groups. The lists p_s... are the changes of families Data and Notify, and p_smask
-- has the bits of the kinds in them, and 16 where writes are removed. p_sslot has the slots of
-- rows whose notifications change, and may be null where none do.
--
-- The conditions are judged on the snapshot and again, after a wait for a lock, on
-- the row version that is updated, which is why all of them are on that row. When
-- a part of a group only turns out not to hold, everything is rolled back (PC002).
--
-- The first line has i = 0 and the incarnation. Then follows the state of each
-- cell, by its place in the lists, whose group was not applied: the caller works
-- out why.
CREATE FUNCTION {{schema}}.apply_prewrite(p_deferred boolean, p_mode integer, p_ig integer[], p_is text[],
	p_g integer[], p_tab bytea[], p_key bytea[], p_col bytea[], p_lt bigint[], p_lv bytea[], p_clean boolean,
	p_smask integer, p_sg integer[], p_sk smallint[], p_stab bytea[], p_skey bytea[], p_scol bytea[], p_sts bigint[], p_sval bytea[],
	p_sslot integer[])
RETURNS TABLE (i integer, inc text, lock_ts bigint, lock_val bytea, write_ts bigint, write_val bytea, mark_ts bigint, mark_val bytea)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $body$
#variable_conflict use_column
DECLARE
	v_inc  pg_catalog.text;
	v_sync pg_catalog.text;
	v_n    integer;
	v_bad  integer[];
	v_done integer[];
	v_new  integer[];
	v_rest integer[];
	v_not  integer[];
	v_ins  bigint;
BEGIN
	
	-- What the functions guard and durability do, without calling them each time.
	IF current_setting('transaction_isolation') <> 'read committed' OR pg_is_in_recovery() THEN
		PERFORM {{schema}}.guard();
	END IF;
	v_n := coalesce(cardinality(p_g), 0);
	v_sync := current_setting('synchronous_commit');
	IF p_deferred THEN
		IF v_sync <> 'off' THEN
			v_sync := set_config('synchronous_commit', 'off', true);
		END IF;
	ELSE
		IF v_sync <> 'on' AND v_sync <> 'remote_apply' THEN
			v_sync := set_config('synchronous_commit', 'on', true);
		END IF;
		IF current_setting('client_min_messages') = 'error' THEN
			PERFORM set_config('client_min_messages', 'warning', true);
		END IF;
	END IF;
	IF current_setting('lock_timeout') <> '0' THEN PERFORM set_config('lock_timeout', '0', true); END IF;
	SELECT n.id INTO v_inc FROM {{schema}}.incarnation n;
	IF v_inc IS NULL THEN
		v_inc := {{schema}}.incarnation_id();
	END IF;
	IF p_ig IS NOT NULL THEN
		SELECT array_agg(x.g) INTO v_bad FROM unnest(p_ig, p_is) x(g, s) WHERE x.s <> v_inc;
	END IF;
	IF v_n > 0 THEN
		IF p_mode = 2 THEN
			SELECT array_agg(u.g) || v_bad INTO v_bad
			FROM unnest(p_g, p_tab, p_key, p_col, p_lt, p_lv) AS u(g, tab, key, col, lt, lv)
			LEFT JOIN LATERAL (
				SELECT * FROM {{schema}}.cell c WHERE c.tab = u.tab AND c.key = u.key AND c.col = u.col OFFSET 0
			) c ON true
			WHERE (c.lock_ts IS NULL AND (c.write_ts IS NULL OR c.write_ts < u.lt) AND (c.mark_ts IS NULL OR c.mark_ts < u.lt)) IS NOT TRUE;
		END IF;
		WITH up AS (
			UPDATE {{schema}}.cell c SET lock_ts = u.lt, lock_val = u.lv
			FROM unnest(p_g, p_tab, p_key, p_col, p_lt, p_lv) WITH ORDINALITY AS u(g, tab, key, col, lt, lv, i)
			WHERE c.tab = ANY (ARRAY[u.tab]) AND c.key = u.key AND c.col = u.col AND (c.lock_ts IS NULL AND (c.write_ts IS NULL OR c.write_ts < u.lt) AND (c.mark_ts IS NULL OR c.mark_ts < u.lt)) AND (v_bad IS NULL OR u.g <> ALL (v_bad))
			RETURNING u.i
		) SELECT array_agg(up.i::integer) INTO v_done FROM up;
		IF coalesce(cardinality(v_done), 0) < v_n THEN
			PERFORM set_config('lock_timeout', '20ms', true);
			WITH cand AS MATERIALIZED (
				SELECT u.* FROM unnest(p_g, p_tab, p_key, p_col, p_lt, p_lv) WITH ORDINALITY AS u(g, tab, key, col, lt, lv, i)
				LEFT JOIN LATERAL (SELECT * FROM {{schema}}.cell c WHERE c.tab = u.tab AND c.key = u.key AND c.col = u.col OFFSET 0) c ON true
				WHERE c.tab IS NULL AND (c.lock_ts IS NULL AND (c.write_ts IS NULL OR c.write_ts < u.lt) AND (c.mark_ts IS NULL OR c.mark_ts < u.lt)) AND (true) AND (v_bad IS NULL OR u.g <> ALL (v_bad))
			), ins AS (
				INSERT INTO {{schema}}.cell (tab, key, col, lock_ts, lock_val, write_ts, write_val, mark_ts, mark_val)
				SELECT u.tab, u.key, u.col, u.lt, u.lv, NULL, NULL, NULL, NULL FROM cand u ORDER BY u.i
				ON CONFLICT DO NOTHING RETURNING 1
			) SELECT (SELECT array_agg(cand.i::integer) FROM cand), (SELECT count(*) FROM ins) INTO v_new, v_ins;
			IF v_ins < cardinality(v_new) THEN
				RAISE EXCEPTION 'percolator: another client made the row' USING ERRCODE = 'PC002';
			END IF;
			v_done := v_done || v_new;
			IF coalesce(cardinality(v_done), 0) < v_n THEN
				v_rest := ARRAY(SELECT * FROM generate_series(1, v_n) EXCEPT SELECT unnest(v_done));
				v_not := ARRAY(SELECT DISTINCT p_g[r] FROM unnest(v_rest) r);
				IF p_mode > 0 AND EXISTS (SELECT p_g[d] FROM unnest(v_done) d INTERSECT SELECT unnest(v_not)) THEN
					RAISE EXCEPTION 'percolator: a part of a group did not hold' USING ERRCODE = 'PC002';
				END IF;
			END IF;
		END IF;
		IF p_clean AND cardinality(v_done) > 0 THEN
			-- Of the cells that were changed here, and so are held.
			DELETE FROM {{schema}}.cell c USING unnest(p_tab, p_key, p_col) WITH ORDINALITY AS u(tab, key, col, i)
			WHERE u.i = ANY (v_done) AND c.tab = ANY (ARRAY[u.tab]) AND c.key = u.key AND c.col = u.col
				AND c.lock_ts IS NULL AND c.write_ts IS NULL AND c.mark_ts IS NULL;
		END IF;
	END IF;
	
	IF (p_smask & 15) <> 0 THEN
		PERFORM set_config('lock_timeout', '20ms', true);
		v_not := v_not || v_bad;
		IF (p_smask & 1) <> 0 THEN
			INSERT INTO {{schema}}.data AS d (tab, key, col, ts, val)
			SELECT s.tab, s.key, s.col, s.ts, s.val
			FROM unnest(p_sg, p_sk, p_stab, p_skey, p_scol, p_sts, p_sval) s(g, k, tab, key, col, ts, val)
			WHERE s.k = 1 AND (v_not IS NULL OR s.g <> ALL (v_not))
			ON CONFLICT (tab, key, col, ts) DO UPDATE SET val = excluded.val;
		END IF;
		IF (p_smask & 2) <> 0 THEN
			DELETE FROM {{schema}}.data d
			USING unnest(p_sg, p_sk, p_stab, p_skey, p_scol, p_sts) s(g, k, tab, key, col, ts)
			WHERE s.k = 2 AND (v_not IS NULL OR s.g <> ALL (v_not))
				AND d.tab = ANY (ARRAY[s.tab]) AND d.key = s.key AND d.col = s.col AND d.ts = s.ts;
		END IF;
		IF (p_smask & 4) <> 0 THEN
			INSERT INTO {{schema}}.notify AS d (tab, key, col, ts, val, slot)
			SELECT s.tab, s.key, s.col, s.ts, s.val, s.slot
			FROM unnest(p_sg, p_sk, p_stab, p_skey, p_scol, p_sts, p_sval, p_sslot) s(g, k, tab, key, col, ts, val, slot)
			WHERE s.k = 4 AND (v_not IS NULL OR s.g <> ALL (v_not))
			ON CONFLICT (tab, slot, key, col, ts) DO UPDATE SET val = excluded.val;
		END IF;
		IF (p_smask & 8) <> 0 THEN
			DELETE FROM {{schema}}.notify d
			USING unnest(p_sg, p_sk, p_stab, p_skey, p_scol, p_sts, p_sslot) s(g, k, tab, key, col, ts, slot)
			WHERE s.k = 8 AND (v_not IS NULL OR s.g <> ALL (v_not))
				AND d.tab = ANY (ARRAY[s.tab]) AND d.slot = s.slot AND d.key = s.key AND d.col = s.col AND d.ts = s.ts;
		END IF;
	END IF;
	IF v_done IS NULL AND NOT p_deferred THEN
		-- Nothing may have been written, and then the commit waits for nothing; but what was
		-- deferred before is durable when an undeferred batch returns.
		PERFORM pg_logical_emit_message(true, 'percolator', '');
	END IF;
	i := 0;
	inc := v_inc;
	RETURN NEXT;
	IF v_rest IS NOT NULL THEN
		RETURN QUERY SELECT r, NULL::text, c.lock_ts, c.lock_val, c.write_ts, c.write_val, c.mark_ts, c.mark_val
		FROM unnest(v_rest) r LEFT JOIN LATERAL (
			SELECT * FROM {{schema}}.cell c WHERE c.tab = p_tab[r] AND c.key = p_key[r] AND c.col = p_col[r] OFFSET 0
		) c ON true;
	END IF;
END
$body$;
-- apply_commit runs groups of changes of single cells, each group all or none.
--
-- p_g numbers the group of each cell; cells come in key order, and the update takes
-- them in that order. Whatever is waited for after it might be held by a batch that waits
-- for one of those cells, so that wait is short: then the batch gives way (55P03), and the
-- caller has it done by apply_general, which takes everything in order. p_mode is 0 where each group is one cell, 1 where
-- groups are larger and expected to apply, and 2 where they may well fail and are
-- judged once before anything is touched. Writes that are the newest no longer go to
-- cell.past, and in bundles to the table past; see there. p_ig and p_is require an incarnation of
-- groups. The lists p_s... are the changes of families Data and Notify, and p_smask
-- has the bits of the kinds in them, and 16 where writes are removed. p_sslot has the slots of
-- rows whose notifications change, and may be null where none do.
--
-- The conditions are judged on the snapshot and again, after a wait for a lock, on
-- the row version that is updated, which is why all of them are on that row. When
-- a part of a group only turns out not to hold, everything is rolled back (PC002).
--
-- The first line has i = 0 and the incarnation. Then follows the state of each
-- cell, by its place in the lists, whose group was not applied: the caller works
-- out why.
CREATE FUNCTION {{schema}}.apply_commit(p_deferred boolean, p_mode integer, p_ig integer[], p_is text[],
	p_g integer[], p_tab bytea[], p_key bytea[], p_col bytea[], p_lt bigint[], p_wt bigint[], p_wv bytea[], p_clean boolean,
	p_smask integer, p_sg integer[], p_sk smallint[], p_stab bytea[], p_skey bytea[], p_scol bytea[], p_sts bigint[], p_sval bytea[],
	p_sslot integer[])
RETURNS TABLE (i integer, inc text, lock_ts bigint, lock_val bytea, write_ts bigint, write_val bytea, mark_ts bigint, mark_val bytea)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $body$
#variable_conflict use_column
DECLARE
	v_inc  pg_catalog.text;
	v_sync pg_catalog.text;
	v_n    integer;
	v_bad  integer[];
	v_done integer[];
	v_new  integer[];
	v_rest integer[];
	v_not  integer[];
	v_ins  bigint;
BEGIN
	
	-- What the functions guard and durability do, without calling them each time.
	IF current_setting('transaction_isolation') <> 'read committed' OR pg_is_in_recovery() THEN
		PERFORM {{schema}}.guard();
	END IF;
	v_n := coalesce(cardinality(p_g), 0);
	v_sync := current_setting('synchronous_commit');
	IF p_deferred THEN
		IF v_sync <> 'off' THEN
			v_sync := set_config('synchronous_commit', 'off', true);
		END IF;
	ELSE
		IF v_sync <> 'on' AND v_sync <> 'remote_apply' THEN
			v_sync := set_config('synchronous_commit', 'on', true);
		END IF;
		IF current_setting('client_min_messages') = 'error' THEN
			PERFORM set_config('client_min_messages', 'warning', true);
		END IF;
	END IF;
	IF current_setting('lock_timeout') <> '0' THEN PERFORM set_config('lock_timeout', '0', true); END IF;
	SELECT n.id INTO v_inc FROM {{schema}}.incarnation n;
	IF v_inc IS NULL THEN
		v_inc := {{schema}}.incarnation_id();
	END IF;
	IF p_ig IS NOT NULL THEN
		SELECT array_agg(x.g) INTO v_bad FROM unnest(p_ig, p_is) x(g, s) WHERE x.s <> v_inc;
	END IF;
	IF v_n > 0 THEN
		IF p_mode = 2 THEN
			SELECT array_agg(u.g) || v_bad INTO v_bad
			FROM unnest(p_g, p_tab, p_key, p_col, p_lt, p_wt, p_wv) AS u(g, tab, key, col, lt, wt, wv)
			LEFT JOIN LATERAL (
				SELECT * FROM {{schema}}.cell c WHERE c.tab = u.tab AND c.key = u.key AND c.col = u.col OFFSET 0
			) c ON true
			WHERE (c.lock_ts = u.lt AND (c.write_ts IS NULL OR c.write_ts < u.wt)) IS NOT TRUE;
		END IF;
		WITH up AS (
			UPDATE {{schema}}.cell c SET lock_ts = NULL, lock_val = NULL, write_ts = u.wt, write_val = u.wv, past_lo = CASE WHEN c.write_ts IS NOT NULL THEN CASE WHEN length(c.past) < 256 THEN c.past_lo ELSE c.write_ts END ELSE c.past_lo END, past = CASE WHEN c.write_ts IS NOT NULL THEN int8send(c.write_ts) || int4send(coalesce(length(c.write_val), 0)) || coalesce(c.write_val, '') || CASE WHEN length(c.past) < 256 THEN c.past ELSE '' END ELSE c.past END
			FROM unnest(p_g, p_tab, p_key, p_col, p_lt, p_wt, p_wv) WITH ORDINALITY AS u(g, tab, key, col, lt, wt, wv, i)
			WHERE c.tab = ANY (ARRAY[u.tab]) AND c.key = u.key AND c.col = u.col AND (c.lock_ts = u.lt AND (c.write_ts IS NULL OR c.write_ts < u.wt)) AND (v_bad IS NULL OR u.g <> ALL (v_bad))
			RETURNING u.i, u.tab, u.key, u.col, u.wt - 1 AS hi, c.past_lo AS lo, CASE WHEN length(c.past) >= 256 THEN c.past END AS vals
		), spill AS (
			INSERT INTO {{schema}}.past (tab, key, col, lo, hi, vals)
			SELECT up.tab, up.key, up.col, up.lo, up.hi, up.vals FROM up WHERE up.vals IS NOT NULL
		) SELECT array_agg(up.i::integer) INTO v_done FROM up;
		IF coalesce(cardinality(v_done), 0) < v_n THEN
			PERFORM set_config('lock_timeout', '20ms', true);
			NULL;
			v_done := v_done || v_new;
			IF coalesce(cardinality(v_done), 0) < v_n THEN
				v_rest := ARRAY(SELECT * FROM generate_series(1, v_n) EXCEPT SELECT unnest(v_done));
				v_not := ARRAY(SELECT DISTINCT p_g[r] FROM unnest(v_rest) r);
				IF p_mode > 0 AND EXISTS (SELECT p_g[d] FROM unnest(v_done) d INTERSECT SELECT unnest(v_not)) THEN
					RAISE EXCEPTION 'percolator: a part of a group did not hold' USING ERRCODE = 'PC002';
				END IF;
			END IF;
		END IF;
		IF p_clean AND cardinality(v_done) > 0 THEN
			-- Of the cells that were changed here, and so are held.
			DELETE FROM {{schema}}.cell c USING unnest(p_tab, p_key, p_col) WITH ORDINALITY AS u(tab, key, col, i)
			WHERE u.i = ANY (v_done) AND c.tab = ANY (ARRAY[u.tab]) AND c.key = u.key AND c.col = u.col
				AND c.lock_ts IS NULL AND c.write_ts IS NULL AND c.mark_ts IS NULL;
		END IF;
	END IF;
	
	IF (p_smask & 15) <> 0 THEN
		PERFORM set_config('lock_timeout', '20ms', true);
		v_not := v_not || v_bad;
		IF (p_smask & 1) <> 0 THEN
			INSERT INTO {{schema}}.data AS d (tab, key, col, ts, val)
			SELECT s.tab, s.key, s.col, s.ts, s.val
			FROM unnest(p_sg, p_sk, p_stab, p_skey, p_scol, p_sts, p_sval) s(g, k, tab, key, col, ts, val)
			WHERE s.k = 1 AND (v_not IS NULL OR s.g <> ALL (v_not))
			ON CONFLICT (tab, key, col, ts) DO UPDATE SET val = excluded.val;
		END IF;
		IF (p_smask & 2) <> 0 THEN
			DELETE FROM {{schema}}.data d
			USING unnest(p_sg, p_sk, p_stab, p_skey, p_scol, p_sts) s(g, k, tab, key, col, ts)
			WHERE s.k = 2 AND (v_not IS NULL OR s.g <> ALL (v_not))
				AND d.tab = ANY (ARRAY[s.tab]) AND d.key = s.key AND d.col = s.col AND d.ts = s.ts;
		END IF;
		IF (p_smask & 4) <> 0 THEN
			INSERT INTO {{schema}}.notify AS d (tab, key, col, ts, val, slot)
			SELECT s.tab, s.key, s.col, s.ts, s.val, s.slot
			FROM unnest(p_sg, p_sk, p_stab, p_skey, p_scol, p_sts, p_sval, p_sslot) s(g, k, tab, key, col, ts, val, slot)
			WHERE s.k = 4 AND (v_not IS NULL OR s.g <> ALL (v_not))
			ON CONFLICT (tab, slot, key, col, ts) DO UPDATE SET val = excluded.val;
		END IF;
		IF (p_smask & 8) <> 0 THEN
			DELETE FROM {{schema}}.notify d
			USING unnest(p_sg, p_sk, p_stab, p_skey, p_scol, p_sts, p_sslot) s(g, k, tab, key, col, ts, slot)
			WHERE s.k = 8 AND (v_not IS NULL OR s.g <> ALL (v_not))
				AND d.tab = ANY (ARRAY[s.tab]) AND d.slot = s.slot AND d.key = s.key AND d.col = s.col AND d.ts = s.ts;
		END IF;
	END IF;
	IF v_done IS NULL AND NOT p_deferred THEN
		-- Nothing may have been written, and then the commit waits for nothing; but what was
		-- deferred before is durable when an undeferred batch returns.
		PERFORM pg_logical_emit_message(true, 'percolator', '');
	END IF;
	i := 0;
	inc := v_inc;
	RETURN NEXT;
	IF v_rest IS NOT NULL THEN
		RETURN QUERY SELECT r, NULL::text, c.lock_ts, c.lock_val, c.write_ts, c.write_val, c.mark_ts, c.mark_val
		FROM unnest(v_rest) r LEFT JOIN LATERAL (
			SELECT * FROM {{schema}}.cell c WHERE c.tab = p_tab[r] AND c.key = p_key[r] AND c.col = p_col[r] OFFSET 0
		) c ON true;
	END IF;
END
$body$;
-- apply_any runs groups of changes of single cells, each group all or none.
--
-- p_g numbers the group of each cell; cells come in key order, and the update takes
-- them in that order. Whatever is waited for after it might be held by a batch that waits
-- for one of those cells, so that wait is short: then the batch gives way (55P03), and the
-- caller has it done by apply_general, which takes everything in order. p_mode is 0 where each group is one cell, 1 where
-- groups are larger and expected to apply, and 2 where they may well fail and are
-- judged once before anything is touched. Writes that are the newest no longer go to
-- cell.past, and in bundles to the table past; see there. p_ig and p_is require an incarnation of
-- groups. The lists p_s... are the changes of families Data and Notify, and p_smask
-- has the bits of the kinds in them, and 16 where writes are removed. p_sslot has the slots of
-- rows whose notifications change, and may be null where none do.
--
-- The conditions are judged on the snapshot and again, after a wait for a lock, on
-- the row version that is updated, which is why all of them are on that row. When
-- a part of a group only turns out not to hold, everything is rolled back (PC002).
--
-- The first line has i = 0 and the incarnation. Then follows the state of each
-- cell, by its place in the lists, whose group was not applied: the caller works
-- out why.
CREATE FUNCTION {{schema}}.apply_any(p_deferred boolean, p_mode integer, p_ig integer[], p_is text[],
	p_g integer[], p_tab bytea[], p_key bytea[], p_col bytea[], p_lk smallint[], p_lc bigint[], p_wf bigint[], p_mf bigint[], p_le smallint[], p_lt bigint[], p_lv bytea[], p_wt bigint[], p_wv bytea[], p_mt bigint[], p_mv bytea[], p_rl bigint[], p_rh bigint[], p_xl bigint[], p_xh bigint[], p_clean boolean,
	p_smask integer, p_sg integer[], p_sk smallint[], p_stab bytea[], p_skey bytea[], p_scol bytea[], p_sts bigint[], p_sval bytea[],
	p_sslot integer[])
RETURNS TABLE (i integer, inc text, lock_ts bigint, lock_val bytea, write_ts bigint, write_val bytea, mark_ts bigint, mark_val bytea)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $body$
#variable_conflict use_column
DECLARE
	v_inc  pg_catalog.text;
	v_sync pg_catalog.text;
	v_n    integer;
	v_bad  integer[];
	v_done integer[];
	v_new  integer[];
	v_rest integer[];
	v_not  integer[];
	v_ins  bigint;
BEGIN
	
	-- What the functions guard and durability do, without calling them each time.
	IF current_setting('transaction_isolation') <> 'read committed' OR pg_is_in_recovery() THEN
		PERFORM {{schema}}.guard();
	END IF;
	v_n := coalesce(cardinality(p_g), 0);
	v_sync := current_setting('synchronous_commit');
	IF p_deferred THEN
		IF v_sync <> 'off' THEN
			v_sync := set_config('synchronous_commit', 'off', true);
		END IF;
	ELSE
		IF v_sync <> 'on' AND v_sync <> 'remote_apply' THEN
			v_sync := set_config('synchronous_commit', 'on', true);
		END IF;
		IF current_setting('client_min_messages') = 'error' THEN
			PERFORM set_config('client_min_messages', 'warning', true);
		END IF;
	END IF;
	IF current_setting('lock_timeout') <> '0' THEN PERFORM set_config('lock_timeout', '0', true); END IF;
	SELECT n.id INTO v_inc FROM {{schema}}.incarnation n;
	IF v_inc IS NULL THEN
		v_inc := {{schema}}.incarnation_id();
	END IF;
	IF p_ig IS NOT NULL THEN
		SELECT array_agg(x.g) INTO v_bad FROM unnest(p_ig, p_is) x(g, s) WHERE x.s <> v_inc;
	END IF;
	IF v_n > 0 THEN
		IF p_mode = 2 THEN
			SELECT array_agg(u.g) || v_bad INTO v_bad
			FROM unnest(p_g, p_tab, p_key, p_col, p_lk, p_lc, p_wf, p_mf, p_le, p_lt, p_lv, p_wt, p_wv, p_mt, p_mv, p_rl, p_rh, p_xl, p_xh) AS u(g, tab, key, col, lk, lc, wf, mf, le, lt, lv, wt, wv, mt, mv, rl, rh, xl, xh)
			LEFT JOIN LATERAL (
				SELECT * FROM {{schema}}.cell c WHERE c.tab = u.tab AND c.key = u.key AND c.col = u.col OFFSET 0
			) c ON true
			WHERE (CASE u.lk WHEN 0 THEN true WHEN 1 THEN c.lock_ts IS NULL OR c.lock_ts < u.lc
				WHEN 2 THEN c.lock_ts IS DISTINCT FROM u.lc ELSE c.lock_ts = u.lc END
			AND (u.wf IS NULL OR c.write_ts IS NULL OR c.write_ts < u.wf)
			AND (u.mf IS NULL OR c.mark_ts IS NULL OR c.mark_ts < u.mf)
			AND (u.wt IS NULL OR c.write_ts IS NULL OR c.write_ts < u.wt)
			AND (u.rh IS NULL OR c.write_ts IS NULL OR c.write_ts NOT BETWEEN u.rl AND u.rh)) IS NOT TRUE;
		END IF;
		WITH up AS (
			UPDATE {{schema}}.cell c SET lock_ts = CASE u.le WHEN 1 THEN u.lt WHEN 2 THEN nullif(c.lock_ts, u.lt) ELSE c.lock_ts END,
			lock_val = CASE u.le WHEN 1 THEN u.lv WHEN 2 THEN CASE WHEN c.lock_ts = u.lt THEN NULL ELSE c.lock_val END ELSE c.lock_val END,
			write_ts = coalesce(u.wt, c.write_ts),
			write_val = CASE WHEN u.wt IS NULL THEN c.write_val ELSE u.wv END,
			mark_ts = CASE WHEN c.mark_ts BETWEEN u.xl AND u.xh THEN NULL ELSE greatest(c.mark_ts, u.mt) END,
			mark_val = CASE WHEN c.mark_ts BETWEEN u.xl AND u.xh THEN NULL
				WHEN u.mt >= c.mark_ts OR (u.mt IS NOT NULL AND c.mark_ts IS NULL) THEN u.mv ELSE c.mark_val END, past_lo = CASE WHEN u.wt IS NOT NULL AND c.write_ts IS NOT NULL THEN CASE WHEN length(c.past) < 256 THEN c.past_lo ELSE c.write_ts END WHEN c.past_lo <= u.rh THEN CASE WHEN length(c.past) < 256 THEN {{schema}}.past_lowest({{schema}}.past_without(c.past, u.rl, u.rh)) END ELSE c.past_lo END, past = CASE WHEN u.wt IS NOT NULL AND c.write_ts IS NOT NULL THEN int8send(c.write_ts) || int4send(coalesce(length(c.write_val), 0)) || coalesce(c.write_val, '') || CASE WHEN length(c.past) < 256 THEN c.past ELSE '' END WHEN c.past_lo <= u.rh THEN CASE WHEN length(c.past) < 256 THEN {{schema}}.past_without(c.past, u.rl, u.rh) END ELSE c.past END
			FROM unnest(p_g, p_tab, p_key, p_col, p_lk, p_lc, p_wf, p_mf, p_le, p_lt, p_lv, p_wt, p_wv, p_mt, p_mv, p_rl, p_rh, p_xl, p_xh) WITH ORDINALITY AS u(g, tab, key, col, lk, lc, wf, mf, le, lt, lv, wt, wv, mt, mv, rl, rh, xl, xh, i)
			WHERE c.tab = ANY (ARRAY[u.tab]) AND c.key = u.key AND c.col = u.col AND (CASE u.lk WHEN 0 THEN true WHEN 1 THEN c.lock_ts IS NULL OR c.lock_ts < u.lc
				WHEN 2 THEN c.lock_ts IS DISTINCT FROM u.lc ELSE c.lock_ts = u.lc END
			AND (u.wf IS NULL OR c.write_ts IS NULL OR c.write_ts < u.wf)
			AND (u.mf IS NULL OR c.mark_ts IS NULL OR c.mark_ts < u.mf)
			AND (u.wt IS NULL OR c.write_ts IS NULL OR c.write_ts < u.wt)
			AND (u.rh IS NULL OR c.write_ts IS NULL OR c.write_ts NOT BETWEEN u.rl AND u.rh)) AND (v_bad IS NULL OR u.g <> ALL (v_bad))
			RETURNING u.i, u.tab, u.key, u.col, u.wt - 1 AS hi, c.past_lo AS lo, CASE WHEN u.wt IS NOT NULL AND length(c.past) >= 256 THEN c.past END AS vals
		), spill AS (
			INSERT INTO {{schema}}.past (tab, key, col, lo, hi, vals)
			SELECT up.tab, up.key, up.col, up.lo, up.hi, up.vals FROM up WHERE up.vals IS NOT NULL
		) SELECT array_agg(up.i::integer) INTO v_done FROM up;
		IF coalesce(cardinality(v_done), 0) < v_n THEN
			PERFORM set_config('lock_timeout', '20ms', true);
			WITH cand AS MATERIALIZED (
				SELECT u.* FROM unnest(p_g, p_tab, p_key, p_col, p_lk, p_lc, p_wf, p_mf, p_le, p_lt, p_lv, p_wt, p_wv, p_mt, p_mv, p_rl, p_rh, p_xl, p_xh) WITH ORDINALITY AS u(g, tab, key, col, lk, lc, wf, mf, le, lt, lv, wt, wv, mt, mv, rl, rh, xl, xh, i)
				LEFT JOIN LATERAL (SELECT * FROM {{schema}}.cell c WHERE c.tab = u.tab AND c.key = u.key AND c.col = u.col OFFSET 0) c ON true
				WHERE c.tab IS NULL AND (CASE u.lk WHEN 0 THEN true WHEN 1 THEN c.lock_ts IS NULL OR c.lock_ts < u.lc
				WHEN 2 THEN c.lock_ts IS DISTINCT FROM u.lc ELSE c.lock_ts = u.lc END
			AND (u.wf IS NULL OR c.write_ts IS NULL OR c.write_ts < u.wf)
			AND (u.mf IS NULL OR c.mark_ts IS NULL OR c.mark_ts < u.mf)
			AND (u.wt IS NULL OR c.write_ts IS NULL OR c.write_ts < u.wt)
			AND (u.rh IS NULL OR c.write_ts IS NULL OR c.write_ts NOT BETWEEN u.rl AND u.rh)) AND (u.le = 1 OR u.wt IS NOT NULL OR u.mt IS NOT NULL) AND (v_bad IS NULL OR u.g <> ALL (v_bad))
			), ins AS (
				INSERT INTO {{schema}}.cell (tab, key, col, lock_ts, lock_val, write_ts, write_val, mark_ts, mark_val)
				SELECT u.tab, u.key, u.col, CASE u.le WHEN 1 THEN u.lt END, CASE u.le WHEN 1 THEN u.lv END, u.wt, u.wv, u.mt, u.mv FROM cand u ORDER BY u.i
				ON CONFLICT DO NOTHING RETURNING 1
			) SELECT (SELECT array_agg(cand.i::integer) FROM cand), (SELECT count(*) FROM ins) INTO v_new, v_ins;
			IF v_ins < cardinality(v_new) THEN
				RAISE EXCEPTION 'percolator: another client made the row' USING ERRCODE = 'PC002';
			END IF;
			v_done := v_done || v_new;
			IF coalesce(cardinality(v_done), 0) < v_n THEN
				v_rest := ARRAY(SELECT * FROM generate_series(1, v_n) EXCEPT SELECT unnest(v_done));
				v_not := ARRAY(SELECT DISTINCT p_g[r] FROM unnest(v_rest) r);
				IF p_mode > 0 AND EXISTS (SELECT p_g[d] FROM unnest(v_done) d INTERSECT SELECT unnest(v_not)) THEN
					RAISE EXCEPTION 'percolator: a part of a group did not hold' USING ERRCODE = 'PC002';
				END IF;
			END IF;
		END IF;
		IF p_clean AND cardinality(v_done) > 0 THEN
			-- Of the cells that were changed here, and so are held.
			DELETE FROM {{schema}}.cell c USING unnest(p_tab, p_key, p_col) WITH ORDINALITY AS u(tab, key, col, i)
			WHERE u.i = ANY (v_done) AND c.tab = ANY (ARRAY[u.tab]) AND c.key = u.key AND c.col = u.col
				AND c.lock_ts IS NULL AND c.write_ts IS NULL AND c.mark_ts IS NULL;
		END IF;
	END IF;
	IF (p_smask & 16) <> 0 THEN
			DELETE FROM {{schema}}.past o USING unnest(p_g, p_tab, p_key, p_col, p_lk, p_lc, p_wf, p_mf, p_le, p_lt, p_lv, p_wt, p_wv, p_mt, p_mv, p_rl, p_rh, p_xl, p_xh) WITH ORDINALITY AS u(g, tab, key, col, lk, lc, wf, mf, le, lt, lv, wt, wv, mt, mv, rl, rh, xl, xh, i)
			WHERE u.rh IS NOT NULL AND u.i = ANY (v_done) AND o.tab = ANY (ARRAY[u.tab]) AND o.key = u.key AND o.col = u.col AND o.lo BETWEEN u.rl AND u.rh AND o.hi <= u.rh;
			PERFORM {{schema}}.past_cut(u.tab, u.key, u.col, u.rl, u.rh) FROM unnest(p_g, p_tab, p_key, p_col, p_lk, p_lc, p_wf, p_mf, p_le, p_lt, p_lv, p_wt, p_wv, p_mt, p_mv, p_rl, p_rh, p_xl, p_xh) WITH ORDINALITY AS u(g, tab, key, col, lk, lc, wf, mf, le, lt, lv, wt, wv, mt, mv, rl, rh, xl, xh, i)
			WHERE u.rh IS NOT NULL AND u.i = ANY (v_done) AND EXISTS (SELECT FROM {{schema}}.past o WHERE o.tab = u.tab AND o.key = u.key AND o.col = u.col AND o.lo <= u.rh AND o.hi >= u.rl OFFSET 0);
		END IF;
	IF (p_smask & 15) <> 0 THEN
		PERFORM set_config('lock_timeout', '20ms', true);
		v_not := v_not || v_bad;
		IF (p_smask & 1) <> 0 THEN
			INSERT INTO {{schema}}.data AS d (tab, key, col, ts, val)
			SELECT s.tab, s.key, s.col, s.ts, s.val
			FROM unnest(p_sg, p_sk, p_stab, p_skey, p_scol, p_sts, p_sval) s(g, k, tab, key, col, ts, val)
			WHERE s.k = 1 AND (v_not IS NULL OR s.g <> ALL (v_not))
			ON CONFLICT (tab, key, col, ts) DO UPDATE SET val = excluded.val;
		END IF;
		IF (p_smask & 2) <> 0 THEN
			DELETE FROM {{schema}}.data d
			USING unnest(p_sg, p_sk, p_stab, p_skey, p_scol, p_sts) s(g, k, tab, key, col, ts)
			WHERE s.k = 2 AND (v_not IS NULL OR s.g <> ALL (v_not))
				AND d.tab = ANY (ARRAY[s.tab]) AND d.key = s.key AND d.col = s.col AND d.ts = s.ts;
		END IF;
		IF (p_smask & 4) <> 0 THEN
			INSERT INTO {{schema}}.notify AS d (tab, key, col, ts, val, slot)
			SELECT s.tab, s.key, s.col, s.ts, s.val, s.slot
			FROM unnest(p_sg, p_sk, p_stab, p_skey, p_scol, p_sts, p_sval, p_sslot) s(g, k, tab, key, col, ts, val, slot)
			WHERE s.k = 4 AND (v_not IS NULL OR s.g <> ALL (v_not))
			ON CONFLICT (tab, slot, key, col, ts) DO UPDATE SET val = excluded.val;
		END IF;
		IF (p_smask & 8) <> 0 THEN
			DELETE FROM {{schema}}.notify d
			USING unnest(p_sg, p_sk, p_stab, p_skey, p_scol, p_sts, p_sslot) s(g, k, tab, key, col, ts, slot)
			WHERE s.k = 8 AND (v_not IS NULL OR s.g <> ALL (v_not))
				AND d.tab = ANY (ARRAY[s.tab]) AND d.slot = s.slot AND d.key = s.key AND d.col = s.col AND d.ts = s.ts;
		END IF;
	END IF;
	IF v_done IS NULL AND NOT p_deferred THEN
		-- Nothing may have been written, and then the commit waits for nothing; but what was
		-- deferred before is durable when an undeferred batch returns.
		PERFORM pg_logical_emit_message(true, 'percolator', '');
	END IF;
	i := 0;
	inc := v_inc;
	RETURN NEXT;
	IF v_rest IS NOT NULL THEN
		RETURN QUERY SELECT r, NULL::text, c.lock_ts, c.lock_val, c.write_ts, c.write_val, c.mark_ts, c.mark_val
		FROM unnest(v_rest) r LEFT JOIN LATERAL (
			SELECT * FROM {{schema}}.cell c WHERE c.tab = p_tab[r] AND c.key = p_key[r] AND c.col = p_col[r] OFFSET 0
		) c ON true;
	END IF;
END
$body$;
-- apply_general runs groups of mutations of any kind: it locks the cell of every
-- column that they name, one by one in key order, making those that are not there,
-- and only then judges and changes. Each statement sees what was committed before
-- it began, and whoever else changes those rows waits for a lock held here.
--
-- p_tab, p_key, p_col are the cells, in order, and p_slot the slots of their rows. Conditions (p_c...) and edits
-- (p_e...) name their group and their cell by its place in that list; the kinds and
-- families are the numbers of package rowstore. p_cm and p_cn are the mutation in
-- the group and the condition in the mutation, to be reported.
--
-- The first line has g = -1 and the incarnation; then follow the groups that did
-- not hold: the mutation, the condition, and the version that broke it.
CREATE FUNCTION {{schema}}.apply_general(p_deferred boolean, p_tab bytea[], p_key bytea[], p_col bytea[],
	p_cg integer[], p_cm integer[], p_cn integer[], p_ccell integer[], p_ckind smallint[], p_cfam smallint[], p_cts bigint[], p_cis text[],
	p_eg integer[], p_ecell integer[], p_ekind smallint[], p_efam smallint[], p_ets bigint[], p_eto bigint[], p_eval bytea[],
	p_slot integer[])
RETURNS TABLE (g integer, inc text, m integer, n integer, ts bigint, val bytea)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $body$
#variable_conflict use_variable
DECLARE
	v_inc  pg_catalog.text;
	v_cell {{schema}}.cell;
	v_skip integer;
	v_not  integer[];
	v_any  boolean;
	v_ts   bigint;
	v_val  pg_catalog.bytea;
	v_fail boolean;
	v_tab  pg_catalog.bytea;
	v_key  pg_catalog.bytea;
	v_col  pg_catalog.bytea;
	v_hi   bigint;
	r      pg_catalog.record;
BEGIN
	
	v_not := '{}';
	v_any := false;
	PERFORM {{schema}}.guard();
	PERFORM {{schema}}.durability(p_deferred);
	IF current_setting('lock_timeout') <> '0' THEN PERFORM set_config('lock_timeout', '0', true); END IF;
	v_inc := {{schema}}.incarnation_id();
	FOR r IN SELECT u.tab, u.key, u.col FROM unnest(p_tab, p_key, p_col) WITH ORDINALITY AS u(tab, key, col, ord) ORDER BY u.ord LOOP
		LOOP
			PERFORM 1 FROM {{schema}}.cell c WHERE c.tab = r.tab AND c.key = r.key AND c.col = r.col FOR UPDATE;
			EXIT WHEN FOUND;
			INSERT INTO {{schema}}.cell (tab, key, col) VALUES (r.tab, r.key, r.col) ON CONFLICT DO NOTHING;
			EXIT WHEN FOUND;
		END LOOP;
	END LOOP;
	g := -1;
	inc := v_inc;
	RETURN NEXT;
	inc := NULL;

	FOR r IN SELECT * FROM unnest(p_cg, p_cm, p_cn, p_ccell, p_ckind, p_cfam, p_cts, p_cis) AS u(g, m, n, cell, kind, fam, ts, is_) LOOP
		CONTINUE WHEN r.g = v_skip;
		v_ts := NULL;
		v_val := NULL;
		IF r.kind = 4 THEN
			v_fail := r.is_ <> v_inc;
		ELSIF r.fam = 5 THEN
			SELECT d.ts, d.val INTO v_ts, v_val FROM {{schema}}.notify d
			WHERE d.tab = p_tab[r.cell] AND d.slot = p_slot[r.cell] AND d.key = p_key[r.cell] AND d.col = p_col[r.cell] AND d.ts >= r.ts
			ORDER BY d.ts DESC LIMIT 1;
			v_fail := FOUND;
		ELSE
			SELECT * INTO v_cell FROM {{schema}}.cell c WHERE c.tab = p_tab[r.cell] AND c.key = p_key[r.cell] AND c.col = p_col[r.cell];
			IF r.fam = 1 THEN
				v_ts := v_cell.lock_ts;
				v_val := v_cell.lock_val;
			ELSIF r.fam = 2 THEN
				v_ts := v_cell.write_ts;
				v_val := v_cell.write_val;
			ELSE
				v_ts := v_cell.mark_ts;
				v_val := v_cell.mark_val;
			END IF;
			IF r.kind = 1 THEN
				v_fail := coalesce(v_ts >= r.ts, false);
			ELSIF r.kind = 2 THEN
				v_fail := coalesce(v_ts = r.ts, false);
			ELSE
				v_fail := v_ts IS DISTINCT FROM r.ts;
				v_ts := NULL;
				v_val := NULL;
			END IF;
		END IF;
		IF v_fail THEN
			v_skip := r.g;
			v_not := v_not || r.g;
			g := r.g;
			m := r.m;
			n := r.n;
			ts := v_ts;
			val := v_val;
			RETURN NEXT;
		END IF;
	END LOOP;

	FOR r IN SELECT * FROM unnest(p_eg, p_ecell, p_ekind, p_efam, p_ets, p_eto, p_eval) AS u(g, cell, kind, fam, ts, hi, val) LOOP
		CONTINUE WHEN r.g = ANY (v_not);
		v_any := true;
		v_tab := p_tab[r.cell];
		v_key := p_key[r.cell];
		v_col := p_col[r.cell];
		v_hi := CASE r.kind WHEN 3 THEN r.hi ELSE r.ts END;
		IF r.fam = 1 THEN
			IF r.kind = 1 THEN
				UPDATE {{schema}}.cell c SET lock_ts = r.ts, lock_val = r.val WHERE c.tab = v_tab AND c.key = v_key AND c.col = v_col;
			ELSE
				UPDATE {{schema}}.cell c SET lock_ts = NULL, lock_val = NULL
				WHERE c.tab = v_tab AND c.key = v_key AND c.col = v_col AND c.lock_ts BETWEEN r.ts AND v_hi;
			END IF;
		ELSIF r.fam = 4 THEN
			IF r.kind = 1 THEN
				UPDATE {{schema}}.cell c SET mark_ts = r.ts, mark_val = r.val
				WHERE c.tab = v_tab AND c.key = v_key AND c.col = v_col AND (c.mark_ts IS NULL OR c.mark_ts <= r.ts);
			ELSE
				UPDATE {{schema}}.cell c SET mark_ts = NULL, mark_val = NULL
				WHERE c.tab = v_tab AND c.key = v_key AND c.col = v_col AND c.mark_ts BETWEEN r.ts AND v_hi;
			END IF;
		ELSIF r.fam = 2 THEN
			SELECT * INTO v_cell FROM {{schema}}.cell c WHERE c.tab = v_tab AND c.key = v_key AND c.col = v_col;
			IF v_cell.past IS NOT NULL THEN
				-- All older writes in one place.
				IF length(v_cell.past) < 256 THEN
					INSERT INTO {{schema}}.past (tab, key, col, lo, hi, vals)
					VALUES (v_tab, v_key, v_col, v_cell.past_lo, v_cell.write_ts - 1, v_cell.past);
				END IF;
				UPDATE {{schema}}.cell c SET past_lo = NULL, past = NULL WHERE c.tab = v_tab AND c.key = v_key AND c.col = v_col;
			END IF;
			IF r.kind = 1 THEN
				IF v_cell.write_ts > r.ts THEN
					PERFORM {{schema}}.past_put(v_tab, v_key, v_col, r.ts, r.val);
				ELSE
					IF v_cell.write_ts < r.ts THEN
						PERFORM {{schema}}.past_put(v_tab, v_key, v_col, v_cell.write_ts, v_cell.write_val);
					END IF;
					UPDATE {{schema}}.cell c SET write_ts = r.ts, write_val = r.val WHERE c.tab = v_tab AND c.key = v_key AND c.col = v_col;
				END IF;
			ELSE
				PERFORM {{schema}}.past_cut(v_tab, v_key, v_col, r.ts, v_hi);
				IF v_cell.write_ts BETWEEN r.ts AND v_hi THEN
					v_ts := NULL;
					v_val := NULL;
					SELECT e.ts, substr(e.entry, 13) INTO v_ts, v_val FROM (
						SELECT o.vals FROM {{schema}}.past o
						WHERE o.tab = v_tab AND o.key = v_key AND o.col = v_col ORDER BY o.lo DESC LIMIT 1
					) o CROSS JOIN LATERAL {{schema}}.past_entries(o.vals) e ORDER BY e.ts DESC LIMIT 1;
					IF FOUND THEN
						PERFORM {{schema}}.past_cut(v_tab, v_key, v_col, v_ts, v_ts);
					END IF;
					UPDATE {{schema}}.cell c SET write_ts = v_ts, write_val = v_val WHERE c.tab = v_tab AND c.key = v_key AND c.col = v_col;
				END IF;
			END IF;
		ELSIF r.fam = 3 THEN
			IF r.kind = 1 THEN
				INSERT INTO {{schema}}.data AS o (tab, key, col, ts, val) VALUES (v_tab, v_key, v_col, r.ts, r.val)
				ON CONFLICT ON CONSTRAINT data_pkey DO UPDATE SET val = excluded.val;
			ELSE
				DELETE FROM {{schema}}.data o
				WHERE o.tab = v_tab AND o.key = v_key AND o.col = v_col AND o.ts BETWEEN r.ts AND v_hi;
			END IF;
		ELSE
			IF r.kind = 1 THEN
				INSERT INTO {{schema}}.notify AS o (tab, key, col, ts, val, slot) VALUES (v_tab, v_key, v_col, r.ts, r.val, p_slot[r.cell])
				ON CONFLICT ON CONSTRAINT notify_pkey DO UPDATE SET val = excluded.val;
			ELSE
				DELETE FROM {{schema}}.notify o
				WHERE o.tab = v_tab AND o.slot = p_slot[r.cell] AND o.key = v_key AND o.col = v_col AND o.ts BETWEEN r.ts AND v_hi;
			END IF;
		END IF;
	END LOOP;

	DELETE FROM {{schema}}.cell c USING unnest(p_tab, p_key, p_col) AS u(tab, key, col)
	WHERE c.tab = ANY (ARRAY[u.tab]) AND c.key = u.key AND c.col = u.col
		AND c.lock_ts IS NULL AND c.write_ts IS NULL AND c.mark_ts IS NULL;
	IF NOT v_any AND NOT p_deferred THEN
		PERFORM pg_logical_emit_message(true, 'percolator', '');
	END IF;
END
$body$;
-- The functions that most calls are, and those of schema_apply.sql and schema_general.sql, are made twice: once
-- with clauses that set what they need for the time of a call, for any session; and once without, named ..._ready,
-- since the clauses cost more than a short call itself. Those are for sessions that have the settings already, and
-- refuse others at their beginning. Before that has been looked at, such a function may run in any session: so everything up to there
-- is written with its schema, the types of variables and operators too, and a variable has no default there.

-- read_point reads single columns: lock, mark, newest write, and where that is
-- above p_ts, the bundle with the newest that is not.
CREATE FUNCTION {{schema}}.read_point_ready(p_tab bytea[], p_key bytea[], p_col bytea[], p_ts bigint[])
RETURNS TABLE (i integer, lock_ts bigint, lock_val bytea, mark_ts bigint, mark_val bytea,
	write_ts bigint, write_val bytea, past bytea)
LANGUAGE plpgsql  AS $body$
#variable_conflict use_column
BEGIN
	IF pg_catalog.current_setting('search_path') OPERATOR(pg_catalog.<>) 'pg_catalog, pg_temp' THEN
		RAISE EXCEPTION 'percolator: the session is not as the store had set it' USING ERRCODE = 'PC004';
	END IF;
	IF pg_is_in_recovery() THEN
		PERFORM {{schema}}.guard();
	END IF;
	RETURN QUERY
	SELECT u.i::integer, c.lock_ts, c.lock_val, c.mark_ts, c.mark_val, c.write_ts, c.write_val,
		CASE WHEN c.write_ts > u.ts THEN
			CASE WHEN c.past_lo <= u.ts THEN c.past
			ELSE (
				SELECT o.vals FROM {{schema}}.past o
				WHERE o.tab = u.tab AND o.key = u.key AND o.col = u.col AND o.lo <= u.ts
				ORDER BY o.lo DESC LIMIT 1
			) END
		END
	FROM unnest(p_tab, p_key, p_col, p_ts) WITH ORDINALITY AS u(tab, key, col, ts, i)
	CROSS JOIN LATERAL (
		SELECT * FROM {{schema}}.cell c WHERE c.tab = u.tab AND c.key = u.key AND c.col = u.col OFFSET 0
	) c;
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
CREATE FUNCTION {{schema}}.snapshot_point_ready(p_lag bigint, p_ahead bigint, p_bound bigint, p_ask bigint[],
	p_tab bytea[], p_key bytea[], p_col bytea[], p_ts bigint[])
RETURNS TABLE (i integer, lock_ts bigint, lock_val bytea, mark_ts bigint, mark_val bytea,
	write_ts bigint, write_val bytea, past bytea)
LANGUAGE plpgsql  AS $body$
#variable_conflict use_column
DECLARE
	v_bound bigint;
	v_last  bigint;
	v_first bigint;
BEGIN
	IF pg_catalog.current_setting('search_path') OPERATOR(pg_catalog.<>) 'pg_catalog, pg_temp' THEN
		RAISE EXCEPTION 'percolator: the session is not as the store had set it' USING ERRCODE = 'PC004';
	END IF;
	IF current_setting('transaction_isolation') <> 'read committed' OR pg_is_in_recovery() THEN
		PERFORM {{schema}}.guard();
	END IF;
	PERFORM set_config('synchronous_commit', 'off', true);
	IF current_setting('lock_timeout') <> '0' THEN PERFORM set_config('lock_timeout', '0', true); END IF;
	v_bound := coalesce(p_bound, (SELECT o.bound FROM {{schema}}.oracle o JOIN {{schema}}.incarnation n ON n.id = o.incarnation));
	v_last := CASE
	WHEN (pg_catalog.pg_sequence_last_value(E'{{schema_literal}}.clock'::pg_catalog.regclass) OPERATOR(pg_catalog.+) p_lag) OPERATOR(pg_catalog.>=) ((pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000::double precision)::bigint OPERATOR(pg_catalog.<<) 18) THEN
		CASE WHEN pg_catalog.pg_advisory_xact_lock_shared('{{clock_lock}}'::bigint) IS NOT NULL THEN pg_catalog.nextval(E'{{schema_literal}}.clock'::pg_catalog.regclass) END
	WHEN pg_catalog.pg_try_advisory_xact_lock('{{clock_lock}}'::bigint) THEN
		CASE WHEN (greatest(pg_catalog.pg_sequence_last_value(E'{{schema_literal}}.clock'::pg_catalog.regclass), ((pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000::double precision)::bigint OPERATOR(pg_catalog.<<) 18)) OPERATOR(pg_catalog.+) 8192::bigint) OPERATOR(pg_catalog.<=) v_bound THEN
			pg_catalog.setval(E'{{schema_literal}}.clock'::pg_catalog.regclass, greatest(pg_catalog.pg_sequence_last_value(E'{{schema_literal}}.clock'::pg_catalog.regclass), ((pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000::double precision)::bigint OPERATOR(pg_catalog.<<) 18)) OPERATOR(pg_catalog.+) 4096::bigint) END
	END;
	IF v_last <= v_bound - (CASE WHEN p_bound IS NULL THEN p_ahead / 4 ELSE 0 END) THEN
		v_first := v_last - 4095;
	END IF;
	i := 0;
	lock_ts := v_bound;
	write_ts := v_first;
	RETURN NEXT;
	IF v_first IS NULL THEN
		RETURN;
	END IF;
	p_ts := ARRAY(SELECT coalesce(t.ts, v_first + t.ask) FROM unnest(p_ts, p_ask) t(ts, ask));
	RETURN QUERY
	SELECT u.i::integer, c.lock_ts, c.lock_val, c.mark_ts, c.mark_val, c.write_ts, c.write_val,
		CASE WHEN c.write_ts > u.ts THEN
			CASE WHEN c.past_lo <= u.ts THEN c.past
			ELSE (
				SELECT o.vals FROM {{schema}}.past o
				WHERE o.tab = u.tab AND o.key = u.key AND o.col = u.col AND o.lo <= u.ts
				ORDER BY o.lo DESC LIMIT 1
			) END
		END
	FROM unnest(p_tab, p_key, p_col, p_ts) WITH ORDINALITY AS u(tab, key, col, ts, i)
	CROSS JOIN LATERAL (
		SELECT * FROM {{schema}}.cell c WHERE c.tab = u.tab AND c.key = u.key AND c.col = u.col OFFSET 0
	) c;
END
$body$;

-- read_any answers any picks, with more versions than asked for where that is
-- simpler: the caller selects again. Bundles of older writes come as they are, as
-- family 100. p_mask has a bit for each family, so that
-- branches without picks cost nothing; a null p_col means all columns, a null
-- p_lim no limit. p_slot has the slots of the rows whose notifications are picked, and may be
-- null where none are. It is one statement, because a row is answered from one view.
CREATE FUNCTION {{schema}}.read_any_ready(p_mask integer, p_i integer[], p_tab bytea[], p_key bytea[], p_fam smallint[],
	p_col bytea[], p_from bigint[], p_to bigint[], p_lim bigint[], p_slot integer[])
RETURNS TABLE (i integer, fam smallint, col bytea, ts bigint, val bytea)
LANGUAGE plpgsql  AS $body$
#variable_conflict use_column
BEGIN
	IF pg_catalog.current_setting('search_path') OPERATOR(pg_catalog.<>) 'pg_catalog, pg_temp' THEN
		RAISE EXCEPTION 'percolator: the session is not as the store had set it' USING ERRCODE = 'PC004';
	END IF;
	IF pg_is_in_recovery() THEN
		PERFORM {{schema}}.guard();
	END IF;
	RETURN QUERY
	WITH u AS MATERIALIZED (
		SELECT * FROM unnest(p_i, p_tab, p_key, p_fam, p_col, p_from, p_to, p_lim, p_slot) AS u(i, tab, key, fam, col, lo, hi, lim, slot)
	), cells AS MATERIALIZED (
		SELECT u.i, u.fam, u.tab, u.key, u.lo, u.hi, u.lim, c.col, c.lock_ts, c.lock_val, c.write_ts, c.write_val, c.mark_ts, c.mark_val, c.past_lo, c.past
		FROM u CROSS JOIN LATERAL (
			SELECT * FROM {{schema}}.cell c WHERE c.tab = u.tab AND c.key = u.key AND c.col = u.col OFFSET 0
		) c
		WHERE (p_mask & 22) <> 0 AND u.fam IN (1, 2, 4) AND u.col IS NOT NULL
		UNION ALL
		SELECT u.i, u.fam, u.tab, u.key, u.lo, u.hi, u.lim, c.col, c.lock_ts, c.lock_val, c.write_ts, c.write_val, c.mark_ts, c.mark_val, c.past_lo, c.past
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
	SELECT c.i, 100::smallint, c.col, c.past_lo, c.past FROM cells c
	WHERE c.fam = 2 AND c.write_ts > c.lo AND NOT (c.lim IS NOT DISTINCT FROM 1 AND c.write_ts <= c.hi) AND c.past_lo <= c.hi
	UNION ALL
	SELECT c.i, 100::smallint, c.col, o.lo, o.vals FROM cells c CROSS JOIN LATERAL (
		-- The bundle that may hold the lower end of the range: none before it is looked at.
		SELECT CASE WHEN c.lo > 0 THEN (
			SELECT o.lo FROM {{schema}}.past o
			WHERE o.tab = c.tab AND o.key = c.key AND o.col = c.col AND o.lo <= c.lo ORDER BY o.lo DESC LIMIT 1
		) END AS lo OFFSET 0
	) l CROSS JOIN LATERAL (
		SELECT o.lo, o.vals FROM {{schema}}.past o
		WHERE c.write_ts > c.lo AND NOT (c.lim IS NOT DISTINCT FROM 1 AND (c.write_ts <= c.hi OR coalesce(c.past_lo <= c.hi, false)))
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
-- apply_prewrite runs groups of changes of single cells, each group all or none.
--
-- p_g numbers the group of each cell; cells come in key order, and the update takes
-- them in that order. Whatever is waited for after it might be held by a batch that waits
-- for one of those cells, so that wait is short: then the batch gives way (55P03), and the
-- caller has it done by apply_general, which takes everything in order. p_mode is 0 where each group is one cell, 1 where
-- groups are larger and expected to apply, and 2 where they may well fail and are
-- judged once before anything is touched. Writes that are the newest no longer go to
-- cell.past, and in bundles to the table past; see there. p_ig and p_is require an incarnation of
-- groups. The lists p_s... are the changes of families Data and Notify, and p_smask
-- has the bits of the kinds in them, and 16 where writes are removed. p_sslot has the slots of
-- rows whose notifications change, and may be null where none do.
--
-- The conditions are judged on the snapshot and again, after a wait for a lock, on
-- the row version that is updated, which is why all of them are on that row. When
-- a part of a group only turns out not to hold, everything is rolled back (PC002).
--
-- The first line has i = 0 and the incarnation. Then follows the state of each
-- cell, by its place in the lists, whose group was not applied: the caller works
-- out why.
CREATE FUNCTION {{schema}}.apply_prewrite_ready(p_deferred boolean, p_mode integer, p_ig integer[], p_is text[],
	p_g integer[], p_tab bytea[], p_key bytea[], p_col bytea[], p_lt bigint[], p_lv bytea[], p_clean boolean,
	p_smask integer, p_sg integer[], p_sk smallint[], p_stab bytea[], p_skey bytea[], p_scol bytea[], p_sts bigint[], p_sval bytea[],
	p_sslot integer[])
RETURNS TABLE (i integer, inc text, lock_ts bigint, lock_val bytea, write_ts bigint, write_val bytea, mark_ts bigint, mark_val bytea)
LANGUAGE plpgsql  AS $body$
#variable_conflict use_column
DECLARE
	v_inc  pg_catalog.text;
	v_sync pg_catalog.text;
	v_n    integer;
	v_bad  integer[];
	v_done integer[];
	v_new  integer[];
	v_rest integer[];
	v_not  integer[];
	v_ins  bigint;
BEGIN
	IF pg_catalog.current_setting('search_path') OPERATOR(pg_catalog.<>) 'pg_catalog, pg_temp' THEN
		RAISE EXCEPTION 'percolator: the session is not as the store had set it' USING ERRCODE = 'PC004';
	END IF;
	-- What the functions guard and durability do, without calling them each time.
	IF current_setting('transaction_isolation') <> 'read committed' OR pg_is_in_recovery() THEN
		PERFORM {{schema}}.guard();
	END IF;
	v_n := coalesce(cardinality(p_g), 0);
	v_sync := current_setting('synchronous_commit');
	IF p_deferred THEN
		IF v_sync <> 'off' THEN
			v_sync := set_config('synchronous_commit', 'off', true);
		END IF;
	ELSE
		IF v_sync <> 'on' AND v_sync <> 'remote_apply' THEN
			v_sync := set_config('synchronous_commit', 'on', true);
		END IF;
		IF current_setting('client_min_messages') = 'error' THEN
			PERFORM set_config('client_min_messages', 'warning', true);
		END IF;
	END IF;
	IF current_setting('lock_timeout') <> '0' THEN PERFORM set_config('lock_timeout', '0', true); END IF;
	SELECT n.id INTO v_inc FROM {{schema}}.incarnation n;
	IF v_inc IS NULL THEN
		v_inc := {{schema}}.incarnation_id();
	END IF;
	IF p_ig IS NOT NULL THEN
		SELECT array_agg(x.g) INTO v_bad FROM unnest(p_ig, p_is) x(g, s) WHERE x.s <> v_inc;
	END IF;
	IF v_n > 0 THEN
		IF p_mode = 2 THEN
			SELECT array_agg(u.g) || v_bad INTO v_bad
			FROM unnest(p_g, p_tab, p_key, p_col, p_lt, p_lv) AS u(g, tab, key, col, lt, lv)
			LEFT JOIN LATERAL (
				SELECT * FROM {{schema}}.cell c WHERE c.tab = u.tab AND c.key = u.key AND c.col = u.col OFFSET 0
			) c ON true
			WHERE (c.lock_ts IS NULL AND (c.write_ts IS NULL OR c.write_ts < u.lt) AND (c.mark_ts IS NULL OR c.mark_ts < u.lt)) IS NOT TRUE;
		END IF;
		WITH up AS (
			UPDATE {{schema}}.cell c SET lock_ts = u.lt, lock_val = u.lv
			FROM unnest(p_g, p_tab, p_key, p_col, p_lt, p_lv) WITH ORDINALITY AS u(g, tab, key, col, lt, lv, i)
			WHERE c.tab = ANY (ARRAY[u.tab]) AND c.key = u.key AND c.col = u.col AND (c.lock_ts IS NULL AND (c.write_ts IS NULL OR c.write_ts < u.lt) AND (c.mark_ts IS NULL OR c.mark_ts < u.lt)) AND (v_bad IS NULL OR u.g <> ALL (v_bad))
			RETURNING u.i
		) SELECT array_agg(up.i::integer) INTO v_done FROM up;
		IF coalesce(cardinality(v_done), 0) < v_n THEN
			PERFORM set_config('lock_timeout', '20ms', true);
			WITH cand AS MATERIALIZED (
				SELECT u.* FROM unnest(p_g, p_tab, p_key, p_col, p_lt, p_lv) WITH ORDINALITY AS u(g, tab, key, col, lt, lv, i)
				LEFT JOIN LATERAL (SELECT * FROM {{schema}}.cell c WHERE c.tab = u.tab AND c.key = u.key AND c.col = u.col OFFSET 0) c ON true
				WHERE c.tab IS NULL AND (c.lock_ts IS NULL AND (c.write_ts IS NULL OR c.write_ts < u.lt) AND (c.mark_ts IS NULL OR c.mark_ts < u.lt)) AND (true) AND (v_bad IS NULL OR u.g <> ALL (v_bad))
			), ins AS (
				INSERT INTO {{schema}}.cell (tab, key, col, lock_ts, lock_val, write_ts, write_val, mark_ts, mark_val)
				SELECT u.tab, u.key, u.col, u.lt, u.lv, NULL, NULL, NULL, NULL FROM cand u ORDER BY u.i
				ON CONFLICT DO NOTHING RETURNING 1
			) SELECT (SELECT array_agg(cand.i::integer) FROM cand), (SELECT count(*) FROM ins) INTO v_new, v_ins;
			IF v_ins < cardinality(v_new) THEN
				RAISE EXCEPTION 'percolator: another client made the row' USING ERRCODE = 'PC002';
			END IF;
			v_done := v_done || v_new;
			IF coalesce(cardinality(v_done), 0) < v_n THEN
				v_rest := ARRAY(SELECT * FROM generate_series(1, v_n) EXCEPT SELECT unnest(v_done));
				v_not := ARRAY(SELECT DISTINCT p_g[r] FROM unnest(v_rest) r);
				IF p_mode > 0 AND EXISTS (SELECT p_g[d] FROM unnest(v_done) d INTERSECT SELECT unnest(v_not)) THEN
					RAISE EXCEPTION 'percolator: a part of a group did not hold' USING ERRCODE = 'PC002';
				END IF;
			END IF;
		END IF;
		IF p_clean AND cardinality(v_done) > 0 THEN
			-- Of the cells that were changed here, and so are held.
			DELETE FROM {{schema}}.cell c USING unnest(p_tab, p_key, p_col) WITH ORDINALITY AS u(tab, key, col, i)
			WHERE u.i = ANY (v_done) AND c.tab = ANY (ARRAY[u.tab]) AND c.key = u.key AND c.col = u.col
				AND c.lock_ts IS NULL AND c.write_ts IS NULL AND c.mark_ts IS NULL;
		END IF;
	END IF;
	
	IF (p_smask & 15) <> 0 THEN
		PERFORM set_config('lock_timeout', '20ms', true);
		v_not := v_not || v_bad;
		IF (p_smask & 1) <> 0 THEN
			INSERT INTO {{schema}}.data AS d (tab, key, col, ts, val)
			SELECT s.tab, s.key, s.col, s.ts, s.val
			FROM unnest(p_sg, p_sk, p_stab, p_skey, p_scol, p_sts, p_sval) s(g, k, tab, key, col, ts, val)
			WHERE s.k = 1 AND (v_not IS NULL OR s.g <> ALL (v_not))
			ON CONFLICT (tab, key, col, ts) DO UPDATE SET val = excluded.val;
		END IF;
		IF (p_smask & 2) <> 0 THEN
			DELETE FROM {{schema}}.data d
			USING unnest(p_sg, p_sk, p_stab, p_skey, p_scol, p_sts) s(g, k, tab, key, col, ts)
			WHERE s.k = 2 AND (v_not IS NULL OR s.g <> ALL (v_not))
				AND d.tab = ANY (ARRAY[s.tab]) AND d.key = s.key AND d.col = s.col AND d.ts = s.ts;
		END IF;
		IF (p_smask & 4) <> 0 THEN
			INSERT INTO {{schema}}.notify AS d (tab, key, col, ts, val, slot)
			SELECT s.tab, s.key, s.col, s.ts, s.val, s.slot
			FROM unnest(p_sg, p_sk, p_stab, p_skey, p_scol, p_sts, p_sval, p_sslot) s(g, k, tab, key, col, ts, val, slot)
			WHERE s.k = 4 AND (v_not IS NULL OR s.g <> ALL (v_not))
			ON CONFLICT (tab, slot, key, col, ts) DO UPDATE SET val = excluded.val;
		END IF;
		IF (p_smask & 8) <> 0 THEN
			DELETE FROM {{schema}}.notify d
			USING unnest(p_sg, p_sk, p_stab, p_skey, p_scol, p_sts, p_sslot) s(g, k, tab, key, col, ts, slot)
			WHERE s.k = 8 AND (v_not IS NULL OR s.g <> ALL (v_not))
				AND d.tab = ANY (ARRAY[s.tab]) AND d.slot = s.slot AND d.key = s.key AND d.col = s.col AND d.ts = s.ts;
		END IF;
	END IF;
	IF v_done IS NULL AND NOT p_deferred THEN
		-- Nothing may have been written, and then the commit waits for nothing; but what was
		-- deferred before is durable when an undeferred batch returns.
		PERFORM pg_logical_emit_message(true, 'percolator', '');
	END IF;
	i := 0;
	inc := v_inc;
	RETURN NEXT;
	IF v_rest IS NOT NULL THEN
		RETURN QUERY SELECT r, NULL::text, c.lock_ts, c.lock_val, c.write_ts, c.write_val, c.mark_ts, c.mark_val
		FROM unnest(v_rest) r LEFT JOIN LATERAL (
			SELECT * FROM {{schema}}.cell c WHERE c.tab = p_tab[r] AND c.key = p_key[r] AND c.col = p_col[r] OFFSET 0
		) c ON true;
	END IF;
END
$body$;
-- apply_commit runs groups of changes of single cells, each group all or none.
--
-- p_g numbers the group of each cell; cells come in key order, and the update takes
-- them in that order. Whatever is waited for after it might be held by a batch that waits
-- for one of those cells, so that wait is short: then the batch gives way (55P03), and the
-- caller has it done by apply_general, which takes everything in order. p_mode is 0 where each group is one cell, 1 where
-- groups are larger and expected to apply, and 2 where they may well fail and are
-- judged once before anything is touched. Writes that are the newest no longer go to
-- cell.past, and in bundles to the table past; see there. p_ig and p_is require an incarnation of
-- groups. The lists p_s... are the changes of families Data and Notify, and p_smask
-- has the bits of the kinds in them, and 16 where writes are removed. p_sslot has the slots of
-- rows whose notifications change, and may be null where none do.
--
-- The conditions are judged on the snapshot and again, after a wait for a lock, on
-- the row version that is updated, which is why all of them are on that row. When
-- a part of a group only turns out not to hold, everything is rolled back (PC002).
--
-- The first line has i = 0 and the incarnation. Then follows the state of each
-- cell, by its place in the lists, whose group was not applied: the caller works
-- out why.
CREATE FUNCTION {{schema}}.apply_commit_ready(p_deferred boolean, p_mode integer, p_ig integer[], p_is text[],
	p_g integer[], p_tab bytea[], p_key bytea[], p_col bytea[], p_lt bigint[], p_wt bigint[], p_wv bytea[], p_clean boolean,
	p_smask integer, p_sg integer[], p_sk smallint[], p_stab bytea[], p_skey bytea[], p_scol bytea[], p_sts bigint[], p_sval bytea[],
	p_sslot integer[])
RETURNS TABLE (i integer, inc text, lock_ts bigint, lock_val bytea, write_ts bigint, write_val bytea, mark_ts bigint, mark_val bytea)
LANGUAGE plpgsql  AS $body$
#variable_conflict use_column
DECLARE
	v_inc  pg_catalog.text;
	v_sync pg_catalog.text;
	v_n    integer;
	v_bad  integer[];
	v_done integer[];
	v_new  integer[];
	v_rest integer[];
	v_not  integer[];
	v_ins  bigint;
BEGIN
	IF pg_catalog.current_setting('search_path') OPERATOR(pg_catalog.<>) 'pg_catalog, pg_temp' THEN
		RAISE EXCEPTION 'percolator: the session is not as the store had set it' USING ERRCODE = 'PC004';
	END IF;
	-- What the functions guard and durability do, without calling them each time.
	IF current_setting('transaction_isolation') <> 'read committed' OR pg_is_in_recovery() THEN
		PERFORM {{schema}}.guard();
	END IF;
	v_n := coalesce(cardinality(p_g), 0);
	v_sync := current_setting('synchronous_commit');
	IF p_deferred THEN
		IF v_sync <> 'off' THEN
			v_sync := set_config('synchronous_commit', 'off', true);
		END IF;
	ELSE
		IF v_sync <> 'on' AND v_sync <> 'remote_apply' THEN
			v_sync := set_config('synchronous_commit', 'on', true);
		END IF;
		IF current_setting('client_min_messages') = 'error' THEN
			PERFORM set_config('client_min_messages', 'warning', true);
		END IF;
	END IF;
	IF current_setting('lock_timeout') <> '0' THEN PERFORM set_config('lock_timeout', '0', true); END IF;
	SELECT n.id INTO v_inc FROM {{schema}}.incarnation n;
	IF v_inc IS NULL THEN
		v_inc := {{schema}}.incarnation_id();
	END IF;
	IF p_ig IS NOT NULL THEN
		SELECT array_agg(x.g) INTO v_bad FROM unnest(p_ig, p_is) x(g, s) WHERE x.s <> v_inc;
	END IF;
	IF v_n > 0 THEN
		IF p_mode = 2 THEN
			SELECT array_agg(u.g) || v_bad INTO v_bad
			FROM unnest(p_g, p_tab, p_key, p_col, p_lt, p_wt, p_wv) AS u(g, tab, key, col, lt, wt, wv)
			LEFT JOIN LATERAL (
				SELECT * FROM {{schema}}.cell c WHERE c.tab = u.tab AND c.key = u.key AND c.col = u.col OFFSET 0
			) c ON true
			WHERE (c.lock_ts = u.lt AND (c.write_ts IS NULL OR c.write_ts < u.wt)) IS NOT TRUE;
		END IF;
		WITH up AS (
			UPDATE {{schema}}.cell c SET lock_ts = NULL, lock_val = NULL, write_ts = u.wt, write_val = u.wv, past_lo = CASE WHEN c.write_ts IS NOT NULL THEN CASE WHEN length(c.past) < 256 THEN c.past_lo ELSE c.write_ts END ELSE c.past_lo END, past = CASE WHEN c.write_ts IS NOT NULL THEN int8send(c.write_ts) || int4send(coalesce(length(c.write_val), 0)) || coalesce(c.write_val, '') || CASE WHEN length(c.past) < 256 THEN c.past ELSE '' END ELSE c.past END
			FROM unnest(p_g, p_tab, p_key, p_col, p_lt, p_wt, p_wv) WITH ORDINALITY AS u(g, tab, key, col, lt, wt, wv, i)
			WHERE c.tab = ANY (ARRAY[u.tab]) AND c.key = u.key AND c.col = u.col AND (c.lock_ts = u.lt AND (c.write_ts IS NULL OR c.write_ts < u.wt)) AND (v_bad IS NULL OR u.g <> ALL (v_bad))
			RETURNING u.i, u.tab, u.key, u.col, u.wt - 1 AS hi, c.past_lo AS lo, CASE WHEN length(c.past) >= 256 THEN c.past END AS vals
		), spill AS (
			INSERT INTO {{schema}}.past (tab, key, col, lo, hi, vals)
			SELECT up.tab, up.key, up.col, up.lo, up.hi, up.vals FROM up WHERE up.vals IS NOT NULL
		) SELECT array_agg(up.i::integer) INTO v_done FROM up;
		IF coalesce(cardinality(v_done), 0) < v_n THEN
			PERFORM set_config('lock_timeout', '20ms', true);
			NULL;
			v_done := v_done || v_new;
			IF coalesce(cardinality(v_done), 0) < v_n THEN
				v_rest := ARRAY(SELECT * FROM generate_series(1, v_n) EXCEPT SELECT unnest(v_done));
				v_not := ARRAY(SELECT DISTINCT p_g[r] FROM unnest(v_rest) r);
				IF p_mode > 0 AND EXISTS (SELECT p_g[d] FROM unnest(v_done) d INTERSECT SELECT unnest(v_not)) THEN
					RAISE EXCEPTION 'percolator: a part of a group did not hold' USING ERRCODE = 'PC002';
				END IF;
			END IF;
		END IF;
		IF p_clean AND cardinality(v_done) > 0 THEN
			-- Of the cells that were changed here, and so are held.
			DELETE FROM {{schema}}.cell c USING unnest(p_tab, p_key, p_col) WITH ORDINALITY AS u(tab, key, col, i)
			WHERE u.i = ANY (v_done) AND c.tab = ANY (ARRAY[u.tab]) AND c.key = u.key AND c.col = u.col
				AND c.lock_ts IS NULL AND c.write_ts IS NULL AND c.mark_ts IS NULL;
		END IF;
	END IF;
	
	IF (p_smask & 15) <> 0 THEN
		PERFORM set_config('lock_timeout', '20ms', true);
		v_not := v_not || v_bad;
		IF (p_smask & 1) <> 0 THEN
			INSERT INTO {{schema}}.data AS d (tab, key, col, ts, val)
			SELECT s.tab, s.key, s.col, s.ts, s.val
			FROM unnest(p_sg, p_sk, p_stab, p_skey, p_scol, p_sts, p_sval) s(g, k, tab, key, col, ts, val)
			WHERE s.k = 1 AND (v_not IS NULL OR s.g <> ALL (v_not))
			ON CONFLICT (tab, key, col, ts) DO UPDATE SET val = excluded.val;
		END IF;
		IF (p_smask & 2) <> 0 THEN
			DELETE FROM {{schema}}.data d
			USING unnest(p_sg, p_sk, p_stab, p_skey, p_scol, p_sts) s(g, k, tab, key, col, ts)
			WHERE s.k = 2 AND (v_not IS NULL OR s.g <> ALL (v_not))
				AND d.tab = ANY (ARRAY[s.tab]) AND d.key = s.key AND d.col = s.col AND d.ts = s.ts;
		END IF;
		IF (p_smask & 4) <> 0 THEN
			INSERT INTO {{schema}}.notify AS d (tab, key, col, ts, val, slot)
			SELECT s.tab, s.key, s.col, s.ts, s.val, s.slot
			FROM unnest(p_sg, p_sk, p_stab, p_skey, p_scol, p_sts, p_sval, p_sslot) s(g, k, tab, key, col, ts, val, slot)
			WHERE s.k = 4 AND (v_not IS NULL OR s.g <> ALL (v_not))
			ON CONFLICT (tab, slot, key, col, ts) DO UPDATE SET val = excluded.val;
		END IF;
		IF (p_smask & 8) <> 0 THEN
			DELETE FROM {{schema}}.notify d
			USING unnest(p_sg, p_sk, p_stab, p_skey, p_scol, p_sts, p_sslot) s(g, k, tab, key, col, ts, slot)
			WHERE s.k = 8 AND (v_not IS NULL OR s.g <> ALL (v_not))
				AND d.tab = ANY (ARRAY[s.tab]) AND d.slot = s.slot AND d.key = s.key AND d.col = s.col AND d.ts = s.ts;
		END IF;
	END IF;
	IF v_done IS NULL AND NOT p_deferred THEN
		-- Nothing may have been written, and then the commit waits for nothing; but what was
		-- deferred before is durable when an undeferred batch returns.
		PERFORM pg_logical_emit_message(true, 'percolator', '');
	END IF;
	i := 0;
	inc := v_inc;
	RETURN NEXT;
	IF v_rest IS NOT NULL THEN
		RETURN QUERY SELECT r, NULL::text, c.lock_ts, c.lock_val, c.write_ts, c.write_val, c.mark_ts, c.mark_val
		FROM unnest(v_rest) r LEFT JOIN LATERAL (
			SELECT * FROM {{schema}}.cell c WHERE c.tab = p_tab[r] AND c.key = p_key[r] AND c.col = p_col[r] OFFSET 0
		) c ON true;
	END IF;
END
$body$;
-- apply_any runs groups of changes of single cells, each group all or none.
--
-- p_g numbers the group of each cell; cells come in key order, and the update takes
-- them in that order. Whatever is waited for after it might be held by a batch that waits
-- for one of those cells, so that wait is short: then the batch gives way (55P03), and the
-- caller has it done by apply_general, which takes everything in order. p_mode is 0 where each group is one cell, 1 where
-- groups are larger and expected to apply, and 2 where they may well fail and are
-- judged once before anything is touched. Writes that are the newest no longer go to
-- cell.past, and in bundles to the table past; see there. p_ig and p_is require an incarnation of
-- groups. The lists p_s... are the changes of families Data and Notify, and p_smask
-- has the bits of the kinds in them, and 16 where writes are removed. p_sslot has the slots of
-- rows whose notifications change, and may be null where none do.
--
-- The conditions are judged on the snapshot and again, after a wait for a lock, on
-- the row version that is updated, which is why all of them are on that row. When
-- a part of a group only turns out not to hold, everything is rolled back (PC002).
--
-- The first line has i = 0 and the incarnation. Then follows the state of each
-- cell, by its place in the lists, whose group was not applied: the caller works
-- out why.
CREATE FUNCTION {{schema}}.apply_any_ready(p_deferred boolean, p_mode integer, p_ig integer[], p_is text[],
	p_g integer[], p_tab bytea[], p_key bytea[], p_col bytea[], p_lk smallint[], p_lc bigint[], p_wf bigint[], p_mf bigint[], p_le smallint[], p_lt bigint[], p_lv bytea[], p_wt bigint[], p_wv bytea[], p_mt bigint[], p_mv bytea[], p_rl bigint[], p_rh bigint[], p_xl bigint[], p_xh bigint[], p_clean boolean,
	p_smask integer, p_sg integer[], p_sk smallint[], p_stab bytea[], p_skey bytea[], p_scol bytea[], p_sts bigint[], p_sval bytea[],
	p_sslot integer[])
RETURNS TABLE (i integer, inc text, lock_ts bigint, lock_val bytea, write_ts bigint, write_val bytea, mark_ts bigint, mark_val bytea)
LANGUAGE plpgsql  AS $body$
#variable_conflict use_column
DECLARE
	v_inc  pg_catalog.text;
	v_sync pg_catalog.text;
	v_n    integer;
	v_bad  integer[];
	v_done integer[];
	v_new  integer[];
	v_rest integer[];
	v_not  integer[];
	v_ins  bigint;
BEGIN
	IF pg_catalog.current_setting('search_path') OPERATOR(pg_catalog.<>) 'pg_catalog, pg_temp' THEN
		RAISE EXCEPTION 'percolator: the session is not as the store had set it' USING ERRCODE = 'PC004';
	END IF;
	-- What the functions guard and durability do, without calling them each time.
	IF current_setting('transaction_isolation') <> 'read committed' OR pg_is_in_recovery() THEN
		PERFORM {{schema}}.guard();
	END IF;
	v_n := coalesce(cardinality(p_g), 0);
	v_sync := current_setting('synchronous_commit');
	IF p_deferred THEN
		IF v_sync <> 'off' THEN
			v_sync := set_config('synchronous_commit', 'off', true);
		END IF;
	ELSE
		IF v_sync <> 'on' AND v_sync <> 'remote_apply' THEN
			v_sync := set_config('synchronous_commit', 'on', true);
		END IF;
		IF current_setting('client_min_messages') = 'error' THEN
			PERFORM set_config('client_min_messages', 'warning', true);
		END IF;
	END IF;
	IF current_setting('lock_timeout') <> '0' THEN PERFORM set_config('lock_timeout', '0', true); END IF;
	SELECT n.id INTO v_inc FROM {{schema}}.incarnation n;
	IF v_inc IS NULL THEN
		v_inc := {{schema}}.incarnation_id();
	END IF;
	IF p_ig IS NOT NULL THEN
		SELECT array_agg(x.g) INTO v_bad FROM unnest(p_ig, p_is) x(g, s) WHERE x.s <> v_inc;
	END IF;
	IF v_n > 0 THEN
		IF p_mode = 2 THEN
			SELECT array_agg(u.g) || v_bad INTO v_bad
			FROM unnest(p_g, p_tab, p_key, p_col, p_lk, p_lc, p_wf, p_mf, p_le, p_lt, p_lv, p_wt, p_wv, p_mt, p_mv, p_rl, p_rh, p_xl, p_xh) AS u(g, tab, key, col, lk, lc, wf, mf, le, lt, lv, wt, wv, mt, mv, rl, rh, xl, xh)
			LEFT JOIN LATERAL (
				SELECT * FROM {{schema}}.cell c WHERE c.tab = u.tab AND c.key = u.key AND c.col = u.col OFFSET 0
			) c ON true
			WHERE (CASE u.lk WHEN 0 THEN true WHEN 1 THEN c.lock_ts IS NULL OR c.lock_ts < u.lc
				WHEN 2 THEN c.lock_ts IS DISTINCT FROM u.lc ELSE c.lock_ts = u.lc END
			AND (u.wf IS NULL OR c.write_ts IS NULL OR c.write_ts < u.wf)
			AND (u.mf IS NULL OR c.mark_ts IS NULL OR c.mark_ts < u.mf)
			AND (u.wt IS NULL OR c.write_ts IS NULL OR c.write_ts < u.wt)
			AND (u.rh IS NULL OR c.write_ts IS NULL OR c.write_ts NOT BETWEEN u.rl AND u.rh)) IS NOT TRUE;
		END IF;
		WITH up AS (
			UPDATE {{schema}}.cell c SET lock_ts = CASE u.le WHEN 1 THEN u.lt WHEN 2 THEN nullif(c.lock_ts, u.lt) ELSE c.lock_ts END,
			lock_val = CASE u.le WHEN 1 THEN u.lv WHEN 2 THEN CASE WHEN c.lock_ts = u.lt THEN NULL ELSE c.lock_val END ELSE c.lock_val END,
			write_ts = coalesce(u.wt, c.write_ts),
			write_val = CASE WHEN u.wt IS NULL THEN c.write_val ELSE u.wv END,
			mark_ts = CASE WHEN c.mark_ts BETWEEN u.xl AND u.xh THEN NULL ELSE greatest(c.mark_ts, u.mt) END,
			mark_val = CASE WHEN c.mark_ts BETWEEN u.xl AND u.xh THEN NULL
				WHEN u.mt >= c.mark_ts OR (u.mt IS NOT NULL AND c.mark_ts IS NULL) THEN u.mv ELSE c.mark_val END, past_lo = CASE WHEN u.wt IS NOT NULL AND c.write_ts IS NOT NULL THEN CASE WHEN length(c.past) < 256 THEN c.past_lo ELSE c.write_ts END WHEN c.past_lo <= u.rh THEN CASE WHEN length(c.past) < 256 THEN {{schema}}.past_lowest({{schema}}.past_without(c.past, u.rl, u.rh)) END ELSE c.past_lo END, past = CASE WHEN u.wt IS NOT NULL AND c.write_ts IS NOT NULL THEN int8send(c.write_ts) || int4send(coalesce(length(c.write_val), 0)) || coalesce(c.write_val, '') || CASE WHEN length(c.past) < 256 THEN c.past ELSE '' END WHEN c.past_lo <= u.rh THEN CASE WHEN length(c.past) < 256 THEN {{schema}}.past_without(c.past, u.rl, u.rh) END ELSE c.past END
			FROM unnest(p_g, p_tab, p_key, p_col, p_lk, p_lc, p_wf, p_mf, p_le, p_lt, p_lv, p_wt, p_wv, p_mt, p_mv, p_rl, p_rh, p_xl, p_xh) WITH ORDINALITY AS u(g, tab, key, col, lk, lc, wf, mf, le, lt, lv, wt, wv, mt, mv, rl, rh, xl, xh, i)
			WHERE c.tab = ANY (ARRAY[u.tab]) AND c.key = u.key AND c.col = u.col AND (CASE u.lk WHEN 0 THEN true WHEN 1 THEN c.lock_ts IS NULL OR c.lock_ts < u.lc
				WHEN 2 THEN c.lock_ts IS DISTINCT FROM u.lc ELSE c.lock_ts = u.lc END
			AND (u.wf IS NULL OR c.write_ts IS NULL OR c.write_ts < u.wf)
			AND (u.mf IS NULL OR c.mark_ts IS NULL OR c.mark_ts < u.mf)
			AND (u.wt IS NULL OR c.write_ts IS NULL OR c.write_ts < u.wt)
			AND (u.rh IS NULL OR c.write_ts IS NULL OR c.write_ts NOT BETWEEN u.rl AND u.rh)) AND (v_bad IS NULL OR u.g <> ALL (v_bad))
			RETURNING u.i, u.tab, u.key, u.col, u.wt - 1 AS hi, c.past_lo AS lo, CASE WHEN u.wt IS NOT NULL AND length(c.past) >= 256 THEN c.past END AS vals
		), spill AS (
			INSERT INTO {{schema}}.past (tab, key, col, lo, hi, vals)
			SELECT up.tab, up.key, up.col, up.lo, up.hi, up.vals FROM up WHERE up.vals IS NOT NULL
		) SELECT array_agg(up.i::integer) INTO v_done FROM up;
		IF coalesce(cardinality(v_done), 0) < v_n THEN
			PERFORM set_config('lock_timeout', '20ms', true);
			WITH cand AS MATERIALIZED (
				SELECT u.* FROM unnest(p_g, p_tab, p_key, p_col, p_lk, p_lc, p_wf, p_mf, p_le, p_lt, p_lv, p_wt, p_wv, p_mt, p_mv, p_rl, p_rh, p_xl, p_xh) WITH ORDINALITY AS u(g, tab, key, col, lk, lc, wf, mf, le, lt, lv, wt, wv, mt, mv, rl, rh, xl, xh, i)
				LEFT JOIN LATERAL (SELECT * FROM {{schema}}.cell c WHERE c.tab = u.tab AND c.key = u.key AND c.col = u.col OFFSET 0) c ON true
				WHERE c.tab IS NULL AND (CASE u.lk WHEN 0 THEN true WHEN 1 THEN c.lock_ts IS NULL OR c.lock_ts < u.lc
				WHEN 2 THEN c.lock_ts IS DISTINCT FROM u.lc ELSE c.lock_ts = u.lc END
			AND (u.wf IS NULL OR c.write_ts IS NULL OR c.write_ts < u.wf)
			AND (u.mf IS NULL OR c.mark_ts IS NULL OR c.mark_ts < u.mf)
			AND (u.wt IS NULL OR c.write_ts IS NULL OR c.write_ts < u.wt)
			AND (u.rh IS NULL OR c.write_ts IS NULL OR c.write_ts NOT BETWEEN u.rl AND u.rh)) AND (u.le = 1 OR u.wt IS NOT NULL OR u.mt IS NOT NULL) AND (v_bad IS NULL OR u.g <> ALL (v_bad))
			), ins AS (
				INSERT INTO {{schema}}.cell (tab, key, col, lock_ts, lock_val, write_ts, write_val, mark_ts, mark_val)
				SELECT u.tab, u.key, u.col, CASE u.le WHEN 1 THEN u.lt END, CASE u.le WHEN 1 THEN u.lv END, u.wt, u.wv, u.mt, u.mv FROM cand u ORDER BY u.i
				ON CONFLICT DO NOTHING RETURNING 1
			) SELECT (SELECT array_agg(cand.i::integer) FROM cand), (SELECT count(*) FROM ins) INTO v_new, v_ins;
			IF v_ins < cardinality(v_new) THEN
				RAISE EXCEPTION 'percolator: another client made the row' USING ERRCODE = 'PC002';
			END IF;
			v_done := v_done || v_new;
			IF coalesce(cardinality(v_done), 0) < v_n THEN
				v_rest := ARRAY(SELECT * FROM generate_series(1, v_n) EXCEPT SELECT unnest(v_done));
				v_not := ARRAY(SELECT DISTINCT p_g[r] FROM unnest(v_rest) r);
				IF p_mode > 0 AND EXISTS (SELECT p_g[d] FROM unnest(v_done) d INTERSECT SELECT unnest(v_not)) THEN
					RAISE EXCEPTION 'percolator: a part of a group did not hold' USING ERRCODE = 'PC002';
				END IF;
			END IF;
		END IF;
		IF p_clean AND cardinality(v_done) > 0 THEN
			-- Of the cells that were changed here, and so are held.
			DELETE FROM {{schema}}.cell c USING unnest(p_tab, p_key, p_col) WITH ORDINALITY AS u(tab, key, col, i)
			WHERE u.i = ANY (v_done) AND c.tab = ANY (ARRAY[u.tab]) AND c.key = u.key AND c.col = u.col
				AND c.lock_ts IS NULL AND c.write_ts IS NULL AND c.mark_ts IS NULL;
		END IF;
	END IF;
	IF (p_smask & 16) <> 0 THEN
			DELETE FROM {{schema}}.past o USING unnest(p_g, p_tab, p_key, p_col, p_lk, p_lc, p_wf, p_mf, p_le, p_lt, p_lv, p_wt, p_wv, p_mt, p_mv, p_rl, p_rh, p_xl, p_xh) WITH ORDINALITY AS u(g, tab, key, col, lk, lc, wf, mf, le, lt, lv, wt, wv, mt, mv, rl, rh, xl, xh, i)
			WHERE u.rh IS NOT NULL AND u.i = ANY (v_done) AND o.tab = ANY (ARRAY[u.tab]) AND o.key = u.key AND o.col = u.col AND o.lo BETWEEN u.rl AND u.rh AND o.hi <= u.rh;
			PERFORM {{schema}}.past_cut(u.tab, u.key, u.col, u.rl, u.rh) FROM unnest(p_g, p_tab, p_key, p_col, p_lk, p_lc, p_wf, p_mf, p_le, p_lt, p_lv, p_wt, p_wv, p_mt, p_mv, p_rl, p_rh, p_xl, p_xh) WITH ORDINALITY AS u(g, tab, key, col, lk, lc, wf, mf, le, lt, lv, wt, wv, mt, mv, rl, rh, xl, xh, i)
			WHERE u.rh IS NOT NULL AND u.i = ANY (v_done) AND EXISTS (SELECT FROM {{schema}}.past o WHERE o.tab = u.tab AND o.key = u.key AND o.col = u.col AND o.lo <= u.rh AND o.hi >= u.rl OFFSET 0);
		END IF;
	IF (p_smask & 15) <> 0 THEN
		PERFORM set_config('lock_timeout', '20ms', true);
		v_not := v_not || v_bad;
		IF (p_smask & 1) <> 0 THEN
			INSERT INTO {{schema}}.data AS d (tab, key, col, ts, val)
			SELECT s.tab, s.key, s.col, s.ts, s.val
			FROM unnest(p_sg, p_sk, p_stab, p_skey, p_scol, p_sts, p_sval) s(g, k, tab, key, col, ts, val)
			WHERE s.k = 1 AND (v_not IS NULL OR s.g <> ALL (v_not))
			ON CONFLICT (tab, key, col, ts) DO UPDATE SET val = excluded.val;
		END IF;
		IF (p_smask & 2) <> 0 THEN
			DELETE FROM {{schema}}.data d
			USING unnest(p_sg, p_sk, p_stab, p_skey, p_scol, p_sts) s(g, k, tab, key, col, ts)
			WHERE s.k = 2 AND (v_not IS NULL OR s.g <> ALL (v_not))
				AND d.tab = ANY (ARRAY[s.tab]) AND d.key = s.key AND d.col = s.col AND d.ts = s.ts;
		END IF;
		IF (p_smask & 4) <> 0 THEN
			INSERT INTO {{schema}}.notify AS d (tab, key, col, ts, val, slot)
			SELECT s.tab, s.key, s.col, s.ts, s.val, s.slot
			FROM unnest(p_sg, p_sk, p_stab, p_skey, p_scol, p_sts, p_sval, p_sslot) s(g, k, tab, key, col, ts, val, slot)
			WHERE s.k = 4 AND (v_not IS NULL OR s.g <> ALL (v_not))
			ON CONFLICT (tab, slot, key, col, ts) DO UPDATE SET val = excluded.val;
		END IF;
		IF (p_smask & 8) <> 0 THEN
			DELETE FROM {{schema}}.notify d
			USING unnest(p_sg, p_sk, p_stab, p_skey, p_scol, p_sts, p_sslot) s(g, k, tab, key, col, ts, slot)
			WHERE s.k = 8 AND (v_not IS NULL OR s.g <> ALL (v_not))
				AND d.tab = ANY (ARRAY[s.tab]) AND d.slot = s.slot AND d.key = s.key AND d.col = s.col AND d.ts = s.ts;
		END IF;
	END IF;
	IF v_done IS NULL AND NOT p_deferred THEN
		-- Nothing may have been written, and then the commit waits for nothing; but what was
		-- deferred before is durable when an undeferred batch returns.
		PERFORM pg_logical_emit_message(true, 'percolator', '');
	END IF;
	i := 0;
	inc := v_inc;
	RETURN NEXT;
	IF v_rest IS NOT NULL THEN
		RETURN QUERY SELECT r, NULL::text, c.lock_ts, c.lock_val, c.write_ts, c.write_val, c.mark_ts, c.mark_val
		FROM unnest(v_rest) r LEFT JOIN LATERAL (
			SELECT * FROM {{schema}}.cell c WHERE c.tab = p_tab[r] AND c.key = p_key[r] AND c.col = p_col[r] OFFSET 0
		) c ON true;
	END IF;
END
$body$;
-- apply_general runs groups of mutations of any kind: it locks the cell of every
-- column that they name, one by one in key order, making those that are not there,
-- and only then judges and changes. Each statement sees what was committed before
-- it began, and whoever else changes those rows waits for a lock held here.
--
-- p_tab, p_key, p_col are the cells, in order, and p_slot the slots of their rows. Conditions (p_c...) and edits
-- (p_e...) name their group and their cell by its place in that list; the kinds and
-- families are the numbers of package rowstore. p_cm and p_cn are the mutation in
-- the group and the condition in the mutation, to be reported.
--
-- The first line has g = -1 and the incarnation; then follow the groups that did
-- not hold: the mutation, the condition, and the version that broke it.
CREATE FUNCTION {{schema}}.apply_general_ready(p_deferred boolean, p_tab bytea[], p_key bytea[], p_col bytea[],
	p_cg integer[], p_cm integer[], p_cn integer[], p_ccell integer[], p_ckind smallint[], p_cfam smallint[], p_cts bigint[], p_cis text[],
	p_eg integer[], p_ecell integer[], p_ekind smallint[], p_efam smallint[], p_ets bigint[], p_eto bigint[], p_eval bytea[],
	p_slot integer[])
RETURNS TABLE (g integer, inc text, m integer, n integer, ts bigint, val bytea)
LANGUAGE plpgsql  AS $body$
#variable_conflict use_variable
DECLARE
	v_inc  pg_catalog.text;
	v_cell {{schema}}.cell;
	v_skip integer;
	v_not  integer[];
	v_any  boolean;
	v_ts   bigint;
	v_val  pg_catalog.bytea;
	v_fail boolean;
	v_tab  pg_catalog.bytea;
	v_key  pg_catalog.bytea;
	v_col  pg_catalog.bytea;
	v_hi   bigint;
	r      pg_catalog.record;
BEGIN
	IF pg_catalog.current_setting('search_path') OPERATOR(pg_catalog.<>) 'pg_catalog, pg_temp' THEN
		RAISE EXCEPTION 'percolator: the session is not as the store had set it' USING ERRCODE = 'PC004';
	END IF;
	v_not := '{}';
	v_any := false;
	PERFORM {{schema}}.guard();
	PERFORM {{schema}}.durability(p_deferred);
	IF current_setting('lock_timeout') <> '0' THEN PERFORM set_config('lock_timeout', '0', true); END IF;
	v_inc := {{schema}}.incarnation_id();
	FOR r IN SELECT u.tab, u.key, u.col FROM unnest(p_tab, p_key, p_col) WITH ORDINALITY AS u(tab, key, col, ord) ORDER BY u.ord LOOP
		LOOP
			PERFORM 1 FROM {{schema}}.cell c WHERE c.tab = r.tab AND c.key = r.key AND c.col = r.col FOR UPDATE;
			EXIT WHEN FOUND;
			INSERT INTO {{schema}}.cell (tab, key, col) VALUES (r.tab, r.key, r.col) ON CONFLICT DO NOTHING;
			EXIT WHEN FOUND;
		END LOOP;
	END LOOP;
	g := -1;
	inc := v_inc;
	RETURN NEXT;
	inc := NULL;

	FOR r IN SELECT * FROM unnest(p_cg, p_cm, p_cn, p_ccell, p_ckind, p_cfam, p_cts, p_cis) AS u(g, m, n, cell, kind, fam, ts, is_) LOOP
		CONTINUE WHEN r.g = v_skip;
		v_ts := NULL;
		v_val := NULL;
		IF r.kind = 4 THEN
			v_fail := r.is_ <> v_inc;
		ELSIF r.fam = 5 THEN
			SELECT d.ts, d.val INTO v_ts, v_val FROM {{schema}}.notify d
			WHERE d.tab = p_tab[r.cell] AND d.slot = p_slot[r.cell] AND d.key = p_key[r.cell] AND d.col = p_col[r.cell] AND d.ts >= r.ts
			ORDER BY d.ts DESC LIMIT 1;
			v_fail := FOUND;
		ELSE
			SELECT * INTO v_cell FROM {{schema}}.cell c WHERE c.tab = p_tab[r.cell] AND c.key = p_key[r.cell] AND c.col = p_col[r.cell];
			IF r.fam = 1 THEN
				v_ts := v_cell.lock_ts;
				v_val := v_cell.lock_val;
			ELSIF r.fam = 2 THEN
				v_ts := v_cell.write_ts;
				v_val := v_cell.write_val;
			ELSE
				v_ts := v_cell.mark_ts;
				v_val := v_cell.mark_val;
			END IF;
			IF r.kind = 1 THEN
				v_fail := coalesce(v_ts >= r.ts, false);
			ELSIF r.kind = 2 THEN
				v_fail := coalesce(v_ts = r.ts, false);
			ELSE
				v_fail := v_ts IS DISTINCT FROM r.ts;
				v_ts := NULL;
				v_val := NULL;
			END IF;
		END IF;
		IF v_fail THEN
			v_skip := r.g;
			v_not := v_not || r.g;
			g := r.g;
			m := r.m;
			n := r.n;
			ts := v_ts;
			val := v_val;
			RETURN NEXT;
		END IF;
	END LOOP;

	FOR r IN SELECT * FROM unnest(p_eg, p_ecell, p_ekind, p_efam, p_ets, p_eto, p_eval) AS u(g, cell, kind, fam, ts, hi, val) LOOP
		CONTINUE WHEN r.g = ANY (v_not);
		v_any := true;
		v_tab := p_tab[r.cell];
		v_key := p_key[r.cell];
		v_col := p_col[r.cell];
		v_hi := CASE r.kind WHEN 3 THEN r.hi ELSE r.ts END;
		IF r.fam = 1 THEN
			IF r.kind = 1 THEN
				UPDATE {{schema}}.cell c SET lock_ts = r.ts, lock_val = r.val WHERE c.tab = v_tab AND c.key = v_key AND c.col = v_col;
			ELSE
				UPDATE {{schema}}.cell c SET lock_ts = NULL, lock_val = NULL
				WHERE c.tab = v_tab AND c.key = v_key AND c.col = v_col AND c.lock_ts BETWEEN r.ts AND v_hi;
			END IF;
		ELSIF r.fam = 4 THEN
			IF r.kind = 1 THEN
				UPDATE {{schema}}.cell c SET mark_ts = r.ts, mark_val = r.val
				WHERE c.tab = v_tab AND c.key = v_key AND c.col = v_col AND (c.mark_ts IS NULL OR c.mark_ts <= r.ts);
			ELSE
				UPDATE {{schema}}.cell c SET mark_ts = NULL, mark_val = NULL
				WHERE c.tab = v_tab AND c.key = v_key AND c.col = v_col AND c.mark_ts BETWEEN r.ts AND v_hi;
			END IF;
		ELSIF r.fam = 2 THEN
			SELECT * INTO v_cell FROM {{schema}}.cell c WHERE c.tab = v_tab AND c.key = v_key AND c.col = v_col;
			IF v_cell.past IS NOT NULL THEN
				-- All older writes in one place.
				IF length(v_cell.past) < 256 THEN
					INSERT INTO {{schema}}.past (tab, key, col, lo, hi, vals)
					VALUES (v_tab, v_key, v_col, v_cell.past_lo, v_cell.write_ts - 1, v_cell.past);
				END IF;
				UPDATE {{schema}}.cell c SET past_lo = NULL, past = NULL WHERE c.tab = v_tab AND c.key = v_key AND c.col = v_col;
			END IF;
			IF r.kind = 1 THEN
				IF v_cell.write_ts > r.ts THEN
					PERFORM {{schema}}.past_put(v_tab, v_key, v_col, r.ts, r.val);
				ELSE
					IF v_cell.write_ts < r.ts THEN
						PERFORM {{schema}}.past_put(v_tab, v_key, v_col, v_cell.write_ts, v_cell.write_val);
					END IF;
					UPDATE {{schema}}.cell c SET write_ts = r.ts, write_val = r.val WHERE c.tab = v_tab AND c.key = v_key AND c.col = v_col;
				END IF;
			ELSE
				PERFORM {{schema}}.past_cut(v_tab, v_key, v_col, r.ts, v_hi);
				IF v_cell.write_ts BETWEEN r.ts AND v_hi THEN
					v_ts := NULL;
					v_val := NULL;
					SELECT e.ts, substr(e.entry, 13) INTO v_ts, v_val FROM (
						SELECT o.vals FROM {{schema}}.past o
						WHERE o.tab = v_tab AND o.key = v_key AND o.col = v_col ORDER BY o.lo DESC LIMIT 1
					) o CROSS JOIN LATERAL {{schema}}.past_entries(o.vals) e ORDER BY e.ts DESC LIMIT 1;
					IF FOUND THEN
						PERFORM {{schema}}.past_cut(v_tab, v_key, v_col, v_ts, v_ts);
					END IF;
					UPDATE {{schema}}.cell c SET write_ts = v_ts, write_val = v_val WHERE c.tab = v_tab AND c.key = v_key AND c.col = v_col;
				END IF;
			END IF;
		ELSIF r.fam = 3 THEN
			IF r.kind = 1 THEN
				INSERT INTO {{schema}}.data AS o (tab, key, col, ts, val) VALUES (v_tab, v_key, v_col, r.ts, r.val)
				ON CONFLICT ON CONSTRAINT data_pkey DO UPDATE SET val = excluded.val;
			ELSE
				DELETE FROM {{schema}}.data o
				WHERE o.tab = v_tab AND o.key = v_key AND o.col = v_col AND o.ts BETWEEN r.ts AND v_hi;
			END IF;
		ELSE
			IF r.kind = 1 THEN
				INSERT INTO {{schema}}.notify AS o (tab, key, col, ts, val, slot) VALUES (v_tab, v_key, v_col, r.ts, r.val, p_slot[r.cell])
				ON CONFLICT ON CONSTRAINT notify_pkey DO UPDATE SET val = excluded.val;
			ELSE
				DELETE FROM {{schema}}.notify o
				WHERE o.tab = v_tab AND o.slot = p_slot[r.cell] AND o.key = v_key AND o.col = v_col AND o.ts BETWEEN r.ts AND v_hi;
			END IF;
		END IF;
	END LOOP;

	DELETE FROM {{schema}}.cell c USING unnest(p_tab, p_key, p_col) AS u(tab, key, col)
	WHERE c.tab = ANY (ARRAY[u.tab]) AND c.key = u.key AND c.col = u.col
		AND c.lock_ts IS NULL AND c.write_ts IS NULL AND c.mark_ts IS NULL;
	IF NOT v_any AND NOT p_deferred THEN
		PERFORM pg_logical_emit_message(true, 'percolator', '');
	END IF;
END
$body$;

INSERT INTO {{schema}}.meta (version) VALUES (6);
