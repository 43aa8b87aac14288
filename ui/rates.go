package ui

import (
	"fmt"
	"sync"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// rates remembers what the process has counted at some moments, to tell how fast it counts. Looks are its clock: nobody
// looks, nothing is done.
type rates struct {
	mu      sync.Mutex
	samples []sample // the oldest first
}

type sample struct {
	at    time.Time
	stats percolator.Stats
}

const (
	rateWindow  = 30 * time.Second
	ratesApart  = time.Second
	mostSamples = 64
)

// ratesView is what this process does.
type ratesView struct {
	Over string // the time that the rates are of, "" without one
	Rows []rate
}

type rate struct {
	Name      string
	PerSecond string // "" before the second look
	Total     uint64
}

// look takes a sample, if the newest one is a second old.
func (r *rates) look(now time.Time, s percolator.Stats) *ratesView {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.samples) > 1 && (now.Sub(r.samples[0].at) > rateWindow || len(r.samples) >= mostSamples) {
		r.samples = r.samples[1:]
	}
	var before *sample
	if len(r.samples) > 0 && now.Sub(r.samples[0].at) >= ratesApart {
		first := r.samples[0]
		before = &first
	}
	if len(r.samples) == 0 || now.Sub(r.samples[len(r.samples)-1].at) >= ratesApart {
		r.samples = append(r.samples, sample{now, s})
	}
	v := &ratesView{}
	old := s
	if before != nil {
		old = before.stats
		v.Over = now.Sub(before.at).Round(time.Second).String()
	}
	for _, x := range []struct {
		name     string
		now, old uint64
	}{
		{"transactions begun", s.Transactions, old.Transactions},
		{"committed with writes", s.OnePhase + s.Group + s.TwoPhase, old.OnePhase + old.Group + old.TwoPhase},
		{"conflicts", s.Conflicts, old.Conflicts},
		{"undetermined", s.Undetermined, old.Undetermined},
		{"locks met", s.LocksMet, old.LocksMet},
		{"rolled back of others", s.RolledBack, old.RolledBack},
		{"runs of observers", s.ObserverRuns, old.ObserverRuns},
		{"their conflicts", s.ObserverConflicts, old.ObserverConflicts},
		{"their failures", s.ObserverFailures, old.ObserverFailures},
		{"runs parked", s.ObserverParked, old.ObserverParked},
		{"timers fired", s.TimersFired, old.TimersFired},
		{"versions collected", s.GCVersions, old.GCVersions},
	} {
		row := rate{Name: x.name, Total: x.now}
		if before != nil {
			row.PerSecond = fmt.Sprintf("%.1f", float64(x.now-x.old)/now.Sub(before.at).Seconds())
		}
		v.Rows = append(v.Rows, row)
	}
	return v
}
