package checker

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/percolate-go/percolate/percolator/oracle"
)

// ReadHistory reads a history in the form that Recorder and WriteHistory write, and
// that elle-cli reads. It consists of JSON objects, one for each invocation and each
// completion of a transaction. Each object is a line, or all are in one array.
//
//	{"process":1,"type":"invoke","f":"txn","time":100,"start":7,"value":[["r","x",1],["w","y",5]]}
//	{"process":1,"type":"ok","f":"txn","time":250,"start":7,"commit":9,"value":[["r","x",1],["w","y",5]]}
//
// A completion's type is "ok" for committed, "fail" for not committed and "info" for
// unknown. An invocation that is never completed is unknown too, also if another
// invocation of the same process follows it. A completion without a "value", or whose
// value is null, leaves the operations as its invocation had them. "time" is in
// nanoseconds; if no object has one, their order counts. Operations are
// ["r",key,value], ["w",key,value] and ["append",key,element], where value is an
// integer, a list of integers, or null for nothing (a write of null is a deletion). In
// an invocation and in an "info" the result of a read of null is not known, and the
// read is left out, unless "absent" is its fourth element. "lock" as the fourth element
// marks a read for update. Keys are strings or integers. The other fields, which
// elle-cli does not have, are all optional: "start", "commit", "isolation"
// ("serializable"), "asof" (true), "observer" and "observed" (a run of that observer
// for that key), "error". Further fields are ignored, and so are objects whose process
// is not an integer (as Jepsen's nemesis).
//
// If the last object is cut off, as when a program dies, it is left out, and what it
// would have said counts as unknown. An error names the object by its number, from 1.
func ReadHistory(r io.Reader) (History, error) {
	d := decoder{in: bufio.NewReaderSize(r, 1<<16), pending: map[int]int{}, keys: map[string]*keyUse{}}
	if err := d.run(); err != nil {
		return nil, err
	}
	return d.h, nil
}

// ReadFiles reads histories from files and puts them together. No process may be in
// two files, and no file may be given twice, under whatever names.
func ReadFiles(paths ...string) (History, error) {
	var all History
	infos := make([]os.FileInfo, len(paths))
	owner := map[int]string{}
	for i, path := range paths {
		h, info, err := readFile(path)
		if err != nil {
			return nil, err
		}
		infos[i] = info
		for other := range i {
			if os.SameFile(infos[other], info) {
				return nil, fmt.Errorf("checker: %s and %s are the same file", paths[other], path)
			}
		}
		for i := range h {
			if other, ok := owner[h[i].Process]; ok && other != path {
				return nil, fmt.Errorf("checker: process %d is in %s and in %s", h[i].Process, other, path)
			}
			owner[h[i].Process] = path
		}
		all = append(all, h...)
	}
	return all, nil
}

func readFile(path string) (History, os.FileInfo, error) {
	f, err := os.Open(path) //nolint:gosec // the caller names the file
	if err != nil {
		return nil, nil, fmt.Errorf("checker: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, fmt.Errorf("checker: %w", err)
	}
	h, err := ReadHistory(f)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return h, info, nil
}

// keyUse is what is known of a key while a history is read.
type keyUse struct {
	name     string
	list     bool // a list was read or appended to
	register bool
}

// decoder reads one history.
type decoder struct {
	in      *bufio.Reader
	buf     []byte // holds the object at hand
	text    []byte // what is being read of it
	pos     int
	n       int // operations so far
	timed   int // of them have a time
	untimed int // of them should have one
	h       History
	pending map[int]int // place of the process's open transaction
	keys    map[string]*keyUse
}

// line is one object.
type line struct {
	process       int
	client        bool
	kind          string
	time          int64
	hasTime       bool
	start, commit oracle.Timestamp
	isolation     Isolation
	asOf          bool
	observer      string
	observed      string
	isRun         bool
	err           string
	f             string
	value         []byte // nil if there is none
}

func (d *decoder) run() error {
	for {
		ok, err := d.next()
		if err != nil {
			return fmt.Errorf("checker: operation %d: %w", d.n+1, err)
		}
		if !ok {
			break
		}
		d.n++
		if err := d.object(); err != nil {
			return fmt.Errorf("checker: operation %d: %w", d.n, err)
		}
	}
	// The kind of a read of nothing depends on the other operations on its key.
	for i := range d.h {
		for o := range d.h[i].Ops {
			if op := &d.h[i].Ops[o]; op.Kind == Read && op.Absent && d.keys[op.Key].list {
				*op = Op{Kind: ReadList, Locks: op.Locks, Key: op.Key}
			}
		}
	}
	for _, k := range d.keys {
		if k.list && k.register {
			return fmt.Errorf("checker: key %q is used as a register and as a list", k.name)
		}
	}
	return nil
}

const (
	// maxObject bounds one object: a list of some million elements.
	maxObject = 64 << 20
	// maxDepth bounds the nesting of fields that are passed over.
	maxDepth = 100
)

var errCutOff = errors.New("the object is cut off")

// next puts the text of the next object into d.text, false at the end. Between objects there may be
// space, commas, and the brackets of an array.
func (d *decoder) next() (bool, error) {
	d.buf, d.pos = d.buf[:0], 0
	for {
		c, err := d.in.ReadByte()
		if err == io.EOF {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("reading the history: %w", err)
		}
		switch c {
		case ' ', '\t', '\r', '\n', ',', '[', ']':
			continue
		case '{':
		default:
			return false, fmt.Errorf("%q where an object should begin", c)
		}
		break
	}
	d.buf = append(d.buf, '{')
	depth, quoted := 1, false
	for depth > 0 {
		c, err := d.in.ReadByte()
		if err == io.EOF {
			return false, nil // cut off
		}
		if err != nil {
			return false, fmt.Errorf("reading the history: %w", err)
		}
		if len(d.buf) >= maxObject {
			return false, fmt.Errorf("longer than %d bytes", maxObject)
		}
		d.buf = append(d.buf, c)
		switch {
		case quoted && c == '\\':
			if c, err = d.in.ReadByte(); err == nil {
				d.buf = append(d.buf, c)
			}
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		}
	}
	d.text = d.buf
	return true, nil
}

// object takes d.text as one operation.
func (d *decoder) object() error {
	l, err := d.fields()
	if err != nil {
		return err
	}
	if !l.client {
		return nil
	}
	if l.f != "" && l.f != "txn" {
		return fmt.Errorf("f is %q and not %q", l.f, "txn")
	}
	switch {
	case l.hasTime:
		d.timed++
	case l.kind != "info":
		d.untimed++
		l.time = int64(d.n)
	}
	if d.timed > 0 && d.untimed > 0 {
		return errors.New("some operations have a time and some have none")
	}
	place, open := d.pending[l.process]
	if l.kind == "invoke" {
		place = len(d.h)
		d.pending[l.process] = place
		d.h = append(d.h, Txn{Process: l.process, Invoke: l.time})
	} else {
		if !open {
			return fmt.Errorf("%q of process %d, which has no transaction", l.kind, l.process)
		}
		delete(d.pending, l.process)
	}
	t := &d.h[place]
	switch l.kind {
	case "invoke", "info":
	case "ok":
		t.Outcome, t.Complete = Committed, l.time
	case "fail":
		t.Outcome, t.Complete = Aborted, l.time
	default:
		return fmt.Errorf("unknown type %q", l.kind)
	}
	if t.Outcome != Unknown && t.Complete < t.Invoke {
		return fmt.Errorf("process %d completes its transaction before it invokes it", l.process)
	}
	if l.start != 0 {
		t.Start = l.start
	}
	if l.commit != 0 && l.kind == "ok" { // nothing else knows one
		t.Commit = l.commit
	}
	t.Isolation = max(t.Isolation, l.isolation)
	t.AsOf = t.AsOf || l.asOf
	if l.isRun {
		t.Run = &Run{Observer: l.observer, Key: l.observed}
	}
	if l.err != "" {
		t.Error = l.err
	}
	if l.value == nil {
		return nil
	}
	// A completion says all that its invocation said, and more.
	d.text, d.pos = l.value, 0
	return d.ops(place, l.kind == "invoke" || l.kind == "info")
}

// fields reads the fields of d.text. It is long because it has a case for each of them.
func (d *decoder) fields() (line, error) {
	var l line
	seen := false
	err := d.each('{', '}', func() error {
		raw, err := d.string()
		if err != nil {
			return err
		}
		name := string(raw)
		if err := d.expect(':'); err != nil {
			return err
		}
		var u uint64
		switch name {
		case "process":
			seen = true
			if d.peek() != '-' && (d.peek() < '0' || d.peek() > '9') {
				return d.skip(0)
			}
			var n int64
			n, err = d.int()
			l.process, l.client = int(n), true
		case "type":
			l.kind, err = d.text2()
		case "f":
			if d.peek() != '"' {
				return d.skip(0)
			}
			l.f, err = d.text2()
		case "time":
			l.time, err = d.int()
			l.hasTime = true
		case "start":
			u, err = d.uint()
			l.start = oracle.Timestamp(u)
		case "commit":
			u, err = d.uint()
			l.commit = oracle.Timestamp(u)
		case "isolation":
			var s string
			s, err = d.text2()
			switch s {
			case Serializable.String():
				l.isolation = Serializable
			case SnapshotIsolation.String():
			default:
				err = errors.Join(err, fmt.Errorf("unknown isolation %q", s))
			}
		case "asof":
			switch d.peek() {
			case 't':
				l.asOf, err = true, d.word("true")
			default:
				err = d.word("false")
			}
		case "observer":
			l.observer, err = d.text2()
			l.isRun = true
		case "observed":
			l.observed, err = d.text2()
			l.isRun = true
		case "error":
			if d.peek() != '"' {
				return d.skip(0)
			}
			l.err, err = d.text2()
		case "value":
			d.peek()
			from := d.pos
			if err = d.skip(0); err == nil {
				l.value = d.text[from:d.pos]
			}
		default:
			err = d.skip(0)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
	if err == nil && !seen {
		err = errors.New("no process")
	}
	return l, err
}

// ops reads the operations of a transaction from d.text.
func (d *decoder) ops(place int, mayBeUnknown bool) error {
	t := &d.h[place]
	if d.peek() == 'n' {
		return d.word("null") // says nothing: what the invocation said holds
	}
	t.Ops = nil
	// What is decoded here is a few elements, mostly.
	return d.each('[', ']', func() error {
		op, known, err := d.op(mayBeUnknown)
		if err != nil {
			return fmt.Errorf("value %d: %w", len(t.Ops)+1, err)
		}
		if known {
			t.Ops = append(t.Ops, op)
		}
		return nil
	})
}

// op reads one operation. known is false if it says nothing.
func (d *decoder) op(mayBeUnknown bool) (op Op, known bool, err error) {
	var key *keyUse
	n := 0
	what := ""
	null, absent := false, false
	err = d.each('[', ']', func() error {
		n++
		switch n {
		case 1:
			what, err = d.text2()
			switch {
			case err != nil:
			case what == "w":
				op.Kind = Write
			case what == "append":
				op.Kind = Append
			case what != "r":
				err = fmt.Errorf("unknown operation %q", what)
			}
		case 2:
			key, err = d.key()
		case 3:
			null, err = d.operand(&op, what)
		case 4:
			if d.peek() != '"' {
				return d.skip(0)
			}
			absent, op.Locks, err = d.flags()
		case 5:
			if d.peek() != '"' {
				return d.skip(0)
			}
			var a, l bool
			a, l, err = d.flags()
			absent, op.Locks = absent || a, op.Locks || l
		default:
			err = d.skip(0)
		}
		return err
	})
	if err != nil {
		return op, false, err
	}
	if n < 3 {
		return op, false, errors.New("an operation has three elements at least")
	}
	op.Key = key.name
	switch {
	case op.Kind == Append && null:
		return op, false, errors.New("append of null")
	case op.Kind == Append || op.Kind == ReadList:
		key.list = true
	case op.Kind == Write || !null:
		key.register = true
	}
	op.Absent = null
	return op, !null || op.Kind == Write || !mayBeUnknown || absent, nil
}

// operand reads what an operation reads or writes. null says that this is null.
func (d *decoder) operand(op *Op, what string) (null bool, err error) {
	switch d.peek() {
	case 'n':
		return true, d.word("null")
	case '[':
		if what != "r" {
			return false, fmt.Errorf("%q of a list", what)
		}
		op.Kind = ReadList
		return false, d.each('[', ']', func() error {
			v, err := d.int()
			op.List = append(op.List, v)
			return err
		})
	default:
		op.Value, err = d.int()
		return false, err
	}
}

func (d *decoder) flags() (absent, locks bool, err error) {
	s, err := d.text2()
	if err != nil {
		return false, false, err
	}
	return s == flagAbsent, s == flagLock, nil
}

// key reads a key, which is a string or an integer.
func (d *decoder) key() (*keyUse, error) {
	var raw []byte
	var err error
	if d.peek() == '"' {
		raw, err = d.string()
	} else {
		from := d.pos
		_, err = d.int()
		raw = d.text[from:d.pos]
	}
	if err != nil {
		return nil, err
	}
	if k, ok := d.keys[string(raw)]; ok {
		return k, nil
	}
	k := &keyUse{name: string(raw)}
	d.keys[k.name] = k
	return k, nil
}

// What follows reads pieces of JSON from d.text.
