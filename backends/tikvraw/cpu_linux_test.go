package tikvraw_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tikv/client-go/v2/testutils"
	"github.com/tikv/client-go/v2/tikv"
	"github.com/tikv/client-go/v2/tikvrpc"
	"golang.org/x/sys/unix"

	"github.com/percolate-go/percolate/backends/tikvraw"
	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/tikvtest"
	"github.com/percolate-go/percolate/percolator"
)

// metered is a layer that counts the CPU time of the mock cluster, which works in the
// goroutine of its caller.
type metered struct{ used atomic.Int64 }

func (m *metered) Stores(next tikv.Client) tikv.Client { return &meteredClient{next, m} }

type meteredClient struct {
	tikv.Client
	layer *metered
}

func (c *meteredClient) SendRequest(ctx context.Context, addr string, req *tikvrpc.Request, timeout time.Duration) (*tikvrpc.Response, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := cpu(unix.CLOCK_THREAD_CPUTIME_ID)
	defer func() { c.layer.used.Add(int64(cpu(unix.CLOCK_THREAD_CPUTIME_ID) - before)) }()
	return c.Client.SendRequest(ctx, addr, req, timeout)
}

// cpu reads a clock of CPU time. Getrusage would not do: what it says of a thread is as old as the thread's
// last tick or switch, so that what is done between two of them is counted nowhere.
func cpu(clock int32) time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(clock, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// BenchmarkTransferCPU compares what a transfer costs the client in CPU time with
// client-go's own transactions over client-go's mock, one caller each. The mock's own time
// is taken off.
func BenchmarkTransferCPU(b *testing.B) {
	const accounts = 1000
	b.Run("percolate", func(b *testing.B) {
		c := tikvtest.New(b, tikvtest.Options{Offline: true})
		var m metered
		// Outside the codec, as in client-go's own test store below.
		pdc, rpc := c.Clients(b)
		s, err := tikvraw.New(b.Context(), pdc, tikvraw.Options{Prefix: prefix(), SweepEvery: -1}.Through(m.Stores(rpc)))
		require.NoError(b, err)
		db, err := percolator.New(b.Context(), s)
		require.NoError(b, err)
		atend.Do(b, func() { require.NoError(b, db.Close(context.WithoutCancel(b.Context()))) })
		ctx := b.Context()
		for i := range accounts {
			require.NoError(b, put(ctx, db, cell(fmt.Sprintf("%04d", i)), 1<<40))
		}
		measureCPU(b, &m, func(i int) error {
			return db.Update(ctx, func(tx *percolator.Txn) error {
				return transfer(ctx, tx, cell(fmt.Sprintf("%04d", i%accounts)), cell(fmt.Sprintf("%04d", (i+7)%accounts)))
			})
		})
	})
	for name, onePhase := range map[string]bool{"txnkv": false, "txnkv-async": true} {
		b.Run(name, func(b *testing.B) {
			mock, cluster, pdc, err := testutils.NewMockTiKV("", nil)
			require.NoError(b, err)
			testutils.BootstrapWithMultiStores(cluster, 3)
			var m metered
			s, err := tikv.NewTestTiKVStore(mock, pdc, m.Stores, nil, 0)
			require.NoError(b, err)
			atend.Do(b, func() { require.NoError(b, s.Close()) })
			ctx := b.Context()
			key := func(i int) []byte { return fmt.Appendf(nil, "accounts/%04d/balance", i) }
			for i := range accounts {
				tx, err := s.Begin()
				require.NoError(b, err)
				require.NoError(b, tx.Set(key(i), binary.BigEndian.AppendUint64(nil, 1<<40)))
				require.NoError(b, tx.Commit(ctx))
			}
			measureCPU(b, &m, func(i int) error {
				tx, err := s.Begin()
				if err != nil {
					return err
				}
				tx.SetEnableAsyncCommit(onePhase)
				tx.SetEnable1PC(onePhase)
				from, to := key(i%accounts), key((i+7)%accounts)
				got, err := tx.BatchGet(ctx, [][]byte{from, to})
				if err != nil {
					return err
				}
				for k, d := range map[string]uint64{string(from): ^uint64(0), string(to): 1} {
					if err := tx.Set([]byte(k), binary.BigEndian.AppendUint64(nil, binary.BigEndian.Uint64(got[k])+d)); err != nil {
						return err
					}
				}
				return tx.Commit(ctx)
			})
		})
	}
}

// measureCPU runs the transfers, and reports the CPU time of the client and of the mock.
func measureCPU(b *testing.B, m *metered, transfer func(i int) error) {
	b.Helper()
	for i := range 100 {
		require.NoError(b, transfer(i))
	}
	runtime.GC()
	process, served := cpu(unix.CLOCK_PROCESS_CPUTIME_ID), m.used.Load()
	b.ResetTimer()
	for i := range b.N {
		if err := transfer(i); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	used := cpu(unix.CLOCK_PROCESS_CPUTIME_ID) - process
	mock := time.Duration(m.used.Load() - served)
	b.ReportMetric(float64((used-mock).Microseconds())/float64(b.N), "client-cpu-µs/op")
	b.ReportMetric(float64(mock.Microseconds())/float64(b.N), "mock-cpu-µs/op")
}
