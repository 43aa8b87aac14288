package checker

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
)

// WriteHistory writes h as JSON lines, two for each transaction. ReadHistory reads
// them.
func WriteHistory(w io.Writer, h History) error {
	b := bufio.NewWriter(w)
	var line []byte
	timed := h.timed()
	for i := range h {
		line = appendInvoke(line[:0], &h[i], timed)
		line = appendComplete(line, &h[i], timed)
		if _, err := b.Write(line); err != nil {
			return fmt.Errorf("checker: writing the history: %w", err)
		}
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("checker: writing the history: %w", err)
	}
	return nil
}

const (
	flagLock   = "lock"
	flagAbsent = "absent"
)

// timed tells whether a history has times. Then 0 is one of them, as of a clock that begins there.
func (h History) timed() bool {
	return slices.ContainsFunc(h, func(t Txn) bool { return t.Invoke != 0 || t.Complete != 0 })
}

func appendInvoke(b []byte, t *Txn, timed bool) []byte {
	return appendEvent(b, t, "invoke", t.Invoke, timed)
}

func appendComplete(b []byte, t *Txn, timed bool) []byte {
	switch t.Outcome {
	case Committed:
		return appendEvent(b, t, "ok", t.Complete, timed)
	case Aborted:
		return appendEvent(b, t, "fail", t.Complete, timed)
	}
	return appendEvent(b, t, "info", 0, false) // nobody knows when it ended
}

func appendEvent(b []byte, t *Txn, kind string, time int64, timed bool) []byte {
	b = append(b, `{"process":`...)
	b = strconv.AppendInt(b, int64(t.Process), 10)
	b = append(b, `,"type":"`...)
	b = append(b, kind...)
	b = append(b, `","f":"txn"`...)
	if timed {
		b = append(b, `,"time":`...)
		b = strconv.AppendInt(b, time, 10)
	}
	if t.Start != 0 {
		b = append(b, `,"start":`...)
		b = strconv.AppendUint(b, uint64(t.Start), 10)
	}
	if kind == "ok" && t.Commit != 0 {
		b = append(b, `,"commit":`...)
		b = strconv.AppendUint(b, uint64(t.Commit), 10)
	}
	if t.Isolation != SnapshotIsolation {
		b = append(b, `,"isolation":"`...)
		b = append(b, t.Isolation.String()...)
		b = append(b, '"')
	}
	if t.AsOf {
		b = append(b, `,"asof":true`...)
	}
	if t.Run != nil {
		b = append(b, `,"observer":`...)
		b = appendString(b, t.Run.Observer)
		b = append(b, `,"observed":`...)
		b = appendString(b, t.Run.Key)
	}
	if kind != "invoke" && t.Error != "" {
		b = append(b, `,"error":`...)
		b = appendString(b, t.Error)
	}
	b = append(b, `,"value":[`...)
	for i := range t.Ops {
		if i > 0 {
			b = append(b, ',')
		}
		// In a line of these kinds, null says that nothing is known, as in Jepsen's.
		b = appendOp(b, &t.Ops[i], kind == "invoke" || kind == "info")
	}
	return append(b, "]}\n"...)
}

func appendList(b []byte, list []int64) []byte {
	b = append(b, '[')
	for i, v := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, v, 10)
	}
	return append(b, ']')
}

func appendOp(b []byte, op *Op, mayBeUnknown bool) []byte {
	switch op.Kind {
	case Read, ReadList:
		b = append(b, `["r",`...)
	case Write:
		b = append(b, `["w",`...)
	case Append:
		b = append(b, `["append",`...)
	}
	b = appendString(b, op.Key)
	b = append(b, ',')
	switch {
	case op.Kind == ReadList:
		b = appendList(b, op.List)
	case op.Absent:
		b = append(b, "null"...)
	default:
		b = strconv.AppendInt(b, op.Value, 10)
	}
	if op.Locks {
		b = append(b, `,"`+flagLock+`"`...)
	}
	if op.Kind == Read && op.Absent && mayBeUnknown {
		b = append(b, `,"`+flagAbsent+`"`...)
	}
	return append(b, ']')
}

// appendString appends s as a JSON string. It replaces bytes that are not UTF-8.
func appendString(b []byte, s string) []byte {
	plain := true
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			plain = false
			break
		}
	}
	if plain {
		b = append(b, '"')
		b = append(b, s...)
		return append(b, '"')
	}
	quoted, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string always has a JSON form
	}
	return append(b, quoted...)
}

// event is half of a transaction: its invocation or its completion.
type event struct {
	txn      int
	complete bool
	timed    bool
	time     int64
}

// events puts the invocations and completions of a history into an order that fits
// their times. If an invocation and a completion have the same time, the invocation
// comes first: only a transaction that completed strictly before precedes it. A
// transaction that never completed has its completion at the end.
func events(h History) []event {
	all := make([]event, 0, 2*len(h))
	timed := h.timed()
	for i := range h {
		all = append(all, event{txn: i, timed: timed, time: h[i].Invoke})
		if h[i].Outcome != Unknown {
			all = append(all, event{txn: i, complete: true, timed: timed, time: h[i].Complete})
		}
	}
	slices.SortStableFunc(all, func(a, b event) int {
		if c := cmp.Compare(a.time, b.time); c != 0 {
			return c
		}
		switch {
		case a.complete == b.complete:
			return 0
		case a.complete:
			return 1
		}
		return -1
	})
	for i := range h {
		if h[i].Outcome == Unknown {
			all = append(all, event{txn: i, complete: true})
		}
	}
	return all
}

// Format is a form in which Export writes histories for other programs.
type Format int

// The formats, both read by elle-cli.
const (
	JSON Format = iota // an array of objects, one in a line
	EDN                // maps, one in a line
)

// Export writes h for elle-cli, which reads it with `--model list-append` or `--model
// rw-register`. It writes all invocations and completions in the order of their times,
// and numbers them. In elle-cli's form, a process that does not know how its
// transaction ended never acts again, so Export gives what it did afterwards to a new
// process. It leaves out transactions that took a snapshot of the past, because
// elle-cli would judge them by the present. It writes deletions as writes of null.
func Export(w io.Writer, h History, format Format) error {
	b := bufio.NewWriter(w)
	processes := map[int]int{}
	next := 0
	for i := range h {
		next = max(next, h[i].Process+1)
	}
	as := make([]int, len(h))
	index := 0
	if format == JSON {
		_, _ = b.WriteString("[")
	}
	var line []byte
	for _, e := range events(h) {
		t := &h[e.txn]
		if t.AsOf {
			continue
		}
		if !e.complete {
			p, ok := processes[t.Process]
			if !ok {
				p = t.Process
			}
			as[e.txn] = p
			if t.Outcome == Unknown {
				p = next
				next++
			}
			processes[t.Process] = p
		}
		line = line[:0]
		if index > 0 {
			if format == JSON {
				line = append(line, ',')
			}
			line = append(line, '\n')
		}
		line = appendExported(line, e, t, as[e.txn], index, format)
		index++
		if _, err := b.Write(line); err != nil {
			return fmt.Errorf("checker: exporting the history: %w", err)
		}
	}
	if format == JSON {
		_, _ = b.WriteString("]")
	}
	_, _ = b.WriteString("\n")
	if err := b.Flush(); err != nil {
		return fmt.Errorf("checker: exporting the history: %w", err)
	}
	return nil
}

// appendExported appends one operation in elle-cli's form. EDN differs from JSON: it
// has keywords instead of strings, nil instead of null, and no colons.
func appendExported(b []byte, e event, t *Txn, process, index int, format Format) []byte {
	word := func(b []byte, s string) []byte {
		if format == EDN {
			return append(append(b, ':'), s...)
		}
		return append(append(append(b, '"'), s...), '"')
	}
	field := func(b []byte, s string) []byte {
		if b[len(b)-1] != '{' {
			b = append(b, ',')
		}
		b = word(b, s)
		if format == EDN {
			return append(b, ' ')
		}
		return append(b, ':')
	}
	kind := "invoke"
	if e.complete {
		kind = map[Outcome]string{Committed: "ok", Aborted: "fail", Unknown: "info"}[t.Outcome]
	}
	b = append(b, '{')
	b = strconv.AppendInt(field(b, "index"), int64(index), 10)
	b = strconv.AppendInt(field(b, "process"), int64(process), 10)
	b = word(field(b, "type"), kind)
	b = word(field(b, "f"), "txn")
	if e.timed {
		b = strconv.AppendInt(field(b, "time"), e.time, 10)
	}
	b = append(field(b, "value"), '[')
	for i := range t.Ops {
		op := &t.Ops[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '[')
		switch op.Kind {
		case Read, ReadList:
			b = word(b, "r")
		case Write:
			b = word(b, "w")
		case Append:
			b = word(b, "append")
		}
		b = append(appendString(append(b, ','), op.Key), ',')
		null := op.Absent
		if op.Kind == Read || op.Kind == ReadList {
			null = null || kind != "ok"
		}
		switch {
		case null && format == EDN:
			b = append(b, "nil"...)
		case null:
			b = append(b, "null"...)
		case op.Kind == ReadList:
			b = appendList(b, op.List)
		default:
			b = strconv.AppendInt(b, op.Value, 10)
		}
		b = append(b, ']')
	}
	return append(b, "]}"...)
}
