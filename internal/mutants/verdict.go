package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// verdict is how a run of tests ended.
type verdict struct {
	failed bool
	// names are the tests that failed. There may be none: a goroutine that no test waits for panics, or TestMain finds what all of them left.
	names    []string
	hung     bool
	panicked bool
}

// judge runs a command that prints the events of tests. The error is for tests that could not run.
func judge(ctx context.Context, cmd *exec.Cmd, s stage) (verdict, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return verdict{}, ctx.Err()
	}
	v := verdict{failed: true}
	ran, broken := false, ""
	for line := range bytes.Lines(out) {
		var e struct{ Action, Test, Output string }
		if json.Unmarshal(line, &e) != nil {
			continue
		}
		switch {
		case e.Action == "build-fail" || e.Action == "build-output":
			broken += e.Output
		case strings.Contains(e.Output, "test timed out after"):
			v.hung = true
		case strings.HasPrefix(e.Output, "panic: "), strings.HasPrefix(e.Output, "fatal error: "):
			v.panicked = true
		case e.Action == "run":
			ran = true
		case e.Action == "fail" && e.Test != "":
			v.names = append(v.names, e.Test)
		}
	}
	switch {
	case broken != "":
		return verdict{}, fmt.Errorf("it does not compile: %s", strings.TrimSpace(broken))
	case err == nil && !ran:
		return verdict{}, fmt.Errorf("no test of %s matches %q", s.pkg, s.run)
	case err == nil:
		return verdict{}, nil
	case !ran:
		return verdict{}, fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return v, nil
}

// String names the innermost tests that failed, a few of them. It is "" if none did.
func (v verdict) String() string {
	names := slices.Compact(slices.Sorted(slices.Values(v.names)))
	innermost := slices.DeleteFunc(slices.Clone(names), func(n string) bool {
		return slices.ContainsFunc(names, func(o string) bool { return strings.HasPrefix(o, n+"/") })
	})
	const most = 2
	text := strings.Join(innermost[:min(most, len(innermost))], ", ")
	if n := len(innermost) - most; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	switch {
	case !v.failed || text != "":
		return text
	case v.hung:
		return "a test that hangs"
	case v.panicked:
		return "a test that panics"
	}
	return "a test program that fails, though none of its tests does"
}
