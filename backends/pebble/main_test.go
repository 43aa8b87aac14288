package pebble

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// The test of crashes runs this binary again, as the process that is killed.
	if dir := os.Getenv(childVariable); dir != "" {
		os.Exit(child(dir))
	}
	moveKeys = 512 // so that few keys take several batches
	goleak.VerifyTestMain(m)
}
