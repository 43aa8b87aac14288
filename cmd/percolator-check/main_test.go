package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const testdata = "../../checker/testdata/"

func TestRun(t *testing.T) {
	t.Parallel()
	list := filepath.Join(testdata, "values", "G2-item.list.bad.jsonl")
	missed := filepath.Join(testdata, "timestamps", "missed-change.bad.jsonl")
	for _, test := range []struct {
		args  string
		stdin string
		code  int
		want  string
	}{
		{args: list, want: "permitted: G2-item"},
		{args: "-isolation si -model list-append " + list, want: "no violation"},
		{args: "-isolation serializable " + list, code: 1, want: "VIOLATION G2-item: 1"},
		{args: "-model register " + list, code: 2, want: "model register has not"},
		{args: "-model queue " + list, code: 2, want: "not list-append or register"},
		{args: "-isolation chaos " + list, code: 2, want: "not si or serializable"},
		{args: "-timestamps maybe " + list, code: 2, want: "not yes, no or auto"},
		{args: "-timestamps yes " + list, code: 2, want: "no start timestamp"},
		{args: "-observe o=x " + list, code: 2, want: "-observe needs timestamps"},
		{args: "-observe x " + list, code: 2, want: "NAME=GLOB"},
		{args: "-nonsense", code: 2, want: "usage"},
		{args: "-h", want: "usage"},
		{args: "nowhere.jsonl", code: 2, want: "nowhere.jsonl"},
		{args: "", code: 2, want: "empty"},
		{args: "", stdin: "x", code: 2, want: "operation 1"},
		{args: "", stdin: `{"process":1,"type":"invoke","value":[["w","x",1]]}{"process":1,"type":"ok"}`, want: "no violation"},
		{args: missed, want: "timestamps: 3 transactions committed"},
		{args: "-idle -observe o=x " + missed, code: 1, want: "VIOLATION missed-change: 1"},
		{args: "-export edn " + list, want: ":type :invoke,:f :txn"},
		{args: "-export json " + list, want: `[{"index":0,"process":0,"type":"invoke"`},
		{args: "-export xml " + list, code: 2, want: "not edn or json"},
		// A flag that is wrong, or could find nothing, is no judgement: it is told before anything is read.
		{args: "-export edn -timestamps bogus " + list, code: 2, want: "not yes, no or auto"},
		{args: "-export edn -model queue nowhere.jsonl", code: 2, want: "not list-append or register"},
		{args: "-export xml nowhere.jsonl", code: 2, want: "not edn or json"},
		{args: "-timestamps bogus nowhere.jsonl", code: 2, want: "not yes, no or auto"},
		{args: "-examples -3 " + missed, code: 2, want: "-examples is -3"},
		{args: "-examples 0 " + missed, want: "no violation"},
		{args: "-idle " + missed, code: 2, want: "-idle judges observers: name them with -observe"},
		{args: "-idle -export edn " + missed, code: 2, want: "-idle judges observers"},
		{args: "-idle -timestamps no " + missed, code: 2, want: "-idle judges observers"},
		{args: "-idle -observe o=x -timestamps no " + missed, code: 2, want: "-observe needs timestamps"},
		{args: "-observe o=x -timestamps no nowhere.jsonl", code: 2, want: "-observe needs timestamps"},
	} {
		t.Run(test.args+test.stdin, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			require.Equal(t, test.code, run(strings.Fields(test.args), strings.NewReader(test.stdin), &out, &out), out.String())
			require.Contains(t, out.String(), test.want)
		})
	}
}
