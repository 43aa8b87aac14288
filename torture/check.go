package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/percolate-go/percolate/checker"
	"github.com/percolate-go/percolate/percolator"
)

// historyChecker is one of the two checkers of package checker.
type historyChecker struct {
	name, about string
	check       func(h checker.History) (*checker.Report, error)
}

func checkers() []historyChecker {
	return []historyChecker{
		{
			name: "timestamps", about: "package checker, by the timestamps",
			check: func(h checker.History) (*checker.Report, error) {
				return checker.CheckTimestamps(h, checker.TimestampOptions{})
			},
		},
		{
			name: "values", about: "package checker, by the values alone",
			check: func(h checker.History) (*checker.Report, error) {
				return checker.CheckValues(h, checker.ValueOptions{})
			},
		},
	}
}

// findings are what a checker reports: the number of violations, and the report in
// words.
func findings(rep *checker.Report) (n int, text []string, err error) {
	for _, count := range rep.Counts {
		n += count
	}
	if n == 0 {
		return 0, nil, nil
	}
	var b strings.Builder
	err = rep.Write(&b)
	return n, []string{b.String()}, err
}

// judgeFile runs the checkers on a history that a run has kept.
func judgeFile(path string, out io.Writer) error {
	h, err := checker.ReadFiles(path)
	if err != nil {
		return err
	}
	failed := false
	for _, c := range checkers() {
		rep, err := c.check(h)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		if err := rep.Write(out); err != nil {
			return err
		}
		failed = failed || !rep.OK()
	}
	if failed {
		return errFailed
	}
	return nil
}

// export is the history in the form of package checker, where values are numbers:
// equal values of ours are equal numbers there, and 0 stands for none of them.
func (h *history) export() checker.History {
	numbers := map[string]int64{}
	number := func(value string) int64 {
		n, ok := numbers[value]
		if !ok {
			n = int64(len(numbers)) + 1
			numbers[value] = n
		}
		return n
	}
	processes := map[[2]any]int{}
	next := 0
	out := make(checker.History, 0, len(h.Txns))
	for _, t := range h.Txns {
		x := checker.Txn{
			Invoke: t.Began, Complete: t.Ended,
			Start: percolator.Timestamp(t.Start), Commit: percolator.Timestamp(t.Commit),
			AsOf: t.AsOf, Error: t.Reason,
		}
		switch t.Outcome {
		case committed:
			x.Outcome = checker.Committed
		case aborted:
			x.Outcome = checker.Aborted
		default:
			x.Complete = 0
		}
		if t.Serial {
			x.Isolation = checker.Serializable
		}
		if strings.HasPrefix(t.Workload, observerPrefix) {
			// Several runs go on at once, and nobody has noted when they began: the
			// timestamp was drawn before the function was called.
			x.AsOf = true
			x.Process = next
			next++
		} else {
			key := [2]any{t.Process, t.Thread}
			p, ok := processes[key]
			if !ok {
				p = next
				processes[key] = p
				next++
			}
			x.Process = p
		}
		for _, o := range t.Ops {
			if y, ok := exportOp(o, number); ok {
				x.Ops = append(x.Ops, y)
			}
		}
		out = append(out, x)
	}
	return out
}

// exportOp is an operation in the form of package checker. ok is false for one that changes
// nothing that anybody reads.
func exportOp(o op, number func(string) int64) (y checker.Op, ok bool) {
	y = checker.Op{Key: o.Cell, Locks: o.Locks}
	list := strings.HasPrefix(o.Cell, tableAppend)
	switch {
	case o.Kind == opRead && list:
		y.Kind, y.List = checker.ReadList, elements(o.Value, number)
	case o.Kind == opRead:
		y.Kind, y.Absent = checker.Read, o.Value == nil
	case o.Kind == opAppend:
		y.Kind, y.Value = checker.Append, number(o.Element)
	case o.Kind == opWrite:
		y.Kind = checker.Write
	case o.Kind == opDelete:
		y.Kind, y.Absent = checker.Write, true
	default:
		return y, false // a notification
	}
	if !list && o.Value != nil {
		y.Value = number(*o.Value)
	}
	return y, true
}

// elements returns the elements of a list as it is stored, nil for an absent list.
func elements(value *string, number func(string) int64) []int64 {
	if value == nil {
		return nil
	}
	var all []int64
	for e := range strings.SplitSeq(*value, ",") {
		all = append(all, number(e))
	}
	return all
}
