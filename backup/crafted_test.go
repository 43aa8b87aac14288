package backup

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// crafted writes a backup that begins as a real one does, and goes on with a frame whose sum is right, as whoever may write the file can.
func crafted(t *testing.T, frame func(last sum) []byte) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "backup")
	_, err := Write(t.Context(), percolatetest.Open(t), path, Options{})
	require.NoError(t, err)
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	r, err := newReader(bytes.NewReader(file))
	require.NoError(t, err)
	defer r.close()
	_, err = r.begin()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, append(file[:r.at:r.at], frame(r.last)...), 0o600))
	return path
}

// compressed is what a frame keeps of raw.
func compressed(t *testing.T, raw []byte) []byte {
	t.Helper()
	e, err := zstd.NewWriter(nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Close()) }()
	return e.EncodeAll(raw, nil)
}

// zeros is how many of them a crafted block has. They compress to little.
const zeros = 8 << 20

// claims are frames of small files that claim to hold much.
func claims(t *testing.T) map[string]func(last sum) []byte {
	t.Helper()
	block := func(versions uint64) []byte {
		b := appendBytes([]byte{phaseRows}, "t")
		b = appendBytes(append(b, 1, 1, 1), "row")
		return append(binary.AppendUvarint(b, versions), make([]byte, zeros)...)
	}
	data := func(last sum, payload []byte, rawLength int) []byte {
		frame, _ := encodeFrame(last, frameData, payload, rawLength)
		return frame
	}
	return map[string]func(last sum) []byte{
		"as many versions as bytes": func(last sum) []byte {
			raw := block(zeros)
			return data(last, compressed(t, raw), len(raw))
		},
		"as many versions as fit": func(last sum) []byte {
			raw := block(zeros / 5)
			return data(last, compressed(t, raw), len(raw))
		},
		"a frame that is longer than the file": func(sum) []byte {
			b := binary.BigEndian.AppendUint32([]byte{frameData}, mostFrame)
			b = binary.BigEndian.AppendUint32(b, mostFrame)
			b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
			return append(b, make([]byte, 1000)...)
		},
		"more than can come of a payload": func(last sum) []byte { return data(last, compressed(t, block(1)), mostFrame) },
		"a payload that says that more comes of it": func(last sum) []byte {
			raw := block(1)
			size := func(n int) []byte { return binary.LittleEndian.AppendUint32(nil, uint32(n)) } //nolint:gosec // at most mostFrame
			payload := compressed(t, raw)
			require.Contains(t, string(payload[:16]), string(size(len(raw))))
			return data(last, bytes.Replace(payload, size(len(raw)), size(mostFrame), 1), len(raw))
		},
	}
}

// TestCraftedFilesTakeLittle looks at what is allocated for files that claim to hold much: it goes by what is there. No other test runs meanwhile, since
// what all of the process allocate is counted.
func TestCraftedFilesTakeLittle(t *testing.T) {
	for name, frame := range claims(t) {
		path := crafted(t, frame)
		for what, call := range map[string]func() error{
			"Verify": func() error { _, err := Verify(t.Context(), path, nil); return err },
			"Restore": func() error {
				store := memstore.New()
				_, err := Restore(t.Context(), store, path, RestoreOptions{})
				require.NoError(t, store.Close())
				return err
			},
		} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := call()
			runtime.ReadMemStats(&after)
			if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrIncomplete) {
				t.Errorf("%s: %s: %v", what, name, err)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > 4*zeros {
				t.Errorf("%s: %s: %d MiB were allocated", what, name, took>>20)
			}
		}
	}
}

// TestMostThatCompressesIsRead has a block that compresses as well as any can.
func TestMostThatCompressesIsRead(t *testing.T) {
	t.Parallel()
	raw := make([]byte, 64<<20)
	payload := compressed(t, raw)
	frame, _ := encodeFrame(sum{}, frameData, payload, len(raw))
	r, err := newReader(bytes.NewReader(frame))
	require.NoError(t, err)
	defer r.close()
	_, got, err := r.next()
	require.NoError(t, err)
	require.True(t, bytes.Equal(raw, got))
}
