package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/percolate-go/percolate/keys"
	"github.com/percolate-go/percolate/percolator"
	doonce "github.com/percolate-go/percolate/recipes/once"
	"github.com/percolate-go/percolate/typed"
)

// Package once beside a transaction that reads and writes a cell of a new row, and package keys beside fmt.

// The ways to do something for a key.
const (
	doneBare  = "a transaction that reads and writes a new row"
	doneOnce  = "once.Do, a new key"
	doneAgain = "once.Do, a key that was done"
)

func onceWorkload(kind string) Workload {
	return Workload{
		Name: "once-" + kind, Group: "recipes", About: "things done once for a key on " + kind,
		Goroutines: 64, Rows: 2_000,
		Sides: func(cfg Config) ([]Side, error) {
			u, err := space(cfg, kind, "once")
			var sides []Side
			for _, how := range []string{doneBare, doneOnce, doneAgain} {
				sides = append(sides, &doing{how: how, url: u})
			}
			return sides, err
		},
		Bars: func(s []Summary) []Bar {
			return []Bar{
				atMost("time for a key: once.Do / a transaction that reads and writes a row", s[0].Rate/s[1].Rate, 1.5, ""),
				atMost("time for a key: once.Do again / the first time", s[1].Rate/s[2].Rate, 1, ""),
			}
		},
	}
}

// doing does something for a key, which is to store a number.
type doing struct {
	onDB
	how, url string
	rows     int
	keys     *doonce.Keys[int64]
	next     atomic.Int64
}

func (s *doing) Name() string { return s.how }

func (s *doing) Prepare(ctx context.Context, cfg Config) error {
	s.rows = cfg.Rows
	if err := s.open(ctx, s.url); err != nil {
		return err
	}
	var err error
	s.keys, err = doonce.New(s.db, s.how, typed.Number[int64]{}, doonce.Options{Keep: time.Hour})
	for i := 0; err == nil && s.how == doneAgain && i < s.rows; i += fillTxn {
		err = s.db.Update(ctx, func(tx *percolator.Txn) error {
			for j := i; j < min(i+fillTxn, s.rows); j++ {
				if _, _, err := s.keys.Within(ctx, tx, strconv.Itoa(j), number7); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return err
}

func number7(context.Context, *percolator.Txn) (int64, error) { return 7, nil }

func (s *doing) Op(ctx context.Context, w *Caller) error {
	switch s.how {
	case doneAgain:
		_, first, err := s.keys.Do(ctx, strconv.Itoa(w.Rand.IntN(s.rows)), number7)
		if err == nil && first {
			err = errors.New("it was not done yet")
		}
		return err
	case doneOnce:
		_, first, err := s.keys.Do(ctx, "key "+strconv.FormatInt(s.next.Add(1), 10), number7)
		if err == nil && !first {
			err = errors.New("it was done already")
		}
		return err
	}
	// The rows lie as far from each other as those of package once.
	c := percolator.Cell{Table: s.how, Row: fmt.Sprintf("%08x %d", w.Rand.Uint32(), s.next.Add(1)), Column: benchColumn}
	return s.db.Update(ctx, func(tx *percolator.Txn) error {
		if _, err := tx.Get(ctx, c); !errors.Is(err, percolator.ErrNotFound) {
			return err
		}
		return tx.Set(c, value(7, 19)) // as many bytes as an answer has
	})
}

// keysPerOp makes the harness's own clock small beside the keys.
const keysPerOp = 1000

func keysWorkload() Workload {
	return Workload{
		Name: "keys", Group: "recipes", About: "rows named by a text and a number, with package keys and with fmt",
		Goroutines: 1, Rows: 2,
		Sides: func(Config) ([]Side, error) {
			return []Side{&naming{name: "keys", with: namedByKeys}, &naming{name: "fmt", with: namedByFmt}}, nil
		},
		Bars: func(s []Summary) []Bar {
			return []Bar{atLeast("rows named per second: keys / fmt", s[0].Rate/s[1].Rate, 1, "")}
		},
	}
}

func namedByKeys(who string, n int64) string { return string(keys.Key("").Text(who).Int(n)) }

// namedByFmt is what a program does without package keys. It is in order for numbers that are not negative, and texts of one length without zeros.
func namedByFmt(who string, n int64) string { return fmt.Sprintf("%s\x00%020d", who, n) }

// naming makes keys of rows.
type naming struct {
	name string
	with func(who string, n int64) string
}

func (s *naming) Name() string                          { return s.name }
func (s *naming) Peer() string                          { return "" }
func (s *naming) Prepare(context.Context, Config) error { return nil }
func (s *naming) Close() error                          { return nil }

func (s *naming) Op(_ context.Context, w *Caller) error {
	w.Units = keysPerOp
	bytes := 0
	for range keysPerOp {
		bytes += len(s.with("somebody", w.Rand.Int64()))
	}
	if bytes < keysPerOp {
		return errors.New("nothing was named")
	}
	return nil
}
