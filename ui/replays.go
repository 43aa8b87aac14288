package ui

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/percolator"
)

// errBusy: this page runs as many replays as it may.
var errBusy = errors.New("ui: too many replays are under way")

const (
	mostReplays = 8  // under way at once
	keptReplays = 32 // that are shown, those under way and the last that have ended
)

// replays owns the goroutines of the replays that the page has begun: a replay blocks until its runs are done.
type replays struct {
	db  *percolator.DB
	log *slog.Logger
	ctx context.Context //nolint:containedctx // of the goroutines: close ends it
	end context.CancelFunc
	all sync.WaitGroup

	mu     sync.Mutex
	closed bool
	known  []*replaying // the oldest first
}

// replaying is a replay that the page has begun.
type replaying struct {
	observer string
	rng      percolator.Range
	who      string
	began    time.Time
	ended    bool
	report   percolator.ReplayReport
	err      error
}

// replayView is what is shown of it.
type replayView struct {
	Observer, Table, From, To admin.Bytes
	Who                       string
	Began                     time.Time
	State                     string
}

func newReplays(db *percolator.DB, log *slog.Logger) *replays {
	ctx, end := context.WithCancel(context.Background())
	return &replays{db: db, log: log, ctx: ctx, end: end}
}

// begin begins a replay, or goes on with one. If the page is at work on it already, it is left so.
func (rs *replays) begin(who, observer string, rng percolator.Range) error {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.closed {
		return fmt.Errorf("ui: beginning a replay: %w", percolator.ErrClosed)
	}
	busy := 0
	for _, x := range rs.known {
		if x.ended {
			continue
		}
		if x.observer == observer && x.rng.Table == rng.Table && x.rng.From == rng.From && x.rng.To == rng.To {
			return nil
		}
		busy++
	}
	if busy >= mostReplays {
		return fmt.Errorf("%w: %d; wait until one has ended", errBusy, busy)
	}
	if len(rs.known) >= keptReplays {
		i := slices.IndexFunc(rs.known, func(x *replaying) bool { return x.ended })
		rs.known = slices.Delete(rs.known, i, i+1)
	}
	x := &replaying{observer: observer, rng: rng, who: who, began: time.Now()}
	rs.known = append(rs.known, x)
	rs.all.Go(func() { rs.run(x) })
	return nil
}

func (rs *replays) run(x *replaying) {
	report, err := rs.db.Replay(rs.ctx, x.observer, x.rng)
	rs.mu.Lock()
	x.ended, x.report, x.err = true, report, err
	rs.mu.Unlock()
	rs.log.Info("ui: a replay has ended", "who", x.who, "observer", x.observer, "cells", report.Cells, "parked", report.Parked, "error", err)
}

// list is what the page has begun, the newest first.
func (rs *replays) list() (out []replayView) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, x := range slices.Backward(rs.known) {
		v := replayView{
			Observer: admin.Bytes(x.observer), Table: admin.Bytes(x.rng.Table), From: admin.Bytes(x.rng.From), To: admin.Bytes(x.rng.To), Who: x.who, Began: x.began.UTC(),
			State: "under way",
		}
		switch {
		case x.ended && x.err != nil:
			v.State = "broken off: " + x.err.Error()
		case x.ended:
			v.State = fmt.Sprintf("done: %d cells; %d runs were parked, %d are to be attempted later", x.report.Cells, x.report.Parked, x.report.Waiting)
		}
		out = append(out, v)
	}
	return out
}

// close ends all that is under way, and waits for it.
func (rs *replays) close(ctx context.Context) error {
	rs.mu.Lock()
	rs.closed = true
	rs.mu.Unlock()
	rs.end()
	ended := make(chan struct{})
	go func() { rs.all.Wait(); close(ended) }()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("ui: closing the page: %w", context.Cause(ctx))
	}
}
