package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/percolator"
)

// replayed says what a replay has done.
type replayed struct {
	Observer admin.Bytes `json:"observer"`
	Table    admin.Bytes `json:"table"`
	From     admin.Bytes `json:"from,omitempty"`
	To       admin.Bytes `json:"to,omitempty"`
	Cells    int64       `json:"cells"`
	Parked   int         `json:"parked"`
	Waiting  int         `json:"waiting"`
	Resumed  bool        `json:"resumed"`
}

func (a *app) replayCommand() *cobra.Command {
	var rows someRows
	c := &cobra.Command{
		Use:   "replay OBSERVER TABLE {--prefix PREFIX | --from ROW | --to ROW | --all}",
		Short: "Run an observer again for the rows of a range", Args: exactly("OBSERVER", "TABLE"),
		Long: "Has an observer run once more for every cell of its column in a range of rows, though nothing has changed. Workers make the runs,\n" +
			"and the command waits for them, without a bound unless --timeout is given. If it is cut off, the same command goes on. A\n" +
			"Pebble store can be open in one process only, so replay there in the program, or on its page.\n" +
			"The first replay takes a catalog lease, and from then on programs of versions that do not know of replays are refused.",
		Example: "  percolator observers replay ship order --prefix 2026-",
		RunE: a.long("observers list", change(a, func(ctx context.Context, db *percolator.DB, args []string) (replayed, error) {
			observer, err := typed(args[0])
			if err != nil {
				return replayed{}, err
			}
			rng, err := rows.of(args[1])
			if err != nil {
				return replayed{}, err
			}
			r, err := admin.Of(db)
			if err == nil {
				err = haveObserver(ctx, r, observer)
			}
			if err == nil {
				err = haveTable(ctx, r, rng.Table)
			}
			if err != nil {
				return replayed{}, err
			}
			did, err := db.Replay(ctx, observer, rng)
			return replayed{
				Observer: admin.Bytes(observer), Table: admin.Bytes(rng.Table), From: admin.Bytes(rng.From), To: admin.Bytes(rng.To),
				Cells: did.Cells, Parked: did.Parked, Waiting: did.Waiting, Resumed: did.Resumed,
			}, err
		}, func(w *page, r replayed) {
			w.line("the observer %v has run again for %d cells; %d runs were parked, %d are to be attempted later", r.Observer, r.Cells, r.Parked, r.Waiting)
			if r.Resumed {
				w.line("this went on with a replay that had begun before")
			}
		})),
	}
	rows.flags(c)
	return c
}
