package checker

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/percolate-go/percolate/percolator/oracle"
)

// Recorder collects the transactions of the processes of a program. All methods may
// be called concurrently.
//
// With a writer it writes JSON lines and keeps nothing; [ReadHistory] describes the
// lines. Each line goes out in one Write before the method returns. So a program that
// is killed leaves a history in which the transactions that it was committing have an
// unknown outcome.
type Recorder struct {
	clock func() int64

	mu   sync.Mutex
	w    io.Writer
	err  error
	line []byte
	kept History
}

// NewRecorder returns a recorder that writes to w, or, if w is nil, keeps the history
// in memory. clock returns the time in nanoseconds. All processes of the history must
// share it, and it must not go back. If clock is nil, the time is the wall time of this
// call plus the time that has passed since by the monotonic clock. Several programs of
// one machine share that time, unless somebody sets the machine's clock meanwhile.
func NewRecorder(w io.Writer, clock func() int64) *Recorder {
	if clock == nil {
		begin := time.Now()
		base := begin.UnixNano()
		clock = func() int64 { return base + int64(time.Since(begin)) }
	}
	return &Recorder{clock: clock, w: w}
}

// Begin starts the record of a transaction of a process. Call it before the
// transaction is begun.
func (r *Recorder) Begin(process int) *Recording {
	return &Recording{r: r, t: Txn{Process: process, Invoke: r.clock()}}
}

// History returns the transactions that have ended so far, in the order of their ends,
// and the transactions that are committing, as unknown. It returns nil if the recorder
// has a writer.
func (r *Recorder) History() History {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.kept)
}

// Err returns the first error of the writer.
func (r *Recorder) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Recording is the record of one transaction. Its methods are for one goroutine at a
// time.
type Recording struct {
	r          *Recorder
	t          Txn
	committing bool
	place      int // in r.kept
	done       bool
}

// Start notes the start timestamp.
func (t *Recording) Start(ts oracle.Timestamp) { t.t.Start = ts }

// AsOf notes that the caller chose the snapshot.
func (t *Recording) AsOf() { t.t.AsOf = true }

// Isolation notes the isolation level. Without this call it is SnapshotIsolation.
func (t *Recording) Isolation(i Isolation) { t.t.Isolation = i }

// Run notes that the transaction is a run of an observer for a change of key.
func (t *Recording) Run(observer, key string) { t.t.Run = &Run{Observer: observer, Key: key} }

// Op notes an operation. The recording keeps op.List.
func (t *Recording) Op(op Op) { t.t.Ops = append(t.t.Ops, op) }

// Read notes that a register was read; found says whether anything was there.
func (t *Recording) Read(key string, value int64, found bool) {
	if !found {
		value = 0
	}
	t.Op(Op{Kind: Read, Key: key, Value: value, Absent: !found})
}

// ReadForUpdate notes a read of a register through GetForUpdate; see Read.
func (t *Recording) ReadForUpdate(key string, value int64, found bool) {
	if !found {
		value = 0
	}
	t.Op(Op{Kind: Read, Locks: true, Key: key, Value: value, Absent: !found})
}

// Write notes that a register was written.
func (t *Recording) Write(key string, value int64) { t.Op(Op{Kind: Write, Key: key, Value: value}) }

// Delete notes that a register was deleted.
func (t *Recording) Delete(key string) { t.Op(Op{Kind: Write, Key: key, Absent: true}) }

// ReadList notes that a list was read. The recording keeps list.
func (t *Recording) ReadList(key string, list []int64) {
	t.Op(Op{Kind: ReadList, Key: key, List: list})
}

// Append notes that an element was appended to a list.
func (t *Recording) Append(key string, element int64) {
	t.Op(Op{Kind: Append, Key: key, Value: element})
}

// Committing notes that the commit is about to be sent. Call it after the last
// operation and before Commit: if the program dies within Commit, the record of the
// transaction survives. Committing returns the first error of the writer. After an
// error nothing more is recorded, so do not commit then.
func (t *Recording) Committing() error {
	if t.committing || t.done {
		return t.r.Err()
	}
	t.committing = true
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	if t.r.w == nil {
		t.place = len(t.r.kept)
		t.r.kept = append(t.r.kept, t.t)
		return nil
	}
	t.r.write(appendInvoke(t.r.line[:0], &t.t, true))
	return t.r.err
}

// Committed ends the record: the commit was acknowledged with this timestamp, or with
// 0 if nothing was written. It returns the first error of the writer.
func (t *Recording) Committed(commit oracle.Timestamp) error {
	t.t.Commit = commit
	return t.end(Committed, nil)
}

// Aborted ends the record: the transaction is certainly not committed; err, which may
// be nil, says why. It returns the first error of the writer.
func (t *Recording) Aborted(err error) error { return t.end(Aborted, err) }

// Unknown ends the record: the transaction may have been committed, now or later. It
// returns the first error of the writer.
func (t *Recording) Unknown(err error) error { return t.end(Unknown, err) }

func (t *Recording) end(o Outcome, err error) error {
	if t.done {
		panic(fmt.Sprintf("checker: a transaction of process %d ended twice", t.t.Process))
	}
	t.done = true
	t.t.Outcome = o
	if err != nil {
		t.t.Error = err.Error()
	}
	if o != Unknown {
		t.t.Complete = t.r.clock()
	}
	r := t.r
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.w != nil:
		line := r.line[:0]
		if !t.committing {
			line = appendInvoke(line, &t.t, true)
		}
		r.write(appendComplete(line, &t.t, true))
	case t.committing:
		r.kept[t.place] = t.t
	default:
		r.kept = append(r.kept, t.t)
	}
	return r.err
}

// write writes lines, in one call, with r.mu held.
func (r *Recorder) write(lines []byte) {
	r.line = lines
	if r.err != nil {
		return
	}
	if _, err := r.w.Write(lines); err != nil {
		r.err = fmt.Errorf("checker: writing the history: %w", err)
	}
}
