package conformance

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// RunWrapper has an implementation of each ability to wrap.
func TestEveryAbilityIsThere(t *testing.T) {
	t.Parallel()
	all := reflect.ValueOf(everyAbility())
	for i := range all.NumField() {
		require.False(t, all.Field(i).IsNil(), "everyAbility lacks %s", all.Type().Field(i).Name)
	}
}

// The client of this suite has all abilities of its store.
func TestClientTreatsEveryAbility(t *testing.T) {
	t.Parallel()
	RunWrapper(t, func(_ testing.TB, s rowstore.Store) rowstore.Store { return newClient(s) }, map[string]Treated{
		"Grouper": Changed, "Deferrer": Changed, "OracleProvider": Changed, "SnapshotReader": Changed, "Splitter": Changed, "Waker": Changed,
		"SlotScanner": Passed, "SnapshotScanner": Passed, "Limiter": Passed, "Sharder": Passed, "Placer": Passed, "Reporter": Passed, "Crasher": Passed,
	})
}
