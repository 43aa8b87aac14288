package pebble

import (
	"context"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Listen implements rowstore.Waker, within this process. When the store is
// closed, it returns an error that matches rowstore.ErrClosed.
func (s *Store) Listen(ctx context.Context, wake func(rowstore.Wake)) error {
	inner, end, err := s.begin(ctx, "listen")
	if err != nil {
		return err
	}
	defer end()
	if err = s.hub.Listen(inner, wake); ctx.Err() != nil {
		return err
	}
	return s.life.Fail("listen", err)
}
