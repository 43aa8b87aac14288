package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/backup"
	"github.com/percolate-go/percolate/percolator"
)

// backedUp is what backup and restore say at their end.
type backedUp struct {
	ID       string      `json:"id"`
	File     string      `json:"file"`
	Snapshot admin.Stamp `json:"snapshot"`
	Rows     int64       `json:"rows"`
	Cells    int64       `json:"cells"`
	Bytes    int64       `json:"bytes"`
	Resumed  bool        `json:"resumed,omitempty"`
	did      string
}

func backedUpOf(did, file string, r backup.Result) backedUp {
	return backedUp{r.ID, file, admin.Stamp(r.Snapshot), r.Rows, r.Cells, r.Bytes, r.Resumed, did}
}

func (b backedUp) text(w *page) {
	from := ""
	if b.Resumed {
		from = ", from where it was cut off"
	}
	w.line("%s %s%s: %d cells of %d rows, %d bytes, as of %s", b.File, b.did, from, b.Cells, b.Rows, b.Bytes, when(b.Snapshot))
}

func (a *app) backupCommand() *cobra.Command {
	var hold time.Duration
	c := &cobra.Command{
		Use: "backup FILE", Short: "Back the database up into a file", Args: exactly("FILE"),
		Long: "Backs up everything as of one moment, while programs go on. Until it is complete, the file is named FILE" + backup.Incomplete + ". If it is cut\n" +
			"off, the same command goes on, for as long as --hold says. History is kept meanwhile; holds shows it.",
		Example: "  percolator backup shop-monday.backup\n  percolator restore --check shop-monday.backup",
	}
	c.Flags().DurationVar(&hold, "hold", backup.DefaultHold, "for how long a backup that was cut off can go on")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		a.unbounded(cmd)
		return change(a, func(ctx context.Context, db *percolator.DB, args []string) (backedUp, error) {
			bar := a.bar("backed up")
			r, err := backup.Write(ctx, db, args[0], backup.Options{Hold: hold, Progress: bar.show})
			bar.end()
			if r.ID != "" {
				err = begun(err)
			}
			return backedUpOf("is complete", args[0], r), err
		}, func(w *page, b backedUp) { b.text(w) })(cmd, args)
	}
	return c
}

func (a *app) restoreCommand() *cobra.Command {
	var check bool
	c := &cobra.Command{
		Use: "restore FILE", Short: "Restore a backup into an empty store", Args: exactly("FILE"),
		Long: "Restores a backup into a store that holds nothing, which this command makes where the store's own options let it. The whole file is\n" +
			"checked first. If the restore is cut off, the same command goes on. No program may have the store open meanwhile.",
	}
	c.Flags().BoolVar(&check, "check", false, "check the file alone, without a store")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		a.ran = true
		a.unbounded(cmd)
		ctx, cancel := a.within(cmd.Context())
		defer cancel()
		// An opening may make the store: not for a file that is not there, or is no backup.
		if _, err := backup.Peek(args[0]); errors.As(err, new(*fs.PathError)) {
			return usageError{err}
		} else if err != nil {
			return err
		}
		if err := a.lasts(ctx); err != nil && !check {
			return err
		}
		bar := a.bar("checked")
		if check {
			i, err := backup.Verify(ctx, args[0], bar.show)
			bar.end()
			if err != nil {
				return err
			}
			return show(a, backedUp{i.ID, args[0], admin.Stamp(i.Snapshot), i.Rows, i.Cells, i.Bytes, false, "is whole"}, func(w *page, b backedUp) { b.text(w) })
		}
		verified, err := a.verifyFirst(ctx, args[0], bar)
		if err != nil {
			return err
		}
		store, _, err := a.openStore(ctx, false)
		if err != nil {
			return err
		}
		defer func() { _ = store.Close() }()
		bar.did = "restored"
		r, err := backup.Restore(ctx, store, args[0], backup.RestoreOptions{Progress: bar.show, Verified: verified})
		bar.end()
		if r.ID != "" {
			err = begun(err)
		}
		if err != nil {
			return err
		}
		return show(a, backedUpOf("is restored", args[0], r), func(w *page, b backedUp) { b.text(w) })
	}
	return c
}

// lasts refuses a store that ends with this process.
func (a *app) lasts(ctx context.Context) error {
	if a.opened != nil {
		return nil
	}
	f, err := a.file(ctx)
	if err != nil {
		return err
	}
	for name, s := range f.Stores {
		if scheme, _, _ := strings.Cut(s.URL, ":"); strings.EqualFold(scheme, "memory") || strings.EqualFold(s.Scheme, "memory") {
			return usage("the store %q is in the memory of this process, and would be gone at its end: restore into another one", name)
		}
	}
	return nil
}

// verifyFirst checks a whole file before the store is made for it, if there is none. Where there is one, the restore first finds out whether it
// is empty, which takes less time. One of another layout is refused here: the opening that follows would migrate it, also if it holds data.
func (a *app) verifyFirst(ctx context.Context, file string, bar *bar) (backup.Info, error) {
	store, _, err := a.openStore(ctx, true)
	switch {
	case err == nil:
		return backup.Info{}, store.Close()
	case !errors.Is(err, percolator.ErrNoStore):
		return backup.Info{}, err
	}
	defer bar.end()
	return backup.Verify(ctx, file, bar.show)
}

// unbounded takes the bound off a command that may take hours, unless the user has set one.
func (a *app) unbounded(cmd *cobra.Command) {
	if !cmd.Flags().Changed("timeout") {
		a.timeout = 0
	}
}

// bar shows progress on the standard error: a bar on a terminal, else a line from time to time.
type bar struct {
	w        io.Writer
	terminal bool
	quiet    bool
	did      string
	last     time.Time
	drawn    bool
}

// lineEvery is how often a line is written where there is no terminal.
const lineEvery = 10 * time.Second

func (a *app) bar(did string) *bar {
	b := &bar{w: a.err, did: did, quiet: a.json, last: time.Now()}
	if f, ok := a.err.(*os.File); ok {
		b.terminal = term.IsTerminal(int(f.Fd()))
	}
	return b
}

const barWidth = 30

func (b *bar) show(p backup.Progress) {
	switch {
	case b.quiet:
	case b.terminal:
		full := int(p.Done * barWidth)
		_, _ = fmt.Fprintf(b.w, "\r[%s%s] %3.0f%%  %d cells %s  ", strings.Repeat("=", full), strings.Repeat(" ", barWidth-full), 100*p.Done, p.Cells, b.did)
		b.drawn = true
	case time.Since(b.last) >= lineEvery:
		b.last = time.Now()
		_, _ = fmt.Fprintf(b.w, "%d cells %s, about %.0f%%\n", p.Cells, b.did, 100*p.Done)
	}
}

// end goes to the line below the bar.
func (b *bar) end() {
	if b.drawn {
		_, _ = fmt.Fprintln(b.w)
	}
}
