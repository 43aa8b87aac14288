package main

const (
	drawnSQLGo    = "backends/postgres/drawn_sql.go"
	redisWriteLua = "backends/redis/scripts/write.lua"
)

// storeMutants break what the READMEs of the backends say.
var storeMutants = []mutant{
	{"in-flight-unseen", "stores: Postgres, readers take locks while anybody writes", "./backends/postgres TestReadersWaitForDraws", one(drawnSQLGo,
		"pg_current_snapshot())::xid) <> 0`\n",
		"pg_current_snapshot())::xid) < 0`\n")},
	{"in-flight-by-the-list", "stores: Postgres, the newest transactions are in no snapshot's list", "./backends/postgres TestBarrierKnowsTheNewest", one(drawnSQLGo,
		"\t\t\t\t|| ARRAY(SELECT generate_series(v_xmax, v_xmax + age(pg_snapshot_xmax(v_snap)::xid) - 1));\n",
		"\t\t\t\t;\n")},
	{"readers-keep-locks", "stores: Postgres, no lock of a reader lasts until its answer was taken", "./backends/postgres TestSuspendedReader", one(drawnSQLGo,
		"CASE WHEN pg_try_advisory_lock_shared(l) THEN pg_advisory_unlock_shared(l) ELSE false END",
		"pg_try_advisory_xact_lock_shared(l)")},
	{"large-reads-hold-the-oracle", "stores: Postgres, a large read does not hold the oracle's lock", "./backends/postgres TestSuspendedReader", one("backends/postgres/schema_reads.sql",
		"IF cardinality(p_lock) > {{few}} THEN",
		"IF cardinality(p_lock) > 100 * {{few}} THEN")},
	{"draw-holds-the-oracle", "stores: Postgres, the oracle's lock does not last until the commit", "./backends/postgres TestDrawsWhileAGroupWaits", one(drawnSQLGo,
		"\t\t\tv_last := {{step}};\n\t\t\tRAISE SQLSTATE 'PC006';\n",
		"\t\t\tv_last := {{step}};\n")},
	{"session-bounds-draws", "stores: Postgres, a session's lock_timeout ends no wait for a commit", "./backends/postgres TestLockTimeoutOfDraws", one(drawnSQLGo,
		"'lock_timeout', '10s', true",
		"'lock_timeout', '5ms', true")},
	{"judged-rows-unlocked", "stores: Postgres, rows that a group judges are locked too", "./backends/postgres TestJudgedRowsWaitForDraws", one("backends/postgres/apply_drawn.go",
		"\t\tto = append(to, rowLock{n.rowLock(m.Table, m.Row), len(m.Edits) > 0})\n",
		"\t\tif len(m.Edits) > 0 {\n\t\t\tto = append(to, rowLock{n.rowLock(m.Table, m.Row), true})\n\t\t}\n")},
	{"no-room-for-locks-fails", "stores: Postgres, a full table of locks has transactions commit in two phases", "./backends/postgres TestLockTableFull", one("backends/postgres/apply_drawn.go",
		"\tif sqlState(err) == outOfMemory {\n",
		"\tif sqlState(err) == tooManyConnections {\n")},
	{"functions-look-around", "stores: nothing outside the system's schema is looked up by a function", "./backends/postgres TestHostile", one("backends/postgres/schema.go",
		"const functionPath = `SET search_path = pg_catalog, pg_temp`\n",
		"const functionPath = `SET standard_conforming_strings = on`\n")},
	{"ended-wait-is-a-commit", "stores: a commit that the server stopped waiting for is not acknowledged as it is", "./backends/postgres TestWaitForStandbyEnded", one("backends/postgres/call.go",
		"\tif n.Code == plainWarning || n.Code == adminShutdown {\n",
		"\tif n.Code == plainWarning && n.Message == \"\" {\n")},
	{"replica-reads", "stores: every call is answered by a primary", "./backends/redis TestDemoted", one("backends/redis/script.go",
		"\tsc := newScript(\"allow-oom\", parts...)\n",
		"\tsc := newScript(\"no-writes\", parts...)\n")},
	{"first-master-checked-alone", "stores: every server is checked before it is used", "./backends/redis TestClusterMastersAreChecked|TestLaterMasterIsChecked", []edit{
		{"backends/redis/info.go", "\treturn in.check(&s.opts)\n}\n\n// askMasters", "\treturn nil\n}\n\n// askMasters"},
		{"backends/redis/info.go", "\t\t\t\treturn in.check(&s.opts)\n", "\t\t\t\treturn nil\n"},
	}},
	{"copies-outlive-their-writes", "stores: Redis, fields that are not in use have only what the history has", "./backends/redis TestHistory", one(redisWriteLua,
		"  call('HDEL', key, unpack(recents(f, 12)))\n", "")},
	{"newer-end-of-a-chunk-stays", "stores: Redis, a chunk that begins in a range is cut", "./backends/redis TestHistory", one(redisWriteLua,
		"  cut('[' .. over)\n", "")},
	{"older-end-of-a-chunk-stays", "stores: Redis, a chunk that ends in a range is cut, and keeps what is newer", "./backends/redis TestHistory", one(redisWriteLua,
		"  if not cut(first) then return false end\n", "")},
	{"too-new-writes-count", "stores: Redis, chunks are read unless the hash has all that is wanted", "./backends/redis TestHistory", one("backends/redis/scripts/read_part.lua",
		"      if h > th or h == th and l >= tl then\n        n = n + 1\n", "      n = n + 1\n      if h > th or h == th and l >= tl then\n")},
	{"first-field-is-the-last", "stores: Redis, the newest older write is the last one in the hash", "./backends/redis TestBeginWithTwoWrites", one("backends/redis/scripts/past_part.lua",
		"char(floor(k / 8) - 1)", "char(0)")},
	{"hints-without-bound", "stores: TiKV, the memory of hints is bounded", "./backends/tikvraw TestHintsOfManyGenerations", one("backends/tikvraw/hints.go",
		"\t\tif len(h.recent)+others < h.max {\n", "\t\tif len(ids) > 0 {\n")},
}
