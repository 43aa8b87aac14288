-- The tables of version 8 of the schema. {{schema}} stands for the quoted name of the schema.

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
-- bytes), length (4) and value; past_oldest is the oldest timestamp in it. A commit puts
-- the write that it replaces in front of it. Once that makes it as long as
-- {{past_limit}} bytes it goes into the table past, all of it, in the same statement;
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
	past_oldest   bigint,
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
