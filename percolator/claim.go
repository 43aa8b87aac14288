package percolator

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// A claim keeps other workers away from a cell while a run of this one takes long:
// its shares may have gone to others meanwhile, who find the same notification. Without
// claims, a function of a minute would be called again at each step of a deployment.
// Claims end by themselves, and correctness never depends on them.

// claimAfter is how long a run has been under way before it is claimed. It is also the
// time between two looks at what runs.
const claimAfter = time.Second

// claimPage is how many rows are claimed in one call.
const claimPage = 64

// claimLasts is how long a claim lasts: claims are renewed by every look that comes when
// a third of that has passed.
func (w *Worker) claimLasts() time.Duration { return max(w.config.MemberLease, 3*claimAfter) }

// claimRuns claims the runs that take long, and those whose cells are about to go to other
// workers, until ctx ends.
func (w *Worker) claimRuns(ctx context.Context) error {
	for {
		if _, err := w.sleepOr(ctx, claimAfter, w.claimSoon); err != nil {
			return err
		}
		tasks := w.toClaim()
		if len(tasks) == 0 {
			continue
		}
		if err := w.claim(ctx, tasks); err != nil && ctx.Err() == nil {
			w.db.log.Debug("long runs could not be claimed", "err", err)
		}
	}
}

// toClaim lists the runs that are to be claimed now, and notes that they are.
func (w *Worker) toClaim() []*task {
	var tasks []*task
	now := w.db.clock.Now()
	w.mu.Lock()
	for _, t := range w.jobs {
		if !t.running || t.calledAt.IsZero() || now.Sub(t.claimed) < w.claimLasts()/3 {
			continue
		}
		if now.Sub(t.calledAt) >= claimAfter || w.stopping || w.loses(t, 2*claimAfter) {
			t.claimed = now
			tasks = append(tasks, t)
		}
	}
	w.mu.Unlock()
	// The order of a map is random, and the calls of a run must be repeatable.
	slices.SortFunc(tasks, func(a, b *task) int {
		return cmp.Or(strings.Compare(a.cell.Table, b.cell.Table), strings.Compare(a.cell.Row, b.cell.Row),
			strings.Compare(a.cell.Column, b.cell.Column), strings.Compare(a.o.Name, b.o.Name))
	})
	return tasks
}

// loses tells whether the cell of a task goes to another worker within a time. Mostly no
// share changes within that, and then it costs next to nothing.
func (w *Worker) loses(t *task, within time.Duration) bool {
	now := w.now()
	later := now.Add(within)
	if all := w.member.shares.Load(); all == nil || all.at(t.q, now) == all.at(t.q, later) {
		return false
	}
	return w.owns(t.q, t.cell, now) && !w.owns(t.q, t.cell, later)
}

// calling notes and counts that a task's function is called now. If its cell goes to
// another worker in a moment, it is claimed before.
func (w *Worker) calling(ctx context.Context, t *task) {
	now := w.db.clock.Now()
	claims := w.loses(t, claimAfter)
	w.mu.Lock()
	t.calledAt = now
	t.q.begun++
	if claims {
		t.claimed = now
	}
	w.mu.Unlock()
	if claims {
		if err := w.claim(ctx, []*task{t}); err != nil {
			w.db.log.Debug("a run could not be claimed", "err", err)
		}
	}
}

// claim puts claims on the cells of tasks, which are in the order of their rows.
func (w *Worker) claim(ctx context.Context, tasks []*task) error {
	ctx, cancel := context.WithTimeout(ctx, w.claimLasts())
	defer cancel()
	now, err := w.db.draw(ctx)
	if err != nil {
		return err
	}
	until := now.Add(w.claimLasts())
	var muts []rowstore.Mutation
	w.mu.Lock()
	tasks = slices.DeleteFunc(tasks, func(t *task) bool { return t.claimed.IsZero() }) // ended meanwhile
	for _, t := range tasks {
		column := format.ClaimColumn(t.o.id, t.cell.Column)
		if n := len(muts); n == 0 || muts[n-1].Table != t.cell.Table || muts[n-1].Row != t.cell.Row {
			muts = append(muts, rowstore.Mutation{Table: t.cell.Table, Row: t.cell.Row})
		}
		m := &muts[len(muts)-1] // a call may name a row once only
		// It takes the place of one that ends sooner.
		m.Edits = append(m.Edits, rowstore.Put(rowstore.Mark, column, until, []byte(w.id)))
		w.db.hint(t.cell, until)
		// A call that fails may leave the one before in its place, which counts until it ends.
		t.claims = append(slices.DeleteFunc(t.claims, func(end Timestamp) bool { return end < now }), until)
	}
	w.mu.Unlock()
	for part := range slices.Chunk(muts, claimPage) {
		if _, err = w.db.store.Apply(ctx, part, rowstore.ApplyOptions{}); err != nil {
			break
		}
	}
	// A run that ended meanwhile may have dropped its claim before this one was there.
	w.mu.Lock()
	ended := slices.DeleteFunc(tasks, func(t *task) bool { return slices.Contains(t.claims, until) })
	w.mu.Unlock()
	for _, t := range ended {
		if ctx.Err() != nil {
			break // they end by themselves
		}
		w.removeClaims(t, until)
	}
	return err
}

// awaitClaim returns how long a job waits for the claim of another worker's run, 0 without one. A claim that ends later than any that a
// worker makes does not count, nor one that was not renewed within its time by this process's own clock: the oracle's time may stand still.
func (w *Worker) awaitClaim(t *task, v *cellView, now Timestamp) time.Duration {
	if v.claimedBy == "" || v.claimedBy == w.id || v.claimed <= now || v.claimed > now.Add(w.mostLeft()) {
		return 0
	}
	asked, left := w.db.clock.Now(), v.claimed.Sub(now)
	t.other = t.other.look(v.claimed, left, asked)
	if t.other.silent(asked, w.claimLasts()) {
		return 0
	}
	return max(left, leastPause)
}

// dropClaim removes the claim on a task's cell, if it has one.
func (w *Worker) dropClaim(t *task) {
	w.mu.Lock()
	ends := t.claims
	t.calledAt, t.claimed, t.claims = time.Time{}, time.Time{}, nil
	w.mu.Unlock()
	if len(ends) > 0 {
		w.removeClaims(t, ends...)
	}
}

// removeClaims removes claims on a task's cell. Another worker's claim stays: its run of the
// same change may still go on. What fails is left to end by itself.
func (w *Worker) removeClaims(t *task, ends ...Timestamp) {
	ctx, cancel := context.WithTimeout(w.db.ctx, w.db.backgroundTimeout())
	defer cancel()
	m := rowstore.Mutation{Table: t.cell.Table, Row: t.cell.Row}
	for _, end := range ends {
		m.Edits = append(m.Edits, rowstore.Delete(rowstore.Mark, format.ClaimColumn(t.o.id, t.cell.Column), end))
	}
	_, err := w.db.applyOne(ctx, m)
	if err != nil {
		w.db.log.Debug("a claim was left to end by itself", "err", err)
	}
}
