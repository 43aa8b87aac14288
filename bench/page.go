package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/ui"
)

// The views of the page for a browser, over a store in which much waits and much is wrong.

const (
	pageTable    = "order"
	pageColumn   = "state"
	pageObserver = "ship"

	// Of so many rows one waits for the observer, is locked, has a parked run, or a timer.
	pageWaits  = 10
	pageLocked = 1000
	pageParked = 100
	pageTimed  = 100

	pageProcesses = 1000   // sessions that have not ended, and hints of garbage of each
	pageWorkers   = 50     // members
	pageVersions  = 10_000 // of the cell whose history is shown
	pageBatch     = 1000   // rows that one call stores

	pageMost = 200.0 // milliseconds: a page that is made anew each second must be far below that
)

// pageViews are the views with their addresses.
var pageViews = []struct{ name, path string }{
	{"overview", "./"},
	{"observers", "observers"},
	{"cells that wait", "backlog?table=" + pageTable},
	{"parked runs", "parked"},
	{"parked runs of an observer that has none", "parked?observer=another"},
	{"timers", "timers?table=" + pageTable},
	{"tables", "tables"},
	{"locks", "locks?table=" + pageTable},
	{"a cell that waits", "cell?table=" + pageTable + "&column=" + pageColumn + "&row=" + pageRow(0)},
	{"a cell with a long history", "cell?table=" + pageTable + "&column=" + pageColumn + "&row=deep"},
	{"processes", "processes"},
	{"replays", "replays"},
}

func pageRow(i int) string { return fmt.Sprintf("%012d", i) }

// pageWorkloads measure the page over an embedded store, which a program and its page share.
func pageWorkloads() []Workload {
	return []Workload{{
		Name: "page-pebble", Group: "page", About: "the views of the page over a Pebble store, one request at a time",
		Goroutines: 1, Rows: 1_000_000,
		Sides: func(cfg Config) ([]Side, error) {
			u, err := space(cfg, "pebble", "page")
			if err != nil {
				return nil, err
			}
			all, over := make([]Side, len(pageViews)), &paged{url: u}
			for i, v := range pageViews {
				all[i] = &pageView{over, v.name, v.path}
			}
			return all, nil
		},
		Bars: func(s []Summary) []Bar {
			bars := make([]Bar, len(s))
			for i := range s {
				bars[i] = atMost("p99 of the view "+s[i].Side, s[i].P99/1000, pageMost, "ms")
			}
			return bars
		},
	}}
}

// paged is a database that is filled once for all views, and the page over it.
type paged struct {
	onDB
	url     string
	handler *ui.Handler
}

// pageView is one view of it.
type pageView struct {
	*paged
	name, path string
}

func (s *pageView) Name() string { return s.name }

func (s *pageView) Op(ctx context.Context, _ *Caller) error {
	at, err := url.Parse("/" + s.path)
	if err != nil {
		return err
	}
	w := &discarded{header: http.Header{}}
	s.handler.ServeHTTP(w, (&http.Request{Method: http.MethodGet, URL: at, Host: "localhost", Header: http.Header{}, Body: http.NoBody}).WithContext(ctx))
	if w.status != http.StatusOK || w.bytes == 0 {
		return fmt.Errorf("the view %s: status %d and %d bytes", s.name, w.status, w.bytes)
	}
	return nil
}

// discarded is an answer that nobody reads.
type discarded struct {
	header        http.Header
	status, bytes int
}

func (d *discarded) Header() http.Header { return d.header }

func (d *discarded) WriteHeader(status int) { d.status = status }

func (d *discarded) Write(b []byte) (int, error) {
	d.bytes += len(b)
	return len(b), nil
}

func (s *paged) Prepare(ctx context.Context, cfg Config) error {
	if s.db != nil {
		return nil
	}
	if err := s.open(ctx, s.url, percolator.WithLogger(slog.New(slog.DiscardHandler))); err != nil {
		return err
	}
	if err := s.register(ctx); err != nil {
		return err
	}
	if err := s.fill(ctx, cfg); err != nil {
		return err
	}
	var err error
	s.handler, err = ui.New(s.db, func(*http.Request) (ui.Access, error) { return ui.Access{Who: "bench", Values: true}, nil }, ui.Options{Timeout: time.Minute})
	return err
}

func (s *paged) Close() error {
	if s.db == nil {
		return nil
	}
	var err error
	if s.handler != nil {
		err = s.handler.Close(context.Background())
	}
	err = errors.Join(err, s.onDB.Close())
	s.db = nil
	return err
}

// register makes the observer and a timer known, while the tables are empty.
func (s *paged) register(ctx context.Context) error {
	w := percolator.NewWorker(s.db, percolator.WorkerConfig{GCInterval: -1})
	err := w.Observe(percolator.Observer{Name: pageObserver, Table: pageTable, Column: pageColumn, Func: func(context.Context, *percolator.Txn, percolator.Cell) error { return nil }})
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	var err2 error
	var ended sync.WaitGroup
	ended.Go(func() { err2 = w.Run(running) })
	err = w.WaitIdle(ctx)
	stop()
	ended.Wait()
	if err = errors.Join(err, err2); err != nil {
		return err
	}
	return s.db.Update(ctx, func(tx *percolator.Txn) error {
		return tx.NotifyAfter(ctx, percolator.Cell{Table: pageTable, Row: "timed", Column: pageColumn}, time.Hour)
	})
}

// pageRows makes what is stored. It goes past the transactions, as a bulk load does: rows are as these leave them.
type pageRows struct {
	now          percolator.Timestamp
	write, apart []byte
	parked       error
}

// fill stores the rows, many in a call and several calls at once.
func (s *paged) fill(ctx context.Context, cfg Config) error {
	now, err := s.db.Now(ctx)
	if err != nil {
		return err
	}
	short, long := format.Write{Kind: format.KindPut, Start: now - 2, Value: value(1, cfg.ValueSize)}, format.Write{Kind: format.KindPut, Start: now - 2, Long: true}
	if len(short.Value) > 255 { // longer ones would lie apart
		return fmt.Errorf("-value %d: this workload takes up to 255", cfg.ValueSize)
	}
	p := pageRows{now: now, write: short.Encode(), apart: long.Encode(), parked: errors.New("sending the parcel: the carrier answered 503 Service Unavailable, after three attempts, and nothing else is known")}
	g, ctx := together(ctx)
	g.SetLimit(fillers)
	g.Go(func() error { return s.store(ctx, p.beside()) })
	for from := 0; from < cfg.Rows; from += pageBatch {
		g.Go(func() error {
			var all []rowstore.Mutation
			for i := from; i < min(cfg.Rows, from+pageBatch); i++ {
				more, err := p.row(i)
				if err != nil {
					return err
				}
				all = append(all, more...)
			}
			return s.store(ctx, all)
		})
	}
	return g.Wait()
}

func (s *paged) store(ctx context.Context, all []rowstore.Mutation) error {
	out, err := s.db.Store().Apply(ctx, all, rowstore.ApplyOptions{})
	if err != nil {
		return err
	}
	for i := range out {
		if out[i].Err != nil {
			return out[i].Err
		}
	}
	return nil
}

func mutation(table, row string, edits ...rowstore.Edit) rowstore.Mutation {
	return rowstore.Mutation{Table: table, Row: row, Edits: edits}
}

// row is a row of the table, with what stands elsewhere because of it.
func (p *pageRows) row(i int) ([]rowstore.Mutation, error) {
	row := pageRow(i)
	cell := format.Cell{Table: pageTable, Row: row, Column: pageColumn}
	edits := []rowstore.Edit{rowstore.Put(rowstore.Write, pageColumn, p.now-1, p.write)}
	if i%pageWaits == 0 {
		edits = append(edits, rowstore.Put(rowstore.Notify, pageColumn, p.now-1, format.WeakNotification))
	}
	if i%pageLocked == 0 {
		process := i / pageLocked % pageProcesses
		l := format.Lock{Kind: format.KindPut, Expiry: p.now.Add(time.Hour), Session: fmt.Sprintf("process-%04d", process), Primary: cell}
		edits = append(edits, rowstore.Put(rowstore.Lock, pageColumn, p.now-percolator.Timestamp(process), l.Encode()))
	}
	all := []rowstore.Mutation{mutation(pageTable, row, edits...)}
	if i%pageParked == 0 {
		record := format.NewParked(pageObserver, cell, format.Failure{Change: p.now - 1, Attempts: 3}, p.parked, p.now)
		b, err := record.Encode()
		if err != nil {
			return nil, err
		}
		at := format.ParkedCell(pageObserver, cell)
		all = append(all, mutation(at.Table, at.Row, rowstore.Put(rowstore.Data, at.Column, p.now-2, b), rowstore.Put(rowstore.Write, at.Column, p.now-1, p.apart)))
	}
	if i%pageTimed == 0 {
		at := format.TimerRow(byte(i/pageTimed%format.TimerShards), p.now.Add(time.Duration(i)*time.Second), p.now, i)
		all = append(all, mutation(format.TimersTable(pageTable), at, rowstore.Put(rowstore.Write, format.ColumnTimer, p.now, format.TimerHint{Row: row, Column: pageColumn}.Encode())))
	}
	return all, nil
}

// beside is what does not depend on the number of rows: processes, workers, hints of garbage, and a cell with a long history.
func (p *pageRows) beside() (all []rowstore.Mutation) {
	var hint format.Hint
	for i := range 1000 {
		hint.Rows = append(hint.Rows, pageRow(i))
	}
	names, lease := hint.Encode(), p.now.Add(time.Hour)
	for i := range pageProcesses {
		all = append(all,
			mutation(format.TableSessions, fmt.Sprintf("process-%04d", i), rowstore.Put(rowstore.Write, format.ColumnLease, lease, format.Session{}.Encode())),
			mutation(format.TableHints, format.HintRow(pageTable, p.now-percolator.Timestamp(i), "p"), rowstore.Put(rowstore.Write, format.ColumnHint, p.now, names)))
	}
	m := format.Member{From: p.now, Lease: time.Minute, Works: []format.MemberWork{{Observer: pageObserver, Table: pageTable, Column: pageColumn, Weight: 16}}}
	for i := range pageWorkers {
		all = append(all, mutation(format.TableMembers, fmt.Sprintf("worker-%04d", i), rowstore.Put(rowstore.Lock, format.ColumnMember, p.now, m.Encode()), rowstore.Put(rowstore.Write, format.ColumnLease, lease, nil)))
	}
	var history []rowstore.Edit
	for i := range pageVersions {
		history = append(history, rowstore.Put(rowstore.Write, pageColumn, p.now-percolator.Timestamp(i)-1, p.write))
	}
	return append(all, mutation(pageTable, "deep", history...))
}
