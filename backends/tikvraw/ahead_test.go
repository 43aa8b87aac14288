package tikvraw

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// weighed counts the bytes that gets bring.
type weighed struct {
	*fakeRaw
	bytes atomic.Int64
}

func (w *weighed) get(ctx context.Context, key []byte) ([]byte, error) {
	v, err := w.fakeRaw.get(ctx, key)
	w.bytes.Add(int64(len(v)))
	return v, err
}

func (w *weighed) batchGet(ctx context.Context, keys [][]byte) ([][]byte, error) {
	values, err := w.fakeRaw.batchGet(ctx, keys)
	for _, v := range values {
		w.bytes.Add(int64(len(v)))
	}
	return values, err
}

func weighedStore(t testing.TB) (*Store, *weighed) {
	t.Helper()
	w := &weighed{fakeRaw: newFakeData().client()}
	o := Options{SweepEvery: -1, CacheSize: 1 << 20}.counted()
	require.NoError(t, o.complete())
	s := newStore(w, o)
	s.drawFrom = w.fakeRaw
	require.NoError(t, s.open(t.Context(), t.Context()))
	atend.Do(t, func() { require.NoError(t, s.Close()) })
	return s, w
}

const (
	deepChunk    = 250 << 10
	deepVersions = deepChunk / 512
)

// deepRow stores a row of one column with so many chunks of history, each of about deepChunk bytes,
// and nothing else: the newest version of all is deepVersions times chunks.
func deepRow(t testing.TB, s *Store, w *weighed, row string, chunks int) {
	t.Helper()
	key := s.keys.row(spaceHead, "t", row)
	h := head{tag: 1}
	for i := range chunks {
		hi := rowstore.Timestamp((chunks - i) * deepVersions) //nolint:gosec // small
		entries := make([]entry, deepVersions)
		for j := range entries {
			entries[j] = entry{rowstore.Write, "c", hi - rowstore.Timestamp(j), value{bytes: make([]byte, 500)}} //nolint:gosec // small
		}
		raw := encodeChunk(entries)
		id := uint64(i + 1) //nolint:gosec // small
		h.chunks = append(h.chunks, chunk{family: rowstore.Write, column: "c", lo: entries[deepVersions-1].ts, hi: hi, id: id, size: len(raw)})
		w.store(s.keys.side(key, id, kindChunk), raw)
	}
	w.store(key, h.encode())
}

// A scan of whole histories reads about a mebibyte ahead, though heads that say where these lie are short.
func TestScanOfHistoriesReadsLittleAhead(t *testing.T) {
	t.Parallel()
	const rows, chunks = 40, 4
	s, w := weighedStore(t)
	for i := range rows {
		deepRow(t, s, w, fmt.Sprintf("%03d", i), chunks)
	}
	for _, pick := range []rowstore.Selector{
		{Family: rowstore.Write, To: 1 << 40},
		{Family: rowstore.Write, Column: "c", To: 1 << 40, Limit: 1 << 30},
	} {
		w.counted()
		w.bytes.Store(0)
		n, most, handed := 0, int64(0), int64(0)
		for row, err := range s.Scan(t.Context(), rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{pick}}) {
			require.NoError(t, err)
			require.Len(t, row.Versions, chunks*deepVersions)
			most = max(most, w.bytes.Load()-handed)
			handed += chunks * deepChunk
			n++
		}
		require.Equal(t, rows, n)
		require.LessOrEqual(t, most, int64(pageBytes+chunks*deepChunk*2), "bytes that were read before their rows were handed out")
	}
}

// A scan as of a snapshot reads a chunk of each row for the one version that is its answer. It holds the answer alone, and few
// chunks are under way at once; there are no more requests than rows. Not parallel: it measures the memory of the process.
func TestScanAsOfHoldsItsAnswer(t *testing.T) {
	const rows = 80
	s, w := weighedStore(t)
	for i := range rows {
		deepRow(t, s, w, fmt.Sprintf("%03d", i), 1)
	}
	w.counted()
	w.bytes.Store(0)
	base, before := liveBytes(), int64(0)
	n, held, ahead := 0, int64(0), int64(0)
	for row, err := range s.Scan(t.Context(), rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{{Family: rowstore.Write, To: 100, Limit: 1}}}) {
		require.NoError(t, err)
		require.Len(t, row.Versions, 1)
		require.Equal(t, rowstore.Timestamp(100), row.Versions[0].TS)
		require.Len(t, row.Versions[0].Value, 500)
		ahead, before = max(ahead, w.bytes.Load()-before), w.bytes.Load()
		held = max(held, liveBytes()-base)
		n++
	}
	require.Equal(t, rows, n)
	require.LessOrEqual(t, ahead, int64(batchBytes+2*deepChunk), "chunks read at once")
	require.Less(t, held, int64(2<<20), "bytes held")
	calls := w.counted()
	require.LessOrEqual(t, calls["get"]+calls["batchGet"], rows, "%v", calls)
	require.LessOrEqual(t, calls["scan"], 4, "%v", calls)
}

// Rows whose history the picks do not need are answered as rows without one: no chunk is read.
func TestScanOfNewestReadsNoChunk(t *testing.T) {
	t.Parallel()
	s, w := weighedStore(t)
	for i := range 30 {
		row := fmt.Sprintf("%03d", i)
		deepRow(t, s, w, row, 1)
		put(t, s, row, rowstore.Put(rowstore.Write, "c", 1000, []byte("new")), rowstore.Put(rowstore.Write, "d", 1000, nil))
	}
	s.clean.idle()
	w.counted()
	n := 0
	for row, err := range s.Scan(t.Context(), rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{{Family: rowstore.Write, To: 1 << 40, Limit: 1}}}) {
		require.NoError(t, err)
		require.Len(t, row.Versions, 2)
		require.Equal(t, "new", string(row.Versions[0].Value))
		n++
	}
	require.Equal(t, 30, n)
	require.Equal(t, map[string]int{"scan": 2}, w.counted())
}
