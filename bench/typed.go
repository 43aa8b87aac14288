package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/typed"
)

// Package typed beside the same codec called by hand.

// account is what a cell holds.
type account struct {
	Owner   string   `json:"owner"`
	Balance int64    `json:"balance"`
	Tags    []string `json:"tags"`
}

var accounts = typed.Column[account]{Table: benchTable, Name: benchColumn, Codec: typed.JSON[account]{}}

func typedWorkload() Workload {
	return Workload{
		Name: "typed", Group: "recipes", About: "one transaction at a time that reads a struct and writes it, through typed and with the same codec by hand",
		Goroutines: 1, Rows: 10_000,
		Sides: func(cfg Config) ([]Side, error) {
			var sides []Side
			for _, store := range []struct{ name, url string }{{"memory", "memory:"}, {"pebble", "pebble:" + filepath.Join(cfg.Dir, "typed")}} {
				if cfg.Store != "" && scheme(cfg.Store) != store.name {
					continue
				}
				at := &opened{url: storeOr(cfg, store.url)}
				sides = append(sides, &structs{at: at, name: "bytes on " + store.name, typed: false}, &structs{at: at, name: "typed on " + store.name, typed: true})
			}
			if len(sides) == 0 {
				return nil, fmt.Errorf("typed runs on memory: and pebble:, not on %s", withoutPassword(cfg.Store))
			}
			return sides, nil
		},
		Bars: func(s []Summary) []Bar {
			var bars []Bar
			for i := 0; i+1 < len(s); i += 2 {
				bars = append(bars,
					atMost("median time of a transaction, "+s[i+1].Side+" / "+s[i].Side, s[i+1].P50/s[i].P50, 1.1, ""),
					atMost("allocations of a transaction, "+s[i+1].Side+" / "+s[i].Side, s[i+1].Allocs/s[i].Allocs, 1.1, ""))
			}
			return bars
		},
	}
}

// opened is a database that sides share: an embedded store can be open once. Whoever prepares first fills it, and whoever closes first closes it.
type opened struct {
	onDB
	url string
}

func (o *opened) prepare(ctx context.Context, cfg Config) error {
	if o.db != nil {
		return nil
	}
	if err := o.open(ctx, o.url); err != nil {
		return err
	}
	codec, value := accounts.Codec, newAccount()
	b, err := codec.Encode(ctx, percolator.Cell{}, value)
	if err != nil {
		return err
	}
	return fillCells(ctx, o.db, cfg.Rows, func(i int) (percolator.Cell, []byte) { return cell(i), b })
}

func newAccount() account {
	return account{Owner: "somebody with a name", Balance: 1000, Tags: []string{"first", "second", "third"}}
}

// structs reads and writes a struct in a transaction.
type structs struct {
	at    *opened
	name  string
	typed bool
	rows  int
}

func (s *structs) Name() string { return s.name }
func (s *structs) Peer() string { return "" }

func (s *structs) Prepare(ctx context.Context, cfg Config) error {
	s.rows = cfg.Rows
	return s.at.prepare(ctx, cfg)
}

func (s *structs) Close() error {
	if s.at.db == nil {
		return nil
	}
	err := s.at.Close()
	s.at.db = nil
	return err
}

// Op implements Side. Errors are made as a careful program makes them, on both sides.
func (s *structs) Op(ctx context.Context, w *Caller) error {
	row := rowName(w.row(s.rows))
	return s.at.db.Update(ctx, func(tx *percolator.Txn) error {
		if s.typed {
			v, err := accounts.Get(ctx, tx, row)
			if err != nil {
				return err
			}
			v.Balance++
			return accounts.Set(ctx, tx, row, v)
		}
		return byHand(ctx, tx, percolator.Cell{Table: benchTable, Row: row, Column: benchColumn})
	})
}

// byHand is what a program does without package typed.
func byHand(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
	b, err := tx.Get(ctx, c)
	if err != nil {
		return err
	}
	v, err := accounts.Codec.Decode(ctx, c, b)
	if err != nil {
		return errors.Join(errors.New("a cell cannot be decoded"), err)
	}
	v.Balance++
	if b, err = accounts.Codec.Encode(ctx, c, v); err != nil {
		return errors.Join(errors.New("a value cannot be encoded"), err)
	}
	return tx.Set(c, b)
}
