package main

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// paperWorkloads are the figures of the paper's evaluation, on each backend.
func paperWorkloads() []Workload {
	var all []Workload
	for _, kind := range []string{"pebble", "postgres", "redis"} {
		all = append(all, figure7(kind), figure8(kind), figure9(kind), oracleWorkload(kind))
		if kind != "pebble" {
			all = append(all, figure10Server(kind), figure10Workers(kind))
		}
	}
	return append(all, incrementalWorkload("pebble"), incrementalWorkload("postgres"))
}

// figure8 is what a transaction over one cell costs beside the bare store.
func figure8(kind string) Workload {
	return Workload{
		Name: "figure8-" + kind, Group: "paper", About: "one cell on " + kind + ": the bare store against transactions", Goroutines: 64, Rows: 20_000, Chart: rateChart,
		Sides: func(cfg Config) ([]Side, error) {
			var sides []Side
			add := func(how string, parameters ...string) error {
				for _, write := range []bool{false, true} {
					verb := map[bool]string{false: "read", true: "write"}[write]
					place := func(what string) (string, error) {
						u, err := space(cfg, kind, fmt.Sprintf("figure8%s%s%d", what, verb, len(sides)))
						if len(parameters) > 0 {
							u = with(u, parameters...)
						}
						return u, err
					}
					bare, err := place("bare")
					if err != nil {
						return err
					}
					own, err := place("own")
					if err != nil {
						return err
					}
					sides = append(sides,
						&bareStore{name: "bare " + verb + how, url: bare, write: write},
						&oneCell{name: "transaction, " + verb + how, url: own, read: !write, write: write})
				}
				return nil
			}
			if kind == "pebble" { // which has no round trips to save
				return sides, add("")
			}
			if err := add(", coalesced"); err != nil {
				return nil, err
			}
			err := add(", not coalesced", "coalesce", "off")
			return sides, err
		},
		Notes: func(_ Config, s []Summary) []string {
			var notes []string
			for i := 0; i+1 < len(s); i += 2 {
				paper := "0.94"
				if i%4 == 2 {
					paper = "0.23"
				}
				notes = append(notes, fmt.Sprintf("%s: %.2f of %s (the paper over Bigtable: %s).", s[i+1].Side, s[i+1].Rate/s[i].Rate, s[i].Side, paper))
			}
			return notes
		},
	}
}

// bareStore reads or writes one version of one row, without a transaction.
type bareStore struct {
	name, url string
	write     bool
	rows      int
	size      int
	store     rowstore.Store
	last      atomic.Uint64 // timestamp that was written
}

const bareTable = "bare"

func (s *bareStore) Name() string      { return s.name }
func (s *bareStore) Peer() string      { return "" }
func (s *bareStore) ServerURL() string { return s.url }

func (s *bareStore) Prepare(ctx context.Context, cfg Config) (err error) {
	s.rows, s.size = cfg.Rows, cfg.ValueSize
	if s.store, err = rowstore.Open(ctx, s.url); err != nil {
		return err
	}
	s.last.Store(1 << 50)
	for from := 0; from < s.rows; from += fillBatch {
		var muts []rowstore.Mutation
		for i := from; i < min(s.rows, from+fillBatch); i++ {
			muts = append(muts, s.put(i))
		}
		outs, err := s.store.Apply(ctx, muts, rowstore.ApplyOptions{})
		if err != nil {
			return err
		}
		for _, o := range outs {
			if o.Err != nil {
				return o.Err
			}
		}
	}
	return nil
}

func (s *bareStore) put(i int) rowstore.Mutation {
	ts := rowstore.Timestamp(s.last.Add(1))
	return rowstore.Mutation{Table: bareTable, Row: rowName(i), Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, benchColumn, ts, value(1000, s.size))}}
}

func (s *bareStore) Op(ctx context.Context, w *Caller) error {
	i := w.row(s.rows)
	if s.write {
		outs, err := s.store.Apply(ctx, []rowstore.Mutation{s.put(i)}, rowstore.ApplyOptions{})
		if err == nil {
			err = outs[0].Err
		}
		return err
	}
	rows, err := s.store.Read(ctx, []rowstore.RowRead{{Table: bareTable, Row: rowName(i), Selectors: []rowstore.Selector{
		{Family: rowstore.Write, Column: benchColumn, To: 1<<63 - 1, Limit: 1},
	}}})
	switch {
	case err != nil:
		return err
	case rows[0].Err != nil:
		return rows[0].Err
	case len(rows[0].Versions) != 1:
		return fmt.Errorf("row %d has %d versions", i, len(rows[0].Versions))
	}
	return nil
}

func (s *bareStore) Close() error {
	if s.store == nil {
		return nil
	}
	return s.store.Close()
}

// oracleWorkload is timestamps by more and more callers.
func oracleWorkload(kind string) Workload {
	return Workload{
		Name: "oracle-" + kind, Group: "paper", About: "timestamps from the oracle of " + kind + ", drawn one at a time", Goroutines: 1000, Rows: 2,
		XAxis: "callers", Chart: rateChart,
		Sides: func(cfg Config) ([]Side, error) {
			u, err := space(cfg, kind, "oracle")
			if err != nil {
				return nil, err
			}
			callers := slices.DeleteFunc([]int{1, 8, 64, 256, 1000}, func(n int) bool { return n > cfg.Goroutines })
			// The clock of the harness would be most of what is measured in the process.
			return byCallers("oracle of "+kind, &draws{url: u, one: kind != "pebble"}, callers), nil
		},
	}
}
