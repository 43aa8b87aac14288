// Package kafkasink sends the items of an outbox (package recipes/export) to a topic of Kafka. A consumer that reads what is committed
// (read_committed) sees each item once, and those of a key in their order.
//
// A key has a transactional id. Whoever begins to send for it fences whoever did so before: Kafka ends that one's transaction, and refuses what it still
// sends. Then the sink reads how far the key has come: a committed offset of a consumer group that nobody is in, whose metadata name the last item and the epoch
// of its exporter. The items and the next such offset are committed in one transaction. So a late exporter either is fenced by its successor, or, if it begins after that one, finds
// the higher epoch and sends nothing. Nothing is sent after its acknowledgment.
//
// Kafka forgets such offsets after offsets.retention.minutes, seven days by default. No exporter must be suspended for that long.
package kafkasink

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/recipes/export"
)

// Headers of a record. Together with its key they name the item.
const (
	HeaderCommit = "percolator-commit"
	HeaderIndex  = "percolator-index"
)

// Sink is an export.Sink. Topic and Name must be set. It may be used concurrently. It makes a client for each call, which keeps the example short; a
// sink for many small batches keeps the clients of the keys that it sends for.
type Sink struct {
	Topic string
	// Name begins the transactional ids and the groups. Each outbox has another one.
	Name string
	// Options connect to the brokers: seeds, TLS, credentials.
	Options []kgo.Opt

	beforeProduce func() // for tests
}

// place is how far a key has come: the last item, and the epoch of who sent it.
type place struct {
	epoch  uint64
	commit percolator.Timestamp
	index  int
}

func (p *place) has(item *export.Item) bool {
	return item.Commit < p.commit || item.Commit == p.commit && item.Index <= p.index
}

// Send implements export.Sink. All items are taken, or none.
func (s *Sink) Send(ctx context.Context, key string, items []export.Item) (sent int, err error) {
	if len(items) == 0 {
		return 0, nil
	}
	id := s.Name + "/" + base64.RawURLEncoding.EncodeToString([]byte(key))
	// Later versions of the requests name topics by ids.
	client, err := kgo.NewClient(slices.Concat([]kgo.Opt{kgo.MaxVersions(kversion.V3_7_0())}, s.Options, []kgo.Opt{kgo.TransactionalID(id)})...)
	if err != nil {
		return 0, fmt.Errorf("kafkasink: %w", err)
	}
	defer client.Close()
	producer, epoch, err := client.ProducerID(ctx) // from here on older ones are fenced
	if err != nil {
		return 0, fmt.Errorf("kafkasink: beginning: %w", err)
	}
	at, err := s.place(ctx, client, id)
	if err != nil {
		return 0, err
	}
	if at.epoch > items[0].Epoch {
		return 0, export.ErrSuperseded
	}
	var records []*kgo.Record
	for i := range items {
		if item := &items[i]; !at.has(item) {
			records = append(records, s.record(key, item))
		}
	}
	if len(records) == 0 {
		return len(items), nil
	}
	if s.beforeProduce != nil {
		s.beforeProduce()
	}
	if err := client.BeginTransaction(); err != nil {
		return 0, fmt.Errorf("kafkasink: beginning: %w", err)
	}
	err = client.ProduceSync(ctx, records...).FirstErr()
	if err == nil {
		last := &items[len(items)-1]
		err = s.move(ctx, client, id, producer, epoch, place{last.Epoch, last.Commit, last.Index})
	}
	// All items or none are taken. Where one of them is why none is (too large for the broker, say), the outbox sends them again in smaller batches, down to that one alone.
	end := kgo.TryCommit
	if err != nil {
		end = kgo.TryAbort
	}
	// After a lost reply nobody knows whether the items were taken. The next attempt reads it.
	if err := errors.Join(err, client.EndTransaction(ctx, end)); err != nil {
		return 0, fmt.Errorf("kafkasink: %w", err)
	}
	return len(items), nil
}

func (s *Sink) record(key string, item *export.Item) *kgo.Record {
	return &kgo.Record{Topic: s.Topic, Key: []byte(key), Value: item.Payload, Headers: []kgo.RecordHeader{
		{Key: HeaderCommit, Value: strconv.AppendUint(nil, uint64(item.Commit), 10)},
		{Key: HeaderIndex, Value: strconv.AppendInt(nil, int64(item.Index), 10)},
	}}
}

// place reads how far a key has come. The client waits while a transaction that was fenced is being ended.
func (s *Sink) place(ctx context.Context, client *kgo.Client, group string) (p place, err error) {
	r := kmsg.NewPtrOffsetFetchRequest()
	r.RequireStable = true
	g, t := kmsg.NewOffsetFetchRequestGroup(), kmsg.NewOffsetFetchRequestGroupTopic()
	t.Topic, t.Partitions = s.Topic, []int32{0}
	g.Group, g.Topics = group, append(g.Topics, t)
	r.Groups = append(r.Groups, g)
	answer, err := r.RequestWith(ctx, client)
	if err != nil {
		return p, fmt.Errorf("kafkasink: reading how far the key has come: %w", err)
	}
	p.index = -1
	for _, g := range answer.Groups {
		if err := kerr.ErrorForCode(g.ErrorCode); err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
			return p, fmt.Errorf("kafkasink: reading how far the key has come: %w", err)
		}
		for _, t := range g.Topics {
			for _, part := range t.Partitions {
				if err := kerr.ErrorForCode(part.ErrorCode); err != nil {
					return p, fmt.Errorf("kafkasink: reading how far the key has come: %w", err)
				}
				if part.Offset < 0 || part.Metadata == nil {
					continue // it has not come anywhere
				}
				if _, err := fmt.Sscanf(*part.Metadata, "%d %d %d", &p.epoch, &p.commit, &p.index); err != nil {
					return p, fmt.Errorf("kafkasink: the metadata of group %q are of somebody else", group)
				}
			}
		}
	}
	return p, nil
}

// move notes, as a part of the transaction, how far a key has come.
func (s *Sink) move(ctx context.Context, client *kgo.Client, id string, producer int64, epoch int16, to place) error {
	add := kmsg.NewPtrAddOffsetsToTxnRequest()
	add.TransactionalID, add.ProducerID, add.ProducerEpoch, add.Group = id, producer, epoch, id
	added, err := add.RequestWith(ctx, client)
	if err == nil {
		err = kerr.ErrorForCode(added.ErrorCode)
	}
	if err != nil {
		return fmt.Errorf("noting how far the key has come: %w", err)
	}
	r := kmsg.NewPtrTxnOffsetCommitRequest()
	r.TransactionalID, r.Group, r.ProducerID, r.ProducerEpoch = id, id, producer, epoch
	t, part := kmsg.NewTxnOffsetCommitRequestTopic(), kmsg.NewTxnOffsetCommitRequestTopicPartition()
	words := fmt.Sprintf("%d %d %d", to.epoch, to.commit, to.index)
	part.Metadata = &words
	t.Topic, t.Partitions = s.Topic, append(t.Partitions, part)
	r.Topics = append(r.Topics, t)
	answer, err := r.RequestWith(ctx, client)
	if err != nil {
		return fmt.Errorf("noting how far the key has come: %w", err)
	}
	for _, t := range answer.Topics {
		for _, part := range t.Partitions {
			if err := kerr.ErrorForCode(part.ErrorCode); err != nil {
				return fmt.Errorf("noting how far the key has come: %w", err)
			}
		}
	}
	return nil
}
