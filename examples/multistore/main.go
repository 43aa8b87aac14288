// Command multistore moves money between a table in one database and a table in
// another, in single transactions, while the processes that do it are killed at
// random. Whatever dies, the sum over both databases stays right: every audit, from
// one snapshot of both, finds it.
//
//	go run ./examples/multistore -ledger postgres://localhost/shop -wallet 'redis://localhost:6379/0?prefix=demo'
//	go run ./examples/multistore -ledger 'tikv://localhost:2379?prefix=demo' -wallet 'redis://localhost:6379/0?prefix=demo'
//	go run ./examples/multistore -config percolator.yaml
//
// With a configuration, it routes the tables "ledger" and "wallet". The first of
// the two is the authoritative store: take the one that loses nothing in a crash.
// Both must take several processes, so the embedded store will not do.
//
// A process is killed once it has moved money. It ends with a report, and with status 1
// if a sum was ever wrong, a lock was left behind, or too little happened to show
// anything; with status 2 for flags that make no sense, as another number of accounts
// than an earlier run has opened.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	_ "github.com/percolate-go/percolate/backends/all"
	"github.com/percolate-go/percolate/config"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/router"
)

// play is what the flags say.
type play struct {
	config         string
	ledger, wallet string
	accounts       int
	movers         int
	duration       time.Duration
	killEvery      time.Duration
	seed           uint64
	mover          bool // this process only moves money, until it is killed
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	fmt.Fprintln(os.Stderr, "multistore:", err)
	stop()
	if bad := (usageError{}); errors.As(err, &bad) {
		os.Exit(2)
	}
	os.Exit(1)
}

// usageError is a mistake in the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var p play
	flags := flag.NewFlagSet("multistore", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&p.config, "config", "", "`FILE` that describes the stores, in place of -ledger and -wallet")
	flags.StringVar(&p.ledger, "ledger", "", "`URL` of the store of the table ledger, which is authoritative")
	flags.StringVar(&p.wallet, "wallet", "", "`URL` of the store of the table wallet")
	flags.IntVar(&p.accounts, "accounts", 50, "accounts in each table, opened at the first run on the stores")
	flags.IntVar(&p.movers, "movers", 4, "processes that move money")
	flags.DurationVar(&p.duration, "duration", 20*time.Second, "how long to run; longer, up to ten times, until something has happened")
	flags.DurationVar(&p.killEvery, "kill-every", 500*time.Millisecond, "how often one of the processes is killed")
	flags.Uint64Var(&p.seed, "seed", 0, "seed of all choices (0: a new one, which is printed)")
	flags.BoolVar(&p.mover, "mover", false, "only move money, until killed (used by the command itself)")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return usageError{err}
	}
	switch {
	case flags.NArg() > 0:
		return usageError{fmt.Errorf("unexpected argument %q: everything is given by flags, see -help", flags.Arg(0))}
	case (p.config == "") == (p.ledger == "" && p.wallet == ""):
		return usageError{errors.New("name the stores, either with -config or with -ledger and -wallet")}
	case p.config == "" && (p.ledger == "" || p.wallet == ""):
		return usageError{errors.New("-ledger and -wallet go together")}
	case p.accounts < 1 || p.movers < 1 || p.duration <= 0 || p.killEvery <= 0:
		return usageError{errors.New("-accounts, -movers, -duration and -kill-every must be positive")}
	}
	if p.seed == 0 {
		p.seed = rand.Uint64() //nolint:gosec // a choice, no secret
	}
	db, err := p.open(ctx)
	if err != nil {
		return err
	}
	if p.mover {
		err = p.move(ctx, db, stdout)
	} else {
		err = p.direct(ctx, db, args, stdout, stderr)
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	return errors.Join(err, db.Close(closing))
}

// open opens one database over both stores. The leases are short, so that what a
// killed process leaves behind is resolved soon.
func (p *play) open(ctx context.Context) (*percolator.DB, error) {
	opts := []percolator.Option{percolator.WithSessionLease(time.Second), percolator.WithLockExpiry(3 * time.Second)}
	if p.mover {
		// The stores' warnings are the parent's to show, once.
		opts = append(opts, percolator.WithLogger(slog.New(slog.DiscardHandler)))
	}
	if p.config != "" {
		return config.Open(ctx, p.config, opts...)
	}
	stores := map[string]rowstore.Store{}
	fail := func(err error) (*percolator.DB, error) {
		for _, s := range stores {
			err = errors.Join(err, s.Close())
		}
		return nil, err
	}
	for name, url := range map[string]string{"ledger": p.ledger, "wallet": p.wallet} {
		s, err := rowstore.Open(ctx, url)
		if err != nil {
			return fail(fmt.Errorf("opening the store of the table %s: %w", name, err))
		}
		stores[name] = s
	}
	router, err := router.New(router.Config{
		Stores:        stores,
		Tables:        map[string]string{"ledger": "ledger", "wallet": "wallet"},
		Authoritative: "ledger",
	})
	if err != nil {
		return fail(err)
	}
	db, err := percolator.New(ctx, router, opts...)
	if err != nil {
		return fail(err)
	}
	return db, nil
}

const opening = 1000 // in each account

func account(table string, i int) percolator.Cell {
	return percolator.Cell{Table: table, Row: fmt.Sprintf("account%06d", i), Column: "balance"}
}

var tables = []string{"ledger", "wallet"}

// fill opens the accounts, unless an earlier run did. That many are there from then on.
func (p *play) fill(ctx context.Context, db *percolator.DB) error {
	return db.Update(ctx, func(tx *percolator.Txn) error {
		there := make([]int, len(tables))
		for i, table := range tables {
			for _, err := range tx.Scan(ctx, percolator.Range{Table: table}) {
				if err != nil {
					return err
				}
				there[i]++
			}
		}
		switch {
		case there[0] != there[1]:
			return fmt.Errorf("%s has %d accounts, and %s has %d: one of them has lost some", tables[0], there[0], tables[1], there[1])
		case there[0] == p.accounts:
			return nil
		case there[0] > 0:
			return usageError{fmt.Errorf("-accounts %d: the tables have %d accounts each already", p.accounts, there[0])}
		}
		for _, table := range tables {
			for i := range p.accounts {
				if err := tx.Set(account(table, i), []byte(strconv.Itoa(opening))); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// move moves money until ctx ends: each transaction takes from an account in one
// database and gives to one in the other. It says so when it has moved some.
func (p *play) move(ctx context.Context, db *percolator.DB, stdout io.Writer) error {
	said := false
	r := rand.New(rand.NewPCG(p.seed, uint64(os.Getpid()))) //nolint:gosec // a choice, no secret
	for ctx.Err() == nil {
		from, to := account(tables[0], r.IntN(p.accounts)), account(tables[1], r.IntN(p.accounts))
		if r.IntN(2) == 0 {
			from, to = to, from
		}
		amount := 1 + r.IntN(20)
		err := db.Update(ctx, func(tx *percolator.Txn) error {
			got, err := tx.GetMany(ctx, from, to)
			if err != nil {
				return err
			}
			for c, change := range map[percolator.Cell]int{from: -amount, to: amount} {
				balance, err := strconv.Atoi(string(got[c]))
				if err != nil {
					return fmt.Errorf("the balance of %v: %w", c, err)
				}
				if err := tx.Set(c, []byte(strconv.Itoa(balance+change))); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil && ctx.Err() == nil && !errors.Is(err, percolator.ErrConflict) {
			return err
		}
		if err == nil && !said {
			said = true
			fmt.Fprintln(stdout, "moved")
		}
	}
	return nil
}

// audit reads every account of both databases from one snapshot.
func (p *play) audit(ctx context.Context, db *percolator.DB) error {
	want := len(tables) * p.accounts * opening
	return db.View(ctx, func(tx *percolator.Txn) error {
		sum, accounts := 0, 0
		for _, table := range tables {
			for row, err := range tx.Scan(ctx, percolator.Range{Table: table}) {
				if err != nil {
					return err
				}
				balance, err := strconv.Atoi(string(row.Columns["balance"]))
				if err != nil {
					return fmt.Errorf("the balance of %s in %s: %w", row.Key, table, err)
				}
				sum += balance
				accounts++
			}
		}
		if accounts != len(tables)*p.accounts || sum != want {
			snapshot, err := tx.StartTimestamp(ctx)
			return errors.Join(fmt.Errorf("%d accounts hold %d at %v; there should be %d with %d", accounts, sum, snapshot, len(tables)*p.accounts, want), err)
		}
		return nil
	})
}

// process is a mover in a process of its own.
type process struct {
	cmd   *exec.Cmd
	moved chan struct{} // closed when it has moved money
	done  chan error
}

// Write hears what the process says.
func (m *process) Write(b []byte) (int, error) {
	select {
	case <-m.moved:
	default:
		close(m.moved)
	}
	return len(b), nil
}

// lives returns true when c is closed, and false when the play ends before that. It
// returns an error if the process ended before both.
func (m *process) lives(ctx context.Context, c <-chan struct{}) (bool, error) {
	select {
	case <-c:
		return ctx.Err() == nil, nil
	case <-ctx.Done():
		return false, nil
	case err := <-m.done:
		m.done <- err
		return false, unlessOver(ctx, fmt.Errorf("a process that moves money ended by itself: %w", err))
	}
}

func (p *play) spawn(ctx context.Context, args []string, stderr io.Writer) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, append([]string{"-mover"}, args...)...) //nolint:gosec // this program
	cmd.Env = append(os.Environ(), "MULTISTORE_MOVER=1")
	cmd.Stderr = stderr
	m := &process{cmd: cmd, moved: make(chan struct{}), done: make(chan error, 1)}
	cmd.Stdout = m
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() { m.done <- cmd.Wait() }()
	return m, nil
}

// direct starts the movers, kills them at random, and audits all along.
func (p *play) direct(ctx context.Context, db *percolator.DB, args []string, stdout, stderr io.Writer) error {
	fmt.Fprintln(stdout, "seed         ", p.seed)
	if err := p.fill(ctx, db); err != nil {
		return fmt.Errorf("opening the accounts: %w", err)
	}
	before, err := db.Now(ctx)
	if err != nil {
		return err
	}
	const patience = 10
	playing, end := context.WithTimeout(ctx, patience*p.duration)
	defer end()
	began := time.Now()
	var killed atomic.Int64
	broken := make(chan error, 1)
	go func() {
		broken <- p.kill(playing, &killed, args, stderr)
		end()
	}()
	audits := 0
	var wrong error
	for playing.Err() == nil && wrong == nil && (time.Since(began) < p.duration || killed.Load() == 0) {
		if err := p.audit(playing, db); err == nil {
			audits++
		} else if playing.Err() == nil && !errors.Is(err, context.DeadlineExceeded) {
			wrong = err // a connection may notice the deadline a moment before the context does
		}
	}
	end()
	err = errors.Join(wrong, <-broken)
	// The last audit meets what the last killed processes left, and resolves it.
	if last := p.audit(ctx, db); last != nil {
		err = errors.Join(err, fmt.Errorf("the last audit: %w", last))
	} else {
		audits++
	}
	moved, cerr := p.moved(ctx, db, before)
	err = errors.Join(err, cerr)
	s := db.Stats()
	fmt.Fprintln(stdout, "moved        ", moved, "times, at least")
	fmt.Fprintln(stdout, "killed       ", killed.Load(), "processes")
	fmt.Fprintln(stdout, "audits       ", audits, "right")
	fmt.Fprintln(stdout, "left behind  ", s.RolledForward, "cells rolled forward,", s.RolledBack, "rolled back")
	if err == nil && (moved == 0 || killed.Load() == 0 || audits < 2) {
		err = errors.New("too little happened: run longer")
	}
	return err
}

// kill keeps the movers running, kills one of them now and then, and counts those.
func (p *play) kill(ctx context.Context, killed *atomic.Int64, args []string, stderr io.Writer) (err error) {
	r := rand.New(rand.NewPCG(p.seed, 1)) //nolint:gosec // a choice, no secret
	movers := make([]*process, p.movers)
	defer func() {
		for _, m := range movers {
			if m != nil {
				_ = m.cmd.Process.Kill()
				<-m.done
			}
		}
	}()
	for i := range movers {
		if movers[i], err = p.spawn(ctx, args, stderr); err != nil {
			return unlessOver(ctx, err)
		}
	}
	for {
		wait, over := context.WithTimeout(ctx, p.killEvery/2+time.Duration(r.Int64N(int64(p.killEvery))))
		i := r.IntN(len(movers))
		for _, c := range []<-chan struct{}{wait.Done(), movers[i].moved} {
			if ok, err := movers[i].lives(ctx, c); err != nil || !ok {
				over()
				return err
			}
		}
		over()
		_ = movers[i].cmd.Process.Kill()
		<-movers[i].done
		movers[i] = nil
		killed.Add(1)
		if movers[i], err = p.spawn(ctx, args, stderr); err != nil {
			return unlessOver(ctx, err)
		}
	}
}

// unlessOver returns err, but nil when the play is over: that is no failure.
func unlessOver(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// moved counts accounts that have changed since: no less moves were made than half
// of them.
func (p *play) moved(ctx context.Context, db *percolator.DB, since percolator.Timestamp) (int, error) {
	balances := func(opts ...percolator.TxnOption) (map[percolator.Cell][]byte, error) {
		var cells []percolator.Cell
		for _, table := range tables {
			for i := range p.accounts {
				cells = append(cells, account(table, i))
			}
		}
		var got map[percolator.Cell][]byte
		err := db.View(ctx, func(tx *percolator.Txn) (err error) {
			got, err = tx.GetMany(ctx, cells...)
			return err
		}, opts...)
		return got, err
	}
	then, err := balances(percolator.WithAsOfTimestamp(since))
	if err != nil {
		return 0, err
	}
	now, err := balances()
	if err != nil {
		return 0, err
	}
	changed := 0
	for c := range now {
		if string(now[c]) != string(then[c]) {
			changed++
		}
	}
	return (changed + 1) / 2, nil
}
