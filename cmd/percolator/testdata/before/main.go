// Before is a program of an earlier version of the library: the test of upgrades builds it with that version, and has it
// work beside programs of this one. It reads a command from each line of its input, and answers each with a line.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	_ "github.com/percolate-go/percolate/backends/pebble"
	_ "github.com/percolate-go/percolate/backends/postgres"
	_ "github.com/percolate-go/percolate/backends/redis"
	"github.com/percolate-go/percolate/percolator"
)

func main() {
	if err := run(context.Background(), os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// program is the database that it has open, and its worker, if that runs.
type program struct {
	db     *percolator.DB
	worker *percolator.Worker
	stop   context.CancelFunc
	ended  chan error
}

func run(ctx context.Context, url, lease string) error {
	d, err := time.ParseDuration(lease)
	if err != nil {
		return err
	}
	db, err := percolator.Open(ctx, url,
		percolator.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))),
		percolator.WithSettings(percolator.Settings{CatalogLease: d, MaxTxnAge: time.Minute, Retention: time.Hour}))
	if err != nil {
		return err
	}
	fmt.Println("open")
	p := &program{db: db}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		words := strings.Fields(in.Text())
		if err := p.do(ctx, words); err != nil {
			fmt.Printf("error (format: %v): %s\n", errors.Is(err, percolator.ErrFormat), strings.ReplaceAll(err.Error(), "\n", " "))
			continue
		}
		fmt.Println("done")
		if words[0] == "close" {
			return nil
		}
	}
	return in.Err()
}

func (p *program) do(ctx context.Context, words []string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	switch words[0] {
	case "set": // a prefix and a number of orders
		n, err := strconv.Atoi(words[2])
		if err != nil {
			return err
		}
		return p.set(ctx, words[1], n)
	case "work":
		return p.work()
	case "idle":
		return p.worker.WaitIdle(ctx)
	case "rest": // stops the worker
		p.stop()
		return <-p.ended
	case "close":
		return p.db.Close(ctx)
	}
	return fmt.Errorf("no command: %q", words)
}

func (p *program) set(ctx context.Context, prefix string, n int) error {
	for i := range n {
		err := p.db.Update(ctx, func(tx *percolator.Txn) error {
			return tx.Set(percolator.Cell{Table: "order", Row: prefix + strconv.Itoa(i), Column: "state"}, []byte("new"))
		})
		if err != nil {
			return fmt.Errorf("after %d orders: %w", i, err)
		}
	}
	return nil
}

func (p *program) work() error {
	p.worker = percolator.NewWorker(p.db, percolator.WorkerConfig{})
	if err := p.worker.Observe(percolator.Observer{Name: "ship", Table: "order", Column: "state", Func: ship}); err != nil {
		return err
	}
	running, stop := context.WithCancel(context.Background())
	p.stop, p.ended = stop, make(chan error, 1)
	go func() { p.ended <- p.worker.Run(running) }()
	return nil
}

// ship counts its runs for an order, and who made the last one.
func ship(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
	runs := percolator.Cell{Table: "shipped", Row: c.Row, Column: "runs"}
	before, err := tx.Get(ctx, runs)
	if err != nil && !errors.Is(err, percolator.ErrNotFound) {
		return err
	}
	if err := tx.Set(runs, append(before, '+')); err != nil {
		return err
	}
	return tx.Set(percolator.Cell{Table: "shipped", Row: c.Row, Column: "by"}, []byte("before"))
}
