package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/recipes/export"
)

// mailbox is the other side: who gets the letters. It takes each one once, whatever the shop's processes go through,
// because it looks at the epochs.
type mailbox struct {
	mu      sync.Mutex
	last    map[string]export.Item
	letters []Letter
	again   int // letters that came again, and were not taken again
}

// Send implements export.Sink.
func (m *mailbox) Send(_ context.Context, customer string, items []export.Item) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, item := range items {
		last, l := m.last[customer], Letter{}
		switch {
		case item.Epoch < last.Epoch:
			return i, export.ErrSuperseded
		case item.Commit < last.Commit || item.Commit == last.Commit && item.Index <= last.Index:
			m.again++
			item.Commit, item.Index = last.Commit, last.Index // the epoch is new
		case json.Unmarshal(item.Payload, &l) != nil:
			return i, errors.New("this is no letter")
		default:
			m.letters = append(m.letters, l)
		}
		m.last[customer] = item
	}
	return len(items), nil
}

func newMailbox() *mailbox { return &mailbox{last: map[string]export.Item{}} }

// all are the letters that were taken, in the order in which they came.
func (m *mailbox) all() []Letter {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]Letter{}, m.letters...)
}

// list answers with the letters.
func (m *mailbox) list(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, m.all()) }

// receive takes what export.HTTP posts.
func (m *mailbox) receive(w http.ResponseWriter, r *http.Request) {
	var batch struct {
		Key   *string
		Epoch uint64 `json:",string"`
		Items []struct {
			Commit  percolator.Timestamp `json:",string"`
			Index   int
			Payload []byte
		}
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 16<<20)).Decode(&batch); err != nil {
		fail(w, r, malformed("bad_json", "the body is no batch of letters"))
		return
	}
	if batch.Key == nil { // it is no text, and not that of nobody
		fail(w, r, malformed("bad_key", "the batch has no key in text"))
		return
	}
	var items []export.Item
	for _, i := range batch.Items {
		items = append(items, export.Item{Key: *batch.Key, Epoch: batch.Epoch, Commit: i.Commit, Index: i.Index, Payload: i.Payload})
	}
	sent, err := m.Send(r.Context(), *batch.Key, items)
	switch {
	case errors.Is(err, export.ErrSuperseded):
		fail(w, r, conflict("superseded", "letters of a higher epoch were seen"))
	case err != nil && sent == 0:
		fail(w, r, malformed("bad_letter", err.Error()))
	default:
		reply(w, http.StatusOK, map[string]int{"sent": sent})
	}
}
