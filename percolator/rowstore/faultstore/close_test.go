package faultstore_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// slowToClose is a store whose Close takes until it is released.
type slowToClose struct {
	*memstore.Store
	release chan struct{}
}

func (s *slowToClose) Close() error {
	<-s.release
	return s.Store.Close()
}

// TestFaultySecondCloseWaits: nobody goes on as if the store beneath were closed while it is not.
func TestFaultySecondCloseWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &slowToClose{memstore.New(), make(chan struct{})}
		f := faultstore.New(s, faultstore.Options{Seed: 1})
		ended := make(chan struct{}, 2)
		for range 2 {
			go func() {
				assert.NoError(t, f.Close())
				ended <- struct{}{}
			}()
		}
		synctest.Wait()
		require.Empty(t, ended)
		close(s.release)
		synctest.Wait()
		require.Len(t, ended, 2)
	})
}
