package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/percolator"
)

func lines(w *page, all []string) {
	for _, l := range all {
		w.line("%s", l)
	}
}

func (a *app) whyCommand() *cobra.Command {
	return &cobra.Command{
		Use: "why TABLE ROW COLUMN", Short: "Say in words what a cell waits for", Args: exactly("TABLE", "ROW", "COLUMN"),
		Long: "Says what a cell waits for: a lock, whose it is and when it ends; a timer; and what each observer of the column has to do, and why\n" +
			"it has not yet.",
		Example: "  percolator why order 17 state",
		RunE: look(a, func(ctx context.Context, r *admin.Reader, args []string) (admin.Wait, error) {
			cell, err := cellOf(args)
			if err != nil {
				return admin.Wait{}, err
			}
			v, err := r.Why(ctx, cell)
			if err == nil && v.Last == 0 && v.Free && v.Notified == 0 && v.Due == 0 {
				err = noCell(ctx, r, cell, "was never written")
			}
			return v, err
		}, func(w *page, v admin.Wait) { lines(w, v.Lines) }),
	}
}

func (a *app) locksCommand() *cobra.Command {
	var g ranged
	rows := 10_000
	c := &cobra.Command{
		Use: "locks TABLE", Short: "Look for locks in a range", Args: exactly("TABLE"),
		Long: "Looks for locks in a range of rows, and says whose they are. No store finds locks but by reading rows, so this looks at --rows\n" +
			"rows, or for two seconds, and then says how to go on.",
		RunE: look(a, func(ctx context.Context, r *admin.Reader, args []string) (admin.Locks, error) {
			rng, err := g.over(args[0])
			if err == nil {
				err = haveTable(ctx, r, rng.Table)
			}
			if err != nil {
				return admin.Locks{}, err
			}
			return r.Locks(ctx, rng, rows)
		}, func(w *page, l admin.Locks) {
			if len(l.Locks) > 0 {
				w.row("ROW", "COLUMN", "KIND", "TRANSACTION", "STATE", "AGE", "ENDS IN", "PROCESS")
			}
			for _, k := range l.Locks {
				kind := k.Kind
				if k.Beside != "" {
					kind += ", " + k.Beside
				}
				w.row(k.Row, k.Column, kind, k.Txn.Start, k.Txn.State, k.Txn.Age, k.Txn.Left, k.Txn.Session)
			}
			w.line("%d locks in %d rows", len(l.Locks), l.Looked)
			if l.More {
				w.line("... and there are more rows%s: %s", g.instead(), g.onward(l.Next))
			}
		}),
	}
	g.flags(c, 100)
	c.Flags().IntVar(&rows, "rows", rows, "how many rows to look at")
	return c
}

// decided is the answer of txn --decide.
type decided struct {
	Start  admin.Stamp `json:"start"`
	State  string      `json:"state"`
	Commit admin.Stamp `json:"commit,omitzero"`
}

func (a *app) txnCommand() *cobra.Command {
	var decide, anew bool
	c := &cobra.Command{
		Use: "txn START TABLE ROW COLUMN", Short: "Show a transaction, or decide it", Args: exactly("START", "TABLE", "ROW", "COLUMN"),
		Long: "Shows the transaction that began at START, by its primary (as an UndeterminedError names it) or another cell of it. It changes\n" +
			"nothing. With --decide it finds out what became of it for good, and changes something for that: a transaction that left no trace can\n" +
			"never commit afterwards, and one of a dead process is rolled back. So --decide may roll back a transaction that a program is\n" +
			"committing at this moment. A table that holds nothing is refused without --new: then nothing of the transaction can be there.",
		Example: "  percolator txn 468373610496000001 account ann balance",
	}
	start := func(args []string) (percolator.Timestamp, percolator.Cell, error) {
		n, err := strconv.ParseUint(args[0], 10, 63)
		if err != nil {
			return 0, percolator.Cell{}, usage("%q is no timestamp: START is the number that the command and errors show", args[0])
		}
		c, err := cellOf(args[1:])
		return percolator.Timestamp(n), c, err
	}
	show := look(a, func(ctx context.Context, r *admin.Reader, args []string) (admin.Txn, error) {
		at, cell, err := start(args)
		if err != nil {
			return admin.Txn{}, err
		}
		t, err := r.Txn(ctx, at, cell)
		if err == nil && t.State == admin.NoTrace {
			err = haveTable(ctx, r, cell.Table)
		}
		return t, err
	}, func(w *page, t admin.Txn) { lines(w, t.Lines) })
	fence := change(a, func(ctx context.Context, db *percolator.DB, args []string) (decided, error) {
		at, cell, err := start(args)
		if err != nil {
			return decided{}, err
		}
		if !anew {
			r, err := admin.Of(db)
			if err == nil {
				err = haveTable(ctx, r, cell.Table)
			}
			if errors.Is(err, errNotFound) {
				err = fmt.Errorf("%w (--new decides it all the same)", err)
			}
			if err != nil {
				return decided{}, err
			}
		}
		o, err := db.Outcome(ctx, at, cell)
		return decided{admin.Stamp(at), o.Status.String(), admin.Stamp(o.Commit)}, err
	}, func(w *page, d decided) {
		w.line("transaction %v is %s", d.Start, d.State)
		if d.Commit != 0 {
			w.line("it took effect at %v (%s)", d.Commit, when(d.Commit))
		}
	})
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if decide {
			return fence(cmd, args)
		}
		return show(cmd, args)
	}
	c.Flags().BoolVar(&decide, "decide", false, "find out for good: this may roll the transaction back")
	c.Flags().BoolVar(&anew, "new", false, "with --decide, also if the table holds nothing")
	return c
}

func (a *app) sessionsCommand() *cobra.Command {
	var from nameFlag
	limit := 1000
	c := &cobra.Command{
		Use: "sessions", Short: "List the processes that hold locks, or may", Args: exactly(),
		Long: "Lists the sessions: processes that have committed in two phases. One whose lease is over is dead, or cut off; its locks may be\n" +
			"rolled back by anybody, and garbage collection removes the session.",
		RunE: look(a, func(ctx context.Context, r *admin.Reader, _ []string) (list[admin.Session], error) {
			s, next, err := r.Sessions(ctx, admin.Bytes(from), limit)
			return paged(s, next), err
		}, func(w *page, l list[admin.Session]) {
			w.row("PROCESS", "STATE", "LEASE")
			for _, s := range l.Items {
				state, lease := "alive", "ends in "+s.Left.String()
				if !s.Alive {
					state, lease = "dead", "ended "+ago(-s.Left)
				}
				w.row(s.ID, state, lease)
			}
			rest(w, &l)
		}),
	}
	fromFlag(c, &from)
	c.Flags().IntVar(&limit, "limit", limit, "how many at most")
	return c
}

func (a *app) membersCommand() *cobra.Command {
	var from nameFlag
	limit := 1000
	c := &cobra.Command{
		Use: "members", Short: "List the workers and what they run", Args: exactly(),
		Long: "Lists the workers that run, with the observers that each runs, and about the share of their changes. PLACES 0 means that the worker\n" +
			"is stuck with this observer, and others take its changes over.",
		RunE: look(a, func(ctx context.Context, r *admin.Reader, _ []string) (list[admin.Member], error) {
			m, next, err := r.Members(ctx, admin.Bytes(from), limit)
			return paged(m, next), err
		}, func(w *page, l list[admin.Member]) {
			w.row("WORKER", "STATE", "JOINED", "OBSERVER", "TABLE", "COLUMN", "PLACES", "SHARE")
			for _, m := range l.Items {
				state := "alive"
				switch {
				case !m.Alive:
					state = "dead"
				case m.Leaving != 0:
					state = "leaving"
				}
				for _, x := range m.Works {
					w.row(m.ID, state, when(m.Joined), x.Observer, x.Table, x.Column, x.Weight, fmt.Sprintf("about %.0f%%", 100*x.Share))
				}
			}
			rest(w, &l)
		}),
	}
	fromFlag(c, &from)
	c.Flags().IntVar(&limit, "limit", limit, "how many at most")
	return c
}

func (a *app) holdsCommand() *cobra.Command {
	show := &cobra.Command{
		Use: "list", Short: "List the holds on history", Args: exactly(),
		RunE: look(a, func(ctx context.Context, r *admin.Reader, _ []string) (list[admin.Hold], error) {
			h, err := r.Holds(ctx)
			return list[admin.Hold]{Items: h}, err
		}, func(w *page, l list[admin.Hold]) {
			w.row("HOLD", "KEEPS", "ENDS IN", "COSTS")
			for _, h := range l.Items {
				cost := "nothing: within the retention"
				if h.Extra > 0 {
					cost = h.Extra.String() + " of history"
				}
				w.row(h.Name, when(h.At), h.Left, cost)
			}
		}),
		Long: "Lists the holds that stand: who keeps history for longer than the retention, and until when.",
	}
	release := &cobra.Command{
		Use: "release HOLD", Short: "End a hold", Args: exactly("HOLD"),
		Long: "Ends a hold, whoever has placed it. What reads the history that it kept fails once that is collected.",
		RunE: change(a, func(ctx context.Context, db *percolator.DB, args []string) (done, error) {
			name, err := typed(args[0])
			if err != nil {
				return done{}, err
			}
			holds, err := db.Holds(ctx)
			if err != nil {
				return done{}, err
			}
			var known []string
			for _, h := range holds {
				if known = append(known, h.Name); h.Name == name {
					return done{fmt.Sprintf("the hold %v is released", admin.Bytes(name))}, db.ReleaseHold(ctx, name)
				}
			}
			return done{}, missing("hold", name, known)
		}, said),
	}
	return listed(&cobra.Command{Use: "holds", Short: "Holds on history: list, release"}, show, release)
}
