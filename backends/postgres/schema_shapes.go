package postgres

import "strings"

// shape is a kind of change of one cell, which is compiled to one function.
type shape struct {
	name string
	cols []string // the columns of its lists beyond group and key, with their types
	// cond is judged over the cell c (all null when there is none) and the list u; set is
	// what an update does.
	cond, set string
	// write is the column of the list that holds the timestamp of a new write, "" if the
	// shape has none: the write that was the newest becomes an older one. may is its
	// condition where not every cell of the shape has one.
	write, may string
	// draws: the groups may draw their timestamps, which stand in place of those below 0 in these lists.
	draws []string
	// empties: cells may be left empty, and are removed then.
	empties bool
	// ranges: the columns rl and rh are a range of writes to remove.
	ranges bool
	// makes tells whether a cell that is not there is made, "" for never, with these
	// values of its last six columns.
	makes, values string
}

// shapes lists the compiled shapes. The first two are what transactions in two phases consist
// of; the third does whatever is judged on the cell alone; the last is what those in one phase consist of.
var shapes = []shape{
	{
		name:   "prewrite",
		cols:   []string{"lt bigint", "lv bytea"},
		cond:   `c.lock_ts IS NULL AND (c.write_ts IS NULL OR c.write_ts < u.lt) AND (c.mark_ts IS NULL OR c.mark_ts < u.lt)`,
		set:    `lock_ts = u.lt, lock_val = u.lv`,
		makes:  `true`,
		values: `u.lt, u.lv, NULL, NULL, NULL, NULL`,
	},
	{
		name:  "commit",
		cols:  []string{"lt bigint", "wt bigint", "wv bytea"},
		cond:  `c.lock_ts = u.lt AND (c.write_ts IS NULL OR c.write_ts < u.wt)`,
		set:   `lock_ts = NULL, lock_val = NULL, write_ts = u.wt, write_val = u.wv`,
		write: "wt",
	},
	{
		name: "any",
		cols: []string{
			"lk smallint", "lc bigint", "wf bigint", "mf bigint",
			"le smallint", "lt bigint", "lv bytea", "wt bigint", "wv bytea", "mt bigint", "mv bytea",
			"rl bigint", "rh bigint", "xl bigint", "xh bigint",
		},
		cond: `CASE u.lk WHEN 0 THEN true WHEN 1 THEN c.lock_ts IS NULL OR c.lock_ts < u.lc
				WHEN 2 THEN c.lock_ts IS DISTINCT FROM u.lc ELSE c.lock_ts = u.lc END
			AND (u.wf IS NULL OR c.write_ts IS NULL OR c.write_ts < u.wf)
			AND (u.mf IS NULL OR c.mark_ts IS NULL OR c.mark_ts < u.mf)
			AND (u.wt IS NULL OR c.write_ts IS NULL OR c.write_ts < u.wt)
			AND (u.rh IS NULL OR c.write_ts IS NULL OR c.write_ts NOT BETWEEN u.rl AND u.rh)`,
		set: `lock_ts = CASE u.le WHEN 1 THEN u.lt WHEN 2 THEN nullif(c.lock_ts, u.lt) ELSE c.lock_ts END,
			lock_val = CASE u.le WHEN 1 THEN u.lv WHEN 2 THEN CASE WHEN c.lock_ts = u.lt THEN NULL ELSE c.lock_val END ELSE c.lock_val END,
			write_ts = coalesce(u.wt, c.write_ts),
			write_val = CASE WHEN u.wt IS NULL THEN c.write_val ELSE u.wv END,
			mark_ts = CASE WHEN c.mark_ts BETWEEN u.xl AND u.xh THEN NULL ELSE greatest(c.mark_ts, u.mt) END,
			mark_val = CASE WHEN c.mark_ts BETWEEN u.xl AND u.xh THEN NULL
				WHEN u.mt >= c.mark_ts OR (u.mt IS NOT NULL AND c.mark_ts IS NULL) THEN u.mv ELSE c.mark_val END`,
		write:   "wt",
		may:     "u.wt IS NOT NULL",
		draws:   []string{"wt", "mt"},
		empties: true,
		ranges:  true,
		makes:   `u.le = 1 OR u.wt IS NOT NULL OR u.mt IS NOT NULL`,
		values:  `CASE u.le WHEN 1 THEN u.lt END, CASE u.le WHEN 1 THEN u.lv END, u.wt, u.wv, u.mt, u.mv`,
	},
	{
		name: "one",
		cols: []string{"lt bigint", "wt bigint", "wv bytea"},
		cond: `c.lock_ts IS NULL AND (c.write_ts IS NULL OR c.write_ts < u.lt) AND (c.mark_ts IS NULL OR c.mark_ts < u.lt)
			AND (c.write_ts IS NULL OR c.write_ts < u.wt)`,
		set:    `write_ts = u.wt, write_val = u.wv`,
		write:  "wt",
		draws:  []string{"wt"},
		makes:  `true`,
		values: `NULL, NULL, u.wt, u.wv, NULL, NULL`,
	},
}

// What the statements of every shape have in common. joinKey is for an UPDATE or DELETE; see
// functionSettings.
const (
	sameKey = `c.tab = u.tab AND c.key = u.key AND c.col = u.col`
	joinKey = `c.tab = ANY (ARRAY[u.tab]) AND c.key = u.key AND c.col = u.col`
	notBad  = `(v_bad IS NULL OR u.g <> ALL (v_bad))`
)

// pairs returns what a shape fills into schema_apply.sql.
func (s shape) pairs() []string {
	var params, args, cols []string
	for _, c := range s.cols {
		name, kind, _ := strings.Cut(c, " ")
		params = append(params, "p_"+name+" "+kind+"[]")
		args = append(args, "p_"+name)
		cols = append(cols, name)
	}
	list := `unnest(p_g, p_tab, p_key, p_col, ` + strings.Join(args, ", ") + `) WITH ORDINALITY AS u(g, tab, key, col, ` +
		strings.Join(cols, ", ") + `, i)`
	more, vars, draw, clean, tell := "", "", "", "", ""
	if s.empties {
		more, clean = "p_clean boolean, ", cleanSQL
	}
	if len(s.draws) > 0 {
		more += "{{own_params}}, "
		vars, draw, tell = "{{own_vars}}", s.draw(), "lock_ts := v_first;\n\twrite_ts := v_bound;"
	}
	return []string{
		"{{more_params}}", more, "{{draw_vars}}", vars, "{{draw}}", draw, "{{clean}}", clean, "{{tell}}", tell,
		"{{name}}", s.name,
		"{{params}}", strings.Join(params, ", "),
		"{{args}}", strings.Join(args, ", "),
		"{{cols}}", strings.Join(cols, ", "),
		"{{cond}}", s.cond,
		"{{update}}", s.update(list),
		"{{insert}}", s.insert(list),
		"{{ranges}}", s.rangesGone(list),
	}
}

// cleanSQL removes those cells that were left empty, of the cells that were changed here, and so are held.
const cleanSQL = `IF p_clean AND cardinality(v_done) > 0 THEN
			DELETE FROM {{schema}}.cell c USING unnest(p_tab, p_key, p_col) WITH ORDINALITY AS u(tab, key, col, i)
			WHERE u.i = ANY (v_done) AND c.tab = ANY (ARRAY[u.tab]) AND c.key = u.key AND c.col = u.col
				AND c.lock_ts IS NULL AND c.write_ts IS NULL AND c.mark_ts IS NULL;
		END IF;`

// draw is the SQL that draws the timestamps of groups and puts them where they belong. Groups whose timestamp is
// too late are done as those that did not hold.
func (s shape) draw() string {
	var set strings.Builder
	for _, list := range s.draws {
		set.WriteString("p_" + list + " := ARRAY(SELECT CASE WHEN u.t < 0 THEN v_first + u.g ELSE u.t END FROM unnest(p_" + list + ", p_g) u(t, g));\n\t\t")
	}
	return `IF p_lock IS NOT NULL THEN
		{{own}}
		IF v_first IS NULL THEN
			i := 0;
			inc := v_inc;
			RETURN NEXT;
			RETURN;
		END IF;
		` + set.String() + `IF (p_smask & 5) <> 0 THEN
			p_sts := ARRAY(SELECT CASE WHEN u.t < 0 THEN v_first + u.g ELSE u.t END FROM unnest(p_sts, p_sg) u(t, g));
		END IF;
		IF p_late IS NOT NULL THEN
			v_bad := v_bad || ARRAY(SELECT u.g::integer - 1 FROM unnest(p_late) WITH ORDINALITY u(late, g) WHERE u.late < v_first + u.g - 1);
		END IF;
	END IF;`
}

// update is the SQL that changes the cells that are there. list is what a shape is given, as
// a table u.
func (s shape) update(list string) string {
	set, spill, from := s.set, "", ""
	if s.write != "" {
		more, spilled := s.aging()
		set += more
		spill = `, u.tab, u.key, u.col, u.` + s.write + ` - 1 AS hi, c.past_oldest AS lo, CASE WHEN ` + spilled + ` THEN c.past END AS vals`
		from = `, spill AS (
			INSERT INTO {{schema}}.past (tab, key, col, lo, hi, vals)
			SELECT up.tab, up.key, up.col, up.lo, up.hi, up.vals FROM up WHERE up.vals IS NOT NULL
		)`
	}
	return `WITH up AS (
			UPDATE {{schema}}.cell c SET ` + set + `
			FROM ` + list + `
			WHERE ` + joinKey + ` AND (` + s.cond + `) AND ` + notBad + `
			RETURNING u.i` + spill + `
		)` + from + ` SELECT array_agg(up.i::integer) INTO v_done FROM up;`
}

// aging is what an update adds to SET where the newest write becomes an older one, and when the
// older writes of the cell are spilled into the table past.
func (s shape) aging() (set, spilled string) {
	may := "c.write_ts IS NOT NULL"
	spilled = `length(c.past) >= {{past_limit}}`
	if s.may != "" {
		may = s.may + " AND " + may
		spilled = s.may + " AND " + spilled
	}
	lowest := "CASE WHEN " + may + " THEN CASE WHEN length(c.past) < {{past_limit}} THEN c.past_oldest ELSE c.write_ts END"
	past := "CASE WHEN " + may + " THEN " + entry("c.write_ts", "c.write_val") +
		" || CASE WHEN length(c.past) < {{past_limit}} THEN c.past ELSE '' END"
	if s.ranges {
		const whole = ` WHEN c.past_oldest <= u.rh THEN CASE WHEN length(c.past) < {{past_limit}} THEN `
		const without = `{{schema}}.past_without(c.past, u.rl, u.rh)`
		lowest += whole + "{{schema}}.past_lowest(" + without + ") END"
		past += whole + without + " END"
	}
	return ", past_oldest = " + lowest + " ELSE c.past_oldest END, past = " + past + " ELSE c.past END", spilled
}

// insert is the SQL that makes the cells that are not there.
func (s shape) insert(list string) string {
	if s.makes == "" {
		return "NULL;"
	}
	return `WITH cand AS MATERIALIZED (
				SELECT u.* FROM ` + list + `
				LEFT JOIN LATERAL (SELECT * FROM {{schema}}.cell c WHERE ` + sameKey + ` OFFSET 0) c ON true
				WHERE c.tab IS NULL AND (` + s.cond + `) AND (` + s.makes + `) AND ` + notBad + `
			), ins AS (
				INSERT INTO {{schema}}.cell (tab, key, col, lock_ts, lock_val, write_ts, write_val, mark_ts, mark_val)
				SELECT u.tab, u.key, u.col, ` + s.values + ` FROM cand u ORDER BY u.i
				ON CONFLICT DO NOTHING RETURNING 1
			) SELECT (SELECT array_agg(cand.i::integer) FROM cand), (SELECT count(*) FROM ins) INTO v_new, v_ins;
			IF v_ins < cardinality(v_new) THEN
				RAISE EXCEPTION 'percolator: another client made the row' USING ERRCODE = 'PC002';
			END IF;`
}

// rangesGone is the SQL that removes ranges of writes from the table past.
func (s shape) rangesGone(list string) string {
	if !s.ranges {
		return ""
	}
	const sameOld = `o.tab = u.tab AND o.key = u.key AND o.col = u.col`
	const joinOld = `o.tab = ANY (ARRAY[u.tab]) AND o.key = u.key AND o.col = u.col`
	const ranged = `u.rh IS NOT NULL AND u.i = ANY (v_done)`
	return `IF (p_smask & 16) <> 0 THEN
			DELETE FROM {{schema}}.past o USING ` + list + `
			WHERE ` + ranged + ` AND ` + joinOld + ` AND o.lo BETWEEN u.rl AND u.rh AND o.hi <= u.rh;
			PERFORM {{schema}}.past_cut(u.tab, u.key, u.col, u.rl, u.rh) FROM ` + list + `
			WHERE ` + ranged + ` AND EXISTS (SELECT FROM {{schema}}.past o WHERE ` + sameOld + ` AND o.lo <= u.rh AND o.hi >= u.rl OFFSET 0);
		END IF;`
}
