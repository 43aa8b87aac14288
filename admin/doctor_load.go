package admin

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// LoadTable is the table that MeasureLoad writes to.
const LoadTable = "percolator.doctor"

// LoadOptions say how much load there is. The zero value has defaults.
type LoadOptions struct {
	// Commits is how many transactions commit. Default 200, at most 100,000.
	Commits int
	// Clients is how many commit at the same time. Default 4, at most 256.
	Clients int
	// For bounds the load in time: it ends with fewer commits. Default 5 s.
	For time.Duration
}

// Load is what a load has measured. Each transaction writes one cell of its own, so none waits for another.
type Load struct {
	Commits int  `json:"commits"`
	Clients int  `json:"clients"`
	Median  Span `json:"median"`
	P99     Span `json:"p99"`
	Longest Span `json:"longest"`
	// Rate is how many commits there were in a second.
	Rate float64 `json:"rate"`
}

// MeasureLoad measures how long commits take, by a small load on LoadTable, whose rows it removes afterwards, with all versions, also
// those of a load that was killed more than an hour ago. So nothing of it is left but hints of garbage, which
// the next collection takes away. Others may do the same at the same time. It is the one
// function of this package that writes.
//
// Options out of range are ErrInvalid; other errors are those of percolator.DB.Update, and of the store.
func MeasureLoad(ctx context.Context, db *percolator.DB, o LoadOptions) (Load, error) {
	switch {
	case db == nil:
		return Load{}, called("MeasureLoad", fmt.Errorf("%w: the DB is nil", percolator.ErrInvalid))
	case o.Commits < 0 || o.Commits > 100_000 || o.Clients < 0 || o.Clients > 256 || o.For < 0:
		return Load{}, called("MeasureLoad", fmt.Errorf("%w: Commits is %d, Clients %d and For %v; there may be 0 to 100,000 commits and 0 to 256 clients, and For may not be negative",
			percolator.ErrInvalid, o.Commits, o.Clients, o.For))
	}
	for to, def := range map[*int]int{&o.Commits: 200, &o.Clients: 4} {
		if *to == 0 {
			*to = def
		}
	}
	if o.For == 0 {
		o.For = 5 * time.Second
	}
	now, err := db.Now(ctx)
	if err != nil {
		return Load{}, called("MeasureLoad", err)
	}
	l := loading{db: db, o: o, rows: fmt.Sprintf("%020d %s ", uint64(now), rand.Text())}
	load, err := l.run(ctx)
	// The rows go even if the context has ended.
	cleaning, end := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer end()
	for _, rows := range [][2]string{{l.rows, l.rows + "\xff"}, {"", fmt.Sprintf("%020d", uint64(now.Add(-time.Hour)))}} {
		if rerr := l.remove(cleaning, rows[0], rows[1]); rerr != nil {
			err = errors.Join(err, fmt.Errorf("removing the rows of the load from table %q: %w", LoadTable, rerr))
		}
	}
	if err != nil {
		return Load{}, called("MeasureLoad", err)
	}
	return load, nil
}

type loading struct {
	db   *percolator.DB
	o    LoadOptions
	rows string // their prefix
}

// run commits, and measures.
func (l *loading) run(ctx context.Context) (Load, error) {
	var mu sync.Mutex
	var took []time.Duration
	var failed error
	var clients sync.WaitGroup
	began := time.Now()
	next := 0
	take := func() (int, bool) {
		mu.Lock()
		defer mu.Unlock()
		next++
		return next, failed == nil && next <= l.o.Commits && (next == 1 || time.Since(began) < l.o.For) // one at least
	}
	value := make([]byte, 100)
	for range l.o.Clients {
		clients.Go(func() {
			for n, ok := take(); ok; n, ok = take() {
				c := percolator.Cell{Table: LoadTable, Row: l.rows + fmt.Sprint(n), Column: "load"}
				at := time.Now()
				err := l.db.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(c, value) })
				mu.Lock()
				if took = append(took, time.Since(at)); err != nil && failed == nil {
					failed = err
				}
				mu.Unlock()
			}
		})
	}
	clients.Wait()
	if failed != nil {
		return Load{}, failed
	}
	all := time.Since(began)
	slices.Sort(took)
	at := func(part float64) Span { return Span(took[min(len(took)-1, int(part*float64(len(took))))]) }
	return Load{
		Commits: len(took), Clients: l.o.Clients, Median: at(.5), P99: at(.99), Longest: at(1),
		Rate: float64(len(took)) / max(all.Seconds(), 1e-9),
	}, nil
}

// remove removes rows with all that was ever in them. Nobody else reads or writes them.
func (l *loading) remove(ctx context.Context, from, to string) error {
	table, store := format.Escape(LoadTable), l.db.Store()
	families := []rowstore.Family{rowstore.Lock, rowstore.Write, rowstore.Data}
	for {
		scan := rowstore.ScanRange{Table: table, From: from, To: to, Limit: 256}
		for _, f := range families {
			scan.Selectors = append(scan.Selectors, newest(f, rowstore.AllColumns, atMost))
		}
		var mutations []rowstore.Mutation
		for row, err := range store.Scan(ctx, scan) {
			if err != nil {
				return err
			}
			m := rowstore.Mutation{Table: table, Row: row.Row}
			// Of every column: a row of which something stays would be found again.
			for _, v := range row.Versions {
				e := rowstore.DeleteRange(v.Family, v.Column, 0, oracle.Max)
				if !slices.ContainsFunc(m.Edits, func(o rowstore.Edit) bool { return o.Family == e.Family && o.Column == e.Column }) {
					m.Edits = append(m.Edits, e)
				}
			}
			mutations = append(mutations, m)
		}
		if len(mutations) == 0 {
			return nil
		}
		out, err := store.Apply(ctx, mutations, rowstore.ApplyOptions{})
		if err != nil {
			return err
		}
		for i := range out {
			if out[i].Err != nil {
				return out[i].Err
			}
		}
	}
}

// Findings are what is wrong with the measured times.
func (l *Load) Findings() []Finding {
	const change = "see whether the disk of the server is slow, the server overloaded, or far away; docs/scaling.md has what to expect"
	if l.Median > Span(100*time.Millisecond) || l.P99 > Span(time.Second) {
		return []Finding{{Code: "commit-slow", Grade: Risky, Change: change, What: fmt.Sprintf("a commit takes %v, and one of a hundred %v: processes may be taken for dead, and few changes are handled", l.Median, l.P99)}}
	}
	return nil
}
