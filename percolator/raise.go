package percolator

import (
	"context"
	"errors"
	"fmt"

	"github.com/percolate-go/percolate/internal/format"
)

// ErrOlderProgram: RaiseCatalog found that a process is at work whose program knows no newer catalog. Match it with errors.Is.
var ErrOlderProgram = errors.New("percolator: an older program has the database open")

// RaiseCatalog makes the stored catalog one of the version that new databases begin with, in which collections go by hints of
// what has become garbage. Otherwise the next collection of a worker does so, once no older program is at work. From then on programs that
// know only an older version are refused, and there is no way back. It does nothing to a catalog of that version or a
// later one. What comes with later versions is raised when it is first used, and not by this.
//
// While a process is at work whose program knows no such catalog, it fails with ErrOlderProgram, and nothing has changed. It takes a catalog lease
// to find out which of these processes live. It may be called concurrently and again: one that was
// interrupted leaves nothing wrong. Other errors: ErrClosed, those of the context and of the store.
func (db *DB) RaiseCatalog(ctx context.Context) error {
	if err := db.during(ctx, db.raiseWhenAlone); err != nil {
		return fmt.Errorf("percolator: RaiseCatalog: %w", err)
	}
	return nil
}

// raiseWhenAlone tries at once, and again when those have been buried that died: a process that lives stores its record anew
// within a lease.
func (db *DB) raiseWhenAlone(ctx context.Context) error {
	for again := false; ; again = true {
		v, err := db.loadCatalog(ctx)
		if err != nil {
			return err
		}
		if err := db.raiseToHints(ctx, v); err != nil {
			return err
		}
		if v, err = db.loadCatalog(ctx); err != nil || v.HintsFrom != 0 {
			return err
		}
		if again {
			return fmt.Errorf("%w: it knows no catalog of version %d; stop it or replace it, and try again", ErrOlderProgram, format.HintedVersion)
		}
		if err := db.outlastDead(ctx); err != nil {
			return err
		}
	}
}

// outlastDead removes the records of processes that have died.
func (db *DB) outlastDead(ctx context.Context) error {
	dead, err := db.condemnUses(ctx)
	if err != nil {
		return err
	}
	if err := db.outlast(ctx); err != nil {
		return err
	}
	return db.buryUses(ctx, dead)
}
