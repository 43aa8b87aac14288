-- From version 1 to 2: a line of the table old, which is one write, becomes a bundle
-- of one. The table stays the same one, and keeps who may use it. The functions
-- are made anew.
ALTER TABLE {{schema}}.cell ADD COLUMN past_lo bigint, ADD COLUMN past bytea;
ALTER TABLE {{schema}}.old ADD COLUMN hi bigint;
ALTER TABLE {{schema}}.old
	ALTER COLUMN val TYPE bytea USING {{old_entry}}, ALTER COLUMN val SET NOT NULL,
	ALTER COLUMN hi TYPE bigint USING ts, ALTER COLUMN hi SET NOT NULL;
ALTER TABLE {{schema}}.old RENAME COLUMN ts TO lo;
ALTER TABLE {{schema}}.old RENAME COLUMN val TO vals;
ALTER TABLE {{schema}}.old RENAME TO past;
ALTER INDEX {{schema}}.old_pkey RENAME TO past_pkey;

DROP FUNCTION {{schema}}.apply_prewrite, {{schema}}.apply_commit, {{schema}}.apply_any, {{schema}}.apply_general,
	{{schema}}.scan_page, {{schema}}.scan_keys, {{schema}}.read_any, {{schema}}.read_point,
	{{schema}}.draw, {{schema}}.flush, {{schema}}.durability, {{schema}}.guard, {{schema}}.incarnation_id;
