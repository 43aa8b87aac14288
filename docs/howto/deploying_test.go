package howto

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/config"
	"github.com/percolate-go/percolate/percolator"
)

// serve is a process that runs observers until it is told to stop.
func serve(path string) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	db, err := config.Open(ctx, path)
	if err != nil {
		return err
	}
	defer func() {
		// ctx has ended by now. Close waits for commits that were sent.
		closing, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		err = errors.Join(err, db.Close(closing))
	}()
	w := percolator.NewWorker(db, percolator.WorkerConfig{})
	if err := w.Observe(percolator.Observer{Name: "count", Table: "note", Column: "text", Func: countWords}); err != nil {
		return err
	}
	return w.Run(ctx) // nil after SIGTERM, once the functions that were running have returned
}

// healthy is for a page that a load balancer reads: it tells whether the database answers. The bound is needed: Now tries again for as long
// as WithStorePatience says, which is 20 seconds by default.
func healthy(ctx context.Context, db *percolator.DB) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := db.Now(ctx)
	return err
}

// behind is for an alarm that somebody looks at. What waits for an observer that is paused counts too, so no load balancer may go by it.
func behind(ctx context.Context, db *percolator.DB) error {
	backlog, err := db.Backlog(ctx, 10_000)
	switch {
	case err != nil:
		return err
	case backlog.Oldest > time.Minute:
		return fmt.Errorf("observers are behind: %d cells wait, one of them for %v", backlog.Cells, backlog.Oldest)
	case backlog.Parked > 0:
		slog.Warn("runs of observers are parked", "runs", backlog.Parked)
	}
	return nil
}

func TestServe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "percolator.yaml")
	require.NoError(t, os.WriteFile(file, []byte("stores: {main: {url: \"memory:\"}}\n"), 0o600))
	// So the signal never ends this process. Each is awaited: one that is still under way when nobody listens any more would end it.
	came := make(chan os.Signal, 1)
	signal.Notify(came, syscall.SIGTERM)
	defer signal.Stop(came)
	ended := make(chan error, 1)
	go func() { ended <- serve(file) }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
		<-came
		select {
		case err := <-ended:
			if err != nil { // it was told to stop before it had begun
				require.ErrorIs(t, err, context.Canceled)
			}
			return
		case <-tick.C:
		}
	}
}

func TestHealthy(t *testing.T) {
	t.Parallel()
	require.NoError(t, healthy(t.Context(), openTest(t)))
	require.NoError(t, behind(t.Context(), openTest(t)))
}
