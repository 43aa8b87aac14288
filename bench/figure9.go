package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/percolate-go/percolate/percolator"
)

// The brokerage workload has the shape of TPC-E: customers of brokers trade
// securities whose prices a feed moves, and three quarters of the transactions only
// look. Simplified: a customer has one account; the ten transactions of TPC-E became
// six, with its weights put together; prices and amounts are whole numbers; a trade
// of any kind is one at market price; there are no watch lists, news and taxes.
//
//	order     10%  reads the account and a price, reserves money, inserts a trade
//	result    10%  completes an own trade: the trade, the holding, the account, the broker
//	feed       1%  new prices for 20 securities
//	position  14%  the account, its holdings, and their prices
//	status    20%  the last ten trades of an account
//	watch     45%  the prices of ten securities
//
// The paper's figure 9 is such a workload, with CPU measured against what the
// fastest system for TPC-E then used.
const (
	holdingsEach    = 5
	tradesEach      = 10
	customersBroker = 100
	feedSize        = 20
	watchSize       = 10
)

func securitiesOf(customers int) int { return max(feedSize, customers*685/1000) }

// market is one way of doing the transactions.
type market interface {
	order(ctx context.Context, w *Caller, account, security int, trade int64) error
	result(ctx context.Context, w *Caller, account, security int, trade int64) error
	feed(ctx context.Context, w *Caller, securities []int) error
	position(ctx context.Context, w *Caller, account int) error
	status(ctx context.Context, w *Caller, account int) error
	watch(ctx context.Context, w *Caller, securities []int) error
	open(ctx context.Context, cfg Config, customers int) error
	Close() error
}

// brokerage is the workload over a market.
type brokerage struct {
	market
	name, peer, url string
	customers       int
	last            atomic.Int64
	pending         chan trade // orders without a result, of all callers
}

type trade struct {
	account, security int
	id                int64
}

func (s *brokerage) Name() string      { return s.name }
func (s *brokerage) Peer() string      { return s.peer }
func (s *brokerage) ServerURL() string { return s.url }

func (s *brokerage) Prepare(ctx context.Context, cfg Config) error {
	s.pending = make(chan trade, 100_000)
	s.last.Store(int64(s.customers * tradesEach))
	return s.open(ctx, cfg, s.customers)
}

// some picks n different numbers below most, in ascending order, so that feeds do
// not deadlock.
func some(w *Caller, n, most int) []int {
	var all []int
	for len(all) < n {
		if i := w.Rand.IntN(most); !slices.Contains(all, i) {
			all = append(all, i)
		}
	}
	slices.Sort(all)
	return all
}

func (s *brokerage) Op(ctx context.Context, w *Caller) error {
	account, securities := w.row(s.customers), securitiesOf(s.customers)
	dice := w.Rand.IntN(100)
	if dice >= 10 && dice < 20 {
		select {
		case t := <-s.pending:
			return s.result(ctx, w, t.account, t.security, t.id)
		default:
			dice = 0 // nothing was ordered yet
		}
	}
	switch {
	case dice < 10:
		t := trade{account, w.Rand.IntN(securities), s.last.Add(1)}
		if err := s.order(ctx, w, t.account, t.security, t.id); err != nil {
			return err
		}
		select {
		case s.pending <- t:
		default: // many more orders than results, by chance
		}
		return nil
	case dice == 20:
		return s.feed(ctx, w, some(w, feedSize, securities))
	case dice < 35:
		return s.position(ctx, w, account)
	case dice < 55:
		return s.status(ctx, w, account)
	default:
		return s.watch(ctx, w, some(w, watchSize, securities))
	}
}

func figure9(kind string) Workload {
	own := "percolator on " + kind
	native := "native SQL, REPEATABLE READ"
	return Workload{
		Name: "figure9-" + kind, Group: "paper", About: "brokerage like TPC-E on " + kind + ", with more and more customers", Goroutines: 64, Rows: 10_000,
		XAxis: "customers", Chart: rateChart,
		Sides: func(cfg Config) ([]Side, error) {
			var mine, theirs []Side
			for _, n := range []int{max(2, cfg.Rows/10), max(2, cfg.Rows/3), cfg.Rows} {
				u, err := space(cfg, kind, fmt.Sprintf("figure9x%d", n))
				if err != nil {
					return nil, err
				}
				label := fmt.Sprintf("%d customers", n)
				mine = append(mine, point(own, float64(n), label, &brokerage{market: &ownMarket{url: u}, name: own, url: u, customers: n}))
				if kind == "postgres" {
					s := &brokerage{
						market: &sqlMarket{pgPeer: pgPeer{url: u, pool: min(cfg.Goroutines, 64)}, schema: fmt.Sprintf("bench_broker%d", n)},
						name:   native, peer: "postgres", url: u, customers: n,
					}
					theirs = append(theirs, point(native, float64(n), label, s))
				}
			}
			return append(mine, theirs...), nil
		},
		Notes: func(_ Config, s []Summary) []string {
			var notes []string
			if kind == "postgres" {
				half := len(s) / 2
				for i := range half {
					notes = append(notes, fmt.Sprintf("%.0f customers: CPU of client and server for a transaction, percolator / native SQL: %.2f (the paper against a database of its time: about 30).",
						s[i].X, s[i].AllCPU()/s[half+i].AllCPU()))
				}
			}
			return notes
		},
	}
}

// ownMarket is the market in percolator.
type ownMarket struct {
	onDB
	url string
}

func brokerCell(table, row, column string) percolator.Cell {
	return percolator.Cell{Table: table, Row: row, Column: column}
}

func accountCell(account int) percolator.Cell {
	return brokerCell("account", fmt.Sprintf("%08d", account), "cash")
}

func priceCell(security int) percolator.Cell {
	return brokerCell("security", fmt.Sprintf("%08d", security), "price")
}

func holdingCell(account, security int) percolator.Cell {
	return brokerCell("holding", fmt.Sprintf("%08d %08d", account, security), "quantity")
}

func tradeCell(account int, id int64) percolator.Cell {
	return brokerCell("trade", fmt.Sprintf("%08d %012d", account, id), "state")
}

func commissionCell(account int) percolator.Cell {
	return brokerCell("broker", fmt.Sprintf("%06d", account/customersBroker), "trades")
}

func tradeState(state string, security int) []byte {
	return fmt.Appendf(nil, "%s %08d 100 2026-11-21T08:00:00Z", state, security)
}

func digits(n int64) []byte { return strconv.AppendInt(nil, n, 10) }

func (s *ownMarket) open(ctx context.Context, _ Config, customers int) error {
	if err := s.onDB.open(ctx, s.url); err != nil {
		return err
	}
	securities := securitiesOf(customers)
	const each = 1 + holdingsEach + tradesEach
	return errors.Join(
		fillCells(ctx, s.db, securities, func(i int) (percolator.Cell, []byte) { return priceCell(i), digits(1000) }),
		fillCells(ctx, s.db, customers/customersBroker+1, func(i int) (percolator.Cell, []byte) {
			return commissionCell(i * customersBroker), digits(0)
		}),
		fillCells(ctx, s.db, customers*each, func(i int) (percolator.Cell, []byte) {
			account, k := i/each, i%each
			switch {
			case k == 0:
				return accountCell(account), digits(1_000_000)
			case k <= holdingsEach:
				return holdingCell(account, (account*7+k)%securities), digits(100)
			}
			return tradeCell(account, int64(account*tradesEach+k-holdingsEach-1)), tradeState("done", account%securities)
		}),
	)
}

// update runs a transaction and counts its attempts.
func (s *ownMarket) update(ctx context.Context, w *Caller, f func(tx *percolator.Txn) error) error {
	attempts := int64(0)
	err := s.db.Update(ctx, func(tx *percolator.Txn) error {
		attempts++
		return f(tx)
	})
	w.Conflicts += attempts - 1
	return err
}

// numbers reads cells that hold numbers; one that is absent is 0.
func numbers(ctx context.Context, tx *percolator.Txn, cells ...percolator.Cell) ([]int64, error) {
	have, err := tx.GetMany(ctx, cells...)
	if err != nil {
		return nil, err
	}
	all := make([]int64, len(cells))
	for i, c := range cells {
		if b, ok := have[c]; ok {
			if all[i], err = strconv.ParseInt(string(b), 10, 64); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

func (s *ownMarket) order(ctx context.Context, w *Caller, account, security int, id int64) error {
	cash := accountCell(account)
	return s.update(ctx, w, func(tx *percolator.Txn) error {
		n, err := numbers(ctx, tx, cash, priceCell(security))
		if err != nil {
			return err
		}
		return errors.Join(tx.Set(cash, digits(n[0]-n[1])), tx.Set(tradeCell(account, id), tradeState("open", security)))
	})
}

func (s *ownMarket) result(ctx context.Context, w *Caller, account, security int, id int64) error {
	cash, holding, commission, t := accountCell(account), holdingCell(account, security), commissionCell(account), tradeCell(account, id)
	return s.update(ctx, w, func(tx *percolator.Txn) error {
		n, err := numbers(ctx, tx, cash, holding, commission)
		if err != nil {
			return err
		}
		return errors.Join(tx.Set(cash, digits(n[0]+1)), tx.Set(holding, digits(n[1]+1)), tx.Set(commission, digits(n[2]+1)),
			tx.Set(t, tradeState("done", security)))
	})
}

func (s *ownMarket) feed(ctx context.Context, w *Caller, securities []int) error {
	var cells []percolator.Cell
	for _, i := range securities {
		cells = append(cells, priceCell(i))
	}
	return s.update(ctx, w, func(tx *percolator.Txn) error {
		n, err := numbers(ctx, tx, cells...)
		if err != nil {
			return err
		}
		for i, c := range cells {
			if err := tx.Set(c, digits(n[i]+1)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *ownMarket) position(ctx context.Context, _ *Caller, account int) error {
	return s.db.View(ctx, func(tx *percolator.Txn) error {
		prefix := fmt.Sprintf("%08d ", account)
		cells := []percolator.Cell{accountCell(account)}
		for row, err := range tx.Scan(ctx, percolator.Range{Table: "holding", From: prefix, To: percolator.PrefixEnd(prefix)}) {
			if err != nil {
				return err
			}
			security, err := strconv.Atoi(strings.TrimPrefix(row.Key, prefix))
			if err != nil {
				return err
			}
			cells = append(cells, priceCell(security))
		}
		_, err := numbers(ctx, tx, cells...)
		return err
	})
}

func (s *ownMarket) status(ctx context.Context, _ *Caller, account int) error {
	return s.db.View(ctx, func(tx *percolator.Txn) error {
		prefix := fmt.Sprintf("%08d ", account)
		r := percolator.Range{Table: "trade", From: prefix, To: percolator.PrefixEnd(prefix), Reverse: true, Limit: tradesEach}
		for _, err := range tx.Scan(ctx, r) {
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *ownMarket) watch(ctx context.Context, _ *Caller, securities []int) error {
	var cells []percolator.Cell
	for _, i := range securities {
		cells = append(cells, priceCell(i))
	}
	return s.db.View(ctx, func(tx *percolator.Txn) error {
		_, err := numbers(ctx, tx, cells...)
		return err
	})
}

// sqlMarket is the same market in SQL, as one would write it for Postgres.
type sqlMarket struct {
	pgPeer
	schema string
}

func (s *sqlMarket) open(ctx context.Context, cfg Config, customers int) (err error) {
	if s.db, err = cfg.servers.pool(ctx, s.url, s.pool); err != nil {
		return err
	}
	securities := securitiesOf(customers)
	for _, statement := range []string{
		"DROP SCHEMA IF EXISTS " + s.schema + " CASCADE", "CREATE SCHEMA " + s.schema,
		"CREATE TABLE SCHEMA.account (id int PRIMARY KEY, cash bigint NOT NULL) WITH (fillfactor = 70)",
		"CREATE TABLE SCHEMA.security (id int PRIMARY KEY, price bigint NOT NULL) WITH (fillfactor = 70)",
		"CREATE TABLE SCHEMA.broker (id int PRIMARY KEY, trades bigint NOT NULL) WITH (fillfactor = 50)",
		"CREATE TABLE SCHEMA.holding (account int, security int, quantity bigint NOT NULL, PRIMARY KEY (account, security)) WITH (fillfactor = 70)",
		"CREATE TABLE SCHEMA.trade (account int, id bigint, state text NOT NULL, PRIMARY KEY (account, id)) WITH (fillfactor = 70)",
		fmt.Sprintf("INSERT INTO SCHEMA.account SELECT i, 1000000 FROM generate_series(0, %d) i", customers-1),
		fmt.Sprintf("INSERT INTO SCHEMA.security SELECT i, 1000 FROM generate_series(0, %d) i", securities-1),
		fmt.Sprintf("INSERT INTO SCHEMA.broker SELECT i, 0 FROM generate_series(0, %d) i", customers/customersBroker),
		fmt.Sprintf("INSERT INTO SCHEMA.holding SELECT a, (a * 7 + k) %% %d, 100 FROM generate_series(0, %d) a, generate_series(1, %d) k", securities, customers-1, holdingsEach),
		fmt.Sprintf("INSERT INTO SCHEMA.trade SELECT a, a * %d + k, 'done 100 2026-11-21T08:00:00Z' FROM generate_series(0, %d) a, generate_series(0, %d) k", tradesEach, customers-1, tradesEach-1),
	} {
		if _, err := s.db.Exec(ctx, s.sql(statement)); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	// VACUUM takes one table or all of the database at a time, outside a transaction.
	for _, table := range []string{"account", "security", "broker", "holding", "trade"} {
		if _, err := s.db.Exec(ctx, "VACUUM ANALYZE "+s.schema+"."+table); err != nil {
			return err
		}
	}
	return nil
}

func (s *sqlMarket) sql(statement string) string {
	return strings.ReplaceAll(statement, "SCHEMA.", s.schema+".")
}

func (s *sqlMarket) order(ctx context.Context, w *Caller, account, security int, id int64) error {
	return s.retried(ctx, w, pgx.RepeatableRead, func(tx pgx.Tx) error {
		var cash, price int64
		err := tx.QueryRow(ctx, s.sql("SELECT (SELECT cash FROM SCHEMA.account WHERE id = $1), (SELECT price FROM SCHEMA.security WHERE id = $2)"), account, security).Scan(&cash, &price)
		if err != nil {
			return err
		}
		var b pgx.Batch
		b.Queue(s.sql("UPDATE SCHEMA.account SET cash = $2 WHERE id = $1"), account, cash-price)
		b.Queue(s.sql("INSERT INTO SCHEMA.trade VALUES ($1, $2, $3)"), account, id, string(tradeState("open", security)))
		return tx.SendBatch(ctx, &b).Close()
	})
}

func (s *sqlMarket) result(ctx context.Context, w *Caller, account, security int, id int64) error {
	return s.retried(ctx, w, pgx.RepeatableRead, func(tx pgx.Tx) error {
		var b pgx.Batch
		b.Queue(s.sql("UPDATE SCHEMA.account SET cash = cash + 1 WHERE id = $1"), account)
		b.Queue(s.sql("INSERT INTO SCHEMA.holding VALUES ($1, $2, 1) ON CONFLICT (account, security) DO UPDATE SET quantity = holding.quantity + 1"), account, security)
		b.Queue(s.sql("UPDATE SCHEMA.broker SET trades = trades + 1 WHERE id = $1"), account/customersBroker)
		b.Queue(s.sql("UPDATE SCHEMA.trade SET state = $3 WHERE account = $1 AND id = $2"), account, id, string(tradeState("done", security)))
		return tx.SendBatch(ctx, &b).Close()
	})
}

func (s *sqlMarket) feed(ctx context.Context, w *Caller, securities []int) error {
	return s.retried(ctx, w, pgx.RepeatableRead, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, s.sql("UPDATE SCHEMA.security SET price = price + 1 WHERE id = ANY($1)"), securities)
		return err
	})
}

// The transactions that only read are one statement each, so one snapshot.

func (s *sqlMarket) position(ctx context.Context, _ *Caller, account int) error {
	return s.read(ctx, "SELECT a.cash, h.security, h.quantity, p.price FROM SCHEMA.account a JOIN SCHEMA.holding h ON h.account = a.id JOIN SCHEMA.security p ON p.id = h.security WHERE a.id = $1", account)
}

func (s *sqlMarket) status(ctx context.Context, _ *Caller, account int) error {
	return s.read(ctx, "SELECT id, state FROM SCHEMA.trade WHERE account = $1 ORDER BY id DESC LIMIT 10", account)
}

func (s *sqlMarket) watch(ctx context.Context, _ *Caller, securities []int) error {
	return s.read(ctx, "SELECT id, price FROM SCHEMA.security WHERE id = ANY($1)", securities)
}

// read takes all rows of a query.
func (s *sqlMarket) read(ctx context.Context, query string, argument any) error {
	rows, err := s.db.Query(ctx, s.sql(query), argument)
	if err != nil {
		return err
	}
	n := 0
	for rows.Next() {
		if _, err := rows.Values(); err != nil {
			rows.Close()
			return err
		}
		n++
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if n == 0 {
		return fmt.Errorf("%s found nothing for %v", query, argument)
	}
	return nil
}
