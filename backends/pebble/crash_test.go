package pebble

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/await"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// slowFS is a file system in memory that loses what was not synced when it crashes,
// and whose log takes its time to sync, so that there is much to lose.
type slowFS struct {
	vfs.FS
	// gate is held for writing while a sync must not end.
	gate *sync.RWMutex
}

func (f slowFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, c)
	return slowFile{file, f.gate}, err
}

func (f slowFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.ReuseForWrite(old, name, c)
	return slowFile{file, f.gate}, err
}

type slowFile struct {
	vfs.File
	gate *sync.RWMutex
}

func (f slowFile) Sync() error {
	f.gate.RLock()
	defer f.gate.RUnlock()
	return f.File.Sync()
}

func (f slowFile) SyncData() error {
	f.gate.RLock()
	defer f.gate.RUnlock()
	return f.File.SyncData()
}

func (f slowFile) SyncTo(n int64) (bool, error) {
	f.gate.RLock()
	defer f.gate.RUnlock()
	return f.File.SyncTo(n)
}

func openFS(t testing.TB, fs vfs.FS) *Store {
	t.Helper()
	require.NoError(t, fs.MkdirAll("db", 0o755))
	s, err := open(t.Context(), Options{CacheSize: 1 << 20, MemTableSize: minMemTable}, "db", fs, nil, func() {})
	require.NoError(t, err)
	return s
}

// TestPowerCut cuts the power at random moments and holds the store to what it has
// told: a commit that was acknowledged, and also whatever a read, a scan or a failed
// condition has shown, is there afterwards.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	runs := 12
	if testing.Short() {
		runs = 3
	}
	told := 0
	for range runs {
		told += powerCut(t, rng)
	}
	t.Logf("%d facts told before %d power cuts", told, runs)
	require.Greater(t, told, runs*10)
}

const cutRows = 4

// facts are the greatest numbers that were told for each row, which only grow.
type facts [cutRows]atomic.Uint64

func (f *facts) tell(row int, n uint64) {
	for {
		old := f[row].Load()
		if n <= old || f[row].CompareAndSwap(old, n) {
			return
		}
	}
}

// outage is a store whose power will be cut, and what it has told until then.
type outage struct {
	s     *Store
	mem   *vfs.MemFS
	gate  sync.RWMutex // of the disk
	told  facts
	count atomic.Int64 // of facts
	errs  chan error
}

// powerCut lets writers and readers work, cuts the power, and opens what the disk has
// kept. It returns how many facts were told.
func powerCut(t *testing.T, rng *rand.Rand) int {
	t.Helper()
	o := &outage{mem: vfs.NewCrashableMem(), errs: make(chan error, 16)}
	o.s = openFS(t, slowFS{o.mem, &o.gate})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	seeds := [2]uint64{rng.Uint64(), rng.Uint64()}
	for _, f := range []func(context.Context, *rand.Rand) error{o.write, o.write, o.write, o.write, o.scan, o.refuse} {
		i := seeds[1]
		seeds[1]++
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seeds[0], i))
			for ctx.Err() == nil {
				if err := f(ctx, rng); err != nil && ctx.Err() == nil {
					o.errs <- err
					return
				}
			}
		})
	}
	crashed, before := o.cut(rng)
	cancel()
	wg.Wait()
	require.NoError(t, o.s.Close())
	select {
	case err := <-o.errs:
		require.NoError(t, err)
	default:
	}

	s := openFS(t, crashed)
	defer func() { require.NoError(t, s.Close()) }()
	for i := range before {
		n, err := s.newestOf(t.Context(), cutRow(i))
		require.NoError(t, err)
		require.GreaterOrEqual(t, n, before[i], "row %d was told to be at %d", i, before[i])
	}
	return int(o.count.Load())
}

func cutRow(i int) string { return fmt.Sprintf("row%d", i) }

func (o *outage) tell(row int, n uint64) {
	o.told.tell(row, n)
	o.count.Add(1)
}

// write counts a row up, and first reads what others wrote.
func (o *outage) write(ctx context.Context, rng *rand.Rand) error {
	i := rng.IntN(cutRows)
	start, err := o.s.Oracle().Draw(ctx, 1)
	if err != nil {
		return err
	}
	n, err := o.s.newestOf(ctx, cutRow(i))
	if err != nil {
		return err
	}
	o.tell(i, n)
	out, err := o.s.Group(ctx, []rowstore.Group{{AssignTimestamp: true, Mutations: []rowstore.Mutation{put(cutRow(i), start, number(n+1))}}})
	if err != nil {
		return err
	}
	if out[0].Err != nil {
		return out[0].Err
	}
	if out[0].Applied {
		o.tell(i, n+1)
	} else {
		o.tell(i, binary.BigEndian.Uint64(out[0].Outcome.Broke.Value))
	}
	return nil
}

// scan reads every row.
func (o *outage) scan(ctx context.Context, _ *rand.Rand) error {
	for r, err := range o.s.Scan(ctx, rowstore.ScanRange{Table: "t", Selectors: pickNewest()}) {
		if err != nil {
			return err
		}
		o.tell(int(r.Row[3]-'0'), binary.BigEndian.Uint64(r.Versions[0].Value))
	}
	return nil
}

// refuse applies a mutation with a condition that fails, which shows the newest write.
func (o *outage) refuse(ctx context.Context, rng *rand.Rand) error {
	i := rng.IntN(cutRows)
	out, err := o.s.Apply(ctx, []rowstore.Mutation{{Table: "t", Row: cutRow(i), Conditions: []rowstore.Condition{
		rowstore.Absent(rowstore.Write, "c", 0),
	}}}, rowstore.ApplyOptions{})
	if err == nil && !out[0].Applied {
		o.tell(i, binary.BigEndian.Uint64(out[0].Broke.Value))
	}
	return err
}

// cut has some rounds of holding the disk back and letting it go. It cuts the power at
// last, with the disk held back or not, and returns what the disk has kept and what was
// told before.
func (o *outage) cut(rng *rand.Rand) (crashed *vfs.MemFS, before [cutRows]uint64) {
	crash := func() {
		// What was told until now was told before the cut.
		for i := range before {
			before[i] = o.told[i].Load()
		}
		crashed = o.mem.CrashClone(vfs.CrashCloneCfg{})
	}
	for rounds := 1 + rng.IntN(4); rounds > 0; rounds-- {
		goal := o.count.Load() + int64(1+rng.IntN(300))
		for o.count.Load() < goal && len(o.errs) == 0 {
			o.gate.Lock()
			for range rng.IntN(2000) {
				// Time for the others to get ahead of the disk.
				_ = o.s.stripes[0].mu.TryRLock() && func() bool { o.s.stripes[0].mu.RUnlock(); return true }()
			}
			if rounds == 1 && o.count.Load()+5 >= goal {
				crash()
				o.gate.Unlock()
				break
			}
			o.gate.Unlock()
		}
	}
	if crashed == nil {
		crash()
	}
	return crashed, before
}

// callsOfARow are calls of each kind that depend on what was written to the row r.
func callsOfARow(s *Store) map[string]func(ctx context.Context) error {
	return map[string]func(ctx context.Context) error{
		"read": func(ctx context.Context) error {
			_, err := s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: "r", Selectors: pickNewest()}})
			return err
		},
		"scan": func(ctx context.Context) error {
			for _, err := range s.Scan(ctx, rowstore.ScanRange{Table: "t", Selectors: pickNewest()}) {
				return err
			}
			return nil
		},
		"tables": func(ctx context.Context) error {
			for _, err := range s.Tables(ctx) {
				return err
			}
			return nil
		},
		"condition": func(ctx context.Context) error {
			_, err := s.Apply(ctx, []rowstore.Mutation{{Table: "t", Row: "r", Conditions: []rowstore.Condition{
				rowstore.Absent(rowstore.Write, "c", 0),
			}}}, rowstore.ApplyOptions{})
			return err
		},
		"check": func(ctx context.Context) error {
			_, err := s.Group(ctx, []rowstore.Group{{Mutations: []rowstore.Mutation{{Table: "t", Row: "r"}}}})
			return err
		},
		"write": func(ctx context.Context) error {
			_, err := s.Group(ctx, []rowstore.Group{{AssignTimestamp: true, Mutations: []rowstore.Mutation{put("r", 0, nil)}}})
			return err
		},
	}
}

// TestUnsyncedIsNotShown holds the disk back for good: nothing that depends on it
// may be answered, and contexts are honoured.
func TestUnsyncedIsNotShown(t *testing.T) {
	t.Parallel()
	var gate sync.RWMutex
	s := openFS(t, slowFS{vfs.NewCrashableMem(), &gate})
	_, err := s.Oracle().Draw(t.Context(), 1) // makes a bound durable
	require.NoError(t, err)
	gate.Lock()
	write := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, err := s.Apply(ctx, []rowstore.Mutation{{Table: "t", Row: "r", Edits: []rowstore.Edit{
			rowstore.Put(rowstore.Write, "c", 5, []byte("v")),
		}}}, rowstore.ApplyOptions{})
		write <- err
	}()
	require.Eventually(t, func() bool { return s.syncs.barrier() != nil }, waitFor, tick)

	results := map[string]chan error{}
	for name, call := range callsOfARow(s) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- call(ctx) }()
		cancelled := make(chan error, 1)
		go func() { cancelled <- call(ctx) }()
		go cancel()
		require.ErrorIs(t, await.Value(t.Context(), t, cancelled, nil), context.Canceled, name)
		require.ErrorIs(t, await.Value(t.Context(), t, done, nil), context.Canceled, name)
		result := make(chan error, 1)
		results[name] = result
		go func() { result <- call(t.Context()) }()
	}
	// A row of another stripe does not wait.
	other := "s"
	for s.stripe("t", other) == s.stripe("t", "r") {
		other += "s"
	}
	_, err = s.Read(t.Context(), []rowstore.RowRead{{Table: "t", Row: other, Selectors: pickNewest()}})
	require.NoError(t, err)
	for name, c := range results {
		require.Empty(t, c, "%s was answered before the disk was", name)
	}
	cancel()
	err = await.Value(t.Context(), t, write, nil)
	require.ErrorIs(t, err, rowstore.ErrAmbiguous)
	require.ErrorIs(t, err, context.Canceled)
	gate.Unlock()
	for name, c := range results {
		require.NoError(t, await.Value(t.Context(), t, c, nil), name)
	}
	require.NoError(t, s.Close())
}

// failingFS fails to sync once it is told to.
type failingFS struct {
	vfs.FS
	fail *atomic.Bool
}

func (f failingFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, c)
	return failingFile{file, f.fail}, err
}

type failingFile struct {
	vfs.File
	fail *atomic.Bool
}

var errDisk = errors.New("the disk is broken")

func (f failingFile) Sync() error {
	if f.fail.Load() {
		return errDisk
	}
	return f.File.Sync()
}

func (f failingFile) SyncData() error {
	if f.fail.Load() {
		return errDisk
	}
	return f.File.SyncData()
}

func TestFailedSync(t *testing.T) {
	t.Parallel()
	var fail atomic.Bool
	s := openFS(t, failingFS{vfs.NewMem(), &fail})
	_, err := s.Oracle().Draw(t.Context(), 1)
	require.NoError(t, err)
	fail.Store(true)
	_, err = s.Group(t.Context(), []rowstore.Group{{AssignTimestamp: true, Mutations: []rowstore.Mutation{put("r", 0, []byte("v"))}}})
	require.ErrorIs(t, err, rowstore.ErrAmbiguous)
	require.ErrorContains(t, err, errDisk.Error())
	// What is in memory is not on disk, so nothing is shown any more.
	_, err = s.Read(t.Context(), []rowstore.RowRead{{Table: "t", Row: "r", Selectors: pickNewest()}})
	require.ErrorContains(t, err, errDisk.Error())
	_, err = s.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: "r"}}, rowstore.ApplyOptions{})
	require.ErrorContains(t, err, errDisk.Error())
	require.NotErrorIs(t, err, rowstore.ErrAmbiguous)
	fail.Store(false)
	require.Error(t, s.Close())
}
