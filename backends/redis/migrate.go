package redis

import (
	"context"
	"fmt"
	"strings"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Version 1 of the layout had the notified rows in the order of their keys, in sorted sets
// {P:n}n:TABLE, and an oracle whose value did not say its version. Version 2 had older writes in
// fields with a timestamp for a name, and one by one in the history. To migrate a store is
//
//  1. raise.lua: the oracle says version 3. From then on each draw of a program of version 1 or 2
//     that has the store open is refused, before anything is written. So it begins and commits
//     nothing more.
//  2. level.lua, in each partition: programs of version 2 write nothing more there.
//  3. raised.lua: the record says version 3. From then on Open of the others is refused.
//  4. move.lua: in steps of bounded size, the members of the old index go to the new one.
//
// Open does all of it, and each step may be done again. Until the third is done, the next Open
// begins with the first. Nothing has to wait for the last: each page of a scan for notifications
// looks whether its partition has an old index, and moves that first. So a migration
// that was interrupted goes on by itself, and any number of programs may move members at
// once. Another case matters too: a program of version 1 that drew a timestamp before the first step
// may finish that transaction after it, and write into an old index. The next scan finds
// what it wrote.
//
// Rows are not migrated. A cell that a program of version 3 has written begins with 255, and
// before that stands as earlier versions left it: reads find its older writes by their
// names, and the first write of the cell moves them to the history. A program of version 2 that still
// reads fails at a cell of version 3, and does not miss a write of it: 255 says that there is
// a lock, and the length of the lock is then one that the cell cannot have.

// maxMoved is how many members are moved in one run of a script.
const maxMoved = 512

// raise is steps 1 to 3. It may run any number of times.
func (s *direct) raise(ctx context.Context) error {
	run := func(sc *script, keys ...string) error {
		return s.perform(ctx, func(ctx context.Context) error {
			c, err := s.nodes.of(ctx, 0)
			if err != nil {
				return err
			}
			return c.Eval(ctx, sc.source, keys).Err()
		})
	}
	record := s.parts[0].tag + "m"
	if err := run(raiseScript, record, s.okey); err != nil {
		return err
	}
	calls := make([]*call, len(s.parts))
	for i := range calls {
		calls[i] = &call{part: i, script: levelScript}
	}
	if err := s.runAll(ctx, calls); err != nil {
		return err
	}
	return run(raisedScript, record)
}

// moveAll is step 4 for the whole store.
func (s *direct) moveAll(ctx context.Context) error {
	calls := make([]*call, len(s.parts))
	for i := range calls {
		calls[i] = &call{part: i, script: movesScript}
	}
	if err := s.runAll(ctx, calls); err != nil {
		return err
	}
	for i, c := range calls {
		u := unpacker{s: c.answer}
		var tables []string
		for range u.list() {
			table, _ := u.string()
			tables = append(tables, table)
		}
		if err := u.done(); err != nil {
			return err
		}
		for _, table := range tables {
			if err := s.move(ctx, i, unescapeTable(table)); err != nil {
				return err
			}
		}
	}
	return nil
}

// oldIndex is where the index of version 1 of an escaped table would be, whose members are moved before a scan goes on. A store that is
// taken as it is has none: its scans pass the members by, and leave them where they are.
func (s *direct) oldIndex(part int, table string) string {
	if s.opts.AsIs {
		return s.parts[part].never
	}
	return s.parts[part].tag + "n:" + table
}

// move is step 4 for a table in one partition.
func (s *direct) move(ctx context.Context, part int, table string) error {
	tag, name := s.parts[part].tag, escapeTable(table)
	var members []string
	for {
		var p packer
		p.reset()
		p.str(tag + "n:" + name)
		p.str(tag + "s:" + name)
		p.str(tag + "r:" + name + "/")
		p.u32(maxMoved)
		p.u32(maxAnswer)
		for _, m := range members {
			row, column, ok := strings.Cut(m, "\x00\x01")
			if !ok || row == "" || column == "" {
				return fmt.Errorf("%w: the member %q of the index %sn:%s is not a store's", rowstore.ErrCorrupt, m, tag, name)
			}
			row = unescapeRow(row)
			p.str(m)
			p.member(rowstore.Slot(table, row), row, column)
			p.str(row)
			p.field('N', column)
		}
		c := &call{part: part, script: moveScript}
		c.arg.b = p.bytes()
		if err := s.runAll(ctx, []*call{c}); err != nil {
			return fmt.Errorf("moving the notifications of table %q: %w", table, err)
		}
		u := unpacker{s: c.answer}
		members = members[:0]
		for range u.list() {
			m, _ := u.string()
			members = append(members, m)
		}
		if err := u.done(); err != nil {
			return err
		}
		if len(members) == 0 {
			return nil
		}
	}
}
