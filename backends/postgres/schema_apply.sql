-- apply_{{name}} runs groups of changes of single cells, each group all or none.
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
-- rows whose notifications change, and may be null where none do. p_clean says that cells may be left empty.
--
-- With p_lock, which has the locks of all rows in ascending order, the groups draw their timestamps: see
-- drawn_sql.go. p_own says which of them are exclusive. A timestamp below 0 stands for that of its
-- group, which is so much above the first one as the group's number says. p_late has the greatest timestamp that
-- each group may have, null for any. The first line has the first of the timestamps in lock_ts, and in write_ts the bound
-- that was used. Where lock_ts is null, nothing was done, and the function draw has to be called first.
--
-- The conditions are judged on the snapshot and again, after a wait for a lock, on
-- the row version that is updated, which is why all of them are on that row. When
-- a part of a group only turns out not to hold, everything is rolled back (PC002).
--
-- The first line has i = 0 and the incarnation. Then follows the state of each
-- cell, by its place in the lists, whose group was not applied: the caller works
-- out why.
CREATE FUNCTION {{schema}}.apply_{{name}}{{set}}(p_deferred boolean, p_mode integer, p_ig integer[], p_is text[],
	p_g integer[], p_tab bytea[], p_key bytea[], p_col bytea[], {{params}}, {{more_params}}
	p_smask integer, p_sg integer[], p_sk smallint[], p_stab bytea[], p_skey bytea[], p_scol bytea[], p_sts bigint[], p_sval bytea[],
	p_sslot integer[])
RETURNS TABLE (i integer, inc text, lock_ts bigint, lock_val bytea, write_ts bigint, write_val bytea, mark_ts bigint, mark_val bytea)
LANGUAGE plpgsql {{settings}} AS $body$
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
	{{draw_vars}}
BEGIN
	{{session}}
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
	{{wait}}
	SELECT n.id INTO v_inc FROM {{schema}}.incarnation n;
	IF v_inc IS NULL THEN
		v_inc := {{schema}}.incarnation_id();
	END IF;
	IF p_ig IS NOT NULL THEN
		SELECT array_agg(x.g) INTO v_bad FROM unnest(p_ig, p_is) x(g, s) WHERE x.s <> v_inc;
	END IF;
	{{draw}}
	IF v_n > 0 THEN
		IF p_mode = 2 THEN
			SELECT array_agg(u.g) || v_bad INTO v_bad
			FROM unnest(p_g, p_tab, p_key, p_col, {{args}}) AS u(g, tab, key, col, {{cols}})
			LEFT JOIN LATERAL (
				SELECT * FROM {{schema}}.cell c WHERE c.tab = u.tab AND c.key = u.key AND c.col = u.col OFFSET 0
			) c ON true
			WHERE ({{cond}}) IS NOT TRUE;
		END IF;
		{{update}}
		IF coalesce(cardinality(v_done), 0) < v_n THEN
			{{give_way}}
			{{insert}}
			v_done := v_done || v_new;
			IF coalesce(cardinality(v_done), 0) < v_n THEN
				v_rest := ARRAY(SELECT * FROM generate_series(1, v_n) EXCEPT SELECT unnest(v_done));
				v_not := ARRAY(SELECT DISTINCT p_g[r] FROM unnest(v_rest) r);
				IF p_mode > 0 AND EXISTS (SELECT p_g[d] FROM unnest(v_done) d INTERSECT SELECT unnest(v_not)) THEN
					RAISE EXCEPTION 'percolator: a part of a group did not hold' USING ERRCODE = 'PC002';
				END IF;
			END IF;
		END IF;
		{{clean}}
	END IF;
	{{ranges}}
	IF (p_smask & 15) <> 0 THEN
		{{give_way}}
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
	{{tell}}
	RETURN NEXT;
	IF v_rest IS NOT NULL THEN
		RETURN QUERY SELECT r, NULL::text, c.lock_ts, c.lock_val, c.write_ts, c.write_val, c.mark_ts, c.mark_val
		FROM unnest(v_rest) r LEFT JOIN LATERAL (
			SELECT * FROM {{schema}}.cell c WHERE c.tab = p_tab[r] AND c.key = p_key[r] AND c.col = p_col[r] OFFSET 0
		) c ON true;
	END IF;
END
$body$;
