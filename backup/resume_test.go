package backup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// haltingDisk reads a few bytes at a time, and tells how many it has read.
type haltingDisk struct {
	diskFile
	read int
	hook func(read int)
}

func (d *haltingDisk) Read(b []byte) (int, error) {
	n, err := d.diskFile.Read(b[:min(len(b), 100)])
	d.read += n
	d.hook(d.read)
	return n, err
}

// cutOff is a database over a store with half of a backup of it, whose hold stands for ttl.
func cutOff(t *testing.T, store rowstore.Store, ttl time.Duration) (db *percolator.DB, path string, file []byte, r Result) {
	t.Helper()
	db, err := percolator.New(t.Context(), store, percolator.WithSettings(percolator.Settings{MaxTxnAge: time.Minute, Retention: time.Hour, CatalogLease: 100 * time.Millisecond}))
	require.NoError(t, err)
	atend.Do(t, func() { require.NoError(t, db.Close(context.WithoutCancel(t.Context()))) })
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) (err error) {
		for i := range 500 {
			err = errors.Join(err, tx.Set(at("order", fmt.Sprintf("ann/%03d", i), "v"), amount(i)), tx.Set(at("stock", fmt.Sprintf("%03d", i), "v"), amount(i)))
		}
		return err
	}))
	path = filepath.Join(t.TempDir(), "backup")
	r, err = Write(t.Context(), db, path, Options{blockBytes: small})
	require.NoError(t, err)
	file, err = os.ReadFile(path)
	require.NoError(t, err)
	file = file[:len(file)/2]
	require.NoError(t, os.Rename(path, path+".whole"))
	require.NoError(t, os.WriteFile(path+Incomplete, file, 0o600))
	_, err = db.Hold(t.Context(), holdName(r.ID), r.Snapshot, ttl)
	require.NoError(t, err)
	return db, path, file, r
}

// until returns when the only hold ends.
func until(t *testing.T, db *percolator.DB) percolator.Timestamp {
	t.Helper()
	holds, err := db.Holds(t.Context())
	require.NoError(t, err)
	require.Len(t, holds, 1)
	return holds[0].Until
}

// TestHeldWhileItIsReadAgain: what is in the file takes longer to read than the hold stands. It is taken again before, and renewed meanwhile.
func TestHeldWhileItIsReadAgain(t *testing.T) {
	t.Parallel()
	began := time.Now()
	slow := memstore.WithClock(func() time.Time { return began.Add(time.Since(began) / 10) }) // so that no hold ends on a busy machine
	db, path, file, r := cutOff(t, memstore.New(slow), time.Second)
	placed, looked := until(t, db), false
	head := int(ends(t, mustRead(t, path+".whole"))[0])
	again, err := Write(t.Context(), db, path, Options{blockBytes: small, Hold: 3 * time.Second, disk: func(path string) (diskFile, error) {
		f, err := openDisk(path)
		return &haltingDisk{diskFile: f, hook: func(read int) {
			if looked || read < head+200 {
				return
			}
			looked = true
			taken := until(t, db)
			require.Greater(t, taken, placed)
			require.Eventually(t, func() bool { return until(t, db) > taken }, 20*time.Second, 10*time.Millisecond)
		}}, err
	}})
	require.NoError(t, err)
	require.True(t, looked)
	require.True(t, again.Resumed)
	require.Equal(t, r.ID, again.ID)
	require.Greater(t, again.Bytes, int64(len(file)))
	require.Equal(t, contents(t, path+".whole"), contents(t, path))
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b
}

// TestReadAgainHeedsItsContext: whoever waits for a large file to be read again can give up, and go on later.
func TestReadAgainHeedsItsContext(t *testing.T) {
	t.Parallel()
	db, path, file, _ := cutOff(t, memstore.New(), time.Minute)
	head := int(ends(t, mustRead(t, path+".whole"))[0])
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var disk *haltingDisk
	_, err := Write(ctx, db, path, Options{blockBytes: small, disk: func(path string) (diskFile, error) {
		f, err := openDisk(path)
		disk = &haltingDisk{diskFile: f, hook: func(read int) {
			if read >= head+200 {
				cancel()
			}
		}}
		return disk, err
	}})
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, ErrLapsed)
	require.Less(t, disk.read, len(file))
	require.Equal(t, file, mustRead(t, path+Incomplete))
	again, err := Write(t.Context(), db, path, Options{blockBytes: small})
	require.NoError(t, err)
	require.True(t, again.Resumed)
}

// TestErasedBeforeItGoesOn: rows were erased since the backup was cut off. It says so before it reads the database. One that is complete gets its name.
func TestErasedBeforeItGoesOn(t *testing.T) {
	t.Parallel()
	store := faultstore.New(memstore.New(), faultstore.Options{})
	db, path, file, _ := cutOff(t, store, time.Minute)
	_, err := db.Erase(t.Context(), percolator.Range{Table: "order", From: "ann/", To: "ann0"})
	require.NoError(t, err)
	scans := store.AddRule(faultstore.Rule{Times: -1, Match: func(c *faultstore.Call) bool { return c.Kind == faultstore.CallScan }})
	_, err = Write(t.Context(), db, path, Options{blockBytes: small})
	require.ErrorIs(t, err, ErrLapsed)
	require.ErrorContains(t, err, "order")
	require.Zero(t, scans.Struck())
	require.Equal(t, file, mustRead(t, path+Incomplete))
	requireNoHold(t, db)
}

// A backup that goes on no more keeps no history for nobody.
func requireNoHold(t *testing.T, db *percolator.DB) {
	t.Helper()
	holds, err := db.Holds(t.Context())
	require.NoError(t, err)
	require.Empty(t, holds)
}

// TestCompleteThoughErased: a backup that is complete is good, whatever was erased since: before it is looked at again, or meanwhile.
func TestCompleteThoughErased(t *testing.T) {
	t.Parallel()
	for _, meanwhile := range []bool{false, true} {
		t.Run(fmt.Sprint("meanwhile ", meanwhile), func(t *testing.T) {
			t.Parallel()
			store := faultstore.New(memstore.New(), faultstore.Options{})
			db, path, _, r := cutOff(t, store, time.Minute)
			whole := mustRead(t, path+".whole")
			require.NoError(t, os.WriteFile(path+Incomplete, whole, 0o600))
			erased := false
			erase := func() {
				erased = true
				_, err := db.Erase(t.Context(), percolator.Range{Table: "order", From: "ann/", To: "ann0"})
				require.NoError(t, err)
			}
			if !meanwhile {
				erase()
			}
			head := int(ends(t, whole)[0])
			again, err := Write(t.Context(), db, path, Options{blockBytes: small, Hold: 3 * time.Second, disk: func(path string) (diskFile, error) {
				f, err := openDisk(path)
				return &haltingDisk{diskFile: f, hook: func(read int) {
					if erased || read < head+200 {
						return
					}
					erase()
					// A renewal sees it, and says so: after that nothing is renewed any more.
					var renewed, looked atomic.Bool
					store.AddRule(faultstore.Rule{Times: -1, Match: func(c *faultstore.Call) bool {
						looked.Store(looked.Load() || renewed.Load() && c.Kind == faultstore.CallRead)
						renewed.Store(renewed.Load() || c.Kind == faultstore.CallApply)
						return false
					}})
					require.Eventually(t, looked.Load, 20*time.Second, 10*time.Millisecond)
				}}, err
			}})
			require.NoError(t, err)
			require.True(t, erased)
			require.Equal(t, r.ID, again.ID)
			requireNoHold(t, db)
		})
	}
}

// TestErasedWhileItReads: a backup ends soon after rows were erased, and does not read all else before.
func TestErasedWhileItReads(t *testing.T) {
	t.Parallel()
	store := faultstore.New(memstore.New(), faultstore.Options{})
	db, path, _, _ := cutOff(t, store, time.Minute)
	before, err := db.Holds(t.Context()) // of the one that was cut off
	require.NoError(t, err)
	stopped := false
	store.AddRule(faultstore.Rule{
		Match: func(c *faultstore.Call) bool { return c.Kind == faultstore.CallScan && c.Range.Table == "stock" },
		Before: func(ctx context.Context, _ *faultstore.Call) faultstore.Fault {
			_, err := db.Erase(context.WithoutCancel(ctx), percolator.Range{Table: "order", From: "ann/", To: "ann0"})
			require.NoError(t, err)
			select {
			case <-ctx.Done():
				stopped = true
			case <-time.After(20 * time.Second):
			}
			return faultstore.Fault{}
		},
	})
	_, err = Write(t.Context(), db, path+"2", Options{blockBytes: small, Hold: 3 * time.Second})
	require.ErrorIs(t, err, ErrLapsed)
	require.ErrorContains(t, err, `"order" were erased`)
	require.True(t, stopped)
	after, err := db.Holds(t.Context())
	require.NoError(t, err)
	require.Len(t, after, len(before))
}
