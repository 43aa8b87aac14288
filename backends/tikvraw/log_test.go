package tikvraw_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/pingcap/log"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/percolate-go/percolate/internal/tikvtest"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// lines keeps what a logger writes.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// openBeside opens the store at a URL that names one PD more, which is not there: PD's client warns of
// that.
func openBeside(ctx context.Context, url string) error {
	s, err := rowstore.Open(ctx, strings.Replace(url, "127.0.0.1", "127.0.0.1:1,127.0.0.1", 1))
	if err != nil {
		return err
	}
	return s.Close()
}

// childLogs prints what arrives in slog's default logger.
func childLogs(ctx context.Context, url string) error {
	var got lines
	first := slog.Default()
	s, err := rowstore.Open(ctx, url) // before the program's logger is set
	if err != nil {
		return err
	}
	slog.SetDefault(slog.New(slog.NewJSONHandler(&got, &slog.HandlerOptions{Level: slog.LevelDebug})))
	err = errors.Join(s.Close(), openBeside(ctx, url))
	log.Info("a line of level info")
	log.With(zap.Int("always", 1)).Warn("a line of level warn", zap.String("once", "x"))
	log.Error("a line of level error")
	slog.SetDefault(first)
	fmt.Print(got.String())
	return err
}

// TestClientsLogArrives: warnings and errors of the clients of TiKV and PD arrive in slog's default
// logger, as it is at that moment, with their fields. Lesser lines do not.
func TestClientsLogArrives(t *testing.T) {
	t.Parallel()
	c := tikvtest.New(t, tikvtest.Options{})
	stdout, stderr := child(t, "slog", c.URL()+"?prefix="+prefix())
	require.Empty(t, stderr)
	var all []map[string]any
	for line := range strings.Lines(stdout) {
		var fields map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &fields), "%s", line)
		require.Contains(t, []any{"WARN", "ERROR"}, fields["level"], "%s", line)
		message, ok := fields["msg"].(string)
		require.True(t, ok)
		require.True(t, strings.HasPrefix(message, "tikv client: "), "%s", line)
		delete(fields, "time")
		all = append(all, fields)
	}
	require.Greater(t, len(all), 2, "the clients' own are missing: %s", stdout)
	require.Equal(t, []map[string]any{
		{"level": "WARN", "msg": "tikv client: a line of level warn", "always": 1.0, "once": "x"},
		{"level": "ERROR", "msg": "tikv client: a line of level error"},
	}, all[len(all)-2:])
}

// childKeepsItsLogger sets a logger of its own for the clients, and prints what arrives there.
func childKeepsItsLogger(ctx context.Context, url string) error {
	var got, others lines
	slog.SetDefault(slog.New(slog.NewTextHandler(&others, nil)))
	level := zap.NewAtomicLevelAt(zapcore.InfoLevel)
	core := zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(&got), level)
	own := zap.New(core)
	log.ReplaceGlobals(own, &log.ZapProperties{Core: core, Syncer: zapcore.AddSync(&got), Level: level})
	err := openBeside(ctx, url)
	if log.L() != own {
		err = errors.Join(err, errors.New("the program's logger was replaced"))
	}
	fmt.Print(got.String())
	if others.String() != "" {
		err = errors.Join(err, fmt.Errorf("slog got %s", others.String()))
	}
	return err
}

// TestProgramsLoggerStays: a logger that the program has set for the clients gets what they say, on every
// level that it wants.
func TestProgramsLoggerStays(t *testing.T) {
	t.Parallel()
	c := tikvtest.New(t, tikvtest.Options{})
	stdout, _ := child(t, "zap", c.URL()+"?prefix="+prefix())
	levels := map[any]int{}
	for line := range strings.Lines(stdout) {
		var fields map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &fields), "%s", line)
		levels[fields["level"]]++
	}
	require.Positive(t, levels["info"], "%s", stdout)
	require.Positive(t, levels["warn"]+levels["error"], "%s", stdout)
}
