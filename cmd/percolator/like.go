package main

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
)

// missing says that what was named is not there, and what there is that is like it.
func missing(what, name string, known []string) error {
	best, least := "", max(2, len(name)/3)+1
	for _, k := range known {
		if d := distance(strings.ToLower(name), strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	shown := admin.Bytes(name).String()
	switch {
	case best != "":
		return fmt.Errorf("%w: there is no %s named %q; did you mean %q?", errNotFound, what, shown, admin.Bytes(best).String())
	case len(known) == 0:
		return fmt.Errorf("%w: there is no %s named %q, and none at all", errNotFound, what, shown)
	case len(known) <= 8:
		var all []string
		for _, k := range known {
			all = append(all, admin.Bytes(k).String())
		}
		return fmt.Errorf("%w: there is no %s named %q (there are: %s)", errNotFound, what, shown, strings.Join(all, ", "))
	}
	return fmt.Errorf("%w: there is no %s named %q", errNotFound, what, shown)
}

// distance is how many letters are to be changed, added, taken away or swapped to make one word of the other.
func distance(a, b string) int {
	before, last, now := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		now[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			now[j] = min(last[j]+1, now[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				now[j] = min(now[j], before[j-2]+1)
			}
		}
		before, last, now = last, now, before
	}
	return last[len(b)]
}

// haveTable returns an error unless the table holds something, or the catalog knows it.
func haveTable(ctx context.Context, r *admin.Reader, name string) error {
	if name == "" {
		return usage("the table's name is empty")
	}
	tables, more, err := r.Tables(ctx, false, 0)
	if err != nil {
		return err
	}
	var known []string
	for _, t := range tables {
		known = append(known, string(t.Name))
	}
	if more || slices.Contains(known, name) {
		return nil
	}
	return missing("table", name, known)
}

// haveObserver returns an error unless an observer is registered that has the name, or had it.
func haveObserver(ctx context.Context, r *admin.Reader, name string) error {
	observers, err := r.Observers(ctx, 1)
	if err != nil {
		return err
	}
	var known []string
	for _, o := range observers {
		for _, n := range append(o.Aliases, o.Name) {
			if !slices.Contains(known, string(n)) {
				known = append(known, string(n))
			}
		}
	}
	if slices.Contains(known, name) {
		return nil
	}
	return missing("observer", name, known)
}

func oracleTime(t time.Time) percolator.Timestamp { return max(oracle.FromTime(t), 1) - 1 }

// version is that of the module, or of the source that the command was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return info.Main.Version
}
