package tikvraw

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"sync"

	"github.com/pingcap/log"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// The clients of TiKV and PD write to one logger of the whole process, which is made for
// a server: it tells every step, from level info on, on standard output.
var (
	clientsLog = log.L()
	divertOnce sync.Once
)

// divertLog sends warnings and errors of the clients to slog's default logger, unless
// the program has set a logger of its own for them, or a level.
func divertLog() {
	divertOnce.Do(func() {
		if log.L() != clientsLog || log.GetLevel() != zapcore.InfoLevel {
			return
		}
		level := zap.NewAtomicLevelAt(zapcore.WarnLevel)
		core := &slogCore{LevelEnabler: level}
		log.ReplaceGlobals(zap.New(core), &log.ZapProperties{Core: core, Syncer: zapcore.AddSync(io.Discard), Level: level})
	})
}

// slogCore writes to slog's default logger, as it is at that moment.
type slogCore struct {
	zapcore.LevelEnabler
	fields []zapcore.Field
}

// With implements zapcore.Core.
func (c *slogCore) With(fields []zapcore.Field) zapcore.Core {
	return &slogCore{LevelEnabler: c.LevelEnabler, fields: slices.Concat(c.fields, fields)}
}

// Check implements zapcore.Core.
func (c *slogCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) && slog.Default().Enabled(context.Background(), slogLevel(e.Level)) {
		return ce.AddCore(e, c)
	}
	return ce
}

// Write implements zapcore.Core.
func (c *slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	var attrs []slog.Attr
	for _, f := range slices.Concat(c.fields, fields) {
		m := zapcore.NewMapObjectEncoder()
		f.AddTo(m)
		if v, ok := m.Fields[f.Key]; ok {
			attrs = append(attrs, slog.Any(f.Key, v))
		}
	}
	slog.Default().LogAttrs(context.Background(), slogLevel(e.Level), "tikv client: "+e.Message, attrs...)
	return nil
}

// Sync implements zapcore.Core.
func (c *slogCore) Sync() error { return nil }

func slogLevel(l zapcore.Level) slog.Level {
	switch {
	case l >= zapcore.ErrorLevel:
		return slog.LevelError
	case l == zapcore.WarnLevel:
		return slog.LevelWarn
	case l == zapcore.InfoLevel:
		return slog.LevelInfo
	}
	return slog.LevelDebug
}
