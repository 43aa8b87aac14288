package tikvraw_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tikv/client-go/v2/tikv"
	"github.com/tikv/client-go/v2/tikvrpc"
	pd "github.com/tikv/pd/client"

	"github.com/percolate-go/percolate/backends/tikvraw"
	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/await"
	"github.com/percolate-go/percolate/internal/tikvtest"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// silent is a layer whose stores, while it is on, take requests and do not answer, as
// those of a suspended server do.
type silent struct {
	on    atomic.Bool
	taken atomic.Int64
}

func (s *silent) PD(next pd.Client) pd.Client { return next }

func (s *silent) Stores(next tikv.Client) tikv.Client { return &silentClient{next, s} }

type silentClient struct {
	tikv.Client
	layer *silent
}

func (c *silentClient) SendRequest(ctx context.Context, addr string, req *tikvrpc.Request, timeout time.Duration) (*tikvrpc.Response, error) {
	if !c.layer.on.Load() {
		return c.Client.SendRequest(ctx, addr, req, timeout)
	}
	c.layer.taken.Add(1)
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(timeout):
		return nil, context.DeadlineExceeded
	}
}

// patient is the most that a call takes while nobody answers: its patience and the time
// of two requests, and more than that on a machine that does other things too.
const patient = 20 * time.Second

func write(ts rowstore.Timestamp) rowstore.Mutation {
	return rowstore.Mutation{Table: "t", Row: "r", Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", ts, nil)}}
}

func applyOne(ctx context.Context, s rowstore.Store, m rowstore.Mutation) error {
	out, err := s.Apply(ctx, []rowstore.Mutation{m}, rowstore.ApplyOptions{})
	if err == nil {
		err = out[0].Err
	}
	return err
}

func readOne(ctx context.Context, s rowstore.Store) error {
	_, err := s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: "r", Selectors: []rowstore.Selector{{Family: rowstore.Write, To: 1 << 60}}}})
	return err
}

func scanAll(ctx context.Context, s rowstore.Store) error {
	for _, err := range s.Scan(ctx, rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{{Family: rowstore.Write, To: 1 << 60}}}) {
		if err != nil {
			return err
		}
	}
	return nil
}

// TestServersAway: calls give up soon, and say whether something may have happened.
func TestServersAway(t *testing.T) {
	t.Parallel()
	c := tikvtest.New(t, tikvtest.Options{})
	s, err := rowstore.Open(t.Context(), c.URL()+"?prefix="+prefix())
	require.NoError(t, err)
	atend.Do(t, func() { require.NoError(t, s.Close()) })
	apply(t, s, write(1))
	for _, id := range c.Stores() {
		c.StopStore(id)
	}
	// What was on the way when the connection broke may have arrived.
	err = applyOne(t.Context(), s, write(2))
	require.True(t, errors.Is(err, rowstore.ErrUnavailable) != errors.Is(err, rowstore.ErrAmbiguous), "%v", err)
	for name, call := range map[string]func() error{
		"apply": func() error { return applyOne(t.Context(), s, write(3)) },
		"read":  func() error { return readOne(t.Context(), s) },
		"scan":  func() error { return scanAll(t.Context(), s) },
	} {
		began := time.Now()
		err := call()
		require.ErrorIs(t, err, rowstore.ErrUnavailable, name)
		require.NotErrorIs(t, err, rowstore.ErrAmbiguous, name)
		require.NotErrorIs(t, err, context.Canceled, name)
		require.Less(t, time.Since(began), patient, name)
	}
	for _, id := range c.Stores() {
		c.StartStore(id)
	}
	require.Eventually(t, func() bool { return applyOne(t.Context(), s, write(4)) == nil }, time.Minute, 10*time.Millisecond)
	require.NoError(t, readOne(t.Context(), s))
	require.NoError(t, scanAll(t.Context(), s))
}

// TestServersSilent: a request that a server took may be carried out.
func TestServersSilent(t *testing.T) {
	t.Parallel()
	c := tikvtest.New(t, tikvtest.Options{Offline: true})
	var l silent
	s := open(t, c, tikvraw.Options{RequestTimeout: 500 * time.Millisecond, SweepEvery: -1}, &l)
	apply(t, s, write(1))
	l.on.Store(true)
	began := time.Now()
	err := applyOne(t.Context(), s, write(2))
	require.ErrorIs(t, err, rowstore.ErrAmbiguous)
	require.NotErrorIs(t, err, rowstore.ErrUnavailable)
	require.NotErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, readOne(t.Context(), s), rowstore.ErrUnavailable)
	require.ErrorIs(t, scanAll(t.Context(), s), rowstore.ErrUnavailable)
	require.Less(t, time.Since(began), 3*patient)
	require.GreaterOrEqual(t, l.taken.Load(), int64(6), "others were asked too")
	// With a context that ends, in its time and with its error.
	for name, call := range map[string]func(context.Context) error{
		"apply": func(ctx context.Context) error { return applyOne(ctx, s, write(3)) },
		"read":  func(ctx context.Context) error { return readOne(ctx, s) },
		"scan":  func(ctx context.Context) error { return scanAll(ctx, s) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		began = time.Now()
		err := call(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded, name)
		require.NotErrorIs(t, err, rowstore.ErrUnavailable, name)
		require.Equal(t, name == "apply", errors.Is(err, rowstore.ErrAmbiguous), name)
		require.Less(t, time.Since(began), 2*time.Second, name)
		cancel()
	}
	l.on.Store(false)
	apply(t, s, write(4))
	require.NoError(t, readOne(t.Context(), s))
}

// TestPDAway: what needs PD gives up soon, and what does not goes on.
func TestPDAway(t *testing.T) {
	t.Parallel()
	c := tikvtest.New(t, tikvtest.Options{})
	s := await.Ready(t, rowstore.ErrUnavailable, func() (rowstore.Store, error) {
		return rowstore.Open(t.Context(), c.URL()+"?prefix="+prefix())
	})
	atend.Do(t, func() { require.NoError(t, s.Close()) })
	apply(t, s, write(1))
	c.StopPD()
	apply(t, s, write(2))
	source := s.(rowstore.OracleProvider).Oracle()
	began := time.Now()
	_, err := source.Draw(t.Context(), 1)
	require.ErrorIs(t, err, rowstore.ErrUnavailable)
	require.Less(t, time.Since(began), patient)
	_, err = s.(rowstore.Splitter).Split(t.Context(), "t", 2)
	require.ErrorIs(t, err, rowstore.ErrUnavailable)
	c.StartPD()
	require.Eventually(t, func() bool { _, err := source.Draw(t.Context(), 1); return err == nil }, time.Minute, 10*time.Millisecond)
}
