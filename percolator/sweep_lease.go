package percolator

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// sweepLease keeps other workers from a sweep while this one is at it.
// It saves work; nothing else depends on it.
type sweepLease struct {
	w    *Worker
	row  string
	seen map[string]sighting // the leases of other workers, as take has seen them
}

// sighting is when a process first saw that something of another worker ends at a timestamp. That worker renews it long before.
type sighting struct {
	ends Timestamp
	at   time.Time     // by this process's own clock
	left time.Duration // that it still counted then
}

// look returns the sighting of what ends at ends, and counts until then for left. It is s, or a new one if that is of an older end.
func (s sighting) look(ends Timestamp, left time.Duration, now time.Time) sighting {
	if s.ends == ends {
		return s
	}
	return sighting{ends, now, left}
}

// silent tells that the worker has not renewed it within its time and some more, by this process's own clock. The oracle does not say so
// while its time stands still.
func (s sighting) silent(now time.Time, more time.Duration) bool {
	return now.Sub(s.at) > s.left+more
}

// mostLeft is how long a lease or a claim of another worker may still last. What ends later was not taken by a worker. The timestamp that the
// other one drew for it may be later than the one with which it is compared.
func (w *Worker) mostLeft() time.Duration { return mostMemberLease + 2*w.beatTimeout() }

// take takes the lease, or tells how long another worker has it.
func (l *sweepLease) take(ctx context.Context) (held time.Duration, err error) {
	w, db := l.w, l.w.db
	asked := db.clock.Now()
	now, err := db.draw(ctx)
	if err != nil {
		return 0, err
	}
	rows, err := db.readRows(ctx, []rowstore.RowRead{{Table: format.TableSweeps, Row: l.row, Selectors: []rowstore.Selector{
		{Family: rowstore.Write, Column: rowstore.AllColumns, From: now + 1, To: oracle.Max, Limit: 1},
	}}})
	if err != nil {
		return 0, fmt.Errorf("reading the lease of a sweep: %w", err)
	}
	until := now.Add(w.config.MemberLease)
	m := rowstore.Mutation{Table: format.TableSweeps, Row: l.row, Edits: []rowstore.Edit{
		rowstore.Put(rowstore.Write, w.id, until, format.TimestampOnly),
		rowstore.DeleteRange(rowstore.Write, w.id, 0, until-1),
	}}
	seen := map[string]sighting{}
	for i := range rows[0].Versions {
		v := &rows[0].Versions[i]
		if v.Column == w.id {
			continue
		}
		left := v.TS.Sub(now)
		seen[v.Column] = l.seen[v.Column].look(v.TS, left, asked)
		if v.TS > now.Add(w.mostLeft()) || seen[v.Column].silent(asked, w.config.MemberLease) {
			m.Edits = append(m.Edits, rowstore.Delete(rowstore.Write, v.Column, v.TS))
			continue
		}
		held = max(held, left)
	}
	if l.seen = seen; held > 0 {
		return held, nil
	}
	if _, err = db.applyOne(ctx, m); err != nil {
		return 0, fmt.Errorf("taking the lease of a sweep: %w", err)
	}
	return 0, nil
}

// keep renews the lease until stop is called, however little the sweep finds meanwhile. It does not matter if a renewal fails, nor if
// another worker has taken the lease: then both sweep.
func (l *sweepLease) keep(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var renewing sync.WaitGroup
	renewing.Go(func() {
		for l.w.db.clock.Sleep(ctx, l.w.config.MemberLease/3) == nil {
			if _, err := l.take(ctx); err != nil && ctx.Err() == nil {
				l.w.db.log.Debug("the lease of a sweep could not be renewed", "err", err)
			}
		}
	})
	return func() {
		cancel()
		renewing.Wait()
	}
}

// release gives the lease up. What fails is left to the end of the lease.
func (l *sweepLease) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.w.db.backgroundTimeout())
	defer cancel()
	_, err := l.w.db.applyOne(ctx, rowstore.Mutation{Table: format.TableSweeps, Row: l.row, Edits: []rowstore.Edit{
		rowstore.DeleteRange(rowstore.Write, l.w.id, 0, oracle.Max),
	}})
	if err != nil {
		l.w.db.log.Debug("the lease of a sweep was left to end by itself", "err", err)
	}
}
