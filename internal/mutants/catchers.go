package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// catchers are what caught mutants. All of it must pass where there is no mutant, or it proves nothing. The zero value is empty.
type catchers struct {
	mu sync.Mutex
	// tests are the outermost tests that failed.
	tests map[program]map[string]bool
	// whole are stages that failed, and nobody knows by which test.
	whole map[program]map[string]stage // by what they run
}

// program is a program of tests with its arguments: of a package into which mutants were woven, or of one as it is.
type program struct {
	pkg, args string
	woven     bool
}

// catcher is something to run without a mutant.
type catcher struct {
	stage

	woven bool
}

func (c *catchers) note(s stage, woven bool, v verdict) {
	p := program{pkg: s.pkg, args: strings.Join(s.args, " "), woven: woven}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tests == nil {
		c.tests, c.whole = map[program]map[string]bool{}, map[program]map[string]stage{}
	}
	if len(v.names) == 0 {
		if c.whole[p] == nil {
			c.whole[p] = map[string]stage{}
		}
		c.whole[p][s.run] = s
		return
	}
	if c.tests[p] == nil {
		c.tests[p] = map[string]bool{}
	}
	for _, n := range v.names {
		outermost, _, _ := strings.Cut(n, "/")
		c.tests[p][regexp.QuoteMeta(outermost)] = true
	}
}

// all gives what to run, in one order.
func (c *catchers) all() []catcher {
	var all []catcher
	for p, names := range c.tests {
		var sorted []string
		for n := range names {
			sorted = append(sorted, n)
		}
		slices.Sort(sorted)
		s := stage{pkg: p.pkg, run: "^(" + strings.Join(sorted, "|") + ")$", args: strings.Fields(p.args), limit: wholeTimeout}
		all = append(all, catcher{s, p.woven})
	}
	for p, stages := range c.whole {
		for _, s := range stages {
			all = append(all, catcher{s, p.woven})
		}
	}
	slices.SortFunc(all, func(a, b catcher) int {
		return cmp.Or(strings.Compare(a.pkg, b.pkg), strings.Compare(a.run, b.run), slices.Compare(a.args, b.args), strings.Compare(fmt.Sprint(a.woven), fmt.Sprint(b.woven)))
	})
	return all
}

// catchersPass says whether all that caught mutants passes where there is none: with those that are woven in turned off, and else on the tree as it is.
func (l *lab) catchersPass(ctx context.Context) error {
	var failed []error
	for _, c := range l.catchers.all() {
		var v verdict
		var err error
		if c.woven {
			v, err = l.binaries.test(ctx, c.stage, 0)
		} else {
			v, err = l.goTest(ctx, c.stage, "")
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			failed = append(failed, fmt.Errorf("running the tests of %s without a mutant: %w", c.pkg, err))
		case v.failed:
			failed = append(failed, fmt.Errorf("tests of %s fail without a mutant too: %s", c.pkg, v))
		}
	}
	return errors.Join(failed...)
}
