package admin

import (
	"context"
	"fmt"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Session is a process as the holder of locks. One that only reads, or commits in one phase, has none.
type Session struct {
	ID    string `json:"id"`
	Alive bool   `json:"alive"`
	Ends  Stamp  `json:"ends"` // when its lease ends unless it is renewed
	// Left is the time until then, less than 0 if it is over.
	Left Span `json:"left"`
	// Resolved says that no transaction of it that began below has left a lock that may matter; 0 says nothing.
	Resolved Stamp `json:"resolved,omitzero"`
}

// Sessions lists the sessions, up to limit of them, 1,000 for 0. from is the next of the page before, "" for the first; an empty next is
// the end.
func (r *Reader) Sessions(ctx context.Context, from Bytes, limit int) (sessions []Session, next Bytes, err error) {
	if limit, err = limited("Sessions", limit, 1000); err != nil {
		return nil, "", called("Sessions", err)
	}
	c, err := r.load(ctx)
	if err != nil {
		return nil, "", called("Sessions", err)
	}
	scan := rowstore.ScanRange{Table: format.TableSessions, From: string(from), Limit: limit + 1, Selectors: []rowstore.Selector{newest(rowstore.Write, format.ColumnLease, atMost)}}
	for row, err := range r.store.Scan(ctx, scan) {
		if err != nil {
			return nil, "", called("Sessions", err)
		}
		if len(sessions) == limit {
			return sessions, Bytes(row.Row), nil
		}
		v := row.Newest(rowstore.Write, format.ColumnLease)
		said, err := format.DecodeSession(v.Value)
		if err != nil {
			return nil, "", called("Sessions", fmt.Errorf("session %q: %w", row.Row, err))
		}
		sessions = append(sessions, Session{ID: row.Row, Alive: v.TS >= c.now, Ends: Stamp(v.TS), Left: since(v.TS, c.now), Resolved: Stamp(said.Resolved)})
	}
	return sessions, "", nil
}

// Member is a worker that runs, as other workers know it.
type Member struct {
	ID     string `json:"id"`
	Alive  bool   `json:"alive"`
	Joined Stamp  `json:"joined"`
	Ends   Stamp  `json:"ends"` // when its lease ends unless it is renewed
	Left   Span   `json:"left"`
	// Lease is for how long the worker renews its lease each time.
	Lease Span `json:"lease,omitzero"`
	// Leaving tells that the worker stops, and keeps its share until then.
	Leaving Stamp  `json:"leaving,omitzero"`
	Works   []Work `json:"works"`
}

// Work is an observer that a member runs.
type Work struct {
	Observer Bytes `json:"observer"`
	Table    Bytes `json:"table"`
	Column   Bytes `json:"column"`
	// Weight is how many functions of it the worker runs at once. It is 0 while the worker is stuck.
	Weight int `json:"weight"`
	// Share is about the part of the changes that the member runs, from 0 to 1: it is in proportion to the weights, and the
	// real part differs from it by a twentieth or so.
	Share float64 `json:"share"`
	// Begun and Running are from the member's last answer to a barrier (WaitIdle of some worker), so they may be old. They are -1
	// without one.
	Begun   int64 `json:"begun"`
	Running int64 `json:"running"`
}

// Members lists the workers, up to limit of them, 1,000 for 0. from is the next of the page before, "" for the first; an empty next is the
// end. Shares are among the members of the page.
func (r *Reader) Members(ctx context.Context, from Bytes, limit int) (members []Member, next Bytes, err error) {
	if limit, err = limited("Members", limit, 1000); err != nil {
		return nil, "", called("Members", err)
	}
	c, err := r.load(ctx)
	if err == nil {
		members, next, err = r.members(ctx, c, string(from), limit)
	}
	if err != nil {
		return nil, "", called("Members", err)
	}
	return members, next, nil
}

func (r *Reader) members(ctx context.Context, c *catalog, from string, limit int) (members []Member, next Bytes, err error) {
	scan := rowstore.ScanRange{Table: format.TableMembers, From: from, Limit: limit + 2, Selectors: []rowstore.Selector{
		newest(rowstore.Lock, format.ColumnMember, atMost), newest(rowstore.Write, format.ColumnLease, atMost), newest(rowstore.Write, format.ColumnAnswer, atMost),
	}}
	for row, err := range r.store.Scan(ctx, scan) {
		if err != nil {
			return nil, "", fmt.Errorf("listing the members: %w", err)
		}
		record := row.Newest(rowstore.Lock, format.ColumnMember)
		if row.Row == format.RowGeneration || record == nil {
			continue
		}
		if len(members) == limit {
			next = Bytes(row.Row)
			break
		}
		m, err := memberOf(&row, record, c)
		if err != nil {
			return nil, "", fmt.Errorf("the member %q: %w", row.Row, err)
		}
		members = append(members, m)
	}
	type key struct{ observer, table, column Bytes }
	total := map[key]int{}
	for i := range members {
		for _, w := range members[i].Works {
			if members[i].Alive {
				total[key{w.Observer, w.Table, w.Column}] += w.Weight
			}
		}
	}
	for i := range members {
		for j := range members[i].Works {
			w := &members[i].Works[j]
			if all := total[key{w.Observer, w.Table, w.Column}]; all > 0 && members[i].Alive {
				w.Share = float64(w.Weight) / float64(all)
			}
		}
	}
	return members, next, nil
}

func memberOf(row *rowstore.Row, record *rowstore.Version, c *catalog) (Member, error) {
	said, err := format.DecodeMember(record.Value)
	if err != nil {
		return Member{}, err
	}
	m := Member{Works: []Work{}, ID: row.Row, Joined: Stamp(record.TS), Leaving: Stamp(said.Until), Lease: Span(said.Lease)}
	if v := row.Newest(rowstore.Write, format.ColumnLease); v != nil {
		m.Ends, m.Alive, m.Left = Stamp(v.TS), v.TS >= c.now, since(v.TS, c.now)
	}
	var counts []format.WorkCount
	if v := row.Newest(rowstore.Write, format.ColumnAnswer); v != nil {
		if a, err := format.DecodeAnswer(v.Value); err == nil {
			counts = a.Works
		}
	}
	for i, w := range said.Works {
		title := w.Observer
		if o := c.registered(title, w.Table, w.Column); o != nil {
			title = o.Title()
		}
		work := Work{Observer: Bytes(title), Table: public(w.Table), Column: public(w.Column), Weight: w.Weight, Begun: -1, Running: -1}
		if len(counts) == len(said.Works) {
			work.Begun, work.Running = int64(counts[i].Begun), int64(counts[i].Running) //nolint:gosec // a count of calls
		}
		m.Works = append(m.Works, work)
	}
	return m, nil
}
