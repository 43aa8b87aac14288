package main

import (
	"context"
	"crypto/rand"
	"fmt"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/typed"
)

// vault keeps the customers' keys, in a table with a short history. To keep it out of the backups of the other data, give the
// table "vault" a store of its own in the configuration.
type vault struct{ db *percolator.DB }

var secrets = typed.Column[[]byte]{Table: "vault", Name: "key", Codec: typed.Bytes{}}

// newKey finds, in a context, the key of a customer whom a transaction is about to commit.
type newKey struct{ customer string }

// create makes the key of a new customer, as a part of tx. Before tx has committed, only who has the context that it returns finds the key.
func (v *vault) create(ctx context.Context, tx *percolator.Txn, customer string) (context.Context, error) {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // it never fails
	return context.WithValue(ctx, newKey{customer}, key), secrets.Set(ctx, tx, customer, key)
}

// Current implements typed.Keys. A codec must not change data, so it makes no key.
func (v *vault) Current(ctx context.Context, cell percolator.Cell) (name string, key []byte, err error) {
	key, err = v.Key(ctx, cell, cell.Row)
	return cell.Row, key, orElse(err, fmt.Errorf("customer %q has no key: it was destroyed, or nobody has made one", cell.Row))
}

// Key implements typed.Keys.
func (v *vault) Key(ctx context.Context, _ percolator.Cell, name string) (key []byte, err error) {
	if key, ok := ctx.Value(newKey{name}).([]byte); ok {
		return key, nil
	}
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
