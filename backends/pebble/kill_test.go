package pebble

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

const (
	childVariable = "PERCOLATE_PEBBLE_CHILD"
	writers       = 8
	accounts      = 10
	deposit       = 1000
)

func number(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// child commits to the store in dir until it is killed, and says on its standard
// output what was acknowledged: writer, number and commit timestamp.
func child(dir string) int {
	ctx := context.Background()
	s, err := Open(ctx, Options{Path: dir, MemTableSize: minMemTable})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("open")
	var out sync.Mutex
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(rand.Uint64(), uint64(w)))
			if err := write(ctx, s, w, rng, &out); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		})
	}
	wg.Wait()
	return 0
}

// write counts up two rows of the writer's own together, and moves money between
// accounts in the same group, for ever.
func write(ctx context.Context, s *Store, w int, rng *rand.Rand, out *sync.Mutex) error {
	last, err := s.newestOf(ctx, own(w, 0))
	if err != nil {
		return err
	}
	for n := last + 1; ; {
		start, err := s.Oracle().Draw(ctx, 1)
		if err != nil {
			return err
		}
		from := rng.IntN(accounts)
		to := (from + 1 + rng.IntN(accounts-1)) % accounts
		a, errA := s.newestOf(ctx, account(from))
		b, errB := s.newestOf(ctx, account(to))
		if errA != nil || errB != nil {
			return fmt.Errorf("%w, %w", errA, errB)
		}
		// Short and long values, so that memtables fill up and are flushed.
		pad := make([]byte, rng.IntN(2000))
		g := rowstore.Group{AssignTimestamp: true, Mutations: []rowstore.Mutation{
			put(own(w, 0), 0, append(number(n), pad...)),
			put(own(w, 1), 0, append(number(n), pad...)),
			put(account(from), start, number(a-1)),
			put(account(to), start, number(b+1)),
		}}
		g.Mutations[0].Edits = append(g.Mutations[0].Edits, rowstore.Put(rowstore.Notify, "c", rowstore.AssignedTimestamp, nil))
		res, err := s.Group(ctx, []rowstore.Group{g})
		if err != nil || res[0].Err != nil {
			return fmt.Errorf("%w, %w", err, res[0].Err)
		}
		if !res[0].Applied {
			continue // somebody else moved money meanwhile
		}
		out.Lock()
		fmt.Println(w, n, uint64(res[0].Commit))
		out.Unlock()
		n++
	}
}

func own(w, i int) string             { return fmt.Sprintf("writer%d/%d", w, i) }
func account(i int) string            { return fmt.Sprintf("account%d", i) }
func pickNewest() []rowstore.Selector { return pickWrites(1) }

func pickWrites(limit int) []rowstore.Selector {
	return []rowstore.Selector{{Family: rowstore.Write, Column: "c", To: oracle.Max, Limit: limit}}
}

// put is a one-phase write of one cell, that fails if it was written at or after
// start; 0 writes in any case.
func put(row string, start rowstore.Timestamp, value []byte) rowstore.Mutation {
	m := rowstore.Mutation{Table: "t", Row: row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", rowstore.AssignedTimestamp, value)}}
	if start > 0 {
		m.Conditions = []rowstore.Condition{rowstore.Absent(rowstore.Write, "c", start)}
	}
	return m
}

// newestOf returns the number in the newest write of a row, 0 if there is none.
func (s *Store) newestOf(ctx context.Context, row string) (uint64, error) {
	rows, err := s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: row, Selectors: pickNewest()}})
	if err != nil {
		return 0, err
	}
	if rows[0].Err != nil || len(rows[0].Versions) == 0 {
		return 0, rows[0].Err
	}
	return binary.BigEndian.Uint64(rows[0].Versions[0].Value), nil
}

func TestKill(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	ctx := t.Context()

	s, err := Open(ctx, Options{Path: dir})
	require.NoError(t, err)
	for i := range accounts {
		out, err := s.Group(ctx, []rowstore.Group{{AssignTimestamp: true, Mutations: []rowstore.Mutation{put(account(i), 0, number(deposit))}}})
		require.NoError(t, err)
		require.True(t, out[0].Applied)
	}
	require.NoError(t, s.Close())

	acked := make([]map[uint64]uint64, writers) // writer -> number -> commit timestamp
	for i := range acked {
		acked[i] = map[uint64]uint64{}
	}
	total, kills := 0, 5
	if testing.Short() {
		kills = 2
	}
	for range kills {
		total += killOnce(t, dir, 1+rng.IntN(400), acked)
		s, err := Open(ctx, Options{Path: dir})
		require.NoError(t, err)
		checkSurvived(t, s, acked, kills)
		require.NoError(t, s.Close())
	}
	t.Logf("%d commits acknowledged before %d kills", total, kills)
	require.Positive(t, total)
}

// killOnce runs the child until it has acknowledged that many commits, kills it, and
// adds what it acknowledged.
func killOnce(t *testing.T, dir string, after int, acked []map[uint64]uint64) (n int) {
	cmd := exec.Command(os.Args[0]) //nolint:gosec // this binary
	cmd.Env = append(os.Environ(), childVariable+"="+dir)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	pipe, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(pipe)
	require.True(t, lines.Scan(), "the child says that it is open: %s", &stderr)
	require.Equal(t, "open", lines.Text())

	_, err = Open(t.Context(), Options{Path: dir})
	require.ErrorIs(t, err, ErrInUse)
	require.ErrorContains(t, err, dir)
	require.ErrorContains(t, err, "another process")

	for lines.Scan() {
		var w int
		var k, ts uint64
		if c, _ := fmt.Sscan(lines.Text(), &w, &k, &ts); c != 3 {
			// Cut off by the kill.
			break
		}
		acked[w][k] = ts
		if n++; n == after {
			require.NoError(t, cmd.Process.Kill())
		}
	}
	err = cmd.Wait()
	require.ErrorContains(t, err, "killed", "the child ended by itself: %s", &stderr)
	return n
}

// checkSurvived compares the store with what was acknowledged.
func checkSurvived(t *testing.T, s *Store, acked []map[uint64]uint64, kills int) {
	ctx := t.Context()
	next, err := s.Oracle().Draw(ctx, 1)
	require.NoError(t, err)
	for w := range acked {
		got, err := s.Read(ctx, []rowstore.RowRead{
			{Table: "t", Row: own(w, 0), Selectors: pickWrites(0)},
			{Table: "t", Row: own(w, 1), Selectors: pickWrites(0)},
		})
		require.NoError(t, err)
		require.Equal(t, got[0].Versions, got[1].Versions, "a group is there all or not at all")
		slot := rowstore.Slot("t", own(w, 0))
		notified := scanAll(t, s, rowstore.ScanRange{Table: "t", Slots: []rowstore.SlotRange{{First: slot, Last: slot}}, Selectors: pickNotify()})
		require.Len(t, notified, min(len(got[0].Versions), 1))
		if len(notified) > 0 {
			require.Equal(t, own(w, 0), notified[0].Row)
			require.Len(t, notified[0].Versions, len(got[0].Versions), "each commit has its notification")
		}
		stored := map[uint64]uint64{}
		for i, v := range got[0].Versions {
			require.Less(t, v.TS, next, "the oracle went back")
			if i > 0 {
				require.Greater(t, got[0].Versions[i-1].TS, v.TS)
			}
			stored[binary.BigEndian.Uint64(v.Value)] = uint64(v.TS)
		}
		for n, ts := range acked[w] {
			require.Equal(t, ts, stored[n], "writer %d was told that %d was committed", w, n)
		}
		require.LessOrEqual(t, len(stored), len(acked[w])+kills, "one commit of a writer can be under way at each kill")
	}
	sum := uint64(0)
	for i := range accounts {
		n, err := s.newestOf(ctx, account(i))
		require.NoError(t, err)
		sum += n
	}
	require.Equal(t, uint64(accounts*deposit), sum)
}
