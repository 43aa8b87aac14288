package tikvtest

import (
	"os"
	"time"

	"github.com/pingcap/log"
	"github.com/tikv/client-go/v2/tikv"
	"go.uber.org/zap/zapcore"
)

func init() {
	// Client-go and PD's client narrate every connection and every region error on
	// standard error. Faults are what these tests are about: their output would bury
	// that of the test that failed. PERCOLATOR_TEST_TIKV_LOG=1 lets it through.
	if os.Getenv("PERCOLATOR_TEST_TIKV_LOG") == "" {
		log.SetLevel(zapcore.FatalLevel)
	}
	// After a broken connection client-go asks a store whether it lives, and takes it for
	// dead if there is no answer within a second, which a busy machine may need. The
	// stores here always answer: one that is stopped says so.
	tikv.SetStoreLivenessTimeout(20 * time.Second)
}
