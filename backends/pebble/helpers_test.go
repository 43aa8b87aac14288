package pebble

import (
	"time"
)

// waitFor is how long a test waits for a condition before it gives up, and tick how
// often it looks.
const (
	waitFor = time.Minute
	tick    = time.Millisecond
)
