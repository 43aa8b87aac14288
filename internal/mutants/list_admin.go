package main

const (
	dropGo       = "percolator/drop.go"
	adminTxnGo   = "admin/txn.go"
	adminCellsGo = "admin/cells.go"
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
}
