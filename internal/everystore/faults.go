package everystore

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// FaultLease is the lease of the sessions and locks of processes that meet faults here: others need not wait for longer.
const FaultLease = 50 * time.Millisecond

// EachFault calls f again and again, each time with a name and a DB of its own over the data of inner. One of its calls that write meets a fault: first the first
// one, then the second one, and so on, until f makes no more. The faults are the death of the process before the call takes effect and after, and the loss of the call, and of its reply.
func EachFault(t *testing.T, inner rowstore.Store, f func(name string, db *percolator.DB)) {
	t.Helper()
	const most = 200
	for _, fault := range []faultstore.Fault{
		{Kind: faultstore.CrashClient},
		{Kind: faultstore.CrashClient, Applied: true},
		{Kind: faultstore.LoseReply},
		{Kind: faultstore.LoseReply, Applied: true},
	} {
		struck := 0
		for ; ; struck++ {
			store := faultstore.New(inner, faultstore.Options{KeepOpen: true})
			db, err := percolator.New(t.Context(), store, percolator.WithSessionLease(FaultLease), percolator.WithLockExpiry(FaultLease), percolator.WithStorePatience(0))
			require.NoError(t, err)
			store.AddRule(faultstore.Rule{Skip: struck, Fault: fault, Match: func(c *faultstore.Call) bool {
				return c.Kind == faultstore.CallApply || c.Kind == faultstore.CallGroup
			}})
			f(fmt.Sprint(fault.Kind, fault.Applied, struck), db)
			met := store.Count(fault.Kind) > 0
			store.SetRules()
			_ = db.Close(t.Context())
			if !met {
				break
			}
			require.Less(t, struck, most, "it makes more and more calls")
		}
		require.Positive(t, struck, "nothing met %v", fault.Kind)
	}
}
