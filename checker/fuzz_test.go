package checker_test

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/checker"
)

// FuzzReadHistory reads histories: what is read is written and read again as the same,
// and no history upsets a checker.
func FuzzReadHistory(f *testing.F) {
	for _, dir := range []string{"values", "timestamps"} {
		paths, err := filepath.Glob(filepath.Join("testdata", dir, "*.bad.jsonl"))
		require.NoError(f, err)
		for _, path := range paths {
			b, err := os.ReadFile(path)
			require.NoError(f, err)
			f.Add(b)
		}
	}
	f.Add([]byte(`[{"process":"nemesis","value":{"a":["}"]}},{"process":-1,"type":"invoke","value":[["append",7,1]],"time":1.5e3}]`))
	f.Add([]byte(`{"process":1,"type":"invoke","value":[["r","\ud800\"",null,"absent"],["r","l",[],"lock"]]}{"process":1,"type":"info"}{"process":`))
	f.Add([]byte(`{"process":1,"type":"invoke","start":18446744073709551615,"time":-9223372036854775808}{"process":1,"type":"ok","time":9223372036854775807,"commit":1,"value":[["w","x",null]]}`))
	// Several processes at the same time, of which some say less in the end than they said first.
	f.Add([]byte(`{"process":1,"type":"invoke","value":[["r","x",null,"absent"]]}{"process":2,"type":"invoke","value":[["r","x",null,"absent"]]}{"process":1,"type":"ok","value":null}{"process":2,"type":"ok","value":[["r","x",[1]]]}`))
	f.Add([]byte(`{"process":1,"type":"invoke","value":[["r","x",null,"absent"],["w","y",1]]}{"process":2,"type":"invoke","value":[["r","x",null,"absent"],["r","z",null,"absent"]]}{"process":1,"type":"ok","value":[["w","y",1]]}{"process":3,"type":"invoke","value":[["append","x",1]]}{"process":2,"type":"fail","value":[["w","y",2]]}{"process":3,"type":"info","value":[]}`))
	f.Add([]byte(`{"process":3,"type":"invoke","time":1,"start":5,"value":[["append","x",1]]}{"process":1,"type":"invoke","time":2,"start":6,"value":[["r","x",null,"absent"]]}{"process":2,"type":"invoke","time":3,"start":7,"value":[["r","x",[1]]]}{"process":1,"type":"info","time":4}{"process":3,"type":"ok","time":5,"commit":8}{"process":2,"type":"fail","time":6}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := checker.ReadHistory(bytes.NewReader(b))
		if err != nil {
			require.True(t, strings.HasPrefix(err.Error(), "checker: "), err)
			return
		}
		var text bytes.Buffer
		require.NoError(t, checker.WriteHistory(&text, h))
		again, err := checker.ReadHistory(bytes.NewReader(text.Bytes()))
		if !timeless(h) {
			require.NoError(t, err)
			require.Equal(t, h, again)
		}
		require.NoError(t, checker.Export(io.Discard, h, checker.EDN))
		everything := []checker.Observer{{Name: "o", Observes: func(string) bool { return true }}}
		for _, o := range []checker.TimestampOptions{{}, {Observers: everything, Idle: true}} {
			if r, err := checker.CheckTimestamps(h, o); err == nil {
				require.Equal(t, r.OK(), r.Err() == nil)
			}
		}
		si, err := checker.CheckValues(h, checker.ValueOptions{Judge: checker.AsSnapshotIsolation})
		if err != nil {
			return
		}
		ser, err := checker.CheckValues(h, checker.ValueOptions{Judge: checker.AsSerializable})
		require.NoError(t, err)
		require.True(t, si.OK() || !ser.OK(), "serializable, and not under snapshot isolation: %v", si.Err())
	})
}

// timeless tells whether all invocations and completions are at time 0, which is not
// written then.
func timeless(h checker.History) bool {
	for i := range h {
		if h[i].Invoke != 0 || h[i].Complete != 0 {
			return false
		}
	}
	return true
}
