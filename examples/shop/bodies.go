package main

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
)

// Bounds of what a request may say.
const (
	maxID       = 64
	maxKey      = 200
	maxName     = 200
	maxLines    = 100
	maxQuantity = 1000
	maxPrice    = 100_000_000
)

var productID = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

// body is what a request brings.
type body interface {
	check() error
}

type (
	product  Product
	person   Person
	nothing  struct{}
	payment  struct{ Amount int64 }
	delivery struct{ Quantity int64 }
	basket   struct {
		Customer string
		Lines    []Wanted
	}
)

func (nothing) check() error { return nil }

func (p product) check() error {
	if p.Price < 1 || p.Price > maxPrice {
		return malformed("bad_price", fmt.Sprintf("price is from 1 to %d", maxPrice))
	}
	return checkName(p.Name)
}

func (p person) check() error {
	if !strings.Contains(p.Mail, "@") || len(p.Mail) > maxName {
		return malformed("bad_mail", "mail is no address")
	}
	return checkName(p.Name)
}

func (p payment) check() error {
	if p.Amount < 1 {
		return malformed("bad_amount", "amount is positive")
	}
	return nil
}

func (d delivery) check() error {
	if d.Quantity < 1 || d.Quantity > maxStock {
		return malformed("bad_quantity", fmt.Sprintf("quantity is from 1 to %d", maxStock))
	}
	return nil
}

func (b basket) check() error {
	if len(b.Lines) < 1 || len(b.Lines) > maxLines {
		return malformed("bad_lines", fmt.Sprintf("an order has from 1 to %d lines", maxLines))
	}
	if b.Customer == "" || len(b.Customer) > maxID {
		return malformed("bad_customer", "customer is the number of a customer")
	}
	seen := map[string]bool{}
	for _, l := range b.Lines {
		switch {
		case !productID.MatchString(l.Product):
			return malformed("bad_product", "product is the name of a product")
		case l.Quantity < 1 || l.Quantity > maxQuantity:
			return malformed("bad_quantity", fmt.Sprintf("quantity is from 1 to %d", maxQuantity))
		case seen[l.Product]:
			return malformed("bad_lines", fmt.Sprintf("%q comes twice", l.Product))
		}
		seen[l.Product] = true
	}
	return nil
}

func checkName(name string) error {
	if name == "" || len(name) > maxName {
		return malformed("bad_name", fmt.Sprintf("name has 1 to %d bytes", maxName))
	}
	return nil
}

// checkID refuses an address that cannot be that of anything.
func checkID(r *http.Request) error {
	if id := r.PathValue("id"); len(id) > maxID {
		return notFound("resource", r.Method+" "+id[:maxID]+"...")
	}
	return nil
}
