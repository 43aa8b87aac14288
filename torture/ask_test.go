package main

import (
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAsksWhileTheCrewComesAndGoes asks in one process, where the crew's workers live for moments only.
func TestAsksWhileTheCrewComesAndGoes(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	dir := t.TempDir()
	journal, err := openJournal(filepath.Join(dir, askProcess+logSuffix))
	require.NoError(t, err)
	p := &process{log: journal, childConfig: childConfig{
		Name: askProcess, URLs: []string{"pebble:" + filepath.Join(dir, "store")}, Seed: seed, Crew: 3, Stays: true,
	}}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	p.db, err = openDB(ctx, &p.childConfig, slog.New(slog.NewTextHandler(io.Discard, nil)))
	require.NoError(t, err)
	living, end := context.WithCancel(ctx)
	var crew sync.WaitGroup
	errs := make([]error, p.Crew)
	for n := range p.Crew {
		crew.Go(func() { errs[n] = p.crew(living, n) })
	}
	n, err := p.askAgain(ctx, 40, func(format string, args ...any) { t.Errorf(format, args...) })
	end()
	crew.Wait()
	require.NoError(t, err)
	require.Positive(t, n)
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.NoError(t, p.close(context.WithoutCancel(ctx)))
}
