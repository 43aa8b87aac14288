package percolator

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A collection that clears notifications for which no observer waits says so: once for each table, with
// how many there were. Where there is nothing to clear it says nothing.
func TestClearedNotificationsAreLogged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "gone")
	w.observed("u", "v", "gone too")
	w.observed("x", "v", "stays")
	var log bytes.Buffer // only this goroutine collects, and reads it between two collections
	writer, collector := w.client(), w.client(WithLogger(slog.New(slog.NewJSONHandler(&log, nil))))
	const deep = mostCleared + 10 // more than one mutation removes
	for i := range deep {
		set(t, writer.DB, rowA, fmt.Sprint(i))
	}
	for _, c := range []Cell{rowB, {"u", "a", "v"}, {"x", "a", "v"}} {
		set(t, writer.DB, c, "1")
	}
	collect := func() []map[string]any {
		log.Reset()
		w.pass(worldRetention + worldAge)
		_, err := w.collect(collector, 0)
		require.NoError(t, err)
		var said []map[string]any
		for line := range strings.Lines(log.String()) {
			var fields map[string]any
			require.NoError(t, json.Unmarshal([]byte(line), &fields))
			if strings.Contains(fmt.Sprint(fields["msg"]), "no observer waits for") {
				delete(fields, "time")
				said = append(said, fields)
			}
		}
		return said
	}
	require.Empty(t, collect(), "all columns are observed")
	require.NoError(t, writer.RemoveObserver(t.Context(), "gone"))
	require.NoError(t, writer.RemoveObserver(t.Context(), "gone too"))
	const message = "notifications were cleared that no observer waits for"
	require.ElementsMatch(t, []map[string]any{
		{"level": "INFO", "msg": message, "table": "t", "notifications": float64(deep + 1)},
		{"level": "INFO", "msg": message, "table": "u", "notifications": 1.0},
	}, collect())
	require.Empty(t, collect(), "they were cleared before")
	require.Len(t, w.notified(Cell{"x", "a", "v"}), 1)
}
