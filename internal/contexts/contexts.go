// Package contexts has what callers that wait need to do with a context.
package contexts

import (
	"context"
	"time"
)

// Sleep returns nil after d, or the context's error as soon as ctx ends.
func Sleep(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil || d <= 0 {
		return err
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// MergedKey is the key for which a context has a value if its call is that of several callers: package coalesce merged them.
type MergedKey struct{}

// Merged tells whether a call is that of several callers. A store answers those that it can, and has the others wait for little.
func Merged(ctx context.Context) bool { return ctx.Value(MergedKey{}) != nil }

// Ended returns the error of a context that has ended, else nil. A connection or a client
// may notice that the deadline has passed a moment before the context does. So a deadline
// that has passed counts.
func Ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
		return context.DeadlineExceeded
	}
	return nil
}
