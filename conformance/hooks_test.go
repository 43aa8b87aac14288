package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// MemoryHooks opens a store in memory with every hook.
func MemoryHooks(testing.TB) Hooked {
	b := &breakable{Store: memstore.New()}
	return b.hooked()
}

// breakable is a store in memory that can be broken and opened again.
type breakable struct {
	*memstore.Store

	mu     sync.Mutex
	moment Moment
	mended chan struct{}
}

func (b *breakable) hooked() Hooked {
	return Hooked{
		Store: b,
		Reopen: func(context.Context) (rowstore.Store, error) {
			again, err := b.Store.Reopen()
			if err != nil {
				return nil, err
			}
			b.Store = again
			return again, nil
		},
		Crash: func() { b.Store.Crash() },
		Break: b.breakAt,
	}
}

func (b *breakable) breakAt(m Moment) (mend func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	mended := make(chan struct{})
	b.moment, b.mended = m, mended
	return sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.moment, b.mended = 0, nil
		close(mended)
	})
}

var errBroken = errors.New("broken on purpose")

// around makes a call, or breaks it. half does a part of it.
func around[T any](ctx context.Context, b *breakable, all, half func() (T, error)) (T, error) {
	b.mu.Lock()
	moment, mended := b.moment, b.mended
	b.mu.Unlock()
	var none T
	switch moment {
	case BeforeCall:
		return none, fmt.Errorf("%w: %w", rowstore.ErrUnavailable, errBroken)
	case InCall:
		if half != nil {
			_, _ = half()
		}
		return none, fmt.Errorf("%w: %w", rowstore.ErrAmbiguous, errBroken)
	case AfterCall:
		_, _ = all()
		return none, fmt.Errorf("%w: %w", rowstore.ErrAmbiguous, errBroken)
	case HangCall:
		select {
		case <-mended:
		case <-ctx.Done():
			return none, ctx.Err()
		}
	}
	return all()
}

func (b *breakable) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	return around(ctx, b, func() ([]rowstore.Row, error) { return b.Store.Read(ctx, reads) }, nil)
}

func (b *breakable) Apply(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	return around(ctx, b, func() ([]rowstore.Outcome, error) { return b.Store.Apply(ctx, muts, opts) },
		func() ([]rowstore.Outcome, error) { return b.Store.Apply(ctx, muts[:len(muts)/2], opts) })
}

func (b *breakable) Group(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
	return around(ctx, b, func() ([]rowstore.GroupOutcome, error) { return b.Store.Group(ctx, groups) },
		func() ([]rowstore.GroupOutcome, error) { return b.Store.Group(ctx, groups[:len(groups)/2]) })
}

func (b *breakable) ReadSnapshot(ctx context.Context, asks []rowstore.SnapshotRead) ([]rowstore.SnapshotRows, error) {
	return around(ctx, b, func() ([]rowstore.SnapshotRows, error) { return b.Store.ReadSnapshot(ctx, asks) }, nil)
}

func (b *breakable) Oracle() oracle.Oracle {
	return drawFunc(func(ctx context.Context, n int) (oracle.Timestamp, error) {
		return around(ctx, b, func() (oracle.Timestamp, error) { return b.Store.Oracle().Draw(ctx, n) }, nil)
	})
}
