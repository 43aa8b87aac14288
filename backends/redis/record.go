package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// claim makes the store's record or compares it with the options, and tries out
// what the user may do.
func (s *direct) claim(ctx context.Context) error {
	o := &s.opts
	wanted := o.Partitions
	if wanted == 0 {
		wanted = 1
		if o.Mode == Cluster {
			wanted = clusterPartitions
		}
	}
	r, err := s.record(ctx, wanted)
	if err != nil {
		return err
	}
	switch {
	case r.format < 1:
		return fmt.Errorf("%w: the store with the prefix %q has format version %d, which no program writes: use another prefix", rowstore.ErrFormat, o.Prefix, r.format)
	case r.format > formatVersion:
		return s.layoutError(r.format, false)
	}
	if o.Partitions != 0 && o.Partitions != r.partitions {
		return fmt.Errorf("%w: the store with the prefix %q has %d partitions and not %d: the number is fixed when the store is made; leave the parameter out",
			rowstore.ErrInvalid, o.Prefix, r.partitions, o.Partitions)
	}
	if r.partitions < 1 || r.partitions > maxPartitions {
		return fmt.Errorf("%w: the record of the store with the prefix %q says %d partitions", rowstore.ErrCorrupt, o.Prefix, r.partitions)
	}
	if r.format > 1 && r.spread != spreadRows && r.spread != spreadSlots {
		return fmt.Errorf("%w: the record of the store with the prefix %q says %q for what puts rows into partitions (spread): it must be %s or %s",
			rowstore.ErrCorrupt, o.Prefix, r.spread, spreadSlots, spreadRows)
	}
	s.parts = newParts(o.Prefix, r.partitions)
	s.bySlot = r.spread == spreadSlots
	if n, ok := s.nodes.(*cluster); ok {
		n.use(s.parts)
	}
	s.oneSlot = o.Mode != Cluster || r.partitions == 1
	earlier := min(r.format, r.oracle)
	if o.AsIs {
		if earlier < formatVersion {
			return s.layoutError(earlier, r.format != r.oracle)
		}
		return nil
	}
	if earlier < formatVersion {
		// What follows shuts out the programs of earlier versions. A user who could not go on from
		// there would leave the store to nobody.
		if err := s.probeRows(ctx); err != nil {
			return err
		}
		if err := s.raise(ctx); err != nil {
			return fmt.Errorf("raising the store with the prefix %q to format version %d: %w", o.Prefix, formatVersion, err)
		}
	}
	if err := s.probe(ctx); err != nil {
		return err
	}
	return s.moveAll(ctx)
}

func (s *direct) layoutError(version int, half bool) error {
	return &rowstore.LayoutError{Store: fmt.Sprintf("the store with the prefix %q", s.opts.Prefix), Stored: version, Known: formatVersion, HalfDone: half}
}

// record is what a store says of itself.
type record struct {
	format, partitions int
	spread             string // what puts rows into partitions; "" in version 1
	oracle             int    // the version of the oracle, that of the record if nobody has drawn yet
}

// openRecord runs the opening script, which makes the record of a store of so many partitions if there is none and wanted is not 0.
func (s *direct) openRecord(ctx context.Context, wanted int) ([]string, error) {
	sc := openScript
	if wanted == 0 {
		sc = recordScript
	}
	return query(ctx, s, func(ctx context.Context) ([]string, error) {
		c, err := s.nodes.of(ctx, 0)
		if err != nil {
			return nil, err
		}
		keys := []string{s.parts[0].tag + "m", s.okey, s.parts[0].tables}
		return c.Eval(ctx, sc.source, keys, formatVersion, wanted, s.channel).StringSlice()
	})
}

// lostRecord says that a store has lost its record, but not some other key.
func (s *direct) lostRecord(left string) error {
	tag := s.parts[0].tag
	return fmt.Errorf("%w: the store with the prefix %q has lost its record %sm, and still has %s: a server lost its data while programs went on writing "+
		"(a restart without persistence, FLUSHALL, a failover), so what is there is only what was written since, or it was one of a Cluster, whose others have the rest. Stop the programs that use the store; then restore a backup, "+
		"or delete every key that begins with {%s: to start anew, or keep what is there with HSET %sm format %d partitions N spread S, where N is the number it had, "+
		"and S is %s, or %s if a program of format version 1 made the store (the README of backends/redis, After a loss)",
		rowstore.ErrCorrupt, s.opts.Prefix, tag, left, s.opts.Prefix, tag, formatVersion, spreadSlots, spreadRows)
}

// partsLeft looks for a partition that an earlier store has left, before the record of a new one is made. The opening script sees only
// the keys beside the record: in a Cluster these are gone if one server has lost its data, and the rest is not.
func (s *direct) partsLeft(ctx context.Context) (string, error) {
	return query(ctx, s, func(ctx context.Context) (left string, err error) {
		servers := map[*goredis.Client][]string{}
		for _, p := range newParts(s.opts.Prefix, maxPartitions) {
			c, err := s.nodes.holder(ctx, p.tables)
			if err != nil {
				return "", err
			}
			servers[c] = append(servers[c], p.tables)
		}
		for c, keys := range servers {
			pipe := c.Pipeline()
			found := make([]*goredis.IntCmd, len(keys))
			for i, key := range keys {
				found[i] = pipe.Exists(ctx, key) // by itself: the keys of one call must lie in one slot
			}
			// If the server refused the connection, only Exec returns the error.
			if _, err := pipe.Exec(ctx); err != nil && !slices.ContainsFunc(found, func(cmd *goredis.IntCmd) bool { return cmd.Err() != nil }) {
				return "", err
			}
			for i, key := range keys {
				switch n, err := found[i].Result(); {
				case goredis.HasErrorPrefix(err, "NOPERM"): // the user may have the partitions of its own store alone
				case err != nil:
					return "", err
				case n > 0:
					left = key
				}
			}
		}
		return left, nil
	})
}

// record runs the opening script, which makes the store's record if there is none, unless the options say AsIs. It may
// run twice: it changes nothing the second time.
func (s *direct) record(ctx context.Context, wanted int) (r record, err error) {
	fields, err := s.openRecord(ctx, 0)
	if goredis.HasErrorPrefix(err, "NONE ") {
		var left string
		if left, err = s.partsLeft(ctx); err != nil {
			return r, err
		}
		// Otherwise somebody else has made the store meanwhile, and has written to it.
		if left != "" || s.opts.AsIs {
			wanted = 0
		}
		fields, err = s.openRecord(ctx, wanted)
		if left != "" && goredis.HasErrorPrefix(err, "NONE ") {
			return r, s.lostRecord(left)
		}
	}
	if err != nil {
		if goredis.HasErrorPrefix(err, "NONE ") {
			return r, fmt.Errorf("%w with the prefix %q", rowstore.ErrNoStore, s.opts.Prefix)
		}
		if goredis.HasErrorPrefix(err, "FOREIGN ") {
			return r, fmt.Errorf("%w: the prefix %q is in use by something else: %s", rowstore.ErrForeign, s.opts.Prefix, strings.TrimPrefix(err.Error(), "FOREIGN "))
		}
		if goredis.HasErrorPrefix(err, "LOST ") {
			return r, s.lostRecord(strings.TrimPrefix(err.Error(), "LOST "))
		}
		return r, err
	}
	if len(fields) == 4 {
		r.spread = fields[2]
		r.format, err = strconv.Atoi(fields[0])
		r.oracle = r.format
		if err == nil && fields[3] != "" {
			r.oracle, err = strconv.Atoi(fields[3])
		}
		if err == nil {
			r.partitions, err = strconv.Atoi(fields[1])
		}
	}
	if len(fields) != 4 || err != nil {
		return r, fmt.Errorf("%w: the prefix %q is in use by something else: the record %sm is not a store's", rowstore.ErrForeign, s.opts.Prefix, s.parts[0].tag)
	}
	return r, nil
}

// probeTable is a table that exists only while a store is being opened. No table
// of a user is called so by accident.
const probeTable = "\x00percolator-probe"

// unprobeWithin bounds how much longer an Open takes that fails.
const unprobeWithin = time.Second

// probe runs everything that transactions will run, on a row of its own in each
// partition. So a missing permission shows now, and not in the middle of a script,
// which Redis would not undo.
func (s *direct) probe(ctx context.Context) error {
	if _, err := s.Oracle().Draw(ctx, 1); err != nil {
		return err
	}
	return s.probeRows(ctx)
}

// probeRows is probe without the oracle. It works in a store of an earlier version as well: rows of
// this version may lie there, and nobody looks for its own ones.
func (s *direct) probeRows(ctx context.Context) (err error) {
	row := probeRow()
	var on, off []rowstore.Mutation
	var whole []rowstore.RowRead
	seen := make([]bool, len(s.parts))
	for i, left := 0, len(s.parts); left > 0; i++ {
		key := row + strconv.Itoa(i)
		p := s.partOf(probeTable, key)
		if seen[p] {
			continue
		}
		seen[p] = true
		left--
		whole = append(whole, rowstore.RowRead{Table: probeTable, Row: key, Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: rowstore.AllColumns, To: 9}}})
		on = append(on, rowstore.Mutation{Table: probeTable, Row: key, Edits: []rowstore.Edit{
			rowstore.Put(rowstore.Write, "c", 3, nil), rowstore.Put(rowstore.Write, "d", 3, nil),
			rowstore.Put(rowstore.Data, "c", 3, nil), rowstore.Put(rowstore.Notify, "c", 3, nil),
		}})
		off = append(off, rowstore.Mutation{Table: probeTable, Row: key, Edits: []rowstore.Edit{
			rowstore.DeleteRange(rowstore.Write, "c", 0, 9), rowstore.DeleteRange(rowstore.Write, "d", 0, 9),
			rowstore.DeleteRange(rowstore.Data, "c", 0, 9), rowstore.DeleteRange(rowstore.Notify, "c", 0, 9),
		}})
	}
	// The writes again, newer, so that the older ones go to the history.
	newer := make([]rowstore.Mutation, len(on))
	for i := range on {
		newer[i] = on[i]
		newer[i].Edits = []rowstore.Edit{
			rowstore.Put(rowstore.Write, "c", 4, nil), rowstore.Delete(rowstore.Write, "d", 3),
		}
	}
	defer func() { s.unprobe(ctx, off, err) }()
	// Whoever writes to a row of version 2 reads all of it, in the middle of a script. So that is tried too.
	for _, muts := range [][]rowstore.Mutation{on, newer, off} {
		out, err := s.Apply(ctx, muts, rowstore.ApplyOptions{})
		if err != nil {
			return err
		}
		for i := range out {
			if out[i].Err != nil {
				return out[i].Err
			}
		}
		rows, err := s.Read(ctx, whole)
		if err != nil {
			return err
		}
		for i := range rows {
			if rows[i].Err != nil {
				return rows[i].Err
			}
		}
	}
	for _, r := range []rowstore.ScanRange{
		{Selectors: []rowstore.Selector{{Family: rowstore.Notify, To: 9}, {Family: rowstore.Data, To: 9}}},
		{Selectors: []rowstore.Selector{{Family: rowstore.Notify, To: 9}}, Slots: []rowstore.SlotRange{{Last: rowstore.Slots - 1}}},
	} {
		r.Table = probeTable
		for _, err := range s.Scan(ctx, r) {
			if err != nil {
				return err
			}
		}
	}
	if _, err = s.tables(ctx); err != nil {
		return err
	}
	return s.probeWide(ctx)
}

// probeWide runs what the reading of a wide row needs, on a key that never exists: one pipeline for each server, all at once.
func (s *direct) probeWide(ctx context.Context) error {
	return s.perform(ctx, func(ctx context.Context) error {
		servers := map[*goredis.Client]string{}
		for i := range s.parts {
			c, err := s.nodes.of(ctx, i)
			if err != nil {
				return err
			}
			servers[c] = s.parts[i].never
		}
		errs := make(chan error, len(servers))
		for c, key := range servers {
			go func() { errs <- tryOutWide(ctx, c, key) }()
		}
		var all []error
		for range servers {
			all = append(all, <-errs)
		}
		return errors.Join(all...)
	})
}

// unprobe removes the rows of a probe that failed: no collection sees their table. It goes on for a moment after the end of ctx, which is often why it failed.
func (s *direct) unprobe(ctx context.Context, off []rowstore.Mutation, failed error) {
	if failed == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unprobeWithin)
	defer cancel()
	_, _ = s.Apply(ctx, off, rowstore.ApplyOptions{}) // a user who may not write has left nothing
}
