package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// growthWorkloads show what becomes of throughput and latency as something grows.
func growthWorkloads() []Workload {
	var all []Workload
	for _, kind := range []string{"pebble", "postgres", "redis"} {
		all = append(all, rowsWorkload(kind), versionsWorkload(kind), callersWorkload(kind), valuesWorkload(kind), findWorkload(kind, true), findWorkload(kind, false))
		if kind != "pebble" { // which one process opens at a time
			all = append(all, contentionWorkload(kind))
		}
	}
	return append(all, processesWorkload("postgres", byRepeatableRead, 1.3), processesWorkload("redis", byWatch, 1.15))
}

// space is a place of its own in a store of a kind: where -store says, if it is of
// that kind.
func space(cfg Config, kind, name string) (string, error) {
	switch {
	case scheme(cfg.Store) == kind && kind == "pebble":
		return cfg.Store + "-" + name, nil
	case kind == "pebble":
		return "pebble:" + filepath.Join(cfg.Dir, name), nil
	case kind == "redis":
		return cfg.servers.redisSpace(cfg, name)
	default:
		return cfg.servers.postgresSpace(cfg, name, "pool_max_conns", "16")
	}
}

func decadesUpTo(from, most int) []int {
	var all []int
	for n := from; n < most; n *= 10 {
		all = append(all, n)
	}
	return append(all, most)
}

// firstAndLast judges the rate of the last point of a series by that of the first.
func firstAndLast(series, what string, bar float64) func([]Summary) []Bar {
	return func(all []Summary) []Bar {
		s := slices.DeleteFunc(slices.Clone(all), func(s Summary) bool { return s.Series != series })
		return []Bar{atLeast(what, s[len(s)-1].Rate/s[0].Rate, bar, "")}
	}
}

// rowsWorkload is transfers in tables of more and more rows.
func rowsWorkload(kind string) Workload {
	return Workload{
		Name: kind + "-growth", Group: "growth", About: "transfers on " + kind + " in tables of more and more rows",
		Goroutines: 64, Rows: 1_000_000, XAxis: "rows", Chart: rateChart,
		Sides: func(cfg Config) ([]Side, error) {
			var sides []Side
			for _, rows := range decadesUpTo(min(10_000, cfg.Rows), cfg.Rows) {
				u, err := space(cfg, kind, fmt.Sprintf("rows%d", rows))
				if err != nil {
					return nil, err
				}
				sides = append(sides, point("percolator on "+kind, float64(rows), fmt.Sprintf("%d rows", rows), &transfer{url: u, atMost: rows}))
			}
			return sides, nil
		},
		Bars: func(s []Summary) []Bar {
			first, last := s[0], s[len(s)-1]
			bar := 0.8
			if last.X >= 1e7 || kind == "pebble" {
				bar = 0.7 // at 10^7, which is to be reached at less, too
			}
			return []Bar{atLeast(fmt.Sprintf("transfers per second with %.0f rows / with %.0f", last.X, first.X), last.Rate/first.Rate, bar, "")}
		},
	}
}

// versionsWorkload reads the newest version of cells with a longer and longer
// history.
func versionsWorkload(kind string) Workload {
	series := "percolator on " + kind
	return Workload{
		Name: kind + "-versions", Group: "growth", About: "reading the newest version of a cell on " + kind + ", with more and more versions below",
		Goroutines: 64, Rows: 10_000, XAxis: "versions of each cell", Chart: rateChart,
		Sides: func(cfg Config) ([]Side, error) {
			var sides []Side
			most := min(cfg.Rows, 10_000)
			for _, n := range decadesUpTo(1, most) {
				u, err := space(cfg, kind, "versions")
				if err != nil {
					return nil, err
				}
				if kind == "pebble" {
					u += fmt.Sprint(n)
				}
				sides = append(sides, point(series, float64(n), fmt.Sprintf("%d versions", n), &versions{url: u, n: n}))
			}
			return sides, nil
		},
		Bars: firstAndLast(series, "reads per second with the most versions / with one", 0.8),
	}
}

// versions reads cells with a history.
type versions struct {
	onDB
	url string
	n   int
}

const versionedCells = 64

func (s *versions) Name() string { return fmt.Sprintf("%d versions", s.n) }

func (s *versions) cell(i int) percolator.Cell {
	return percolator.Cell{Table: fmt.Sprintf("versions%d", s.n), Row: rowName(i), Column: benchColumn}
}

// Prepare commits the cells once, and then copies that version to timestamps
// below: ten thousand transactions on each cell would only take long.
func (s *versions) Prepare(ctx context.Context, cfg Config) error {
	if err := s.open(ctx, s.url); err != nil {
		return err
	}
	err := fillCells(ctx, s.db, versionedCells, func(i int) (percolator.Cell, []byte) { return s.cell(i), value(int64(i), cfg.ValueSize) })
	if err != nil {
		return err
	}
	store := s.db.Store()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(fillers)
	for i := range versionedCells {
		g.Go(func() error {
			c := s.cell(i)
			rows, err := store.Read(ctx, []rowstore.RowRead{{Table: c.Table, Row: c.Row, Selectors: []rowstore.Selector{
				{Family: rowstore.Write, Column: c.Column, To: 1<<63 - 1, Limit: 1},
			}}})
			if err == nil {
				err = rows[0].Err
			}
			if err != nil {
				return err
			}
			if len(rows[0].Versions) != 1 {
				return fmt.Errorf("%v has %d versions", c, len(rows[0].Versions))
			}
			newest := rows[0].Versions[0]
			const step = 1000
			for from := 1; from < s.n; from += step {
				m := rowstore.Mutation{Table: c.Table, Row: c.Row}
				for k := from; k < min(s.n, from+step); k++ {
					m.Edits = append(m.Edits, rowstore.Put(rowstore.Write, c.Column, newest.TS-rowstore.Timestamp(k), newest.Value))
				}
				outs, err := store.Apply(ctx, []rowstore.Mutation{m}, rowstore.ApplyOptions{})
				if err == nil {
					err = outs[0].Err
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

func (s *versions) Op(ctx context.Context, w *Caller) error {
	c := s.cell(w.row(versionedCells))
	return s.db.View(ctx, func(tx *percolator.Txn) error {
		_, err := tx.Get(ctx, c)
		return err
	})
}

// callersWorkload is transfers by more and more callers.
func callersWorkload(kind string) Workload {
	return Workload{
		Name: kind + "-callers", Group: "growth", About: "transfers on " + kind + " by more and more callers",
		Goroutines: 1000, Rows: 100_000, XAxis: "callers", Chart: rateChart,
		Sides: func(cfg Config) ([]Side, error) {
			u, err := space(cfg, kind, "callers")
			if err != nil {
				return nil, err
			}
			callers := []int{1, 8, 64, 256, 1000}
			callers = slices.DeleteFunc(callers, func(n int) bool { return n > cfg.Goroutines })
			var peer Side
			switch kind {
			case "pebble":
				peer = &badgerTransfer{}
			case "redis":
				peer = &watchTransfer{redisPeer: redisPeer{url: u}}
			default:
				peer = &nativeTransfer{pgPeer: pgPeer{url: u, pool: min(cfg.Goroutines, 64)}, isolation: pgx.RepeatableRead}
			}
			return append(byCallers("percolator on "+kind, &transfer{url: u}, callers), byCallers(peer.Name(), peer, callers)...), nil
		},
	}
}

// valuesWorkload writes one cell with longer and longer values.
func valuesWorkload(kind string) Workload {
	return Workload{
		Name: kind + "-values", Group: "growth", About: "one cell written on " + kind + ", with longer and longer values",
		Goroutines: 16, Rows: 10_000, XAxis: "bytes of a value", Chart: rateChart,
		Sides: func(cfg Config) ([]Side, error) {
			var sides []Side
			for _, size := range []int{16, 256, 4 << 10, 64 << 10, 1 << 20} {
				u, err := space(cfg, kind, fmt.Sprintf("values%d", size))
				if err != nil {
					return nil, err
				}
				rows := max(2, min(cfg.Rows, 16<<20/size))
				label := bytesOf(float64(size)) + " bytes"
				sides = append(sides, point("percolator on "+kind, float64(size), label, &oneCell{url: u, write: true, rows: rows, size: size}))
				switch kind {
				case "redis":
					sides = append(sides, point("SET", float64(size), label, &getSet{redisPeer: redisPeer{url: u, atMost: rows, sized: size}, set: true}))
				case "postgres":
					sides = append(sides, point("UPDATE with pgx", float64(size), label, &nativeUpdate{pgPeer{url: u, pool: cfg.Goroutines, atMost: rows, sized: size}}))
				}
			}
			slices.SortStableFunc(sides, func(a, b Side) int {
				x, _ := a.(Point).Point()
				y, _ := b.(Point).Point()
				return strings.Compare(x, y)
			})
			return sides, nil
		},
	}
}

// findWorkload scans for notifications, among more and more rows or for more and
// more of them.
func findWorkload(kind string, rows bool) Workload {
	name, axis := kind+"-find-rows", "rows"
	about := "finding 100 notifications on " + kind + " among more and more rows"
	if !rows {
		name, axis = kind+"-find-notifications", "notifications"
		about = "finding more and more notifications on " + kind + " in one table"
	}
	return Workload{
		Name: name, Group: "growth", About: about, Goroutines: 1, Rows: 100_000, XAxis: axis, Chart: latencyChart,
		Sides: func(cfg Config) ([]Side, error) {
			var sides []Side
			add := func(x, n, notifications int) error {
				u, err := space(cfg, kind, name+fmt.Sprint(x))
				sides = append(sides, point("percolator on "+kind, float64(x), fmt.Sprintf("%d %s", x, axis), &find{url: u, rows: n, notifications: notifications}))
				return err
			}
			var errs []error
			if rows {
				for _, n := range decadesUpTo(min(1000, cfg.Rows), cfg.Rows) {
					errs = append(errs, add(n, n, min(100, n)))
				}
			} else {
				for _, n := range decadesUpTo(1, max(1, cfg.Rows/10)) {
					errs = append(errs, add(n, cfg.Rows, n))
				}
			}
			return sides, errors.Join(errs...)
		},
		Bars: func(s []Summary) []Bar {
			if !rows {
				return nil
			}
			return []Bar{atMost("median time among the most rows / among the fewest", s[len(s)-1].P50/s[0].P50, 1.5, "")}
		},
	}
}

// contentionWorkload is increments of fewer and fewer rows, down to a single one.
func contentionWorkload(kind string) Workload {
	own := "percolator on " + kind
	return Workload{
		Name: kind + "-hot", Group: kind, About: "increments of rows on " + kind + ", from one hot row to many", Goroutines: 64, Rows: 10_000,
		XAxis: "rows", Chart: rateChart,
		Sides: func(cfg Config) ([]Side, error) {
			var mine, theirs []Side
			for _, rows := range decadesUpTo(1, cfg.Rows) {
				u, err := space(cfg, kind, fmt.Sprintf("hot%d", rows))
				if err != nil {
					return nil, err
				}
				label := fmt.Sprintf("%d rows", rows)
				mine = append(mine, point(own, float64(rows), label, &increment{url: u, rows: rows}))
				if kind == "redis" {
					theirs = append(theirs, point("WATCH, GET, MULTI, EXEC", float64(rows), label, &watchIncrement{redisPeer{url: u, atMost: rows}}))
					continue
				}
				for _, isolation := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.ReadCommitted} {
					peer := &nativeIncrement{pgPeer{url: u, pool: min(cfg.Goroutines, 64), atMost: rows}, isolation}
					theirs = append(theirs, point(isolationName(isolation), float64(rows), label, peer))
				}
			}
			return append(mine, theirs...), nil
		},
		Bars: func(s []Summary) []Bar {
			peer := slices.IndexFunc(s, func(x Summary) bool { return x.Series != own })
			return []Bar{atLeast("on one hot row, increments per second: percolator / "+s[peer].Series, s[0].Rate/s[peer].Rate, 1, "")}
		},
	}
}

// increment reads a number and writes the next.
type increment struct {
	onDB
	url        string
	rows, size int
}

func (s *increment) Name() string { return "increment" }

func (s *increment) Prepare(ctx context.Context, cfg Config) error {
	s.size = cfg.ValueSize
	if err := s.open(ctx, s.url); err != nil {
		return err
	}
	return fill(ctx, s.db, s.rows, s.size)
}

func (s *increment) Op(ctx context.Context, w *Caller) error {
	c, attempts := cell(w.row(s.rows)), int64(0)
	err := s.db.Update(ctx, func(tx *percolator.Txn) error {
		attempts++
		b, err := tx.Get(ctx, c)
		if err != nil {
			return err
		}
		n, err := number(b)
		if err != nil {
			return err
		}
		return tx.Set(c, value(n+1, s.size))
	}, percolator.WithMaxAttempts(1_000_000))
	w.Conflicts += attempts - 1
	return err
}

// watchIncrement is the increment by optimistic locking.
type watchIncrement struct{ redisPeer }

func (s *watchIncrement) Name() string { return "increment" }

func (s *watchIncrement) Op(ctx context.Context, w *Caller) error {
	key := s.key(w.row(s.rows))
	for {
		err := s.client.Watch(ctx, func(tx *redis.Tx) error {
			b, err := tx.Get(ctx, key).Bytes()
			if err != nil {
				return err
			}
			n, err := number(b)
			if err != nil {
				return err
			}
			_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
				return p.Set(ctx, key, value(n+1, s.size), 0).Err()
			})
			return err
		}, key)
		if !errors.Is(err, redis.TxFailedErr) {
			return err
		}
		w.Conflicts++
	}
}

// nativeIncrement is the increment as a transaction of Postgres.
type nativeIncrement struct {
	pgPeer
	isolation pgx.TxIsoLevel
}

func (s *nativeIncrement) Name() string { return "increment" }

func (s *nativeIncrement) Op(ctx context.Context, w *Caller) error {
	key := rowName(w.row(s.rows))
	query := "SELECT value FROM " + s.table() + " WHERE key = $1" + forUpdate(s.isolation)
	update := "UPDATE " + s.table() + " SET value = $2 WHERE key = $1"
	return s.retried(ctx, w, s.isolation, func(tx pgx.Tx) error {
		var b []byte
		if err := tx.QueryRow(ctx, query, key).Scan(&b); err != nil {
			return err
		}
		n, err := number(b)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, update, key, value(n+1, s.size))
		return err
	})
}

// nativeUpdate writes one row.
type nativeUpdate struct{ pgPeer }

func (s *nativeUpdate) Name() string { return "UPDATE" }

func (s *nativeUpdate) Op(ctx context.Context, w *Caller) error {
	_, err := s.db.Exec(ctx, "UPDATE "+s.table()+" SET value = $2 WHERE key = $1", rowName(w.row(s.rows)), value(w.Rand.Int64N(1000), s.size))
	return err
}
