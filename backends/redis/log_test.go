package redis

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// locked is a buffer for several writers.
type locked struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// While a server is away, go-redis logs each attempt to connect: hundreds a second in
// a busy program.
func TestLogPassesOnOneLineOfAKind(t *testing.T) {
	t.Parallel()
	var l logger
	at := time.Now()
	_, ok := l.admit("dial: %v", at)
	require.True(t, ok)
	for i := range 1000 {
		_, ok := l.admit("dial: %v", at.Add(time.Duration(i)*time.Millisecond))
		require.False(t, ok)
	}
	_, ok = l.admit("another: %v", at)
	require.True(t, ok, "another kind is not silenced")
	passed, ok := l.admit("dial: %v", at.Add(logPause))
	require.True(t, ok)
	require.Equal(t, 1000, passed)
	for i := range 10 * maxLogKinds {
		l.admit(strconv.Itoa(i), at)
	}
	require.LessOrEqual(t, len(l.kinds), maxLogKinds)
}

// TestLog is not parallel: slog's default logger is the program's.
func TestLog(t *testing.T) {
	before := slog.Default()
	defer slog.SetDefault(before)
	var out locked
	slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
	driverLog.mu.Lock()
	driverLog.kinds = nil // other tests may have logged a moment ago
	driverLog.mu.Unlock()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	_, err = OpenURL(context.Background(), "redis://u:"+secret+"@"+addr)
	require.Error(t, err)
	require.Contains(t, out.String(), "level=WARN")
	require.Contains(t, out.String(), "from=go-redis")
	require.NotContains(t, out.String(), secret)
}
