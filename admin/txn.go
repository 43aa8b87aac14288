package admin

import (
	"context"
	"fmt"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// State is what is known of a transaction without deciding anything.
type State string

// The states of transactions.
const (
	// Committed: it took effect, for good.
	Committed State = "committed"
	// RolledBack: it did not and will never take effect.
	RolledBack State = "rolled back"
	// Committing: it is not decided, and its process lives, as far as its session and its lock say.
	Committing State = "committing"
	// Abandoned: it is not decided, and its process is dead or too late. Whoever meets one of its locks rolls it
	// back, or DB.Outcome does.
	Abandoned State = "abandoned"
	// NoTrace: the cell shows nothing of the transaction. If the cell is its primary, it may have been rolled
	// back without a trace, it may be about to prewrite, or there never was one. DB.Outcome decides.
	NoTrace State = "without a trace"
	// TooOld: it began below the safe point, and nothing of it is left to tell what became of it.
	TooOld State = "older than the safe point"
)

// Txn is what is known of a transaction.
type Txn struct {
	Start Stamp `json:"start"`
	State State `json:"state"`
	// Commit is the commit timestamp of a transaction that is committed.
	Commit Stamp `json:"commit,omitzero"`
	// Primary decides it, if that is known: the cell that was asked about names it by its lock.
	Primary *Cell `json:"primary,omitempty"`
	// Session is the process that holds its locks, if a lock was seen; see Reader.Sessions.
	Session string `json:"session,omitempty"`
	// SessionEnds is when the session's lease ends unless it is renewed, 0 if there is none. Expires is when its
	// lock ends. It belongs to nobody once either is over.
	SessionEnds Stamp `json:"session_ends,omitzero"`
	Expires     Stamp `json:"expires,omitzero"`
	Age         Span  `json:"age"` // since its start
	// Left is the time until others may roll it back, by what is known now. A process that lives makes it longer.
	Left Span `json:"left,omitzero"`
	// Lines say it in words.
	Lines []string `json:"lines,omitempty"`
}

// Txn shows the transaction that began at start, by its primary or another cell that it wrote or locked. It decides
// nothing: DB.Outcome does. A start that was not drawn yet is ErrInvalid.
func (r *Reader) Txn(ctx context.Context, start percolator.Timestamp, c percolator.Cell) (Txn, error) {
	cell, err := stored(c)
	if err != nil {
		return Txn{}, called("Txn", err)
	}
	if start == 0 || start > oracle.Max {
		return Txn{}, called("Txn", fmt.Errorf("%w: no transaction can have the start timestamp %d", percolator.ErrInvalid, uint64(start)))
	}
	cat, err := r.load(ctx)
	if err != nil {
		return Txn{}, called("Txn", err)
	}
	if start > cat.now {
		return Txn{}, called("Txn", fmt.Errorf("%w: no transaction has the start timestamp %d yet", percolator.ErrInvalid, uint64(start)))
	}
	t, err := r.txn(ctx, start, format.Cell(cell), nil, cat.now)
	if err == nil && t.State != Committed {
		// What is missing may have been collected; what the catalog says now tells.
		var now *catalog
		if now, err = r.load(ctx); err == nil && start < now.safePointIn(cell.Table, cell.Row, cell.Row+"\x00") && (t.State == NoTrace || t.State == RolledBack) {
			t.State = TooOld
		}
	}
	if err != nil {
		return Txn{}, called("Txn", fmt.Errorf("looking at transaction %d: %w", uint64(start), err))
	}
	t.Lines = t.words(cat.now)
	return t, nil
}

// txn looks at a transaction by a stored cell. met is a lock of it that was seen, which names its primary.
func (r *Reader) txn(ctx context.Context, start percolator.Timestamp, cell format.Cell, met *format.Lock, now percolator.Timestamp) (Txn, error) {
	t := Txn{Start: Stamp(start), Age: since(now, start)}
	for step := 0; ; step++ {
		if met != nil {
			cell = met.Primary
			p := publicCell(cell)
			t.Primary, t.Session, t.Expires = &p, met.Session, Stamp(met.Expiry)
		}
		reads := []rowstore.RowRead{statusRead(start, cell)}
		if met != nil {
			reads = append(reads, sessionRead(met.Session))
		}
		rows, err := r.rows(ctx, reads)
		if err != nil {
			return t, err
		}
		state, commit, lock, err := r.status(ctx, &rows[0], start, cell, met != nil)
		if err != nil {
			return t, err
		}
		t.State, t.Commit = state, Stamp(commit)
		if lock != nil && (met == nil || lock.Primary != cell) && step == 0 {
			met = lock // of a secondary, or of a primary whose session was not asked for yet
			continue
		}
		if state == Committed || state == RolledBack || met == nil {
			return t, nil
		}
		if lock != nil {
			t.Expires = Stamp(lock.Expiry)
		}
		if v := rows[1].Newest(rowstore.Write, format.ColumnLease); v != nil {
			t.SessionEnds = Stamp(v.TS)
		}
		t.State = Committing
		if t.Left = since(percolator.Timestamp(min(t.SessionEnds, t.Expires)), now); percolator.Timestamp(min(t.SessionEnds, t.Expires)) < now {
			t.State, t.Left = Abandoned, 0
		}
		return t, nil
	}
}

// statusPage is how many committed versions one step of a status reads.
const statusPage = 32

func statusRead(start percolator.Timestamp, c format.Cell) rowstore.RowRead {
	return rowstore.RowRead{Table: c.Table, Row: c.Row, Selectors: []rowstore.Selector{
		{Family: rowstore.Lock, Column: c.Column, From: start, To: start, Limit: 1},
		{Family: rowstore.Write, Column: c.Column, From: start, To: atMost, Limit: statusPage},
		{Family: rowstore.Mark, Column: c.Column, From: start, To: atMost, Limit: 1},
	}}
}

func sessionRead(id string) rowstore.RowRead {
	return rowstore.RowRead{Table: format.TableSessions, Row: id, Selectors: []rowstore.Selector{newest(rowstore.Write, format.ColumnLease, atMost)}}
}

// status judges the answer to statusRead, by the rules of package percolator (resolve.go there), in their order. A
// mark that may stand in the place of another's is no proof, unless the cell is the transaction's primary.
func (r *Reader) status(ctx context.Context, row *rowstore.Row, start percolator.Timestamp, c format.Cell, primary bool) (State, percolator.Timestamp, *format.Lock, error) {
	writes := row.All(rowstore.Write, c.Column)
	if commit, err := ownWrite(writes, start); err != nil || commit != 0 {
		return Committed, commit, nil, err
	}
	if v := row.At(rowstore.Lock, c.Column, start); v != nil {
		l, err := format.DecodeLock(v.Value)
		return Committing, 0, &l, err
	}
	if len(writes) == statusPage {
		commit, err := r.ownOldWrite(ctx, start, c, writes[len(writes)-1].TS-1)
		if err != nil || commit != 0 {
			return Committed, commit, nil, err
		}
	}
	mark := row.Newest(rowstore.Mark, c.Column)
	switch {
	case mark == nil && primary && len(writes) > 0:
		return RolledBack, 0, nil, nil
	case mark == nil:
		return NoTrace, 0, nil, nil
	}
	by, err := format.DecodeMark(mark.Value)
	switch {
	case err != nil:
		return "", 0, nil, err
	case by == start:
		return Committed, mark.TS, nil, nil
	case mark.TS == start, primary:
		return RolledBack, 0, nil, nil // a fence, or a roll back
	}
	return NoTrace, 0, nil, nil
}

func ownWrite(writes []rowstore.Version, start percolator.Timestamp) (percolator.Timestamp, error) {
	for i := range writes {
		w, err := format.DecodeWrite(writes[i].Value)
		if err != nil {
			return 0, err
		}
		if w.Start == start {
			return writes[i].TS, nil
		}
	}
	return 0, nil
}

// ownOldWrite searches the versions from start up to to. The transaction's own one is the oldest of them, so the
// search narrows down on that, in few steps however many there are.
func (r *Reader) ownOldWrite(ctx context.Context, start percolator.Timestamp, c format.Cell, to percolator.Timestamp) (percolator.Timestamp, error) {
	for from := start; from <= to; {
		mid := from + (to-from)/2
		rows, err := r.rows(ctx, []rowstore.RowRead{{Table: c.Table, Row: c.Row, Selectors: []rowstore.Selector{
			{Family: rowstore.Write, Column: c.Column, From: start, To: mid, Limit: statusPage},
		}}})
		if err != nil {
			return 0, err
		}
		writes := rows[0].Versions
		commit, err := ownWrite(writes, start)
		switch {
		case err != nil || commit != 0:
			return commit, err
		case len(writes) == 0:
			from = mid + 1
		case len(writes) < statusPage:
			return 0, nil
		default:
			to = writes[len(writes)-1].TS - 1
		}
	}
	return 0, nil
}

// words says what is known of a transaction.
func (t *Txn) words(now percolator.Timestamp) []string {
	began := fmt.Sprintf("transaction %v began at %s, %v ago", t.Start, clock(t.Start), t.Age)
	switch t.State {
	case Committed:
		return []string{began, fmt.Sprintf("it is committed at %v (%s)", t.Commit, clock(t.Commit))}
	case RolledBack:
		return []string{began, "it is rolled back: it did not and will never take effect"}
	case TooOld:
		return []string{began, "nothing of it is left: it began below the safe point, so what became of it cannot be told any more"}
	case NoTrace:
		return []string{
			began, "this cell shows no trace of it: it was rolled back, it has not come here yet, or this is not a cell of it",
			"to decide it, so that it can never commit if it has not: percolator txn --decide",
		}
	}
	lines := []string{began, fmt.Sprintf("it is not decided; its primary is %v", *t.Primary), "it is " + t.holder(now)}
	return append(lines, t.ends())
}

// holder says whose a transaction is.
func (t *Txn) holder(now percolator.Timestamp) string {
	switch {
	case t.SessionEnds == 0:
		return fmt.Sprintf("of process %s, which is gone (it has no session)", t.Session)
	case percolator.Timestamp(t.SessionEnds) < now:
		return fmt.Sprintf("of process %s, dead: its session ended %v ago", t.Session, since(now, percolator.Timestamp(t.SessionEnds)))
	}
	return fmt.Sprintf("of process %s, alive", t.Session)
}

// ends says what will happen to a transaction that is not decided, and when.
func (t *Txn) ends() string {
	if t.State == Abandoned {
		return "whoever needs one of its cells rolls it back at once"
	}
	return fmt.Sprintf("it commits or rolls back by itself; should its process die now, others roll it back in %v", t.Left)
}

// clock is a timestamp's wall time, for people.
func clock(s Stamp) string { return s.Time().Format("2006-01-02 15:04:05.000 UTC") }
