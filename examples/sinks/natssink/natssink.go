// Package natssink sends the items of an outbox (package recipes/export) to a JetStream stream of NATS, each once and in the order of its key.
//
// A key has a subject of its own. Before the sink sends, it reads the last message of the subject, which says by what exporter it was sent and which item it is. Each message is
// published on the condition that this is still the last one. So of two exporters that send at the same time, one is refused. It looks again, and finds the higher
// epoch, or the item that it was about to send. Nothing is sent after its acknowledgment, however long an exporter was suspended.
//
// The stream must keep the last message of every subject: with limits on age or size, give it MaxMsgsPerSubject, and remember that an outbox may
// send an item again as long as it has not noted it.
package natssink

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/recipes/export"
)

// Headers of a message. Together they say who sent which item.
const (
	HeaderEpoch  = "Percolator-Epoch"
	HeaderCommit = "Percolator-Commit"
	HeaderIndex  = "Percolator-Index"
)

// Sink is an export.Sink. All fields must be set. It may be used concurrently.
type Sink struct {
	JetStream jetstream.JetStream
	// Stream has the subjects.
	Stream jetstream.Stream
	// Subject is how subjects begin: that of a key is Subject, a dot, and Token of the key.
	Subject string

	beforePublish func() // for tests
}

// Token is what stands for a key in its subject: subjects may hold neither dots nor blanks.
func Token(key string) string { return "k" + base64.RawURLEncoding.EncodeToString([]byte(key)) }

// place is where a subject has come to: the last message, and what it holds.
type place struct {
	sequence uint64
	epoch    uint64
	commit   percolator.Timestamp
	index    int
}

// has tells whether an item was sent.
func (p *place) has(item *export.Item) bool {
	return item.Commit < p.commit || item.Commit == p.commit && item.Index <= p.index
}

// mostLooks bounds how often the place is looked up for one item: another exporter sends at the same time, or a server that is no leader answers.
const mostLooks = 10

// Send implements export.Sink.
func (s *Sink) Send(ctx context.Context, key string, items []export.Item) (sent int, err error) {
	subject := s.Subject + "." + Token(key)
	at, err := s.place(ctx, subject)
	if err != nil {
		return 0, err
	}
	for i, looks := 0, 0; i < len(items); {
		item := &items[i]
		switch {
		case at.epoch > item.Epoch:
			return i, export.ErrSuperseded
		case at.has(item):
			i, looks = i+1, 0
			continue
		case looks == mostLooks:
			return i, errors.New("natssink: others send the items of the key at the same time")
		}
		sequence, err := s.publish(ctx, subject, item, at.sequence)
		switch {
		case err == nil:
			at = place{sequence, item.Epoch, item.Commit, item.Index}
		case refused(err):
			looks++
			if at, err = s.place(ctx, subject); err != nil {
				return i, err
			}
		default: // which may be about this item alone, or about all; the outbox finds out
			return i, fmt.Errorf("natssink: publishing: %w", err)
		}
	}
	return len(items), nil
}

// refused tells that the last message of the subject was another one.
func refused(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) &&
		(api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

func (s *Sink) publish(ctx context.Context, subject string, item *export.Item, last uint64) (sequence uint64, err error) {
	if s.beforePublish != nil {
		s.beforePublish()
	}
	m := nats.NewMsg(subject)
	m.Data = item.Payload
	m.Header.Set(HeaderEpoch, strconv.FormatUint(item.Epoch, 10))
	m.Header.Set(HeaderCommit, strconv.FormatUint(uint64(item.Commit), 10))
	m.Header.Set(HeaderIndex, strconv.Itoa(item.Index))
	ack, err := s.JetStream.PublishMsg(ctx, m, jetstream.WithExpectLastSequencePerSubject(last))
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

// place reads the last message of a subject. The zero place stands before all items.
func (s *Sink) place(ctx context.Context, subject string) (p place, err error) {
	m, err := s.Stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return place{index: -1}, nil
	}
	if err != nil {
		return p, fmt.Errorf("natssink: reading the last message: %w", err)
	}
	epoch, err1 := strconv.ParseUint(m.Header.Get(HeaderEpoch), 10, 64)
	commit, err2 := strconv.ParseUint(m.Header.Get(HeaderCommit), 10, 64)
	index, err3 := strconv.Atoi(m.Header.Get(HeaderIndex))
	if err := errors.Join(err1, err2, err3); err != nil {
		return p, fmt.Errorf("natssink: message %d of the stream is no item of an outbox: %w", m.Sequence, err)
	}
	return place{m.Sequence, epoch, percolator.Timestamp(commit), index}, nil
}
