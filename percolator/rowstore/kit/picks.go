package kit

import (
	"strings"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Picks finds those of the selectors of a read, or of a scan, that may select from a column. A scan may name thousands of columns, and a row may
// have them all: where there are many selectors, each column is found by a map. It may be used concurrently.
type Picks struct {
	list []rowstore.Selector
	at   map[string][]int // by column, where they are too many to look at each
}

// fewPicks are found faster without a map.
const fewPicks = 32

// PicksOf makes it for a list of selectors, which must not change.
func PicksOf(list []rowstore.Selector) Picks {
	p := Picks{list: list}
	if len(list) > fewPicks {
		p.at = make(map[string][]int, len(list))
		for i := range list {
			p.at[list[i].Column] = append(p.at[list[i].Column], i)
		}
	}
	return p
}

// Of appends the places in the list of those selectors that name the column, or all columns. The order is not said.
func (p *Picks) Of(to []int, column string) []int {
	if p.at != nil {
		return append(append(to, p.at[column]...), p.at[rowstore.AllColumns]...)
	}
	for i := range p.list {
		if c := p.list[i].Column; c == column || c == rowstore.AllColumns {
			to = append(to, i)
		}
	}
	return to
}

// Name returns a column's name in memory of its own: as a selector has it, or a copy. The one that is given may lie in something large.
func (p *Picks) Name(column string) string {
	if p.at != nil {
		if i := p.at[column]; len(i) > 0 {
			return p.list[i[0]].Column
		}
		return strings.Clone(column)
	}
	for i := range p.list {
		if p.list[i].Column == column {
			return p.list[i].Column
		}
	}
	return strings.Clone(column)
}
