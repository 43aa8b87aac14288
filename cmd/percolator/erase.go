package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/percolator"
)

func (a *app) eraseCommand() *cobra.Command {
	var prefix, from, to string
	var yes, all bool
	c := &cobra.Command{
		Use: "erase TABLE {--prefix PREFIX | --from ROW | --to ROW | --all} --yes", Short: "Delete rows with every trace of them", Args: exactly("TABLE"),
		Long: "Deletes the rows of a range, waits until the observers have seen that, and removes their history, notifications, timers and records.\n" +
			"It needs workers that run the observers, and takes a catalog lease or more. There is no way back. If it is broken off, call it again.",
		Example: "  percolator erase order --prefix ann/ --yes --timeout 10m",
		RunE: change(a, func(ctx context.Context, db *percolator.DB, args []string) (percolator.Receipt, error) {
			r, err := rangeToErase(args[0], prefix, from, to, all)
			if err != nil {
				return percolator.Receipt{}, err
			}
			if !yes {
				return percolator.Receipt{}, usage("nothing is erased without --yes: there is no way back")
			}
			reader, err := admin.Of(db)
			if err == nil {
				err = haveTable(ctx, reader, r.Table)
			}
			if err != nil {
				return percolator.Receipt{}, err
			}
			return db.Erase(ctx, r)
		}, func(w *page, r percolator.Receipt) {
			w.line("%d rows are erased, %d cells had a value, %d versions were removed, %d timers, %d records of parked runs", r.Rows, r.Cells, r.Versions, r.Timers, r.Parked)
			if r.Kept > 0 {
				w.line("%d rows were written meanwhile and stay: erase again", r.Kept)
			}
			for _, s := range r.Elsewhere {
				w.line("not reached: %s", s)
			}
		}),
	}
	c.Flags().StringVar(&prefix, "prefix", "", "rows that begin with this")
	c.Flags().StringVar(&from, "from", "", "the first row")
	c.Flags().StringVar(&to, "to", "", "the row behind the last one")
	c.Flags().BoolVar(&all, "all", false, "all rows of the table")
	c.Flags().BoolVar(&yes, "yes", false, "erase them")
	return c
}

// rangeToErase reads the arguments of erase. No bound at all is not taken for the whole table.
func rangeToErase(table, prefix, from, to string, all bool) (r percolator.Range, err error) {
	names := []string{table, prefix, from, to}
	for i := range names {
		if names[i] == "" {
			continue
		}
		if names[i], err = typed(names[i]); err != nil {
			return r, err
		}
	}
	table, prefix, from, to = names[0], names[1], names[2], names[3]
	bounds := from != "" || to != ""
	switch {
	case prefix != "" && !bounds && !all:
		return percolator.Range{Table: table, From: prefix, To: percolator.PrefixEnd(prefix)}, nil
	case prefix == "" && bounds != all:
		return percolator.Range{Table: table, From: from, To: to}, nil
	}
	return r, usage("name the rows by --prefix, by --from and --to, or by --all")
}
