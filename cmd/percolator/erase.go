package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/percolator"
)

func (a *app) eraseCommand() *cobra.Command {
	var rows someRows
	var yes bool
	c := &cobra.Command{
		Use: "erase TABLE {--prefix PREFIX | --from ROW | --to ROW | --all} --yes", Short: "Delete rows with every trace of them", Args: exactly("TABLE"),
		Long: "Deletes the rows of a range, waits until the observers have seen that, and removes their history, notifications, timers and records.\n" +
			"It needs workers that run the observers, and takes a catalog lease or more, without a bound unless --timeout is given. There is no\n" +
			"way back. If it is broken off, call it again. Rows that are written meanwhile stay, and the exit status is 9: call it again, too.",
		Example: "  percolator erase order --prefix ann/ --yes",
		RunE: a.long("observers list", change(a, func(ctx context.Context, db *percolator.DB, args []string) (erased, error) {
			r, err := rows.of(args[0])
			if err != nil {
				return erased{}, err
			}
			if !yes {
				return erased{}, usage("nothing is erased without --yes: there is no way back")
			}
			reader, err := admin.Of(db)
			if err == nil {
				err = haveTable(ctx, reader, r.Table)
			}
			if err != nil {
				return erased{}, err
			}
			receipt, err := db.Erase(ctx, r)
			if err == nil && receipt.Kept > 0 {
				err = fmt.Errorf("%w: %w", errAnswered, percolator.ErrConflict)
			}
			return erasedOf(&receipt), err
		}, func(w *page, r erased) {
			w.line("%d rows are erased, %d cells had a value, %d versions were removed, %d timers, %d records of parked runs", r.Rows, r.Cells, r.Versions, r.Timers, r.Parked)
			if r.Kept > 0 {
				w.line("%d rows were written meanwhile and stay: erase again", r.Kept)
			}
			for _, s := range r.Elsewhere {
				w.line("not reached: %s", s)
			}
		})),
	}
	rows.flags(c)
	c.Flags().BoolVar(&yes, "yes", false, "erase them")
	return c
}

// erased is a receipt of DB.Erase, as the command shows it.
type erased struct {
	Table     admin.Bytes `json:"table"`
	From      admin.Bytes `json:"from,omitempty"`
	To        admin.Bytes `json:"to,omitempty"`
	SafePoint admin.Stamp `json:"safe_point"`
	Rows      int64       `json:"rows"`
	Kept      int64       `json:"kept"`
	Cells     int64       `json:"cells"`
	Versions  int64       `json:"versions"`
	Timers    int64       `json:"timers"`
	Parked    int64       `json:"parked"`
	Elsewhere []string    `json:"elsewhere"`
}

func erasedOf(r *percolator.Receipt) erased {
	return erased{
		Table: admin.Bytes(r.Range.Table), From: admin.Bytes(r.Range.From), To: admin.Bytes(r.Range.To), SafePoint: admin.Stamp(r.SafePoint),
		Rows: r.Rows, Kept: r.Kept, Cells: r.Cells, Versions: r.Versions, Timers: r.Timers, Parked: r.Parked, Elsewhere: r.Elsewhere,
	}
}

// someRows are the flags of erase and of replay that name rows. No bound at all is not taken for the whole table, nor an empty one for an
// end of it.
type someRows struct {
	prefix, from, to nameFlag
	all              bool
}

func (s *someRows) flags(c *cobra.Command) {
	c.Flags().Var(&s.prefix, "prefix", "rows that begin with this")
	c.Flags().Var(&s.from, "from", "the first row")
	c.Flags().Var(&s.to, "to", "the row behind the last one")
	c.Flags().BoolVar(&s.all, "all", false, "all rows of the table")
}

// of returns the range of a typed table.
func (s *someRows) of(table string) (r percolator.Range, err error) {
	if table, err = typed(table); err != nil {
		return r, err
	}
	prefix, from, to := string(s.prefix), string(s.from), string(s.to)
	bounds := from != "" || to != ""
	switch {
	case prefix != "" && !bounds && !s.all:
		return percolator.Range{Table: table, From: prefix, To: percolator.PrefixEnd(prefix)}, nil
	case prefix == "" && bounds != s.all:
		if to != "" && from >= to {
			return r, usage("no row lies from %q on and before %q: is --from the lower one?", from, to)
		}
		return percolator.Range{Table: table, From: from, To: to}, nil
	}
	return r, usage("name the rows by --prefix, by --from and --to, or by --all")
}
