package percolator

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// What an observer has recorded of failed runs belongs to its registration, as its acknowledgments do.

// removes removes an observer, and waits until everybody knows.
func (w *world) removes(c *client, observer string) {
	w.t.Helper()
	require.NoError(w.t, c.RemoveObserver(w.t.Context(), observer))
	w.pass(worldLease)
}

// recorded tells whether an observer keeps a failure record for a cell.
func (w *world) recorded(observer string, cell Cell) bool {
	w.t.Helper()
	row := w.raw(cell)
	_, found, err := failureIn(&row, format.FailureColumn(observer, cell.stored().Column), 0)
	require.NoError(w.t, err)
	return found
}

func TestFailuresOfAnEarlierRegistration(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fail  error // of the earlier one
		again error // of the later one
	}{
		"it was to be repeated later":         {fail: RetryAfter(24 * time.Hour)},
		"it had failed":                       {fail: errTest},
		"it had failed, and fails once more":  {fail: errTest, again: errTest}, // parked after two
		"it was put off, and fails once more": {fail: RetryAfter(time.Hour), again: errTest},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			c := w.client()
			o := newTold(t, c, "o", "t")
			set(t, c.DB, rowA, "1")
			o.fail = test.fail
			require.True(t, o.run(rowA))
			require.False(t, o.run(rowA), "it waits for its next attempt")
			w.removes(c, "o")
			o.register()
			o.fail = test.again
			require.True(t, o.run(rowA), "it begins anew")
			parked, err := c.Parked(t.Context())
			require.NoError(t, err)
			require.Empty(t, parked, "it is the first failure")
			if test.again != nil {
				require.True(t, w.recorded("o", rowA))
				w.pass(time.Minute)
				o.fail = nil
				require.True(t, o.run(rowA))
			}
			require.False(t, w.recorded("o", rowA), "the run that takes effect removes the record")
			require.Empty(t, w.notified(rowA))
		})
	}
}

// A request for one more run ends with the registration. The sweep of the next one shows it the cell.
func TestRequestOfAnEarlierRegistration(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	o := newTold(t, c, "o", "t")
	set(t, c.DB, rowA, "1")
	require.True(t, o.run(rowA))
	require.NoError(t, c.Update(t.Context(), func(tx *Txn) error {
		row := w.raw(rowA)
		return tx.askAgain("o", rowA.stored(), row.Newest(rowstore.Write, "v").TS, &row)
	}))
	w.removes(c, "o")
	o.register()
	r := &replay{db: c.DB, since: c.known().registrations("t", "v").since[0]}
	r.record = format.Replay{Observer: []byte("o"), Table: []byte("t"), Column: []byte("v")}
	_, _, err := r.addAsked(t.Context(), "", "", addedPage)
	require.NoError(t, err)
	require.Empty(t, r.left, "nobody waits for it")
	require.True(t, o.run(rowA))
	require.False(t, o.run(rowA))
	require.False(t, w.recorded("o", rowA))
}

// A run of an earlier registration that fails late counts for nobody.
func TestLateFailureOfAnEarlierRegistration(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]error{"a failure": errTest, "the last one": Park(errTest), "a later time": RetryAfter(time.Hour)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			c := w.client()
			o := newTold(t, c, "o", "t")
			set(t, c.DB, rowA, "1")
			o.fail = fail
			o.during = func(*Txn, Change) {
				if o.calls == 1 {
					w.removes(c, "o")
					o.register()
				}
			}
			require.True(t, o.run(rowA))
			require.False(t, w.recorded("o", rowA))
			parked, err := c.Parked(t.Context())
			require.NoError(t, err)
			require.Empty(t, parked)
			o.fail = nil
			require.True(t, o.run(rowA), "the later one runs at once")
			require.False(t, o.run(rowA))
		})
	}
}

// A rename is no new registration.
func TestFailuresCountAfterARename(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	o := newTold(t, c, "o", "t") // two attempts
	set(t, c.DB, rowA, "1")
	o.fail = errTest
	require.True(t, o.run(rowA))
	require.NoError(t, c.RenameObserver(t.Context(), "o", "new"))
	w.pass(time.Minute)
	require.True(t, o.run(rowA))
	parked, err := c.Parked(t.Context())
	require.NoError(t, err)
	require.Len(t, parked, 1)
	require.Equal(t, 2, parked[0].Attempts)
}
