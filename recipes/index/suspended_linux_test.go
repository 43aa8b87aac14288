package index

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/keys"
	"github.com/percolate-go/percolate/percolator"
)

// processLease is that of the sessions and locks of the processes here. They are suspended for longer, and for longer than the catalog's lease.
const processLease = 300 * time.Millisecond

const suspendedRows = 60

func openProcess(ctx context.Context, url string) (*percolator.DB, error) {
	return percolator.Open(ctx, url, settings, percolator.WithSessionLease(processLease), percolator.WithLockExpiry(processLease))
}

// writing is a process that writes and deletes rows, with the index of unique words unless it is a "stranger". It says "wrote", or "refused" if it does not know the index.
var writing = everystore.NewRole("index writer", func(ctx context.Context, url, name string) error {
	within := context.WithoutCancel(ctx)
	db, err := openProcess(within, url)
	if err != nil {
		return err
	}
	if name != "stranger" {
		if _, err = New(db, "word", words, eachWord, Options{Unique: true}); err != nil {
			return err
		}
	}
	fmt.Println("open")
	for n := 0; ctx.Err() == nil; n++ {
		row := strconv.Itoa(n * 7 % suspendedRows)
		if n%4 == 3 {
			err = remove(within, db, row)
		} else { // some words are the row's own, and others are wanted by all
			err = put(within, db, row, fmt.Sprintf("w%d own%s/%d", n*11%suspendedRows, row, n%5))
		}
		switch {
		case err == nil, errors.Is(err, ErrNotUnique):
			fmt.Println("wrote")
		case errors.Is(err, percolator.ErrIndexed):
			fmt.Println("refused")
			return db.Close(within)
		default:
			fmt.Println("failed", err)
		}
	}
	return db.Close(within)
})

// building is a process that builds the index, a row at a time, over rows that are there or that it makes first. It takes its time, so that it can be suspended meanwhile.
var building = everystore.NewRole("index builder", func(ctx context.Context, url, what string) error {
	within := context.WithoutCancel(ctx)
	db, err := openProcess(within, url)
	if err != nil {
		return err
	}
	ix, err := New(db, "word", words, eachWord, Options{Unique: true})
	if err == nil && what == "fill" {
		err = fill(within, db)
	}
	if err == nil {
		fmt.Println("open")
		_, err = ix.Build(within, Pace{Rows: 1, Pause: 20 * time.Millisecond})
	}
	fmt.Println("built", err)
	<-ctx.Done()
	return db.Close(within)
})

// fill puts a row of each number.
func fill(ctx context.Context, db *percolator.DB) error {
	return db.Update(ctx, func(tx *percolator.Txn) error {
		for i := range suspendedRows {
			if err := words.Set(ctx, tx, strconv.Itoa(i), fmt.Sprintf("first%d", i)); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestSuspendedWriters has writers of which one is suspended before the index is defined, and goes on when it is built: one that keeps the index, and one that does not know it. The
// index is built meanwhile, without them.
func TestSuspendedWriters(t *testing.T) {
	t.Parallel()
	everystore.Servers(t, func(t *testing.T, url string) {
		ctx := t.Context()
		db, err := openProcess(ctx, url)
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close(context.WithoutCancel(ctx))) }()
		require.NoError(t, fill(ctx, db))
		awake, asleep, stranger := writing.Start(t, url, ""), writing.Start(t, url, ""), writing.Start(t, url, "stranger")
		for _, p := range []*everystore.Process{awake, asleep, stranger} {
			p.Await(t, "wrote", 3)
		}
		asleep.Suspend(t)
		stranger.Suspend(t)
		var report Report
		ix := wordIndex(t, db, Options{Unique: true})
		for built := false; !built; { // until those who do not know the index yet have made their duplicates good
			report, err = ix.Build(ctx, Pace{Rows: 10})
			if built = err == nil; !built {
				require.ErrorIs(t, err, ErrNotUnique)
				for _, d := range report.Duplicates {
					require.NoError(t, remove(ctx, db, d.Other))
				}
			}
		}
		require.Positive(t, report.Rows)
		atLeast := len(awake.Said("wrote")) + 5
		awake.Until(t, func() bool { return len(awake.Said("wrote")) >= atLeast }, "nobody can write")
		before, strange := len(asleep.Said("wrote")), len(stranger.Said("wrote"))
		asleep.Resume(t)
		stranger.Resume(t)
		asleep.Await(t, "wrote", before+10)
		stranger.Await(t, "refused", 1)
		require.LessOrEqual(t, len(stranger.Said("wrote")), strange+1, "what it had committed before it was suspended")
		for _, p := range []*everystore.Process{awake, asleep, stranger} {
			p.End(t)
		}
		r := matches(t, ix)
		require.Equal(t, 0, r.Damaged)
	})
}

// TestSuspendedBuilder suspends a process while it builds. Another one builds to the end, and everybody writes meanwhile; the first one, which then goes on, does no harm.
func TestSuspendedBuilder(t *testing.T) {
	t.Parallel()
	everystore.Servers(t, func(t *testing.T, url string) {
		ctx := t.Context()
		db, err := openProcess(ctx, url)
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close(context.WithoutCancel(ctx))) }()
		require.NoError(t, fill(ctx, db))
		ix := wordIndex(t, db, Options{Unique: true})
		builder := building.Start(t, url, "")
		builder.Await(t, "open", 1)
		at := func() (from string) {
			require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
				stored, err := tx.Get(ctx, percolator.Cell{Table: ix.opt.Entries, Row: rowProgress, Column: columnProgress})
				if errors.Is(err, percolator.ErrNotFound) {
					return nil
				}
				from = string(stored)
				return err
			}))
			return from
		}
		builder.Until(t, func() bool { return at() != "" }, "it does not begin")
		builder.Suspend(t)
		require.Empty(t, builder.Said("built"), "it was suspended too late")
		writer := writing.Start(t, url, "")
		writer.Await(t, "wrote", 3)
		_, err = ix.Build(ctx, Pace{Rows: 7})
		require.NoError(t, err)
		r := matches(t, ix)
		require.Positive(t, r.Entries)
		builder.Resume(t)
		builder.Await(t, "built", 1)
		require.Equal(t, []string{"<nil>"}, builder.Said("built"))
		writer.Await(t, "wrote", len(writer.Said("wrote"))+5)
		builder.End(t)
		writer.End(t)
		matches(t, ix)
		require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
			_, err := rows(ix.Scan(ctx, tx, Begins(keys.Key(""))))
			return err
		}), "it is readable still")
	})
}

// TestSuspendedAlone suspends the only process of an embedded store while it builds.
func TestSuspendedAlone(t *testing.T) {
	t.Parallel()
	url := "pebble:" + filepath.Join(t.TempDir(), "data")
	p := building.Start(t, url, "fill")
	p.Await(t, "open", 1)
	for range 3 {
		p.Suspend(t)
		begun := time.Now()
		p.Until(t, func() bool { return time.Since(begun) > 4*processLease }, "time stands still")
		p.Resume(t)
	}
	p.Await(t, "built", 1)
	require.Equal(t, []string{"<nil>"}, p.Said("built"))
	p.End(t)
	db, err := openProcess(t.Context(), url)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close(context.WithoutCancel(t.Context()))) }()
	require.Equal(t, suspendedRows, matches(t, wordIndex(t, db, Options{Unique: true})).Entries)
}
