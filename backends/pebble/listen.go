package pebble

import (
	"context"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Listen implements rowstore.Waker, within this process. It returns rowstore.ErrClosed
// when the store is closed.
func (s *Store) Listen(ctx context.Context, wake func(table string)) error {
	if err := s.beginCall(ctx); err != nil {
		return err
	}
	s.listen.Add(1)
	s.endCall()
	defer s.listen.Done()
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ended, cancel)()
	err := s.hub.Listen(inner, wake)
	if ctx.Err() == nil {
		return rowstore.ErrClosed
	}
	return err
}
