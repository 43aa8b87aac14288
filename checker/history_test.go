package checker_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/percolate-go/percolate/checker"
	"github.com/percolate-go/percolate/percolator/oracle"
)

// anyHistory draws a history that is well-formed and otherwise makes no sense.
func anyHistory(t *rapid.T) checker.History {
	key := rapid.OneOf(rapid.StringMatching(`[a-z]/[0-9]{1,2}`), rapid.Map(rapid.String(), func(s string) string { return strings.ToValidUTF8(s, "?") }))
	registers := rapid.SliceOfN(rapid.Map(key, func(s string) string { return "r" + s }), 1, 3).Draw(t, "registers")
	lists := rapid.SliceOfN(rapid.Map(key, func(s string) string { return "l" + s }), 1, 3).Draw(t, "lists")
	now := int64(1)
	tick := func() int64 {
		now += int64(rapid.IntRange(0, 3).Draw(t, "tick"))
		return now
	}
	op := rapid.Custom(func(t *rapid.T) checker.Op {
		op := checker.Op{Kind: checker.OpKind(rapid.IntRange(0, 3).Draw(t, "kind"))}
		switch op.Kind {
		case checker.Read, checker.Write:
			op.Key = rapid.SampledFrom(registers).Draw(t, "key")
			if op.Absent = rapid.Bool().Draw(t, "absent"); !op.Absent {
				op.Value = rapid.Int64().Draw(t, "value")
			}
		case checker.ReadList:
			op.Key = rapid.SampledFrom(lists).Draw(t, "key")
			if l := rapid.SliceOf(rapid.Int64()).Draw(t, "list"); len(l) > 0 {
				op.List = l
			}
		case checker.Append:
			op.Key = rapid.SampledFrom(lists).Draw(t, "key")
			op.Value = rapid.Int64().Draw(t, "element")
		}
		if op.Kind == checker.Read || op.Kind == checker.ReadList {
			op.Locks = rapid.Bool().Draw(t, "locks")
		}
		return op
	})
	return rapid.SliceOf(rapid.Custom(func(t *rapid.T) checker.Txn {
		txn := checker.Txn{
			Process:   rapid.IntRange(-2, 3).Draw(t, "process"),
			Invoke:    tick(),
			Start:     oracle.Timestamp(rapid.Uint64Range(0, uint64(oracle.Max)).Draw(t, "start")),
			Outcome:   checker.Outcome(rapid.IntRange(0, 2).Draw(t, "outcome")),
			Isolation: checker.Isolation(rapid.IntRange(0, 1).Draw(t, "isolation")),
			AsOf:      rapid.Bool().Draw(t, "as of"),
			Ops:       rapid.SliceOf(op).Draw(t, "ops"),
			Error:     strings.ToValidUTF8(rapid.String().Draw(t, "error"), "?"),
		}
		if txn.Outcome != checker.Unknown {
			txn.Complete = tick()
		}
		if txn.Outcome == checker.Committed {
			txn.Commit = oracle.Timestamp(rapid.Uint64Range(0, uint64(oracle.Max)).Draw(t, "commit"))
		}
		if rapid.Bool().Draw(t, "run") {
			txn.Run = &checker.Run{Observer: "o", Key: rapid.SampledFrom(registers).Draw(t, "observed")}
		}
		if len(txn.Ops) == 0 {
			txn.Ops = nil
		}
		return txn
	})).Draw(t, "history")
}

// What is written is read again as it was, by file and by recorder.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := anyHistory(t)
		var b bytes.Buffer
		require.NoError(t, checker.WriteHistory(&b, h))
		got, err := checker.ReadHistory(&b)
		require.NoError(t, err)
		requireEqual(t, h, got)

		var lines bytes.Buffer
		for name, rec := range map[string]*checker.Recorder{"lines": checker.NewRecorder(&lines, nil), "memory": checker.NewRecorder(nil, nil)} {
			for i := range h {
				record(t, rec, &h[i], i%2 == 0)
			}
			got := rec.History()
			if name == "lines" {
				require.Nil(t, got)
				got, err = checker.ReadHistory(&lines)
				require.NoError(t, err)
			}
			require.Len(t, got, len(h))
			for i := range got {
				require.LessOrEqual(t, h[i].Invoke, got[i].Invoke)
				got[i].Invoke, got[i].Complete = h[i].Invoke, h[i].Complete
			}
			requireEqual(t, h, got)
		}
	})
}

func requireEqual(t *rapid.T, want, got checker.History) {
	require.Len(t, got, len(want))
	for i := range want {
		require.Equal(t, want[i], got[i], "transaction %d", i)
	}
}

func record(t *rapid.T, rec *checker.Recorder, txn *checker.Txn, committing bool) {
	r := rec.Begin(txn.Process)
	r.Start(txn.Start)
	r.Isolation(txn.Isolation)
	if txn.AsOf {
		r.AsOf()
	}
	if txn.Run != nil {
		r.Run(txn.Run.Observer, txn.Run.Key)
	}
	for _, op := range txn.Ops {
		switch {
		case op.Kind == checker.Read && op.Locks:
			r.ReadForUpdate(op.Key, op.Value, !op.Absent)
		case op.Kind == checker.Read:
			r.Read(op.Key, op.Value, !op.Absent)
		case op.Kind == checker.Write && op.Absent:
			r.Delete(op.Key)
		case op.Kind == checker.Write:
			r.Write(op.Key, op.Value)
		case op.Kind == checker.ReadList && !op.Locks:
			r.ReadList(op.Key, op.List)
		case op.Kind == checker.Append:
			r.Append(op.Key, op.Value)
		default:
			r.Op(op)
		}
	}
	if committing {
		require.NoError(t, r.Committing())
		require.NoError(t, r.Committing())
	}
	var err error
	if txn.Error != "" {
		err = errors.New(txn.Error)
	}
	switch txn.Outcome {
	case checker.Committed:
		require.NoError(t, r.Committed(txn.Commit))
		txn.Error = ""
	case checker.Aborted:
		require.NoError(t, r.Aborted(err))
	case checker.Unknown:
		require.NoError(t, r.Unknown(err))
	}
}

// A program that dies while it commits leaves a transaction of unknown outcome.
func TestDeathWhileCommitting(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "history")
	f, err := os.Create(path)
	require.NoError(t, err)
	defer f.Close()
	rec := checker.NewRecorder(f, nil)
	one := rec.Begin(1)
	one.Start(10)
	one.Write("x", 1)
	require.NoError(t, one.Committing())
	two := rec.Begin(2)
	two.Read("x", 0, false)
	// As if the machine had stopped in the middle of a line.
	_, err = f.WriteString(`{"process":1,"type":"ok","f":"txn","ti`)
	require.NoError(t, err)

	h, err := checker.ReadFiles(path)
	require.NoError(t, err)
	require.Len(t, h, 1)
	require.Equal(t, checker.Unknown, h[0].Outcome)
	require.Equal(t, oracle.Timestamp(10), h[0].Start)
	require.Equal(t, []checker.Op{{Kind: checker.Write, Key: "x", Value: 1}}, h[0].Ops)
	require.Zero(t, h[0].Complete)

	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(path, link))
	for _, same := range []string{path, filepath.Dir(path) + "/./history", link} {
		_, err = checker.ReadFiles(path, same)
		require.ErrorContains(t, err, "are the same file")
	}

	again := filepath.Join(t.TempDir(), "again")
	require.NoError(t, os.WriteFile(again, []byte(`{"process":1,"type":"invoke","time":1,"value":[]}`), 0o600))
	_, err = checker.ReadFiles(path, again)
	require.ErrorContains(t, err, "process 1 is in")
	_, err = checker.ReadFiles(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

type failing struct{ after int }

func (f *failing) Write(p []byte) (int, error) {
	if f.after--; f.after < 0 {
		return 0, errors.New("the disk is full")
	}
	return len(p), nil
}

func TestWriterFails(t *testing.T) {
	t.Parallel()
	rec := checker.NewRecorder(&failing{after: 1}, nil)
	one := rec.Begin(1)
	require.NoError(t, one.Committing())
	require.ErrorContains(t, one.Committed(1), "the disk is full")
	two := rec.Begin(1)
	require.ErrorContains(t, two.Committing(), "the disk is full")
	require.ErrorContains(t, rec.Err(), "the disk is full")
	require.Error(t, checker.WriteHistory(&failing{}, checker.History{{Process: 1}}))
	require.Error(t, checker.Export(&failing{}, checker.History{{Process: 1}}, checker.EDN))
}

func TestRecorderConcurrently(t *testing.T) {
	t.Parallel()
	const processes, each = 8, 50
	var b bytes.Buffer
	rec := checker.NewRecorder(&b, nil)
	var wg sync.WaitGroup
	for p := range processes {
		wg.Go(func() {
			for i := range each {
				r := rec.Begin(p)
				r.Write(fmt.Sprint(p), int64(i))
				if err := r.Committing(); err != nil {
					t.Error(err)
				}
				if err := r.Committed(oracle.Timestamp(i + 1)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	h, err := checker.ReadHistory(&b)
	require.NoError(t, err)
	require.Len(t, h, processes*each)
	for i := range h {
		require.Equal(t, checker.Committed, h[i].Outcome)
	}
}

// Histories of other systems, in the forms in which they are found.
func TestReadOthers(t *testing.T) {
	t.Parallel()
	h, err := checker.ReadHistory(strings.NewReader(`[{"index":0,"process":"nemesis","type":"info","f":"kill","value":{"a":[1,"}"]}},
{"index":1,"process":1,"type":"invoke","value":[["append",253,1],["r","x",null]]},
{"index":2,"process":0,"type":"invoke","f":"txn","value":[["w","y",2],["r","y",null]],"more":{"a":[true,false,null,-1.5e3]}},
{"index":3,"process":0,"type":"info","f":"txn","value":[["w","y",2],["r","y",null]],"error":["timeout",1]},
{"index":4,"process":1,"type":"ok","value":[["append",253,1],["r","\u0078",null],["r",253,[1]],["r",7,null]]}]
`))
	require.NoError(t, err)
	require.Equal(t, checker.History{
		{Process: 1, Invoke: 2, Complete: 5, Outcome: checker.Committed, Ops: []checker.Op{
			{Kind: checker.Append, Key: "253", Value: 1}, {Kind: checker.Read, Key: "x", Absent: true}, {Kind: checker.ReadList, Key: "253", List: []int64{1}}, {Kind: checker.Read, Key: "7", Absent: true},
		}},
		{Process: 0, Invoke: 3, Ops: []checker.Op{{Kind: checker.Write, Key: "y", Value: 2}}},
	}, h)

	for text, want := range map[string]string{
		`x`:                                    "'x' where an object should begin",
		`{"type":"ok"}`:                        "no process",
		`{"process":1,"type":"ok","value":[]}`: "has no transaction",
		`{"process":1,"type":"maybe","value":[]}`:                                                                       "has no transaction",
		`{"process":1,"type":"invoke","f":"transfer"}`:                                                                  `f is "transfer"`,
		`{"process":1,"type":"invoke","value":[["cas","x",1]]}`:                                                         `value 1: unknown operation "cas"`,
		`{"process":1,"type":"invoke","value":[["w","x"]]}`:                                                             "three elements",
		`{"process":1,"type":"invoke","value":[["w","x",1.5]]}`:                                                         "not an integer",
		`{"process":1,"type":"invoke","value":[["w","x",[1]]]}`:                                                         `"w" of a list`,
		`{"process":1,"type":"invoke","value":[["append","x",null]]}`:                                                   "append of null",
		`{"process":1,"type":"invoke","value":[["append","x",1],["w","x",1]]}`:                                          "used as a register and as a list",
		`{"process":1,"type":"invoke","time":5}{"process":1,"type":"ok"}`:                                               "some operations have a time and some have none",
		`{"process":1,"type":"invoke","time":5}{"process":1,"type":"ok","time":4}`:                                      "before it invokes it",
		`{"process":1,"type":"invoke","isolation":"none"}`:                                                              `unknown isolation "none"`,
		`{"process":1,"type":"invoke","start":-1}`:                                                                      "not a timestamp",
		`{"process":1,"type":"invoke","asof":1}`:                                                                        "false expected",
		`{"process":1,"type" "invoke"}`:                                                                                 `'"' where ':' should be`,
		`{"process":1,"x":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`:                                 "nested deeper",
		`{"process":1,"type":"invoke"}` + "\n" + `{"process":1,"type":"invoke"}` + "\n" + `{"process":2,"type":"fail"}`: "operation 3",
		`{"process":99999999999999999999,"type":"invoke"}`:                                                              "not an integer",
		`{"process":1,"x":tru}`:                                                                                         "true expected",
		`{"process":1,"x":}`:                                                                                            "no value",
		`{"process":1]`:                                                                                                 "where",
	} {
		_, err := checker.ReadHistory(strings.NewReader(text))
		require.ErrorContains(t, err, want, text)
	}
}

// A completion takes the place of what its own invocation said, also where invocations of others follow that one.
func TestReadsOfNothingOfSeveralProcesses(t *testing.T) {
	t.Parallel()
	invoke := `{"process":%d,"type":"invoke","value":[["r",%q,null,"absent"]]}`
	h, err := checker.ReadHistory(strings.NewReader(fmt.Sprintf(invoke, 1, "x") + fmt.Sprintf(invoke, 2, "x") + fmt.Sprintf(invoke, 3, "x") +
		`{"process":1,"type":"ok","value":[]}{"process":2,"type":"ok","value":[["r","x",[1]]]}`))
	require.NoError(t, err)
	require.Len(t, h, 3)
	require.Empty(t, h[0].Ops)
	require.Equal(t, []checker.Op{{Kind: checker.ReadList, Key: "x", List: []int64{1}}}, h[1].Ops)
	require.Equal(t, []checker.Op{{Kind: checker.ReadList, Key: "x"}}, h[2].Ops)

	h, err = checker.ReadHistory(strings.NewReader(fmt.Sprintf(invoke, 1, "x") + fmt.Sprintf(invoke, 2, "x") +
		`{"process":1,"type":"ok","value":[["w","y",7]]}{"process":2,"type":"ok","value":[["r","x",[1]]]}`))
	require.NoError(t, err)
	require.Equal(t, []checker.Op{{Kind: checker.Write, Key: "y", Value: 7}}, h[0].Ops)
}

// A completion whose value is null says nothing of the operations, as one without a value: what the invocation said holds.
func TestCompletionWithNull(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"info", "ok", "fail"} {
		for _, value := range []string{"", `,"value":null`, `,"value": null `} {
			h, err := checker.ReadHistory(strings.NewReader(`{"process":1,"type":"invoke","time":1,"value":[["append","x",1]]}{"process":1,"type":"` + kind + `","time":2` + value + `}`))
			require.NoError(t, err)
			require.Equal(t, []checker.Op{{Kind: checker.Append, Key: "x", Value: 1}}, h[0].Ops, "%s%s", kind, value)
		}
	}
	h, err := checker.ReadHistory(strings.NewReader(`{"process":1,"type":"invoke","value":null}{"process":1,"type":"ok","value":[["w","x",1]]}`))
	require.NoError(t, err)
	require.Equal(t, []checker.Op{{Kind: checker.Write, Key: "x", Value: 1}}, h[0].Ops)
}

// A clock may begin at 0, as one of a simulation does, and may stand still there.
func TestClockFromZero(t *testing.T) {
	t.Parallel()
	for name, step := range map[string]int64{"it goes on": 1, "it stands still": 0} {
		now := -step
		clock := func() int64 { now += step; return now }
		var lines bytes.Buffer
		kept, written := checker.NewRecorder(nil, clock), checker.NewRecorder(&lines, clock)
		for _, rec := range []*checker.Recorder{kept, written} {
			now = -step
			for i := range 2 {
				r := rec.Begin(i)
				r.Start(oracle.Timestamp(10*i + 1))
				r.Write("x", int64(i))
				require.NoError(t, r.Committing())
				require.NoError(t, r.Committed(oracle.Timestamp(10*i+2)))
			}
			require.NoError(t, rec.Begin(2).Unknown(nil))
		}
		h, err := checker.ReadHistory(&lines)
		require.NoError(t, err, name)
		require.Equal(t, kept.History(), h, name)
		if step == 0 {
			continue // a history whose times are all 0 has none
		}
		require.NoError(t, checker.WriteHistory(&lines, h))
		again, err := checker.ReadHistory(&lines)
		require.NoError(t, err, name)
		require.Equal(t, h, again, name)
		var exported strings.Builder
		require.NoError(t, checker.Export(&exported, h, checker.JSON))
		require.Contains(t, exported.String(), `"time":0`)
	}
}

func TestExport(t *testing.T) {
	t.Parallel()
	h := checker.History{
		{Process: 1, Invoke: 10, Complete: 30, Outcome: checker.Committed, Ops: []checker.Op{{Kind: checker.Append, Key: "a b", Value: 1}, {Kind: checker.ReadList, Key: "a b", List: []int64{1}}}},
		{Process: 0, Invoke: 20, Ops: []checker.Op{{Kind: checker.Append, Key: "x", Value: 2}, {Kind: checker.ReadList, Key: "x"}}},
		{Process: 0, Invoke: 30, Complete: 40, Outcome: checker.Aborted, Ops: []checker.Op{{Kind: checker.Append, Key: "x", Value: 3}}},
		{Process: 0, Invoke: 31, Complete: 35, Outcome: checker.Committed, AsOf: true},
	}
	var b strings.Builder
	require.NoError(t, checker.Export(&b, h, checker.JSON))
	require.Equal(t, `[{"index":0,"process":1,"type":"invoke","f":"txn","time":10,"value":[["append","a b",1],["r","a b",null]]},
{"index":1,"process":0,"type":"invoke","f":"txn","time":20,"value":[["append","x",2],["r","x",null]]},
{"index":2,"process":2,"type":"invoke","f":"txn","time":30,"value":[["append","x",3]]},
{"index":3,"process":1,"type":"ok","f":"txn","time":30,"value":[["append","a b",1],["r","a b",[1]]]},
{"index":4,"process":2,"type":"fail","f":"txn","time":40,"value":[["append","x",3]]},
{"index":5,"process":0,"type":"info","f":"txn","value":[["append","x",2],["r","x",null]]}]
`, b.String())
	b.Reset()
	require.NoError(t, checker.Export(&b, h, checker.EDN))
	lines := strings.Split(b.String(), "\n")
	require.Equal(t, `{:index 3,:process 1,:type :ok,:f :txn,:time 30,:value [[:append,"a b",1],[:r,"a b",[1]]]}`, lines[3])
}
