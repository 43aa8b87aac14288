package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/percolate-go/percolate/internal/contexts"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// The crew are workers that come and go all the time. Each runs some of the observers of
// the relay, and tells others for a short time only that it lives. A worker is a process
// of its own, which is ended, killed, or stands still for longer than its lease. In an
// embedded store they are workers of the process that owns it.

// Leases of the crew's workers. A pause lasts longer than any.
const (
	shortestCrewLease = 500 * time.Millisecond
	longestCrewLease  = time.Second
)

// crewWorker makes a worker of the observers.
func crewWorker(db *percolator.DB, log *journal, names []string, naps func() bool, rng *rand.Rand) (*percolator.Worker, error) {
	c := workerConfig()
	c.Concurrency = 1 + rng.IntN(8)
	c.MemberLease = shortestCrewLease + time.Duration(rng.Int64N(int64(longestCrewLease-shortestCrewLease)))
	c.GCInterval = -1
	c.StopTimeout = time.Duration(rng.Int64N(int64(3*time.Second))) + 1
	return workerOf(db, c, append(relayObservers(log, names, naps), passObservers()...))
}

// crew runs the n-th worker of the process. If the process stays, as the owner of an embedded
// store does, its workers come and go; else one lasts as long as the process.
func (p *process) crew(ctx context.Context, n int) error {
	rng := rand.New(rand.NewPCG(p.Seed, 1000+uint64(n))) //nolint:gosec // a small number
	sets := relaySets()
	for ctx.Err() == nil {
		w, err := crewWorker(p.db, p.log, sets[(p.CrewSet+n)%len(sets)], func() bool { return !p.calm.Load() && rand.IntN(12) == 0 }, rng)
		if err != nil {
			return err
		}
		life, stop := context.WithCancel(ctx)
		if p.Stays {
			stop()
			life, stop = context.WithTimeout(ctx, 200*time.Millisecond+time.Duration(rng.Int64N(int64(3*time.Second))))
		}
		err = w.Run(life)
		stop()
		if err != nil {
			p.log.write(line{Kind: lineBad, Text: "a worker of the crew ended by itself: " + err.Error()})
			return err
		}
		_ = contexts.Sleep(ctx, time.Duration(rng.Int64N(int64(time.Second)))) // the loop looks
	}
	return nil
}

func inCrew(s *slot) bool { return s.config.Crew > 0 && s.config.Threads == 0 }

func notInCrew(s *slot) bool { return !inCrew(s) }

// borrow takes a process of the crew that no other fault has at the moment.
func (r *run) borrow(rng *rand.Rand) (s *slot, giveBack func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var idle []*slot
	for _, s := range r.slots {
		if inCrew(s) && !s.borrowed {
			idle = append(idle, s)
		}
	}
	if len(idle) == 0 {
		return nil, nil, errors.New("there is no such process")
	}
	s = idle[rng.IntN(len(idle))]
	s.borrowed = true
	return s, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		s.borrowed = false
	}, nil
}

// ofCrew makes a fault of what is done to a process of the crew.
func ofCrew(do func(ctx context.Context, r *run, s *slot, rng *rand.Rand) error) func(context.Context, *run, *rand.Rand) error {
	return func(ctx context.Context, r *run, rng *rand.Rand) error {
		s, giveBack, err := r.borrow(rng)
		if err != nil {
			return err
		}
		defer giveBack()
		return do(ctx, r, s, rng)
	}
}

func killCrew(ctx context.Context, r *run, s *slot, rng *rand.Rand) error {
	if err := s.kill(); err != nil {
		return err
	}
	whileIn(ctx, rng, 0, time.Second)
	return r.launch(s)
}

func stopCrew(ctx context.Context, r *run, s *slot, rng *rand.Rand) error {
	if err := r.end(s); err != nil {
		return err
	}
	whileIn(ctx, rng, 0, time.Second)
	return r.launch(s)
}

func pauseCrew(ctx context.Context, _ *run, s *slot, rng *rand.Rand) error {
	if err := s.pause(); err != nil {
		return err
	}
	whileIn(ctx, rng, longestCrewLease, 3*longestCrewLease)
	return s.resume()
}

// crewSettleTimeout is far above the time after which a crew that nobody disturbs has seen
// everything: the locks of a killed process may stand for 24 leases of its session.
const crewSettleTimeout = 90 * time.Second

// settleCrew waits until the crew has seen every change, when no fault is left and nobody
// changes anything any more. Workers that leave a change alone for good would otherwise go
// unnoticed, because the last worker is a new one. So a few changes more come while a worker
// stands still that has a part of them, and it never goes on.
//
// An embedded store has one process only, so there the crew ends with those that change
// cells.
func (r *run) settleCrew(ctx context.Context) error {
	if r.Backend.embedded() || !slices.ContainsFunc(r.slots, inCrew) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, crewSettleTimeout)
	defer cancel()
	p, err := r.openDirect(ctx, settleProcess)
	if err != nil {
		return err
	}
	for _, s := range r.slots {
		if inCrew(s) {
			err = errors.Join(err, s.tell(commandCalm))
		}
	}
	began := time.Now()
	err = errors.Join(err, r.awaitCrew(ctx, p.db))
	var lost *slot
	if err == nil {
		r.say("the crew has seen every change but those of its last moment (%v)", time.Since(began).Round(time.Millisecond))
		lost, err = r.loseOne(ctx, p)
	}
	if err == nil {
		err = r.awaitCrew(ctx, p.db)
	}
	if err == nil {
		r.say("the crew has seen every change (%v)", time.Since(began).Round(time.Millisecond))
	}
	if lost != nil {
		err = errors.Join(err, r.launch(lost)) // the run ends every process
	}
	return errors.Join(err, p.close(context.WithoutCancel(ctx)))
}

// commandCalm tells a process of the crew that the end has come.
const commandCalm = "calm"

// settleProcess is the name of this process in the history of those changes.
const settleProcess = "settle"

// loseOne changes cells while a worker of the crew stands still, and kills it. It does
// nothing if the others do not run every observer.
func (r *run) loseOne(ctx context.Context, p *process) (lost *slot, err error) {
	if r.Crew < len(relaySets()) {
		return nil, nil
	}
	lost = r.slots[slices.IndexFunc(r.slots, inCrew)] // it runs all observers
	if err := lost.pause(); err != nil {
		return lost, err
	}
	s := p.newThread(0)
	// One transaction, because that worker has its part for no longer than its lease.
	for range 3 {
		err := s.do(ctx, relayName, mode{}, func(t *txn) error {
			for i := range relayCells {
				if err := t.set(batonCell(i), s.unique()); err != nil {
					return err
				}
			}
			return nil
		})
		if err == nil {
			break // else the log has what became of it
		}
	}
	_ = contexts.Sleep(ctx, longestCrewLease/4) // others see what is not theirs
	return lost, lost.kill()
}

// awaitCrew waits until the crew has seen every change.
func (r *run) awaitCrew(ctx context.Context, db *percolator.DB) error {
	var left []string
	err := eventually(ctx, func() error {
		_ = contexts.Sleep(ctx, 200*time.Millisecond) // it reads much; the call says whether time is up
		now, err := unseen(ctx, db)
		if err == nil {
			left = now
		}
		if err == nil && len(left) > 0 {
			err = errors.New("there is something left")
		}
		return err
	})
	if err != nil && len(left) > 0 {
		return fmt.Errorf("the crew, which nobody disturbed, has left %d changes alone for %v: %v", len(left), crewSettleTimeout, left)
	}
	return err
}

// unseen lists what observers of the relay have yet to see.
func unseen(ctx context.Context, db *percolator.DB) (left []string, err error) {
	err = db.View(ctx, func(tx *percolator.Txn) error {
		left = nil
		t := &txn{Txn: tx, ctx: ctx}
		last := map[string]string{} // what the last run saw, by observer and row
		for row, err := range tx.Scan(ctx, percolator.Range{Table: tableRelayed}) {
			if err != nil {
				return err
			}
			of := row.Key[:max(strings.LastIndexByte(row.Key, ':'), 0)]
			if last[of], err = unpad(row.Columns["seen"]); err != nil {
				return err
			}
		}
		for i := range relayCells {
			row := cellOf(batonCell(i)).Row
			for observer, column := range map[string]string{carryName: "head", noteName: "head", receiveName: "tail"} {
				value, err := t.quiet(tableBaton, row, column)
				if err != nil {
					return err
				}
				if value != nil && last[observer+":"+row] != *value {
					left = append(left, observer+" of "+row)
				}
			}
		}
		return nil
	})
	return left, err
}

// visit lets a stranger write members that nobody stands behind.
func visit(ctx context.Context, r *run, rng *rand.Rand) error {
	if r.servers.backend.embedded() {
		return r.slots[0].tell("stranger " + fmt.Sprint(rng.Uint64()))
	}
	store, err := openStore(ctx, r.servers.directURLs())
	if err != nil {
		return err
	}
	return errors.Join(putStrangers(ctx, store, rng.Uint64()), store.Close())
}

const (
	// deadPrefix and strangePrefix begin the ids of a stranger's members: of the dead, and of
	// others. Ids of workers are hexadecimal, so some come before all of them, and some after.
	deadPrefix, strangePrefix = "dead-", "strange-"
	manyDead                  = 1000
	strangersAtOnce           = 250
)

// putStrangers writes members to the store that no worker stands behind: of which the record
// cannot be read or is of a newer version, whose lease ends in a century, or ended before.
// Then it changes the generation, so that every worker looks at them.
func putStrangers(ctx context.Context, store rowstore.Store, seed uint64) error {
	p, ok := rowstore.Unwrap[rowstore.OracleProvider](store)
	if !ok {
		return errors.New("the store has no oracle of its own")
	}
	now, err := p.Oracle().Draw(ctx, 1)
	if err != nil {
		return err
	}
	const century = 100 * 365 * 24 * time.Hour
	var muts []rowstore.Mutation
	put := func(id string, record []byte, ends oracle.Timestamp) {
		muts = append(muts, rowstore.Mutation{Table: format.TableMembers, Row: id, Edits: []rowstore.Edit{
			rowstore.Put(rowstore.Lock, format.ColumnMember, now, record),
			rowstore.Put(rowstore.Write, format.ColumnLease, ends, format.TimestampOnly),
		}})
	}
	runsAll := func(lease time.Duration) []byte {
		m := format.Member{From: 1, Lease: lease}
		for _, o := range relayObservers(nil, relaySets()[0], nil) {
			m.Works = append(m.Works, format.MemberWork{Observer: o.Name, Table: o.Table, Column: o.Column, Weight: 16})
		}
		return m.Encode()
	}
	newer := append([]byte{format.Version + 1}, runsAll(time.Second)[1:]...)
	for i, first := range []string{"", "0", "8", "~"} {
		id := func(kind string) string { return fmt.Sprintf("%s%s%s-%d-%d", first, strangePrefix, kind, seed, i) }
		put(id("garbage"), []byte("garbage"), now.Add(century))
		put(id("newer"), newer, now.Add(century))
		put(id("century"), runsAll(century), now.Add(century))
		put(id("short"), runsAll(time.Second), now.Add(century))
	}
	for i := range manyDead {
		put(fmt.Sprintf("%x%s%d-%d", i%16, deadPrefix, seed, i), runsAll(time.Second), now-1)
	}
	for len(muts) > 0 {
		n := min(strangersAtOnce, len(muts))
		outs, err := store.Apply(ctx, muts[:n], rowstore.ApplyOptions{})
		for i := range outs {
			err = errors.Join(err, outs[i].Err)
		}
		if err != nil {
			return fmt.Errorf("writing strange members: %w", err)
		}
		muts = muts[n:]
	}
	_, err = store.Apply(ctx, []rowstore.Mutation{{Table: format.TableMembers, Row: format.RowGeneration, Edits: []rowstore.Edit{
		rowstore.DeleteRange(rowstore.Write, format.ColumnChange, 0, now-1),
		rowstore.DeleteRange(rowstore.Write, format.ColumnChange, now+1, oracle.Max),
		rowstore.Put(rowstore.Write, format.ColumnChange, now, format.TimestampOnly),
	}}}, rowstore.ApplyOptions{})
	return err
}

// deadMembers counts the stranger's dead that nobody has removed.
func deadMembers(ctx context.Context, store rowstore.Store) (n int, err error) {
	picks := []rowstore.Selector{{Family: rowstore.Lock, Column: format.ColumnMember, To: oracle.Max, Limit: 1}}
	for row, err := range store.Scan(ctx, rowstore.ScanRange{Table: format.TableMembers, Selectors: picks}) {
		if err != nil {
			return n, err
		}
		if strings.Contains(row.Row, deadPrefix) {
			n++
		}
	}
	return n, nil
}

// obeyStranger is what a process does that was told to be the stranger.
func (p *process) obeyStranger(ctx context.Context, seed uint64, logger *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, txnTimeout)
	defer cancel()
	if err := putStrangers(ctx, p.db.Store(), seed); err != nil {
		logger.Warn("strange members", "err", err)
	}
}
