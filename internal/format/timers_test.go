package format

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func TestTimers(t *testing.T) {
	t.Parallel()
	for _, timer := range []Timer{{}, {Due: 1}, {Due: oracle.Max, Indexed: true}} {
		got, err := DecodeTimer(timer.Encode())
		require.NoError(t, err)
		require.Equal(t, timer, got)
	}
	hint := TimerHint{Row: strings.Repeat("r", 3000), Column: "\x00\x00c"}
	got, err := DecodeTimerHint(hint.Encode())
	require.NoError(t, err)
	require.Equal(t, hint, got)
	good := Timer{Due: 1}.Encode()
	for _, b := range []string{"", string(good[:9]), string(good) + "x", "\x01\x02" + string(good[2:]), "\x01\x00\xff\xff\xff\xff\xff\xff\xff\xff"} {
		_, err := DecodeTimer([]byte(b))
		require.ErrorIs(t, err, ErrCorrupt, "%q", b)
	}
	_, err = DecodeTimer(append([]byte{Version + 1}, good[1:]...))
	require.ErrorIs(t, err, rowstore.ErrFormat)
	for _, b := range []string{"", "\x01", "\x01\x01", "\x01\x01r\x00", "\x01\x01r\x01cx", "\x01\x00\x01c"} {
		_, err := DecodeTimerHint([]byte(b))
		require.ErrorIs(t, err, ErrCorrupt, "%q", b)
	}
}

// The rows of a shard are in the order of time, and apart from those of other shards.
func TestTimerRows(t *testing.T) {
	t.Parallel()
	var rows []string
	dues := []Timestamp{0, 1, 255, 256, 1 << 40, oracle.Max}
	for shard := range byte(TimerShards) {
		for i, due := range dues {
			row := TimerRow(shard, due, 5, i)
			got, err := TimerDue(row)
			require.NoError(t, err)
			require.Equal(t, due, got)
			require.GreaterOrEqual(t, row, TimersBegin(shard))
			require.Less(t, row, TimersUntil(shard, due))
			if due > 0 {
				require.GreaterOrEqual(t, row, TimersUntil(shard, due-1))
			}
			rows = append(rows, row)
		}
		require.LessOrEqual(t, TimersUntil(shard, oracle.Max), TimersBegin(shard+1))
	}
	require.True(t, slices.IsSorted(rows))
	for _, row := range []string{"", "x", rows[0] + "x", "\x00\xff" + rows[0][2:]} {
		_, err := TimerDue(row)
		require.ErrorIs(t, err, ErrCorrupt)
	}
}

func TestNamesOfTimers(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"t", "\x00\x00t", "timers:"} {
		require.True(t, Reserved(TimersTable(name)))
		require.False(t, Transactional(TimersTable(name)))
		table, ok := TimedTable(TimersTable(name))
		require.True(t, ok)
		require.Equal(t, name, table)
		require.True(t, Reserved(TimerColumn(name)))
		column, ok := SplitTimerColumn(TimerColumn(name))
		require.True(t, ok)
		require.Equal(t, name, column)
		_, _, ok = SplitSeenColumn(TimerColumn(name))
		require.False(t, ok)
		_, _, _, ok = SplitOwnColumn(TimerColumn(name))
		require.False(t, ok)
		require.True(t, OwnCell(Cell{"t", "r", TimerColumn(name)}))
	}
	for _, name := range []string{"t", TableNotices, TimersTable("")} {
		_, ok := TimedTable(name)
		require.False(t, ok, "%q", name)
	}
	for _, name := range []string{"t", TimerColumn(""), AckColumn("o", "c")} {
		_, ok := SplitTimerColumn(name)
		require.False(t, ok, "%q", name)
	}
}

func TestPeriodics(t *testing.T) {
	t.Parallel()
	for _, p := range []Periodic{{Next: 1}, {Since: oracle.Max, Version: 7, Schedule: []byte("\xff every minute"), Next: 1 << 50, Parked: 3}} {
		b, err := p.Encode()
		require.NoError(t, err)
		got, err := DecodePeriodic(b)
		require.NoError(t, err)
		require.Equal(t, p, got)
		require.EqualValues(t, Version, b[0])
		_, err = DecodePeriodic(append([]byte{Version + 1}, b[1:]...))
		require.ErrorIs(t, err, rowstore.ErrFormat)
	}
	for _, b := range []string{"", "\x01", "\x01{", "\x01{}", `{"next":1}`, "\x01{\"next\":-1}", "\x01{\"next\":1,\"version\":-1}", "\x01{\"next\":1,\"parked\":-1}"} {
		_, err := DecodePeriodic([]byte(b))
		require.ErrorIs(t, err, ErrCorrupt, "%q", b)
	}
}
