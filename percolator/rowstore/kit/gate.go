package kit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Gate counts the calls of a store that are under way, so that Close can end them and wait
// for them, and so that every later call gets an error that matches rowstore.ErrClosed.
//
// A call that may take long, because it waits for a server or a lock, goes through
// [Gate.Begin]: Close ends its context. A call that is over soon anyway may go through
// [Gate.Enter], which allocates nothing. Make a Gate with [NewGate]. All methods may be
// called concurrently, also by calls that are inside.
type Gate struct {
	name   string
	ctx    context.Context // ended by Close
	cancel context.CancelFunc
	// state is the number of calls inside, plus closing once Close was called.
	state atomic.Int64
	// left has a token after the last call left a gate that is closing.
	left chan struct{}
	once sync.Once
}

// closing is far below zero, and more than any number of calls.
const closing = -1 << 62

// NewGate returns an open gate. Its errors begin with name, the backend's.
func NewGate(name string) *Gate {
	g := &Gate{name: name, left: make(chan struct{}, 1)}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g
}

// Enter lets a short call in: what names it in errors. It returns the context's error when
// ctx has ended, and an error that matches rowstore.ErrClosed once Close was called. If it
// returns nil, the caller must call Leave, and Close waits until it does.
func (g *Gate) Enter(ctx context.Context, what string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: %s: %w", g.name, what, err)
	}
	if g.state.Add(1) < 0 {
		g.Leave()
		return fmt.Errorf("%s: %s: %w", g.name, what, rowstore.ErrClosed)
	}
	return nil
}

// Leave ends a call that Enter let in.
func (g *Gate) Leave() {
	if g.state.Add(-1) == closing {
		select {
		case g.left <- struct{}{}:
		default: // the token that is there will do
		}
	}
}

// Begin is Enter for a call that may take long. It returns a context that ends with ctx
// and when Close is called, and a function that the caller must call at the end of the
// call, once. Errors are those of Enter.
func (g *Gate) Begin(ctx context.Context, what string) (inner context.Context, end func(), err error) {
	if err := g.Enter(ctx, what); err != nil {
		return nil, nil, err
	}
	inner, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(g.ctx, cancel)
	return inner, func() {
		stop()
		cancel()
		g.Leave()
	}, nil
}

// Call runs one call of the store: Begin, run with the inner context, Fail and end.
func (g *Gate) Call(ctx context.Context, what string, run func(ctx context.Context) error) error {
	inner, end, err := g.Begin(ctx, what)
	if err != nil {
		return err
	}
	defer end()
	return g.Fail(what, run(inner))
}

// Fail completes the error of a call: it adds the names of the backend and of the call, and
// once Close was called it makes the error match rowstore.ErrClosed. What err matched, the
// result matches too. It returns nil if err is nil.
func (g *Gate) Fail(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case g.ctx.Err() != nil && !errors.Is(err, rowstore.ErrClosed):
		return fmt.Errorf("%s: %s: %w: %w", g.name, what, rowstore.ErrClosed, err)
	default:
		return fmt.Errorf("%s: %s: %w", g.name, what, err)
	}
}

// Done is closed as soon as Close is called.
func (g *Gate) Done() <-chan struct{} { return g.ctx.Done() }

// Close turns new calls away, ends the contexts of Begin, waits until every call has left,
// and then calls release (if that is not nil) and returns its error. A second Close does
// nothing: it waits until the first one is over, and returns nil. A call that is inside
// must not call Close.
func (g *Gate) Close(release func() error) (err error) {
	g.once.Do(func() { // a second Close waits here
		g.state.Add(closing)
		g.cancel()
		for g.state.Load() != closing {
			<-g.left
		}
		if release != nil {
			if err = release(); err != nil {
				err = fmt.Errorf("%s: close: %w", g.name, err)
			}
		}
	})
	return err
}

// Oracle returns inner with its draws as calls through the gate: Close waits for them, and
// a draw after Close returns an error that matches oracle.ErrClosed and rowstore.ErrClosed.
// A count below 1 is an error that matches rowstore.ErrInvalid.
func (g *Gate) Oracle(inner oracle.Oracle) oracle.Oracle { return gated{g, inner} }

type gated struct {
	g     *Gate
	inner oracle.Oracle
}

// Draw implements oracle.Oracle.
func (o gated) Draw(ctx context.Context, n int) (first oracle.Timestamp, err error) {
	err = o.g.Call(ctx, "draw", func(ctx context.Context) (err error) {
		if n < 1 {
			return fmt.Errorf("%w: %d timestamps", rowstore.ErrInvalid, n)
		}
		first, err = o.inner.Draw(ctx, n)
		return err
	})
	if errors.Is(err, rowstore.ErrClosed) && !errors.Is(err, oracle.ErrClosed) {
		err = fmt.Errorf("%w: %w", oracle.ErrClosed, err)
	}
	return first, err
}
