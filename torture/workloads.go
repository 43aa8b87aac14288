package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// workload is one kind of transactions. Each process runs all workloads that were chosen.
type workload struct {
	name   string
	about  string
	weight int
	// setup writes the data that the steps need, before any of them.
	setup func(ctx context.Context, s *thread) error
	// step runs one transaction. Its error is in the log already.
	step func(ctx context.Context, s *thread, age time.Duration) error
}

func workloads() []workload {
	return []workload{
		{
			name: "bank", about: "transfers between accounts, and full reads of them, now and in the past", weight: 4,
			setup: setupBank, step: stepBank,
		},
		{name: "append", about: "appends to lists and reads of them", weight: 3, step: stepAppend},
		{name: "register", about: "reads, writes and deletes of cells", weight: 3, step: stepRegister},
		{name: "longfork", about: "writes of single cells, and reads of several", weight: 2, step: stepLongFork},
		{
			name: "writeskew", about: "pairs whose sum must not fall below 0, under Serializable and with GetForUpdate", weight: 2,
			setup: setupSkew, step: stepSkew,
		},
		{name: "ledger", about: "changes that observers account for, with strong and weak notifications", weight: 3, step: stepLedger},
		{name: "webindex", about: "pages that observers index and rank", weight: 1, step: stepWeb},
		{name: relayName, about: "changes that a crew of workers, which come and go all the time, run and hand to each other", weight: 2, step: stepRelay},
	}
}

func chooseWorkloads(names string) ([]workload, error) {
	all := workloads()
	if names == "all" {
		return all, nil
	}
	var chosen []workload
	for _, name := range strings.Split(names, ",") {
		i := slices.IndexFunc(all, func(w workload) bool { return w.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no workload %q (-list names them)", name)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// A number in a cell is followed by text that makes the value unique.
func numbered(n int, unique string) string { return strconv.Itoa(n) + "@" + unique }

func numberOf(value *string) (int, error) {
	if value == nil {
		return 0, fmt.Errorf("%w: there should be a number", errIntegrity)
	}
	digits, _, _ := strings.Cut(*value, "@")
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0, fmt.Errorf("%w: %q is no number", errIntegrity, *value)
	}
	return n, nil
}

// Cells of a workload lie in two tables, so that where a run has two stores most
// transactions span both.
func half(table string, i int) string { return table + strconv.Itoa(i%2) }

// Bank: the accounts have bankTotal together, in every snapshot.
const (
	bankAccounts = 16
	bankBalance  = 100
	bankTotal    = bankAccounts * bankBalance
)

func account(i int) string { return fmt.Sprintf("%s/account%02d/balance", half("bank", i), i) }

func accounts() []string {
	all := make([]string, bankAccounts)
	for i := range all {
		all[i] = account(i)
	}
	return all
}

func setupBank(ctx context.Context, s *thread) error {
	return s.do(ctx, "bank", mode{}, func(t *txn) error {
		for _, a := range accounts() {
			if err := t.set(a, numbered(bankBalance, s.unique())); err != nil {
				return err
			}
		}
		return nil
	})
}

func stepBank(ctx context.Context, s *thread, _ time.Duration) error {
	switch p := s.rng.IntN(100); {
	case p < 12:
		return s.do(ctx, "bank", mode{reads: true}, func(t *txn) error {
			_, err := t.getMany(accounts()...)
			return err
		})
	case p < 20:
		return s.do(ctx, "bank", mode{reads: true}, func(t *txn) error {
			for i := range 2 {
				if err := t.scan(half("bank", i), "account", "balance"); err != nil {
					return err
				}
			}
			return nil
		})
	case p < 24:
		// The time is that of this process's clock, which may be wrong by hours. Then the
		// read is refused, or the snapshot is too old, but it is never wrong.
		at := s.clock().Add(-time.Duration(s.rng.IntN(3000)) * time.Millisecond)
		return s.do(ctx, "bank", mode{reads: true, asOf: at}, func(t *txn) error {
			_, err := t.getMany(accounts()...)
			return err
		})
	}
	from := s.rng.IntN(bankAccounts)
	to := (from + 1 + s.rng.IntN(bankAccounts-1)) % bankAccounts
	amount := 1 + s.rng.IntN(10)
	return s.do(ctx, "bank", mode{serial: s.rng.IntN(6) == 0}, func(t *txn) error {
		both, err := t.getMany(account(from), account(to))
		if err != nil {
			return err
		}
		a, err := numberOf(both[account(from)])
		if err != nil {
			return err
		}
		b, err := numberOf(both[account(to)])
		if err != nil {
			return err
		}
		if a < amount {
			return errNothing
		}
		if err := t.set(account(from), numbered(a-amount, s.unique())); err != nil {
			return err
		}
		return t.set(account(to), numbered(b+amount, s.unique()))
	})
}

// tableAppend begins the names of the tables whose cells are lists.
const tableAppend = "append"

// The lists and registers in use change with time, so that lists stay short, and
// transactions meet new cells again and again.
const (
	appendEpoch   = 2 * time.Second
	registerEpoch = 5 * time.Second
)

func epoch(age, length time.Duration) int { return int(age / length) }

func stepAppend(ctx context.Context, s *thread, age time.Duration) error {
	return s.do(ctx, "append", mode{serial: s.rng.IntN(5) == 0}, func(t *txn) error {
		for range 1 + s.rng.IntN(4) {
			i := s.rng.IntN(6)
			name := fmt.Sprintf("%s/k%d-%d/list", half(tableAppend, i), epoch(age, appendEpoch), i)
			var err error
			switch s.rng.IntN(5) {
			case 0, 1:
				_, err = t.get(name)
			case 2:
				_, err = t.getForUpdate(name)
			default:
				err = t.add(name, s.unique())
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func stepRegister(ctx context.Context, s *thread, age time.Duration) error {
	return s.do(ctx, "register", mode{serial: s.rng.IntN(5) == 0}, func(t *txn) error {
		for range 1 + s.rng.IntN(4) {
			i := s.rng.IntN(12)
			name := fmt.Sprintf("%s/k%d-%d/value", half("register", i), epoch(age, registerEpoch), i)
			var err error
			switch s.rng.IntN(10) {
			case 0, 1, 2, 3:
				_, err = t.get(name)
			case 4:
				_, err = t.getForUpdate(name)
			case 5:
				err = t.remove(name)
			default:
				err = t.set(name, s.unique())
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

const longForkCells = 4

func stepLongFork(ctx context.Context, s *thread, age time.Duration) error {
	group := make([]string, longForkCells)
	g := s.rng.IntN(6)
	for i := range group {
		group[i] = fmt.Sprintf("%s/g%d-%d-%d/value", half("longfork", i), epoch(age, registerEpoch), g, i)
	}
	if s.rng.IntN(2) == 0 {
		return s.do(ctx, "longfork", mode{}, func(t *txn) error {
			return t.set(group[s.rng.IntN(longForkCells)], s.unique())
		})
	}
	return s.do(ctx, "longfork", mode{reads: true}, func(t *txn) error {
		_, err := t.getMany(group...)
		return err
	})
}

// Write skew: a transaction that takes from a pair looks at both sides first.
const (
	skewPairs = 8
	skewStart = 5
)

// skewSide is a side of a pair. The pairs of the first half are used by Serializable
// transactions alone, and the others under snapshot isolation with GetForUpdate.
func skewSide(pair, side int) string {
	return fmt.Sprintf("%s/pair%d/side%d", half("writeskew", side), pair, side)
}

func setupSkew(ctx context.Context, s *thread) error {
	return s.do(ctx, "writeskew", mode{}, func(t *txn) error {
		for pair := range skewPairs {
			for side := range 2 {
				if err := t.set(skewSide(pair, side), numbered(skewStart, s.unique())); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func stepSkew(ctx context.Context, s *thread, _ time.Duration) error {
	pair, side := s.rng.IntN(skewPairs), s.rng.IntN(2)
	mine, other := skewSide(pair, side), skewSide(pair, 1-side)
	serial := pair < skewPairs/2
	return s.do(ctx, "writeskew", mode{serial: serial}, func(t *txn) error {
		read := t.get
		if !serial {
			read = t.getForUpdate
		}
		b, err := read(other)
		if err != nil {
			return err
		}
		a, err := t.get(mine)
		if err != nil {
			return err
		}
		m, err := numberOf(a)
		if err != nil {
			return err
		}
		o, err := numberOf(b)
		if err != nil {
			return err
		}
		// One side may go below 0, as long as the other makes up for it.
		if m+o > 0 {
			m--
		} else {
			m += 1 + s.rng.IntN(2*skewStart)
		}
		return t.set(mine, numbered(m, s.unique()))
	})
}

// Ledger: the observer "audit" writes a row for each of its runs, with what it has
// seen; "bell" for each of its own.
const (
	ledgerCells = 24
	bellCells   = 8
)

// The observers' tables are observed by name, so these are not halved.
func ledgerCell(i int) string { return fmt.Sprintf("ledger/cell%02d/value", i) }
func bellCell(i int) string   { return fmt.Sprintf("bell/cell%d/hint", i) }

func stepLedger(ctx context.Context, s *thread, _ time.Duration) error {
	return s.do(ctx, "ledger", mode{serial: s.rng.IntN(8) == 0}, func(t *txn) error {
		if s.rng.IntN(3) == 0 {
			if err := t.notify(bellCell(s.rng.IntN(bellCells))); err != nil {
				return err
			}
			if s.rng.IntN(3) == 0 {
				return nil // a notification and nothing else
			}
		}
		for _, i := range s.rng.Perm(ledgerCells)[:1+s.rng.IntN(3)] {
			var err error
			switch s.rng.IntN(8) {
			case 0:
				err = t.remove(ledgerCell(i))
			case 1:
				if _, err = t.get(ledgerCell(i)); err == nil {
					err = t.set(ledgerCell(i), s.unique())
				}
			default:
				err = t.set(ledgerCell(i), s.unique())
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// Web index: a page is a few words and a few links.
const (
	webPages = 30
	webWords = 40
)

func pageRow(i int) string { return fmt.Sprintf("page%02d", i) }

func pageBody(row string) string { return "page/" + row + "/body" }

func stepWeb(ctx context.Context, s *thread, _ time.Duration) error {
	body := pageBody(pageRow(s.rng.IntN(webPages)))
	return s.do(ctx, "webindex", mode{}, func(t *txn) error {
		if s.rng.IntN(10) == 0 {
			return t.remove(body)
		}
		var words, links []string
		for range 1 + s.rng.IntN(12) {
			words = append(words, fmt.Sprintf("word%02d", s.rng.IntN(webWords)))
		}
		for range s.rng.IntN(5) {
			links = append(links, pageRow(s.rng.IntN(webPages)))
		}
		return t.set(body, s.unique()+" "+strings.Join(words, ",")+" "+strings.Join(links, ","))
	})
}

// pageParts takes a body apart; an absent page has none. Both lists are sorted and
// name each word and page once.
func pageParts(body *string) (words, links []string, err error) {
	if body == nil {
		return nil, nil, nil
	}
	parts := strings.Split(*body, " ")
	if len(parts) != 3 {
		return nil, nil, fmt.Errorf("%w: page %q", errIntegrity, *body)
	}
	list := func(s string) []string {
		if s == "" {
			return nil
		}
		all := strings.Split(s, ",")
		slices.Sort(all)
		return slices.Compact(all)
	}
	return list(parts[1]), list(parts[2]), nil
}
