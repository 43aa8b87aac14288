package main

const (
	timerGo = "percolator/timer.go"
	fireGo  = "percolator/fire.go"

	periodicGo = "percolator/periodic.go"
	scheduleGo = "percolator/schedule.go"
	cronGo     = "percolator/cron.go"
)

// timerMutants are those of timers.
var timerMutants = []mutant{
	{"run-clears-what-tells-of-a-timer", "Timers: of what tells of a timer that waits, one notification stays", "TestScheduleT_ChangeBefore|TestScheduleT_RunsWhenDue", one(viewGo,
		"\tif v.waits() && len(seen) > 0 {\n", "\tif v.waits() && len(seen) > 1<<20 {\n")},
	{"timer-runs-early", "Timers: a timer counts from when it is due", "TestScheduleT_RunsWhenDue", one(viewGo,
		"\tif v.timer.set && v.timer.at <= at {\n", "\tif v.timer.set {\n")},
	{"timer-due-before-it-was-set", "Timers: a timer counts from its commit", "TestScheduleT_DueBeforeWhatWasSeen", one(timerGo,
		"at: max(t.Due, row.Newest(rowstore.Write, column).TS)}", "at: t.Due}")},
	{"run-leaves-the-timer", "Timers: the last observer removes the timer", "TestScheduleT_CancelledDuringTheRun|TestScheduleT_RunsWhenDue", one(timerGo,
		"\tcase view.othersSaw(i):\n\t\treturn tx.put(timer, format.KindDelete, nil)\n", "\tcase view.othersSaw(i):\n\t\treturn nil\n")},
	{"first-run-ignores-a-cancellation", "Timers: a run conflicts with a cancellation", "TestScheduleT_CancelledDuringTheFirstRun", one(timerGo,
		"\t\treturn tx.lock(timer)\n", "\t\treturn nil\n")},
	{"first-run-removes-the-timer", "Timers: each observer of the column runs", "TestScheduleT_SeveralObservers", one(timerGo,
		"\t\tif j != i && (v.ackLocked[j] || v.acks[j] < v.timer.at) {\n", "\t\tif j != i && v.ackLocked[j] {\n")},
	{"function-cannot-set-the-next", "Timers: a function sets the timer of its own cell", "TestScheduleT_SetsTheNext", one(timerGo,
		"own != nil && own.kind != format.KindLock {", "own != nil && i < 0 {")},
	{"index-after-the-commit", "Timers: the index has a timer before the commit point", "TestScheduleT_DeathAtEachStep|TestScheduleT_DueBefore", one(notifyGo,
		"\treturn c.putAll(ctx, append(muts, c.hints...))\n", "\tc.db.background(func(ctx context.Context) { _ = c.db.clock.Sleep(ctx, nearTimer); _ = c.putAll(ctx, c.hints) })\n\treturn c.putAll(ctx, muts)\n")},
	{"view-without-the-timers-lock", "Timers: a view waits for the lock of the timer", "TestScheduleT_DueBefore", one(viewGo,
		"\tif column == format.TimerColumn(c.Column) {\n\t\treturn true\n\t}\n", "")},
	{"near-before-everybody-knows", "Timers: no notification stands for a timer before everybody knows of timers", "TestScheduleT_FirstOfAll", one(timerGo,
		" || c.view.TimersFrom == 0 || c.start < c.view.TimersFrom\n", "\n")},
	{"timers-at-once", "Timers: everybody knows of timers a lease after the catalog was raised", "TestScheduleT_FirstOfAll", one(featureGo,
		"\t\t\twhen = v.asOf.Add(lease)\n", "\t\t\twhen = v.asOf.Add(0 * lease)\n")},
	{"index-cleared-first", "Timers: the index has a timer until a notification stands for it", "TestTellIsSafe", one(fireGo,
		"\touts, err := w.db.store.Apply(ctx, muts.list,", "\tfor i := range timers {\n\t\t_ = w.db.removeTimers(ctx, []rowstore.Mutation{timers[i].removed()})\n\t}\n\touts, err := w.db.store.Apply(ctx, muts.list,")},
	{"dropped-by-an-old-catalog", "Timers: a timer is dropped by a catalog that was read after the snapshot", "TestDueTimerThatNobodyObserves", one(fireGo,
		"\t\t\tv, err := db.loadCatalog(ctx)\n", "\t\t\tv, err := db.known(), error(nil)\n")},
	{"sweep-without-timers", "Timers: the sweep shows a new observer what has a timer", "TestScheduleT_NotificationWasCleared", one(sweepGo,
		"(newest == nil || newest.TS <= acked) && !timer.set {", "timer.set = false; (newest == nil || newest.TS <= acked) && !timer.set {")},
	{"timer-set-anew-is-removed", "Timers: what was set anew for the same time is another timer", "TestScheduleT_SetAnewForTheSameTime", one(timerGo,
		"!now.set || now.at != view.timer.at {", "!now.set || now.due != view.timer.due {")},
	{"failure-for-a-cancelled-timer", "Timers: a failure counts also after one for a timer that was cancelled", "TestScheduleT_CancelledAfterAFailure", one(failureGo,
		" || old.Change > change && !view.outdated(o.id, old.Change) {", " || old.Change > change {")},
	{"timer-that-failed-is-removed", "Timers: the index has a timer until a notification stands for it, also if others of the call were told of", "TestTimerThatCouldNotBeToldOfStays", one(fireGo,
		"\t\t\tfailed = fmt.Errorf(\"telling of the timer of %v: %w\", t.cell.public(), oerr)\n\t\t\tcontinue\n", "\t\t\tfailed = fmt.Errorf(\"telling of the timer of %v: %w\", t.cell.public(), oerr)\n")},
	{"rounds-are-long-at-first", "Timers: rounds are short while near timers are in the index too", "TestRoundsAreShortWhileTimersAreNew", one(fireGo,
		"\tif now < from.Add(nearTimer) {\n", "\tif now < from {\n")},
	{"seen-timer-stays", "Timers: what every observer has seen is removed", "TestScheduleT_RemovedBetweenTwoRuns", one(runGo,
		"\tif err := w.dropSeenTimer(ctx, view); err != nil {\n\t\treturn trouble(err)\n\t}\n", "")},
}

// periodicMutants are those of periodics and their schedules.
var periodicMutants = []mutant{
	{"periodic-tick-twice", "Periodics: a tick is done with the commit of its run", "TestSchedulePeriodic_Ticks|TestSchedulePeriodic_TwoWorkers", one(periodicGo,
		"p.Version, []byte(p.text), next.UnixMilli(), 0\n", "p.Version, []byte(p.text), s.Next+0*next.UnixMilli(), 0\n")},
	{"periodic-timer-does-not-move", "Periodics: the timer goes with the next tick", "TestSchedulePeriodic_Ticks", one(periodicGo,
		"\tif err == nil && moved {\n", "\tif err == nil && moved && s.Next < 0 {\n")},
	{"periodic-parked-stops", "Periodics: the next tick comes after a parked run", "TestSchedulePeriodic_Parked", one(failureGo,
		"\tif o.periodic != nil {\n\t\tif err := o.periodic.giveUp(", "\tif o.periodic != nil && false {\n\t\tif err := o.periodic.giveUp(")},
	{"periodic-released-forgets-the-tick", "Periodics: a released run is for its tick", "TestSchedulePeriodic_Parked", one(periodicGo,
		"\t\tif s.Parked == 0 {\n", "\t\tif s.Parked >= 0 {\n")},
	{"periodic-released-again-and-again", "Periodics: a released run is for its tick", "TestSchedulePeriodic_Parked", one(periodicGo,
		"\t\ts.Parked = 0\n\t\treturn p.store(tx, &s, false)\n", "\t\treturn p.store(tx, &s, false)\n")},
	{"periodic-released-moves-the-next", "Periodics: a released run that fails leaves the next tick", "TestSchedulePeriodic_ReleasedAndFails", one(periodicGo,
		"\tif err != nil || s.Next > now.UnixMilli() {\n", "\tif err != nil {\n")},
	{"periodic-any-schedule", "Periodics: the schedule of the higher version counts", "TestSchedulePeriodic_Versions", one(periodicGo,
		"\tcase !p.same(&s) && p.Version <= s.Version:\n", "\tcase !p.same(&s) && p.Version < 0:\n")},
	{"periodic-lower-version-replaces", "Periodics: the schedule of the higher version counts", "TestSchedulePeriodic_Versions", one(periodicGo,
		"\t\tcase p.Version < s.Version:\n", "\t\tcase p.Version < 0:\n")},
	{"periodic-versions-alone", "Periodics: versions count where schedules differ", "TestSchedulePeriodic_SameSchedule", one(periodicGo,
		"\treturn p.text == string(s.Schedule)\n", "\treturn p.text == string(s.Schedule) && p.Version == s.Version\n")},
	{"periodic-stays-in-charge", "Periodics: who has another schedule leaves the periodic to others", "TestSchedulePeriodic_Versions", one(memberGo,
		"q.stuck || q.aside {", "q.stuck {")},
	{"periodic-replaced-loses-a-tick", "Periodics: a tick that is due is run by the new schedule", "TestSchedulePeriodic_ReplacedWhileDue", one(periodicGo,
		"\tif s.Next > now.UnixMilli() {\n\t\tnext, err := p.next(now)\n", "\tif s.Next > 0 {\n\t\tnext, err := p.next(now)\n")},
	{"periodic-of-an-earlier-registration", "Periodics: what an earlier registration has left does not count", "TestSchedulePeriodic_LeftBy", one(periodicGo,
		"\treturn s, s.Since == since, nil\n", "\treturn s, true, nil\n")},
	{"periodic-left-by-removal", "Periodics: a removed periodic leaves nothing", "TestSchedulePeriodic_Removed", one("percolator/observer.go",
		"\t\tif table == PeriodicTable {\n", "\t\tif table == \"\" {\n")},
	{"periodic-skips-what-was-begun", "Periodics: a tick whose run has failed was not missed", "TestSchedulePeriodic_Fails|TestMissed", one(scheduleGo,
		"begun && chosen.Equal(tick) || ", "")},
	{"periodic-each-runs-too-many", "Periodics: the newest n of the missed ticks are run", "TestMissed|TestSchedulePeriodic_Missed", one(scheduleGo,
		"\tif err == nil && !last.After(now) {\n", "\tif err == nil && last.IsZero() {\n")},
	{"schedule-goes-back", "Periodics: a schedule goes on", "TestEveryRefuses|TestSchedulePeriodic_BadSchedule", one(scheduleGo,
		"\tcase !next.After(after):\n", "\tcase next.Year() < 0:\n")},
	{"cron-skips-the-gap", "Periodics: a time that is skipped is at the end of the gap", "TestCron", one(cronGo,
		"\t\treturn begins // by", "\t\treturn guess // by")},
	{"cron-twice", "Periodics: a time that happens twice counts where it happens first", "TestCron", one(cronGo,
		"(first.IsZero() || at.Before(first))", "(first.IsZero() || at.After(first))")},
}
