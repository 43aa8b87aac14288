package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"

	"github.com/percolate-go/percolate/percolator"
)

// maxBody is the greatest size of a request's body.
const maxBody = 64 << 10

// answer is what is kept of a request, for when it comes again.
type answer struct {
	Status   int             `json:"status"`
	Body     json.RawMessage `json:"body"`
	Request  []byte          `json:"request"`            // a hash of the request
	Customer string          `json:"customer,omitempty"` // whose key the hash is made with, if the request says who that is
}

// handler answers the requests that api.md describes.
func (s *shop) handler() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /products/{id}", write(s, s.putProduct))
	mux.HandleFunc("GET /products/{id}", read(s, func(ctx context.Context, tx *percolator.Txn, r *http.Request) (any, error) {
		return look(ctx, tx, r.PathValue("id"))
	}))
	mux.HandleFunc("POST /products/{id}/deliveries", does(s, func(ctx context.Context, tx *percolator.Txn, id string, d delivery) (any, error) {
		n, err := deliver(ctx, tx, id, d.Quantity)
		return map[string]int64{"left": n}, err
	}))
	mux.HandleFunc("GET /bestsellers", read(s, s.getBestSellers))
	mux.HandleFunc("GET /totals", read(s, func(ctx context.Context, tx *percolator.Txn, _ *http.Request) (any, error) { return s.totals(ctx, tx) }))

	mux.HandleFunc("POST /customers", makes(s, func(ctx context.Context, tx *percolator.Txn, _ string, p person) (any, error) {
		id, err := s.welcome(ctx, tx, Person(p))
		return newcomer{id}, err
	}))
	mux.HandleFunc("GET /customers/{id}", read(s, func(ctx context.Context, tx *percolator.Txn, r *http.Request) (any, error) {
		return s.person(ctx, tx, r.PathValue("id"))
	}))
	mux.HandleFunc("GET /customers/{id}/orders", read(s, s.getOrdersOf))
	mux.HandleFunc("DELETE /customers/{id}", done(func(ctx context.Context, id string, _ nothing) error {
		return s.erased(ctx, id, func(tx *percolator.Txn) error { return s.erase(ctx, tx, id) })
	}))

	mux.HandleFunc("POST /orders", makes(s, func(ctx context.Context, tx *percolator.Txn, _ string, b basket) (any, error) {
		return s.place(ctx, tx, b.Customer, b.Lines)
	}))
	mux.HandleFunc("GET /orders", read(s, s.getOrders))
	mux.HandleFunc("GET /orders/{id}", read(s, func(ctx context.Context, tx *percolator.Txn, r *http.Request) (any, error) {
		return order(ctx, tx, r.PathValue("id"))
	}))
	mux.HandleFunc("GET /orders/{id}/history", s.getHistory)
	mux.HandleFunc("POST /orders/{id}/payment", does(s, func(ctx context.Context, tx *percolator.Txn, id string, p payment) (any, error) {
		return s.pay(ctx, tx, id, p.Amount)
	}))
	mux.HandleFunc("POST /orders/{id}/shipment", does(s, func(ctx context.Context, tx *percolator.Txn, id string, _ nothing) (any, error) {
		return s.ship(ctx, tx, id)
	}))
	mux.HandleFunc("POST /orders/{id}/cancellation", does(s, func(ctx context.Context, tx *percolator.Txn, id string, _ nothing) (any, error) {
		return s.cancel(ctx, tx, id)
	}))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, r, notFound("resource", r.Method+" "+r.URL.Path))
	})
	return mux
}

func (s *shop) putProduct(ctx context.Context, tx *percolator.Txn, id string, p product) (any, error) {
	if !productID.MatchString(id) {
		return nil, malformed("bad_product", "the name of a product in the address has 1 to 64 small letters, digits and hyphens")
	}
	return nil, offer(ctx, tx, id, Product(p))
}

// erased sees to it that erase commits, though the customer may order without a pause. After some conflicts no orders are taken.
func (s *shop) erased(ctx context.Context, id string, erase func(tx *percolator.Txn) error) error {
	err := s.db.Update(ctx, erase, percolator.WithMaxAttempts(eraseAttempts))
	if !errors.Is(err, percolator.ErrConflict) {
		return err
	}
	err = s.db.Update(ctx, func(tx *percolator.Txn) error { return leave(ctx, tx, id) })
	if err != nil && !errors.Is(err, percolator.ErrUndetermined) { // the mark may be there or not: only the conflicts count
		return err
	}
	err = s.db.Update(ctx, erase)
	if err != nil && !errors.Is(err, percolator.ErrUndetermined) {
		// The customer stays. A mark that cannot be removed now ends by itself.
		_ = s.db.Update(ctx, func(tx *percolator.Txn) error { return leaving.Delete(ctx, tx, id) })
	}
	return err
}

func (s *shop) getBestSellers(ctx context.Context, tx *percolator.Txn, r *http.Request) (any, error) {
	n, err := limit(r)
	if err != nil {
		return nil, err
	}
	return s.bestSellers(ctx, tx, n)
}

func (s *shop) getOrdersOf(ctx context.Context, tx *percolator.Txn, r *http.Request) (any, error) {
	n, err := limit(r)
	if err != nil {
		return nil, err
	}
	return s.find(ctx, tx, ofCustomer(r.PathValue("id")), n)
}

func (s *shop) getOrders(ctx context.Context, tx *percolator.Txn, r *http.Request) (any, error) {
	n, err := limit(r)
	if err != nil {
		return nil, err
	}
	switch status := Status(r.URL.Query().Get("status")); status {
	case Placed, Paid, Shipped, Cancelled:
		return s.find(ctx, tx, withStatus(status), n)
	default:
		return nil, malformed("bad_status", fmt.Sprintf("status is %q, not one of placed, paid, shipped, cancelled", status))
	}
}

func (s *shop) getHistory(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if len(id) > maxID {
		fail(w, r, notFound("order", id))
		return
	}
	past, err := s.history(r.Context(), id)
	if err != nil {
		fail(w, r, err)
		return
	}
	reply(w, http.StatusOK, past)
}

// read makes a handler of a function that reads.
func read(s *shop, f func(ctx context.Context, tx *percolator.Txn, r *http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var v any
		err := checkID(r)
		if err == nil {
			err = s.db.View(r.Context(), func(tx *percolator.Txn) (err error) {
				v, err = f(r.Context(), tx, r)
				return err
			})
		}
		if err != nil {
			fail(w, r, err)
			return
		}
		reply(w, http.StatusOK, v)
	}
}

// write makes a handler of a function that changes something and may do so twice.
func write[B body](s *shop, f func(ctx context.Context, tx *percolator.Txn, id string, b B) (any, error)) http.HandlerFunc {
	return done(func(ctx context.Context, id string, b B) error {
		return s.db.Update(ctx, func(tx *percolator.Txn) error {
			_, err := f(ctx, tx, id, b)
			return err
		})
	})
}

// done makes a handler of a function that has transactions of its own.
func done[B body](f func(ctx context.Context, id string, b B) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		b, _, err := accept[B](w, r)
		if err == nil {
			err = f(r.Context(), r.PathValue("id"), b)
		}
		if err != nil {
			fail(w, r, err)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

func does[B body](s *shop, f func(ctx context.Context, tx *percolator.Txn, id string, b B) (any, error)) http.HandlerFunc {
	return change(s, http.StatusOK, f)
}

func makes[B body](s *shop, f func(ctx context.Context, tx *percolator.Txn, id string, b B) (any, error)) http.HandlerFunc {
	return change(s, http.StatusCreated, f)
}

// change makes a handler of a function that changes something, once for each Idempotency-Key.
func change[B body](s *shop, status int, f func(ctx context.Context, tx *percolator.Txn, id string, b B) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		b, request, err := accept[B](w, r)
		key := r.Header.Get("Idempotency-Key")
		if err == nil && (key == "" || len(key) > maxKey) {
			err = malformed("no_key", fmt.Sprintf("the request needs a header Idempotency-Key of 1 to %d bytes", maxKey))
		}
		if err != nil {
			fail(w, r, err)
			return
		}
		a, first, err := s.requests.Do(r.Context(), key, func(ctx context.Context, tx *percolator.Txn) (a answer, err error) {
			v, err := f(ctx, tx, r.PathValue("id"), b)
			if err != nil {
				return a, err
			}
			a.Status = status
			if a.Body, err = json.Marshal(v); err != nil {
				return a, err
			}
			if c, ok := v.(newcomer); ok {
				a.Customer = c.ID
			}
			a.Request, err = hash(ctx, tx, a.Customer, request)
			return a, err
		})
		if err == nil && !first {
			err = s.same(r.Context(), a, request)
		}
		if err != nil {
			fail(w, r, err)
			return
		}
		reply(w, a.Status, a.Body)
	}
}

// hash is what is kept of a request. Who knows a plain hash of a name and a mail can find them by guessing. So what says who a customer is is
// hashed with the customer's key, and tells nothing any more once that is destroyed.
func hash(ctx context.Context, tx *percolator.Txn, customer string, request []byte) ([]byte, error) {
	if customer == "" {
		sum := sha256.Sum256(request)
		return sum[:], nil
	}
	key, err := secrets.Get(ctx, tx, customer)
	if err != nil {
		return nil, orElse(err, conflict("erased", "the Idempotency-Key belongs to a request for a customer who was erased"))
	}
	mac := hmac.New(sha256.New, key)
	_, _ = mac.Write(request) // it never fails
	return mac.Sum(nil), nil
}

// same refuses a request with the key of another one.
func (s *shop) same(ctx context.Context, a answer, request []byte) error {
	return s.db.View(ctx, func(tx *percolator.Txn) error {
		sum, err := hash(ctx, tx, a.Customer, request)
		if err == nil && !hmac.Equal(a.Request, sum) {
			err = unacceptable("key_reused", "the Idempotency-Key belongs to another request")
		}
		return err
	})
}

// accept reads and checks a request, and returns all that makes it the same request.
func accept[B body](w http.ResponseWriter, r *http.Request) (b B, request []byte, err error) {
	if err := checkID(r); err != nil {
		return b, nil, err
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if large := (&http.MaxBytesError{}); errors.As(err, &large) {
		return b, nil, refusal{http.StatusRequestEntityTooLarge, "too_large", fmt.Sprintf("a body has %d bytes at most", maxBody)}
	}
	if err != nil {
		return b, nil, malformed("cut", "the body ended early")
	}
	if _, none := any(b).(nothing); !none || len(text) > 0 {
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(&b); err != nil {
			if wrong := (&json.UnmarshalTypeError{}); errors.As(err, &wrong) {
				err = fmt.Errorf("%s cannot be a %s", strings.ToLower(wrong.Field), wrong.Value)
			}
			return b, nil, malformed("bad_json", "the body is not the JSON that is asked for: "+err.Error())
		}
		if _, err := d.Token(); !errors.Is(err, io.EOF) {
			return b, nil, malformed("bad_json", "there is something behind the JSON of the body")
		}
	}
	return b, fmt.Appendf(nil, "%s %s\n%s", r.Method, r.URL.Path, text), b.check()
}

// limit reads how many are asked for.
func limit(r *http.Request) (int, error) {
	text := r.URL.Query().Get("limit")
	if text == "" {
		return 20, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 100 {
		return 0, malformed("bad_limit", "limit is a number from 1 to 100")
	}
	return n, nil
}

// reply writes an answer.
func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(v); err != nil {
		slog.Debug("an answer was not sent", "error", err)
	}
}

// fail answers with an error. What it does not know it logs, and tells nothing of.
func fail(w http.ResponseWriter, r *http.Request, err error) {
	var no refusal
	switch {
	case errors.As(err, &no):
	case errors.Is(err, percolator.ErrUndetermined):
		no = refusal{http.StatusServiceUnavailable, "unknown_outcome", "it is not known whether this was done: ask again, with the same Idempotency-Key"}
	case errors.Is(err, percolator.ErrUnavailable), errors.Is(err, percolator.ErrConflict), errors.Is(err, percolator.ErrClosed), errors.Is(err, percolator.ErrNotObserved), r.Context().Err() != nil:
		no = refusal{http.StatusServiceUnavailable, "busy", "nothing was done: ask again"}
	default:
		slog.Error("a request failed", "method", r.Method, "pattern", r.Pattern, "error", err)
		no = refusal{http.StatusInternalServerError, "internal", "the shop has failed"}
	}
	reply(w, no.status, map[string]map[string]string{"error": {"code": no.code, "message": no.message}})
}
