package backup

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// small is the size of blocks that are cut and damaged.
const small = 1200

// filled is a shop in memory with a backup of it in small blocks.
func filled(t *testing.T) (s *shop, path string, file []byte, r Result) {
	t.Helper()
	s = openShop(t, "memory:")
	atend.Do(t, func() { s.close(t) })
	s.fill(t, far)
	path = filepath.Join(t.TempDir(), "backup")
	r, err := Write(t.Context(), s.db, path, Options{blockBytes: small})
	require.NoError(t, err)
	file, err = os.ReadFile(path)
	require.NoError(t, err)
	return s, path, file, r
}

// ends lists where the frames of a backup end.
func ends(t *testing.T, file []byte) (at []int64) {
	t.Helper()
	r, err := newReader(bytes.NewReader(file))
	require.NoError(t, err)
	defer r.close()
	_, err = r.begin()
	require.NoError(t, err)
	at = append(at, r.at)
	for {
		kind, _, err := r.next()
		require.NoError(t, err)
		at = append(at, r.at)
		if kind == frameEnd {
			return at
		}
	}
}

// TestCutAtEveryBlock cuts a backup off at every end of a frame, within every frame, and with garbage at its end, and resumes
// it. The file has the same in it as without the cut.
func TestCutAtEveryBlock(t *testing.T) {
	t.Parallel()
	s, _, file, r := filled(t)
	at := ends(t, file)
	require.Greater(t, len(at), 10)
	whole := filepath.Join(t.TempDir(), "whole")
	require.NoError(t, os.WriteFile(whole, file, 0o600))
	want, same := contents(t, whole), 0
	resume := func(cut []byte) {
		path := filepath.Join(t.TempDir(), "backup")
		require.NoError(t, os.WriteFile(path+Incomplete, cut, 0o600))
		_, err := s.db.Hold(t.Context(), holdName(r.ID), r.Snapshot, time.Minute)
		require.NoError(t, err)
		again, err := Write(t.Context(), s.db, path, Options{blockBytes: small})
		require.NoError(t, err)
		require.True(t, again.Resumed)
		require.Equal(t, r.Snapshot, again.Snapshot)
		require.Equal(t, []int64{r.Rows, r.Cells}, []int64{again.Rows, again.Cells})
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, want, contents(t, path), "cut at %d", len(cut))
		if bytes.Equal(file, got) {
			same++
		}
		require.NoFileExists(t, path+Incomplete)
		holds, err := s.db.Holds(t.Context())
		require.NoError(t, err)
		require.Empty(t, holds, "the hold was not released")
	}
	for i, end := range at {
		resume(file[:end])
		if i+1 < len(at) {
			resume(file[:end+(at[i+1]-end)/2])
			resume(append(bytes.Clone(file[:end]), "what a power failure left of it"...))
		}
	}
	// One that was cut off before the rows looks at notifications anew, at another time.
	require.Greater(t, same, 2*len(at))
}

// TestCutHeads: of a file without a whole head, nothing was done yet.
func TestCutHeads(t *testing.T) {
	t.Parallel()
	s, _, file, _ := filled(t)
	for n := int64(0); n < ends(t, file)[0]; n += 50 {
		path := filepath.Join(t.TempDir(), "backup")
		require.NoError(t, os.WriteFile(path+Incomplete, file[:n], 0o600))
		r, err := Write(t.Context(), s.db, path, Options{})
		require.NoError(t, err)
		require.False(t, r.Resumed)
		whole, err := Verify(t.Context(), path, nil)
		require.NoError(t, err)
		begins, err := Peek(path)
		require.NoError(t, err)
		require.Equal(t, Info{ID: whole.ID, Snapshot: whole.Snapshot, Bytes: whole.Bytes}, begins)
	}
}

// TestDamage flips a bit at random places, and cuts files short. Each is found, and nothing is written to the store.
func TestDamage(t *testing.T) {
	t.Parallel()
	_, _, file, _ := filled(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // the test repeats it
	store, err := rowstore.Open(t.Context(), "memory:")
	require.NoError(t, err)
	defer func() { _ = store.Close() }()
	path := filepath.Join(t.TempDir(), "backup")
	refused := func(b []byte) error {
		require.NoError(t, os.WriteFile(path, b, 0o600))
		_, err := Restore(t.Context(), store, path, RestoreOptions{})
		require.Error(t, err)
		if _, early := Peek(path); early != nil {
			require.ErrorContains(t, err, early.Error())
		}
		for table, err := range store.Tables(t.Context()) {
			require.NoError(t, err)
			t.Fatalf("table %q was written", table)
		}
		return err
	}
	flip := func(bit int) {
		b := bytes.Clone(file)
		b[bit/8] ^= 1 << (bit % 8)
		err := refused(b)
		if !errors.Is(err, ErrDamaged) {
			require.Equal(t, len(magic), bit/8, "bit %d: %v", bit, err)
			require.ErrorIs(t, err, percolator.ErrFormat)
		}
		require.NotErrorIs(t, err, ErrIncomplete)
	}
	for bit := 0; bit < 8*(len(magic)+1+headLength+20); bit += 5 {
		flip(bit)
	}
	for range 100 {
		flip(rnd.IntN(8 * len(file)))
	}
	for range 30 {
		n := rnd.IntN(len(file))
		if n == 0 {
			continue
		}
		require.ErrorIs(t, refused(file[:n]), ErrIncomplete, "cut at %d", n)
	}
	for _, end := range ends(t, file)[:5] {
		require.ErrorIs(t, refused(file[:end]), ErrIncomplete)
	}
	require.ErrorIs(t, refused(append(bytes.Clone(file), 0)), ErrDamaged)
	require.ErrorIs(t, refused([]byte("PGDMP a dump of another application, which is longer")), percolator.ErrFormat)
	require.ErrorIs(t, refused(nil), percolator.ErrFormat)
	newer := bytes.Clone(file)
	newer[len(magic)] = 2
	require.ErrorContains(t, refused(newer), "newer version")
	require.NoError(t, os.WriteFile(path, file, 0o600))
	_, err = Restore(t.Context(), store, path, RestoreOptions{})
	require.NoError(t, err)
}

// smallDisk is a file on a disk with room for some bytes.
type smallDisk struct {
	diskFile
	room int
}

func (d *smallDisk) Write(b []byte) (int, error) {
	n := min(len(b), d.room)
	d.room -= n
	n, err := d.diskFile.Write(b[:n])
	if err == nil && n < len(b) {
		err = syscall.ENOSPC
	}
	return n, err
}

// TestFullDisk fills the disk again and again, until the backup has room.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	s, _, file, _ := filled(t)
	path := filepath.Join(t.TempDir(), "backup")
	failed := 0
	for {
		_, err := Write(t.Context(), s.db, path, Options{blockBytes: small, disk: func(path string) (diskFile, error) {
			f, err := openDisk(path)
			return &smallDisk{f, 2000}, err
		}})
		if err == nil {
			break
		}
		failed++
		require.Less(t, failed, 1000)
		require.ErrorIs(t, err, syscall.ENOSPC)
		require.ErrorContains(t, err, path+Incomplete)
		require.NoFileExists(t, path)
		_, err = Verify(t.Context(), path, nil)
		require.ErrorIs(t, err, ErrIncomplete)
	}
	require.Greater(t, failed, 2)
	got := contents(t, path)
	other := filepath.Join(t.TempDir(), "other")
	require.NoError(t, os.WriteFile(other, file, 0o600))
	require.Equal(t, contents(t, other), got)
}

// TestDiskThatIsFullFromTheStart: where not even the head fits, no other call goes on from the file, so nothing may be held for it.
func TestDiskThatIsFullFromTheStart(t *testing.T) {
	t.Parallel()
	s, _, _, _ := filled(t)
	path := filepath.Join(t.TempDir(), "backup")
	for _, room := range []int{0, 10, 60} {
		_, err := Write(t.Context(), s.db, path, Options{disk: func(path string) (diskFile, error) {
			f, err := openDisk(path)
			return &smallDisk{f, room}, err
		}})
		require.ErrorIs(t, err, syscall.ENOSPC)
		require.ErrorContains(t, err, path+Incomplete)
		holds, err := s.db.Holds(t.Context())
		require.NoError(t, err)
		require.Empty(t, holds, "with room for %d bytes", room)
	}
	_, err := Write(t.Context(), s.db, path, Options{})
	require.NoError(t, err)
	_, err = Verify(t.Context(), path, nil)
	require.NoError(t, err)
}

// TestCompleteButUnnamed: a process was killed when its backup was complete and its hold released, but before the file had its name. The next call names it.
func TestCompleteButUnnamed(t *testing.T) {
	t.Parallel()
	s, path, file, r := filled(t)
	require.NoError(t, os.Rename(path, path+Incomplete))
	again, err := Write(t.Context(), s.db, path, Options{blockBytes: small})
	require.NoError(t, err)
	require.Equal(t, r.ID, again.ID)
	require.True(t, again.Resumed)
	require.NoFileExists(t, path+Incomplete)
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, file, got)
}

// TestCompleteButNotThis: what is complete and has no name is of another database, or of long ago. It does not pass for the backup that is asked for now.
func TestCompleteButNotThis(t *testing.T) {
	t.Parallel()
	s, path, file, r := filled(t)
	require.NoError(t, os.Rename(path, path+Incomplete))
	other := openShop(t, "memory:")
	atend.Do(t, func() { other.close(t) })
	_, err := Write(t.Context(), other.db, path, Options{blockBytes: small})
	require.ErrorIs(t, err, ErrLapsed)
	require.ErrorContains(t, err, path+Incomplete)
	require.NoFileExists(t, path)
	require.Eventually(t, func() bool {
		now, err := s.db.Now(t.Context())
		return err == nil && now.Sub(r.Snapshot) > time.Second // older than the shortest hold
	}, time.Minute, 10*time.Millisecond)
	_, err = Write(t.Context(), s.db, path, Options{blockBytes: small, Hold: time.Second})
	require.ErrorIs(t, err, ErrLapsed)
	got, err := os.ReadFile(path + Incomplete)
	require.NoError(t, err)
	require.Equal(t, file, got, "it is left alone")
}

// TestLapsed: a backup whose hold is gone cannot be resumed, and says so.
func TestLapsed(t *testing.T) {
	t.Parallel()
	s, _, file, _ := filled(t)
	path := filepath.Join(t.TempDir(), "backup")
	require.NoError(t, os.WriteFile(path+Incomplete, file[:len(file)/2], 0o600))
	_, err := Write(t.Context(), s.db, path, Options{})
	require.ErrorIs(t, err, ErrLapsed)
	require.ErrorIs(t, err, percolator.ErrSnapshotTooOld)
	got, err := os.ReadFile(path + Incomplete)
	require.NoError(t, err)
	require.Equal(t, file[:len(file)/2], got, "the file was changed")

	require.NoError(t, os.WriteFile(path, nil, 0o600))
	_, err = Write(t.Context(), s.db, path, Options{})
	require.ErrorIs(t, err, ErrExists)
}

// TestErasedMeanwhile: a backup in which rows may be missing because they were erased since its snapshot is refused.
func TestErasedMeanwhile(t *testing.T) {
	t.Parallel()
	db, err := percolator.Open(t.Context(), "memory:", percolator.WithSettings(percolator.Settings{MaxTxnAge: time.Minute, Retention: time.Hour, CatalogLease: 100 * time.Millisecond}))
	require.NoError(t, err)
	atend.Do(t, func() { require.NoError(t, db.Close(context.WithoutCancel(t.Context()))) })
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error {
		return errors.Join(tx.Set(at("order", "ann", "v"), []byte("1")), tx.Set(at("order", "bob", "v"), []byte("2")))
	}))
	path := filepath.Join(t.TempDir(), "backup")
	erased := false
	_, err = Write(t.Context(), db, path, Options{Progress: func(Progress) {
		if !erased {
			erased = true
			_, err := db.Erase(t.Context(), percolator.Range{Table: "order", From: "a", To: "b"})
			require.NoError(t, err)
		}
	}})
	require.True(t, erased)
	require.ErrorIs(t, err, ErrLapsed)
	require.ErrorContains(t, err, "order")
	require.NoFileExists(t, path)
}

// TestErasedBetweenTwoLooks: a long value is asked for by a second look at its row, which was erased since the first. It is not damage.
func TestErasedBetweenTwoLooks(t *testing.T) {
	t.Parallel()
	store := faultstore.New(memstore.New(), faultstore.Options{})
	db, err := percolator.New(t.Context(), store, percolator.WithSettings(percolator.Settings{MaxTxnAge: time.Minute, Retention: time.Hour, CatalogLease: 100 * time.Millisecond}))
	require.NoError(t, err)
	atend.Do(t, func() { require.NoError(t, db.Close(context.WithoutCancel(t.Context()))) })
	long, cell := bytes.Repeat([]byte("x"), 1<<16), at("order", "ann", "v")
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error { return tx.Set(cell, long) }))
	// It began before the snapshot and commits after it, so its value is the newest that the first look shows, and the snapshot has the one before.
	later, err := db.Begin(t.Context())
	require.NoError(t, err)
	start, err := later.StartTimestamp(t.Context())
	require.NoError(t, err)
	require.NoError(t, later.Set(cell, long))
	store.AddRule(faultstore.Rule{
		Match: func(c *faultstore.Call) bool { return c.Kind == faultstore.CallScan && c.Range.Table == "order" },
		Before: func(ctx context.Context, _ *faultstore.Call) faultstore.Fault {
			require.NoError(t, later.Commit(ctx))
			return faultstore.Fault{}
		},
	})
	asks := func(c *faultstore.Call) bool {
		if c.Kind != faultstore.CallRead || c.Reads[0].Table != "order" {
			return false
		}
		s := c.Reads[0].Selectors
		return len(s) == 1 && s[0].Family == rowstore.Data && s[0].From == s[0].To && s[0].To < start
	}
	again := store.AddRule(faultstore.Rule{Match: asks, Before: func(ctx context.Context, _ *faultstore.Call) faultstore.Fault {
		_, err := db.Erase(ctx, percolator.Range{Table: "order"})
		require.NoError(t, err)
		return faultstore.Fault{}
	}})
	_, err = Write(t.Context(), db, filepath.Join(t.TempDir(), "backup"), Options{})
	require.Equal(t, 1, again.Struck())
	require.ErrorIs(t, err, ErrLapsed)
	require.NotErrorIs(t, err, percolator.ErrCorrupt)
	require.ErrorContains(t, err, "order")
}
