package percolator

import (
	"fmt"
	"reflect"
)

// What other packages keep beside a transaction, in memory.

// Attach keeps a value beside the transaction, for a package that has to find it again when it is called with the same one, in place of the
// value that it kept under the key before. It goes with the transaction, also with one that nobody ends, which a map of the package's own
// would hold for ever. As with the keys of a context, a type that the package does not export makes a key of its own. Update and a Worker
// begin each attempt with nothing. Errors: ErrInvalid for a key that is nil or cannot be compared, ErrTxnDone.
func (tx *Txn) Attach(key, value any) error {
	switch {
	case !isKey(key):
		return fmt.Errorf("percolator: Attach: %w: a %T is no key", ErrInvalid, key)
	case tx.done:
		return ErrTxnDone
	}
	if tx.attached == nil {
		tx.attached = make(map[any]any, 1)
	}
	tx.attached[key] = value
	return nil
}

// Attached returns what Attach has kept under a key, nil for nothing, and once the functions of OnEnd have returned.
func (tx *Txn) Attached(key any) any {
	if len(tx.attached) == 0 || !isKey(key) {
		return nil
	}
	return tx.attached[key]
}

func isKey(key any) bool { return key != nil && reflect.ValueOf(key).Comparable() }

// OnEnd has f called once, when the transaction ends: by Commit just before it returns, with the
// error that it returns, or by Rollback, with nil. So CommitTimestamp tells after a nil whether the transaction
// took effect. It is for what a package gives a transaction while it is open (see Attach), such as a name that no other
// transaction may use meanwhile. Several functions are called in the order of the calls of OnEnd, by the goroutine that ends the
// transaction. They must be quick, and have nothing to read or write: every method but StartTimestamp, Begun, Now, Hops and
// CommitTimestamp returns ErrTxnDone. Update, View and a Worker end each of their transactions. A transaction that
// nobody ends calls nothing. Errors: ErrInvalid for a nil f, ErrTxnDone.
func (tx *Txn) OnEnd(f func(err error)) error {
	switch {
	case f == nil:
		return fmt.Errorf("percolator: OnEnd: %w: the function is nil", ErrInvalid)
	case tx.done:
		return ErrTxnDone
	}
	tx.onEnd = append(tx.onEnd, f)
	return nil
}
