package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func TestClusterFaults(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	cl := testserver.NewRedisCluster(t, map[string]string{"appendfsync": "always"})
	err := openError(t, "redis://"+cl.Addrs[0])
	require.ErrorIs(t, err, rowstore.ErrInvalid)
	require.ErrorContains(t, err, "cluster mode")

	s := bare(t, with(t, cl.URL))
	require.Len(t, s.parts, clusterPartitions)
	var muts []rowstore.Mutation
	for i := range 200 {
		muts = append(muts, put(fmt.Sprint("r", i), 1, "v"))
	}
	out, err := s.Apply(ctx, muts, rowstore.ApplyOptions{})
	require.NoError(t, err)
	for i := range out {
		require.True(t, out[i].Applied)
	}

	// One dead server fails only its own rows.
	require.NoError(t, cl.Nodes[2].Kill())
	reads := make([]rowstore.RowRead, len(muts))
	for i := range muts {
		reads[i] = rowstore.RowRead{Table: "t", Row: muts[i].Row, Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: "c", To: maxTS, Limit: 1}}}
	}
	require.Eventually(t, func() bool {
		short, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		rows, err := s.Read(short, reads)
		if err != nil {
			return false
		}
		failed := 0
		for i := range rows {
			if rows[i].Err != nil {
				failed++
			}
		}
		return failed > 0 && failed < len(rows)
	}, 30*time.Second, time.Millisecond, "some rows are read and others not")
	require.NoError(t, cl.Nodes[2].Start())
	require.Eventually(t, func() bool {
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		rows, err := s.Read(short, reads)
		if err != nil {
			return false
		}
		for i := range rows {
			if rows[i].Err != nil || len(rows[i].Versions) != 1 {
				return false
			}
		}
		return true
	}, 60*time.Second, time.Millisecond, "all rows are back")
}

// TestClusterMovesSlot moves the slot of a partition while rows of it change: every
// call either happens whole, on the right server, or says that it did not.
func TestClusterMovesSlot(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	cl := testserver.NewRedisCluster(t, nil)
	s := bare(t, with(t, cl.URL, "partitions", "1"))
	for i := range 20 {
		apply(t, s, put(fmt.Sprint("r", i), 1, "0"))
	}
	m := startMove(ctx, t, cl, s)
	// Half of the keys are moved when the writers start.
	host, port, err := net.SplitHostPort(m.to.Options().Addr)
	require.NoError(t, err)
	move := func(most int) int {
		keys, err := m.from.ClusterGetKeysInSlot(ctx, int(m.slot), most).Result()
		require.NoError(t, err)
		for _, k := range keys {
			require.NoError(t, m.from.Migrate(ctx, host, port, k, 0, 5*time.Second).Err())
		}
		return len(keys)
	}
	require.Positive(t, move(10))
	started := make(chan struct{}, 20)
	writing, cancel := context.WithTimeout(ctx, 2*time.Minute)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel() // the writers end, whatever comes
	errs := make([]error, 20)
	for i := range 20 {
		wg.Go(func() {
			started <- struct{}{}
			for {
				errs[i] = tryApply(writing, s, put(fmt.Sprint("r", i), 2, "1"))
				if errs[i] == nil || errors.Is(errs[i], rowstore.ErrAmbiguous) || errors.Is(errs[i], rowstore.ErrClosed) || writing.Err() != nil {
					return
				}
			}
		})
	}
	for range 20 {
		<-started
	}
	for move(100) > 0 {
	}
	m.end(ctx, t, "NODE", m.toID)
	wg.Wait()
	for i := range 20 {
		require.NoError(t, errs[i])
		require.Equal(t, "1", newest(t, s, fmt.Sprint("r", i)))
		rows, err := s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: fmt.Sprint("r", i), Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: "c", To: maxTS}}}})
		require.NoError(t, err)
		require.Len(t, rows[0].Versions, 2, "both writes are there")
	}
}

// slotMove is a slot on its way from one node to another.
type slotMove struct {
	slot     int64
	from, to *goredis.Client
	toID     string
}

// startMove begins to move the slot of a store's first partition.
func startMove(ctx context.Context, t *testing.T, cl *testserver.RedisCluster, s *direct) *slotMove {
	t.Helper()
	var clients []*goredis.Client
	for _, a := range cl.Addrs {
		clients = append(clients, admin(t, "redis://"+a))
	}
	slot, err := clients[0].ClusterKeySlot(ctx, s.parts[0].tables).Result()
	require.NoError(t, err)
	owner := ownerOfSlot(ctx, t, clients, slot)
	m := &slotMove{slot: slot, from: clients[owner], to: clients[(owner+1)%len(clients)]}
	fromID, err := m.from.ClusterMyID(ctx).Result()
	require.NoError(t, err)
	m.toID, err = m.to.ClusterMyID(ctx).Result()
	require.NoError(t, err)
	require.NoError(t, m.to.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", fromID).Err())
	require.NoError(t, m.from.Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", m.toID).Err())
	return m
}

// end ends the move: STABLE, or NODE and who has the slot then.
func (m *slotMove) end(ctx context.Context, t *testing.T, state ...any) {
	t.Helper()
	for _, c := range []*goredis.Client{m.to, m.from} {
		require.NoError(t, c.Do(ctx, append([]any{"CLUSTER", "SETSLOT", m.slot}, state...)...).Err())
	}
}

// ownerOfSlot finds the node that holds the keys of a slot.
func ownerOfSlot(ctx context.Context, t *testing.T, clients []*goredis.Client, slot int64) int {
	t.Helper()
	owner := -1
	for i, c := range clients {
		n, err := c.ClusterCountKeysInSlot(ctx, int(slot)).Result()
		require.NoError(t, err)
		if n > 0 {
			owner = i
		}
	}
	require.GreaterOrEqual(t, owner, 0)
	return owner
}

// The server with the record of a Cluster's store has lost everything while no program was running.
func TestClusterThatLostItsRecord(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	cl := testserver.NewRedisCluster(t, nil)
	url := with(t, cl.URL)
	s := bare(t, url+"&partitions=5")
	for i := range 50 {
		apply(t, s, put(fmt.Sprint("r", i), 1, "v"))
	}
	var clients []*goredis.Client
	for _, a := range cl.Addrs {
		clients = append(clients, admin(t, "redis://"+a))
	}
	slot, err := clients[0].ClusterKeySlot(ctx, s.parts[0].tables).Result()
	require.NoError(t, err)
	record, err := clients[ownerOfSlot(ctx, t, clients, slot)].HGetAll(ctx, s.parts[0].tag+"m").Result()
	require.NoError(t, err)
	require.NoError(t, s.Close())
	owner := clients[ownerOfSlot(ctx, t, clients, slot)]
	require.NoError(t, owner.FlushAll(ctx).Err())
	for _, how := range []string{"", "&partitions=5", "&asis=true"} {
		_, err = OpenURL(ctx, url+how)
		require.ErrorIs(t, err, rowstore.ErrCorrupt)
		require.ErrorContains(t, err, "has lost its record")
	}
	n, err := owner.Exists(ctx, s.parts[0].tag+"m").Result()
	require.NoError(t, err)
	require.Zero(t, n, "no record was made")
	// It is kept as the error says.
	require.NoError(t, owner.HSet(ctx, s.parts[0].tag+"m", record).Err())
	again := bare(t, url)
	require.Len(t, again.parts, 5)
	left := 0
	for i := range 50 {
		if newest(t, again, fmt.Sprint("r", i)) == "v" {
			left++
		}
	}
	require.Positive(t, left)
}

// Whoever gives an Open up leaves commands behind that are still on their way. They share nothing
// with the store that is closed meanwhile.
func TestOpenGivenUp(t *testing.T) {
	t.Parallel()
	cl := testserver.NewRedisCluster(t, map[string]string{"cluster-node-timeout": "15000"})
	bare(t, with(t, cl.URL)) // the servers answer
	gaveUp := 0
	for limit := time.Millisecond; ; limit += limit/50 + 50*time.Microsecond {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		s, err := OpenURL(ctx, with(t, cl.URL)) // a new store each time, so all of its opening is seen
		cancel()
		if err == nil {
			require.NoError(t, s.Close())
			break
		}
		require.ErrorIs(t, err, context.DeadlineExceeded)
		gaveUp++
	}
	require.Positive(t, gaveUp)
}
