package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/percolate-go/percolate/internal/contexts"
)

// fault is one kind of harm. Faults of different lanes happen at the same time.
type fault struct {
	name   string
	about  string
	lane   lane
	weight int
	on     []backend     // nil: all that have servers
	rest   time.Duration // from one to the next, at least
	lossy  bool          // makes servers lose what they acknowledged
	// fire does the harm and undoes it. It returns an error if it could not do the
	// harm, or could not undo it.
	fire func(ctx context.Context, r *run, rng *rand.Rand) error
}

type lane int

const (
	laneServers lane = iota
	laneProcesses
	laneCalls
	laneCrew
	lanes
)

// No pause or delay makes a request wait for as long as the catalog lease (10 s),
// because the library assumes that no request does.
const longestPause = 4500 * time.Millisecond

func faults() []fault {
	every := backends()
	redises := []backend{backendRedis, backendCluster, backendMulti}
	postgreses := []backend{backendPostgres, backendMulti}
	return []fault{
		{name: "kill-client", about: "kill -9 of a process that runs transactions", lane: laneProcesses, weight: 4, fire: killProcess(clients)},
		{name: "kill-worker", about: "kill -9 of a process that runs observers", lane: laneProcesses, weight: 4, fire: killProcess(workers)},
		{name: "kill-all", about: "kill -9 of the process that owns the store", lane: laneProcesses, weight: 4, on: []backend{backendPebble}, fire: killProcess(notInCrew)},
		{name: "pause-process", about: "a process stands still, often for longer than its leases", lane: laneProcesses, weight: 3, on: every, fire: pauseProcess},
		{name: "restart-process", about: "a process ends in order and another takes its place", lane: laneProcesses, weight: 1, on: every, fire: restartProcess},

		{name: "kill-server", about: "kill -9 and restart of a server", lane: laneServers, weight: 3, fire: killServer},
		{name: "stop-server", about: "a server ends in order (Postgres: fast shutdown) and starts again", lane: laneServers, weight: 2, fire: stopServer},
		{name: "pause-server", about: "a server stands still", lane: laneServers, weight: 3, fire: pauseServer},
		{name: "crash-backend", about: "kill -9 of one process of Postgres, which then recovers from its log", lane: laneServers, weight: 2, on: postgreses, fire: crashBackend},
		{name: "failover", about: "a replica takes over from its master, in order", lane: laneServers, weight: 4, on: []backend{backendCluster}, fire: failOver},
		{
			name: "replace-master", about: "kill -9 of a master, whose replica takes over without what had not reached it (-lossy)",
			lane: laneServers, weight: 8, on: []backend{backendCluster}, lossy: true,
			fire: func(ctx context.Context, r *run, rng *rand.Rand) error { return r.servers.replaceMaster(ctx, rng) },
		},

		{name: "cut", about: "connections end, and new ones are refused for a while", lane: laneCalls, weight: 3, fire: cut},
		{name: "reset", about: "connections are reset amid requests", lane: laneCalls, weight: 2, fire: toxic("reset_peer", 0)},
		{name: "black-hole", about: "requests, or replies, vanish until the connection ends", lane: laneCalls, weight: 3, fire: toxic("timeout", 0)},
		{name: "slow", about: "requests and replies are late", lane: laneCalls, weight: 3, fire: toxic("latency", 400)},
		{name: "slice", about: "requests and replies come in small pieces", lane: laneCalls, weight: 1, fire: toxic("slicer", 0)},
		{name: "flush-scripts", about: "servers forget all scripts", lane: laneCalls, weight: 2, on: redises, fire: forgetScripts},
		{name: "flush-statements", about: "sessions end, with their prepared statements", lane: laneCalls, weight: 2, on: postgreses, fire: forgetStatements},
		{name: "oracle-jump", about: "the oracle skips seconds: leases end at once, and its time then stands still", lane: laneCalls, weight: 3, on: every, rest: 15 * time.Second, fire: jumpOracle},

		{name: "crew-kill", about: "kill -9 of a worker of the crew, and another comes", lane: laneCrew, weight: 6, fire: ofCrew(killCrew)},
		{name: "crew-stop", about: "a worker of the crew ends in order, and another comes", lane: laneCrew, weight: 6, fire: ofCrew(stopCrew)},
		{name: "crew-pause", about: "a worker of the crew stands still for longer than its lease", lane: laneCrew, weight: 4, fire: ofCrew(pauseCrew)},
		{name: "stranger", about: "somebody writes members that nobody stands behind", lane: laneCrew, weight: 2, on: every, rest: 8 * time.Second, fire: visit},
	}
}

// faultWrongClock is not fired: a process has it from its start.
const faultWrongClock = "wrong-clock"

func chooseFaults(names string, b backend, lossy bool) (chosen []fault, wrongClocks bool, err error) {
	fits := func(f fault) bool {
		if f.lossy && !lossy {
			return false
		}
		if f.on == nil {
			return !b.embedded()
		}
		return slices.Contains(f.on, b)
	}
	all := faults()
	switch names {
	case "none":
		return nil, false, nil
	case "all":
		return slices.DeleteFunc(all, func(f fault) bool { return !fits(f) }), true, nil
	}
	for _, name := range strings.Split(names, ",") {
		if name == faultWrongClock {
			wrongClocks = true
			continue
		}
		i := slices.IndexFunc(all, func(f fault) bool { return f.name == name })
		if i < 0 {
			return nil, false, fmt.Errorf("there is no fault %q (-list names them)", name)
		}
		if !fits(all[i]) {
			return nil, false, fmt.Errorf("the fault %q does not fit %s (or needs -lossy)", name, b)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, wrongClocks, nil
}

// harm fires faults of one lane until the context ends.
func (r *run) harm(ctx context.Context, l lane, rng *rand.Rand) {
	last := map[string]time.Time{}
	for {
		gap := 500*time.Millisecond + time.Duration(rng.Int64N(int64(3*time.Second)))
		if l == laneCrew {
			gap /= 2
		}
		if contexts.Sleep(ctx, gap) != nil {
			return
		}
		var mine []fault
		weights := 0
		for _, f := range r.faults {
			if f.lane == l && time.Since(last[f.name]) >= f.rest {
				mine = append(mine, f)
				weights += f.weight
			}
		}
		if len(mine) == 0 {
			continue
		}
		n := rng.IntN(weights)
		i := 0
		for n >= mine[i].weight {
			n -= mine[i].weight
			i++
		}
		f := mine[i]
		began := time.Now()
		// A fault that was begun is undone, even if the time is up.
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		err := f.fire(bounded, r, rng)
		cancel()
		last[f.name] = time.Now()
		r.noteFault(f.name, time.Since(began), err)
	}
}

// whileIn waits for a random time between least and most.
func whileIn(ctx context.Context, rng *rand.Rand, least, most time.Duration) {
	_ = contexts.Sleep(ctx, least+time.Duration(rng.Int64N(int64(most-least)))) // what follows is to be done in any case
}

func clients(s *slot) bool { return s.config.Threads > 0 }
func workers(s *slot) bool { return s.config.Worker && s.config.Threads == 0 }

func (r *run) pick(rng *rand.Rand, which func(*slot) bool) (*slot, error) {
	var fit []*slot
	for _, s := range r.slots {
		if which(s) {
			fit = append(fit, s)
		}
	}
	if len(fit) == 0 {
		return nil, errors.New("there is no such process")
	}
	return fit[rng.IntN(len(fit))], nil
}

// killProcess is of processes that are not in the crew, like those below: that one comes and
// goes in a lane of its own.
func killProcess(which func(*slot) bool) func(context.Context, *run, *rand.Rand) error {
	return func(ctx context.Context, r *run, rng *rand.Rand) error {
		s, err := r.pick(rng, which)
		if err != nil {
			return err
		}
		if err := s.kill(); err != nil {
			return err
		}
		whileIn(ctx, rng, 0, 500*time.Millisecond)
		return r.launch(s)
	}
}

func pauseProcess(ctx context.Context, r *run, rng *rand.Rand) error {
	s, err := r.pick(rng, notInCrew)
	if err != nil {
		return err
	}
	if err := s.pause(); err != nil {
		return err
	}
	whileIn(ctx, rng, 300*time.Millisecond, longestPause)
	return s.resume()
}

func restartProcess(_ context.Context, r *run, rng *rand.Rand) error {
	s, err := r.pick(rng, notInCrew)
	if err != nil {
		return err
	}
	if err := r.end(s); err != nil {
		return err
	}
	return r.launch(s)
}

func (r *run) node(rng *rand.Rand) *node { return r.servers.nodes[rng.IntN(len(r.servers.nodes))] }

func killServer(ctx context.Context, r *run, rng *rand.Rand) error {
	n := r.node(rng)
	err := n.Kill()
	whileIn(ctx, rng, 0, time.Second)
	return errors.Join(err, n.Start())
}

func stopServer(ctx context.Context, r *run, rng *rand.Rand) error {
	n := r.node(rng)
	err := n.Stop()
	whileIn(ctx, rng, 0, time.Second)
	return errors.Join(err, n.Start())
}

func pauseServer(ctx context.Context, r *run, rng *rand.Rand) error {
	n := r.node(rng)
	err := n.Pause()
	whileIn(ctx, rng, 200*time.Millisecond, longestPause)
	return errors.Join(err, n.Resume())
}

func crashBackend(ctx context.Context, r *run, rng *rand.Rand) error {
	for _, n := range r.servers.nodes {
		if n.client != nil {
			continue // a Redis is one process
		}
		if err := n.CrashBackend(); err != nil {
			return err
		}
	}
	whileIn(ctx, rng, 200*time.Millisecond, 2*time.Second)
	return nil
}

func failOver(ctx context.Context, r *run, rng *rand.Rand) error { return r.servers.failOver(ctx, rng) }

func forgetScripts(ctx context.Context, r *run, _ *rand.Rand) error {
	return r.servers.forgetScripts(ctx)
}

func forgetStatements(ctx context.Context, r *run, _ *rand.Rand) error {
	return r.servers.forgetStatements(ctx)
}

// someProxies picks one way, or all of them.
func (r *run) someProxies(rng *rand.Rand) []*proxy {
	all := r.servers.net.proxies
	if rng.IntN(3) == 0 {
		return all
	}
	return []*proxy{all[rng.IntN(len(all))]}
}

func cut(ctx context.Context, r *run, rng *rand.Rand) error {
	some := r.someProxies(rng)
	for _, p := range some {
		p.cut()
	}
	whileIn(ctx, rng, 0, 3*time.Second)
	var errs []error
	for _, p := range some {
		errs = append(errs, p.mend())
	}
	return errors.Join(errs...)
}

func toxic(kind string, most int) func(context.Context, *run, *rand.Rand) error {
	return func(ctx context.Context, r *run, rng *rand.Rand) error {
		some := r.someProxies(rng)
		direction := []string{"upstream", "downstream"}[rng.IntN(2)]
		attributes := map[string]int{}
		switch kind {
		case "latency":
			attributes["latency"], attributes["jitter"] = 1+rng.IntN(most), rng.IntN(most)
		case "slicer":
			attributes["average_size"], attributes["size_variation"], attributes["delay"] = 64, 32, 50
		}
		var errs []error
		for _, p := range some {
			errs = append(errs, p.poison(kind, kind, direction, attributes))
		}
		whileIn(ctx, rng, 200*time.Millisecond, 3*time.Second)
		for _, p := range some {
			errs = append(errs, p.cure(ctx, kind))
		}
		return errors.Join(errs...)
	}
}

func jumpOracle(ctx context.Context, r *run, rng *rand.Rand) error {
	ms := 100 + rng.IntN(5000)
	if r.servers.backend.embedded() {
		return r.slots[0].tell(fmt.Sprintf("jump %d", ms))
	}
	store, err := openStore(ctx, r.servers.directURLs())
	if err != nil {
		return err
	}
	return errors.Join(jump(ctx, store, ms), store.Close())
}
