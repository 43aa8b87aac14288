package rowstore

import (
	"cmp"
	"sort"
	"strings"
)

// Newest returns the newest version of family in column, or nil. The pointer is
// into r.Versions.
func (r *Row) Newest(family Family, column string) *Version {
	i := r.search(family, column)
	if i < len(r.Versions) && r.Versions[i].Family == family && r.Versions[i].Column == column {
		return &r.Versions[i]
	}
	return nil
}

// All returns the versions of family in column, newest first: a part of
// r.Versions.
func (r *Row) All(family Family, column string) []Version {
	i := r.search(family, column)
	j := i
	for j < len(r.Versions) && r.Versions[j].Family == family && r.Versions[j].Column == column {
		j++
	}
	return r.Versions[i:j]
}

// At returns the version at exactly that address, or nil.
func (r *Row) At(family Family, column string, ts Timestamp) *Version {
	for all := r.All(family, column); len(all) > 0; all = all[1:] {
		if all[0].TS == ts {
			return &all[0]
		}
	}
	return nil
}

func (r *Row) search(family Family, column string) int {
	// Most rows answer with one or two versions, where a binary search costs more.
	if len(r.Versions) <= 4 {
		for i := range r.Versions {
			v := &r.Versions[i]
			if v.Family > family || v.Family == family && v.Column >= column {
				return i
			}
		}
		return len(r.Versions)
	}
	return sort.Search(len(r.Versions), func(i int) bool {
		v := &r.Versions[i]
		return v.Family > family || v.Family == family && v.Column >= column
	})
}

// CompareVersions orders versions as Row.Versions has them: by family, column,
// and timestamp, newest first. Values do not count.
func CompareVersions(a, b Version) int {
	if c := cmp.Compare(a.Family, b.Family); c != 0 {
		return c
	}
	if c := strings.Compare(a.Column, b.Column); c != 0 {
		return c
	}
	return cmp.Compare(b.TS, a.TS)
}
