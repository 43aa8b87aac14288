package main

const (
	upkeepGo = "percolator/upkeep.go"
	indexGo  = "percolator/index.go"
	recipeGo = "recipes/index/index.go"
	lookupGo = "recipes/index/lookup.go"
	buildGo  = "recipes/index/build.go"
	walkGo   = "recipes/index/walk.go"

	observedIndexGo = "recipes/index/observed.go"

	oldWriters = "TestScheduleI_WriterWithAnOldView"
)

// indexesMutants break the indexes of the core, and package recipes/index.
var indexesMutants = []mutant{
	{"index-is-not-kept-by-all", "Indexes: a commit has kept every index of its view", oldWriters + "|TestScheduleI_UnknowingWriter", one(upkeepGo,
		"case err != nil || slices.Contains(c.tx.kept, keptAs(x)):", "case err != nil || len(c.tx.kept) >= 0 || slices.Contains(c.tx.kept, keptAs(x)):")},
	{"unknown-index-is-a-conflict", "Indexes: a process that cannot keep an index is refused", oldWriters, one(upkeepGo,
		"case c.db.upkeeps.of(x) == nil:\n", "case false:\n")},
	{"index-is-not-looked-at-again", "Indexes: a commit whose view is over looks again", oldWriters, one("percolator/commit.go",
		"\tif err := c.checkIndexes(); err != nil {\n", "\tif err := c.checkIndexes(); err != nil && c.commit == 0 {\n")},
	{"definition-does-not-count", "Indexes: another definition is another index", "TestScheduleI_UnknowingWriter", one(indexGo,
		"if own == nil || !own.stored().Same(x) {", "if own == nil {")},
	{"dropped-index-is-kept", "Indexes: what was kept is in the view", "TestScheduleI_KeeperWithAnOldView", one(upkeepGo,
		"if x := v.index(k.name); x == nil || x.Since != k.since || x.State == format.IndexDropping {", "if x := v.index(k.name); x != nil && x.Since != k.since {")},
	{"state-is-not-awaited", "Indexes: a state is left when everybody knows it", oldWriters, one(indexGo,
		"\tif info.State != IndexReadable {\n", "\tif info.State == IndexDropping {\n")},
	{"old-view-is-read-by", "Indexes: a reader's view holds at its snapshot", "TestScheduleI_ReaderWithAnOldView", one(upkeepGo,
		"\tif !v.holds(tx.start) {\n", "\tif v == nil {\n")},
	{"early-snapshot-reads", "Indexes: a snapshot from before cannot read", "TestScheduleI_ReaderWithAnOldView", one(upkeepGo,
		"info.State == IndexReadable && tx.start < info.At", "info.State == IndexReadable && tx.start == 0")},
	{"entries-are-not-taken-back", "Indexes: an upkeep that is called again begins anew", "TestScheduleI_IndexReadWithinTheTransaction", one(upkeepGo,
		"\t\tif w.entry {\n", "\t\tif w.entry && w.first {\n")},
	{"write-counts-as-the-upkeeps", "Indexes: what a transaction writes itself is not taken back", "TestScheduleI_UpkeepHasLockedTheCell", one("percolator/txn.go",
		"append([]byte(nil), value...), w.entry && tx.keeping\n", "append([]byte(nil), value...), w.entry\n")},
	{"late-builder-writes", "Indexes: a builder commits while the state is the same", "TestScheduleI_LateBuilder", one(upkeepGo,
		"own != nil && !own.stands(v)", "own != nil && own.Name == \"\"")},
	{"entries-are-anybodys", "Indexes: only upkeeps write entries", "TestScheduleI_UnknowingWriter", []edit{
		{upkeepGo, "x != nil && !w.entry {", "x != nil && false {"},
		{upkeepGo, "x != nil && tx.opt.upkeepOf == nil && err == nil {", "x != nil && false {"},
	}},
	{"unique-takes-what-is-taken", "Recipes: index, a unique value belongs to one row", "./recipes/index TestUniqueWithinATransaction", one(recipeGo,
		"len(rows) > 1 {\n\t\treturn &NotUnique", "len(rows) > 1 && h == nil {\n\t\treturn &NotUnique")},
	{"lost-value-is-not-written", "Recipes: index, who loses a unique value conflicts with a builder", "./recipes/index TestBuildOfDuplicates", one(recipeGo,
		"\t\tif len(rows) == 0 {\n\t\t\treturn tx.Delete(c)\n\t\t}\n\t\treturn tx.Set(c, []byte(rows[0]))\n", "\t\treturn tx.Delete(c)\n")},
	{"error-that-passes-is-damage", "Recipes: index, a value that cannot be decoded at the moment is there all the same", "./recipes/index TestErrorsThatPass", one(recipeGo,
		"\tif err != nil && !passing(err) {\n", "\tif err != nil {\n")},
	{"old-entry-stays", "Recipes: index, a value that is gone has no entry", "./recipes/index TestEveryInterleaving$", one(recipeGo,
		"\t\tfor _, v := range d.removed {\n\t\t\tif err := tx.Delete", "\t\tfor _, v := range d.removed[:0] {\n\t\t\tif err := tx.Delete")},
	{"values-begin-alike", "Recipes: index, the entries of a value are its own", "./recipes/index TestLookups", []edit{
		{recipeGo, "\treturn cut(string(value), mostValue) + \"\\x00\" + row\n", "\treturn string(value[:min(len(value), 100)]) + row\n"},
		{lookupGo, "ix.entry(value, e.row).Row != e.at", "e.at == \"\""},
	}},
	{"build-keeps-its-place-as-a-text", "Recipes: index, a build goes on behind the row that it has come to, whatever bytes name it", "./recipes/index TestBuildOverAnyNames", one(walkGo,
		"json.Marshal([]byte(k))", "json.Marshal([]byte(string([]rune(string(k)))))")},
	{"build-goes-on-by-an-older-form", "Recipes: index, a build does not trust where one of the older form has come to", "./recipes/index TestBuildForgetsProgress", one(buildGo,
		"p.Form != progressForm || ", "")},
	{"places-of-writes-are-kept", "Indexes: a row that is deleted after a read of an index loses its own writes, and no others", "TestDeleteRowAfterAnIndexWasRead|TestTransactionsAgainst", one("percolator/upkeep.go",
		"\ttx.gone.forgetPlaces()\n", "")},
	{"function-commits-its-transaction", "Observers: only the worker, and Update, commit what a function has written", "TestFunctionMayNotCommit|TestObserverMayNotCommit", one("percolator/commit.go",
		"\tif tx.lent {\n", "\tif false {\n")},
	{"second-snapshot-replaces-the-first", "Timestamps: a transaction has one snapshot", "TestTwoSnapshotsOfATransaction", one("percolator/read.go",
		"\tif s.set {\n\t\treturn nil, false, errTwoAtOnce\n\t}\n", "")},
	{"scan-keeps-a-snapshot-of-its-own", "Timestamps: a transaction has one snapshot", "TestScanBesideAFirstRead", one(scanGo,
		"\t\t\treturn errTwoAtOnce\n", "\t\t\treturn nil\n")},
	{"two-goroutines-are-the-stores-fault", "Observers: what a function does wrong is its own failure", "TestObserverOfTwoGoroutinesIsParked", one(failureGo,
		" && !errors.Is(err, errTwoAtOnce)", "")},
	{"attempts-are-not-told", "Observers: a function is told which attempt it makes", "TestRunTellsTheAttempt", one(runGo,
		"f.Change == view.change {\n\t\tattempt +=", "false {\n\t\tattempt +=")},
	{"own-backoff-is-not-kept", "Observers: a function that fails waits for its own Backoff", "TestBackoffOfAnObserver", one(failureGo,
		"o.Backoff.wait(", "w.config.Backoff.wait(")},
	{"longest-backoff-overflows", "Observers: a function that fails waits for its own Backoff", "TestLongestBackoff", one("percolator/clock.go",
		"top += min(top, b.Max-top)", "top *= 2")},
	{"registration-goes-by-its-name", "Observers: one registration of a name can be removed alone", "TestRemoveRegistration", one("percolator/observer.go",
		"return string(o.Table) == c.Table && string(o.Column) == c.Column &&", "return")},
	{"registration-of-any-time-goes", "Observers: one registration of a name can be removed alone", "TestRemoveRegistration", one("percolator/observer.go",
		"(of.Since == 0 || of.Since == o.Since)", "of.Since >= 0")},
	{"moved-observers-are-silent", "Observers: a worker says what its observers have left on other columns", "TestWorkerSaysWhatHasMoved", one(sweepGo,
		"\t\t\tw.warnOfMoved(v)\n", "")},
	{"values-are-any-bytes", "Recipes: index, values are tuples of package keys", "./recipes/index TestNoTuples", one(recipeGo,
		"\t\tif v.Check() != nil {", "\t\tif false && v.Check() != nil {")},
	{"any-bytes-are-looked-up", "Recipes: index, values are tuples of package keys", "./recipes/index TestNoTuples", one(lookupGo,
		"\t\tif err := v.Check(); err != nil {\n", "\t\tif err := v.Check(); err != nil && false {\n")},
	{"middleware-calls-next-again", "Observers: a Middleware calls next once", "TestMiddlewareCallsNextTwice", one("percolator/middleware.go",
		"\t\tif called.Swap(true) {\n", "\t\tif called.Swap(true) && false {\n")},
	{"middleware-hides-a-second-call", "Observers: a Middleware calls next once", "TestMiddlewareCallsNextTwice", one("percolator/middleware.go",
		"\tif again.Load() {\n", "\tif again.Load() && err != nil {\n")},
	{"upkeep-ends-the-transaction", "Indexes: an upkeep that ends the transaction makes its commit fail", "TestUpkeepThatEndsItsTransaction", one("percolator/upkeep.go",
		"err == nil && tx.endedBy {", "err == nil && tx.done {")},
	{"build-is-not-checked", "Recipes: index, a build ends after a round without a difference", "./recipes/index TestUnsteadyValues", one(buildGo,
		"\t\tcase !p.Differs:\n", "\t\tcase true:\n")},
	{"stale-entries-stay", "Recipes: index, an entry has a row", "./recipes/index TestRepair", one(walkGo,
		"\t\tr.Stale++\n", "\t\tif r.Stale++; true {\n\t\t\tcontinue\n\t\t}\n")},
	{"duplicates-are-missing", "Recipes: index, a build finds duplicates", "./recipes/index TestBuildOfDuplicates", one(walkGo,
		"\t\t\tif taken {\n", "\t\t\tif taken && rows == 0 {\n")},
	{"observed-entry-that-stays", "Recipes: index, a run of an observed index writes every entry of the row", "./recipes/index TestObservedInEveryOrder", one(observedIndexGo,
		"slices.Concat(d.added, d.same)", "slices.Concat(d.added, d.same[:0])")},
	{"observed-index-is-dropped-at-once", "Recipes: index, nobody sees the entries of an observed index go", "./recipes/index TestObservedIsDropped/memory", one(observedIndexGo,
		"left := wait - now.Sub(from)", "left := wait - now.Sub(from) - time.Hour")},
	{"observed-build-trusts-acks", "Recipes: index, a build of an observed index writes what is missing", "./recipes/index TestObservedUnderOtherNames", one(observedIndexGo,
		"if _, err := o.ix.walk(ctx, pace, true, partEntries); err != nil {", "if _, err := o.ix.walk(ctx, pace, true, 0); err != nil {")},
	{"registered-before-it-was-removed", "Observers: a registration is later than the removal before it", "TestScheduleB4_RegisteredAfterARemoval", one("percolator/sweep.go",
		"Since: since, OldValues", "Since: min(since, v.asOf), OldValues")},
	{"observed-index-of-before", "Recipes: index, an observed index is built for a registration", "./recipes/index TestObservedBegunAgain", one(observedIndexGo,
		" || mark.Since != since", "")},
}

func init() { mutants = append(mutants, indexesMutants...) }
