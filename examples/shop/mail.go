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

// Letter tells a customer of an order. The outbox holds it without the address, which is looked up when it is sent.
type Letter struct {
	To     string `json:"to,omitempty"`
	Order  string `json:"order"`
	Status Status `json:"status"`
}

// tell puts a letter about an order into the outbox.
func (s *shop) tell(ctx context.Context, tx *percolator.Txn, o Order) error {
	text, err := json.Marshal(Letter{Order: o.ID, Status: o.Status})
	if err != nil {
		return err
	}
	return s.outbox.Put(ctx, tx, o.Customer, text)
}

// postman addresses letters and gives them to a mailbox. Letters to customers who were erased are thrown away.
func (s *shop) postman(mailbox export.Sink) export.SinkFunc {
	return func(ctx context.Context, customer string, items []export.Item) (int, error) {
		to := Customer{}
		err := s.db.View(ctx, func(tx *percolator.Txn) (err error) {
			to, err = s.person(ctx, tx, customer)
			return err
		})
		if isRefusal(err) {
			return len(items), nil
		}
		if err != nil {
			return 0, err
		}
		for i, item := range items {
			l := Letter{}
			if err := json.Unmarshal(item.Payload, &l); err != nil {
				return 0, err
			}
			l.To = to.Mail
			if items[i].Payload, err = json.Marshal(l); err != nil {
				return 0, err
			}
		}
		return mailbox.Send(ctx, customer, items)
	}
}

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
	if m.last == nil {
		m.last = map[string]export.Item{}
	}
	for i, item := range items {
		last := m.last[customer]
		if item.Epoch < last.Epoch {
			return i, export.ErrSuperseded
		}
		l := Letter{}
		if err := json.Unmarshal(item.Payload, &l); err != nil {
			return i, errors.Join(errors.New("this is no letter"), err)
		}
		if item.Commit < last.Commit || item.Commit == last.Commit && item.Index <= last.Index {
			m.last[customer] = export.Item{Epoch: item.Epoch, Commit: last.Commit, Index: last.Index}
			m.again++
			continue
		}
		m.letters, m.last[customer] = append(m.letters, l), item
	}
	return len(items), nil
}

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
		Key   string
		Epoch uint64
		Items []struct {
			Commit  percolator.Timestamp
			Index   int
			Payload []byte
		}
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 16<<20)).Decode(&batch); err != nil {
		fail(w, r, malformed("bad_json", "the body is no batch of letters"))
		return
	}
	var items []export.Item
	for _, i := range batch.Items {
		items = append(items, export.Item{Key: batch.Key, Epoch: batch.Epoch, Commit: i.Commit, Index: i.Index, Payload: i.Payload})
	}
	sent, err := m.Send(r.Context(), batch.Key, items)
	switch {
	case errors.Is(err, export.ErrSuperseded):
		fail(w, r, conflict("superseded", "letters of a higher epoch were seen"))
	case err != nil && sent == 0:
		fail(w, r, malformed("bad_letter", err.Error()))
	default:
		reply(w, http.StatusOK, map[string]int{"sent": sent})
	}
}
