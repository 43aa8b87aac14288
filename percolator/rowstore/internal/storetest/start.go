package storetest

import (
	"context"
	"fmt"
	"testing/synctest"

	rs "github.com/percolate-go/percolate/percolator/rowstore"
)

// Start makes a call in a goroutine of its own and returns when that goroutine,
// and all others of the bubble, stand still. The reply is there once it is done.
func Start(ctx context.Context, s rs.Store, ask Asker, rows ...string) *Reply {
	r := &Reply{}
	go func() { *r = ask(ctx, s, rows...) }()
	synctest.Wait()
	return r
}

// Writes tells whether a kind of call changes anything.
func (g *Gate) Writes(ask Asker) bool {
	return fmt.Sprintf("%p", ask) != fmt.Sprintf("%p", Asker(AskRead))
}

// Sharded is a gate whose rows lie on the server that their first letter names.
type Sharded struct{ *Gate }

// ReadSnapshot passes the gate as a read does.
func (s Sharded) ReadSnapshot(ctx context.Context, asks []rs.SnapshotRead) ([]rs.SnapshotRows, error) {
	var reads []rs.RowRead
	for _, a := range asks {
		reads = append(reads, a.Reads...)
	}
	a := s.Pass(&GateCall{Ctx: ctx, Reads: reads, Timestamps: len(asks)})
	if a.Err != nil {
		return nil, a.Err
	}
	var answers []rs.SnapshotRows
	for _, ask := range asks {
		n := len(ask.Reads)
		answers = append(answers, rs.SnapshotRows{TS: 1, Rows: a.Rows[:n]})
		a.Rows = a.Rows[n:]
	}
	return answers, nil
}

// Shard implements Sharder.
func (Sharded) Shard(_, row string) string { return row[:1] }
