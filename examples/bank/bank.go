package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/percolator"
)

const (
	maxAccounts    = 50_000 // they are opened in one transaction
	initialBalance = 1000

	accountsTable = "bank/accounts"
	balanceColumn = "balance"
)

// accountsCell holds how many accounts were opened. The total is that many times
// initialBalance, for ever.
var accountsCell = percolator.Cell{Table: "bank", Row: "bank", Column: "accounts"}

// errWrongTotal says that a full read found more or less money than there is.
var errWrongTotal = errors.New("the total is wrong")

type options struct {
	accounts  int
	duration  time.Duration
	transfers int64
	workers   int
	seed      uint64
}

func (c *options) check() error {
	switch {
	case c.accounts < 0 || c.accounts == 1:
		return fmt.Errorf("-accounts %d: a transfer needs at least 2 (0 takes the accounts that the store has)", c.accounts)
	case c.accounts > maxAccounts:
		return fmt.Errorf("-accounts %d is more than %d, which is what one transaction may open", c.accounts, maxAccounts)
	case c.duration <= 0:
		return fmt.Errorf("-duration %v is not positive", c.duration)
	case c.transfers < 0:
		return fmt.Errorf("-transfers %d is negative", c.transfers)
	case c.workers < 1:
		return fmt.Errorf("-workers %d is less than 1", c.workers)
	}
	return nil
}

// report is what happened in one process.
type report struct {
	accounts  int
	seed      uint64
	elapsed   time.Duration
	transfers int64 // committed
	declined  int64 // not enough money
	unknown   int64 // undetermined
	audits    int64
	stats     percolator.Stats
	err       error
}

func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "accounts      %d with %d in all (seed %d)\n", r.accounts, int64(r.accounts)*initialBalance, r.seed)
	fmt.Fprintf(w, "transfers     %d in %v: %.0f/s", r.transfers, r.elapsed.Round(time.Millisecond), float64(r.transfers)/r.elapsed.Seconds())
	fmt.Fprintf(w, " (%d declined, %d undetermined)\n", r.declined, r.unknown)
	fmt.Fprintf(w, "conflicts     %d\n", r.stats.Conflicts)
	fmt.Fprintf(w, "retries       %d\n", r.stats.Retries)
	fmt.Fprintf(w, "audits        %d full reads", r.audits)
	switch {
	case errors.Is(r.err, errWrongTotal):
		fmt.Fprintln(w, ", and a wrong total")
	default:
		fmt.Fprintln(w, ", each with the right total")
	}
}

func account(i int) percolator.Cell {
	return percolator.Cell{Table: accountsTable, Row: "account" + strconv.Itoa(i), Column: balanceColumn}
}

func encode(n int64) []byte { return binary.AppendVarint(nil, n) }

func decode(c percolator.Cell, b []byte) (int64, error) {
	n, size := binary.Varint(b)
	if size <= 0 || size != len(b) {
		return 0, fmt.Errorf("%v holds no number", c)
	}
	return n, nil
}

// open makes the accounts if nobody has yet, in one transaction: of several
// processes that start at once, one opens them. It returns how many there are.
func open(ctx context.Context, db *percolator.DB, accounts int) (int, error) {
	found := 0
	err := db.Update(ctx, func(tx *percolator.Txn) error {
		b, err := tx.Get(ctx, accountsCell)
		switch {
		case err == nil:
			n, err := decode(accountsCell, b)
			if err != nil {
				return err
			}
			found = int(n)
			if accounts != 0 && accounts != found {
				return usageError{fmt.Errorf("-accounts %d: the store has %d accounts already (0 takes them)", accounts, found)}
			}
			return nil
		case !errors.Is(err, percolator.ErrNotFound):
			return err
		}
		if accounts == 0 {
			return usageError{errors.New("-accounts 0: the store has no accounts yet")}
		}
		found = accounts
		if err := tx.Set(accountsCell, encode(int64(accounts))); err != nil {
			return err
		}
		for i := range accounts {
			if err := tx.Set(account(i), encode(initialBalance)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("open the accounts: %w", err)
	}
	return found, nil
}

// play runs transfers and audits until the duration is over, the transfers are
// done, or something is wrong. The report is nil where it did not come to transfers.
func play(ctx context.Context, db *percolator.DB, cfg options) (*report, error) {
	accounts, err := open(ctx, db, cfg.accounts)
	if err != nil {
		return nil, err
	}
	r := &report{accounts: accounts, seed: cfg.seed}
	if r.seed == 0 {
		r.seed = rand.Uint64() | 1
	}
	var n counts
	over := make(chan struct{})
	end := sync.OnceFunc(func() { close(over) })
	start := time.Now()
	timer := time.AfterFunc(cfg.duration, end)
	defer timer.Stop()
	isOver := func() bool { return closed(over) || ctx.Err() != nil }
	// The first failure ends the others. The end of the duration does not: a
	// transfer that has begun is finished.
	group, running := errgroup.WithContext(ctx)
	for worker := range cfg.workers {
		random := rand.New(rand.NewPCG(r.seed, uint64(worker)))
		group.Go(func() error {
			for !isOver() && running.Err() == nil {
				if cfg.transfers > 0 && n.begun.Add(1) > cfg.transfers {
					return nil
				}
				if err := n.transfer(running, db, random, accounts); err != nil {
					return err
				}
			}
			return nil
		})
	}
	auditors, auditing := errgroup.WithContext(ctx)
	auditors.Go(func() error {
		for {
			if err := audit(auditing, db, accounts); err != nil {
				end() // nothing that follows can be right
				return err
			}
			n.audits.Add(1)
			if isOver() {
				return nil
			}
		}
	})
	err = group.Wait()
	end()
	err = errors.Join(err, auditors.Wait())
	r.elapsed = time.Since(start)
	if ctx.Err() == nil && err == nil {
		// One more, of what all transfers of this process left.
		if err = audit(ctx, db, accounts); err == nil {
			n.audits.Add(1)
		}
	}
	if errors.Is(err, context.Canceled) && ctx.Err() != nil && !errors.Is(err, errWrongTotal) {
		err = nil // the user ended the run; what was done is reported
	}
	r.transfers, r.declined, r.unknown, r.audits = n.transfers.Load(), n.declined.Load(), n.unknown.Load(), n.audits.Load()
	r.stats, r.err = db.Stats(), err
	return r, err
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// counts are what a run has done so far.
type counts struct {
	begun, transfers, declined, unknown, audits atomic.Int64
}

// transfer makes one transfer, and counts how it ended.
func (n *counts) transfer(ctx context.Context, db *percolator.DB, random *rand.Rand, accounts int) error {
	moved, err := transfer(ctx, db, random, accounts)
	switch {
	case errors.Is(err, percolator.ErrUndetermined):
		// The money moved or it did not; the audits do not care.
		n.unknown.Add(1)
	case err != nil:
		return err
	case moved:
		n.transfers.Add(1)
	default:
		n.declined.Add(1)
	}
	return nil
}

// transfer moves a random sum between two random accounts, unless the first has
// too little.
func transfer(ctx context.Context, db *percolator.DB, random *rand.Rand, accounts int) (moved bool, err error) {
	a, b := random.IntN(accounts), random.IntN(accounts-1)
	if b >= a {
		b++
	}
	from, to, sum := account(a), account(b), 1+random.Int64N(initialBalance/4)
	err = db.Update(ctx, func(tx *percolator.Txn) error {
		moved = false // the function may run again
		values, err := tx.GetMany(ctx, from, to)
		if err != nil {
			return err
		}
		payer, err := decode(from, values[from])
		if err != nil {
			return err
		}
		payee, err := decode(to, values[to])
		if err != nil {
			return err
		}
		if payer < sum {
			return nil
		}
		moved = true
		if err := tx.Set(from, encode(payer-sum)); err != nil {
			return err
		}
		return tx.Set(to, encode(payee+sum))
	})
	if err != nil {
		err = fmt.Errorf("transfer of %d from %s to %s: %w", sum, from.Row, to.Row, err)
	}
	return moved, err
}

// audit reads every account in one snapshot and adds up.
func audit(ctx context.Context, db *percolator.DB, accounts int) error {
	return db.View(ctx, func(tx *percolator.Txn) error {
		var total int64
		count := 0
		snapshot, err := tx.StartTimestamp(ctx)
		if err != nil {
			return fmt.Errorf("audit: %w", err)
		}
		for row, err := range tx.Scan(ctx, percolator.Range{Table: accountsTable}) {
			if err != nil {
				return fmt.Errorf("audit: %w", err)
			}
			c := percolator.Cell{Table: accountsTable, Row: row.Key, Column: balanceColumn}
			balance, err := decode(c, row.Columns[balanceColumn])
			if err != nil {
				return fmt.Errorf("audit: %w", err)
			}
			if balance < 0 {
				return fmt.Errorf("%w: %s has %d, at snapshot %d", errWrongTotal, row.Key, balance, snapshot)
			}
			total += balance
			count++
		}
		if want := int64(accounts) * initialBalance; total != want || count != accounts {
			return fmt.Errorf("%w: %d in %d accounts instead of %d in %d, at snapshot %d",
				errWrongTotal, total, count, want, accounts, snapshot)
		}
		return nil
	})
}
