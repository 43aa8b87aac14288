//go:build race

package explore

// A third of the schedules: they take several times as long with the race detector, which
// needs few of them, since a race is one in every schedule that has its two accesses. "make
// explore" runs many more, without it.
const (
	usualLimit  = 13
	usualRandom = 5
)
