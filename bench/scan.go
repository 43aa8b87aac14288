package main

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/percolate-go/percolate/percolator"
)

// scanned is how many rows a scan of the scan workloads reads.
const scanned = 64

// postgresScan is a scan in a transaction, against the same in plain SQL.
func postgresScan() Workload {
	return Workload{
		Name: "postgres-scan", Group: "postgres", About: fmt.Sprintf("%d rows scanned in a transaction on Postgres, one scan at a time", scanned), Goroutines: 1, Rows: 100_000,
		Sides: func(cfg Config) ([]Side, error) {
			u, err := cfg.servers.postgresSpace(cfg, "scan")
			return []Side{
				&scans{oneCell{name: "percolator on postgres", url: u}},
				&nativeScans{pgPeer{url: u, pool: 1}},
			}, err
		},
		Bars: func(s []Summary) []Bar {
			return []Bar{atMost("median time of a scan / of SELECT in the order of keys", s[0].P50/s[1].P50, 3, "")}
		},
	}
}

// redisScan is the same against a sorted set of keys and their values.
func redisScan() Workload {
	return Workload{
		Name: "redis-scan", Group: "redis", About: fmt.Sprintf("%d rows scanned in a transaction on Redis, one scan at a time", scanned), Goroutines: 1, Rows: 100_000,
		Sides: func(cfg Config) ([]Side, error) {
			u, err := cfg.servers.redisSpace(cfg, "scan")
			return []Side{
				&scans{oneCell{name: "percolator on redis", url: u}},
				&rangeAndGet{redisPeer{url: u}},
			}, err
		},
		Bars: func(s []Summary) []Bar {
			return []Bar{atMost("median time of a scan / of ZRANGE BYLEX and MGET", s[0].P50/s[1].P50, 4, "")}
		},
	}
}

type scans struct{ oneCell }

func (s *scans) Op(ctx context.Context, w *Caller) error {
	from := cell(w.row(s.rows - scanned))
	return s.db.View(ctx, func(tx *percolator.Txn) error {
		n := 0
		for _, err := range tx.Scan(ctx, percolator.Range{Table: from.Table, From: from.Row, Columns: []string{from.Column}, Limit: scanned}) {
			if err != nil {
				return err
			}
			n++
		}
		return wantScanned(n)
	})
}

// wantScanned is an error for a scan that found fewer or more rows than there are.
func wantScanned(n int) error {
	if n != scanned {
		return fmt.Errorf("a scan found %d rows of %d", n, scanned)
	}
	return nil
}

type nativeScans struct{ pgPeer }

func (s *nativeScans) Name() string { return "SELECT with pgx" }

func (s *nativeScans) Op(ctx context.Context, w *Caller) error {
	rows, err := s.db.Query(ctx, "SELECT key, value FROM "+s.table()+" WHERE key >= $1 ORDER BY key LIMIT $2", rowName(w.row(s.rows-scanned)), scanned)
	if err != nil {
		return err
	}
	defer rows.Close()
	n := 0
	for ; rows.Next(); n++ {
		var key string
		var value []byte
		if err := rows.Scan(&key, &value); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return wantScanned(n)
}

// rangeAndGet keeps the names of its rows in a sorted set.
type rangeAndGet struct{ redisPeer }

func (s *rangeAndGet) Name() string { return "ZRANGE BYLEX, MGET" }

func (s *rangeAndGet) index() string { return s.key(0) + ":all" }

func (s *rangeAndGet) Prepare(ctx context.Context, cfg Config) error {
	if err := s.redisPeer.Prepare(ctx, cfg); err != nil {
		return err
	}
	for from := 0; from < s.rows; from += fillBatch {
		var all []redis.Z
		for i := from; i < min(s.rows, from+fillBatch); i++ {
			all = append(all, redis.Z{Member: s.key(i)})
		}
		if err := s.client.ZAdd(ctx, s.index(), all...).Err(); err != nil {
			return err
		}
	}
	return nil
}

func (s *rangeAndGet) Op(ctx context.Context, w *Caller) error {
	from := s.key(w.row(s.rows - scanned))
	keys, err := s.client.ZRangeArgs(ctx, redis.ZRangeArgs{Key: s.index(), Start: "[" + from, Stop: "+", ByLex: true, Count: scanned}).Result()
	if err != nil {
		return err
	}
	values, err := s.client.MGet(ctx, keys...).Result()
	if err != nil {
		return err
	}
	return wantScanned(len(values))
}
