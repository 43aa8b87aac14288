package conformance

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
)

// recorder is a testing.TB that only records: tests that must fail run with it.
type recorder struct {
	testing.TB // for what is not recorded
	name       string

	mu              sync.Mutex
	failed, skipped bool
	log             []string
	cleanups        []func()
}

func (r *recorder) Helper()      {}
func (r *recorder) Name() string { return r.name }

func (r *recorder) Log(args ...any) { r.note(false, fmt.Sprint(args...)) }

func (r *recorder) Logf(format string, args ...any) { r.note(false, fmt.Sprintf(format, args...)) }

func (r *recorder) Error(args ...any) { r.note(true, fmt.Sprint(args...)) }

func (r *recorder) Errorf(format string, args ...any) { r.note(true, fmt.Sprintf(format, args...)) }

func (r *recorder) Fatal(args ...any) {
	r.note(true, fmt.Sprint(args...))
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.note(true, fmt.Sprintf(format, args...))
	runtime.Goexit()
}

func (r *recorder) Fail() { r.note(true, "failed") }

func (r *recorder) FailNow() {
	r.note(true, "failed")
	runtime.Goexit()
}

func (r *recorder) Skip(args ...any) { r.skip(fmt.Sprint(args...)) }

func (r *recorder) Skipf(format string, args ...any) { r.skip(fmt.Sprintf(format, args...)) }

func (r *recorder) SkipNow() { r.skip("skipped") }

func (r *recorder) skip(line string) {
	r.mu.Lock()
	r.skipped = true
	r.mu.Unlock()
	r.note(false, line)
	runtime.Goexit()
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) Skipped() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.skipped
}

func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}

func (r *recorder) note(failure bool, line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = r.failed || failure
	r.log = append(r.log, line)
}

// record runs a test of the suite and says what came of it.
func record(t *testing.T, e *env, tc test) *recorder {
	t.Helper()
	r := &recorder{TB: t, name: t.Name() + "/" + tc.name}
	run := func(f func()) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() {
				if p := recover(); p != nil {
					r.note(true, fmt.Sprint("panic: ", p))
				}
			}()
			f()
		}()
		<-done
	}
	run(func() { tc.run(r, e) })
	for _, f := range slices.Backward(r.cleanups) {
		run(f)
	}
	return r
}
