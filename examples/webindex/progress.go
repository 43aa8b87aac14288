package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/percolate-go/percolate/examples/webindex/internal/index"
)

// terminal returns w as the file that it is, if that is a terminal.
func terminal(w io.Writer) (*os.File, bool) {
	f, ok := w.(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd())) //nolint:gosec // a file descriptor is small
}

// saying shows what is under way once it has taken two seconds, until stop is called, if
// stderr is a terminal.
func saying(stderr io.Writer, what string) (stop func()) {
	f, ok := terminal(stderr)
	if !ok {
		return func() {}
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		began, tick := time.Now(), time.NewTicker(time.Second)
		defer tick.Stop()
		for shown := false; ; {
			select {
			case <-done:
				if shown {
					_, _ = fmt.Fprint(f, "\r\033[K")
				}
				return
			case <-tick.C:
				if took := time.Since(began); took >= 2*time.Second {
					shown = true
					_, _ = fmt.Fprintf(f, "\r\033[K%s: %.0f s", what, took.Seconds())
				}
			}
		}
	})
	return sync.OnceFunc(func() {
		close(done)
		wg.Wait()
	})
}

// progress shows how far a run is, on a terminal only.
type progress struct {
	phase atomic.Int32 // 0 loading, 1 indexing
	stop  func()
}

func (p *progress) indexing() { p.phase.Store(1) }

// startProgress shows a bar until stop is called, if stderr is a terminal.
func startProgress(stderr io.Writer, r *report, x *index.Index) *progress {
	p := &progress{stop: func() {}}
	f, ok := terminal(stderr)
	if !ok {
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
