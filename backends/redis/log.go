package redis

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// go-redis has one logger for the whole program, which prints to standard error.
// Importing this package sets it to slog's default logger, before main runs: a
// program that sets one of its own (redis.SetLogger) has the last word.
func init() { goredis.SetLogger(&driverLog) }

var driverLog logger

// logger passes on what go-redis logs: what it mends by itself, and what the calls'
// errors say too. It passes on one line of a kind in a logPause, because go-redis logs
// each attempt to connect while a server is away.
type logger struct {
	mu    sync.Mutex
	kinds map[string]logged // by format
}

// logged is what became of the lines of one kind.
type logged struct {
	last   time.Time // when one was passed on
	passed int       // lines passed over since
}

// logPause is how long a line of a kind silences the others, and maxLogKinds how many
// kinds are remembered.
const (
	logPause    = 10 * time.Second
	maxLogKinds = 100
)

func (l *logger) Printf(ctx context.Context, format string, v ...any) {
	passed, ok := l.admit(format, time.Now())
	if !ok {
		return
	}
	attrs := []slog.Attr{slog.String("from", "go-redis")}
	if passed > 0 {
		attrs = append(attrs, slog.Int("similar_lines_left_out", passed))
	}
	slog.Default().LogAttrs(ctx, slog.LevelWarn, fmt.Sprintf(format, v...), attrs...)
}

// admit tells whether a line is passed on, and how many of its kind were not since the
// last one that was.
func (l *logger) admit(format string, now time.Time) (passed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k, known := l.kinds[format]
	if known && now.Sub(k.last) < logPause {
		k.passed++
		l.kinds[format] = k
		return 0, false
	}
	if l.kinds == nil || len(l.kinds) >= maxLogKinds {
		l.kinds = make(map[string]logged)
	}
	l.kinds[format] = logged{last: now}
	return k.passed, true
}
