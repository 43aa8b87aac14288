package percolator

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// written is a put of a column, or a delete without a value.
func written(column string, start, commit Timestamp, value []byte) rowstore.Version {
	w := format.Write{Kind: format.KindPut, Start: start, Value: value}
	if value == nil {
		w.Kind = format.KindDelete
	}
	return rowstore.Version{Family: rowstore.Write, Column: column, TS: commit, Value: w.Encode()}
}

// A row is looked at again later only if something in it will be garbage without another commit: a delete that an observer has yet to see is, and the
// value that the cell has is not.
func TestWhatIsLookedAtAgain(t *testing.T) {
	t.Parallel()
	notified := rowstore.Version{Family: rowstore.Notify, Column: "v", TS: 8, Value: format.StrongNotification}
	for name, c := range map[string]struct {
		versions []rowstore.Version
		later    bool
	}{
		"a value":                {[]rowstore.Version{written("v", 7, 8, []byte("2")), written("v", 4, 5, []byte("1"))}, false},
		"a delete that was seen": {[]rowstore.Version{written("v", 7, 8, nil), written("v", 4, 5, []byte("1"))}, false},
		"a delete to be seen":    {[]rowstore.Version{written("v", 7, 8, nil), written("v", 4, 5, []byte("1")), notified}, true},
	} {
		g := &gcRow{row: &rowstore.Row{Table: "t", Row: "a", Versions: c.versions}, table: "t", safe: 9}
		require.NoError(t, g.column("v"), name)
		require.Equal(t, c.later, g.later, name)
		require.NotEmpty(t, g.m.edits, name)
	}
}

// What an observer saw that was removed since may go when it cannot have been registered again, and is looked at again until then.
func TestWhatARemovedObserverSaw(t *testing.T) {
	t.Parallel()
	ack, seen := format.AckColumn("o", "v"), format.SeenColumn("o", "v")
	kept := []rowstore.Version{written(seen, 4, 5, []byte("1"))}
	for name, c := range map[string]struct {
		versions []rowstore.Version
		from     Timestamp
		later    bool
	}{
		"acknowledged long ago":  {[]rowstore.Version{written(ack, 3, 6, format.EncodeAck(3))}, 6, false},
		"acknowledged since":     {[]rowstore.Version{written(ack, 15, 20, format.EncodeAck(15))}, 0, true},
		"no acknowledgment":      {nil, 6, false},
		"one that may come back": {[]rowstore.Version{{Family: rowstore.Lock, Column: ack, TS: 21}, written(ack, 3, 6, format.EncodeAck(3))}, 0, true},
	} {
		g := &gcRow{row: &rowstore.Row{Table: "t", Row: "a", Versions: c.versions}, table: "t", safe: 10}
		require.Equal(t, c.from, g.neededFrom(seen, kept, nil, nil), name)
		require.Equal(t, c.later, g.later, name)
	}
}
