package tikvraw_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pingcap/kvproto/pkg/kvrpcpb"
	"github.com/stretchr/testify/require"
	"github.com/tikv/client-go/v2/tikvrpc"

	"github.com/percolate-go/percolate/backends/tikvraw"
	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/tikvtest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// openError opens what cannot be opened, within a deadline that is kept.
func openError(t *testing.T, within time.Duration, raw string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	s, err := rowstore.Open(ctx, raw)
	if err == nil {
		_ = s.Close()
	}
	require.Error(t, err, raw)
	if deadline, _ := ctx.Deadline(); time.Now().After(deadline.Add(20 * time.Second)) {
		t.Errorf("Open came back %v after its deadline", time.Since(deadline))
	}
	return err
}

func TestNoPD(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	gone := l.Addr().String()
	require.NoError(t, l.Close())
	require.ErrorContains(t, openError(t, time.Minute, "tikv://"+gone), "no PD server answers")
	require.ErrorContains(t, openError(t, time.Minute, "tikv://"+gone+","+gone), gone, "the address is named")

	// One that takes connections and never says a word.
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var open []net.Conn
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := silent.Accept()
			if err != nil {
				return
			}
			open = append(open, conn)
		}
	})
	atend.Do(t, func() {
		_ = silent.Close()
		wg.Wait()
		for _, c := range open {
			_ = c.Close()
		}
	})
	err = openError(t, 300*time.Millisecond, "tikv://"+silent.Addr().String())
	require.Contains(t, err.Error(), "deadline exceeded", "%v", err)

	// One of several is enough.
	c := tikvtest.New(t, tikvtest.Options{})
	s, err := rowstore.Open(t.Context(), "tikv://"+gone+","+c.PDAddr())
	require.NoError(t, err)
	require.NoError(t, s.Close())
}

func TestPDWithoutTiKV(t *testing.T) {
	t.Parallel()
	none := tikvtest.New(t, tikvtest.Options{NoStores: true})
	err := openError(t, time.Minute, none.URL())
	require.Regexp(t, "TiKV server|bootstrapped", err.Error())

	// Servers that PD knows and that are down.
	down := tikvtest.New(t, tikvtest.Options{})
	for _, id := range down.Stores() {
		down.StopStore(id)
	}
	err = openError(t, time.Second, down.URL())
	require.ErrorIs(t, err, context.DeadlineExceeded)
	for _, id := range down.Stores() {
		down.StartStore(id)
	}
	s, err := rowstore.Open(t.Context(), down.URL())
	require.NoError(t, err, "usable afterwards")
	require.NoError(t, s.Close())

	// A PD that answers no more.
	down.StopPD()
	require.ErrorContains(t, openError(t, time.Minute, down.URL()), "PD")
	down.StartPD()
	s, err = rowstore.Open(t.Context(), down.URL())
	require.NoError(t, err, "usable afterwards")
	require.NoError(t, s.Close())
}

func TestTLS(t *testing.T) {
	t.Parallel()
	ours, theirs := tikvtest.NewCertificates(t, t.TempDir()), tikvtest.NewCertificates(t, t.TempDir())
	c := tikvtest.New(t, tikvtest.Options{TLS: ours.Server})
	with := func(ca, cert, key string) string {
		return c.URL() + "?" + url.Values{"tls_ca": {ca}, "tls_cert": {cert}, "tls_key": {key}}.Encode()
	}
	s, err := rowstore.Open(t.Context(), with(ours.CA, ours.Cert, ours.Key))
	require.NoError(t, err)
	out, err := s.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: "r", Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", 1, nil)}}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.True(t, out[0].Applied)
	require.NoError(t, s.Close())

	require.ErrorContains(t, openError(t, time.Minute, c.URL()), "TLS")
	for _, mixed := range []string{with(theirs.CA, ours.Cert, ours.Key), with(ours.CA, theirs.Cert, theirs.Key)} {
		err := openError(t, time.Minute, mixed)
		require.ErrorIs(t, err, rowstore.ErrDenied)
		require.ErrorContains(t, err, "does not accept the other's certificate")
	}
	require.ErrorIs(t, openError(t, time.Minute, c.URL()+"?tls_ca="+url.QueryEscape(ours.CA)), rowstore.ErrInvalid)
	require.ErrorIs(t, openError(t, time.Minute, with(ours.CA, ours.Cert, theirs.Key)), rowstore.ErrInvalid)
	junk := filepath.Join(t.TempDir(), "junk.pem")
	require.NoError(t, os.WriteFile(junk, []byte("no certificate"), 0o600))
	require.ErrorIs(t, openError(t, time.Minute, with(junk, ours.Cert, ours.Key)), rowstore.ErrInvalid)
	require.ErrorIs(t, openError(t, time.Minute, with(filepath.Join(t.TempDir(), "none"), ours.Cert, ours.Key)), rowstore.ErrInvalid)

	plain := tikvtest.New(t, tikvtest.Options{})
	err = openError(t, time.Minute, plain.URL()+"?"+url.Values{"tls_ca": {ours.CA}, "tls_cert": {ours.Cert}, "tls_key": {ours.Key}}.Encode())
	require.ErrorContains(t, err, "TLS")
}

func TestOtherAPIVersion(t *testing.T) {
	t.Parallel()
	one := tikvtest.New(t, tikvtest.Options{})
	two := tikvtest.New(t, tikvtest.Options{API: kvrpcpb.APIVersion_V2, Keyspaces: map[string]uint32{"shop": 3}})
	require.ErrorContains(t, openError(t, time.Minute, one.URL()+"?api=v2"), "API version")
	require.ErrorContains(t, openError(t, time.Minute, two.URL()), "API version")
	require.ErrorContains(t, openError(t, time.Minute, two.URL()+"?api=v2&keyspace=unknown"), "unknown")
	for _, c := range []*tikvtest.Cluster{one, two} {
		keys, _ := c.Keys(nil, nil)
		require.Empty(t, keys, "nothing was written")
	}
	for _, raw := range []string{one.URL(), two.URL() + "?api=v2", two.URL() + "?api=v2&keyspace=shop"} {
		s, err := rowstore.Open(t.Context(), raw)
		require.NoError(t, err, raw)
		require.NoError(t, s.Close())
	}
	keys, _ := two.Keys([]byte("r\x00\x00\x03"), []byte("r\x00\x00\x04"))
	require.NotEmpty(t, keys, "in its keyspace")
}

// TestForeignKeys opens stores where another application has been.
func TestForeignKeys(t *testing.T) {
	t.Parallel()
	c := tikvtest.New(t, tikvtest.Options{})
	for i, key := range []string{"%s\x00v", "%s\x00", "%s\x00hello", "%s\x00o\x00", "%s\x00zzz"} {
		p := fmt.Sprintf("foreign%d", i)
		key := fmt.Sprintf(key, p)
		c.Put([]byte(key), []byte("theirs"))
		err := openError(t, time.Minute, c.URL()+"?prefix="+p)
		require.ErrorIs(t, err, rowstore.ErrFormat)
		require.ErrorContains(t, err, fmt.Sprintf("%q", key), "the key is named")
		require.Equal(t, "theirs", string(c.Get([]byte(key))))
		keys, _ := c.Keys([]byte(p), []byte(p+"\x01"))
		require.Len(t, keys, 1, "nothing was written beside it")
	}
	// Beside the prefix anybody may write.
	c.Put([]byte("shop2\x00k"), []byte("theirs"))
	c.Put([]byte("shop"), []byte("theirs"))
	s, err := rowstore.Open(t.Context(), c.URL()+"?prefix=shop")
	require.NoError(t, err)
	require.NoError(t, s.Close())
}

// accounts opens a bank of accounts with 100 each.
func accounts(t *testing.T, db *percolator.DB, n int) {
	t.Helper()
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error {
		for i := range n {
			if err := tx.Set(cell(fmt.Sprintf("%03d", i)), binary.BigEndian.AppendUint64(nil, 100)); err != nil {
				return err
			}
		}
		return nil
	}))
}

func total(ctx context.Context, db *percolator.DB) (sum uint64, err error) {
	err = db.View(ctx, func(tx *percolator.Txn) error {
		sum = 0
		for r, err := range tx.Scan(ctx, percolator.Range{Table: "accounts"}) {
			if err != nil {
				return err
			}
			sum += binary.BigEndian.Uint64(r.Columns["balance"])
		}
		return nil
	})
	return sum, err
}

// TestBankUnderFaults moves money while requests and replies are lost, regions change,
// leaders move, and the clock of PD jumps.
func TestBankUnderFaults(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	c := tikvtest.New(t, tikvtest.Options{})
	var f tikvtest.Faults
	db := database(t, c, &f)
	const n, workers, each = 20, 8, 25
	accounts(t, db, n)
	churn := c.Churn(t, 40, 10*time.Millisecond)
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 1))
	f.Set(func(r *tikvrpc.Request) tikvtest.Fault {
		mu.Lock()
		defer mu.Unlock()
		switch rng.IntN(100) {
		case 0:
			return tikvtest.LoseRequest
		case 1:
			return tikvtest.LoseReply
		case 2:
			return tikvtest.StaleCommand
		case 3:
			return tikvtest.NotLeader
		case 4:
			return tikvtest.EpochNotMatch
		case 5:
			return tikvtest.RegionNotFound
		}
		return tikvtest.Pass
	})
	var committed, undetermined atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(w)+2))
			for i := range each {
				if w == 0 && i%5 == 4 {
					c.StepClock(time.Duration(rng.Int64N(int64(2*time.Minute))) - time.Minute)
				}
				from := rng.IntN(n)
				to := (from + 1 + rng.IntN(n-1)) % n
				err := db.Update(t.Context(), func(tx *percolator.Txn) error {
					return transfer(t.Context(), tx, cell(fmt.Sprintf("%03d", from)), cell(fmt.Sprintf("%03d", to)))
				}, percolator.WithMaxAttempts(1000))
				switch {
				case err == nil:
					committed.Add(1)
				case errors.Is(err, percolator.ErrUndetermined):
					undetermined.Add(1)
				default:
					t.Errorf("transfer: %v", err)
				}
			}
		})
	}
	wg.Wait()
	f.Set(nil)
	sum, err := total(t.Context(), db)
	require.NoError(t, err)
	require.EqualValues(t, 100*n, sum)
	require.EqualValues(t, workers*each, committed.Load()+undetermined.Load())
	require.Greater(t, committed.Load(), int64(workers*each/2))
	for _, fault := range []tikvtest.Fault{tikvtest.LoseRequest, tikvtest.LoseReply, tikvtest.StaleCommand, tikvtest.NotLeader} {
		require.Positive(t, f.Injected(fault), "fault %d", fault)
	}
	t.Logf("%d committed, %d undetermined, %+v, %+v", committed.Load(), undetermined.Load(), churn(), db.Stats())
}

// TestLostReplies loses the reply to each kind of swap in the course of one
// transaction: client-go sends the swap again, and reports that it failed.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	for _, fault := range []tikvtest.Fault{tikvtest.LoseReply, tikvtest.StaleCommand, tikvtest.LoseRequest} {
		for nth := range 4 {
			t.Run(fmt.Sprintf("%d/%d", fault, nth), func(t *testing.T) {
				t.Parallel()
				c := tikvtest.New(t, tikvtest.Options{})
				var f tikvtest.Faults
				db := database(t, c, &f)
				accounts(t, db, 2)
				var swaps atomic.Int64
				f.Set(func(r *tikvrpc.Request) tikvtest.Fault {
					if r.Type == tikvrpc.CmdRawCompareAndSwap && swaps.Add(1) == int64(nth)+1 {
						return fault
					}
					return tikvtest.Pass
				})
				require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error {
					return transfer(t.Context(), tx, cell("000"), cell("001"))
				}))
				require.Eventually(t, func() bool { return f.Injected(fault) > 0 }, time.Minute, time.Millisecond)
				f.Set(nil)
				require.NoError(t, db.View(t.Context(), func(tx *percolator.Txn) error {
					for row, want := range map[string]uint64{"000": 99, "001": 101} {
						got, err := get(t.Context(), tx, cell(row))
						require.NoError(t, err)
						require.Equal(t, want, got, row)
					}
					return nil
				}))
			})
		}
	}
}

// TestStoreDown has a store that leads every region down for longer than callers wait.
func TestStoreDown(t *testing.T) {
	t.Parallel()
	c := tikvtest.New(t, tikvtest.Options{})
	db := database(t, c)
	accounts(t, db, 4)
	leader := c.Regions()[0].Leader
	c.StopStore(leader)
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		err := db.Update(ctx, func(tx *percolator.Txn) error { return transfer(ctx, tx, cell("000"), cell("001")) })
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_, err = total(ctx, db)
		require.Error(t, err)
		cancel()
	}
	// Another store takes over, without anybody doing anything here.
	c.MoveLeader([]byte("accounts"))
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error { return transfer(t.Context(), tx, cell("000"), cell("001")) }))
	c.StartStore(leader)
	sum, err := total(t.Context(), db)
	require.NoError(t, err)
	require.EqualValues(t, 400, sum)
}

// TestStoreDownWithTLS: a store that was away and came back is used again. The client's
// own check whether a store is back knows TLS from a setting of the process alone.
func TestStoreDownWithTLS(t *testing.T) {
	t.Parallel()
	certs := tikvtest.NewCertificates(t, t.TempDir())
	c := tikvtest.New(t, tikvtest.Options{TLS: certs.Server})
	s, err := tikvraw.Open(t.Context(), tikvraw.Options{
		PDAddrs: []string{c.PDAddr()}, Prefix: "shop", CA: certs.CA, Cert: certs.Cert, Key: certs.Key,
	})
	require.NoError(t, err)
	atend.Do(t, func() { require.NoError(t, s.Close()) })
	row := func(ts rowstore.Timestamp) rowstore.Mutation {
		return rowstore.Mutation{Table: "t", Row: "r", Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", ts, nil)}}
	}
	apply(t, s, row(1))
	leader := c.Regions()[0].Leader
	c.StopStore(leader)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	out, err := s.Apply(ctx, []rowstore.Mutation{row(2)}, rowstore.ApplyOptions{})
	if err == nil {
		err = out[0].Err
	}
	require.Error(t, err)
	c.StartStore(leader)
	apply(t, s, row(3))
}

// TestPDDown: without timestamps nothing begins; with them everything goes on.
func TestPDDown(t *testing.T) {
	t.Parallel()
	c := tikvtest.New(t, tikvtest.Options{})
	s, err := rowstore.Open(t.Context(), c.URL()+"?request_timeout=1s")
	require.NoError(t, err)
	db, err := percolator.New(t.Context(), s)
	require.NoError(t, err)
	atend.Do(t, func() { require.NoError(t, db.Close(context.WithoutCancel(t.Context()))) })
	accounts(t, db, 4)
	c.StopPD()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	require.Error(t, db.Update(ctx, func(tx *percolator.Txn) error { return transfer(ctx, tx, cell("000"), cell("001")) }))
	c.StartPD()
	require.Eventually(t, func() bool {
		return db.Update(t.Context(), func(tx *percolator.Txn) error { return transfer(t.Context(), tx, cell("000"), cell("001")) }) == nil
	}, time.Minute, 10*time.Millisecond)
	sum, err := total(t.Context(), db)
	require.NoError(t, err)
	require.EqualValues(t, 400, sum)
}

// TestClockOfPD steps PD's clock between and within transactions.
func TestClockOfPD(t *testing.T) {
	t.Parallel()
	c := tikvtest.New(t, tikvtest.Options{})
	db := database(t, c)
	accounts(t, db, 4)
	move := func(within func()) error {
		tx, err := db.Begin(t.Context())
		require.NoError(t, err)
		defer func() { require.NoError(t, tx.Rollback(t.Context())) }()
		if err := transfer(t.Context(), tx, cell("000"), cell("001")); err != nil {
			return err
		}
		within()
		return tx.Commit(t.Context())
	}
	require.NoError(t, move(func() { c.StepClock(-time.Hour) }), "back: timestamps stand still, and go on")
	require.NoError(t, move(func() {}))
	require.ErrorIs(t, move(func() { c.StepClock(4 * time.Hour) }), percolator.ErrTxnTooOld, "forward, over a transaction's greatest age")
	require.Eventually(t, func() bool { return move(func() {}) == nil }, time.Minute, 10*time.Millisecond, "usable afterwards")
	sum, err := total(t.Context(), db)
	require.NoError(t, err)
	require.EqualValues(t, 400, sum)
}
