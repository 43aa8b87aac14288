package index

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/keys"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// program is a program that defines the index in its own way.
type program struct {
	db       *percolator.DB
	ix       *Index[string]
	writes   atomic.Int64
	refused  atomic.Bool
	stop     atomic.Bool
	buildErr error
}

func programWith(t *testing.T, inner rowstore.Store, opt Options) *program {
	t.Helper()
	p := &program{db: everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true}), settings)}
	var err error
	p.ix, err = New(p.db, "word", words, func(row, text string) ([]keys.Key, error) {
		if opt.Version == 1 {
			text = strings.ToUpper(text)
		}
		return eachWord(row, text)
	}, opt)
	require.NoError(t, err)
	return p
}

// TestTwoDefinitionsAtOnce has two programs that define an index differently, and build it at the same moment while both write. One of them has the index then. The other one can neither
// read it nor write the column, until the index is dropped.
func TestTwoDefinitionsAtOnce(t *testing.T) {
	t.Parallel()
	for _, other := range []Options{{Version: 1}, {Unique: true}, {Entries: "elsewhere"}} {
		t.Run(fmt.Sprintf("%+v", other), func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			inner := memstore.New()
			atend.Do(t, func() { _ = inner.Close() })
			programs := make([]*program, 2)
			for i, opt := range []Options{{}, other} {
				programs[i] = programWith(t, inner, opt)
			}
			var building, writing sync.WaitGroup
			for i, p := range programs {
				building.Go(func() { _, p.buildErr = p.ix.Build(ctx, Pace{Rows: 3}) })
				writing.Go(func() {
					for n := 0; !p.refused.Load() && !p.stop.Load(); n++ {
						switch err := put(ctx, p.db, fmt.Sprint(n%20), fmt.Sprintf("w%d-%d", i, n)); {
						case err == nil:
							p.writes.Add(1)
						case errors.Is(err, percolator.ErrIndexed):
							p.refused.Store(true)
						default:
							t.Error(err)
							return
						}
					}
				})
			}
			building.Wait()
			winner, loser := programs[0], programs[1]
			if winner.buildErr != nil {
				winner, loser = loser, winner
			}
			require.NoError(t, winner.buildErr)
			require.ErrorIs(t, loser.buildErr, percolator.ErrInvalid)
			assert.Eventually(t, loser.refused.Load, time.Minute, time.Millisecond, "it goes on to write entries of its own")
			for _, p := range programs {
				p.stop.Store(true)
			}
			writing.Wait()
			require.False(t, winner.refused.Load())
			require.Positive(t, winner.writes.Load())
			r := matches(t, winner.ix)
			require.Positive(t, r.Rows)
			require.ErrorIs(t, put(ctx, loser.db, "1", "x"), percolator.ErrIndexed)
			require.ErrorIs(t, remove(ctx, loser.db, "1"), percolator.ErrIndexed)
			err := loser.db.View(ctx, func(tx *percolator.Txn) error { _, err := loser.ix.Find(ctx, tx, key("x")); return err })
			require.ErrorIs(t, err, ErrNotReadable)
			_, err = loser.ix.Repair(ctx, Pace{})
			require.ErrorIs(t, err, ErrNotReadable, "it would replace the entries by its own")
			matches(t, winner.ix)

			require.NoError(t, Drop(ctx, loser.db, "word", Pace{}))
			require.NoError(t, put(ctx, loser.db, "1", "x"))
			_, err = loser.ix.Build(ctx, Pace{})
			require.NoError(t, err)
			matches(t, loser.ix)
			require.ErrorIs(t, put(ctx, winner.db, "1", "y"), percolator.ErrIndexed)
		})
	}
}
