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

// explored is a program with two processes that put items, and two that export them to a sink that checks epochs. The sink takes each committed
// item once, in the order of commits. A call of the sink is a step of its own: it comes later than what the exporter did before.
func explored(sink *recorder) (p percolatetest.Program, putter func(name string, payloads ...string) percolatetest.Client) {
	var outbox *Outbox
	committed := percolator.Cell{Table: "log", Row: "all", Column: "items"}
	putter = func(name string, payloads ...string) percolatetest.Client {
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
	slow := SinkFunc(func(ctx context.Context, key string, items []Item) (int, error) {
		// What is on its way arrives, whether or not the exporter waits for the answer.
		err := outbox.db.View(context.WithoutCancel(ctx), func(tx *percolator.Txn) error {
			_, err := readList(context.WithoutCancel(ctx), tx, committed)
			return err
		})
		if err != nil {
			return 0, err
		}
		return sink.Send(ctx, key, items)
	})
	exporting := percolator.Observer{Name: "send", Table: "outbox", Column: dueColumn, Func: func(ctx context.Context, _ *percolator.Txn, c percolator.Cell) error {
		e := newExporter(outbox, slow, Options{Batch: 1, Timeout: time.Second, MaxAttempts: 1})
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
	return percolatetest.Program{
		Setup: func(_ context.Context, db *percolator.DB) (err error) {
			sink.epochs, sink.taken, sink.again = nil, nil, 0
			outbox, err = New(db, "outbox")
			return err
		},
		Clients:   []percolatetest.Client{putter("ann", "1", "2"), putter("bob", "3")},
		Observers: []percolator.Observer{exporting},
		Workers:   2,
		Always:    agrees(false), Finally: agrees(true),
		Schedules: 30, Random: 60,
	}, putter
}

// Two export, and a process of each kind may die, or be slow for so long that its claim ends: four more attempts while it stands still are
// enough for that.
func TestEveryInterleaving(t *testing.T) {
	t.Parallel()
	p, _ := explored(&recorder{})
	p.Faults, p.Retries = percolatetest.Faults{Conflicts: 1, Undetermined: 1, Deaths: 1}, 4
	percolatetest.Explore(t, p)
}

// Nobody dies or is slow: then no item comes twice, because a key is claimed by one exporter at a time.
func TestEveryInterleavingOfClaims(t *testing.T) {
	t.Parallel()
	sink := &recorder{}
	p, putter := explored(sink)
	p.Clients, p.Faults, p.Retries = []percolatetest.Client{putter("ann", "1")}, percolatetest.Faults{Conflicts: 1}, -1
	always := p.Always
	p.Always = func(ctx context.Context, tx *percolator.Txn) error {
		if sink.again > 0 {
			return fmt.Errorf("%d items came again", sink.again)
		}
		return always(ctx, tx)
	}
	percolatetest.Explore(t, p)
}
