package percolator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// A hold keeps history that a collection would remove otherwise. It lies in the row of the
// catalog, beside the safe points, so that one step checks the one and changes the other:
//
//   - a hold is placed only if no safe point lies above it at that moment;
//   - a safe point is published only if the holds are still those that it was chosen by.
//
// So of a hold and a safe point that are stored at the same time, one is refused and
// looks again. A collection removes nothing that is not below a published safe point. Both are dated by the
// oracle: a collection counts a hold as over if it ended before the timestamp of the collection's view.

// ErrHoldEnded: the hold was released, or it has run out.
var ErrHoldEnded = errors.New("percolator: the hold has ended")

// Hold is a hold that DB.Hold has placed. Its methods may be called concurrently.
type Hold struct {
	db   *DB
	name string
	at   Timestamp
}

// HoldInfo describes a hold that stands.
type HoldInfo struct {
	Name string
	At   Timestamp // which no safe point passes
	// Placed and Until are when it was placed, and when it ends unless it is renewed.
	Placed, Until Timestamp
	// Age is how long At lies in the past.
	Age time.Duration
	// Extra is what the hold costs: for how much longer than the database's Retention it keeps history. It
	// is 0 as long as At lies within the retention. A table with a shorter retention of its own pays
	// more.
	Extra time.Duration
}

// Hold keeps the history from at on, of every table: until the hold is released, or ttl has passed by the
// oracle's time, no safe point moves above at (see SafePoint and TableSafePoint). So a backup, or a reader of
// WithAsOfTimestamp(at), may take longer than the retention. While it stands the data grows by all that is
// overwritten and deleted; Holds shows it. It does not change what MaxTxnAge allows.
//
// name says who holds, in 1 to 128 bytes. at may be 0 for the present. ttl is at least 1 ms; choose minutes,
// and call Renew a few times in each. A process that dies needs no care: the hold ends by itself. A program that is
// started again may take the hold that it had, by the same name and at: then ttl counts anew. At most 64
// holds stand at once.
//
// Errors: ErrSnapshotTooOld if a safe point, of any table, lies above at; ErrSnapshotInFuture if at is later than the
// present; ErrInvalid for a bad name or ttl, one hold too many, and a name that holds another at; ErrClosed, those of the
// context and of the store. After an error of the store or of the context the hold may stand until its
// time is over.
//
// From the first hold on, programs of versions that do not know of holds get ErrFormat, also
// those that have the data open.
func (db *DB) Hold(ctx context.Context, name string, at Timestamp, ttl time.Duration) (*Hold, error) {
	if name == "" || len(name) > format.MaxHoldName {
		return nil, fmt.Errorf("percolator: Hold: %w: the name has %d bytes; it must have 1 to %d", ErrInvalid, len(name), format.MaxHoldName)
	}
	if err := checkTTL(ttl); err != nil {
		return nil, called("Hold", err)
	}
	if err := db.enter(); err != nil {
		return nil, err
	}
	defer db.leave()
	at, err := db.hold(ctx, name, at, ttl)
	if err != nil {
		return nil, fmt.Errorf("percolator: placing the hold %q: %w", name, err)
	}
	return &Hold{db, name, at}, nil
}

func checkTTL(ttl time.Duration) error {
	if ttl < time.Millisecond || ttl.Milliseconds() > format.MostMs {
		return fmt.Errorf("%w: a hold of %v; it must last between 1 ms and %v", ErrInvalid, ttl, milliseconds(format.MostMs))
	}
	return nil
}

// hold places a hold, at the present if at is 0.
func (db *DB) hold(ctx context.Context, name string, at Timestamp, ttl time.Duration) (Timestamp, error) {
	now, err := db.draw(ctx)
	if err != nil {
		return 0, err
	}
	if at == 0 {
		at = now
	}
	if at > now {
		return 0, fmt.Errorf("%w: it was asked for at %v, and the oracle is at %v", ErrSnapshotInFuture, at, now)
	}
	if err := db.raiseControlled(ctx); err != nil {
		return 0, err
	}
	return at, db.changeHolds(ctx, at, func(v *catalogView, holds *[]format.Hold) (bool, error) {
		until := v.asOf.Add(ttl)
		i, found := findHold(*holds, name)
		switch {
		case found && (*holds)[i].At != at:
			return false, fmt.Errorf("%w: a hold of that name stands at %v, until %v", ErrInvalid, (*holds)[i].At, (*holds)[i].Until)
		case found:
			(*holds)[i].Until = until
		case len(*holds) >= format.MaxHolds:
			return false, fmt.Errorf("%w: there are %d holds, and there may be no more: release one that nobody needs (DB.Holds lists them)", ErrInvalid, len(*holds))
		default:
			*holds = slices.Insert(*holds, i, format.Hold{Name: []byte(name), At: at, Until: until, Placed: v.asOf})
		}
		return true, nil
	})
}

// At returns the timestamp that the hold keeps. Give it to WithAsOfTimestamp.
func (h *Hold) At() Timestamp {
	if h == nil {
		return 0
	}
	return h.at
}

// Renew makes the hold end ttl from now on, by the oracle's time, which may be sooner than before. It
// returns an error that matches ErrHoldEnded if the hold does not stand any more, because it has run out or somebody
// has released it. Then history from its timestamp on may be gone; DB.Hold with the same name and
// timestamp finds out. Other errors: ErrInvalid for a ttl that DB.Hold would not take, ErrClosed, those of the context and of the store.
func (h *Hold) Renew(ctx context.Context, ttl time.Duration) error {
	if h == nil || h.db == nil {
		return errNoHold
	}
	if err := checkTTL(ttl); err != nil {
		return called("Hold.Renew", err)
	}
	if err := h.db.enter(); err != nil {
		return err
	}
	defer h.db.leave()
	// A collection that found the hold ended may publish before the renewal is stored.
	err := h.db.changeHolds(ctx, h.at, func(v *catalogView, holds *[]format.Hold) (bool, error) {
		i, found := findHold(*holds, h.name)
		if !found || (*holds)[i].At != h.at {
			return false, fmt.Errorf("%w: at %v", ErrHoldEnded, h.at)
		}
		(*holds)[i].Until = v.asOf.Add(ttl)
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("percolator: renewing the hold %q: %w", h.name, err)
	}
	return nil
}

// Release ends the hold. It is no error if it has ended already. After another error it may stand until
// its time is over.
func (h *Hold) Release(ctx context.Context) error {
	if h == nil || h.db == nil {
		return errNoHold
	}
	return h.db.releaseHold(ctx, h.name, h.at)
}

var errNoHold = fmt.Errorf("percolator: Hold: %w: it was not made by DB.Hold", ErrInvalid)

// ReleaseHold ends the hold of that name, whoever has placed it. It is no error if there is none. Errors: ErrClosed, those of the context and of the store.
func (db *DB) ReleaseHold(ctx context.Context, name string) error {
	return db.releaseHold(ctx, name, 0)
}

// releaseHold ends the hold of a name, if it holds at, or at is 0.
func (db *DB) releaseHold(ctx context.Context, name string, at Timestamp) error {
	if err := db.enter(); err != nil {
		return err
	}
	defer db.leave()
	err := db.changeHolds(ctx, 0, func(_ *catalogView, holds *[]format.Hold) (bool, error) {
		i, found := findHold(*holds, name)
		if !found || at != 0 && (*holds)[i].At != at {
			return false, nil
		}
		*holds = slices.Delete(*holds, i, i+1)
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("percolator: releasing the hold %q: %w", name, err)
	}
	return nil
}

// Holds lists the holds that stand, by their names; none is no error. Errors: ErrClosed, those of the context and of the store.
func (db *DB) Holds(ctx context.Context) ([]HoldInfo, error) {
	if err := db.enter(); err != nil {
		return nil, err
	}
	defer db.leave()
	v, err := db.loadCatalog(ctx)
	if err != nil {
		return nil, fmt.Errorf("percolator: listing the holds: %w", err)
	}
	var infos []HoldInfo
	for _, h := range v.standing() {
		age := v.asOf.Sub(h.At)
		infos = append(infos, HoldInfo{
			Name: string(h.Name), At: h.At, Placed: h.Placed, Until: h.Until,
			Age: age, Extra: max(0, age-v.at(v.asOf).Retention),
		})
	}
	return infos, nil
}

func findHold(holds []format.Hold, name string) (int, bool) {
	return slices.BinarySearchFunc(holds, name, func(h format.Hold, name string) int { return strings.Compare(string(h.Name), name) })
}

// readHolds decodes the holds, where there are any.
func (v *catalogView) readHolds(stored *rowstore.Version) error {
	if stored == nil {
		return nil
	}
	holds, err := format.DecodeHolds(stored.Value)
	v.allHolds, v.holdsAt = holds.Holds, stored.TS
	return err
}

// standing returns a copy of the holds that have not ended.
func (v *catalogView) standing() []format.Hold {
	return slices.DeleteFunc(slices.Clone(v.allHolds), func(h format.Hold) bool { return h.Until <= v.asOf })
}

// held returns how far a safe point may move, instead of safe.
func (v *catalogView) held(safe Timestamp) Timestamp {
	for i := range v.allHolds {
		if h := &v.allHolds[i]; h.Until > v.asOf {
			safe = min(safe, h.At)
		}
	}
	return safe
}

// keptByHold tells that a safe point cannot move on, so that a collection would be for nothing.
func (v *catalogView) keptByHold(safe Timestamp) bool { return v.held(safe+1) <= safe }

// sameHolds is the condition that the holds are those of the view.
func (v *catalogView) sameHolds() rowstore.Condition {
	return rowstore.Absent(rowstore.Write, format.ColumnHolds, v.holdsAt+1)
}

// checkTables returns an error if a table has a safe point above a timestamp. What was erased is no matter: nobody can hold that.
func (v *catalogView) checkTables(at Timestamp) error {
	for t, p := range v.points {
		if at < p.SafePoint {
			return &SnapshotTooOldError{Snapshot: at, SafePoint: p.SafePoint, Table: Cell{Table: t}.public().Table}
		}
	}
	return v.checkSnapshot(at)
}

// changeHolds lets change edit the holds that stand, and stores them. change returns false to leave them as they
// are. Unless above is 0, they are stored only if no safe point lies above it: ErrSnapshotTooOld.
func (db *DB) changeHolds(ctx context.Context, above Timestamp, change func(v *catalogView, holds *[]format.Hold) (bool, error)) error {
	_, err := db.replaceInCatalog(ctx, func(v *catalogView) (*replacement, error) {
		stored := format.Holds{Holds: v.standing()}
		if write, err := change(v, &stored.Holds); err != nil || !write {
			return nil, err
		}
		if above != 0 {
			if err := v.checkTables(above); err != nil {
				return nil, err
			}
		}
		value, err := stored.Encode()
		if err != nil {
			return nil, err
		}
		r := &replacement{column: format.ColumnHolds, at: v.holdsAt, value: value, conditions: []rowstore.Condition{v.sameHolds()}}
		if above != 0 {
			r.conditions = append(r.conditions,
				rowstore.Absent(rowstore.Write, format.ColumnSafePoint, min(above+1, oracle.Max)),
				rowstore.Absent(rowstore.Write, format.ColumnOfTables, v.pointsAt+1))
		}
		return r, nil
	})
	return err
}

// replacement is a value for a column of the catalog's row, which holds one version.
type replacement struct {
	column     string
	at         Timestamp // of the version that is there, 0 for none
	value      []byte
	conditions []rowstore.Condition // that what the value was made from is still so
}

// replaceInCatalog stores what build makes of a view of the catalog, and again of a newer view until its conditions hold. It
// returns false, and stores nothing, if build returns nil.
func (db *DB) replaceInCatalog(ctx context.Context, build func(v *catalogView) (*replacement, error)) (stored bool, err error) {
	for attempt := 0; ; attempt++ {
		v, err := db.loadCatalog(ctx)
		if err != nil {
			return false, err
		}
		r, err := build(v)
		if err != nil || r == nil {
			return false, err
		}
		ts, err := db.draw(ctx)
		if err != nil {
			return false, err
		}
		m := rowstore.Mutation{
			Table: format.TableCatalog, Row: format.RowCatalog,
			Conditions: r.conditions,
			Edits:      []rowstore.Edit{rowstore.Put(rowstore.Write, r.column, ts, r.value)},
		}
		if r.at > 0 {
			m.Edits = append(m.Edits, rowstore.DeleteRange(rowstore.Write, r.column, 0, r.at))
		}
		out, err := db.applyOne(ctx, m)
		// After a lost reply the next round finds out, and may do it again.
		if err != nil && !mayAskAgain(err) {
			return false, err
		}
		if err == nil && out.Applied {
			return true, nil
		}
		if err := db.clock.Sleep(ctx, db.opt.retryWait.wait(attempt, db.rand)); err != nil {
			return false, err
		}
	}
}

// raiseControlled makes the catalog one that programs refuse which know neither holds nor paused
// observers.
func (db *DB) raiseControlled(ctx context.Context) error {
	if db.known().Controlled {
		return nil // it stays so
	}
	_, err := db.changeCatalog(ctx, func(v *catalogView) (bool, error) {
		changed := !v.Controlled
		v.Controlled = true
		return changed, nil
	})
	return err
}
