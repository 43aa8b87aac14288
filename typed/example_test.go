package typed_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
	"github.com/percolate-go/percolate/typed"
)

func Example() {
	ctx := context.Background()
	db, err := percolator.New(ctx, memstore.New())
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = db.Close(ctx) }()
	balance := typed.Column[int]{Table: "account", Name: "balance", Codec: typed.Number[int]{}}
	for _, amount := range []int{10, -3} {
		err := db.Update(ctx, func(tx *percolator.Txn) error {
			have, err := balance.Get(ctx, tx, "ann")
			if err != nil && !errors.Is(err, percolator.ErrNotFound) {
				return err
			}
			return balance.Set(ctx, tx, "ann", have+amount)
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	err = db.View(ctx, func(tx *percolator.Txn) error {
		have, err := balance.Get(ctx, tx, "ann")
		fmt.Println(have)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: 7
}

func ExampleTable() {
	type account struct {
		Owner   string   `percolator:"owner"`
		Limit   int      `percolator:"limit,omitzero"`
		Flags   []string `percolator:"flags"`
		Balance int      `percolator:"balance"`
	}
	ctx := context.Background()
	db, err := percolator.New(ctx, memstore.New())
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = db.Close(ctx) }()
	accounts, err := typed.NewTable[account]("account")
	if err != nil {
		log.Fatal(err)
	}
	err = db.Update(ctx, func(tx *percolator.Txn) error {
		return accounts.Set(tx, "1", account{Owner: "ann", Balance: 5})
	})
	if err != nil {
		log.Fatal(err)
	}
	// Only the cell of the balance is written.
	err = db.Update(ctx, func(tx *percolator.Txn) error {
		return accounts.Update(ctx, tx, "1", func(a *account, found bool) error {
			a.Balance++
			return nil
		})
	})
	if err != nil {
		log.Fatal(err)
	}
	err = db.View(ctx, func(tx *percolator.Txn) error {
		a, err := accounts.Get(ctx, tx, "1")
		fmt.Printf("%+v\n", a)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: {Owner:ann Limit:0 Flags:[] Balance:6}
}
