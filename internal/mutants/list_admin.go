package main

const (
	dropGo       = "percolator/drop.go"
	adminTxnGo   = "admin/txn.go"
	adminCellsGo = "admin/cells.go"

	doctorSearchGo = "admin/doctor_search.go"
)

// adminMutants are those of what operators do and see.
var adminMutants = []mutant{
	{"drop-swallows-a-newer-change", "Looking: dropping one leaves a newer change of the cell to be seen", "TestDropParkedLeavesANewerChange", one(dropGo,
		" || view.change > f.Change || ", " || ")},
	{"drop-leaves-the-timer", "Looking: dropping one consumes the timer that it was for", "TestDropParkedOfATimer", one(dropGo,
		"\t_, err = tx.cover(i, view)\n", "\tview.timer = timerView{}\n\t_, err = tx.cover(i, view)\n")},
	{"existing-is-made", "Looking: WithExisting makes no database", "TestExisting", one(catalogGo,
		"\t\tcase db.opt.existing:\n", "\t\tcase db.opt.existing && v.revision > 0:\n")},
	{"history-goes-by-stored-versions-alone", "Looking: the lock of a committed transaction is a version of the cell", "./admin TestHistoryUnderALock", one(adminCellsGo,
		"\tif by.commit == 0 || len(stored) > 0", "\tif by.commit != by.write.Start || len(stored) > 0")},
	{"a-parked-run-holds-up-others", "Looking: what cannot be done for one parked run is done for the others", "./cmd/percolator TestNoParkedRunHoldsUpOthers", one("internal/stuck/stuck.go",
		"\tif s.n++; s.n > mostNamed {\n", "\tif s.n >= 0 {\n\t\treturn err\n\t}\n\tif s.n++; s.n > mostNamed {\n")},
	{"a-damaged-record-hides-parked-runs", "Looking: a record that cannot be read hides no parked runs", "./cmd/percolator TestNoParkedRunHoldsUpOthers", one("admin/parked.go",
		"\t\t\tp.unreadable(p.of[i], err)\n\t\t\tcontinue\n", "\t\t\treturn err\n")},
	{"status-of-arguments-after-writes", "Looking: the status of wrong arguments says that nothing was done", "./cmd/percolator TestStatusOf", one("cmd/percolator/exit.go",
		"\tif status == exitUsage && errors.As(", "\tif status == exitOK && errors.As(")},
	{"doctor-goes-by-notifications-alone", "Looking: a notification may wait for another observer of the column", "./admin TestDoctorBlamesWhoHasNotSeenIt", one("admin/doctor_work.go",
		"\t\tif ts == 0 {\n\t\t\tif !told {", "\t\tif false && ts == 0 {\n\t\t\tif !told {")},
	{"doctor-looks-at-the-first-cells-alone", "Looking: a notification may wait for another observer of the column", "./admin TestDoctorLooksBehindWhatOthersWaitFor", one(doctorSearchGo,
		"\t\tcase looked > 0 && d.spent():\n", "\t\tcase looked > 0:\n")},
	{"doctor-is-silent-where-it-cannot-tell", "Looking: a notification may wait for another observer of the column", "./admin TestDoctorSaysWhereItsSearchEnds", one(doctorSearchGo,
		"!o.AtLeast && !o.cut, nil", "!o.AtLeast || !o.cut, nil")},
	{"doctor-waits-for-cancelled-timers", "Looking: an entry of the index of timers may be of a timer that the cell does not have any more", "./admin TestDoctorOfCancelledTimers", one(doctorSearchGo,
		"\t\tcase !t.Stale && s.live == nil:\n", "\t\tcase s.live == nil:\n")},
	{"doctor-looks-at-the-first-timers-alone", "Looking: an entry of the index of timers may be of a timer that the cell does not have any more", "./admin TestDoctorLooksBehindCancelledTimers", one(doctorSearchGo,
		"told || s.looked >= mostTimers || ", "told || s.looked > 0 || ")},
	{"doctor-is-silent-of-timers-nobody-drops", "Looking: an entry of the index of timers may be of a timer that the cell does not have any more", "./admin TestDoctorSaysWhereItsSearchOfTimersEnds", one(doctorSearchGo,
		"\tcase told:\n", "\tcase told || s.stale > 0:\n")},
	{"set-makes-what-is-out-of-reach", "Looking: what the command makes is in reach of programs", "./cmd/percolator TestNamesLongerThanUsualAreNotMade", one("cmd/percolator/app.go",
		"\tif a.makes {\n", "\tif a.makes && a.config != \"\" {\n")},
	{"after-is-looked-at-late", "Looking: the status of wrong arguments says that nothing was done", "./cmd/percolator TestStatusOfABadAfter", one("cmd/percolator/values.go",
		"\t\tif after < 0 {\n", "\t\tif after < -1<<62 {\n")},
	{"backup-into-a-pipe", "Backup: a backup is in a regular file", "./cmd/percolator TestBackupToAFIFO", one("backup/regular.go",
		"\tif !info.Mode().IsRegular() {\n", "\tif info.Mode().IsDir() {\n")},
	{"a-damaged-entry-hides-timers", "Looking: a record that cannot be read hides no timers", "./admin TestTimersThatCannotBeRead", one("admin/timers.go",
		"\t\t\tif hint.err != nil {\n", "\t\t\tif hint.err != nil {\n\t\t\t\treturn nil, hint.err\n\t\t\t}\n\t\t\tif hint.err != nil {\n")},
	{"doctor-migrates-half-a-restore", "Backup: the record of a restore that has not ended is no catalog of another version", "./admin TestDoctorOfARestoreThatWasCutOff", one("admin/doctor.go",
		"\tcase errors.Is(err, format.ErrRestoring):\n", "\tcase errors.Is(err, format.ErrRestoring) && err == format.ErrRestoring:\n")},
	{"claimed-versions-take-room", "Backup: room is made by the versions that are there", "./backup TestCraftedFilesTakeLittle", one("backup/block.go",
		"\t\tfor range n { //", "\t\trow.Versions = make([]rowstore.Version, 0, n)\n\t\tfor range n { //")},
	{"claimed-length-takes-room", "Backup: room is made by the bytes of a frame that are there", "./backup TestCraftedFilesTakeLittle", one("backup/file.go",
		"min(length, firstRoom)", "length")},
	{"claimed-blocks-take-room", "Backup: room is made for what can come of a payload", "./backup TestCraftedFilesTakeLittle", one("backup/file.go",
		"if uint64(raw) > mostRatio*uint64(length) {", "if raw > mostFrame {")},
	{"payloads-claim-room", "Backup: what a payload says of itself makes no room", "./backup TestCraftedFilesTakeLittle", one("backup/file.go",
		", zstd.WithDecodeAllCapLimit(true))", ")")},
	{"backup-holds-for-a-wide-row", "Backup: a hold that no call goes on with is released", "./backup TestWideRow", one("backup/backup.go",
		"|| errors.Is(err, ErrLapsed) || errors.Is(err, errWideRow) {", "|| errors.Is(err, ErrLapsed) {")},
	{"backup-leaves-an-empty-file", "Backup: a file in which nothing was written is no backup that goes on", "./backup TestFailureBeforeTheFirstByte", one("backup/backup.go",
		"\tif err != nil {\n\t\tlock.drop()\n\t\treturn w.result(), err\n", "\tif err != nil {\n\t\treturn w.result(), err\n")},
	{"anchors-of-nothing", "Looking: a configuration says nothing that it does not mean", "./config TestWhatIsNoTextIsRefused", one("config/decode.go",
		"\t\t\tif node.Value == nil || isEmpty(node.Value) { // perhaps", "\t\t\tif node.Value == nil { // perhaps")},
	{"an-empty-column-is-all", "Looking: an empty name of a column is not all columns", "./admin TestBounded", one(adminCellsGo,
		"err == nil && slices.Contains(rng.Columns, \"\")", "err == nil && slices.Contains(rng.Columns, \"\\x00\")")},
	{"half-a-list-is-no-list", "Looking: what is no table hides none", "./admin TestTablesBesideAStrangeKey", one("admin/catalog.go",
		"\t\t\tfailed = called(\"Tables\", fmt.Errorf(\"listing the tables: %w\", err))\n\t\t\tbreak\n", "\t\t\treturn nil, false, called(\"Tables\", fmt.Errorf(\"listing the tables: %w\", err))\n")},
}
