package tikvraw

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/percolate-go/percolate/internal/contexts"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// formatVersion is the version of the layout, in the store's record. In version 1 the
// markers of notifications lay in the order of rows; now they lie in the order of slots.
// Heads and side keys are the same in both.
const formatVersion = 2

// formatEvery is how often a process looks whether the store has a newer format. A program
// that raises the format can rely on it: so much later, and as long again as a request may
// take, nobody writes the old one, except a process that stood still in the middle of a call.
const formatEvery = 10 * time.Second

// oldLasts is for how long after the migration each search for notifications looks for
// markers of format 1 first: a process that was open then goes on writing them, and nothing
// can stop it.
const oldLasts = 24 * time.Hour

// record is the value of the store's record, in JSON.
type record struct {
	// What is always "percolate row store", so that nobody takes another
	// application's JSON for a record.
	What   string `json:"what"`
	Format int    `json:"format"`
	Oracle Oracle `json:"oracle"`
	// Moved is when a store of format 1 became one of this format, in milliseconds of Unix
	// time, and 0 in a store that was made in this format.
	Moved int64 `json:"moved,omitempty"`
}

const recordWhat = "percolate row store"

// claim makes the store's record or compares it with the options, looks for keys that are
// not the store's, and raises the record of a store of format 1. The markers are moved then.
func (s *Store) claim(ctx context.Context) error {
	for {
		raw, err := s.raw.get(ctx, s.keys.space(spaceRecord))
		if err != nil {
			return err
		}
		if raw == nil {
			if raw, err = s.found(ctx); err != nil {
				return err
			}
		}
		rec, err := s.checkRecord(raw)
		if err != nil {
			return err
		}
		if err := s.checkGaps(ctx); err != nil {
			return err
		}
		if rec.Format == formatVersion {
			s.oracleKind, s.movedAt = rec.Oracle, rec.Moved
			return nil
		}
		if s.opts.AsIs {
			return layoutError(rec.Format)
		}
		// The record first: from now on no program of format 1 opens the store, so that all
		// markers of that format are there to be moved, but for those of processes that have
		// it open.
		rec.Format, rec.Moved = formatVersion, s.opts.clock().UnixMilli()
		raised, err := json.Marshal(rec)
		if err != nil {
			return err
		}
		// Whether this was written, or another process was first, the next round sees.
		if _, _, err = s.raw.cas(ctx, s.keys.space(spaceRecord), raw, raised); err != nil && !errors.Is(err, rowstore.ErrAmbiguous) {
			return err
		}
	}
}

// found makes the record of a new store, and returns the one that is there then.
func (s *Store) found(ctx context.Context) ([]byte, error) {
	key := s.keys.space(spaceRecord)
	others, err := s.raw.scan(ctx, s.keys.base, s.keys.end(), 1, true)
	if err != nil {
		return nil, err
	}
	// Another process may have made the store since.
	raw, err := s.raw.get(ctx, key)
	if err != nil || raw != nil {
		return raw, err
	}
	if len(others) > 0 {
		return nil, foreign(others[0].key)
	}
	if s.opts.AsIs {
		return nil, fmt.Errorf("%w under the prefix %q", rowstore.ErrNoStore, s.opts.Prefix)
	}
	mine := record{What: recordWhat, Format: formatVersion, Oracle: s.opts.Oracle}
	if mine.Oracle == "" {
		mine.Oracle = OraclePD
	}
	made, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	met, swapped, err := s.raw.cas(ctx, key, nil, made)
	if errors.Is(err, rowstore.ErrAmbiguous) {
		// Whether it was written or not, the record that is there counts.
		met, err = s.raw.get(ctx, key)
	}
	if err != nil {
		return nil, err
	}
	if swapped {
		return made, nil
	}
	return met, nil
}

// checkRecord decodes a record that this program and the options fit.
func (s *Store) checkRecord(raw []byte) (record, error) {
	rec, err := s.parseRecord(raw)
	if err != nil {
		return rec, err
	}
	if rec.Oracle != OraclePD && rec.Oracle != OracleStore {
		return rec, fmt.Errorf("%w: the store has the oracle %q, which this program does not know: use a newer program", rowstore.ErrFormat, rec.Oracle)
	}
	if s.opts.Oracle != "" && s.opts.Oracle != rec.Oracle {
		return rec, fmt.Errorf("%w: the store takes its timestamps from the oracle %q and not from %q, which is fixed when it is made: leave out the parameter oracle (Options.Oracle)",
			rowstore.ErrInvalid, rec.Oracle, s.opts.Oracle)
	}
	return rec, nil
}

// parseRecord decodes a record of a format that this program knows.
func (s *Store) parseRecord(raw []byte) (record, error) {
	var rec record
	if raw == nil {
		return rec, fmt.Errorf("%w: the store's record (key %q) is gone: somebody removed it", rowstore.ErrFormat, s.keys.space(spaceRecord))
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	if err := d.Decode(&rec); err != nil || rec.What != recordWhat {
		return rec, foreign(s.keys.space(spaceRecord))
	}
	switch {
	case rec.Format < 1:
		return rec, fmt.Errorf("%w: the store has format version %d, which no program writes: use another prefix", rowstore.ErrFormat, rec.Format)
	case rec.Format > formatVersion:
		return rec, layoutError(rec.Format)
	}
	return rec, nil
}

func layoutError(version int) error {
	return &rowstore.LayoutError{Store: "the store", Stored: version, Known: formatVersion}
}

// checkGaps looks for keys outside the store's spaces. Those within are checked when
// they are met.
func (s *Store) checkGaps(ctx context.Context) error {
	after := func(space byte) []byte { return append(s.keys.space(space), 0) }
	gaps := [][2][]byte{
		{s.keys.base, s.keys.space(spaceIndex)},
		{after(spaceOracle), s.keys.space(spaceHead)},
		{s.keys.space(spaceSide + 1), s.keys.space(spaceRecord)},
		{after(spaceRecord), s.keys.space(spaceSweep)},
		{after(spaceSweep), s.keys.end()},
	}
	errs := make([]error, len(gaps))
	parallel(len(gaps), func(i int) {
		found, err := s.raw.scan(ctx, gaps[i][0], gaps[i][1], 1, true)
		if err == nil && len(found) > 0 {
			err = foreign(found[0].key)
		}
		errs[i] = err
	})
	return errors.Join(errs...)
}

// moveMarkers puts the markers of format 1 in a range of keys to where those of this format
// lie. It judges none. A head names its marker by the id alone, so a marker serves from its
// new place whichever program wrote the head, and even if the head's swap is still under
// way. One that no head names is garbage in either place. So any number of processes may do
// this at once, each may die at any point, and what they do may come late. Keys that are no
// markers stay where they are, and the others are moved; the first error of such a key comes at the end.
func (s *Store) moveMarkers(ctx context.Context, from, to []byte) error {
	var passed error
	for {
		page, more, err := s.keysFrom(ctx, from, to, sweepPage)
		if err != nil {
			return err
		}
		var olds, news, values [][]byte
		for _, p := range page {
			key, err := s.keys.fromOld(p.key)
			if err != nil {
				passed = cmp.Or(passed, err)
				continue
			}
			olds, news, values = append(olds, p.key), append(news, key), append(values, []byte{valueVersion})
		}
		if len(olds) > 0 {
			if err := s.raw.batchPut(ctx, news, values); err != nil {
				return err
			}
			if err := s.raw.batchDelete(ctx, olds); err != nil {
				return err
			}
		}
		if !more || len(page) == 0 {
			return passed
		}
		from = append(bytes.Clone(page[len(page)-1].key), 0)
	}
}

// moveAll is moveMarkers for the whole store, unless it is to be left as it is.
func (s *Store) moveAll(ctx context.Context) error {
	if s.opts.AsIs {
		return nil
	}
	return s.moveMarkers(ctx, s.keys.space(spaceOldIndex), s.keys.space(spaceOldIndex+1))
}

// keysFrom returns a page of up to limit keys. more says that there may be others behind them.
func (s *Store) keysFrom(ctx context.Context, from, to []byte, limit int) (page []pair, more bool, err error) {
	page, err = s.raw.scan(ctx, from, to, limit, true)
	for limit > 1 && isTooMuch(err) {
		limit /= 16
		page, err = s.raw.scan(ctx, from, to, limit, true)
	}
	return page, len(page) == limit, err
}

// moveOld moves the markers of a table that processes of format 1 have written, as long as
// there may be any. A store that is to be left as it is does without them; see Options.AsIs. A key
// there that is no marker belongs to no row, and hides none: the next Open tells of it.
func (s *Store) moveOld(ctx context.Context, table string) error {
	if s.opts.AsIs || s.movedAt == 0 || s.opts.clock().Sub(time.UnixMilli(s.movedAt)) >= oldLasts {
		return nil
	}
	err := s.moveMarkers(ctx, s.keys.table(spaceOldIndex, table), s.keys.afterTable(spaceOldIndex, table))
	if unreadable(err) {
		return nil
	}
	return err
}

// watchFormat looks from time to time whether the store has gone on to a newer format, and
// ends the use of the store then. In a store that was migrated it moves what processes of
// format 1 still write: a search for notifications does so only for some time.
func (s *Store) watchFormat(ctx context.Context) {
	for contexts.Sleep(ctx, s.opts.formatEvery) == nil {
		raw, err := s.raw.get(ctx, s.keys.space(spaceRecord))
		if err != nil {
			continue
		}
		if _, err = s.parseRecord(raw); err != nil {
			s.outdated.Store(&err)
			s.endBackground()
			return
		}
		if s.movedAt != 0 {
			_ = s.moveAll(ctx) // else the next time
		}
	}
}

// begin lets a call in, unless the store has a format by now that this program does not know.
func (s *Store) begin(ctx context.Context, what string) (inner context.Context, end func(), err error) {
	inner, end, err = s.gate.Begin(ctx, what)
	if err != nil {
		return nil, nil, err
	}
	if err := s.outdated.Load(); err != nil {
		end()
		return nil, nil, s.gate.Fail(what, *err)
	}
	return inner, end, nil
}
