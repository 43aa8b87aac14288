package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/percolator"
)

// list is an answer that may not be whole.
type list[T any] struct {
	Items []T `json:"items"`
	// More tells that there are others, and Next where they begin, if the command takes --from.
	More bool        `json:"more,omitempty"`
	Next admin.Bytes `json:"next,omitzero"`
}

// paged is a page of a list.
func paged[T any](items []T, next admin.Bytes) list[T] {
	return list[T]{Items: items, More: next != "", Next: next}
}

// fromFlag adds the flag by which a list goes on.
func fromFlag(c *cobra.Command, from *nameFlag) {
	c.Flags().Var(from, "from", "go on where the list before ended, as its last line says")
}

// MarshalJSON writes an empty list as one.
func (l list[T]) MarshalJSON() ([]byte, error) {
	type plain list[T]
	if l.Items == nil {
		l.Items = []T{}
	}
	return json.Marshal(plain(l))
}

// rest says that a list is not whole, and how to go on.
func rest[T any](w *page, l *list[T]) {
	switch {
	case l.Next != "":
		w.line("... and more: --from %s", l.Next.Word())
	case l.More:
		w.line("... and more: --limit")
	}
}

func (a *app) tablesCommand() *cobra.Command {
	var own bool
	limit := 1000
	c := &cobra.Command{
		Use: "tables", Short: "List the tables, with their settings and observers", Args: exactly(),
		Long: "Lists the tables that hold anything, or that the catalog knows by an observer or settings of their own.",
		RunE: look(a, func(ctx context.Context, r *admin.Reader, _ []string) (list[admin.Table], error) {
			t, more, err := r.Tables(ctx, own, limit)
			return list[admin.Table]{Items: t, More: more}, err
		}, func(w *page, l list[admin.Table]) {
			w.row("TABLE", "OBSERVERS", "RETENTION", "NOTES")
			for _, t := range l.Items {
				note := ""
				if t.Own {
					note = "the library's own"
				}
				if t.Empty {
					note = "holds nothing"
				}
				if t.Set {
					note += " settings of its own"
				}
				w.row(t.Name, t.Observers, t.Retention, note)
			}
			rest(w, &l)
		}),
	}
	c.Flags().BoolVar(&own, "own", false, "list the library's own tables too")
	c.Flags().IntVar(&limit, "limit", limit, "how many")
	return c
}

func (a *app) getCommand() *cobra.Command {
	var at string
	var raw bool
	c := &cobra.Command{
		Use: "get TABLE ROW COLUMN", Short: "Show a cell", Args: exactly("TABLE", "ROW", "COLUMN"),
		Long: "Shows the value of a cell, at the present or at a snapshot. If a transaction that is not decided may change the answer, it\n" +
			"says so on the standard error, and does not wait. The exit status is 3 if the cell has no value.",
		Example: "  percolator get account ann balance\n  percolator get account ann balance --at 10m",
	}
	c.RunE = func(cmd *cobra.Command, args []string) error {
		var found admin.Value
		err := look(a, func(ctx context.Context, r *admin.Reader, args []string) (admin.Value, error) {
			cell, err := cellOf(args)
			if err != nil {
				return found, err
			}
			ts, err := snapshot(ctx, r, at)
			if err == nil {
				found, err = r.Get(ctx, cell, ts)
			}
			if err == nil && !found.Found && found.Pending == nil {
				if found.Commit == 0 {
					return found, noCell(ctx, r, cell, "has no value")
				}
				return found, fmt.Errorf("%w: the cell %v has no value%s", errNotFound, found.Cell, deleted(found))
			}
			return found, err
		}, func(w *page, v admin.Value) {
			if !raw && v.Found {
				w.line("%v", v.Value)
			}
		})(cmd, args)
		switch {
		case err != nil:
			return err
		case a.json && !found.Found:
			return fmt.Errorf("%w: %w", errAnswered, errNotFound)
		case a.json:
			return nil
		}
		if raw {
			if _, err := io.WriteString(a.out, string(found.Value)); err != nil {
				return fmt.Errorf("writing the value: %w", err)
			}
		}
		if t := found.Pending; t != nil {
			_, _ = fmt.Fprintf(a.err, "a transaction may change this answer: %v, %s; percolator why %v\n", t.Start, t.State, found.Cell)
		}
		if !found.Found {
			return fmt.Errorf("%w: the cell %v has no value yet", errNotFound, found.Cell)
		}
		return nil
	}
	c.Flags().StringVar(&at, "at", "", "the snapshot: a timestamp, a time, or how long ago")
	c.Flags().BoolVar(&raw, "raw", false, "write the bytes of the value as they are")
	return c
}

func deleted(v admin.Value) string {
	if v.Commit == 0 {
		return ""
	}
	return fmt.Sprintf(": it was deleted at %v (%s)", v.Commit, when(v.Commit))
}

func when(s admin.Stamp) string { return s.Time().Format("2006-01-02 15:04:05 UTC") }

// ranged are the flags of a range of rows.
type ranged struct {
	from, to, prefix string
	limit            int
}

func (g *ranged) flags(c *cobra.Command, limit int) {
	c.Flags().StringVar(&g.from, "from", "", "the first row, included")
	c.Flags().StringVar(&g.to, "to", "", "the end, excluded")
	c.Flags().StringVar(&g.prefix, "prefix", "", "rows that begin so")
	c.Flags().IntVar(&g.limit, "limit", limit, "how many at most")
}

// over makes the range of a typed table.
func (g *ranged) over(table string) (percolator.Range, error) {
	var r percolator.Range
	var prefix string
	var errs []error
	for _, x := range []struct {
		from string
		to   *string
	}{{table, &r.Table}, {g.from, &r.From}, {g.to, &r.To}, {g.prefix, &prefix}} {
		s, err := typed(x.from)
		*x.to = s
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return r, usageError{err}
	}
	if prefix != "" {
		if r.From != "" || r.To != "" {
			return r, usage("--prefix and --from or --to exclude each other")
		}
		r.From, r.To = prefix, percolator.PrefixEnd(prefix)
	}
	r.Limit = g.limit
	return r, nil
}

// onward are the flags by which a range goes on at a row. They take the place of those that it was given by: --prefix and --from exclude each
// other, and without an end of their own other rows would follow.
func (g *ranged) onward(next admin.Bytes) string {
	flags := "--from " + next.Word()
	prefix, _ := typed(g.prefix)
	if prefix == "" {
		if g.to != "" {
			to, _ := typed(g.to)
			flags += " --to " + admin.Bytes(to).Word()
		}
		return flags
	}
	if end := percolator.PrefixEnd(prefix); end != "" {
		flags += " --to " + admin.Bytes(end).Word()
	}
	return flags
}

// instead says which flag those of onward take the place of.
func (g *ranged) instead() string {
	if g.prefix == "" {
		return ""
	}
	return ", in place of --prefix"
}

func (a *app) scanCommand() *cobra.Command {
	var g ranged
	var at string
	var columns []string
	c := &cobra.Command{
		Use: "scan TABLE", Short: "Show the rows of a range", Args: exactly("TABLE"),
		Long:    "Shows the cells of a range of rows, at the present or at a snapshot, a page at a time. The last line says how to go on.",
		Example: "  percolator scan order --prefix 2026- --columns state --limit 20",
		RunE: look(a, func(ctx context.Context, r *admin.Reader, args []string) (admin.Rows, error) {
			rng, err := g.over(args[0])
			if err != nil {
				return admin.Rows{}, err
			}
			for _, some := range columns {
				for c := range strings.SplitSeq(some, ",") {
					s, err := typed(c)
					if err != nil {
						return admin.Rows{}, err
					}
					rng.Columns = append(rng.Columns, s)
				}
			}
			ts, err := snapshot(ctx, r, at)
			if err != nil {
				return admin.Rows{}, err
			}
			if err := haveTable(ctx, r, rng.Table); err != nil {
				return admin.Rows{}, err
			}
			rows, err := r.Scan(ctx, rng, ts)
			// Of a part of the table nothing can be said, nor of the past: rows with the column may lie elsewhere.
			whole := rng.From == "" && rng.To == "" && !rows.More && at == ""
			if err == nil && whole && len(rows.Values) == 0 && len(rng.Columns) > 0 {
				err = haveColumns(ctx, r, rng)
			}
			return rows, err
		}, func(w *page, p admin.Rows) {
			w.row("ROW", "COLUMN", "WRITTEN", "VALUE")
			for _, v := range p.Values {
				value := v.Value.String()
				if !v.Found {
					value = "(no value)"
				}
				if v.Pending != nil {
					value += fmt.Sprintf("  (transaction %v is %s)", v.Pending.Start, v.Pending.State)
				}
				written := "-"
				if v.Commit != 0 {
					written = when(v.Commit)
				}
				w.row(v.Row, v.Column, written, value)
			}
			if p.More {
				w.line("... and more%s: --at %v %s", g.instead(), p.At, g.onward(p.Next))
			}
		}),
	}
	g.flags(c, 100)
	c.Flags().StringVar(&at, "at", "", "the snapshot: a timestamp, a time, or how long ago")
	// A StringSlice would take quotes for its own.
	c.Flags().StringArrayVar(&columns, "columns", nil, "these columns alone, with commas between them; a comma in a name is %2C")
	return c
}

func (a *app) historyCommand() *cobra.Command {
	var to string
	limit := 100
	c := &cobra.Command{
		Use: "history TABLE ROW COLUMN", Short: "Show the versions of a cell", Args: exactly("TABLE", "ROW", "COLUMN"),
		Long: "Shows the committed versions of a cell, the newest first. What was overwritten before the safe point is gone.",
		RunE: look(a, func(ctx context.Context, r *admin.Reader, args []string) (admin.History, error) {
			cell, err := cellOf(args)
			if err != nil {
				return admin.History{}, err
			}
			ts, err := snapshot(ctx, r, to)
			if err != nil {
				return admin.History{}, err
			}
			h, err := r.History(ctx, cell, ts, limit)
			if err == nil && len(h.Versions) == 0 && h.Pending == nil {
				return h, noCell(ctx, r, cell, "has no versions")
			}
			return h, err
		}, func(w *page, h admin.History) {
			if t := h.Pending; t != nil {
				w.line("transaction %v is %s and has the cell locked: percolator why %v", t.Start, t.State, h.Cell)
			}
			w.row("COMMITTED", "TIMESTAMP", "VALUE")
			for _, v := range h.Versions {
				value := v.Value.String()
				if v.Deleted {
					value = "(deleted)"
				}
				w.row(when(v.Commit), v.Commit, value)
			}
			if h.More {
				w.line("... and older ones: --at %v", h.Next)
			}
		}),
	}
	c.Flags().StringVar(&to, "at", "", "from this snapshot down: a timestamp, a time, or how long ago")
	c.Flags().IntVar(&limit, "limit", limit, "how many at most")
	return c
}

// written is what set and delete answer.
type written struct {
	admin.Cell
	Commit admin.Stamp `json:"commit"`
}

func (a *app) setCommand() *cobra.Command {
	var table bool
	c := &cobra.Command{
		Use: "set TABLE ROW COLUMN VALUE", Short: "Write a cell", Args: exactly("TABLE", "ROW", "COLUMN", "VALUE"),
		Long: "Writes a cell in a transaction of its own. Observers of the column run, as after any write. VALUE - is the standard input,\n" +
			"as it is. A table that holds nothing yet is refused without --new. Names may be as long as a program without limits of its\n" +
			"own takes them, or as the limits of --config say.",
		Example: "  percolator set account ann balance 100\n  percolator set page home body - < home.html",
		RunE: making(a, func(ctx context.Context, db *percolator.DB, args []string) (written, error) {
			cell, err := cellOf(args)
			if err != nil {
				return written{}, err
			}
			value, err := a.value(ctx, args[3], db.Limits().Value)
			if err != nil {
				return written{}, err
			}
			w, err := a.write(ctx, db, cell, table, func(tx *percolator.Txn) error { return tx.Set(cell, value) })
			if errors.Is(err, errNotFound) {
				err = fmt.Errorf("%w (--new makes it)", err)
			}
			return w, err
		}, func(w *page, v written) { w.line("written at %v (%s)", v.Commit, when(v.Commit)) }),
	}
	c.Flags().BoolVar(&table, "new", false, "make the table, if it holds nothing yet")
	return c
}

// value reads a typed value, or the standard input until ctx is done.
func (a *app) value(ctx context.Context, arg string, most int) ([]byte, error) {
	if arg == "-" {
		b, err := io.ReadAll(io.LimitReader(untilDone(ctx, a.stdin), int64(most)+1))
		if err != nil {
			return nil, fmt.Errorf("reading the value from the standard input: %w", err)
		}
		if len(b) > most {
			return nil, fmt.Errorf("%w: the standard input has more than %d bytes, the limit of a value", percolator.ErrTooLarge, most)
		}
		return b, nil
	}
	s, err := typed(arg)
	return []byte(s), err
}

// write changes a cell of a table that is there, or may be made.
func (a *app) write(ctx context.Context, db *percolator.DB, cell percolator.Cell, anew bool, f func(tx *percolator.Txn) error) (written, error) {
	if !anew {
		r, err := admin.Of(db)
		if err == nil {
			err = haveTable(ctx, r, cell.Table)
		}
		if err != nil {
			return written{}, err
		}
	}
	at, err := db.UpdateAt(ctx, f)
	return written{admin.CellOf(cell), admin.Stamp(at)}, err
}

func (a *app) deleteCommand() *cobra.Command {
	return &cobra.Command{
		Use: "delete TABLE ROW COLUMN", Short: "Delete a cell", Args: exactly("TABLE", "ROW", "COLUMN"),
		Long: "Deletes the value of a cell in a transaction of its own. Observers of the column run. Its history stays for the retention. The\n" +
			"exit status is 3 if the cell has no value; then nothing is written.",
		RunE: change(a, func(ctx context.Context, db *percolator.DB, args []string) (written, error) {
			cell, err := cellOf(args)
			if err != nil {
				return written{}, err
			}
			w, err := a.write(ctx, db, cell, false, func(tx *percolator.Txn) error {
				if _, err := tx.Get(ctx, cell); err != nil {
					return err
				}
				return tx.Delete(cell)
			})
			if errors.Is(err, percolator.ErrNotFound) {
				r, rerr := admin.Of(db)
				if rerr != nil {
					return w, rerr
				}
				return w, noCell(ctx, r, cell, "has no value")
			}
			return w, err
		}, func(w *page, v written) { w.line("deleted at %v (%s)", v.Commit, when(v.Commit)) }),
	}
}

// ago writes how long ago a time was, for people.
func ago(s admin.Span) string { return s.String() + " ago" }
