//go:build !race

package explore

const (
	usualLimit  = 40
	usualRandom = 15
)
