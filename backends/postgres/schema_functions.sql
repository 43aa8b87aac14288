-- The functions of version 8 of the schema. {{schema}} stands for the quoted name of
-- the schema, {{schema_literal}} for that name within an E'' literal, {{clock_lock}} for the number of the advisory lock that guards the
-- clock. Each function sets the search path ({{path}}, and {{settings}} too), or refuses any other (session.go), so that
-- every name in it means what is in pg_catalog or in this schema, whoever calls it with
-- whatever search path: a schema in which others may create is never looked into.
--
-- No literal has a backslash, but for E'' ones: a session may have standard_conforming_strings off.

CREATE FUNCTION {{schema}}.incarnation_id() RETURNS text LANGUAGE plpgsql {{path}} AS $body$
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
CREATE FUNCTION {{schema}}.guard() RETURNS void LANGUAGE plpgsql {{path}} AS $body$
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
CREATE FUNCTION {{schema}}.durability(p_deferred boolean) RETURNS void LANGUAGE plpgsql {{path}} AS $body$
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
CREATE FUNCTION {{schema}}.flush() RETURNS void LANGUAGE plpgsql {{path}} AS $body$
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
CREATE FUNCTION {{schema}}.draw(p_n bigint, p_lag bigint, p_ahead bigint, OUT first bigint, OUT bound bigint) LANGUAGE plpgsql {{path}} AS $body$
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
	{{wait}}
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
CREATE FUNCTION {{schema}}.past_entries(p_vals bytea) RETURNS TABLE (ts bigint, entry bytea) LANGUAGE plpgsql IMMUTABLE {{path}} AS $body$
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

CREATE FUNCTION {{schema}}.past_entry(p_ts bigint, p_val bytea) RETURNS bytea LANGUAGE sql IMMUTABLE {{path}} AS
	$body$ SELECT {{entry_of_params}} $body$;

-- past_without gives a bundle without the writes from p_lo to p_hi, null when none is
-- left, and past_lowest the oldest timestamp of one.
CREATE FUNCTION {{schema}}.past_without(p_vals bytea, p_lo bigint, p_hi bigint) RETURNS bytea LANGUAGE plpgsql IMMUTABLE {{path}} AS $body$
BEGIN
	RETURN (SELECT string_agg(e.entry, '' ORDER BY e.ts DESC) FROM {{schema}}.past_entries(p_vals) e WHERE e.ts NOT BETWEEN p_lo AND p_hi);
END
$body$;

CREATE FUNCTION {{schema}}.past_lowest(p_vals bytea) RETURNS bigint LANGUAGE plpgsql IMMUTABLE {{path}} AS $body$
BEGIN
	RETURN (SELECT min(e.ts) FROM {{schema}}.past_entries(p_vals) e);
END
$body$;

-- past_put adds an older write of a cell to the table past, or puts it over the one
-- with its timestamp. The caller holds the cell, whose own past is empty.
CREATE FUNCTION {{schema}}.past_put(p_tab bytea, p_key bytea, p_col bytea, p_ts bigint, p_val bytea) RETURNS void LANGUAGE plpgsql {{settings}} AS $body$
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
CREATE FUNCTION {{schema}}.past_cut(p_tab bytea, p_key bytea, p_col bytea, p_lo bigint, p_hi bigint) RETURNS void LANGUAGE plpgsql {{settings}} AS $body$
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
CREATE FUNCTION {{schema}}.scan_page(p_settle integer, p_tab bytea, p_lo bytea, p_hi bytea, p_reverse boolean, p_n bigint, p_look bigint, p_bytes bigint,
	p_deep boolean, p_read boolean, p_mask integer, p_fam smallint[], p_col bytea[], p_from bigint[], p_to bigint[], p_lim bigint[])
RETURNS TABLE (key bytea, fam smallint, col bytea, ts bigint, val bytea)
LANGUAGE plpgsql {{settings}} SET enable_sort = off SET enable_hashagg = off AS $body$
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
	{{barrier_vars}}
BEGIN
	IF current_setting('transaction_isolation') <> 'read committed' OR pg_is_in_recovery() THEN
		PERFORM {{schema}}.guard();
	END IF;
	{{barrier}}
	IF (p_mask & 22) <> 0 THEN
		{{scan_cell}}
	END IF;
	IF (p_mask & 8) <> 0 THEN
		{{scan_data}}
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
		FROM {{schema}}.read_any(0, NULL, p_mask, v_i, v_tab, v_key, v_fam, v_col, v_from, v_to, v_lim, NULL) r;
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
CREATE FUNCTION {{schema}}.scan_slots(p_settle integer, p_tab bytea, p_first integer[], p_last integer[], p_key bytea, p_lo bytea, p_hi bytea, p_look bigint, p_bytes bigint,
	p_fam smallint[], p_col bytea[], p_from bigint[], p_to bigint[])
RETURNS TABLE (slot integer, key bytea, col bytea, ts bigint, val bytea, stop boolean)
LANGUAGE plpgsql {{settings}} SET enable_sort = off SET enable_hashagg = off AS $body$
#variable_conflict use_column
DECLARE
	v_slot  integer := p_first[1];
	v_at    integer;
	v_found integer;
	v_width integer := 64;
	v_began timestamptz;
	{{barrier_vars}}
BEGIN
	IF current_setting('transaction_isolation') <> 'read committed' OR pg_is_in_recovery() THEN
		PERFORM {{schema}}.guard();
	END IF;
	{{barrier}}
	v_began := clock_timestamp();
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
			SELECT c.slot, c.key, c.col, c.ts, c.val, c.key >= p_lo AND c.key < p_hi AND {{slot_matches}} AS m, {{slot_size}} AS size
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
CREATE FUNCTION {{schema}}.next_table(p_after bytea) RETURNS bytea LANGUAGE plpgsql {{settings}} AS $body$
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
LANGUAGE plpgsql {{settings}} AS $body$
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
