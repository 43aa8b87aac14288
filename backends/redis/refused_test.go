package redis

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// What a server has certainly refused is no unknown outcome, and what is refused in memory is refused here.

func ifNone(write, mark rowstore.Timestamp) []rowstore.Condition {
	return []rowstore.Condition{rowstore.Absent(rowstore.Write, "c", write), rowstore.Absent(rowstore.Lock, "c", 0), rowstore.Absent(rowstore.Mark, "c", mark)}
}

// The short way for groups knows one timestamp for all conditions. A condition that wants no write at all has another one.
func TestQuickGroupsThatWantNoWriteAtAll(t *testing.T) {
	t.Parallel()
	type grouper interface {
		rowstore.Store
		rowstore.Grouper
		rowstore.OracleProvider
	}
	for name, s := range map[string]grouper{"memory": memstore.New(), "redis": bare(t, with(t, testserver.Redis(t)))} {
		apply(t, s, put("a", 5, "old"))
		start, err := s.Oracle().Draw(t.Context(), 1)
		require.NoError(t, err)
		a, b := put("a", rowstore.AssignedTimestamp, "new"), put("b", rowstore.AssignedTimestamp, "new")
		for what, conditions := range map[string][2][]rowstore.Condition{
			"no write, no mark since the start": {ifNone(0, start), ifNone(start, start)},
			"no write, no mark":                 {ifNone(0, 0), ifNone(start, start)},
			"no write in the second row":        {ifNone(start, start), ifNone(0, start)},
		} {
			first, second := a, b
			if what == "no write in the second row" {
				first, second = b, a
			}
			first.Conditions, second.Conditions = conditions[0], conditions[1]
			for _, muts := range [][]rowstore.Mutation{{first, second}, {second, first}} {
				out, err := s.Group(t.Context(), []rowstore.Group{{AssignTimestamp: true, Mutations: muts}})
				require.NoError(t, err)
				require.NoError(t, out[0].Err)
				require.False(t, out[0].Applied, "%s: %s", name, what)
			}
		}
	}
}

// endsLater has ended once the call was answered: the driver does not see it.
type endsLater struct{ context.Context }

func (endsLater) Err() error { return context.Canceled }

// The caller of a request that came too late has gone when the answer comes.
func TestLateAndNobodyWaits(t *testing.T) {
	t.Parallel()
	s := bare(t, with(t, testserver.Redis(t)))
	apply(t, s, put("r", 1, "v"))
	s.lateAfter = -time.Hour
	w, _ := groupWrites([]rowstore.Group{{Mutations: []rowstore.Mutation{put("r", 2, "w")}}})
	batches, err := s.pack(w, writeScript)
	require.NoError(t, err)
	ctx := endsLater{context.WithoutCancel(t.Context())}
	s.send(ctx, batches)
	err = s.finish(ctx, w, batches, writeScript)
	require.ErrorIs(t, err, errLate)
	require.NotErrorIs(t, err, rowstore.ErrAmbiguous)
}

// What is sent again may be applied no longer than what was sent first.
func TestSentAgainEndsAtTheSameTime(t *testing.T) {
	t.Parallel()
	c := &call{arg: payload{b: make([]byte, 16), expiry: 8, clock: &serverClock{}, budget: time.Minute}}
	c.arg.clock.saw(1_000_000)
	until := func() int64 {
		b, err := c.arg.MarshalBinary()
		require.NoError(t, err)
		return int64(binary.BigEndian.Uint64(b[8:])) //nolint:gosec // a time of this century
	}
	first := until()
	_, err := c.arg.MarshalBinary()
	require.ErrorIs(t, err, errSentTwice)
	for range 3 {
		began := time.Now()
		require.Eventually(t, func() bool { return time.Since(began) > 20*time.Millisecond }, time.Minute, time.Millisecond)
		c.refused()
		require.InDelta(t, first, until(), 5)
	}
	c.refused()
	require.True(t, c.arg.abandon())
	_, err = c.arg.MarshalBinary()
	require.ErrorIs(t, err, errAbandoned)
}

// A deadline ends while a slot is on its way: the servers have refused all that came.
func TestDeadlineWhileASlotMoves(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	cl := testserver.NewRedisCluster(t, map[string]string{"cluster-node-timeout": "15000"})
	s := bare(t, with(t, cl.URL, "partitions", "1"))
	apply(t, s, put("r", 1, "0"))
	m := startMove(ctx, t, cl, s)
	certain := 0
	// A deadline may also fall on the way of a request. On a busy machine most of a round may do so.
	for round := 0; round < 10 && certain <= 5; round++ {
		certain = 0
		for i := range 10 {
			short, cancel := context.WithTimeout(ctx, time.Duration(100+37*i)*time.Millisecond)
			err := tryApply(short, s, put("r", 2, "1"))
			cancel()
			require.Error(t, err)
			if !errors.Is(err, rowstore.ErrAmbiguous) {
				certain++
			}
		}
	}
	m.end(ctx, t, "STABLE")
	require.Equal(t, "0", newest(t, s, "r"))
	require.Greater(t, certain, 5, "of 10 calls, each of which a server had refused")
}

// What a later version has noted in a partition is not taken back by an Open of this one that was slow.
func TestLevelOnlyRises(t *testing.T) {
	t.Parallel()
	url := with(t, testserver.Redis(t))
	s := bare(t, url)
	c := admin(t, url)
	level := s.parts[0].tag + "l"
	for stored, want := range map[string]string{"": "3", "2": "3", "3": "3", "4": "4"} {
		require.NoError(t, c.Del(t.Context(), level).Err())
		if stored != "" {
			require.NoError(t, c.Set(t.Context(), level, stored, 0).Err())
		}
		require.NoError(t, c.Eval(t.Context(), levelScript.source, []string{s.parts[0].tables, s.parts[0].never}).Err())
		require.Equal(t, want, c.Get(t.Context(), level).Val(), "%q", stored)
	}
}

// refuses answers every command with an error.
type refuses struct {
	goredis.Hook
	err error
}

func (r refuses) ProcessPipelineHook(goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(_ context.Context, cmds []goredis.Cmder) error {
		for _, cmd := range cmds {
			cmd.SetErr(r.err)
		}
		return r.err
	}
}

func (refuses) DialHook(next goredis.DialHook) goredis.DialHook          { return next }
func (refuses) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook { return next }

// A sentinel may deny what it is asked. A server that is asked by way of one is not admitted unchecked because it is busy.
func TestOnlyADeniedSentinelIsPassedOver(t *testing.T) {
	t.Parallel()
	for text, admitted := range map[string]bool{
		"NOPERM User x has no permissions to run the 'info' command":             true,
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL.":    false,
		"LOADING Redis is loading the dataset in memory":                         false,
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is no": false,
	} {
		s := &direct{opts: Options{Mode: Sentinel}}
		c := goredis.NewClient(&goredis.Options{Addr: "127.0.0.1:1"})
		c.AddHook(refuses{err: answered(text)})
		err := s.inspect(t.Context(), c)
		require.Equal(t, admitted, err == nil, "%s: %v", text, err)
		require.NoError(t, c.Close())
	}
}
