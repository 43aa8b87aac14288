package percolator

import (
	"context"
	"fmt"
	"time"
)

// feature is something that a catalog allows from a timestamp on, from which nobody goes by a view that does not know of it.
type feature struct {
	what string
	of   func(v *catalogView) (on *bool, from *Timestamp)
}

var (
	timers     = feature{"timers", func(v *catalogView) (*bool, *Timestamp) { return &v.Timers, &v.TimersFrom }}
	replays    = feature{"replays", func(v *catalogView) (*bool, *Timestamp) { return &v.Replays, &v.ReplaysFrom }}
	cascades   = feature{"cascades", func(v *catalogView) (*bool, *Timestamp) { return &v.Cascades, &v.CascadesFrom }}
	rowDeletes = feature{"deleted rows", func(v *catalogView) (*bool, *Timestamp) { return &v.RowDeletes, &v.RowDeletesFrom }}
)

// raiseTo makes the catalog one that has a feature, and returns from when on nobody goes by one without it.
func (db *DB) raiseTo(ctx context.Context, f feature) (Timestamp, error) {
	known := *db.known()
	if _, from := f.of(&known); *from != 0 {
		return *from, nil // it stays so
	}
	_, err := db.changeCatalog(ctx, func(v *catalogView) (bool, error) {
		on, _ := f.of(v)
		changed := !*on
		*on = true
		return changed, nil
	})
	var when Timestamp
	if err == nil {
		_, err = db.changeCatalog(ctx, func(v *catalogView) (bool, error) {
			_, from := f.of(v)
			if when = *from; when != 0 {
				return false, nil
			}
			_, lease := v.widest()
			when = v.asOf.Add(lease)
			*from = when
			return true, nil
		})
	}
	if err != nil {
		return 0, fmt.Errorf("raising the catalog for %s: %w", f.what, err)
	}
	return when, nil
}

// awaitFeature is raiseTo, and waits until that moment has passed.
func (db *DB) awaitFeature(ctx context.Context, f feature) (Timestamp, error) {
	var from Timestamp
	err := db.during(ctx, func(ctx context.Context) (err error) {
		for from, err = db.raiseTo(ctx, f); err == nil; {
			var now Timestamp
			if now, err = db.draw(ctx); err == nil && now > from {
				return nil
			}
			if err == nil {
				err = db.clock.Sleep(ctx, max(from.Sub(now), 0)+time.Millisecond)
			}
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	return from, nil
}
