-- From version 1 to 2: a line of the table old, which is one write, becomes a bundle
-- of one. The table stays the same one, and keeps who may use it. 
ALTER TABLE {{schema}}.cell ADD COLUMN past_lo bigint, ADD COLUMN past bytea;
ALTER TABLE {{schema}}.old ADD COLUMN hi bigint;
ALTER TABLE {{schema}}.old
	ALTER COLUMN val TYPE bytea USING {{old_entry}}, ALTER COLUMN val SET NOT NULL,
	ALTER COLUMN hi TYPE bigint USING ts, ALTER COLUMN hi SET NOT NULL;
ALTER TABLE {{schema}}.old RENAME COLUMN ts TO lo;
ALTER TABLE {{schema}}.old RENAME COLUMN val TO vals;
ALTER TABLE {{schema}}.old RENAME TO past;
ALTER INDEX {{schema}}.old_pkey RENAME TO past_pkey;
