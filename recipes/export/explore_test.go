package export

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
)

// TestEveryInterleaving has two processes that put items, two that export, and a process of each kind that may die, in every order. The sink checks
// epochs, and takes each committed item once, in the order of commits.
func TestEveryInterleaving(t *testing.T) {
	t.Parallel()
	var sink *recorder
	var outbox *Outbox
	committed := percolator.Cell{Table: "log", Row: "all", Column: "items"}
	putter := func(name string, payloads ...string) percolatetest.Client {
		return percolatetest.Client{Name: name, Run: func(ctx context.Context, db *percolator.DB) error {
			o, err := New(db, "outbox")
			if err != nil {
				return err
			}
			for _, payload := range payloads {
				err = db.Update(ctx, func(tx *percolator.Txn) error {
					// What was committed, in the order of commits.
					if err := appendTo(ctx, tx, committed, payload); err != nil {
						return err
					}
					return o.Put(ctx, tx, "k", []byte(payload))
				})
				if err != nil {
					return err
				}
			}
			return nil
		}}
	}
	exporting := percolator.Observer{Name: "send", Table: "outbox", Column: dueColumn, Func: func(ctx context.Context, _ *percolator.Txn, c percolator.Cell) error {
		e := newExporter(outbox, sink, Options{Batch: 1, Timeout: time.Second, MaxAttempts: 1})
		return e.export(ctx, c.Row)
	}}
	agrees := func(whole bool) func(ctx context.Context, tx *percolator.Txn) error {
		return func(ctx context.Context, tx *percolator.Txn) error {
			all, err := readList(ctx, tx, committed)
			if err != nil {
				return err
			}
			sent := sink.payloads("k")
			if len(sent) > len(all) || !slices.Equal(sent, all[:len(sent)]) || whole && len(sent) < len(all) {
				return fmt.Errorf("%q were committed, and %q sent", all, sent)
			}
			return nil
		}
	}
	percolatetest.Explore(t, percolatetest.Program{
		Setup: func(_ context.Context, db *percolator.DB) (err error) {
			sink = &recorder{}
			outbox, err = New(db, "outbox")
			return err
		},
		Clients:   []percolatetest.Client{putter("ann", "1", "2"), putter("bob", "3")},
		Observers: []percolator.Observer{exporting},
		Workers:   2,
		Always:    agrees(false), Finally: agrees(true),
		Faults: percolatetest.Faults{Conflicts: 1, Undetermined: 1, Deaths: 1},
		Time:   10 * time.Second,
	})
}
