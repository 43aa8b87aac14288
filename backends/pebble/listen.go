package pebble

import (
	"context"
)

// Listen implements rowstore.Waker, within this process. When the store is
// closed, it returns an error that matches rowstore.ErrClosed.
func (s *Store) Listen(ctx context.Context, wake func(table string)) error {
	inner, end, err := s.life.Begin(ctx, "listen")
	if err != nil {
		return err
	}
	defer end()
	if p := s.failure.Load(); p != nil {
		return *p
	}
	if err = s.hub.Listen(inner, wake); ctx.Err() != nil {
		return err
	}
	return s.life.Fail("listen", err)
}
