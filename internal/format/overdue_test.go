package format

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOverdue(t *testing.T) {
	t.Parallel()
	s := Settings{MaxTxnAgeMs: time.Hour.Milliseconds(), RetentionMs: (24 * time.Hour).Milliseconds(), Tables: []Table{
		{Name: []byte("made shorter"), RetentionMs: time.Minute.Milliseconds(), Since: Timestamp(1).Add(100 * time.Hour)},
		{Name: []byte("set at first"), RetentionMs: time.Minute.Milliseconds()},
	}}
	at := func(d time.Duration) Timestamp { return Timestamp(1).Add(d) }
	for _, c := range []struct{ now, safe, want time.Duration }{
		{24 * time.Hour, 0, 0}, {25 * time.Hour, 0, time.Hour}, {25 * time.Hour, 3 * time.Hour, 0}, {time.Hour, 2 * time.Hour, 0},
	} {
		require.Equal(t, c.want, s.Overdue(at(c.now), at(c.safe)))
	}
	require.Zero(t, s.Overdue(at(100*time.Hour), 0), "nothing was ever collected")

	point := TableSafePoint{SafePoint: at(10 * time.Hour)}
	require.Equal(t, 59*time.Minute, s.TableOverdue(at(11*time.Hour), at(0), "set at first", point))
	require.Equal(t, 29*time.Minute, s.TableOverdue(at(11*time.Hour), at(10*time.Hour+30*time.Minute), "set at first", point), "the later of both counts")
	require.Zero(t, s.TableOverdue(at(11*time.Hour), at(0), "set at first", TableSafePoint{}), "it was not collected by its retention yet")

	// The retention has been made shorter after 100 hours.
	require.Zero(t, s.TableOverdue(at(101*time.Hour+time.Minute), at(0), "made shorter", point))
	require.Equal(t, 101*time.Hour+time.Minute, s.TableOverdue(at(101*time.Hour+2*time.Minute), at(0), "made shorter", TableSafePoint{}))
	require.Zero(t, s.TableOverdue(at(200*time.Hour), 0, "made shorter", TableSafePoint{}), "nothing was ever collected")
}

// Twice the longest retentions are more than a Duration holds.
func TestTableOverdueOfALongRetention(t *testing.T) {
	t.Parallel()
	s := Settings{MaxTxnAgeMs: 1, CatalogLeaseMs: 1, RetentionMs: MostMs}
	s.Tables = []Table{{Name: []byte("t"), RetentionMs: MostMs - MostMs/4, Since: 1 << 18}}
	now := Timestamp(0).Add(time.Duration(MostMs-MostMs/8) * time.Millisecond)
	require.Zero(t, s.TableOverdue(now, 1, "t", TableSafePoint{}), "it need not have been collected by its own retention so far")
}
