package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/config"
	"github.com/percolate-go/percolate/internal/everystore"
)

// load are buyers who place orders, and what must come of them.
type load struct {
	target   func(attempt int) string // where to send a request
	patience time.Duration            // how long a buyer waits for an answer before he asks again
	seed     uint64

	mu     sync.Mutex
	states map[string]Status // of orders, in the end
	orders map[string]Order
	done   atomic.Int64 // orders that a buyer is through with
	again  atomic.Int64 // requests that were sent again
}

const (
	buyers    = 4
	purchases = 10 // of each buyer
	delivered = 40 // pieces of each product: too few, perhaps
)

// persist sends a request until somebody answers it.
func (l *load) persist(ctx context.Context, method, path, key, body string) (status int, answer []byte, err error) {
	for attempt := range 1000 {
		within, cancel := context.WithTimeout(ctx, l.patience)
		status, answer, err = send(within, method, l.target(attempt)+path, key, body)
		cancel()
		if err == nil && status < 500 {
			return status, answer, nil
		}
		l.again.Add(1)
		select {
		case <-ctx.Done():
			return 0, nil, fmt.Errorf("%s %s: %w: %d %s", method, path, errors.Join(ctx.Err(), err), status, answer)
		case <-time.After(20 * time.Millisecond): // the process is being started
		}
	}
	return 0, nil, fmt.Errorf("%s %s: nobody answers: %d %s: %w", method, path, status, answer, err)
}

// ask is persist, and decodes the answer of a request that must succeed, or meet a conflict.
func (l *load) ask(ctx context.Context, method, path, key, body string, into any) (ok bool, err error) {
	status, answer, err := l.persist(ctx, method, path, key, body)
	switch {
	case err != nil:
		return false, err
	case status == http.StatusConflict:
		return false, nil
	case status > 299:
		return false, fmt.Errorf("%s %s %s: %d %s", method, path, body, status, answer)
	case into == nil:
		return true, nil
	}
	return true, json.Unmarshal(answer, into)
}

var onSale = []string{"coffee", "milk", "tea"}

// open makes the products and the customers.
func (l *load) open(ctx context.Context) (customers []string, err error) {
	for i, product := range onSale {
		if _, err := l.ask(ctx, "PUT", "/products/"+product, "", fmt.Sprintf(`{"name": %q, "price": %d}`, product, 100+i), nil); err != nil {
			return nil, err
		}
		if _, err := l.ask(ctx, "POST", "/products/"+product+"/deliveries", "delivery of "+product, fmt.Sprintf(`{"quantity": %d}`, delivered), nil); err != nil {
			return nil, err
		}
	}
	for i := range buyers {
		var c Customer
		if _, err := l.ask(ctx, "POST", "/customers", fmt.Sprint("customer ", i), fmt.Sprintf(`{"name": "x", "mail": "%d@example.org"}`, i), &c); err != nil {
			return nil, err
		}
		customers = append(customers, c.ID)
	}
	return customers, nil
}

// buy places the orders of one buyer. Some are paid, some cancelled, and some forgotten.
func (l *load) buy(ctx context.Context, buyer int, customer string) error {
	random := rand.New(rand.NewPCG(l.seed, uint64(buyer)))
	for i := range purchases {
		first, second := random.IntN(3), 1+random.IntN(2)
		body := fmt.Sprintf(`{"customer": %q, "lines": [{"product": %q, "quantity": %d}, {"product": %q, "quantity": %d}]}`, customer,
			onSale[first], 1+random.IntN(3), onSale[(first+second)%3], 1+random.IntN(2))
		var o Order
		key := fmt.Sprintf("%d/%d/", buyer, i)
		ok, err := l.ask(ctx, "POST", "/orders", key+"order", body, &o)
		if err != nil {
			return err
		}
		fate := Cancelled
		switch what := random.IntN(4); {
		case !ok: // out of stock
		case what < 2:
			// If the buyer is late, the order is cancelled.
			paid, err := l.ask(ctx, "POST", "/orders/"+o.ID+"/payment", key+"payment", fmt.Sprintf(`{"amount": %d}`, o.Total), nil)
			if err != nil {
				return err
			}
			if paid {
				fate = Paid
			}
		case what == 2:
			if _, err := l.ask(ctx, "POST", "/orders/"+o.ID+"/cancellation", key+"cancellation", "", nil); err != nil {
				return err
			}
		}
		if ok {
			l.mu.Lock()
			l.states[o.ID], l.orders[o.ID] = fate, o
			l.mu.Unlock()
		}
		l.done.Add(1)
	}
	return nil
}

// run lets all buyers buy, and compares the books with what they were told.
func (l *load) run(ctx context.Context, t *testing.T, box *mailbox) {
	t.Helper()
	l.states, l.orders = map[string]Status{}, map[string]Order{}
	customers, err := l.open(ctx)
	require.NoError(t, err)
	var group errgroup.Group
	for i, customer := range customers {
		group.Go(func() error { return l.buy(ctx, i, customer) })
	}
	require.NoError(t, group.Wait())
	want, stock, sales := Totals{}, map[string]int64{}, map[string]int64{}
	for id, state := range l.states {
		if state == Paid {
			want.Orders++
			want.Revenue += l.orders[id].Total
			for _, line := range l.orders[id].Lines {
				sales[line.Product] += line.Quantity
			}
		}
	}
	for _, product := range onSale {
		stock[product] = delivered - sales[product]
	}
	t.Logf("%d orders, %+v; %d requests were sent again (seed %d)", len(l.states), want, l.again.Load(), l.seed)
	require.Greater(t, len(l.states), buyers*purchases/3)
	require.Positive(t, want.Orders)
	require.Less(t, int(want.Orders), len(l.states))

	// What was forgotten is cancelled, and everything adds up.
	read := func(path string, into any) {
		_, err := l.ask(ctx, "GET", path, "", "", into)
		require.NoError(t, err)
	}
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		var totals Totals
		var open []Order
		read("/totals", &totals)
		read("/orders?status=placed", &open)
		letters := len(box.all())
		if totals == want && len(open) == 0 && letters >= 2*len(l.states) {
			break
		}
		require.Less(t, time.Since(began), 30*time.Second, "the totals are %+v, %d letters were sent, and %d orders are open: %+v", totals, letters, len(open), open)
	}
	for product, n := range stock {
		var o Offer
		read("/products/"+product, &o)
		require.Equal(t, n, o.Left, product)
	}
	var best []Seller
	read("/bestsellers", &best)
	for i, b := range best {
		require.Equal(t, sales[b.Product], b.Sold, b.Product)
		require.True(t, i == 0 || best[i-1].Sold >= b.Sold, "%+v", best)
	}
	found := 0
	for _, customer := range customers {
		var theirs []Order
		read("/customers/"+customer+"/orders?limit=100", &theirs)
		for _, o := range theirs {
			require.Equal(t, l.states[o.ID], o.Status)
			found++
		}
	}
	require.Equal(t, len(l.states), found)
	l.mailed(t, box)
}

// mailed compares the letters with the orders.
func (l *load) mailed(t *testing.T, box *mailbox) {
	t.Helper()
	got := map[string][]Status{}
	for _, letter := range box.all() {
		require.Contains(t, letter.To, "@example.org")
		got[letter.News.Order] = append(got[letter.News.Order], letter.News.Status)
	}
	require.Len(t, got, len(l.states))
	for id, state := range l.states {
		require.Equal(t, []Status{Placed, state}, got[id], id)
	}
}

func TestLoadInOneProcess(t *testing.T) {
	t.Parallel()
	r := start(t, time.Second)
	l := &load{seed: rand.Uint64(), patience: time.Minute, target: func(int) string { return r.url }}
	l.run(t.Context(), t, r.box)
	r.idle()
	l.mailed(t, r.box)
}

// child is a process of the shop.
type child struct {
	cmd    *exec.Cmd
	url    string
	output *bytes.Buffer // of standard error; read when it has ended
	ended  chan struct{}
	err    error // when it has ended
}

// childPatience is how long a process may take to open or to end.
const childPatience = 3 * time.Minute

var openLine = regexp.MustCompile(`^the shop is open: (http://\S+),`)

// startChild starts a process of the shop and waits until it is open. If it does not open, it has no url.
func startChild(t *testing.T, args ...string) *child {
	t.Helper()
	c := &child{cmd: exec.Command(os.Args[0], args...), output: &bytes.Buffer{}, ended: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), asProgram+"=1")
	c.cmd.Stderr = c.output
	out, err := c.cmd.StdoutPipe()
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		t.Errorf("starting the shop: %v", err)
		close(c.ended)
		return c
	}
	opened := make(chan string, 1)
	go func() {
		defer close(c.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if m := openLine.FindStringSubmatch(lines.Text()); m != nil {
				opened <- m[1]
			}
		}
		close(opened)
		c.err = c.cmd.Wait()
	}()
	t.Cleanup(func() { c.kill() }) // it has ended, unless the test failed
	select {
	case c.url = <-opened:
	case <-time.After(childPatience):
	}
	if c.url == "" {
		c.dump()
		t.Errorf("the process did not open: %v: %s", c.err, c.output)
	}
	return c
}

// dump ends a process, which says what its goroutines are at, if it has not ended.
func (c *child) dump() {
	_ = c.cmd.Process.Signal(syscall.SIGQUIT)
	select {
	case <-c.ended:
	case <-time.After(childPatience): // it is suspended
		c.kill()
	}
}

// kill ends a process at once, and returns when it has ended.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	<-c.ended
}

func (c *child) stop(t *testing.T) {
	t.Helper()
	require.NotEmpty(t, c.url)
	require.NoError(t, c.cmd.Process.Signal(os.Interrupt))
	select {
	case <-c.ended:
	case <-time.After(childPatience):
		c.dump()
	}
	require.NoError(t, c.err, "%s", c.output)
}

// fleet are processes of the shop over one store, and the mailbox that they send to.
type fleet struct {
	t        *testing.T
	box      *mailbox
	file     string // of the configuration
	args     []string
	children []*child
	urls     []atomic.Pointer[string]
	turn     atomic.Int64
	avoided  atomic.Int64 // the process that gets no requests, and 1; 0 for none
}

// The processes' leases, and how long an order may be unpaid.
const (
	fleetLease  = 2 * time.Second
	fleetUnpaid = 4 * time.Second
)

func startFleet(t *testing.T, url string, processes int) *fleet {
	t.Helper()
	f := &fleet{t: t, box: newMailbox(), file: filepath.Join(t.TempDir(), "percolator.yaml")}
	post := httptest.NewServer(http.HandlerFunc(f.box.receive))
	t.Cleanup(post.Close)
	content := fmt.Sprintf("stores: {main: {url: '%s'}}\nsettings: {catalog_lease: 2s}\nsession_lease: %v\n", url, fleetLease)
	require.NoError(t, os.WriteFile(f.file, []byte(content), 0o600))
	f.args = []string{"-config", f.file, "-listen", "127.0.0.1:0", "-mail", post.URL, "-unpaid", fleetUnpaid.String()}
	require.Positive(t, processes)
	f.children, f.urls = make([]*child, processes), make([]atomic.Pointer[string], processes)
	for i := range f.children {
		f.start(i)
	}
	t.Cleanup(func() { f.explain(everystore.Embedded(url)) })
	for _, c := range f.children {
		require.NotEmpty(t, c.url) // or nobody could send it a request
	}
	return f
}

func (f *fleet) start(i int) {
	if f.children[i] = startChild(f.t, f.args...); f.children[i].url != "" {
		f.urls[i].Store(&f.children[i].url)
	}
}

// target is where the next request goes: to each process in turn.
func (f *fleet) target(int) string {
	i := int(f.turn.Add(1)) % len(f.urls)
	if i == int(f.avoided.Load())-1 {
		i = (i + 1) % len(f.urls)
	}
	return *f.urls[i].Load()
}

// disturb lets buyers buy from the fleet, and calls do when some have. In the end everything must add up. do returns an error, since it is no part of the test's goroutine.
func (f *fleet) disturb(patience time.Duration, do func(ctx context.Context, l *load) error) *load {
	t := f.t
	t.Helper()
	l := &load{seed: rand.Uint64(), patience: patience, target: f.target}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // on a machine that does much else, buyers wait for one another
	begun, done, ended := make(chan int64, 1), make(chan error, 1), make(chan struct{})
	go func() { // it ends with the buyers, or the test
		defer close(ended)
		for l.done.Load() < buyers*purchases/4 && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		begun <- l.done.Load()
		if ctx.Err() != nil { // the test has failed: its cleanups end the processes
			done <- ctx.Err()
			return
		}
		done <- do(ctx, l)
	}()
	defer func() { // before any cleanup ends processes or looks at them: do may be about to start one
		cancel()
		<-ended
	}()
	l.run(ctx, t, f.box)
	require.Less(t, <-begun, int64(buyers*purchases*3/4), "it was disturbed too late")
	require.NoError(t, <-done)
	for _, c := range f.children {
		c.stop(t)
		require.NotContains(t, strings.ToLower(c.output.String()), "panic")
	}
	l.mailed(t, f.box)
	t.Logf("%d letters came again and were not taken", f.box.again)
	return l
}

// TestKilledUnderLoad kills a process by kill -9 while buyers buy, and starts another one.
func TestKilledUnderLoad(t *testing.T) {
	t.Parallel()
	everystore.URLs(t, func(t *testing.T, url string) {
		processes := 2
		if everystore.Embedded(url) {
			processes = 1
		}
		f := startFleet(t, url, processes)
		l := f.disturb(20*time.Second, func(context.Context, *load) error {
			f.children[0].kill()
			f.start(0)
			return nil
		})
		require.Positive(t, l.again.Load(), "nobody missed it")
	})
}

// explain says what may be the reason of a failure: what the processes have logged, and what waits.
func (f *fleet) explain(embedded bool) {
	t := f.t
	if !t.Failed() {
		return
	}
	logs := sync.OnceFunc(func() {
		for _, c := range f.children {
			if c == nil || c.cmd.Process == nil { // it was never started
				continue
			}
			c.kill()
			t.Logf("%s: %v: %s", c.url, c.err, c.output)
		}
	})
	defer logs()
	if embedded {
		logs() // nobody else can open the store while the process has it
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	db, err := config.Open(ctx, f.file)
	if err != nil {
		t.Log(err)
		return
	}
	backlog, err := db.Backlog(ctx, 0)
	t.Logf("%+v %v", backlog, err)
	parked, err := db.Parked(ctx)
	t.Logf("%+v %v", parked, err)
	timers, err := db.TimerBacklog(ctx, 0)
	t.Logf("%+v %v; closed: %v", timers, err, db.Close(ctx))
}
