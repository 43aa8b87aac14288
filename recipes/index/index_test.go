package index

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/keys"
	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/typed"
)

// words are cells whose values are words with spaces between them.
var words = typed.Column[string]{Table: "doc", Name: "text", Codec: typed.Text[string]{}}

var errWord = errors.New("a bad word")

// eachWord is the Values of words. It fails for one that is "bad", and panics for one that is "worse".
func eachWord(_ string, text string) (all []keys.Key, err error) {
	for _, w := range strings.Fields(text) {
		switch w {
		case "bad":
			return nil, errWord
		case "worse":
			panic(w)
		}
		all = append(all, key(w))
	}
	return all, nil
}

func key(word string) keys.Key { return keys.Key("").Text(word) }

func wordIndex(t testing.TB, db *percolator.DB, opt Options) *Index[string] {
	t.Helper()
	ix, err := New(db, "word", words, eachWord, opt)
	require.NoError(t, err)
	return ix
}

func built(t testing.TB, db *percolator.DB, opt Options) *Index[string] {
	t.Helper()
	ix := wordIndex(t, db, opt)
	_, err := ix.Build(t.Context(), Pace{})
	require.NoError(t, err)
	return ix
}

func put(ctx context.Context, db *percolator.DB, row, text string) error {
	return db.Update(ctx, func(tx *percolator.Txn) error { return words.Set(ctx, tx, row, text) })
}

func remove(ctx context.Context, db *percolator.DB, row string) error {
	return db.Update(ctx, func(tx *percolator.Txn) error { return tx.Delete(words.Cell(row)) })
}

func rows(seq iter.Seq2[string, error]) (all []string, err error) {
	for row, err := range seq {
		if err != nil {
			return nil, err
		}
		all = append(all, row)
	}
	return all, nil
}

// has returns the rows that have a word.
func has(t testing.TB, db *percolator.DB, ix *Index[string], word string) (all []string) {
	t.Helper()
	require.NoError(t, db.View(t.Context(), func(tx *percolator.Txn) (err error) {
		all, err = rows(ix.Lookup(t.Context(), tx, key(word)))
		return err
	}))
	return all
}

// matches checks the index against the data.
func matches(t testing.TB, ix *Index[string]) Report {
	t.Helper()
	r, err := ix.Check(t.Context(), Pace{})
	require.NoError(t, err)
	require.True(t, r.Matches(), "%+v", r)
	return r
}

// TestIndex writes in two processes, before and after the index is built.
func TestIndex(t *testing.T) {
	t.Parallel()
	everystore.Pairs(t, func(t *testing.T, one, two *percolator.DB) {
		ctx := t.Context()
		require.NoError(t, put(ctx, one, "1", "a b"))
		require.NoError(t, put(ctx, two, "2", "b c b"))
		ix, other := wordIndex(t, one, Options{}), wordIndex(t, two, Options{})
		_, err := ix.Build(ctx, Pace{Rows: 1})
		require.NoError(t, err)
		require.Equal(t, []string{"1", "2"}, has(t, two, other, "b"))
		require.NoError(t, put(ctx, two, "3", "a"))
		require.NoError(t, put(ctx, one, "1", "c"))
		require.NoError(t, remove(ctx, two, "2"))
		require.Equal(t, []string{"3"}, has(t, one, ix, "a"))
		require.Empty(t, has(t, one, ix, "b"))
		require.Equal(t, []string{"1"}, has(t, two, other, "c"))
		r := matches(t, ix)
		require.Equal(t, 2, r.Entries)
		r, err = ix.Build(ctx, Pace{})
		require.NoError(t, err)
		require.Zero(t, r.Rows, "it is built")
		require.NoError(t, Drop(ctx, two, "word", Pace{Rows: 1}))
		require.NoError(t, Drop(ctx, one, "word", Pace{}))
		err = one.View(ctx, func(tx *percolator.Txn) error { _, err := ix.Find(ctx, tx, key("a")); return err })
		require.ErrorIs(t, err, ErrNotReadable)
		require.NoError(t, put(ctx, two, "4", "a"))
		_, err = other.Build(ctx, Pace{})
		require.NoError(t, err)
		require.Equal(t, []string{"3", "4"}, has(t, one, ix, "a"))
	}, settings)
}

// TestUnique has many callers who all want the same value.
func TestUnique(t *testing.T) {
	t.Parallel()
	everystore.Pairs(t, func(t *testing.T, one, two *percolator.DB) {
		ctx := t.Context()
		const callers = 64
		ix := wordIndex(t, two, Options{Unique: true})
		built(t, one, Options{Unique: true})
		var got, refused atomic.Int64
		var group errgroup.Group
		for i := range callers {
			group.Go(func() error {
				err := put(ctx, []*percolator.DB{one, two}[i%2], fmt.Sprint(i), fmt.Sprintf("name own%d", i))
				var not *NotUniqueError
				switch {
				case err == nil:
					got.Add(1)
				case errors.As(err, &not) && errors.Is(err, ErrNotUnique) && not.Value == key("name"):
					refused.Add(1)
				default:
					return err
				}
				return nil
			})
		}
		require.NoError(t, group.Wait())
		require.EqualValues(t, 1, got.Load())
		require.EqualValues(t, callers-1, refused.Load())
		require.Len(t, has(t, two, ix, "name"), 1)
		require.Equal(t, 1, matches(t, ix).Rows, "who is refused has written nothing")
	}, settings)
}

// TestUniqueWithinATransaction gives values on, swaps them, and deletes and sets them again.
func TestUniqueWithinATransaction(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	ix := built(t, db, Options{Unique: true})
	set := func(pairs ...string) error {
		return db.Update(ctx, func(tx *percolator.Txn) error {
			for i := 0; i < len(pairs); i += 2 {
				var err error
				if pairs[i+1] == "" {
					err = tx.Delete(words.Cell(pairs[i]))
				} else {
					err = words.Set(ctx, tx, pairs[i], pairs[i+1])
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	is := func(word, row string) {
		t.Helper()
		var got string
		require.NoError(t, db.View(ctx, func(tx *percolator.Txn) (err error) { got, err = ix.Find(ctx, tx, key(word)); return err }))
		require.Equal(t, row, got)
	}
	require.NoError(t, set("1", "a", "2", "b"))
	require.NoError(t, set("1", "b", "2", "a"), "they swap")
	is("a", "2")
	is("b", "1")
	require.NoError(t, set("2", "", "2", "a", "3", "c"), "it is deleted and set again")
	is("a", "2")
	require.NoError(t, set("2", "", "4", "a"), "it is given on")
	is("a", "4")
	require.ErrorIs(t, set("5", "d", "6", "d"), ErrNotUnique)
	require.ErrorIs(t, set("5", "a", "6", "e"), ErrNotUnique)
	require.NoError(t, set("5", "a", "5", "e", "4", "a a"))
	require.ErrorIs(t, set("5", "e f", "4", "f"), ErrNotUnique)
	require.NoError(t, set("5", "f", "4", "a e"))
	is("e", "4")
	require.Equal(t, 5, matches(t, ix).Entries)

	// The transaction sees what it does, also what it may not commit.
	err := db.Update(ctx, func(tx *percolator.Txn) error {
		require.NoError(t, words.Set(ctx, tx, "4", "g"))
		row, err := ix.Find(ctx, tx, key("g"))
		require.NoError(t, err)
		require.Equal(t, "4", row)
		_, err = ix.Find(ctx, tx, key("e"))
		require.ErrorIs(t, err, percolator.ErrNotFound)
		require.NoError(t, words.Set(ctx, tx, "4", "f"))
		_, err = ix.Find(ctx, tx, key("f"))
		require.ErrorIs(t, err, ErrNotUnique)
		require.NoError(t, words.Set(ctx, tx, "4", "h"))
		return nil
	})
	require.NoError(t, err)
	is("h", "4")
	matches(t, ix)
}

func TestLookups(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	ix := built(t, db, Options{})
	long := strings.Repeat("x", 600)
	row := strings.Repeat("r", 1500)
	texts := map[string]string{"1": "b", "2": "a c", "3": "ab", "4": "a\x00 b", "5": long + "1", row + "1": long + "1 a", row + "2": long + "2 a", "\x00": "z"}
	for row, text := range texts {
		require.NoError(t, put(ctx, db, row, text))
	}
	require.Equal(t, []string{"2", row + "1", row + "2"}, has(t, db, ix, "a"))
	require.Equal(t, []string{"1", "4"}, has(t, db, ix, "b"))
	require.Equal(t, []string{"5", row + "1"}, has(t, db, ix, long+"1"))
	require.Equal(t, []string{row + "2"}, has(t, db, ix, long+"2"))
	require.Empty(t, has(t, db, ix, long))
	require.Empty(t, has(t, db, ix, ""))
	require.Equal(t, []string{"\x00"}, has(t, db, ix, "z"))
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		for _, c := range []struct {
			r    Range
			want []string
		}{
			{Range{To: key("b")}, []string{"2", row + "1", row + "2", "4", "3"}},
			{Range{From: key("ab"), To: key("c")}, []string{"3", "1", "4"}},
			{Range{From: key("ab"), To: key("c"), Reverse: true, Limit: 2}, []string{"4", "1"}},
			{Range{From: key("c"), Limit: 1}, []string{"2"}},
			{Begins(key("b")), []string{"1", "4"}},
			{Range{From: key("y")}, []string{"\x00"}},
		} {
			got, err := rows(ix.Scan(ctx, tx, c.r))
			require.NoError(t, err)
			require.Equal(t, c.want, got, "%+v", c.r)
		}
		all, err := rows(ix.Scan(ctx, tx, Range{}))
		require.NoError(t, err)
		require.Len(t, all, 12)
		_, err = rows(ix.Scan(ctx, tx, Range{Limit: -1}))
		require.ErrorIs(t, err, percolator.ErrInvalid)
		return nil
	}))
	matches(t, ix)
	for row := range texts {
		require.NoError(t, remove(ctx, db, row))
	}
	require.Zero(t, matches(t, ix).Entries)
}

// builtPairs is an index by a text and its row.
func builtPairs(t *testing.T, db *percolator.DB) *Index[string] {
	t.Helper()
	pairs, err := New(db, "pair", words, func(row, text string) ([]keys.Key, error) { return []keys.Key{key(text).Text(row)}, nil }, Options{})
	require.NoError(t, err)
	_, err = pairs.Build(t.Context(), Pace{})
	require.NoError(t, err)
	return pairs
}

// TestValuesOfSeveralElements looks up what begins with some elements.
func TestValuesOfSeveralElements(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	pairs := builtPairs(t, db)
	for _, row := range []string{"2", "1", "3"} {
		require.NoError(t, put(ctx, db, row, "a"))
	}
	require.NoError(t, put(ctx, db, "4", "ab"))
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		got, err := rows(pairs.Scan(ctx, tx, Begins(key("a"))))
		require.Equal(t, []string{"1", "2", "3"}, got)
		return err
	}))
	require.Empty(t, has(t, db, pairs, "a"), "it is no value of a row")
}

// TestBeginsOfALongPrefix: what begins with a prefix is found, also where the value is cut, or there is an error.
func TestBeginsOfALongPrefix(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	pairs := builtPairs(t, db)
	other := len(key("")) // bytes of an encoded text beside its own
	for _, n := range []int{3, 400, keptOfCut - 1, keptOfCut, keptOfCut + 1, 490, 511, 512, 600} {
		long := strings.Repeat("x", n-other)
		row := fmt.Sprint("row", n, strings.Repeat("r", 200))
		require.NoError(t, put(ctx, db, row, long))
		require.Len(t, key(long), n)
		require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
			got, err := rows(pairs.Scan(ctx, tx, Begins(key(long))))
			if n < keptOfCut {
				require.NoError(t, err)
				require.Equal(t, []string{row}, got)
			} else {
				require.ErrorIs(t, err, percolator.ErrInvalid)
				require.ErrorContains(t, err, "it may have 478")
			}
			return nil
		}))
	}
}

// TestRefusedValues has values that cannot be told: nothing is written. What was there may be replaced all the same.
func TestRefusedValues(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	require.NoError(t, put(ctx, db, "old", "bad a"))
	ix := wordIndex(t, db, Options{})
	r, err := ix.Build(ctx, Pace{})
	require.NoError(t, err)
	require.Equal(t, 1, r.Damaged)
	require.ErrorIs(t, r.FirstDamaged, errWord)
	err = put(ctx, db, "1", "a bad")
	require.ErrorIs(t, err, ErrValues)
	require.ErrorIs(t, err, errWord)
	require.ErrorContains(t, put(ctx, db, "1", "a worse"), "panicked: worse")
	require.Empty(t, has(t, db, ix, "a"))
	require.NoError(t, put(ctx, db, "old", "a"))
	require.Equal(t, []string{"old"}, has(t, db, ix, "a"))
	require.ErrorIs(t, put(ctx, db, strings.Repeat("r", 4096), "a"), percolator.ErrTooLarge)
	matches(t, ix)
}

// TestNoTuples looks for what package keys does not make, which would find nothing, and has a function that makes it.
func TestNoTuples(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	for name, opt := range map[string]Options{"unique": {Unique: true, Entries: "unique"}, "several": {Entries: "several"}} {
		ix, err := New(db, name, words, func(_, text string) ([]keys.Key, error) { return []keys.Key{key("fine"), keys.Key(text)}, nil }, opt)
		require.NoError(t, err)
		_, err = ix.Build(ctx, Pace{})
		require.NoError(t, err)
		err = put(ctx, db, "1", "secret")
		require.ErrorIs(t, err, ErrValues)
		require.ErrorIs(t, err, keys.ErrKey)
		require.NotContains(t, err.Error(), "secret")
		require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
			_, err := tx.Get(ctx, words.Cell("1"))
			require.ErrorIs(t, err, percolator.ErrNotFound)
			_, err = ix.Find(ctx, tx, "ann")
			require.ErrorIs(t, err, percolator.ErrInvalid)
			require.ErrorIs(t, err, keys.ErrKey)
			_, err = rows(ix.Lookup(ctx, tx, key("ann")+"x"))
			require.ErrorIs(t, err, percolator.ErrInvalid)
			for _, r := range []Range{{From: "a"}, {To: "b"}, {From: key("a"), To: "b"}, Begins("a")} {
				_, err = rows(ix.Scan(ctx, tx, r))
				require.ErrorIs(t, err, percolator.ErrInvalid, "%+v", r)
			}
			return nil
		}))
		require.NoError(t, Drop(ctx, db, name, Pace{}))
	}
}

func TestInvalid(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	for _, f := range []func() (*Index[string], error){
		func() (*Index[string], error) { return New(nil, "word", words, eachWord, Options{}) },
		func() (*Index[string], error) { return New(db, "", words, eachWord, Options{}) },
		func() (*Index[string], error) { return New(db, "word", words, nil, Options{}) },
		func() (*Index[string], error) {
			return New(db, "word", typed.Column[string]{Table: "doc", Name: "text"}, eachWord, Options{})
		},
		func() (*Index[string], error) {
			return New(db, "word", typed.Column[string]{Codec: typed.Text[string]{}}, eachWord, Options{})
		},
		func() (*Index[string], error) { return New(db, "word", words, eachWord, Options{Entries: "doc"}) },
	} {
		_, err := f()
		require.ErrorIs(t, err, percolator.ErrInvalid)
	}
	ix := wordIndex(t, db, Options{})
	_, err := New(db, "word", words, eachWord, Options{Version: 1})
	require.ErrorIs(t, err, percolator.ErrInvalid)
	for _, p := range []Pace{{Rows: -1}, {Rows: mostRows + 1}, {Pause: -1}} {
		_, err := ix.Build(ctx, p)
		require.ErrorIs(t, err, percolator.ErrInvalid)
		_, err = ix.Check(ctx, p)
		require.ErrorIs(t, err, percolator.ErrInvalid)
		require.ErrorIs(t, Drop(ctx, db, "word", p), percolator.ErrInvalid)
	}
	require.ErrorIs(t, Drop(ctx, nil, "word", Pace{}), percolator.ErrInvalid)
	_, err = ix.Check(ctx, Pace{})
	require.ErrorIs(t, err, ErrNotReadable)
	_, err = ix.Repair(ctx, Pace{})
	require.ErrorIs(t, err, ErrNotReadable)
}
