package main

import (
	"context"
	"encoding/json"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/recipes/export"
)

// Letter tells a customer of an order.
type Letter struct {
	To   string `json:"to"`
	News News   `json:"news"`
}

// News are what a letter says. The outbox holds them without the address, which is looked up when the letter is sent.
type News struct {
	Order  string `json:"order"`
	Status Status `json:"status"`
}

// tell puts a letter about an order into the outbox.
func (s *shop) tell(ctx context.Context, tx *percolator.Txn, o Order) error {
	news, err := json.Marshal(News{Order: o.ID, Status: o.Status})
	if err != nil {
		return err
	}
	return s.outbox.Put(ctx, tx, o.Customer, news)
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
		for i := range items {
			letter := map[string]any{"to": to.Mail, "news": json.RawMessage(items[i].Payload)}
			if items[i].Payload, err = json.Marshal(letter); err != nil {
				return 0, err
			}
		}
		return mailbox.Send(ctx, customer, items)
	}
}
