package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/backup"
	"github.com/percolate-go/percolate/percolator"
)

// exported is what export and import say at their end.
type exported struct {
	Cells int64 `json:"cells,omitempty"`
	Line  int64 `json:"line,omitempty"`
	file  string
}

// formatOf finds the format of a file: the one that was asked for, else the one of its name.
func formatOf(asked, file string) (backup.Format, error) {
	switch {
	case asked == "" && strings.HasSuffix(file, ".csv"):
		return backup.CSV, nil
	case asked == "" || asked == string(backup.JSONLines):
		return backup.JSONLines, nil
	case asked == string(backup.CSV):
		return backup.CSV, nil
	}
	return "", usage("--format %q is neither jsonl nor csv", asked)
}

func (a *app) exportCommand() *cobra.Command {
	var asked string
	var tables []string
	c := &cobra.Command{
		Use: "export FILE", Short: "Write values to a file", Args: exactly("FILE"),
		Long: "Writes the values of all cells, or of some tables, as of one moment: values alone. FILE must not be there; - is the standard output.\n" +
			"A line is a JSON object with table, row, column and value, or four fields of CSV; names and values have the form in which the\n" +
			"command takes them.",
		Example: "  percolator export --table orders orders.csv",
	}
	c.Flags().StringVar(&asked, "format", "", "jsonl or csv (default csv if FILE ends with .csv, else jsonl)")
	c.Flags().StringArrayVar(&tables, "table", nil, "of this table alone; may be given again")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		a.unbounded(cmd)
		f, err := formatOf(asked, args[0])
		if err != nil {
			return err
		}
		o := backup.ExportOptions{Format: f}
		for _, t := range tables {
			name, err := typed(t)
			if err != nil {
				return err
			}
			o.Tables = append(o.Tables, name)
		}
		text := func(w *page, e exported) {
			if args[0] != "-" {
				w.line("%d cells were written to %s", e.Cells, e.file)
			}
		}
		run := func(ctx context.Context, db *percolator.DB, args []string) (exported, error) {
			r, err := admin.Of(db)
			for _, t := range o.Tables {
				if err == nil {
					err = haveTable(ctx, r, t)
				}
			}
			if err != nil {
				return exported{}, err
			}
			bar := a.bar("exported")
			o.Progress = bar.show
			defer bar.end()
			n, err := a.exportTo(ctx, db, args[0], o)
			return exported{Cells: n, file: args[0]}, err
		}
		if args[0] == "-" {
			a.answered = true // what was asked for is the answer
		}
		return change(a, run, text)(cmd, args)
	}
	return c
}

// exportTo exports into a file that is not there, or to the standard output.
func (a *app) exportTo(ctx context.Context, db *percolator.DB, file string, o backup.ExportOptions) (int64, error) {
	if file == "-" {
		return backup.Export(ctx, db, a.out, o)
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) //nolint:gosec // the user names the file
	if err != nil {
		return 0, usageError{fmt.Errorf("making the file: %w", err)}
	}
	n, err := backup.Export(ctx, db, f, o)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return n, fmt.Errorf("%w; %s is not complete", err, file)
	}
	return n, nil
}

func (a *app) importCommand() *cobra.Command {
	var asked string
	var after int64
	c := &cobra.Command{
		Use: "import FILE", Short: "Write values from a file into the database", Args: exactly("FILE"),
		Long: "Writes the cells of a file as export writes it; - is the standard input. The writes are new ones, in transactions of some hundred\n" +
			"lines, so observers run. A bad line ends the import, and nothing of its transaction is written. What was written stays: the\n" +
			"error says after which line to go on (--after). Names may be as long as a program without limits of its own takes them, or as the\n" +
			"limits of --config say.",
	}
	c.Flags().StringVar(&asked, "format", "", "jsonl or csv (default csv if FILE ends with .csv, else jsonl)")
	c.Flags().Int64Var(&after, "after", 0, "leave out the lines up to this one")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		a.unbounded(cmd)
		f, err := formatOf(asked, args[0])
		if err != nil {
			return err
		}
		if after < 0 {
			return usage("--after is %d; it must not be negative", after)
		}
		return making(a, func(ctx context.Context, db *percolator.DB, args []string) (exported, error) {
			in := a.stdin
			if args[0] != "-" {
				file, err := openInput(ctx, args[0])
				if err != nil {
					return exported{}, err
				}
				defer func() { _ = file.Close() }()
				in = file
			}
			bar := a.bar("imported")
			line, err := backup.Import(ctx, db, untilDone(ctx, in), backup.ImportOptions{Format: f, After: after, Progress: bar.show})
			bar.end()
			if err != nil && line > after {
				err = begun(err)
			}
			if err != nil && line > 0 {
				err = fmt.Errorf("%w; lines up to %d are written: go on with --after %d", err, line, line)
			}
			return exported{Line: line, file: args[0]}, err
		}, func(w *page, e exported) { w.line("lines up to %d are written", e.Line) })(cmd, args)
	}
	return c
}
