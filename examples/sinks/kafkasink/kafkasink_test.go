package kafkasink

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/recipes/export"
)

const topic = "orders"

// newSink starts a broker in this process.
func newSink(t *testing.T) *Sink {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, topic))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	return &Sink{Topic: topic, Name: "outbox", Options: []kgo.Opt{kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.DialTimeout(time.Minute)}}
}

// stored are the payloads of a key that a consumer sees who reads what is committed. It waits until there are so many.
func (s *Sink) stored(t *testing.T, key string, most int) (payloads []string) {
	t.Helper()
	client, err := kgo.NewClient(slices.Concat(s.Options, []kgo.Opt{kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted())})...)
	require.NoError(t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for len(payloads) < most {
		fetches := client.PollFetches(ctx)
		require.NoError(t, fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			if string(r.Key) == key {
				payloads = append(payloads, string(r.Value))
			}
		})
	}
	return payloads
}

func items(key string, epoch uint64, payloads ...string) (all []export.Item) {
	for i, p := range payloads {
		all = append(all, export.Item{Key: key, Epoch: epoch, Commit: percolator.Timestamp(i + 1), Index: 0, Payload: []byte(p)})
	}
	return all
}

func TestOutbox(t *testing.T) {
	t.Parallel()
	ctx, db, sink := t.Context(), percolatetest.Open(t), newSink(t)
	outbox, err := export.New(db, "outbox")
	require.NoError(t, err)
	observer, err := outbox.Observer("send", sink, export.Options{})
	require.NoError(t, err)
	percolatetest.RunUntilIdle(t, db, observer)
	keys := []string{"", "\x00\xff"}
	for i := range 3 {
		require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
			for _, key := range keys {
				if err := outbox.Put(ctx, tx, key, []byte(fmt.Sprint(i))); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	percolatetest.RunUntilIdle(t, db, observer)
	for _, key := range keys {
		require.Equal(t, []string{"0", "1", "2"}, sink.stored(t, key, 3))
	}
}

// TestLateExporter is suspended between its look and its first record, while its successor sends everything and has it acknowledged. And one begins when its
// successor has done so.
func TestLateExporter(t *testing.T) {
	t.Parallel()
	ctx, sink := t.Context(), newSink(t)
	late := *sink
	suspended := false
	late.beforeProduce = func() {
		suspended = true
		n, err := sink.Send(ctx, "k", items("k", 6, "1", "2"))
		require.NoError(t, err)
		require.Equal(t, 2, n)
	}
	n, err := late.Send(ctx, "k", items("k", 5, "1", "2"))
	require.Error(t, err)
	require.Zero(t, n)
	require.True(t, suspended)
	_, err = sink.Send(ctx, "k", items("k", 5, "1", "2", "3"))
	require.ErrorIs(t, err, export.ErrSuperseded)

	// What was sent before comes again under a higher epoch, as after a lost reply.
	n, err = sink.Send(ctx, "k", items("k", 7, "1", "2", "3"))
	require.NoError(t, err)
	require.Equal(t, 3, n)
	n, err = sink.Send(ctx, "k", items("k", 8, "1", "2", "3"))
	require.NoError(t, err)
	require.Equal(t, 3, n)
	_, err = sink.Send(ctx, "k", items("k", 9, "1", "2", "3", "end"))
	require.NoError(t, err)
	require.Equal(t, []string{"1", "2", "3", "end"}, sink.stored(t, "k", 4))
}

// Options may be a part of a longer list that others share. A producer's transactional id is not written into it: two keys at once would
// have the id of one of them, and fence each other.
func TestOptionsAreNotChanged(t *testing.T) {
	t.Parallel()
	sink := newSink(t)
	options := slices.Grow(sink.Options, 4)
	sink.Options = options
	for _, key := range []string{"a", "b"} {
		n, err := sink.Send(t.Context(), key, items(key, 1, "1 of "+key))
		require.NoError(t, err)
		require.Equal(t, 1, n)
		for _, o := range options[len(options):cap(options)] {
			require.Nil(t, o, "an option was appended to those of the caller")
		}
	}
	for _, key := range []string{"a", "b"} {
		require.Equal(t, []string{"1 of " + key}, sink.stored(t, key, 1))
	}
}
