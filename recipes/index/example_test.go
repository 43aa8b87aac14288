package index_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/percolate-go/percolate/keys"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
	"github.com/percolate-go/percolate/recipes/index"
	"github.com/percolate-go/percolate/typed"
)

// Users are found by their address, which no two of them may have.
func Example() {
	ctx := context.Background()
	db, err := percolator.New(ctx, memstore.New())
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = db.Close(ctx) }()
	mail := typed.Column[string]{Table: "user", Name: "mail", Codec: typed.Text[string]{}}
	byMail, err := index.New(db, "user by mail", mail, func(_ string, address string) ([]keys.Key, error) {
		return []keys.Key{keys.Key("").Text(address)}, nil
	}, index.Options{Unique: true})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := byMail.Build(ctx, index.Pace{}); err != nil {
		log.Fatal(err)
	}
	for _, user := range []string{"ann", "bob"} {
		err := db.Update(ctx, func(tx *percolator.Txn) error { return mail.Set(ctx, tx, user, "ann@example.org") })
		fmt.Println(user, errors.Is(err, index.ErrNotUnique))
	}
	err = db.View(ctx, func(tx *percolator.Txn) error {
		user, err := byMail.Find(ctx, tx, keys.Key("").Text("ann@example.org"))
		fmt.Println("found", user)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// ann false
	// bob true
	// found ann
}
