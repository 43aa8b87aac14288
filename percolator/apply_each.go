package percolator

import (
	"context"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// mayBeOfARow is isOfARow for a call that changes rows. A store may break such a call off at a row that is not what it should be, after which nobody knows what the
// call did: so does Redis at a key of another kind. That is a row's failure only if the store answers, which one of the rows, m, is read for.
func (db *DB) mayBeOfARow(ctx context.Context, failed error, m rowstore.Mutation) bool {
	if !mayAskAgain(failed) {
		return db.isOfARow(ctx, failed)
	}
	newest := []rowstore.Selector{{Family: rowstore.Write, Column: m.Edits[0].Column, To: oracle.Max, Limit: 1}}
	rows, err := db.store.Read(ctx, []rowstore.RowRead{{Table: m.Table, Row: m.Row, Selectors: newest}})
	if err == nil {
		err = rows[0].Err
	}
	if err != nil && !unreadableKind(err) {
		return false
	}
	_, away := db.loadCatalog(ctx)
	return away == nil
}

// applyEach is Store.Apply of changes that may be made at any time, and again. A row that cannot be changed fails alone, by its Err, also where
// the store fails the call as a whole, or what it sends to one of its servers.
func (db *DB) applyEach(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	outs, _, err := db.applyAndTell(ctx, muts, opts)
	return outs, err
}

// applyAndTell is applyEach, and refused tells which of the rows have failed although the store reads.
func (db *DB) applyAndTell(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) (outs []rowstore.Outcome, refused []bool, err error) {
	a := &applying{db: db, opts: opts, muts: muts, outs: make([]rowstore.Outcome, len(muts)), refused: make([]bool, len(muts))}
	all := make([]int, len(muts))
	for i := range all {
		all[i] = i
	}
	if a.apply(ctx, all); a.err != nil {
		return nil, nil, a.err
	}
	return a.outs, a.refused, nil
}

// applying makes a call, and makes it for halves if it fails at some row.
type applying struct {
	db      *DB
	opts    rowstore.ApplyOptions
	muts    []rowstore.Mutation
	outs    []rowstore.Outcome // of muts
	refused []bool
	vain    int   // failures in a row that no longer could be divided
	err     error // why all have failed at once, for another reason than rows
}

// apply makes some of the changes, by their places in muts.
func (a *applying) apply(ctx context.Context, some []int) {
	failed, err := a.once(ctx, some)
	if len(failed) == 1 && a.vain == 0 && mayAskAgain(err) && a.db.mayBeOfARow(ctx, err, a.muts[failed[0]]) {
		failed, err = a.once(ctx, failed) // a reply that was lost is no row's failure
	}
	if len(failed) < len(some) {
		a.vain = 0
	}
	if len(failed) == 0 {
		return
	}
	// Rows of a server that is away must not always stand for those of another one.
	of := a.muts[failed[a.db.rand.int64N(int64(len(failed)))]]
	if !a.db.mayBeOfARow(ctx, err, of) {
		if len(failed) == len(a.muts) {
			a.err = err
		}
		return
	}
	if len(failed) == 1 || a.vain >= mostDamaged { // where nothing can be changed each call may take long
		for _, at := range failed {
			a.refused[at] = true
		}
		a.vain++
		return
	}
	// In whatever order the rows are, those that fail must not keep the same others from their turn each time.
	half := (len(failed) + 1) / 2
	parts := [2][]int{failed[:half], failed[half:]}
	if a.db.rand.int64N(2) == 0 {
		parts[0], parts[1] = parts[1], parts[0]
	}
	for _, part := range parts {
		a.apply(ctx, part)
	}
}

// once makes one call. failed are those changes that may be made once more without the others, and err is why one of them did.
func (a *applying) once(ctx context.Context, some []int) (failed []int, err error) {
	muts := make([]rowstore.Mutation, len(some))
	for i, at := range some {
		muts[i] = a.muts[at]
	}
	outs, err := a.db.store.Apply(ctx, muts, a.opts)
	if err != nil {
		for _, at := range some {
			a.outs[at] = rowstore.Outcome{Err: err}
		}
		return some, err
	}
	for i, at := range some {
		a.outs[at] = outs[i]
		if mayAskAgain(outs[i].Err) {
			failed, err = append(failed, at), outs[i].Err
		}
	}
	return failed, err
}
