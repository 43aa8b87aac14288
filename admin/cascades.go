package admin

import (
	"context"
	"fmt"
)

// Cascades says whether a database tracks how its changes came about (percolator.DB.TrackCascades).
type Cascades struct {
	// Tracked tells that it does, for good, and From is the moment from which on: what a transaction from before writes says nothing. A moment
	// that has yet to come is a catalog lease away at most.
	Tracked bool  `json:"tracked"`
	From    Stamp `json:"from,omitzero"`
	// Lines say it in words.
	Lines []string `json:"lines"`
}

// Cascades says whether the database tracks cascades, and from when on.
func (r *Reader) Cascades(ctx context.Context) (Cascades, error) {
	c, err := r.load(ctx)
	if err != nil {
		return Cascades{}, called("Cascades", err)
	}
	s := Cascades{Tracked: c.Cascades && c.CascadesFrom != 0, From: Stamp(c.CascadesFrom)}
	switch {
	case !s.Tracked:
		s.Lines = []string{"cascades are not tracked: limits of runs that follow from one another (MaxHops) do not count, and traces end at commits"}
	case c.CascadesFrom > c.now:
		s.Lines = []string{fmt.Sprintf("cascades are tracked from %s on, when every process knows of it", clock(s.From))}
	default:
		s.Lines = []string{fmt.Sprintf("cascades are tracked since %s", clock(s.From))}
	}
	return s, nil
}
