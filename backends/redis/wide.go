package redis

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/percolate-go/percolate/internal/contexts"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// A row that is too much for one run of a script, because it has very many columns,
// versions or bytes, is read in pieces. Redis watches the row's keys meanwhile
// (WATCH), and tells at the end whether they changed: if they did not, all pieces
// are of one moment. The last command is a script, which fails unless the server is a
// primary.

const (
	// wideTries is how often the store reads a row that keeps changing in pieces, before it
	// tries one longer run.
	wideTries = 5
	// What the longer run may do. Who asks for the newest writes of some ten thousand
	// columns gets them from it, beside any writer. It keeps the server for
	// less than 50 ms.
	wideSteps  = 4 * maxSteps
	wideAnswer = 4 * maxAnswer
	// wideRanges bounds the ranges of the history that are asked for at a time.
	wideRanges = 1024
	// The least and the most fields of a hash that are asked for at a time. HSCAN and
	// HMGET have no limit in bytes, so the number follows the size of the answers.
	wideFieldsLeast = 8
	wideFieldsMost  = 2048
)

// readWide reads a row in pieces.
func (s *direct) readWide(ctx context.Context, r *rowstore.RowRead) ([]rowstore.Version, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	var vs []rowstore.Version
	var err error
	// The reading may outlast this call, and what r refers to is the caller's.
	own := *r
	own.Selectors = slices.Clone(r.Selectors)
	if !s.await(ctx, func(ctx context.Context) { vs, err = s.tryWide(ctx, &own) }) {
		return nil, ctx.Err()
	}
	return vs, err
}

func (s *direct) tryWide(ctx context.Context, r *rowstore.RowRead) ([]rowstore.Version, error) {
	at := s.partOf(r.Table, r.Row)
	tag, table := s.parts[at].tag, escapeTable(r.Table)
	w := wideRow{picks: r.Selectors, key: tag + "r:" + table + "/" + r.Row, history: tag + "h:" + table + "/" + r.Row}
	patience := time.Now().Add(s.opts.ReadTimeout)
	pause := firstPause
	for try, changed := 0, 0; ; try++ {
		client, err := s.nodes.of(ctx, at)
		if err != nil {
			return nil, s.failure(ctx, err)
		}
		err = w.readAtOnce(ctx, client)
		switch {
		case err == nil:
			d := decoder{vs: w.vs}
			return d.pick(r.Selectors), nil
		case errors.Is(err, goredis.TxFailedErr):
			changed++
			if changed < wideTries {
				continue
			}
			if changed == wideTries {
				if vs, done, err := s.readLonger(ctx, r); done || err != nil {
					return vs, err
				}
			}
			err = fmt.Errorf("%w: the row is too much for one run of a script, and somebody changed it each of the %d times that it was read in pieces",
				rowstore.ErrUnavailable, changed)
		case isAnswer(err) && elsewhere(err.Error()):
			s.nodes.moved(ctx)
			err = unavailable(err)
		case try == 0 && !isAnswer(err) && isAway(err) && !isTimeout(err) && ctx.Err() == nil:
			// A connection that the server closed while it was idle.
			continue
		default:
			return nil, s.failure(ctx, damaged(err))
		}
		if time.Now().After(patience) || contexts.Sleep(ctx, pause) != nil {
			return nil, s.withReason(ctx, err)
		}
		pause = min(2*pause, lastPause)
	}
}

// readAtOnce reads the row in pieces that are of one moment. If the row changed meanwhile, it
// fails with TxFailedErr.
func (w *wideRow) readAtOnce(ctx context.Context, client *goredis.Client) error {
	return client.Watch(ctx, func(tx *goredis.Tx) error {
		if err := w.read(ctx, tx); err != nil {
			return err
		}
		_, err := tx.TxPipelined(ctx, func(p goredis.Pipeliner) error {
			return p.Eval(ctx, roleScript.strict.source, nil).Err()
		})
		return err
	}, w.key, w.history)
}

// tryOutWide runs the commands of tryWide that no script runs, in one round trip. Whatever is refused, the connection has no
// transaction open behind it: a server that refuses EXEC ends the transaction.
func tryOutWide(ctx context.Context, c *goredis.Client, key string) error {
	pipe := c.Pipeline()
	for _, args := range [][]any{
		{"watch", key}, {"hscan", key, 0}, {"unwatch"}, {"multi"}, {"eval", roleScript.strict.source, 0}, {"exec"},
	} {
		pipe.Do(ctx, args...)
	}
	_, err := pipe.Exec(ctx)
	return err
}

// readLonger reads a row in one run of a script that may do more than others: wideSteps and
// wideAnswer. done is false if that is too little for the row.
func (s *direct) readLonger(ctx context.Context, r *rowstore.RowRead) (vs []rowstore.Version, done bool, err error) {
	at := s.partOf(r.Table, r.Row)
	b := &readBatch{rows: []int{0}, call: call{part: at, script: readScript}}
	b.enc.reset()
	b.enc.allow(b.enc.budget(), wideSteps, wideAnswer)
	pl, raw := newRawPlan(r.Selectors)
	if raw {
		b.enc.small(1)
		b.enc.key(s.parts[at].tag, escapeTable(r.Table), r.Row)
		b.enc.plan(&pl)
	} else {
		b.enc.read(s.parts[at].tag, r)
	}
	b.call.arg.b = b.enc.bytes()
	s.run(ctx, []*call{&b.call})
	if b.call.err != nil {
		return nil, false, b.call.err
	}
	var d decoder
	if raw {
		return d.rawRow(b.call.answer, &pl, r.Selectors)
	}
	out := make([]rowstore.Row, 1)
	n, err := d.rows([]rowstore.RowRead{*r}, b, out)
	return out[0].Versions, n == 1, err
}

// rawRow reads the answer to a raw plan. done is false if the row was too much.
func (d *decoder) rawRow(answer string, pl *plan, picks []rowstore.Selector) (vs []rowstore.Version, done bool, err error) {
	u := unpacker{s: answer}
	if u.list() != 1 {
		return nil, false, errAnswer
	}
	if u.tooMuch() {
		return nil, false, u.done()
	}
	n := u.list() - len(pl.ranges)
	if n < 0 || n%2 != 0 {
		return nil, false, errAnswer
	}
	w := wideRow{}
	for range n / 2 {
		name, _ := u.string()
		v, ok := u.string()
		if !ok {
			return nil, false, errAnswer
		}
		if err := w.field(name, v, nil); err != nil {
			return nil, false, err
		}
	}
	d.vs = w.vs
	if err := d.members(&u, len(pl.ranges)); err != nil {
		return nil, false, err
	}
	return d.pick(picks), true, u.done()
}

// wideRow is a row that is being read in pieces.
type wideRow struct {
	picks        []rowstore.Selector
	key, history string
	vs           []version
}

func (w *wideRow) read(ctx context.Context, tx *goredis.Tx) error {
	w.vs = nil
	pl := newPlan(w.picks)
	if pl.all {
		if err := w.scan(ctx, tx, nil); err != nil {
			return err
		}
	} else if err := w.named(ctx, tx, &pl); err != nil {
		return err
	}
	return w.ranges(ctx, tx, w.wanted())
}

// scan reads all fields of the row, or, where columns is not nil, the older writes of
// those columns that are among the fields.
func (w *wideRow) scan(ctx context.Context, tx *goredis.Tx, columns map[string]bool) error {
	cursor, count := uint64(0), int64(256)
	seen := map[string]bool{} // a field may come twice
	for {
		pairs, next, err := tx.HScan(ctx, w.key, cursor, "", count).Result()
		if err != nil {
			return err
		}
		size := 0
		for i := 0; i+1 < len(pairs); i += 2 {
			size += len(pairs[i+1])
			if seen[pairs[i]] {
				continue
			}
			seen[pairs[i]] = true
			if err := w.field(pairs[i], pairs[i+1], columns); err != nil {
				return err
			}
		}
		if next == 0 {
			return nil
		}
		cursor, count = next, nextCount(count, size)
	}
}

// nextCount is how many fields to ask for after an answer of so many bytes.
func nextCount(count int64, size int) int64 {
	if size > maxAnswer/2 {
		return max(count/4, wideFieldsLeast)
	}
	return min(2*count, wideFieldsMost)
}

// field takes the versions of one field.
func (w *wideRow) field(name, v string, columns map[string]bool) error {
	kind, column, rest, err := parseField(name)
	if err != nil {
		return err
	}
	if columns != nil && (kind != 'H' || !columns[column]) {
		return nil
	}
	switch kind {
	case 'W':
		w.vs, err = parseCell(w.vs, column, v)
	case 'N':
		w.vs, err = parseNotes(w.vs, column, v)
	case 'H':
		switch {
		case len(rest) == 8: // of version 2
			w.vs = append(w.vs, version{rowstore.Write, column, tsOf(rest), v})
		case len(rest) == 1 && len(v) >= 8:
			// Fields that are not in use have what the history has too.
			w.vs = append(w.vs, version{rowstore.Write, column, tsOf(v), v[8:]})
		default:
			return errCell
		}
	default:
		return errCell
	}
	return err
}

// named reads the fields of the columns that a plan names.
func (w *wideRow) named(ctx context.Context, tx *goredis.Tx, pl *plan) error {
	fields := make([]string, 0, len(pl.cells)+len(pl.notes))
	for i := range pl.cells {
		fields = append(fields, string(appendField(nil, 'W', pl.cells[i].column)))
	}
	for _, n := range pl.notes {
		fields = append(fields, string(appendField(nil, 'N', n)))
	}
	var older map[string]bool
	for at, count := 0, int64(64); at < len(fields); {
		end := min(at+int(count), len(fields))
		values, err := tx.HMGet(ctx, w.key, fields[at:end]...).Result()
		if err != nil {
			return err
		}
		size := 0
		for i, value := range values {
			v, ok := value.(string)
			if !ok {
				continue
			}
			size += len(v)
			if err := w.field(fields[at+i], v, nil); err != nil {
				return err
			}
			if at+i >= len(pl.cells) || !pl.cells[at+i].want {
				continue
			}
			column := pl.cells[at+i].column
			switch flags, _ := cellFlags(v); {
			case flags < 8:
			case v[0] == cellMark:
				for n := range flags / 8 {
					fields = append(fields, string(append(appendField(nil, 'H', column), n)))
				}
			default: // version 2 named them by timestamps
				if older == nil {
					older = map[string]bool{}
				}
				older[column] = true
			}
		}
		at, count = end, nextCount(count, size)
	}
	if older == nil {
		return nil
	}
	return w.scan(ctx, tx, older)
}

// historyRange is a range of a row's history: at most limit members, 0 for all.
type historyRange struct {
	lo, hi string
	limit  int
}

// wanted returns the ranges of the history that the picks need. The fields were read
// before; a column without a newest write has no older ones.
func (w *wideRow) wanted() []historyRange {
	newest := map[string]rowstore.Timestamp{}
	last := rowstore.Timestamp(0)
	for i := range w.vs {
		if v := &w.vs[i]; v.family == rowstore.Write {
			newest[v.column] = max(newest[v.column], v.ts)
			last = max(last, v.ts)
		}
	}
	var all []historyRange
	for i := range w.picks {
		p := &w.picks[i]
		switch {
		case p.From > p.To:
		case p.Family == rowstore.Data && p.Column == rowstore.AllColumns:
			all = append(all, allOf('D'))
		case p.Family == rowstore.Data:
			all = append(all, spanOf('D', p.Column, p))
		case p.Family == rowstore.Write:
			columns := []string{p.Column}
			if p.Column == rowstore.AllColumns {
				if p.Limit == 0 && p.From == 0 && p.To >= last {
					// One range instead of three for each column.
					all = append(all, allOf('W'), allOf('C'))
					continue
				}
				columns = slices.Sorted(maps.Keys(newest))
			}
			for _, c := range columns {
				n, ok := newest[c]
				if ok && n > p.From && (p.Limit != 1 || n > p.To) {
					all = append(all, spanOf('W', c, p))
					all = append(all, chunksOf(c, p)...)
				}
			}
		}
	}
	return all
}

// allOf is all of a row's history that is of a kind.
func allOf(kind byte) historyRange {
	return historyRange{"[" + string(kind), "(" + string(kind+1), 0}
}

func spanOf(kind byte, column string, p *rowstore.Selector) historyRange {
	lo, hi := spanEnds(kind, column, p.From, p.To)
	return historyRange{lo, hi, p.Limit}
}

// chunksOf is where the chunks of a column lie that have versions which p selects: those that stand in its range, and
// the one behind it, which may reach into it.
func chunksOf(column string, p *rowstore.Selector) []historyRange {
	prefix := string(appendField(nil, 'C', column))
	// No chunk goes on with a byte of 255 behind its timestamp.
	from := prefix + string(binary.BigEndian.AppendUint64(nil, inv(p.From))) + "\xff"
	return []historyRange{
		{"[" + prefix + string(binary.BigEndian.AppendUint64(nil, inv(p.To))), "(" + from, p.Limit},
		{"[" + from, "(" + prefix + strings.Repeat("\xff", 9), 1},
	}
}

// ranges reads ranges of the history.
func (w *wideRow) ranges(ctx context.Context, tx *goredis.Tx, all []historyRange) error {
	for len(all) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		var p packer
		p.reset()
		p.str(w.history)
		p.u32(maxSteps)
		p.u32(maxAnswer)
		for i := range all[:min(len(all), wideRanges)] {
			p.str(all[i].lo)
			p.str(all[i].hi)
			p.u32(uint32(min(all[i].limit, 1<<30)))
		}
		answer, err := tx.Eval(ctx, rangeScript.strict.source, []string{w.history}, p.bytes()).Text()
		if err != nil {
			return err
		}
		u := unpacker{s: answer}
		n := u.list()
		done := int(u.number())
		resume, partly := u.string()
		here := int(u.number())
		for range n - 3 {
			m, _ := u.string()
			if u.err == nil {
				w.vs, u.err = parseHistory(w.vs, m)
			}
		}
		if err := u.done(); err != nil {
			return err
		}
		if done < 0 || done > len(all) || done == 0 && !partly || partly && done == len(all) {
			return fmt.Errorf("%w: %d of %d ranges are done", errAnswer, done, len(all))
		}
		all = all[done:]
		if partly {
			all[0].lo = resume
			if all[0].limit > 0 {
				all[0].limit -= here
			}
		}
	}
	return nil
}
