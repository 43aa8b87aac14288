package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/percolator"
)

func (a *app) cascadesCommand() *cobra.Command {
	text := func(w *page, c admin.Cascades) { lines(w, c.Lines) }
	status := &cobra.Command{
		Use: "status", Short: "Show whether cascades are tracked", Args: exactly(),
		RunE: look(a, func(ctx context.Context, r *admin.Reader, _ []string) (admin.Cascades, error) { return r.Cascades(ctx) }, text),
	}
	track := &cobra.Command{
		Use: "track", Short: "Track cascades, for good", Args: exactly(),
		Long: "Has each change say how many runs of observers lie between it and a write from outside, and which sampled span made it. From then\n" +
			"on limits of such runs (MaxHops) count, also the default one, and a cascade is one trace. It takes a catalog lease. There is no way\n" +
			"back, and programs of versions that do not know of it are refused, also those that have the data open.",
		RunE: change(a, func(ctx context.Context, db *percolator.DB, _ []string) (admin.Cascades, error) {
			if err := db.TrackCascades(ctx); err != nil {
				return admin.Cascades{}, err
			}
			r, err := admin.Of(db)
			if err != nil {
				return admin.Cascades{}, err
			}
			return r.Cascades(ctx)
		}, text),
	}
	return listed(&cobra.Command{Use: "cascades", Short: "How changes came about: status, track"}, status, track)
}
