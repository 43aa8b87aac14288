package percolatetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
)

// A reservation lapses unless it is paid before. Careful is whether the payment takes the timer back.
func reservation(careful bool) Program {
	state := percolator.Cell{Table: "seat", Row: "1", Column: "state"}
	is := func(ctx context.Context, tx *percolator.Txn, want string) (bool, error) {
		v, err := tx.Get(ctx, state)
		if errors.Is(err, percolator.ErrNotFound) {
			return want == "", nil
		}
		return string(v) == want, err
	}
	lapsed := percolator.Cell{Table: "seat", Row: "1", Column: "lapsed"}
	return Program{
		Setup: func(ctx context.Context, db *percolator.DB) error {
			return db.Update(ctx, func(tx *percolator.Txn) error {
				return errors.Join(tx.Set(state, []byte("reserved")), tx.NotifyAfter(ctx, state, 10*time.Minute))
			})
		},
		Clients: []Client{{Name: "pays", Run: func(ctx context.Context, db *percolator.DB) error {
			return db.Update(ctx, func(tx *percolator.Txn) error {
				if ok, err := is(ctx, tx, "reserved"); err != nil || !ok {
					return err
				}
				if _, err := tx.Get(ctx, lapsed); err == nil {
					return nil
				}
				if err := tx.Set(percolator.Cell{Table: "seat", Row: "1", Column: "paid"}, []byte("x")); err != nil || !careful {
					return err
				}
				return tx.CancelNotify(state)
			})
		}}},
		Observers: []percolator.Observer{{Name: "lapse", Table: "seat", Column: "state", OnChange: func(_ context.Context, tx *percolator.Txn, ch percolator.Change) error {
			if ch.Due.IsZero() {
				return nil
			}
			return tx.Set(lapsed, []byte("x"))
		}}},
		Finally: func(ctx context.Context, tx *percolator.Txn) error {
			both, none := 0, 0
			for _, column := range []string{"paid", "lapsed"} {
				switch _, err := tx.Get(ctx, percolator.Cell{Table: "seat", Row: "1", Column: column}); {
				case err == nil:
					both++
				case errors.Is(err, percolator.ErrNotFound):
					none++
				default:
					return err
				}
			}
			if both == 2 || none == 2 {
				return errors.New("the seat is neither paid nor free")
			}
			return nil
		},
	}
}

// When a timer is due is a choice: a payment that takes it back is right in every order, one that does not is not.
func TestTimersAreChoices(t *testing.T) {
	t.Parallel()
	r := explore(t, reservation(true))
	require.Nil(t, r.Violation)
	require.True(t, r.Complete)
	require.Greater(t, r.Schedules, 2)
	bad := explore(t, reservation(false))
	require.NotNil(t, bad.Violation)
	require.Contains(t, bad.Violation.Schedule, "clock: the timer of seat/1/state is due")
	require.True(t, bad.Violation.Deterministic)
}

// A function that sets its own timer again and again is explored for as many times as the Program says.
func TestTimersEnd(t *testing.T) {
	t.Parallel()
	cell, runs := percolator.Cell{Table: "t", Row: "a", Column: "v"}, 0
	p := Program{
		Setup: func(ctx context.Context, db *percolator.DB) error {
			runs = 0
			return db.Update(ctx, func(tx *percolator.Txn) error { return tx.NotifyAfter(ctx, cell, time.Hour) })
		},
		Observers: []percolator.Observer{{Name: "o", Table: "t", Column: "v", Func: func(ctx context.Context, tx *percolator.Txn, _ percolator.Cell) error {
			runs++
			return tx.NotifyAfter(ctx, cell, time.Second)
		}}},
		Finally: func(context.Context, *percolator.Txn) error {
			if runs != 3 {
				return errors.New("not three runs")
			}
			return nil
		},
		Timers: 3,
	}
	r := explore(t, p)
	require.Nil(t, r.Violation)
	require.True(t, r.Complete)
}
