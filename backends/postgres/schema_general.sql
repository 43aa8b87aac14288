-- apply_general runs groups of mutations of any kind: it locks the cell of every
-- column that they name, one by one in key order, making those that are not there,
-- and only then judges and changes. Each statement sees what was committed before
-- it began, and whoever else changes those rows waits for a lock held here.
--
-- p_tab, p_key, p_col are the cells, in order, and p_slot the slots of their rows. Conditions (p_c...) and edits
-- (p_e...) name their group and their cell by its place in that list; the kinds and
-- families are the numbers of package rowstore. p_cm and p_cn are the mutation in
-- the group and the condition in the mutation, to be reported. The last parameters are as in schema_apply.sql.
--
-- The first line has g = -1, the incarnation, and in ts the first of the timestamps that were drawn; then follow the groups that did
-- not hold: the mutation, the condition, and the version that broke it.
CREATE FUNCTION {{schema}}.apply_general{{set}}(p_deferred boolean, p_tab bytea[], p_key bytea[], p_col bytea[],
	p_cg integer[], p_cm integer[], p_cn integer[], p_ccell integer[], p_ckind smallint[], p_cfam smallint[], p_cts bigint[], p_cis text[],
	p_eg integer[], p_ecell integer[], p_ekind smallint[], p_efam smallint[], p_ets bigint[], p_eto bigint[], p_eval bytea[],
	p_slot integer[], {{own_params}})
RETURNS TABLE (g integer, inc text, m integer, n integer, ts bigint, val bytea)
LANGUAGE plpgsql {{settings}} AS $body$
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
	{{own_vars}}
BEGIN
	{{session}}
	v_not := '{}';
	v_any := false;
	PERFORM {{schema}}.guard();
	PERFORM {{schema}}.durability(p_deferred);
	{{wait}}
	v_inc := {{schema}}.incarnation_id();
	IF p_lock IS NOT NULL THEN
		{{own}}
		IF v_first IS NULL THEN
			g := -1;
			inc := v_inc;
			RETURN NEXT;
			RETURN;
		END IF;
		p_ets := ARRAY(SELECT CASE WHEN u.t < 0 THEN v_first + u.g ELSE u.t END FROM unnest(p_ets, p_eg) u(t, g));
	END IF;
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
	ts := v_first;
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

	v_not := v_not || ARRAY(SELECT u.g::integer - 1 FROM unnest(p_late) WITH ORDINALITY u(late, g) WHERE u.late < v_first + u.g - 1);
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
				IF length(v_cell.past) < {{past_limit}} THEN
					INSERT INTO {{schema}}.past (tab, key, col, lo, hi, vals)
					VALUES (v_tab, v_key, v_col, v_cell.past_oldest, v_cell.write_ts - 1, v_cell.past);
				END IF;
				UPDATE {{schema}}.cell c SET past_oldest = NULL, past = NULL WHERE c.tab = v_tab AND c.key = v_key AND c.col = v_col;
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
