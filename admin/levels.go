package admin

import (
	"context"
	"fmt"

	"github.com/percolate-go/percolate/internal/format"
)

// Levels says in which versions of the formats a database is stored, and what stands in the way of the next ones. A
// store whose layout is of another version than the program writes cannot be opened as it is: see rowstore.LayoutError.
type Levels struct {
	// Backend and Layout are those of the store, as it says itself. Layout is 0 where it says none, as a router of stores.
	Backend string `json:"backend,omitempty"`
	Layout  int    `json:"layout,omitempty"`
	// Catalog is the version of the stored catalog, New the one that a new database begins with, and Known the newest that this
	// program knows. What is between New and Known comes with the first use of what needs it.
	Catalog int `json:"catalog"`
	New     int `json:"new"`
	Known   int `json:"known"`
	// Processes have the database open, or have died without closing it. Older of them run programs that know no catalog
	// of version New; those would be refused once it is raised.
	Processes int `json:"processes"`
	Older     int `json:"older"`
	// Features are what came with each version, the oldest first.
	Features []LevelFeature `json:"features"`
	// Raise tells that the catalog is to be raised to New, and Lines say everything in words.
	Raise bool     `json:"raise"`
	Lines []string `json:"lines"`
}

// LevelFeature is something that came with a version of the catalog.
type LevelFeature struct {
	Version int    `json:"version"`
	What    string `json:"what"`
	// Used tells that the database uses it, or once did, so that programs which do not know the version are refused.
	Used bool `json:"used"`
}

// Levels reads in which versions a database is stored.
func (r *Reader) Levels(ctx context.Context) (Levels, error) {
	c, err := r.load(ctx)
	if err != nil {
		return Levels{}, called("Levels", err)
	}
	l := Levels{
		Catalog: c.version, New: format.HintedVersion, Known: format.CatalogVersion, Processes: c.processes, Older: c.old,
		Features: featuresOf(&c.Catalog), Raise: !c.Hinted || c.HintsFrom == 0,
	}
	if r.report != nil {
		about, err := r.report(ctx)
		if err != nil {
			return Levels{}, called("Levels", err)
		}
		l.Backend, l.Layout = about.Backend, about.Layout
	}
	l.say()
	return l, nil
}

func featuresOf(c *format.Catalog) []LevelFeature {
	return []LevelFeature{
		{format.TablesVersion, "settings of tables", c.ByTable},
		{format.ControlledVersion, "observers of old values", c.Changes},
		{format.ControlledVersion, "holds and paused observers", c.Controlled},
		{format.HintedVersion, "collections by hints", c.Hinted},
		{format.TimersVersion, "timers", c.Timers},
		{format.IndexesVersion, "indexes", c.Indexed},
		{format.IndexesVersion, "replays", c.Replays},
		{format.IndexesVersion, "rows deleted as a whole", c.RowDeletes},
		{format.RenamedVersion, "renamed observers", c.Renamed},
		{format.ErasedVersion, "erased ranges", c.Erased},
		{format.CascadesVersion, "cascades", c.Cascades},
	}
}

func (l *Levels) say() {
	say := func(s string, args ...any) { l.Lines = append(l.Lines, fmt.Sprintf(s, args...)) }
	say("the catalog has version %d; new databases begin with version %d, and this program knows versions up to %d", l.Catalog, l.New, l.Known)
	switch {
	case l.Older > 0 && l.Raise:
		say("%d of %d processes run programs that know no catalog of version %d, or died: replace them, and then raise the catalog", l.Older, l.Processes, l.New)
	case l.Older > 0:
		say("%d of %d processes run programs that know no catalog of version %d, or died: they commit nothing more, and end with errors", l.Older, l.Processes, l.New)
	case l.Raise:
		say("no older program has the database open: the catalog can be raised to version %d, from which on older programs are refused", l.New)
	}
	if l.Catalog < l.Known {
		say("the first use of what is not used yet raises it further; programs that do not know the version are refused from then on")
	}
}
