package ui

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/percolator"
)

// How much a view reads, at most. A page must be made in a fraction of a second over any number of rows.
const (
	mostCounted  = 500 // notified cells of a table, parked runs, hints: behind it a + stands
	mostListed   = 50  // items of a list on one page
	mostParked   = 20  // runs on one page: it looks at a hundred times as many of others, and each has an error
	mostMembers  = 200
	mostTables   = 200
	lockRows     = 500 // that are looked at for locks
	mostLocks    = 25  // each may cost a look at its transaction
	mostVersions = 20
	mostValues   = 5 // versions with their values, which may be long
)

func (h *Handler) allViews() map[string]view {
	return map[string]view{
		"":          {"Overview", "overview", true, h.overview},
		"observers": {"Observers", "observers", true, h.observers},
		"backlog":   {"Cells that wait", "backlog", true, h.backlog},
		"parked":    {"Parked runs", "parked", true, h.parked},
		"timers":    {"Timers", "timers", true, h.timers},
		"tables":    {"Tables", "tables", false, h.tables},
		"locks":     {"Locks", "locks", true, h.locks},
		"cell":      {"A cell", "cell", true, h.cell},
		"processes": {"Processes", "processes", true, h.processes},
		"replays":   {"Replays", "replays", true, h.listReplays},
		"confirm":   {"Sure?", "confirm", false, h.confirm},
	}
}

// part is a part of a view, which may fail alone.
type part[T any] struct {
	V   T
	Err string
}

func (p *part[T]) set(v T, err error) {
	if p.V = v; err != nil {
		p.Err = err.Error()
	}
}

type overview struct {
	Catalog    admin.Overview
	Observers  part[[]admin.Observer]
	Members    part[members]
	Collection part[admin.Collection]
	Replays    part[counted]
	Rates      *ratesView
}

type members struct {
	Items []admin.Member
	Next  admin.Bytes
}

func (h *Handler) overview(ctx context.Context, _ *query) (any, error) {
	var o overview
	var g errgroup.Group
	var catalog error
	g.Go(func() error { o.Catalog, catalog = h.r.Overview(ctx); return nil })
	g.Go(func() error { o.Observers.set(h.r.Observers(ctx, mostCounted)); return nil })
	g.Go(func() error {
		m, next, err := h.r.Members(ctx, "", mostMembers)
		o.Members.set(members{m, next}, err)
		return nil
	})
	g.Go(func() error { o.Collection.set(h.r.Collection(ctx, mostCounted)); return nil })
	g.Go(func() error {
		list, more, err := h.r.Replays(ctx, mostListed)
		o.Replays.set(counted{len(list), more}, err)
		return nil
	})
	_ = g.Wait() // no part ends the others
	if h.db != nil {
		o.Rates = h.rates.look(time.Now(), h.db.Stats())
	}
	return &o, catalog
}

// counted is a number, and whether there are more.
type counted struct {
	N    int
	More bool
}

func (h *Handler) observers(ctx context.Context, _ *query) (any, error) {
	return h.r.Observers(ctx, mostCounted)
}

// listed is a page of a list.
type listed[T any] struct {
	Observer, Table, Column admin.Bytes // that it was narrowed to
	Items                   []T
	First                   bool // it is the first page
	Next                    admin.Bytes
}

// list asks for a page of a list.
func list[T any](q *query, ask func(observer, table, column string, from admin.Bytes) ([]T, admin.Bytes, error)) (any, error) {
	n, err := q.names("observer", "table", "column", "from")
	if err != nil {
		return nil, err
	}
	items, next, err := ask(n[0], n[1], n[2], admin.Bytes(n[3]))
	return &listed[T]{admin.Bytes(n[0]), admin.Bytes(n[1]), admin.Bytes(n[2]), items, n[3] == "", next}, err
}

func (h *Handler) backlog(ctx context.Context, q *query) (any, error) {
	return list(q, func(_, table, column string, from admin.Bytes) ([]admin.Notified, admin.Bytes, error) {
		return h.r.Backlog(ctx, table, column, from, mostListed)
	})
}

func (h *Handler) parked(ctx context.Context, q *query) (any, error) {
	return list(q, func(observer, _, _ string, from admin.Bytes) ([]admin.Parked, admin.Bytes, error) {
		return h.r.Parked(ctx, observer, from, mostParked)
	})
}

func (h *Handler) timers(ctx context.Context, q *query) (any, error) {
	return list(q, func(_, table, _ string, from admin.Bytes) ([]admin.Timer, admin.Bytes, error) {
		return h.r.Timers(ctx, table, from, mostListed)
	})
}

type tables struct {
	Items []admin.Table
	More  bool
}

func (h *Handler) tables(ctx context.Context, _ *query) (any, error) {
	t, more, err := h.r.Tables(ctx, false, mostTables)
	return &tables{t, more}, err
}

type locks struct {
	Table admin.Bytes
	admin.Locks
	Tables *tables // to choose from
}

func (h *Handler) locks(ctx context.Context, q *query) (any, error) {
	n, err := q.names("table", "from")
	if err != nil {
		return nil, err
	}
	if n[0] == "" {
		t, more, err := h.r.Tables(ctx, false, mostTables)
		return &locks{Tables: &tables{t, more}}, err
	}
	l, err := h.r.Locks(ctx, percolator.Range{Table: n[0], From: n[1], Limit: mostLocks}, lockRows)
	return &locks{Table: admin.Bytes(n[0]), Locks: l}, err
}

type processes struct {
	Members      members
	Sessions     []admin.Session
	NextSessions admin.Bytes
}

func (h *Handler) processes(ctx context.Context, q *query) (any, error) {
	n, err := q.names("members", "sessions")
	if err != nil {
		return nil, err
	}
	var p processes
	if p.Members.Items, p.Members.Next, err = h.r.Members(ctx, admin.Bytes(n[0]), mostMembers); err == nil {
		p.Sessions, p.NextSessions, err = h.r.Sessions(ctx, admin.Bytes(n[1]), mostMembers)
	}
	return &p, err
}

// cellView is a cell with its history. Wait is nil where none was asked for.
type cellView struct {
	admin.Cell
	Wait    *admin.Wait
	History admin.History
	Shown   bool // the values are
	May     bool // show them
	Parked  []admin.Bytes
	Older   bool // than the newest versions
}

func (h *Handler) cell(ctx context.Context, q *query) (any, error) {
	c, err := q.cell()
	if err != nil {
		return nil, err
	}
	to, err := q.stamp("to")
	if err != nil {
		return nil, err
	}
	v := cellView{Cell: admin.CellOf(c), May: q.access.Values, Shown: q.access.Values && q.values.Get("values") == "show", Older: to != 0}
	if c == (percolator.Cell{}) {
		return &v, nil // the form alone
	}
	q.shown = v.Shown // which may be long, so they are not read each second
	w, err := h.r.Why(ctx, c)
	if err != nil {
		return nil, err
	}
	v.Wait = &w
	for _, o := range w.Observers {
		if o.What == admin.WaitsParked {
			v.Parked = append(v.Parked, o.Observer)
		}
	}
	if v.Shown {
		v.History, err = h.r.History(ctx, c, to, mostValues)
	} else {
		v.History, err = h.r.Versions(ctx, c, to, mostVersions)
	}
	return &v, err
}

type replaysView struct {
	Items []admin.Replay
	More  bool
	Here  []replayView
}

func (h *Handler) listReplays(ctx context.Context, _ *query) (any, error) {
	items, more, err := h.r.Replays(ctx, mostListed)
	return &replaysView{items, more, h.replays.list()}, err
}
