package natssink

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/recipes/export"
)

// newSink starts a server in this process, and makes a stream.
func newSink(t *testing.T) *Sink {
	t.Helper()
	s, err := server.NewServer(&server.Options{DontListen: true, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true})
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(time.Minute))
	conn, err := nats.Connect("", nats.InProcessServer(s))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>"}, Storage: jetstream.MemoryStorage})
	require.NoError(t, err)
	return &Sink{JetStream: js, Stream: stream, Subject: "orders"}
}

// stored are the payloads and epochs of the messages of a key.
func (s *Sink) stored(t *testing.T, key string) (payloads []string, epochs []uint64) {
	t.Helper()
	info, err := s.Stream.Info(t.Context())
	require.NoError(t, err)
	for n := info.State.FirstSeq; n <= info.State.LastSeq && info.State.Msgs > 0; n++ {
		m, err := s.Stream.GetMsg(t.Context(), n)
		require.NoError(t, err)
		if m.Subject != "orders."+Token(key) {
			continue
		}
		epoch, err := strconv.ParseUint(m.Header.Get(HeaderEpoch), 10, 64)
		require.NoError(t, err)
		payloads, epochs = append(payloads, string(m.Data)), append(epochs, epoch)
	}
	return payloads, epochs
}

func items(key string, epoch uint64, payloads ...string) (all []export.Item) {
	for i, p := range payloads {
		all = append(all, export.Item{Key: key, Epoch: epoch, Commit: percolator.Timestamp(i + 1), Index: 0, Payload: []byte(p)})
	}
	return all
}

// TestOutbox sends from an outbox, with keys that no subject may hold.
func TestOutbox(t *testing.T) {
	t.Parallel()
	ctx, db, sink := t.Context(), percolatetest.Open(t), newSink(t)
	outbox, err := export.New(db, "outbox")
	require.NoError(t, err)
	observer, err := outbox.Observer("send", sink, export.Options{})
	require.NoError(t, err)
	percolatetest.RunUntilIdle(t, db, observer)
	keys := []string{"", "a b.c>*", "\x00\xff"}
	for i := range 5 {
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
		got, _ := sink.stored(t, key)
		require.Equal(t, []string{"0", "1", "2", "3", "4"}, got)
	}
}

// TestLateExporter is suspended between its look and its first message, while its successor sends everything and has it acknowledged.
func TestLateExporter(t *testing.T) {
	t.Parallel()
	ctx, sink := t.Context(), newSink(t)
	late := *sink
	suspended := false
	late.beforePublish = func() {
		if !suspended {
			suspended = true
			n, err := sink.Send(ctx, "k", items("k", 6, "1", "2"))
			require.NoError(t, err)
			require.Equal(t, 2, n)
		}
	}
	n, err := late.Send(ctx, "k", items("k", 5, "1", "2"))
	require.ErrorIs(t, err, export.ErrSuperseded)
	require.Zero(t, n)
	require.True(t, suspended)
	got, epochs := sink.stored(t, "k")
	require.Equal(t, []string{"1", "2"}, got)
	require.Equal(t, []uint64{6, 6}, epochs)
}

// TestAgain sends what was sent before, under a higher epoch: as after a lost acknowledgment.
func TestAgain(t *testing.T) {
	t.Parallel()
	ctx, sink := t.Context(), newSink(t)
	n, err := sink.Send(ctx, "k", items("k", 5, "1", "2"))
	require.NoError(t, err)
	require.Equal(t, 2, n)
	n, err = sink.Send(ctx, "k", items("k", 6, "1", "2", "3"))
	require.NoError(t, err)
	require.Equal(t, 3, n)
	got, epochs := sink.stored(t, "k")
	require.Equal(t, []string{"1", "2", "3"}, got)
	require.Equal(t, []uint64{5, 5, 6}, epochs)
	_, err = sink.Send(ctx, "k", items("k", 5, "1", "2", "3", "4"))
	require.ErrorIs(t, err, export.ErrSuperseded)
	ended, end := context.WithCancel(ctx)
	end()
	_, err = sink.Send(ended, "k", items("k", 7, "1", "2", "3", "4"))
	require.ErrorIs(t, err, context.Canceled)
}
