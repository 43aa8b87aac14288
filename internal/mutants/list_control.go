package main

const (
	featureGo   = "percolator/feature.go"
	replayGo    = "percolator/replay.go"
	deleteRowGo = "percolator/deleterow.go"
	renameGo    = "percolator/rename.go"
	eraseGo     = "percolator/erase.go"
	erasedGo    = "percolator/erased.go"
	eraseRowsGo = "percolator/erase_remove.go"
)

// controlMutants are those of replays and of rows that are deleted as a whole.
var controlMutants = []mutant{
	{"request-does-not-count", "Replays: while a request stands the observer is not covered", "TestScheduleR_RunsOnceMore", one(viewGo,
		"\treturn v.failures[i].Replay && !v.failures[i].Parked\n", "\treturn v.failures[i].Replay && !v.failures[i].Parked && v.change == 0\n")},
	{"request-for-nothing-is-cleared", "Replays: a request for a cell that was collected is removed", "TestScheduleR_DeletionCollectedMeanwhile", one(viewGo,
		"\treturn v.failures[i].Replay && !v.failures[i].Parked\n", "\treturn v.failures[i].Replay && !v.failures[i].Parked && v.change != 0\n")},
	{"request-under-way-is-cleared", "Replays: a request that is under way counts", "TestScheduleR_OtherObserverMeetsTheRequest", one(viewGo,
		"\tif v.failureLocked[i] || v.replayed(i) {\n", "\tif v.replayed(i) {\n")},
	{"earlier-run-counts", "Replays: each run begins after its request", "TestScheduleR_RunUnderWay", one(replayGo,
		"\tif f.Parked {\n\t\tif err := tx.put(parkedIndex", "\tif f.Replay {\n\t\treturn nil\n\t}\n\tif f.Parked {\n\t\tif err := tx.put(parkedIndex")},
	{"failed-request-is-forgotten", "Replays: a failure keeps the request", "TestScheduleR_Failures", one(failureGo,
		"acked >= change && acked >= since && !old.Replay {", "acked >= change && acked >= since {")},
	{"nothing-tells-of-a-request", "Replays: a notification stands for each request", "TestScheduleR_RunsOnceMore", one(replayGo,
		"\ttx.told = append(tx.told, c)\n", "")},
	{"request-tells-everybody", "Replays: other observers of the column do not run", "TestScheduleR_RunsOnceMore", one(timerGo,
		"\tfor _, cell := range c.tx.told {\n\t\tc.notices = append(c.notices, notice{cell, format.StrongNotification})\n", "\tfor _, cell := range c.tx.told {\n\t\tc.notices = append(c.notices, notice{cell, format.WeakNotification})\n")},
	{"replay-skips-what-others-asked", "Replays: a call waits for what others have asked for", "TestScheduleR_DeathAtEachStep", one(replayGo,
		"\tif !bytes.Equal(begun, r.record.Next) {\n", "\tif len(begun) < 0 {\n")},
	{"replay-before-everybody-knows", "Replays: nothing is asked before every process knows of replays", "TestScheduleR_FirstOfAll", one(featureGo,
		"err == nil && now > from {\n", "err == nil && now > 0 {\n")},

	{"writer-ignores-the-whole-row", "Deleted rows: a writer looks for a lock of the row", "TestScheduleW_Overlap", one(deleteRowGo,
		"\t\trowstore.Absent(rowstore.Lock, format.ColumnWholeRow, 0),\n", "")},
	{"writer-ignores-the-mark", "Deleted rows: a writer looks for a deletion since its start", "TestScheduleW_UnseenColumn", one(deleteRowGo,
		"\t\trowstore.Absent(rowstore.Lock, format.ColumnWholeRow, 0),\n\t\trowstore.Absent(rowstore.Mark, format.ColumnWholeRow, c.start))\n", "\t\trowstore.Absent(rowstore.Lock, format.ColumnWholeRow, 0))\n")},
	{"deletion-looks-once", "Deleted rows: a deletion looks at the row after its prewrites", "TestScheduleW_UnseenColumn", one(twoPhaseGo,
		"\tif err := c.validateGone(ctx); err != nil {\n\t\treturn \"\", err\n\t}\n", "")},
	{"deletion-looks-up-to-its-commit", "Deleted rows: a lock that was there counts whenever it commits", "TestScheduleW_Overlap", one(deleteRowGo,
		"c.start, oracle.Max)", "c.start, min(c.commit, oracle.Max))")},
	{"timers-are-not-looked-for", "Deleted rows: timers count", "TestScheduleW_UnseenColumn", one(deleteRowGo,
		"\treturn timer || !format.Reserved(column)\n", "\treturn !timer && !format.Reserved(column)\n")},
	{"unaware-writer-commits", "Deleted rows: a commit by a view without deletions ends with a conflict above it", "TestScheduleW_ViewEnds", one(commitGo,
		"i >= 0 && view.RowDeletes && !c.view.RowDeletes {\n", "i > len(c.writes) && view.RowDeletes && !c.view.RowDeletes {\n")},
	{"deletion-began-too-early", "Deleted rows: a deletion begins above the moment from which on everybody knows", "TestScheduleW_FirstOfAll", one(deleteRowGo,
		"\tif tx.start > from {\n\t\treturn nil\n", "\tif tx.start > 0*from {\n\t\treturn nil\n")},
	{"deletion-does-not-wait", "Deleted rows: who begins too early waits before the next attempt", "TestScheduleW_SecondOfAll", one(deleteRowGo,
		"\tif _, err := tx.db.awaitFeature(ctx, rowDeletes); err != nil {\n\t\treturn called(\"DeleteRow\", err)\n\t}\n", "")},
	{"alias-is-another-observer", "Observers: renamed, a worker looks up its observers by any name", "TestScheduleN_TwoWorkers", one(renameGo,
		"string(o.Column) == column && o.Has(name) {\n", "string(o.Column) == column && o.Title() == name {\n")},
	{"records-under-the-new-name", "Observers: renamed, what an observer keeps is stored under its id", "TestScheduleN_RunUnderWay", one(renameGo,
		"\t\tq.o.id = v.idOf(q.o.Name, q.table, q.column)\n", "\t\tq.o.id = v.titleOf(v.idOf(q.o.Name, q.table, q.column), q.table, q.column)\n")},
	{"both-names-in-a-worker", "Observers: renamed, a worker has one name of each observer", "TestScheduleN_BothNames", one(renameGo,
		"if r != nil && other != q && ", "if r != nil && other != q && q == nil && ")},
	{"rename-takes-a-name", "Observers: renamed, a name is of one observer", "TestRenameObserverRefuses", one(renameGo,
		"case !o.Has(old) && o.Has(name):\n", "case !o.Has(old) && o.Title() == name:\n")},
	{"rename-is-not-told", "Observers: renamed, programs that do not know of renames stop", "TestScheduleN_OldNameAgainAndBack", one(renameGo,
		"\tv.Renamed = v.Renamed || changed\n", "")},
	{"removed-observer-under-a-new-id", "Observers: renamed, a worker goes on with a registration of its id and its name alone", "TestScheduleN_Removed", one("percolator/sweep.go",
		"r.Is(q.o.id, q.table, q.column) && r.Has(q.o.Name) {\n", "r.Is(q.o.id, q.table, q.column) {\n")},
	{"parked-of-a-removed-name", "Observers: renamed, what a removed observer has left goes by its id", "TestScheduleN_Parked", one("percolator/parked.go",
		"slices.Compact([]string{v.idOf(name, c.Table, c.Column), name})", "[]string{v.idOf(name, c.Table, c.Column)}")},

	{"erased-range-has-no-safe-point", "Erased ranges: reads and commits go by the safe point of the range", "TestScheduleE_NothingIsLeft|TestScheduleE_LateWriter", one(erasedGo,
		"r.SafePoint > safe && s.meets(r) {\n", "r.SafePoint > safe && s.meets(r) && r.SafePoint == 0 {\n")},
	{"late-writer-commits", "Erased ranges: a commit must have begun above the safe points of what it writes", "TestScheduleE_LateWriter", one("percolator/tables.go",
		"\tif !c.view.byTable() && len(c.view.erased) == 0 {\n", "\tif !c.view.byTable() {\n")},
	{"reads-are-not-looked-at-again", "Erased ranges: what a Serializable transaction validates counts", "TestScheduleE_Validation", one(erasedGo,
		"\t\tc.readSpans()(yield)\n", "")},
	{"erased-before-the-lease", "Erased ranges: nothing is removed before everybody knows the safe point", "TestScheduleE_WrittenMeanwhile|TestScheduleE_LateWriter", one(eraseGo,
		"\tif err := db.outlast(ctx); err != nil {\n\t\treturn err\n\t}\n", "")},
	{"locks-elsewhere-are-left", "Erased ranges: locks that depend on the range are resolved", "TestScheduleE_LocksElsewhere", one(eraseGo,
		"s.has(row.Table, row.Row) || s.has(primary.Table, primary.Row) })\n", "s.has(row.Table, row.Row) })\n")},
	{"erased-index-keeps-its-history", "Erased ranges: the history of the indexes of the table goes", "TestScheduleE_Index", one(eraseGo,
		"\tfor _, s := range e.spans[1:] {\n\t\t// The last", "\tfor _, s := range e.spans[:0] {\n\t\t// The last")},
	{"erased-range-stays-in-the-catalog", "Erased ranges: a range goes when its table has a later safe point", "TestScheduleE_BoundsGo", one(erasedGo,
		"\tif len(v.standingErased()) == len(v.erased) {\n", "\tif len(v.standingErased()) <= len(v.erased) {\n")},
	{"tried-row-is-gone", "Erased ranges: a row that somebody has tried to write counts as kept", "TestScheduleE_TriedMeanwhile", one(eraseRowsGo,
		"if v.TS > x.e.safe && !format.IsClaimColumn(v.Column) {\n", "if v.TS > oracle.Max && !format.IsClaimColumn(v.Column) {\n")},
	{"parked-run-is-erased", "Erased ranges: a parked run is an error", "TestScheduleE_Observers", one(eraseRowsGo,
		"if err != nil || !f.Parked {\n", "if err != nil || f.Parked {\n")},
	{"observers-are-not-waited-for", "Erased ranges: every observer has seen the deletions", "TestScheduleE_Observers|TestScheduleE_NothingIsLeft", one(eraseGo,
		"if waits = now; len(waits) == 0 {\n", "if waits = now; len(waits) >= 0 {\n")},
	{"later-write-is-erased", "Erased ranges: what was written since stays", "TestScheduleE_WrittenMeanwhile", one(eraseRowsGo,
		"if w.Kind == format.KindPut && ofUser(v.Column) {\n", "if w.Kind == format.KindLock && ofUser(v.Column) {\n")},
	{"deletion-in-one-phase", "Deleted rows: deletions take two phases", "TestScheduleW_UnseenColumn", one(onePhaseGo,
		"len(c.tx.gone) > 0 || ", "")},
}
