package main

const (
	combineGo  = "recipes/combine/combine.go"
	slotsGo    = "recipes/combine/slots.go"
	onceGo     = "recipes/once/once.go"
	exporterGo = "recipes/export/exporter.go"
	exportGo   = "recipes/export/claim.go"
)

// recipesMutants break the packages under recipes.
var recipesMutants = []mutant{
	{"slots-are-shared", "Recipes: combine, two open transactions have different slots", "./recipes/combine TestAddsDoNotConflict", one(slotsGo,
		"\treturn slot, false\n", "\treturn 1, false\n")},
	{"slots-are-used-once", "Recipes: combine, a slot is used again when its transaction has ended", "./recipes/combine TestAddsDoNotConflict", one(slotsGo,
		"if !errors.Is(err, percolator.ErrUndetermined) {", "if errors.Is(err, percolator.ErrUndetermined) {")},
	{"combiners-have-slots-of-their-own", "Recipes: combine, all Combiners of a table share their slots", "./recipes/combine TestSeveralCombinersOfATable", one(combineGo,
		"slots: shareSlots(db, table),", "slots: &slots{},")},
	{"combined-parts-are-lost", "Recipes: combine, what is removed is in the base", "./recipes/combine TestCombine", one(combineGo,
		"\t\t\tsum, first = v, false\n", "\t\t\tif first {\n\t\t\t\tsum, first = v, false\n\t\t\t}\n")},
	{"base-is-not-read", "Recipes: combine, the base is merged with what it was", "./recipes/combine TestPendingIsBounded", one(combineGo,
		"\t\t\tfirst = false\n\t\t}\n\t\tfor _, p := range idle {\n", "\t\t}\n\t\tfor _, p := range idle {\n")},
	{"fresh-cells-are-combined", "Recipes: combine, only idle cells are combined", "./recipes/combine TestCombine", one(combineGo,
		"start.Sub(at) >= c.idleAfter {", "start.Sub(at) >= 0 {")},
	{"idle-cell-is-written", "Recipes: combine, an adder whose cell is idle takes the other one", "./recipes/combine TestAdderAvoidsWhoCombines", one(combineGo,
		"if absent >= 0 && (youngest == 0 || start.Sub(youngest) >= c.freshFor) {", "if absent >= 0 && youngest == 0 {")},
	{"left-batch-is-certain", "Recipes: combine, a caller that leaves a batch does not know its outcome", "./recipes/combine TestCallsShareATransaction", one("recipes/combine/now.go",
		"\treturn fmt.Errorf(\"%w: %w\", percolator.ErrUndetermined, cause)\n", "\treturn fmt.Errorf(\"left: %w\", cause)\n")},
	{"ended-answer-counts", "Recipes: once, an answer counts until it ends", "./recipes/once TestAnswerEnds", one(onceGo,
		"\tcase r.until <= now: //", "\tcase r.until <= now-now: //")},
	{"lost-claim-finishes", "Recipes: once, only the claim of the key finishes", "./recipes/once TestClaim", one("recipes/once/claim.go",
		"(r.state != stateClaimed || r.epoch != c.epoch)", "r.state != stateClaimed")},
	{"claimed-key-is-done", "Recipes: once, a claimed key is not done by others", "./recipes/once TestClaim", one(onceGo,
		"\tcase r.until <= now: //", "\tcase r.until <= now, r.state == stateClaimed: //")},
	{"lost-claim-notes", "Recipes: export, an exporter that lost its claim notes nothing", "./recipes/export TestSuspendedExporter", one(exportGo,
		"\t\tif c.epoch != t.claim.epoch {\n", "\t\tif c.epoch == 1 {\n")},
	{"epoch-stays", "Recipes: export, every claim has a greater epoch", "./recipes/export TestSuspendedExporter", one(exportGo,
		"\t\tc.epoch, c.until = now, now.Add(e.lease())\n", "\t\tc.epoch, c.until = 1, now.Add(e.lease())\n")},
	{"held-key-is-claimed", "Recipes: export, a key is claimed by one at a time", "./recipes/export TestClaimedKeyWaits", one(exportGo,
		"\t\tif c.until > now {\n", "\t\tif c.until == 1 {\n")},
	{"lost-claim-acknowledges", "Recipes: export, a run without its claim is not acknowledged", "./recipes/export TestSuspendedExporter", one(exporterGo,
		"\t\theld = false\n\t\treturn percolator.RetryAfter(claimedPause)\n", "\t\theld = false\n\t\treturn nil\n")},
	{"sent-in-order-of-starts", "Recipes: export, items are sent in the order of commits", "./recipes/export TestOrderOfCommits", one(exporterGo,
		"cmp.Compare(a.Commit, b.Commit)", "cmp.Compare(a.start, b.start)")},
	{"page-sent-as-a-whole", "Recipes: export, an item waits for rows that may come before it", "./recipes/export TestOrderOfCommits", one(exporterGo,
		"s.Commit > min(last, t.at)", "s.Commit > t.at")},
	{"note-without-claim", "Recipes: export, a note conflicts with the claim of a successor", "./recipes/export TestNoteBetweenSnapshotAndClaim", one(exportGo,
		"\t\treturn putClaim(tx, cell, &c)\n", "\t\t_ = cell\n\t\treturn nil\n")},
	{"pause-is-for-the-item", "Recipes: export, a sink that says when to come is left alone until then", "./recipes/export TestLater", one(exportGo,
		"c.epoch, c.until = 0, now.Add(pause)", "c.epoch, c.until = 0, now")},
	{"claim-stays", "Recipes: export, a key that has nothing to send leaves nothing behind", "./recipes/export TestClaimsGo", one(exportGo,
		"\t\tif over {\n\t\t\t*c = claim{}\n", "\t\tif over {\n\t\t\tc.until = c.epoch\n")},
	{"view-combines", "Recipes: combine, a transaction that may not write combines nothing", "./recipes/combine TestViewCombinesNothing", one(combineGo,
		"\tif err := tx.Set(cell, b); err != nil {\n\t\treturn err\n\t}\n", "\tdefer func() { _ = tx.Set(cell, b) }()\n")},
	{"redirection-takes-items", "Recipes: export, an answer to a GET says nothing of what was to be posted", "./recipes/export TestHTTP", one("recipes/export/sink.go",
		"response.Request.Method != http.MethodPost", "response.Request.Method == \"\"")},
	{"notification-holds-a-cell", "stores: Postgres, an edit of a notification needs no cell of its column", "./backends/postgres TestNotificationsHoldNoCell", one("backends/postgres/compile.go",
		"\to := sideOp{g: c.tasks,", "\tc.cell(e.Column)\n\to := sideOp{g: c.tasks,")},
	{"callers-take-turns", "Recipes: combine, a batch waits for the callers of the last one", "./recipes/combine TestCallersDoNotTakeTurns", one("recipes/combine/now.go",
		"if b.calls < 2 ||", "if b.calls > 0 ||")},
	{"step-waits-for-others", "stores: Postgres, a step of a sequence that is behind waits for nobody who draws", "./backends/postgres TestStepWhileOthersDraw", one("backends/postgres/oracle.go",
		"const mostLags = 10", "const mostLags = 1")},
	{"nothing-is-claimed", "Recipes: export, a run that finds no items claims nothing", "./recipes/export TestRunWithoutItems", one(exportGo,
		"err != nil || len(items) == 0", "err != nil")},
	{"outboxes-count-apart", "Recipes: export, no two items of a transaction have one row", "./recipes/export TestTwoOutboxesOfOneTable", one("recipes/export/outbox.go",
		"\tindex, err := indexes.of(tx, o.table)\n", "\tindex, err := (&counters{next: map[counter]int{}}).of(tx, o.table)\n")},
	{"refused-epoch-is-a-successor", "Recipes: export, a run whose epoch is refused without a successor fails", "./recipes/export TestSinkThatIsAlwaysSuperseded", one(exporterGo,
		"\t\treturn 0, errAhead\n", "\t\treturn 0, errLost\n")},
	{"pause-is-a-claim", "Recipes: export, a pause is told from the claim of an exporter", "./recipes/export TestResume", one("recipes/export/outbox.go",
		"return c.epoch == 0 && c.until > now }", "return c.until > now }")},
	{"resumed-key-is-not-notified", "Recipes: export, a key that is resumed has another run", "./recipes/export TestResume", one("recipes/export/pause.go",
		"\t\terr = tx.Notify(o.cell(rowOf(key), dueColumn))\n", "\t\t_ = tx.Notify\n")},
	{"late-claim-is-swept", "Recipes: once, a claim that nobody else took can be finished late", "./recipes/once TestLateFinishKeepsItsClaim", one("recipes/once/sweep.go",
		"\t\t\t\tends = ends.Add(k.keep)\n", "\t\t\t\tends = ends.Add(0)\n")},
	{"own-key-is-swept", "Recipes: once, a call that tidies up does not conflict with itself", "./recipes/once TestCallSparesItsOwnKey", one("recipes/once/sweep.go",
		"ends > now || row.Key == spared", "ends > now")},
}

func init() { mutants = append(mutants, recipesMutants...) }
