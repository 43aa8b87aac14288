package tikvraw

import (
	"context"
	"errors"
	"fmt"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// sizes are the bounds of a row's parts; tests make them small.
type sizes struct {
	// head is what a head may grow to, in bytes, before older versions move out.
	head int
	// chunk is the greatest size of a chunk.
	chunk int
	// entry is the greatest size of a key and its value together.
	entry int
	// names is how much of the memory the names take that a scan gathers; see nameWalk.
	names int
}

// Small heads make every swap cheaper, since it carries the head twice, and keep a page of
// a scan below what TiKV sends in one answer. Larger heads move versions out less often.
const (
	headSize  = 16 << 10
	chunkSize = 256 << 10
)

// errMoved says that a key that a head points to is gone, because the head was
// changed meanwhile: read the row again.
var errMoved = errors.New("the row was changed meanwhile")

// row is a head as it was at one moment, and the chunks of it that were loaded.
type row struct {
	*head
	key []byte // of the head
	raw []byte // the head's bytes, nil if it is absent
	// table and name are the row's, if it is to be changed.
	table, name string
	chunks      map[uint64][]entry
	// fetch gets side keys of this row, or errMoved.
	fetch func(ctx context.Context, keys [][]byte) ([][]byte, error)
	keys  keyspace
}

// decodeRow makes a row of a head's bytes.
func (s *Store) decodeRow(key, raw []byte) (*row, error) {
	h, err := decodeHead(raw)
	if err != nil {
		return nil, fmt.Errorf("%w (key %q)", err, key)
	}
	return &row{head: h, key: key, raw: raw, fetch: s.fetch, keys: s.keys}, nil
}

// fetch gets keys that a head points to.
func (s *Store) fetch(ctx context.Context, keys [][]byte) ([][]byte, error) {
	values, err := s.getAll(ctx, keys)
	if err != nil {
		return nil, err
	}
	for _, v := range values {
		if v == nil {
			return nil, errMoved
		}
	}
	return values, nil
}

// load returns the versions of a chunk. They must not be changed.
func (r *row) load(ctx context.Context, c chunk) ([]entry, error) {
	if _, ok := r.chunks[c.id]; !ok {
		if err := r.loadAll(ctx, []chunk{c}); err != nil {
			return nil, err
		}
	}
	return r.chunks[c.id], nil
}

// loadAll gets chunks that will be asked for, several with one request.
func (r *row) loadAll(ctx context.Context, chunks []chunk) error {
	var want []chunk
	seen := map[uint64]bool{}
	for _, c := range chunks {
		if _, ok := r.chunks[c.id]; !ok && !seen[c.id] {
			seen[c.id] = true
			want = append(want, c)
		}
	}
	for len(want) > 0 {
		n, size := 0, 0
		for n < len(want) && n < batchKeys && (n == 0 || size+want[n].size <= batchBytes) {
			size += want[n].size
			n++
		}
		if err := r.loadSome(ctx, want[:n]); err != nil {
			return err
		}
		want = want[n:]
	}
	return nil
}

func (r *row) loadSome(ctx context.Context, chunks []chunk) error {
	keys := make([][]byte, len(chunks))
	for i, c := range chunks {
		keys[i] = r.keys.side(r.key, c.id, kindChunk)
	}
	values, err := r.fetch(ctx, keys)
	if err != nil {
		return err
	}
	for i, c := range chunks {
		entries, err := decodeChunk(values[i], c.family, c.column)
		if err == nil && (entries[0].ts != c.hi || entries[len(entries)-1].ts != c.lo) {
			err = fmt.Errorf("%w: a chunk of another range", rowstore.ErrCorrupt)
		}
		if err != nil {
			return fmt.Errorf("%w (key %q)", err, keys[i])
		}
		if r.chunks == nil {
			r.chunks = map[uint64][]entry{}
		}
		r.chunks[c.id] = entries
	}
	return nil
}
