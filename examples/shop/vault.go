package main

import (
	"context"
	"crypto/rand"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/typed"
)

// vault keeps the customers' keys, in a table with a short history. To keep it out of the backups of the other data, give the
// table "vault" a store of its own in the configuration.
type vault struct{ db *percolator.DB }

var secrets = typed.Column[[]byte]{Table: "vault", Name: "key", Codec: typed.Bytes{}}

// Current implements typed.Keys: it makes the key of a customer who has none.
func (v *vault) Current(ctx context.Context, cell percolator.Cell) (name string, key []byte, err error) {
	err = v.db.Update(ctx, func(tx *percolator.Txn) (err error) {
		if key, err = secrets.Get(ctx, tx, cell.Row); !isNotFound(err) {
			return err
		}
		key = make([]byte, 32)
		_, _ = rand.Read(key) // it never fails
		return secrets.Set(ctx, tx, cell.Row, key)
	})
	return cell.Row, key, err
}

// Key implements typed.Keys.
func (v *vault) Key(ctx context.Context, _ percolator.Cell, name string) (key []byte, err error) {
	err = v.db.View(ctx, func(tx *percolator.Txn) (err error) {
		key, err = secrets.Get(ctx, tx, name)
		return orElse(err, typed.ErrKeyGone)
	})
	return key, err
}

// destroy destroys the key of a customer, as a part of tx.
func (v *vault) destroy(ctx context.Context, tx *percolator.Txn, customer string) error {
	return secrets.Delete(ctx, tx, customer)
}
