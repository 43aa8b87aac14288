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

// saying shows what is under way once it has taken a while, and for how long, until stop is called: in one place of a terminal, elsewhere by
// a line from time to time.
func (s *screen) saying(what func() string) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		every := max(s.every, time.Millisecond)
		began, tick := time.Now(), time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-done:
				s.paint(nil)
				return
			case <-tick.C:
			}
			line := fmt.Sprintf("%s: %.0f s", what(), time.Since(began).Seconds())
			if s.live() {
				tick.Reset(every / 2)
				s.paint([]string{line})
			} else {
				s.print("%s\n", line)
			}
		}
	})
	return sync.OnceFunc(func() {
		close(done)
		wg.Wait()
	})
}

// doing is saying, for something without a count.
func (s *screen) doing(what string) (stop func()) { return s.saying(func() string { return what }) }

// progress shows how far a run is.
type progress struct {
	phase atomic.Int32 // 0 loading, 1 indexing
	stop  func()
}

func (p *progress) indexing() { p.phase.Store(1) }

// startProgress shows a bar until stop is called, or lines if there is no terminal.
func startProgress(sc *screen, r *report, x *index.Index) *progress {
	p := &progress{}
	loaded := func() int { return int(r.load.Added.Load() + r.load.Changed.Load()) }
	f, ok := terminal(sc.to)
	if !ok {
		p.stop = sc.saying(func() string {
			if p.phase.Load() == 1 {
				return fmt.Sprintf("indexing, %d of %d pages", min(x.Searchable(), loaded()), loaded())
			}
			return fmt.Sprintf("loading, %d of %d pages", r.load.Read.Load(), r.total)
		})
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
				b = bar(loaded(), "indexing")
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
