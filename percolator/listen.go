package percolator

import (
	"context"
	"sync"
	"time"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Listening to the store's push. A store that is made of several may have several (rowstore.Wakers). Each is listened to by
// itself, so that one that fails takes nothing from the others.

// listens tells whether the push works now, all of it. It may be refused, or a connection lost.
func (w *Worker) listens() bool {
	return w.pushed() && int(w.listening.Load()) == len(w.wakers)
}

// pushed tells whether the store has a push, even if it does not work now.
func (w *Worker) pushed() bool { return len(w.wakers) > 0 }

// listen passes the store's push on to the scanners, until one of the wakers cannot go on.
func (w *Worker) listen(ctx context.Context) error {
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, waker := range w.wakers {
		wg.Go(func() {
			if err := w.listenTo(inner, waker); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(inner)
}

// listenTo listens to one waker, and again after it has failed.
func (w *Worker) listenTo(ctx context.Context, waker rowstore.Waker) error {
	for attempt := 0; ; attempt++ {
		var since time.Time // it listens
		err := waker.Listen(ctx, func(at rowstore.Wake) {
			if since.IsZero() { // the first one comes as soon as it listens
				since = w.db.clock.Now()
				w.listening.Add(1)
			}
			w.kick(at)
		})
		if !since.IsZero() {
			w.listening.Add(-1)
			// What is lost after a while comes back soon, however often that has happened. What is lost again and
			// again must not make this worker look everywhere each time.
			if w.db.clock.Now().Sub(since) >= troubleWait.Max {
				attempt = 0
			}
		}
		if err == nil {
			return nil
		}
		if err := w.waitAfter(ctx, troubleWait, attempt, "listening for notifications", err); err != nil {
			return err
		}
	}
}
