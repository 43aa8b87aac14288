package pebble

import (
	"context"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/percolate-go/percolate/conformance"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// TestConformanceHooks runs over a disk in memory that can lose what was not synced, and
// whose syncs can be made to hang.
func TestConformanceHooks(t *testing.T) {
	t.Parallel()
	open := func(t testing.TB) rowstore.Store { return openFS(t, vfs.NewMem()) }
	conformance.RunHooks(t, open, conformance.WithHooks(hooks), conformance.Scale(0.3))
}

func hooks(t testing.TB) conformance.Hooked {
	var gate sync.RWMutex
	mem := vfs.NewCrashableMem()
	s := openFS(t, slowFS{mem, &gate})
	return conformance.Hooked{
		Store: s,
		Reopen: func(ctx context.Context) (rowstore.Store, error) {
			again, err := open(ctx, Options{CacheSize: 1 << 20, MemTableSize: minMemTable}, "db", slowFS{mem, &gate}, nil, func() {})
			if err != nil {
				return nil, err
			}
			return again, nil
		},
		Crash: func() { mem = mem.CrashClone(vfs.CrashCloneCfg{}) },
		Break: func(m conformance.Moment) (mend func()) {
			if m != conformance.HangCall {
				return nil // a disk that fails ends the process
			}
			gate.Lock()
			return sync.OnceFunc(gate.Unlock)
		},
	}
}
