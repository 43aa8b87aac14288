package checker_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/percolate-go/percolate/checker"
)

// anySimulation draws the parameters of a simulated history.
func anySimulation(t *rapid.T) simulation {
	share := func(name string) float64 {
		return rapid.SampledFrom([]float64{0, 0, 0.1, 0.5}).Draw(t, name)
	}
	return simulation{
		Seed:         rapid.Uint64().Draw(t, "seed"),
		Txns:         rapid.IntRange(1, 60).Draw(t, "txns"),
		Processes:    rapid.IntRange(1, 6).Draw(t, "processes"),
		Keys:         rapid.IntRange(1, 5).Draw(t, "keys"),
		Ops:          rapid.IntRange(1, 5).Draw(t, "ops"),
		Lists:        rapid.Bool().Draw(t, "lists"),
		Serializable: rapid.SampledFrom([]float64{0, 0.5, 1}).Draw(t, "serializable"),
		Unknown:      share("unknown"),
		Aborted:      share("aborted"),
		Lock:         share("lock"),
		AsOf:         share("as of"),
		ReadAll:      rapid.Bool().Draw(t, "read all"),
	}
}

func checkTimestamps(t require.TestingT, h checker.History, o checker.TimestampOptions) *checker.Report {
	r, err := checker.CheckTimestamps(h, o)
	require.NoError(t, err)
	return r
}

// A correct history is never reported.
func TestTimestampsPassCorrectHistories(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := anySimulation(t)
		s.Repeat = rapid.Bool().Draw(t, "repeat")
		o := checker.TimestampOptions{}
		if rapid.Bool().Draw(t, "observed") {
			s.Observed = rapid.IntRange(1, min(s.Keys, s.Processes)).Draw(t, "observed keys")
			if s.Observed == s.Processes {
				s.Processes++
			}
			o.Idle = true
			o.Observers = []checker.Observer{{Name: "o", Observes: func(key string) bool { return key < "k"+string(rune('0'+s.Observed)) }}}
		}
		r := checkTimestamps(t, s.run(), o)
		require.NoError(t, r.Err())
	})
}
