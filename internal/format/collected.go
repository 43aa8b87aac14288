package format

import (
	"encoding/json"
	"fmt"

	"github.com/percolate-go/percolate/percolator/oracle"
)

// Collected says how far collections have come behind the safe points that they published: JSON behind the version byte, beside the catalog. A
// program that does not know it collects by the safe points alone, and neither reads nor changes it. So a safe point that was published last by such a
// program is one of which nothing is said here.
type Collected struct {
	// All is the safe point of the newest collection of all tables that has removed what it could, 0 for none.
	All Timestamp `json:"all,omitempty"`
	// Tables says the same of tables whose safe points are their own, in the order of their names.
	Tables []CollectedTable `json:"tables,omitempty"`
	// Whole is the newest publication by a collection of all tables, and Short that by one of the tables with a short retention.
	Whole Publication `json:"whole,omitzero"`
	Short Publication `json:"short,omitzero"`
}

// CollectedTable says up to which safe point of its own a table was collected.
type CollectedTable struct {
	Name      []byte    `json:"table"` // stored name
	Collected Timestamp `json:"collected"`
}

// Publication says from when on everybody goes by some safe points.
type Publication struct {
	SafePoint Timestamp `json:"safepoint,omitempty"` // of the database
	Points    Timestamp `json:"points,omitempty"`    // the version of the safe points of tables, 0 for none
	Revision  Timestamp `json:"revision,omitempty"`  // of the catalog
	Cleans    Timestamp `json:"cleans,omitempty"`    // the collection resolves all locks from before it, 0 for none
	// Until is the end of the last view of the catalog that was begun before they, and this revision, could be read.
	Until Timestamp `json:"until,omitempty"`
	// Left is until when other workers leave the collection to the one that is at it.
	Left Timestamp `json:"left,omitempty"`
	// Tries is how many other collections have gone on with it.
	Tries int `json:"tries,omitempty"`
}

// Of tells up to which safe point of its own a table was collected. It is All for one of which nothing else is known.
func (c *Collected) Of(table string) Timestamp {
	for i := range c.Tables {
		if t := &c.Tables[i]; string(t.Name) == table {
			return max(c.All, t.Collected)
		}
	}
	return c.All
}

// Point tells up to where the database was collected whose safe point is safe. That is the safe point itself if a program published it that does not
// say what has become of it.
func (c *Collected) Point(safe Timestamp) Timestamp {
	if c.Whole.SafePoint != safe {
		return safe
	}
	return min(safe, c.All)
}

// TablePoint is Point for a table with a safe point of its own, in a version of those of all tables.
func (c *Collected) TablePoint(point TableSafePoint, version Timestamp) TableSafePoint {
	if c.Whole.Points == version || c.Short.Points == version {
		point.SafePoint = min(point.SafePoint, c.Of(string(point.Name)))
	}
	return point
}

// Encode returns the stored bytes.
func (c *Collected) Encode() ([]byte, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encoding how far collections are: %w", err)
	}
	return append([]byte{Version}, b...), nil
}

// DecodeCollected undoes Collected.Encode. An error matches ErrCorrupt or rowstore.ErrFormat.
func DecodeCollected(b []byte) (Collected, error) {
	var c Collected
	if err := checkVersion(b, "how far collections are"); err != nil {
		return c, err
	}
	if err := json.Unmarshal(b[1:], &c); err != nil {
		return c, fmt.Errorf("%w: how far collections are: %w", ErrCorrupt, err)
	}
	bad := c.All > oracle.Max
	for _, p := range []*Publication{&c.Whole, &c.Short} {
		bad = bad || max(p.SafePoint, p.Points, p.Revision, p.Cleans, p.Until, p.Left) > oracle.Max || p.Tries < 0
	}
	for i := range c.Tables {
		t := &c.Tables[i]
		bad = bad || len(t.Name) == 0 || t.Collected > oracle.Max || i > 0 && string(c.Tables[i-1].Name) >= string(t.Name)
	}
	if bad {
		return Collected{}, fmt.Errorf("%w: how far collections are: it does not fit", ErrCorrupt)
	}
	return c, nil
}
