package rowstore

import (
	"context"

	"github.com/percolate-go/percolate/internal/hash"
)

// Waker is the optional push that notifications exist. Without it workers poll,
// at an interval that adapts.
type Waker interface {
	// Listen calls wake each time that a mutation, by any client of the data, has put a
	// Notify without putting a Lock (a commit, not a prewrite). Several mutations may
	// share a call, and a call may come without one. Listen calls wake with the zero Wake
	// once as soon as it listens. wake returns at once and is called from one goroutine at
	// a time. If it takes longer all the same, mutations do not wait for it, and Listen
	// tells afterwards of what came meanwhile.
	//
	// Listen returns ctx.Err() when the context ended, and any other error when it
	// lost the ability to listen; the caller calls again after a while.
	Listen(ctx context.Context, wake func(Wake)) error
}

// Wakers is the Waker of a store that is made of several. Whoever listens to each of them by
// itself still hears of the others while one of them fails. A wrapper that puts a Waker of its
// own over this one does so over each.
type Wakers interface {
	// Listen listens to all of them: it calls the zero Wake for each that listens, and
	// returns when one of them fails.
	Waker
	// Wakers returns them, at least one, the same each time. Together they tell of every
	// notification. None of them is a Wakers. Their errors say whose they are. It may be
	// called concurrently.
	Wakers() []Waker
}

// WakersOf returns what can be listened to by itself: each of several ([Wakers]), else w alone.
func WakersOf(w Waker) []Waker {
	if several, ok := w.(Wakers); ok {
		return several.Wakers()
	}
	return []Waker{w}
}

// Wake says where there may be new notifications. The zero Wake means anywhere.
type Wake struct {
	// Table is the table, or "" for any.
	Table string
	// Slots has the slots of the rows ([Slot]), in any order, some perhaps twice. Without
	// any it means every row of the table, which is right for more than 1,024 slots: a worker remembers
	// no more of them. Listeners that share the rows out by slots look
	// only if a slot is their own. A store that names no slots works, and its workers look
	// more often.
	Slots []uint16
}

// Slots is the number of slots into which the rows of a table fall.
const Slots = 1 << 16

// Slot is the slot of a row. Workers share the changes of a table out by slots. All programs
// compute the same ones: the function never changes. It may be called concurrently.
func Slot(table, row string) uint16 {
	h := hash.Mix(hash.String(hash.String(hash.Start, table)^0xff, row))
	return uint16(h >> 48) //nolint:gosec // 16 bits
}
