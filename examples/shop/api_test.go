package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/recipes/export"
)

// running is a shop that a test runs in its own process.
type running struct {
	*shop
	t    *testing.T
	url  string
	box  *mailbox
	keys atomic.Int64
}

// start runs a shop over a database in memory, until the test ends.
func start(t *testing.T, unpaidFor time.Duration, opts ...percolator.Option) *running {
	t.Helper()
	s, err := newShop(percolatetest.Open(t, opts...), unpaidFor)
	require.NoError(t, err)
	r := &running{shop: s, t: t, box: newMailbox()}
	ctx, stop := context.WithCancel(t.Context())
	opened, ended := make(chan struct{}), make(chan error, 1)
	mux := s.handler()
	mux.HandleFunc("GET /mailbox", r.box.list)
	go func() {
		ended <- s.run(ctx, r.box, func(ctx context.Context) error {
			server := httptest.NewServer(observed(mux))
			defer server.Close()
			r.url = server.URL
			close(opened)
			<-ctx.Done()
			return nil
		})
	}()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	select {
	case <-opened:
	case err := <-ended:
		ended <- err
		require.FailNow(t, "the shop did not open", "%v", err)
	}
	return r
}

// idle waits until the observers have done what there is to do now. A timer that is not due is none of that.
func (r *running) idle() {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		b, err := r.db.Backlog(r.t.Context(), 0)
		require.NoError(r.t, err)
		require.Zero(r.t, b.Parked)
		return b.Cells == 0
	}, 20*time.Second, 2*time.Millisecond)
}

// send sends a request, with an Idempotency-Key unless that is empty.
func send(ctx context.Context, method, url, key, body string) (status int, answer []byte, err error) {
	q, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if key != "" {
		q.Header.Set("Idempotency-Key", key)
	}
	a, err := (&http.Client{Timeout: 20 * time.Second}).Do(q)
	if err != nil {
		return 0, nil, err
	}
	defer a.Body.Close()
	answer, err = io.ReadAll(a.Body)
	return a.StatusCode, answer, err
}

// ask sends a request with a key of its own, and decodes the answer into what it is about.
func (r *running) ask(status int, method, path, body string, into any) {
	r.t.Helper()
	got, answer, err := send(r.t.Context(), method, r.url+path, fmt.Sprint("test ", r.keys.Add(1)), body)
	require.NoError(r.t, err)
	require.Equal(r.t, status, got, "%s %s %s: %s", method, path, body, answer)
	if into != nil {
		require.NoError(r.t, json.Unmarshal(answer, into), "%s", answer)
	}
}

// stocked makes a product and a customer.
func (r *running) stocked(product string, pieces int) (customer string) {
	r.t.Helper()
	r.ask(204, "PUT", "/products/"+product, `{"name": "A product", "price": 100}`, nil)
	r.ask(200, "POST", "/products/"+product+"/deliveries", fmt.Sprintf(`{"quantity": %d}`, pieces), nil)
	var c Customer
	r.ask(201, "POST", "/customers", `{"name": "Ann", "mail": "ann@example.org"}`, &c)
	return c.ID
}

func (r *running) ordered(customer, product string, pieces int) (o Order) {
	r.t.Helper()
	r.ask(201, "POST", "/orders", fmt.Sprintf(`{"customer": %q, "lines": [{"product": %q, "quantity": %d}]}`, customer, product, pieces), &o)
	return o
}

// refused requires that a request is refused with a code.
func (r *running) refused(status int, code, method, path, body string) {
	r.t.Helper()
	var e struct {
		Error struct{ Code, Message string }
	}
	r.ask(status, method, path, body, &e)
	require.Equal(r.t, code, e.Error.Code, "%s %s %s: %s", method, path, body, e.Error.Message)
	require.NotEmpty(r.t, e.Error.Message)
}

var block = regexp.MustCompile("(?s)```text\n(.*?)```")

// names are what $NAME stands for in api.md.
type names map[string]string

var name = regexp.MustCompile(`\$[a-z]+`)

func (n names) fill(text string) string {
	return name.ReplaceAllStringFunc(text, func(s string) string {
		if v, ok := n[s]; ok {
			return v
		}
		return s
	})
}

// learn compares a value with what is written, and learns the names that are new.
func (n names) learn(t *testing.T, want, got any) {
	t.Helper()
	switch want := want.(type) {
	case map[string]any:
		got, ok := got.(map[string]any)
		require.True(t, ok, "%v is no object", got)
		require.Len(t, got, len(want), "%v", got)
		for k := range want {
			n.learn(t, want[k], got[k])
		}
	case []any:
		got, ok := got.([]any)
		require.True(t, ok, "%v is no list", got)
		require.Len(t, got, len(want), "%v", got)
		for i := range want {
			n.learn(t, want[i], got[i])
		}
	case string:
		if name.FindString(want) == want && want != "" && n[want] == "" {
			text, ok := got.(string)
			require.True(t, ok && text != "", "%s is %v", want, got)
			n[want] = text
		}
		require.Equal(t, n.fill(want), got)
	default:
		require.Equal(t, want, got)
	}
}

// TestAPI sends every request of api.md and compares the answers.
func TestAPI(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("api.md")
	require.NoError(t, err)
	r, known := start(t, time.Hour), names{}
	blocks := block.FindAllStringSubmatch(string(text), -1)
	require.Greater(t, len(blocks), 30)
	require.Zero(t, len(blocks)%2)
	routes := map[string]bool{}
	for i := 0; i < len(blocks); i += 2 {
		ask, want := blocks[i][1], blocks[i+1][1]
		head, body, _ := strings.Cut(known.fill(ask), "\n\n")
		line, header, _ := strings.Cut(strings.TrimSpace(head), "\n")
		method, path, ok := strings.Cut(line, " ")
		require.True(t, ok, ask)
		key := strings.TrimPrefix(header, "Idempotency-Key: ")
		r.idle()
		status, answer, err := send(t.Context(), method, r.url+path, key, strings.TrimSpace(body))
		require.NoError(t, err)
		head, body, _ = strings.Cut(want, "\n\n")
		require.Equal(t, strings.TrimSpace(head), fmt.Sprint(status), "%s: %s", ask, answer)
		routes[method+" "+regexp.MustCompile(`\?.*|[0-9]{15,}|tea`).ReplaceAllString(path, "")] = true
		if strings.TrimSpace(body) == "" {
			require.Empty(t, answer, ask)
			continue
		}
		var w, g any
		require.NoError(t, json.Unmarshal([]byte(body), &w), want)
		require.NoError(t, json.Unmarshal(answer, &g), "%s", answer)
		known.learn(t, w, g)
	}
	require.Len(t, routes, 17, "%v", routes)
}

// TestBadRequests sends what the shop must refuse, and looks that nothing has changed.
// It is long because it is a list.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	r := start(t, time.Hour)
	ann := r.stocked("tea", 10)
	r.ask(204, "PUT", "/products/milk", `{"name": "Milk", "price": 90}`, nil)
	paid, dropped := r.ordered(ann, "tea", 2), r.ordered(ann, "tea", 3)
	r.ask(200, "POST", "/orders/"+paid.ID+"/payment", `{"amount": 200}`, nil)
	r.ask(200, "POST", "/orders/"+dropped.ID+"/cancellation", "", nil)
	r.idle()
	before := r.everything()

	line := func(product, quantity string) string {
		return fmt.Sprintf(`{"customer": %q, "lines": [{"product": %s, "quantity": %s}]}`, ann, product, quantity)
	}
	for body, code := range map[string]string{
		``: "bad_json", `{`: "bad_json", `[]`: "bad_json", `null`: "bad_lines", `{"customer": 7}`: "bad_json", `"x"`: "bad_json",
		line(`"tea"`, `1`) + `{}`: "bad_json", line(`"tea"`, `1.5`): "bad_json", line(`"tea"`, `"1"`): "bad_json", line(`7`, `1`): "bad_json",
		line(`"tea"`, `99999999999999999999`): "bad_json", `{"customer": "1", "line": []}`: "bad_json",
		line(`"tea"`, `0`): "bad_quantity", line(`"tea"`, `-1`): "bad_quantity", line(`"tea"`, `1001`): "bad_quantity",
		line(`"tea"`, `9223372036854775807`): "bad_quantity", line(`""`, `1`): "bad_product", line(`"Tea/x"`, `1`): "bad_product",
		fmt.Sprintf(`{"customer": %q, "lines": []}`, ann): "bad_lines", `{"lines": [{"product": "tea", "quantity": 1}]}`: "bad_customer",
		fmt.Sprintf(`{"customer": %q, "lines": [{"product": "tea", "quantity": 1}, {"product": "tea", "quantity": 1}]}`, ann): "bad_lines",
	} {
		r.refused(400, code, "POST", "/orders", body)
	}
	r.refused(422, "unknown_product", "POST", "/orders", line(`"coffee"`, `1`))
	r.refused(422, "unknown_customer", "POST", "/orders", `{"customer": "17", "lines": [{"product": "tea", "quantity": 1}]}`)
	r.refused(409, "out_of_stock", "POST", "/orders", line(`"tea"`, `9`))
	// The first line could be had, and the second cannot.
	r.refused(409, "out_of_stock", "POST", "/orders", fmt.Sprintf(`{"customer": %q, "lines": [{"product": "tea", "quantity": 1}, {"product": "milk", "quantity": 1}]}`, ann))
	r.refused(413, "too_large", "POST", "/orders", `{"customer": "`+strings.Repeat("x", maxBody)+`"}`)
	r.refusedElsewhere(ann, paid.ID, dropped.ID)
	require.Equal(t, before, r.everything(), "something was done")
}

// refusedElsewhere sends bad requests that place no order: about an order that is paid and one that is cancelled, and others.
func (r *running) refusedElsewhere(ann, paid, dropped string) {
	r.t.Helper()
	for path, body := range map[string]string{"/payment": `{"amount": 200}`, "/shipment": "", "/cancellation": ""} {
		r.refused(404, "not_found", "POST", "/orders/17"+path, body)
		r.refused(404, "not_found", "POST", "/orders/"+strings.Repeat("7", 5000)+path, body)
		r.refused(409, map[string]string{"/payment": "not_payable", "/shipment": "not_paid", "/cancellation": "not_cancellable"}[path], "POST", "/orders/"+dropped+path, body)
	}
	r.refused(409, "not_payable", "POST", "/orders/"+paid+"/payment", `{"amount": 200}`)
	for _, amount := range []string{"0", "-200"} {
		r.refused(400, "bad_amount", "POST", "/orders/"+paid+"/payment", `{"amount": `+amount+`}`)
	}
	for _, quantity := range []string{"0", "-1", "1000000001"} {
		r.refused(400, "bad_quantity", "POST", "/products/tea/deliveries", `{"quantity": `+quantity+`}`)
	}
	r.refused(409, "no_room", "POST", "/products/tea/deliveries", `{"quantity": 1000000000}`)
	r.refused(404, "not_found", "POST", "/products/coffee/deliveries", `{"quantity": 1}`)
	r.refused(400, "bad_product", "PUT", "/products/No!", `{"name": "x", "price": 1}`)
	r.refused(400, "bad_price", "PUT", "/products/x", `{"name": "x", "price": 0}`)
	r.refused(400, "bad_name", "PUT", "/products/x", `{"price": 1}`)
	r.refused(400, "bad_mail", "POST", "/customers", `{"name": "Bob", "mail": "bob"}`)
	r.refused(409, "not_shipped", "DELETE", "/customers/"+ann, "")
	r.refused(404, "not_found", "DELETE", "/customers/17", "")
	for _, path := range []string{"/", "/orders/17", "/orders/17/history", "/orders/" + strings.Repeat("7", 5000) + "/history", "/products/x", "/customers/17", "/customers"} {
		r.refused(404, "not_found", "GET", path, "")
	}
	for path, code := range map[string]string{"/orders": "bad_status", "/orders?status=lost": "bad_status", "/orders?status=paid&limit=0": "bad_limit", "/bestsellers?limit=x": "bad_limit"} {
		r.refused(400, code, "GET", path, "")
	}
	r.refused(404, "not_found", "PATCH", "/orders", "")
}

// TestKeys has requests without a key, and with a key that was used.
func TestKeys(t *testing.T) {
	t.Parallel()
	r := start(t, time.Hour)
	ann := r.stocked("tea", 10)
	before := r.everything()
	line := func(quantity int) string {
		return fmt.Sprintf(`{"customer": %q, "lines": [{"product": "tea", "quantity": %d}]}`, ann, quantity)
	}
	for _, key := range []string{"", strings.Repeat("k", maxKey+1)} {
		status, answer, err := send(t.Context(), "POST", r.url+"/orders", key, line(1))
		require.NoError(t, err)
		require.Equal(t, 400, status)
		require.Contains(t, string(answer), "no_key")
	}
	require.Equal(t, before, r.everything(), "something was done")

	status, first, err := send(t.Context(), "POST", r.url+"/orders", "mine", line(1))
	require.NoError(t, err)
	require.Equal(t, 201, status, "%s", first)
	r.idle()
	after := r.everything()
	require.NotEqual(t, before, after, "the comparison sees nothing")
	for path, body := range map[string]string{"/orders": line(2), "/products/tea/deliveries": `{"quantity": 1}`} {
		status, answer, err := send(t.Context(), "POST", r.url+path, "mine", body)
		require.NoError(t, err)
		require.Equal(t, 422, status, "%s", answer)
		require.Contains(t, string(answer), "key_reused")
	}
	status, again, err := send(t.Context(), "POST", r.url+"/orders", "mine", line(1))
	require.NoError(t, err)
	require.Equal(t, 201, status)
	require.JSONEq(t, string(first), string(again))
	require.Equal(t, after, r.everything())
}

// everything is all that the shop keeps, but for the answers.
func (r *running) everything() string {
	r.t.Helper()
	var all strings.Builder
	require.NoError(r.t, r.db.View(r.t.Context(), func(tx *percolator.Txn) error {
		for _, table := range []string{"order", "product", "customer", "outbox", "sales", "vault", "request"} {
			for row, err := range tx.Scan(r.t.Context(), percolator.Range{Table: table}) {
				if err != nil {
					return err
				}
				fmt.Fprintf(&all, "%s %q %q\n", table, row.Key, row.Columns)
			}
		}
		return nil
	}))
	return all.String()
}

// TestErasing looks for what is left of a customer.
func TestErasing(t *testing.T) {
	t.Parallel()
	r := start(t, time.Hour)
	ann := r.stocked("tea", 10)
	o := r.ordered(ann, "tea", 4)
	r.idle()
	was, err := r.db.Now(t.Context())
	require.NoError(t, err)
	r.ask(204, "DELETE", "/customers/"+ann, "", nil)
	r.idle()
	r.refused(404, "not_found", "GET", "/customers/"+ann, "")
	r.refused(422, "unknown_customer", "POST", "/orders", fmt.Sprintf(`{"customer": %q, "lines": [{"product": "tea", "quantity": 1}]}`, ann))
	r.ask(200, "GET", "/orders/"+o.ID, "", &o)
	require.Equal(t, Cancelled, o.Status)
	var tea Offer
	r.ask(200, "GET", "/products/tea", "", &tea)
	require.EqualValues(t, 10, tea.Left)
	require.Len(t, r.box.all(), 1, "a letter was sent to nobody")
	// The history has the customer still, and nobody can read it.
	err = r.db.View(t.Context(), func(tx *percolator.Txn) error {
		_, err := tx.Get(t.Context(), r.persons.Cell(ann))
		require.NoError(t, err)
		_, err = r.persons.Get(t.Context(), tx, ann)
		return err
	}, percolator.WithAsOfTimestamp(was))
	require.ErrorContains(t, err, "the key was destroyed")
	require.NotContains(t, r.everything(), "example.org")
}

// TestErasedWhileOrdering has an order and an erasing of its customer at the same time: whichever commits first, the other one sees it.
func TestErasedWhileOrdering(t *testing.T) {
	t.Parallel()
	r := start(t, time.Hour)
	ann, bob := r.stocked("tea", 10), r.stocked("milk", 10)
	attempts := 0
	err := r.db.Update(t.Context(), func(tx *percolator.Txn) error {
		_, err := r.place(t.Context(), tx, ann, []Wanted{{Product: "tea", Quantity: 1}})
		if attempts++; attempts == 1 {
			r.ask(204, "DELETE", "/customers/"+ann, "", nil)
		}
		return err
	})
	require.True(t, isRefusal(err), "%v", err)

	var o Order
	require.NoError(t, r.db.Update(t.Context(), func(tx *percolator.Txn) error {
		err := r.erase(t.Context(), tx, bob)
		if o.ID == "" {
			o = r.ordered(bob, "milk", 1)
		}
		return err
	}))
	r.ask(200, "GET", "/orders/"+o.ID, "", &o)
	require.Equal(t, Cancelled, o.Status)
}

// TestUnpaidOrdersLapse waits for the timer.
func TestUnpaidOrdersLapse(t *testing.T) {
	t.Parallel()
	r := start(t, 200*time.Millisecond)
	ann := r.stocked("tea", 10)
	lapses := r.ordered(ann, "tea", 4)
	var stays Order
	require.Eventually(t, func() bool { // an order may lapse before a slow machine has paid it
		stays = r.ordered(ann, "tea", 1)
		status, _, err := send(t.Context(), "POST", r.url+"/orders/"+stays.ID+"/payment", "pay "+stays.ID, `{"amount": 100}`)
		require.NoError(t, err)
		return status == 200
	}, 20*time.Second, time.Millisecond)
	require.Eventually(t, func() bool {
		r.ask(200, "GET", "/orders/"+lapses.ID, "", &lapses)
		return lapses.Status == Cancelled
	}, 20*time.Second, 10*time.Millisecond)
	r.idle()
	r.ask(200, "GET", "/orders/"+stays.ID, "", &stays)
	require.Equal(t, Paid, stays.Status)
	var tea Offer
	r.ask(200, "GET", "/products/tea", "", &tea)
	require.EqualValues(t, 9, tea.Left)
	require.Len(t, r.box.all(), 4)
}

// TestMailbox has letters that come again, late, and damaged.
func TestMailbox(t *testing.T) {
	t.Parallel()
	box := newMailbox()
	server := httptest.NewServer(http.HandlerFunc(box.receive))
	t.Cleanup(server.Close)
	to := export.HTTP{URL: server.URL}
	item := func(epoch uint64, commit percolator.Timestamp, order string) export.Item {
		return export.Item{Key: "ann", Epoch: epoch, Commit: commit, Payload: fmt.Appendf(nil, `{"news": {"order": %q}}`, order)}
	}
	sent, err := to.Send(t.Context(), "ann", []export.Item{item(5, 10, "1"), item(5, 11, "2")})
	require.NoError(t, err)
	require.Equal(t, 2, sent)
	sent, err = to.Send(t.Context(), "ann", []export.Item{item(6, 11, "2"), item(6, 12, "3")})
	require.NoError(t, err)
	require.Equal(t, 2, sent)
	_, err = to.Send(t.Context(), "ann", []export.Item{item(5, 12, "3")})
	require.ErrorIs(t, err, export.ErrSuperseded)
	_, err = to.Send(t.Context(), "ann", []export.Item{{Key: "ann", Epoch: 7, Commit: 13, Payload: []byte("?")}})
	require.Error(t, err)
	require.Equal(t, []Letter{{News: News{Order: "1"}}, {News: News{Order: "2"}}, {News: News{Order: "3"}}}, box.all())
	require.Equal(t, 1, box.again)

	// A key that is no text comes in base64: it is not taken for the empty one.
	letter := []export.Item{item(8, 14, "4")}
	_, err = to.Send(t.Context(), "\xff", letter)
	require.ErrorContains(t, err, "400")
	_, err = to.Send(t.Context(), "", letter)
	require.NoError(t, err)
	require.Len(t, box.all(), 4)
}
