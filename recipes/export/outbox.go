package export

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/percolate-go/percolate/keys"
	"github.com/percolate-go/percolate/percolator"
)

// Item is what a Sink gets.
type Item struct {
	Key string
	// Epoch is that of the exporter that sends the item. It is greater than that of every exporter which claimed the key before.
	Epoch uint64
	// Commit is the commit timestamp of the transaction that put the item, and Index counts the items of the transaction from 0 on, of all
	// keys. Together they name the item, and items of a key rise by them.
	Commit percolator.Timestamp
	Index  int
	// Payload is what was put. The slice belongs to the sink.
	Payload []byte
}

// Outbox holds items that are to be sent. All its methods may be called concurrently.
type Outbox struct {
	db    *percolator.DB
	table string
}

// New makes an Outbox for a table that nothing else uses. It neither reads nor writes. A nil db and an empty table are percolator.ErrInvalid.
func New(db *percolator.DB, table string) (*Outbox, error) {
	switch {
	case db == nil:
		return nil, fmt.Errorf("export: New: %w: the database is nil", percolator.ErrInvalid)
	case table == "":
		return nil, fmt.Errorf("export: New: %w: the table's name is empty", percolator.ErrInvalid)
	}
	return &Outbox{db: db, table: table}, nil
}

// Columns: of the row of a key, and of the rows of its items.
const (
	dueColumn   = "due"   // notified, never written
	claimColumn = "claim" // who sends
	itemColumn  = "item"  // the payload
	deadColumn  = "dead"  // the payload of a dead letter
	errorColumn = "error" // why it is one; apart, so that a payload of any size finds room
)

func rowOf(key string) keys.Key { return keys.Key("").Text(key) }

// Range is the range of all rows of a key: items that wait, dead letters, and the note who sends. It is for percolator.DB.Erase: items that wait are not sent
// then, and later ones are as before. Do not write to these rows.
func (o *Outbox) Range(key string) percolator.Range { return rowOf(key).Range(o.table) }

func (o *Outbox) cell(row keys.Key, column string) percolator.Cell {
	return percolator.Cell{Table: o.table, Row: string(row), Column: column}
}

// Put puts an item into the outbox, as a part of tx: it is sent if tx commits. Items of one key are sent in the order of their commits. The
// payload is copied; it may be empty. Errors: those of Set and of Notify (percolator.ErrNotObserved, also from tx's commit, if no
// observer of the outbox was ever run), of StartTimestamp, percolator.ErrReadOnly in a View. After an error tx should be
// rolled back.
func (o *Outbox) Put(ctx context.Context, tx *percolator.Txn, key string, payload []byte) error {
	if err := o.put(ctx, tx, key, payload); err != nil {
		return fmt.Errorf("export: putting an item of key %q into table %q: %w", key, o.table, err)
	}
	return nil
}

func (o *Outbox) put(ctx context.Context, tx *percolator.Txn, key string, payload []byte) error {
	start, err := tx.StartTimestamp(ctx)
	if err != nil {
		return err
	}
	index, err := nextIndex(tx, o.table)
	if err != nil {
		return err
	}
	if err := tx.Set(o.cell(itemRow(key, start, index), itemColumn), payload); err != nil {
		return err
	}
	return tx.Notify(o.cell(rowOf(key), dueColumn))
}

func itemRow(key string, start percolator.Timestamp, index int) keys.Key {
	return rowOf(key).Uint(uint64(start)).Int(int64(index))
}

// indexKey is what a transaction has the number of its items in a table attached by. It is not that of an Outbox: two of one table would give
// two items of a transaction the same row.
type indexKey struct{ table string }

// nextIndex numbers the items of a transaction in a table.
func nextIndex(tx *percolator.Txn, table string) (int, error) {
	n, _ := tx.Attached(indexKey{table}).(int)
	return n, tx.Attach(indexKey{table}, n+1)
}

// stored is an item as it lies in the table.
type stored struct {
	row   string
	start percolator.Timestamp
	Item
}

// errDamaged is matched by the errors of rows that are no items.
var errDamaged = fmt.Errorf("export: %w: the row is no item", percolator.ErrCorrupt)

// parse reads a row of an item.
func parse(row percolator.Row, column string) (stored, error) {
	r := keys.Read(row.Key)
	s := stored{row: row.Key, Item: Item{Key: r.Text(), Payload: row.Columns[column], Commit: row.Timestamps[column]}}
	s.start = percolator.Timestamp(r.Uint())
	s.Index = int(r.Int())
	if err := r.End(); err != nil {
		return stored{}, fmt.Errorf("%w: %q: %w", errDamaged, row.Key, err)
	}
	return s, nil
}

// claim is what the claim cell of a key says.
type claim struct {
	epoch percolator.Timestamp // 0 while nobody is to claim the key: the sink has asked for a pause, or refused an item
	until percolator.Timestamp // nobody has claimed the key from then on
	// The item at which the last exporter failed, and how often it was tried alone: 0 if a batch has failed there.
	start    percolator.Timestamp
	index    uint32
	attempts uint32
}

const (
	claimFormat = 1
	claimBytes  = 33
)

func (c *claim) encode() []byte {
	b := append(make([]byte, 0, claimBytes), claimFormat)
	b = binary.BigEndian.AppendUint64(b, uint64(c.epoch))
	b = binary.BigEndian.AppendUint64(b, uint64(c.until))
	b = binary.BigEndian.AppendUint64(b, uint64(c.start))
	b = binary.BigEndian.AppendUint32(b, c.index)
	return binary.BigEndian.AppendUint32(b, c.attempts)
}

// readClaim returns the claim of a key at the snapshot of tx, and the time of the snapshot.
func (o *Outbox) readClaim(ctx context.Context, tx *percolator.Txn, key string) (c claim, now percolator.Timestamp, err error) {
	cell := o.cell(rowOf(key), claimColumn)
	b, err := tx.Get(ctx, cell)
	found := !errors.Is(err, percolator.ErrNotFound)
	if found && err != nil {
		return claim{}, 0, err
	}
	if now, err = tx.StartTimestamp(ctx); err != nil || !found {
		return claim{}, now, err
	}
	c, err = parseClaim(cell, b)
	return c, now, err
}

func parseClaim(cell percolator.Cell, b []byte) (claim, error) {
	if len(b) != claimBytes || b[0] != claimFormat {
		return claim{}, fmt.Errorf("export: %w: %v is no claim that this program knows", percolator.ErrCorrupt, cell)
	}
	return claim{
		epoch:    percolator.Timestamp(binary.BigEndian.Uint64(b[1:])),
		until:    percolator.Timestamp(binary.BigEndian.Uint64(b[9:])),
		start:    percolator.Timestamp(binary.BigEndian.Uint64(b[17:])),
		index:    binary.BigEndian.Uint32(b[25:]),
		attempts: binary.BigEndian.Uint32(b[29:]),
	}, nil
}

// doubt makes the claim one about an item that is to be sent alone.
func (c *claim) doubt(item *stored) {
	c.start, c.index, c.attempts = item.start, uint32(item.Index), 0 //nolint:gosec // a transaction has fewer cells
}

// doubts tells whether the claim is about an item.
func (c *claim) doubts(item *stored) bool {
	return c.start == item.start && c.index == uint32(item.Index) //nolint:gosec // as above
}

// pause has nobody claim the key for d.
func (c *claim) pause(now percolator.Timestamp, d time.Duration) {
	c.epoch, c.until = 0, now.Add(d) // nobody's, so it can be told from the claim of an exporter that is at work
}

// paused tells whether there is a pause that is not over.
func (c *claim) paused(now percolator.Timestamp) bool { return c.epoch == 0 && c.until > now }

// DeadLetter is an item that was set aside.
type DeadLetter struct {
	Item         // without an Epoch; Commit is that of the transaction that set it aside
	Error string // of the last attempt

	start percolator.Timestamp
}

// mostError bounds the error that is kept with a dead letter.
const mostError = 1024

// bury stores an item as a dead letter, as a part of tx.
func (o *Outbox) bury(tx *percolator.Txn, item *stored, cause error) error {
	text := cause.Error()
	text = text[:min(len(text), mostError, o.db.Limits().Value)]
	err := tx.Set(percolator.Cell{Table: o.table, Row: item.row, Column: errorColumn}, []byte(text))
	if err != nil {
		return err
	}
	return tx.Set(percolator.Cell{Table: o.table, Row: item.row, Column: deadColumn}, item.Payload)
}

// Dead visits the dead letters of all keys. At most one error is yielded, at the end: those of Scan, and percolator.ErrCorrupt for a row that
// is no dead letter.
func (o *Outbox) Dead(ctx context.Context, tx *percolator.Txn) iter.Seq2[DeadLetter, error] {
	return func(yield func(DeadLetter, error) bool) {
		for row, err := range tx.Scan(ctx, percolator.Range{Table: o.table, Columns: []string{deadColumn, errorColumn}, Timestamps: true}) {
			var d DeadLetter
			if err == nil {
				d, err = parseDead(row)
			}
			if err != nil {
				yield(DeadLetter{}, fmt.Errorf("export: listing dead letters of table %q: %w", o.table, err))
				return
			}
			if !yield(d, nil) {
				return
			}
		}
	}
}

func parseDead(row percolator.Row) (DeadLetter, error) {
	s, err := parse(row, deadColumn)
	if err != nil {
		return DeadLetter{}, err
	}
	if _, found := row.Columns[deadColumn]; !found {
		return DeadLetter{}, fmt.Errorf("%w: %q has no payload", errDamaged, row.Key)
	}
	return DeadLetter{Item: s.Item, Error: string(row.Columns[errorColumn]), start: s.start}, nil
}

// Resend puts a dead letter into the outbox again, as a part of tx: it is sent behind the items of its key. Errors: those of Put; percolator.ErrNotFound if
// it is no dead letter any more.
func (o *Outbox) Resend(ctx context.Context, tx *percolator.Txn, d DeadLetter) error {
	if err := o.Drop(ctx, tx, d); err != nil {
		return err
	}
	return o.Put(ctx, tx, d.Key, d.Payload)
}

// Drop removes a dead letter, as a part of tx. Errors: those of Get and Delete; percolator.ErrNotFound if it is no dead letter any more.
func (o *Outbox) Drop(ctx context.Context, tx *percolator.Txn, d DeadLetter) error {
	row := itemRow(d.Key, d.start, d.Index)
	_, err := tx.Get(ctx, o.cell(row, deadColumn))
	if err == nil {
		err = errors.Join(tx.Delete(o.cell(row, deadColumn)), tx.Delete(o.cell(row, errorColumn)))
	}
	if err != nil {
		return fmt.Errorf("export: removing a dead letter of key %q from table %q: %w", d.Key, o.table, err)
	}
	return nil
}
