package pebble

import (
	"context"
	"fmt"
)

// Compact writes every file of the store anew, without what was removed or replaced: a file that the engine merges with others
// now and then may hold removed bytes for as long as the store lives. It is for data that must be gone from the disk, as after
// percolator's DB.Erase. It takes as long as reading and writing all data, and needs room on the disk for as much again.
// Calls go on meanwhile. In a database of the program's own (New) it compacts the store's keys alone.
//
// Afterwards removed bytes may be left in the logs of the engine, which it uses again, and names in its lists of files. To have these
// removed, close the store and open it twice.
//
// ctx ends it early, and so does Close; what is done so far is of no harm. Errors: rowstore.ErrClosed, those of ctx and of the engine. It may be
// called concurrently.
func (s *Store) Compact(ctx context.Context) error {
	inner, end, err := s.begin(ctx, "compact")
	if err != nil {
		return err
	}
	defer end()
	if err = s.db.Compact(inner, []byte{spaceMeta}, []byte{spaceSample + 1}, true); err != nil {
		err = fmt.Errorf("compacting %s: %w", s.name, err)
	}
	if ctx.Err() != nil && err != nil {
		return fmt.Errorf("pebble: %w", err)
	}
	return s.life.Fail("compact", err)
}
