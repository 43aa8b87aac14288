package ui_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
	"github.com/percolate-go/percolate/ui"
)

func try(err error) {
	if err != nil {
		panic(err)
	}
}

// signedIn stands for a program's own way to know who asks.
func signedIn(r *http.Request) (name string, operator bool) {
	return r.Header.Get("X-User"), r.Header.Get("X-User") == "ann"
}

// A program serves the page beside its own, to whom it knows.
func ExampleNew() {
	ctx := context.Background()
	db, err := percolator.New(ctx, memstore.New())
	try(err)
	defer func() { try(db.Close(ctx)) }()

	page, err := ui.New(db, func(r *http.Request) (ui.Access, error) {
		user, operator := signedIn(r)
		if user == "" {
			return ui.Access{}, ui.ErrForbidden
		}
		return ui.Access{Who: user, Actions: operator, Values: operator}, nil
	}, ui.Options{Hosts: []string{"shop.example.org"}})
	try(err)
	defer func() { try(page.Close(ctx)) }() // before db.Close: it ends the page's replays, and waits for requests

	mux := http.NewServeMux()
	mux.Handle("/percolator/", page)

	for _, host := range []string{"shop.example.org", "evil.example.com"} {
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+"/percolator/observers", nil)
		r.Header.Set("X-User", "ann")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Println(host, w.Code)
	}
	// Output:
	// shop.example.org 200
	// evil.example.com 421
}
