package main

import (
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/percolate-go/percolate/examples/webindex/internal/index"
)

// progress shows how far a run is, on a terminal only.
type progress struct {
	phase atomic.Int32 // 0 loading, 1 indexing
	stop  func()
}

func (p *progress) indexing() { p.phase.Store(1) }

// startProgress shows a bar until stop is called, if r's standard error is a
// terminal.
func startProgress(r *report, x *index.Index) *progress {
	p := &progress{stop: func() {}}
	f, ok := r.stderr.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) { //nolint:gosec // a file descriptor is small
		return p
	}
	bar := func(total int, what string) *progressbar.ProgressBar {
		return progressbar.NewOptions(max(1, total), progressbar.OptionSetWriter(f), progressbar.OptionSetDescription(what),
			progressbar.OptionShowCount(), progressbar.OptionSetWidth(30), progressbar.OptionClearOnFinish(),
			progressbar.OptionThrottle(50*time.Millisecond), progressbar.OptionSetPredictTime(false))
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		b := bar(r.total, "loading ")
		phase := int32(0)
		for {
			select {
			case <-done:
				_ = b.Clear()
				return
			case <-tick.C:
			}
			if phase == 0 && p.phase.Load() == 1 {
				phase = 1
				_ = b.Clear()
				b = bar(int(r.load.Added.Load()+r.load.Changed.Load()), "indexing")
			}
			n := int(r.load.Read.Load())
			if phase == 1 {
				n = x.Searchable()
			}
			// Not to the very end: a finished bar writes a line of its own, and a page
			// that was changed twice may count twice.
			_ = b.Set(min(n, b.GetMax()-1))
		}
	})
	p.stop = sync.OnceFunc(func() {
		close(done)
		wg.Wait()
	})
	return p
}
