package main

// edit replaces a piece of a file that must be there exactly once.
type edit struct {
	file     string
	old, new string
}

// mutant is one way to break the protocol.
type mutant struct {
	name string
	// rule is the title of a section of docs/architecture.md (The catalog for short; stores
	// for what the READMEs of the backends say), and the rule. A1 and the like are
	// schedules of docs/correctness.md.
	rule string
	// tests are what should notice: -run of package percolator, or of another one whose
	// tests alone are tried, named before a space; "" for the explorer alone.
	tests string
	edits []edit
}

const (
	commitGo       = "percolator/commit.go"
	onePhaseGo     = "percolator/onephase.go"
	twoPhaseGo     = "percolator/twophase.go"
	serializableGo = "percolator/serializable.go"
	rollbackGo     = "percolator/rollback.go"
	readGo         = "percolator/read.go"
	resolveGo      = "percolator/resolve.go"
	gcGo           = "percolator/gc.go"
	gcRemoveGo     = "percolator/gc_remove.go"
	gcRowGo        = "percolator/gc_row.go"
	runGo          = "percolator/run.go"
	viewGo         = "percolator/view.go"
	catalogGo      = "percolator/catalog.go"
	dbGo           = "percolator/db.go"
	scanGo         = "percolator/scan.go"
	settingsGo     = "percolator/settings.go"
	sweepGo        = "percolator/sweep.go"
	useGo          = "percolator/use.go"
	shareGo        = "percolator/share.go"
	findGo         = "percolator/find.go"
	queueGo        = "percolator/queue.go"
	memberGo       = "percolator/member.go"
	barrierGo      = "percolator/barrier.go"
)

func one(file, old, replacement string) []edit { return []edit{{file, old, replacement}} }

// mutants break one rule each.
var mutants = []mutant{
	// A transaction: prewrite.
	{"prewrite-ignores-writes", "A transaction: prewrite under Absent Write from start", "TestScheduleC3|TestBank", one(commitGo,
		"\t\trowstore.Absent(rowstore.Write, column, start),\n\t\trowstore.Absent(rowstore.Lock, column, 0),\n",
		"\t\trowstore.Absent(rowstore.Lock, column, 0),\n")},
	{"prewrite-misses-the-next-write", "A transaction: the range begins at start", "TestBank|TestScheduleA3", one(commitGo,
		"\t\trowstore.Absent(rowstore.Write, column, start),\n\t\trowstore.Absent(rowstore.Lock, column, 0),\n",
		"\t\trowstore.Absent(rowstore.Write, column, start+2),\n\t\trowstore.Absent(rowstore.Lock, column, 0),\n")},
	{"prewrite-ignores-locks", "A transaction: prewrite under Absent Lock", "TestScheduleC17|TestBank", one(commitGo,
		"\t\trowstore.Absent(rowstore.Lock, column, 0),\n\t\trowstore.Absent(rowstore.Mark, column, start),\n",
		"\t\trowstore.Absent(rowstore.Mark, column, start),\n")},
	{"prewrite-ignores-marks", "A transaction: prewrite under Absent Mark from start", "TestScheduleC6|TestScheduleA6", one(commitGo,
		"\t\trowstore.Absent(rowstore.Lock, column, 0),\n\t\trowstore.Absent(rowstore.Mark, column, start),\n",
		"\t\trowstore.Absent(rowstore.Lock, column, 0),\n")},
	{"prewrite-misses-its-own-fence", "A transaction: the range of marks begins at start itself", "TestScheduleC6", one(commitGo,
		"\t\trowstore.Absent(rowstore.Mark, column, start),\n",
		"\t\trowstore.Absent(rowstore.Mark, column, start+1),\n")},
	{"own-lock-is-a-conflict", "A transaction: a prewrite that finds its own lock succeeded earlier", "TestScheduleA3|TestReplyLost", one(twoPhaseGo,
		"out.Broke.Family == rowstore.Lock && out.Broke.TS == c.start:", "false && out.Broke.Family == rowstore.Lock:")},

	// A transaction: commit.
	{"commit-timestamp-before-prewrites", "A transaction: the commit timestamp is drawn after every prewrite was acknowledged", "", one(twoPhaseGo,
		"\tdeferred := c.deferrable()\n", "\tdeferred := c.deferrable()\n\tif c.commit, err = c.db.draw(ctx); err != nil {\n\t\treturn err\n\t}\n")},
	{"secondaries-first", "A transaction: secondaries follow the commit point", "TestScheduleA4|TestClientDies", one(twoPhaseGo,
		"\tgroup, grouped := c.commitGroup(first, rest)\n",
		"\t_ = c.applyRows(ctx, rest, deferred, c.commitMutation)\n\tgroup, grouped := c.commitGroup(first, rest)\n")},
	{"secondaries-in-a-plain-batch", "A transaction: never in a plain batch with the primary (A4)", "TestScheduleA4", one(twoPhaseGo,
		"\tgroup, grouped := c.commitGroup(first, rest)\n",
		"\tfor _, r := range rest {\n\t\tif c.db.grouper == nil {\n\t\t\tbreak\n\t\t}\n\t\t_, _ = c.db.store.Apply(ctx, []rowstore.Mutation{first, c.commitMutation(r)}, rowstore.ApplyOptions{})\n\t}\n\tgroup, grouped := c.commitGroup(first, rest)\n")},
	{"commit-without-its-lock", "A transaction: commit under Present Lock", "TestScheduleC5|TestScheduleA4|TestScheduleC6", one(twoPhaseGo,
		"\t\tm.Conditions = append(m.Conditions, rowstore.Present(c.writes[i].cell.Column, c.start))\n\t\tm.Edits = c.commitEditsOf(m.Edits, i)\n",
		"\t\tm.Edits = c.commitEditsOf(m.Edits, i)\n")},
	{"refused-commit-is-a-conflict", "A transaction: every failed commit goes through the status", "TestScheduleA3", one(twoPhaseGo,
		"\t\tcase state.committed != 0:\n\t\t\tc.commit = state.committed\n\t\t\treturn c.committed(rest, false, deferred)\n",
		"\t\tcase state.committed == 1:\n\t\t\treturn c.committed(rest, false, deferred)\n")},
	{"refused-one-phase-is-a-conflict", "A transaction: every failed one-phase goes through the status", "TestScheduleA3", one(onePhaseGo,
		"\t\tcase state.committed != 0:\n\t\t\tc.commit = state.committed\n\t\t\tc.db.count.onePhase.Add(1)\n\t\t\treturn nil\n\t\tcase out.TooLate:\n",
		"\t\tcase state.committed == 1:\n\t\t\treturn nil\n\t\tcase out.TooLate:\n")},
	{"lost-one-phase-is-a-conflict", "A transaction: an ambiguous reply is resolved by the status", "TestScheduleA3|TestReplyLost", one(onePhaseGo,
		"\t\t\treturn c.concludeOnePhase(ctx, err)\n", "\t\t\treturn c.lost(err)\n")},
	{"row-committed-as-a-whole-only", "A transaction: when a secondary row fails, go on cell by cell (C18)", "TestScheduleC18", one(twoPhaseGo,
		"!p.outs[i].Applied && r.to-r.from > 1", "false && r.to-r.from > 1")},
	{"lock-only-primary", "A transaction: a lock-only cell is never the primary", "TestScheduleA6|TestScheduleA7", one(commitGo,
		"\t\tif w.kind == format.KindLock {\n\t\t\tcontinue\n\t\t}\n\t\tif c.primary < 0 ||",
		"\t\tif w.kind == format.KindLock && len(c.writes) == 1 {\n\t\t\tcontinue\n\t\t}\n\t\tif c.primary < 0 ||")},
	{"lock-only-leaves-no-mark", "A transaction: a lock-only cell commits as a mark (A6)", "TestScheduleA6", one(resolveGo,
		"\t\treturn append(edits, rowstore.Put(rowstore.Mark, column, commit, format.EncodeMark(start)))\n", "\t\treturn edits\n")},
	{"lock-only-mark-at-start", "A transaction: the mark stands at the commit timestamp", "TestScheduleA6", one(resolveGo,
		"\t\treturn append(edits, rowstore.Put(rowstore.Mark, column, commit, format.EncodeMark(start)))\n",
		"\t\treturn append(edits, rowstore.Put(rowstore.Mark, column, start, format.EncodeMark(start)))\n")},
	{"one-phase-lock-only-leaves-no-mark", "A transaction: one-phase, lock only: Put Mark@AssignedTimestamp", "TestScheduleA6", one(onePhaseGo,
		"\t\t\t\tm.Edits = append(m.Edits, rowstore.Put(rowstore.Mark, col, rowstore.AssignedTimestamp, format.EncodeMark(c.start)))\n", "")},
	{"one-phase-without-conditions", "A transaction: one-phase under the conditions of prewrite on every cell", "TestBank|TestScheduleA6", one(onePhaseGo,
		"\t\t\tm.Conditions = prewriteConditions(m.Conditions, col, c.start)\n\t\t\tif w.kind == format.KindLock {\n",
		"\t\t\tif w.kind == format.KindLock {\n")},
	{"heartbeat-revives", "A transaction: a heartbeat is under Present Lock (A7)", "TestScheduleA7", one(twoPhaseGo,
		"\t\t\t\tConditions: []rowstore.Condition{rowstore.Present(p.Column, c.start)},\n", "")},
	{"no-heartbeat", "A transaction: a long transaction extends the expiry on its primary", "TestHeartbeat", one(twoPhaseGo,
		"for c.db.clock.Sleep(ctx, renewIn(c.db.clock, asked, lasts)) == nil {", "for c.db.clock.Sleep(ctx, renewIn(c.db.clock, asked, 1000*lasts)) == nil {")},
	{"complete-by-the-first-read", "Garbage collection: not committed is proved by what the last read of a status shows", "TestStatusIsNotCollected", one(resolveGo,
		"\t\tcomplete = complete && still\n", "\t\t_ = still\n")},
	{"too-old-commits", "The catalog: a commit timestamp more than MaxTxnAge after the start aborts", "TestTooOld", []edit{
		{commitGo, "\treturn min(c.view.until(), c.view.lastCommit(c.start))\n", "\treturn c.view.until()\n"},
		{commitGo, "\tif ts <= c.view.lastCommit(c.start) && c.start >= c.view.safePoint {\n", "\tif c.start >= c.view.safePoint {\n"},
	}},

	// A transaction: status and locks left behind.
	{"status-by-the-newest-write", "A transaction: all of Write from start, not the newest (A3)", "TestScheduleA3", one(resolveGo,
		"{Family: rowstore.Write, Column: primary.Column, From: start, To: oracle.Max, Limit: statusPage},",
		"{Family: rowstore.Write, Column: primary.Column, From: start, To: oracle.Max, Limit: 1},")},
	{"status-misses-the-next-timestamp", "A transaction: the range of the status begins at start", "TestScheduleA3|TestOutcome", one(resolveGo,
		"{Family: rowstore.Write, Column: primary.Column, From: start, To: oracle.Max, Limit: statusPage},",
		"{Family: rowstore.Write, Column: primary.Column, From: start + 2, To: oracle.Max, Limit: statusPage},")},
	{"mark-outranks-the-lock", "A transaction: with Lock@start undecided, whatever marks there are", "TestRule", one(resolveGo,
		"\tif v := row.At(rowstore.Lock, primary.Column, start); v != nil {\n",
		"\tif row.Newest(rowstore.Mark, primary.Column) != nil {\n\t\treturn txnState{aborted: true}, nil\n\t}\n\tif v := row.At(rowstore.Lock, primary.Column, start); v != nil {\n")},
	{"no-fence", "A transaction: undecided and dead: fence the primary first", "TestScheduleC6|TestScheduleC5", one(resolveGo,
		"\tm := fence(start, primary)\n\tif lock != nil {\n", "\tif lock == nil {\n\t\treturn true, nil\n\t}\n\tm := fence(start, primary)\n\tif lock != nil {\n")},
	{"fence-over-a-lock", "A transaction: fence under AbsentAt Lock@start", "TestScheduleC6|TestRule", one(resolveGo,
		"\t\t\trowstore.AbsentAt(primary.Column, start),\n", "")},
	{"fence-over-a-write", "A transaction: fence under Absent Write from start", "TestRule", one(resolveGo,
		"\t\t\trowstore.Absent(rowstore.Write, primary.Column, start),\n", "")},
	{"roll-back-leaves-no-mark", "A transaction: on the primary also Put Mark@start", "TestScheduleC6", []edit{
		{
			resolveGo, "\t\t\tEdits: append(rollBackEdits(nil, primary.Column, start, lock.Long, lock.Notify),\n\t\t\t\trowstore.Put(rowstore.Mark, primary.Column, start, nil)),\n",
			"\t\t\tEdits: rollBackEdits(nil, primary.Column, start, lock.Long, lock.Notify),\n",
		},
	}},
	{"own-roll-back-leaves-no-mark", "A transaction: an own abort marks the primary", "TestScheduleC20|TestScheduleC6|TestRule", one(rollbackGo,
		"\t\t\tm.Edits = append(m.Edits, rowstore.Put(rowstore.Mark, col, c.start, nil))\n", "\t\t\tcontinue\n")},
	{"no-fence-after-own-abort", "A transaction: after an abort with a prewrite of the primary in flight, fence it (C20)", "TestScheduleC20", one(rollbackGo,
		"\tif out.Applied {\n\t\treturn true, nil\n\t}\n\tstate, err := c.db.decide(", "\tif out.Applied || c.start > 0 {\n\t\treturn true, nil\n\t}\n\tstate, err := c.db.decide(")},
	{"secondary-before-primary", "A transaction: the primary goes first (C5)", "TestScheduleC5", one(resolveGo,
		"\t\tdecided, err := db.rollBackPrimary(ctx, start, Cell(l.Primary), state.lock)\n\t\tif err != nil && !errors.Is(err, rowstore.ErrAmbiguous) {\n\t\t\treturn false, fmt",
		"\t\tif cell != Cell(l.Primary) {\n\t\t\treturn true, db.rollBack(ctx, cell, start, l)\n\t\t}\n\t\tdecided, err := db.rollBackPrimary(ctx, start, Cell(l.Primary), state.lock)\n\t\tif err != nil && !errors.Is(err, rowstore.ErrAmbiguous) {\n\t\t\treturn false, fmt")},
	{"roll-forward-drops-the-notification", "A transaction: the roll forward replaces Notify@start by Notify@commit", "TestScheduleB", one(resolveGo,
		"commitEdits(nil, cell.Column, start, commit, l.Kind, l.Value, l.Long, l.Notify)", "commitEdits(nil, cell.Column, start, commit, l.Kind, l.Value, l.Long, false)")},
	{"roll-back-keeps-the-notification", "A transaction: roll back deletes Notify@start (C19)", "TestScheduleC19", one(resolveGo,
		"\tif notify {\n\t\tedits = append(edits, rowstore.Delete(rowstore.Notify, column, start))\n\t}\n", "\t_ = notify\n")},
	{"wait-before-status", "A transaction: whoever meets a lock asks for the status before waiting (C15)", "TestScheduleC15", []edit{
		{resolveGo, "\tif err != nil || !state.undecided() || mode == overrideLiveOwner {\n", "\tif err != nil || mode == overrideLiveOwner {\n"},
		{resolveGo, "\t\tcase state.committed != 0:\n\t\t\treturn true, db.rollForward(", "\t\tcase alive:\n\t\t\treturn false, nil\n\t\tcase state.committed != 0:\n\t\t\treturn true, db.rollForward("},
	}},
	{"session-is-ignored", "A transaction: alive means: its session is valid", "TestDeadClient", one(resolveGo,
		"case !sessionValid(&rows[1], now):", "case false && !sessionValid(&rows[1], now):")},
	{"expiry-is-ignored", "A transaction: and the expiry on the primary's lock has not passed (C16)", "TestForgottenLock", one(resolveGo,
		"case l.Expiry < now:", "case l.Expiry < now && false:")},
	{"the-living-are-dead", "A transaction: undecided and the owner alive: wait", "TestHeartbeat|TestScheduleC15|TestContextEndsWhileWaiting", one(resolveGo,
		"\tdefault:\n\t\treturn state, true, nil\n", "\tdefault:\n\t\treturn state, false, nil\n")},
	{"the-older-waits-too", "A transaction: an older one that meets a younger one's lock aborts (C17)", "TestScheduleC17", one(commitGo,
		"\tif broke.TS > c.start {\n", "\tif broke.TS > c.start && c.start == 0 {\n")},
	{"read-under-a-lock", "A transaction: a read meets Lock[0,S]", "TestScheduleC15|TestBank", one(readGo,
		"\t\tif v.TS > at {\n\t\t\tcontinue\n\t\t}\n", "\t\tif v.TS > 0 {\n\t\t\tcontinue\n\t\t}\n")},
	{"lock-only-blocks-readers", "A transaction: a lock-only lock is passed over", "TestScheduleA6", one(readGo,
		"\t\tif l.Kind == format.KindLock {\n", "\t\tif false && l.Kind == format.KindLock {\n")},

	// A transaction: write skew and limits.
	{"no-validation", "A transaction: Serializable validates after the prewrites", "TestWriteSkew|TestScheduleC3", one(twoPhaseGo,
		"\tif c.tx.opt.isolation == Serializable {\n", "\tif c.tx.opt.isolation > Serializable {\n")},
	{"validation-ignores-locks", "A transaction: no foreign put or delete lock", "TestScheduleC3|TestScheduleC17", one(serializableGo,
		"\t\tif l.Kind == format.KindLock {\n\t\t\tcontinue\n\t\t}\n\t\tif _, err := c.blocked(ctx, cell, v); err != nil {\n",
		"\t\tif l.Kind > 0 {\n\t\t\tcontinue\n\t\t}\n\t\tif _, err := c.blocked(ctx, cell, v); err != nil {\n")},
	{"validation-misses-the-first", "A transaction: no Write in (start, commit]", "TestRule|TestWriteSkew", one(serializableGo,
		"Column: column, From: start + 1, To: commit, Limit: 1})", "Column: column, From: start + 2, To: commit, Limit: 1})")},
	{"one-phase-takes-scans", "A transaction: one-phase takes a serializable transaction only when all it read are cells", "TestScheduleC3|TestWriteSkew|TestRule", one(onePhaseGo,
		"|| len(c.tx.ranges) > 0 {", "{")},
	{"one-phase-ignores-reads", "A transaction: what it read goes along as conditions", "TestScheduleC3|TestWriteSkew", one(onePhaseGo,
		"\tfor cell := range c.tx.reads {\n\t\tif c.find(cell) >= 0 {\n\t\t\tcontinue // covered", "\tfor cell := range c.tx.reads {\n\t\tif true || c.find(cell) >= 0 {\n\t\t\tcontinue // covered")},

	// The seam, and several stores: deferred batches.
	{"incarnations-not-compared", "The seam: a transaction that saw two incarnations aborts (A1)", "TestScheduleA1", one(twoPhaseGo,
		"\t\t\tif c.rows[i].incarnation != incarnation {\n", "\t\t\tif c.rows[i].incarnation == \"\" {\n")},
	{"incarnation-is-no-condition", "The seam: the commit of the primary has it as a condition (A1)", "TestScheduleA1", one(twoPhaseGo,
		"\tif incarnation != \"\" {\n", "\tif incarnation == \"never\" {\n")},
	{"decisions-deferred", "The seam: marks, roll backs and commit points are never deferred", "TestScheduleA1", one(dbGo,
		"[]rowstore.Mutation{m}, rowstore.ApplyOptions{})", "[]rowstore.Mutation{m}, rowstore.ApplyOptions{Deferred: db.defers})")},
	{"deferred-over-stores", "Several stores: deferred only where every row and the oracle live in one store", "TestScheduleA1", one(twoPhaseGo,
		"\t\tif !c.db.placer.Authoritative(c.writes[c.rows[i].from].cell.Table) {\n", "\t\tif c.writes[c.rows[i].from].cell.Table == \"\" {\n")},

	// Observers.
	{"notify-after-the-commit-point", "Observers: a notification is durable before the commit point", "TestScheduleB", one(twoPhaseGo,
		"\t\tif l.Notify {\n\t\t\tm.Edits = append(m.Edits, rowstore.Put(rowstore.Notify, w.cell.Column, c.start, format.StrongNotification))\n\t\t}\n", "")},
	{"notification-stays-at-start", "Observers: its commit replaces Notify@start by Notify@commit (B1)", "TestScheduleB", one(resolveGo,
		"\tif notify {\n\t\tedits = append(edits,\n", "\tif notify && start == 0 {\n\t\tedits = append(edits,\n")},
	{"notifications-removed-by-range", "Observers: removed are exactly those that the view showed (B1)", "TestScheduleB1", one(viewGo,
		"\t\tedits[i] = rowstore.Delete(rowstore.Notify, v.cell.Column, n.TS)\n",
		"\t\tedits[i] = rowstore.Delete(rowstore.Notify, v.cell.Column, n.TS)\n\t\tif i == 0 {\n\t\t\treturn []rowstore.Edit{rowstore.DeleteRange(rowstore.Notify, v.cell.Column, 0, v.at)}\n\t\t}\n")},
	{"other-observers-forgotten", "Observers: only if every other observer is covered (B2)", "TestScheduleB2", one(viewGo,
		"\t\tif j != i && !v.covered(j) {\n", "\t\tif j != i && j < 0 {\n")},
	{"locked-acknowledgment-covers", "Observers: a locked one does not cover (B2)", "TestScheduleB2", one(viewGo,
		"\tif v.ackLocked[i] {\n\t\treturn false\n\t}\n", "\tif v.ackLocked[i] {\n\t\treturn true\n\t}\n")},
	{"weak-is-no-reason", "Observers: the newest change is the greater of the newest write and weak notification (B3)", "TestScheduleB3", one(viewGo,
		"\t\tif k == format.NotifyWeak {\n", "\t\tif k == format.NotifyWeak && v.at == 0 {\n")},
	{"weak-too-early", "Observers: the hint is put at the commit timestamp (B3)", "TestScheduleB3", one(twoPhaseGo,
		"\tif err := c.putWeak(ctx, c.commit, primaryRow); err != nil {\n", "\tif err := c.putWeak(ctx, c.start, primaryRow); err != nil {\n")},
	{"weak-after-the-commit-point", "Observers: and before the commit point (B3)", "TestScheduleB3", one(twoPhaseGo,
		"\tif err := c.putWeak(ctx, c.commit, primaryRow); err != nil {\n\t\tstop()\n\t\tc.abort(ctx)\n\t\treturn err\n\t}\n\treturn c.commitPoint(ctx, incarnation, deferred)\n",
		"\terr = c.commitPoint(ctx, incarnation, deferred)\n\tif err == nil {\n\t\t_ = c.putWeak(ctx, c.commit, primaryRow)\n\t}\n\treturn err\n")},
	{"run-under-a-lock", "Observers: the view counts only without a lock at or below the start", "TestScheduleB", one(viewGo,
		"\t\tif lv.Kind == format.KindLock {\n", "\t\tif lv.Kind > 0 {\n")},
	{"acknowledgment-is-late", "Observers: its value is the start timestamp of the run (B6)", "TestScheduleB6", one(runGo,
		"format.EncodeAck(tx.start)", "format.EncodeAck(tx.start.Add(time.Hour))")},
	{"runs-acknowledge-nothing", "Observers: at most one run commits for a change", "TestAcknowledgmentsConflict|TestTwoWorkers", one(runGo,
		"\tif err := tx.put(Cell{c.Table, c.Row, format.AckColumn(observer, c.Column)}, format.KindPut, format.EncodeAck(tx.start)); err != nil {\n",
		"\tif err := tx.put(Cell{c.Table, c.Row, format.AckColumn(observer, c.Column)}, format.KindLock, nil); err != nil {\n")},
	{"unknown-observers-cleared", "Observers: workers leave alone notifications of observers that they do not have (C21)", "TestScheduleC21", one(runGo,
		"\tif len(view.seen) == 0 || !view.othersCovered(-1) {\n", "\tif len(view.seen) == 0 {\n")},
	{"old-catalog-commits", "The catalog: with a commit timestamp greater than f + lease the catalog is read again (B4)", "TestScheduleB4", []edit{
		{commitGo, "\treturn min(c.view.until(), ", "\treturn min(c.view.until().Add(time.Hour), "},
		{commitGo, "\tif !c.view.holds(ts) {\n", "\tif !c.view.holds(ts) && c.start == 0 {\n"},
	}},
	{"f-after-the-catalog", "The catalog: f is drawn before the catalog is read (B4)", "TestRule", one(catalogGo,
		"\tconfig := rows[0].Newest(rowstore.Write, format.ColumnConfig)\n",
		"\tif v.asOf, err = db.draw(ctx); err != nil {\n\t\treturn false, err\n\t}\n\tconfig := rows[0].Newest(rowstore.Write, format.ColumnConfig)\n")},
	{"sweep-at-once", "The catalog: a new observer waits while somebody goes by an older catalog, a lease at most (B4)", "TestScheduleB4|TestSweepWaits", one(useGo,
		"\t\tif at, err = db.draw(ctx); err != nil || !older || at >= end {\n", "\t\tif at, err = db.draw(ctx); err != nil || !older || at > 0 {\n")},
	{"records-unread", "The catalog: a publisher reads the records", "TestScheduleB4|TestSweepWaits", one(useGo,
		"\t\tif use, err := format.DecodeUse(records[i].Value); err != nil || use.Revision < revision {\n", "\t\tif use, err := format.DecodeUse(records[i].Value); err != nil || use.Revision == 0 {\n")},
	{"timestamp-before-the-records", "The catalog: the sweep's snapshot is drawn after the records were read", "TestSweepIsLater", one(useGo,
		"\t\tif at, err = db.draw(ctx); err != nil || !older || at >= end {\n", "\t\tif at = v.asOf; !older || at >= end {\n")},
	{"record-after-the-catalog", "The catalog: a process that stored its record reads the catalog again", "TestRecordIsStored", one(catalogGo,
		"\t\t\treturn nil, fmt.Errorf(\"reading the catalog: %w\", err)\n\t\t}\n\t}\n}\n\n// readRevision",
		"\t\t\treturn nil, fmt.Errorf(\"reading the catalog: %w\", err)\n\t\t}\n\t\tdb.install(v)\n\t\treturn v, nil\n\t}\n}\n\n// readRevision")},
	{"condemned-record-stands", "The catalog: a view that was read with a condemned record is not used", "TestCondemned", one(useGo,
		"return err == nil && !use.Condemned && use", "return err == nil && use")},
	{"use-ends-early", "The catalog: a commit goes by its view until its timestamp is drawn", "TestSweepWaitsForACommit", one(commitGo,
		"\tc.notify = make([]bool, len(c.writes))\n", "\tc.notify = make([]bool, len(c.writes))\n\tdefer c.endUse(false)\n")},
	{"record-before-uses-end", "The catalog: the record moves on when no commit goes by an older view", "TestSweepWaitsForACommit", one(useGo,
		"\tfor r := range u.open {\n\t\tleast = min(least, r)\n\t}\n", "")},
	{"unknown-fate-is-none", "The catalog: a one-phase commit of unknown fate goes by its view until that ends", "TestSweepWaitsForACommit", one(commitGo,
		"\tunknown = errors.Is(err, ErrUndetermined)\n", "\tunknown = false\n")},
	{"close-removes-the-doubtful", "The catalog: a process leaves its record while a commit's fate is unknown", "TestSweepWaitsForACommit", one(useGo,
		"u.newest > 0 && len(u.open) == 0 && len(u.doubtful) == 0\n", "u.newest > 0\n")},
	{"records-buried-at-once", "The catalog: a condemned record is removed a lease later", "TestCondemnedRecordStays", one(gcGo,
		"\tif err := db.outlast(ctx); err != nil {\n", "\tif err := db.buryUses(ctx, condemned); err != nil {\n\t\treturn report, err\n\t}\n\tif err := db.outlast(ctx); err != nil {\n")},
	{"the-living-are-buried", "The catalog: a record that its process stored anew stays", "TestCondemned", one(useGo,
		"rowstore.DeleteRange(rowstore.Mark, r.column, 0, r.at)\n", "rowstore.DeleteRange(rowstore.Mark, r.column, 0, oracle.Max)\n")},
	{"sweep-looks-past-locks", "Observers: with the normal rules for locks (B4)", "TestScheduleB4", one(sweepGo,
		"\t\t\terr = w.db.settle(ctx, &row, picks, at)\n", "\t\t\terr = ctx.Err()\n")},
	{"sweep-for-the-unacknowledged-only", "Observers: whose newest write is newer than the acknowledgment (B4)", "TestScheduleB4", one(sweepGo,
		"\t\tif newest.TS <= acked {\n", "\t\tif newest.TS <= acked || acked > 0 {\n")},

	// Garbage collection, and the catalog.
	{"garbage-before-locks", "Garbage collection: resolve every lock below the safe point first (A2)", "TestScheduleA2", one(gcGo,
		"\t\tn, err := db.resolveBelow(ctx, t, safe)\n", "\t\tn, err := db.resolveBelow(ctx, t, 0)\n")},
	{"collection-respects-the-living", "Garbage collection: whether its owner lives or not (A2)", "TestScheduleA2", one(gcGo,
		"v.TS, &l, overrideLiveOwner)", "v.TS, &l, respectLiveOwner)")},
	{"no-flush-before-removal", "Garbage collection: Flush every store that defers (A2)", "TestScheduleA2", one(gcGo,
		"\t\tif err := d.Flush(ctx); err != nil {\n", "\t\tif err := error(nil); d == nil {\n")},
	{"no-lease-before-removal", "Garbage collection: wait one lease (C2)", "TestScheduleC2", one(gcGo,
		"\tfor now := v.asOf; now.Sub(v.asOf) < lease; {\n", "\tfor now := v.asOf; now.Sub(v.asOf) < lease/1000; {\n")},
	{"safe-point-too-near", "Garbage collection: at least MaxTxnAge + catalog lease behind now (C7)", "TestScheduleC7", one(gcGo,
		"\tkeep = max(keep, age+lease)\n", "\tkeep = max(keep, age*0+lease*0)\n")},
	{"newest-version-removed", "Garbage collection: versions below the newest one at or below the safe point", "TestCollection", one(gcRowGo,
		"\t\t} else {\n\t\t\tdrop = drop[1:]\n\t\t}\n", "\t\t}\n")},
	{"collection-off-by-one", "Garbage collection: the newest one at or below the safe point", "TestCollection|TestRule", one(gcRowGo,
		"\tfor n < len(writes) && writes[n].TS > g.safe {\n", "\tfor n < len(writes) && writes[n].TS > g.safe+1 {\n")},
	{"unseen-deletes-removed", "Garbage collection: a delete only under Absent Notify and with no parked record (B5)", "TestScheduleB5", one(gcRowGo,
		"newest.Kind == format.KindDelete && g.seen(column)", "newest.Kind == format.KindDelete")},
	{"data-under-a-lock-removed", "Garbage collection: orphan Data under AbsentAt Lock@start (C8)", "TestScheduleC8", one(gcRowGo,
		"known[d.TS] || g.row.At(rowstore.Lock, column, d.TS) != nil {", "known[d.TS] {")},
	{"data-of-a-late-lock-removed", "Garbage collection: orphan Data under AbsentAt Lock@start (C8)", "TestScheduleC8", one(gcRowGo,
		"\t\tg.m.conditions = append(g.m.conditions, rowstore.AbsentAt(column, d.TS))\n", "")},
	{"marks-removed-early", "Garbage collection: marks below the safe point", "TestCollection|TestRule", []edit{
		{gcRemoveGo, "all(rowstore.Mark, 0, safe-1, 1), all(", "all(rowstore.Mark, 0, oracle.Max, 1), all("},
		{gcRowGo, "rowstore.DeleteRange(rowstore.Mark, column, 0, g.safe-1)", "rowstore.DeleteRange(rowstore.Mark, column, 0, oracle.Max)"},
	}},
	{"safe-point-ignored", "Garbage collection: readers check the safe point after each reply (C2)", "TestScheduleC2|TestScheduleA5", one(catalogGo,
		"\tif s < v.safePoint {\n", "\tif s < v.safePoint && s == 0 {\n")},
	{"old-safe-point-believed", "The catalog: a view of the catalog counts for less than one lease, by the oracle (C2)", "TestScheduleC2|TestStopped", one(catalogGo,
		"{ return ts.Sub(v.asOf) < v.lease }\n", "{ return ts.Sub(v.asOf) < 1000*v.lease }\n")},
	{"view-dated-by-its-reply", "The catalog: a view of the catalog is measured from before it was read (C2)", "TestScheduleC2|TestStopped|TestRule", one(catalogGo,
		"\tv.lease = v.leaseAt(v.asOf)\n", "\tv.lease = v.leaseAt(v.asOf)\n\tif v.asOf, err = db.draw(ctx); err != nil {\n\t\treturn nil, err\n\t}\n")},
	{"fate-below-the-safe-point", "Garbage collection: not committed is proved only above the safe point (A5)", "TestScheduleA5", one(resolveGo,
		"\t\tif !state.complete || role != primaryCell {\n\t\t\tif err := db.checkSnapshot(ctx, start); err != nil {\n", "\t\tif start == 0 {\n\t\t\tif err := db.checkSnapshot(ctx, start); err != nil {\n")},

	// Timestamps.
	{"snapshot-of-the-future", "Timestamps: an AsOf above what was handed out is refused (C1)", "TestScheduleC1|TestAsOf", one(dbGo,
		"\t\tif tx.opt.asOf > tx.start {\n", "\t\tif tx.opt.asOf > tx.start.Add(1000*time.Hour) {\n")},

	// What the tests did not notice once.
	{"scan-noted-at-its-end", "A transaction: a scan notes what it shows before it shows it", "TestCommitWithinAScan|TestNoWriteSkewWithinScans", one(scanGo,
		"\tif s.r.Reverse {\n\t\ts.note(p.key, s.r.To)\n\t} else {\n\t\ts.note(s.r.From, p.key+\"\\x00\")\n\t}\n",
		"\tif s.r.Reverse {\n\t\tdefer s.note(p.key, s.r.To)\n\t} else {\n\t\tdefer s.note(s.r.From, p.key+\"\\x00\")\n\t}\n")},
	{"outcome-by-the-cell-asked", "A transaction: a lock that names another primary is decided by that one", "TestOutcomeOfEachCell|TestOutcomeOfASecondary", one(resolveGo,
		"\t\tif lock != nil && Cell(lock.Primary) != cell {\n",
		"\t\tif lock != nil && Cell(lock.Primary) != cell && lock.Primary.Table == \"\" {\n")},
	{"outcome-of-lock-only-forgotten", "A transaction: a mark names the transaction that committed it", "TestOutcomeOfALockedCell|TestOutcomeOfEachCell", one(resolveGo,
		"\tcase by == start:\n",
		"\tcase by == start && start == 0:\n")},
	{"outcome-of-own-cells-forgotten", "A transaction: a primary of the library's own is taken as it is stored", "TestOutcomeOfTheLibrarysOwnCells", one(resolveGo,
		"\t\tif format.OwnCell(format.Cell(own)) {\n",
		"\t\tif format.OwnCell(format.Cell(own)) && own.Table == \"\" {\n")},
	{"notification-without-guards", "A transaction: a transaction that only notifies is bound by its locks and its validation", "TestGuardedNotif", one(commitGo,
		"\t\tif !tx.guarded() {\n",
		"\t\tif !tx.guarded() || tx.start > 0 {\n")},
	{"safe-point-by-the-local-clock", "Garbage collection: that a safe point is fresh is known by the oracle alone", "TestClockThatStoodStill|TestSuspended|ByAClockThatStoodStill", one(catalogGo,
		"\tif !v.holds(now) {\n\t\tvar err error\n",
		"\tif db.clock.Now().Sub(v.sentAt) >= v.lease {\n\t\tvar err error\n")},
	{"missing-is-no-reason-to-ask", "Garbage collection: what a read did not find may have been collected", "TestClockThatStoodStill|TestSuspended|TestScheduleC2", one(catalogGo,
		"\tif complete {\n\t\treturn db.checkFound(s)\n\t}\n",
		"\tif complete || s > 0 {\n\t\treturn db.checkFound(s)\n\t}\n")},
	{"raised-age-binds-nobody", "The catalog: the least MaxTxnAge that held since the start binds", "TestLeastAgeBinds|TestLongerAge", one(settingsGo,
		"\tif c.inForce(start) {\n\t\treturn start.Add(settingsOf(*c.Next).MaxTxnAge)\n\t}\n",
		"\tif c.Next != nil {\n\t\treturn start.Add(settingsOf(*c.Next).MaxTxnAge)\n\t}\n")},
	{"past-age-forgotten", "The catalog: the least MaxTxnAge that held since the start binds, through several changes", "TestLeastAgeBinds|TestLongerAge", one(settingsGo,
		"\tfor _, p := range c.Past {\n\t\tif start < p.Until {\n",
		"\tfor _, p := range c.Past {\n\t\tif start == p.Until {\n")},
	{"commit-below-the-safe-point", "The catalog: no commit whose start is below the safe point", "TestNoCommitBelowTheSafePoint", one(commitGo,
		"\tif ts <= c.view.lastCommit(c.start) && c.start >= c.view.safePoint {\n",
		"\tif ts <= c.view.lastCommit(c.start) {\n")},
	{"change-dated-too-early", "The catalog: settings change when nobody goes by the old lease any more", "TestShorterLease|TestConfigure", one(settingsGo,
		"\t\tv.NextFrom = now.Add(2*settingsOf(v.Current).CatalogLease) + 1\n",
		"\t\tv.NextFrom = now + 1\n")},
	{"wider-lease-forgotten", "The catalog: the widest lease that any view may go by counts", "TestShorterLease|TestConfigure", one(settingsGo,
		"\t\treturn max(s.MaxTxnAge, n.MaxTxnAge), max(s.CatalogLease, n.CatalogLease)\n",
		"\t\treturn max(s.MaxTxnAge, n.MaxTxnAge), min(s.CatalogLease, n.CatalogLease)\n")},
	{"late-observer-unasked", "The catalog: after the lease the catalog is read again, and a new observer is a conflict", "TestCommitSlowerThanTheLease|TestScheduleB4", one(commitGo,
		"\t\t\tif !c.notify[i] && c.observed(i) {\n",
		"\t\t\tif false && c.observed(i) {\n")},
	{"sweep-not-taken-over", "Observers: a sweep is taken over from a worker that died, also by one that runs for long", "TestSweepIsTakenOver", []edit{
		{sweepGo, "\t\tif len(w.unswept(v)) > 0 {\n\t\t\tif err := w.retry(", "\t\tif len(w.unswept(v)) > 0 && !w.isReady() {\n\t\t\tif err := w.retry("},
		{sweepGo, "// checkRegistered returns", "func (w *Worker) isReady() bool {\n\tselect {\n\tcase <-w.ready:\n\t\treturn true\n\tdefault:\n\t\treturn false\n\t}\n}\n\n// checkRegistered returns"},
	}},
	{"removed-observer-untold", "Observers: a worker whose observer was removed is told", "TestRemovedObserverEndsItsWorker", one(sweepGo,
		"\tif v.asOf < w.published {\n",
		"\tif v.asOf < w.published || v.asOf > 0 {\n")},
	{"shares-unheeded", "Observers: a slot goes to one member alone", "TestEachSlotHasAnOwner", one("percolator/ring.go",
		"\t\tif owner == mine+1 {\n",
		"\t\tif owner == mine+1 || slot%64 == 0 {\n")},
	{"share-of-nobody", "Observers: where nobody has a share, whoever finds a change runs it", "TestEachSlotHasAnOwner|TestSharesOfATime", one(shareGo,
		"\tcase len(part) == 0 || mine == 0 && len(part) == 1:\n",
		"\tcase mine == 0 && len(part) == 1:\n")},
	{"claims-unread", "Observers: a run that takes long is not begun by others", "TestLongRunsAreClaimed", one(runGo,
		"view.claimedBy != w.id && view.claimed > tx.start {\n",
		"view.claimedBy == w.id && view.claimed > tx.start {\n")},
	{"unowned-forgotten", "Observers: a cell that is not a worker's own now may be so at the next look", "", one(findGo,
		"\treturn slices.DeleteFunc(cells, func(f finding) bool { return len(f.queues) == 0 })\n",
		"\tfor _, f := range cells {\n\t\tif len(f.queues) == 0 {\n\t\t\tw.mu.Lock()\n\t\t\tw.rested.cells[w.rested.key(f.cell)] = restedCell{f.seen, 1<<64 - 1, 1 << 62}\n\t\t\tw.mu.Unlock()\n\t\t}\n\t}\n\treturn slices.DeleteFunc(cells, func(f finding) bool { return len(f.queues) == 0 })\n")},
	{"later-notification-known", "Observers: a run knows no notification above its snapshot", "TestChangeBetweenSnapshotAndView", one(runGo,
		"w.rested.signature(view.cell, view.observers, view.seen)\n",
		"w.signature(view)\n")},
	{"damaged-row-hides", "Observers: a row that cannot be read hides no others", "TestDamagedRowHidesNoOthers", one("percolator/detour.go",
		"\tif len(second) == 0 {\n",
		"\tif len(second) == 0 || true {\n")},
	{"dropped-job-remains", "Observers: a job that was dropped because its cell went to another worker can be found again", "", one(queueGo,
		"\t\tif !w.owns(q, t.cell, at) {\n\t\t\tdelete(w.jobs, t.job)\n",
		"\t\tif !w.owns(q, t.cell, at) {\n")},
	{"acknowledgments-overlap", "Observers: runs of one change exclude each other by their acknowledgments alone", "", one(commitGo,
		"\treturn append(conds,\n\t\trowstore.Absent(rowstore.Write, column, start),\n",
		"\tif _, _, _, own := format.SplitOwnColumn(column); own {\n\t\treturn append(conds, rowstore.Absent(rowstore.Lock, column, 0), rowstore.Absent(rowstore.Mark, column, start))\n\t}\n\treturn append(conds,\n\t\trowstore.Absent(rowstore.Write, column, start),\n")},
	{"claims-for-ever", "Observers: claims end by themselves", "", one(runGo,
		"view.claimedBy != w.id && view.claimed > tx.start {\n\t\t\treturn runResult{next: runWaiting, wait: view.claimed.Sub(tx.start)}\n",
		"view.claimedBy != w.id {\n\t\t\treturn runResult{next: runWaiting, wait: max(view.claimed.Sub(tx.start), time.Second)}\n")},
	{"cleared-for-own-observers", "Observers: a notification is removed after every observer has seen the change, also those of other workers", "", one(runGo,
		"\tremoved := view.othersCovered(i)\n",
		"\tremoved := true\n\tfor j, name := range view.observers {\n\t\tremoved = removed && (j == i || !w.observes(name, view.cell) || view.covered(j))\n\t}\n")},
	{"shares-by-column", "Observers: shares are of an observer, not of a column", "", one(memberGo,
		"w.Observer == q.o.Name && w.Table == q.table", "w.Table == q.table")},
	{"begun-uncounted", "Observers: WaitIdle, a run is counted before its function is called", "TestWaitIdleWaitsForRunsBetweenAnswers", one("percolator/claim.go",
		"\tt.q.begun++\n", "")},
	{"idle-by-one-answer", "Observers: WaitIdle, nothing has begun between two answers", "TestWaitIdleWaitsForRunsBetweenAnswers", one(barrierGo,
		"a.at > 0 && !a.busy && b.at >= barrier && !b.busy && a.begun == b.begun",
		"b.at >= barrier && !b.busy")},
	{"silence-is-idle", "Observers: WaitIdle, a worker that does not answer is busy", "TestWaitIdleWaitsForRunsBetweenAnswers", []edit{
		{barrierGo, "func(m mustered) bool { return m.at < barrier }", "func(m mustered) bool { return m.at == barrier+1 }"},
		{barrierGo, "b.at >= barrier && !b.busy", "!b.busy"},
	}},
	{"joiners-unseen", "Observers: WaitIdle, a worker that came and went is seen by the generation", "TestWaitIdleSeesThoseThatCameAndWent", one("percolator/idle.go",
		"if err == nil && generation != l.base.generation {", "if err == nil && generation == 1 {")},
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
}
