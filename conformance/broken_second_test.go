package conformance

import (
	"context"
	"sync"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// processes is a store of which each process has a handle with a fault.
func processes(fault func(b *broken)) Hooked {
	m := memstore.New()
	handle := func() *broken {
		b := &broken{Store: m, close: func() error { return nil }}
		fault(b)
		return b
	}
	return Hooked{Store: handle(), Reopen: func(context.Context) (rowstore.Store, error) { return handle(), nil }}
}

// keepsReads answers from what was read before, until the handle itself changes the row.
func (b *broken) keepsReads() {
	var mu sync.Mutex
	kept := map[[2]string][]rowstore.Version{}
	b.read = func(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
		rows, err := b.Store.Read(ctx, reads)
		mu.Lock()
		defer mu.Unlock()
		for i := range rows {
			at := [2]string{rows[i].Table, rows[i].Row}
			if _, ok := kept[at]; !ok {
				all, _ := b.Store.Read(ctx, []rowstore.RowRead{{Table: at[0], Row: at[1], Selectors: everything()}})
				kept[at] = all[0].Versions
			}
			rows[i].Versions = norm(selected(kept[at], reads[i].Selectors))
		}
		return rows, err
	}
	forget := func(muts []rowstore.Mutation) {
		mu.Lock()
		defer mu.Unlock()
		for _, m := range muts {
			delete(kept, [2]string{m.Table, m.Row})
		}
	}
	b.apply = func(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
		defer forget(muts)
		return b.Store.Apply(ctx, muts, opts)
	}
	b.group = func(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
		for _, g := range groups {
			defer forget(g.Mutations)
		}
		return b.Store.Group(ctx, groups)
	}
}

// hearsItself passes on only wakes for rows that the handle has changed.
func (b *broken) hearsItself() {
	var mu sync.Mutex
	own := map[uint16]bool{}
	b.eachMutationOfAll(func(m *rowstore.Mutation) {
		mu.Lock()
		defer mu.Unlock()
		own[rowstore.Slot(m.Table, m.Row)] = true
	})
	b.listen = func(ctx context.Context, wake func(rowstore.Wake)) error {
		return b.Store.Listen(ctx, func(at rowstore.Wake) {
			mu.Lock()
			mine := len(at.Slots) == 0
			for _, slot := range at.Slots {
				mine = mine || own[slot]
			}
			mu.Unlock()
			if mine {
				wake(at)
			}
		})
	}
}
