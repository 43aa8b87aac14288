package index

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
)

// Schedules of the programs that are too large to be explored to their end. What was broken on purpose was found at random, in the first 40 schedules, and not among
// thousands in order, which differ in their last steps only.
const inOrder, atRandom = 40, 160

// writer is a process that sets rows to words, one transaction for each pair; an empty word deletes.
func writer(name string, unique bool, pairs ...[2]string) percolatetest.Client {
	return percolatetest.Client{Name: name, Run: func(ctx context.Context, db *percolator.DB) error {
		if _, err := New(db, "word", words, eachWord, Options{Unique: unique}); err != nil {
			return err
		}
		for _, p := range pairs {
			var err error
			if p[1] == "" {
				err = remove(ctx, db, p[0])
			} else {
				err = put(ctx, db, p[0], p[1])
			}
			if err != nil && !errors.Is(err, ErrNotUnique) {
				return err
			}
		}
		return nil
	}}
}

// agrees compares the entries with the data, without the index being readable.
func agrees(unique, complete bool) func(ctx context.Context, tx *percolator.Txn) error {
	return func(ctx context.Context, tx *percolator.Txn) error {
		ix := &Index[string]{db: new(percolator.DB), name: "word", of: words, values: eachWord, opt: Options{Unique: unique, Entries: "index/word"}}
		want := map[string]string{}
		for row, err := range words.Scan(ctx, tx, percolator.Range{}) {
			if err != nil {
				return err
			}
			values, _ := eachWord(row.Key, row.Value)
			for _, v := range values {
				at := ix.entry(v, row.Key).Row
				if other, twice := want[at]; twice {
					return fmt.Errorf("%s and %s have the same value", other, row.Key)
				}
				want[at] = row.Key
			}
		}
		for row, err := range tx.Scan(ctx, percolator.Range{Table: "index/word", Columns: []string{column}}) {
			if err != nil {
				return err
			}
			if got := string(row.Columns[column]); want[row.Key] != got {
				return fmt.Errorf("the entry %q names %q, and the data %q", row.Key, got, want[row.Key])
			}
			delete(want, row.Key)
		}
		if complete && len(want) > 0 {
			return fmt.Errorf("entries are missing: %v", want)
		}
		return nil
	}
}

// TestEveryInterleaving has processes that write rows with the same words in every order, where a commit may meet a conflict or be undetermined, and
// a process may die.
func TestEveryInterleaving(t *testing.T) {
	t.Parallel()
	for _, unique := range []bool{false, true} {
		check := agrees(unique, true)
		percolatetest.Explore(t, percolatetest.Program{
			Setup: func(ctx context.Context, db *percolator.DB) error {
				ix, err := New(db, "word", words, eachWord, Options{Unique: unique})
				if err == nil {
					err = put(ctx, db, "1", "a")
				}
				if err == nil {
					_, err = ix.Build(ctx, Pace{})
				}
				return err
			},
			Clients: []percolatetest.Client{
				writer("ann", unique, [2]string{"1", "b"}, [2]string{"1", ""}),
				writer("bob", unique, [2]string{"2", "a"}, [2]string{"2", "b"}),
			},
			Always: check, Finally: check,
			Faults:    percolatetest.Faults{Conflicts: 1, Undetermined: 1, Deaths: 1},
			Schedules: inOrder, Random: atRandom,
		})
	}
}

// TestEveryInterleavingOfBuilding has one who builds, and dies perhaps, among those who write.
func TestEveryInterleavingOfBuilding(t *testing.T) {
	t.Parallel()
	for _, unique := range []bool{false, true} {
		step := percolatetest.Client{Name: "builder", Run: func(ctx context.Context, db *percolator.DB) error {
			ix, err := New(db, "word", words, eachWord, Options{Unique: unique})
			if err != nil {
				return err
			}
			_, err = ix.Build(ctx, Pace{Rows: 1})
			if errors.Is(err, ErrNotUnique) {
				return nil
			}
			return err
		}}
		percolatetest.Explore(t, percolatetest.Program{
			Setup: func(ctx context.Context, db *percolator.DB) error {
				if err := put(ctx, db, "1", "a"); err != nil {
					return err
				}
				if err := put(ctx, db, "2", "b"); err != nil {
					return err
				}
				ix, err := New(db, "word", words, eachWord, Options{Unique: unique})
				if err != nil {
					return err
				}
				info, err := db.DefineIndex(ctx, ix.upkeep)
				if err == nil {
					_, err = db.MoveIndex(ctx, info, percolator.IndexBuilding)
				}
				return err
			},
			Clients: []percolatetest.Client{step, writer("ann", unique, [2]string{"1", "c"}, [2]string{"2", ""})},
			Always:  agrees(unique, false), Finally: agrees(unique, false),
			Faults:    percolatetest.Faults{Conflicts: 1, Deaths: 1},
			Schedules: inOrder, Random: atRandom,
		})
	}
}
