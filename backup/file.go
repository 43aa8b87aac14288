package backup

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
)

// The file: a head, and frames. A frame has a head of its own and a payload, compressed if its kind is data. Each frame's
// sum is that of the frame before, of the frame's head and of the payload. So the sum of the last one is of
// all, and a frame that is missing, or in another place, is found too. The sum of the frame's head alone tells a length that
// was damaged from a file that ends too early.

// magic begins each backup. The byte that follows it is the version.
const magic = "percolate backup\n"

const fileVersion = 1

const (
	frameHead  = 'h' // a Head, the first one
	frameData  = 'd' // a block
	frameEnd   = 'e' // an ending, the last one
	sumLength  = 16
	headLength = 1 + 4 + 4 + 4 + sumLength // kind, length, length of what is compressed, their sum, the sum
	// mostFrame bounds a frame, so that a damaged length does not take all memory. A row is in one frame.
	mostFrame = 1 << 30
	// mostRatio bounds what may come of each byte of a payload: a block of zstd takes four bytes, and at most 128 KiB come of it.
	mostRatio = 128 << 10 / 4
	// firstRoom is what is made room for before a byte of a payload was read.
	firstRoom = 4 << 20
	// mostBlock bounds what is put into a frame: compression makes what it cannot shrink a little longer.
	mostBlock = mostFrame - 1<<20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type sum [sumLength]byte

// head is what a backup says of itself.
type head struct {
	// ID is of this backup alone.
	ID string `json:"id"`
	// Snapshot is the timestamp that the backup is of.
	Snapshot percolator.Timestamp `json:"snapshot"`
	// Oracle is the name of the database's oracle, empty for the store's own.
	Oracle string `json:"oracle,omitempty"`
	// Catalog is the stored catalog of the snapshot.
	Catalog []byte `json:"catalog"`
	// Revision is its timestamp.
	Revision percolator.Timestamp `json:"revision"`
}

// ending is the content of the last frame.
type ending struct {
	Rows  int64 `json:"rows"`
	Cells int64 `json:"cells"`
	// Resweep names the observers, by their Since, that were removed while the backup ran.
	Resweep []percolator.Timestamp `json:"resweep,omitempty"`
}

func encodeFrame(before sum, kind byte, payload []byte, rawLength int) ([]byte, sum) {
	b := make([]byte, 0, headLength+len(payload))
	b = append(b, kind)
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload))) //nolint:gosec // at most mostFrame
	b = binary.BigEndian.AppendUint32(b, uint32(rawLength))    //nolint:gosec // at most mostFrame
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	s := chain(before, b, payload)
	b = append(b, s[:]...)
	return append(b, payload...), s
}

func chain(before sum, head, payload []byte) (s sum) {
	h := sha256.New()
	h.Write(before[:])
	h.Write(head)
	h.Write(payload)
	copy(s[:], h.Sum(nil))
	return s
}

// reader reads a backup, frame by frame, and checks it.
type reader struct {
	r      *bufio.Reader
	zstd   *zstd.Decoder
	at     int64 // bytes of whole frames that were read
	last   sum
	frames int64
}

func newReader(r io.Reader) (*reader, error) {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(mostFrame), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		return nil, fmt.Errorf("backup: preparing to decompress: %w", err)
	}
	return &reader{r: bufio.NewReaderSize(r, 1<<16), zstd: d}, nil
}

func (r *reader) close() { r.zstd.Close() }

// begin reads the head of the file.
func (r *reader) begin() (head, error) {
	var h head
	start := make([]byte, len(magic)+1)
	n, err := io.ReadFull(r.r, start)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return h, fmt.Errorf("backup: reading the file: %w", err)
	}
	switch got := start[:n]; {
	case n > 0 && n < len(start) && bytes.HasPrefix([]byte(magic), got):
		return h, fmt.Errorf("%w: it has %d bytes", ErrIncomplete, n)
	case n < len(start), string(got[:len(magic)]) != magic:
		if n == len(start) && differs(got[:len(magic)], magic) <= 2 {
			return h, fmt.Errorf("%w: in its first %d bytes", ErrDamaged, len(magic))
		}
		return h, fmt.Errorf("backup: %w: the file is no backup of this library", percolator.ErrFormat)
	case got[len(magic)] > fileVersion:
		return h, fmt.Errorf("backup: %w: a newer version of this library wrote the backup (version %d, this one knows %d), or its byte %d is damaged; upgrade this program",
			percolator.ErrFormat, got[len(magic)], fileVersion, len(magic))
	case got[len(magic)] != fileVersion:
		return h, fmt.Errorf("%w: version %d", ErrDamaged, got[len(magic)])
	}
	r.at = int64(len(start))
	kind, b, err := r.next()
	if err != nil {
		return h, err
	}
	if kind != frameHead {
		return h, fmt.Errorf("%w: it has no head", ErrDamaged)
	}
	if err := json.Unmarshal(b, &h); err != nil || h.ID == "" || h.Snapshot == 0 || h.Snapshot >= oracle.Max {
		return h, fmt.Errorf("%w: its head does not decode", ErrDamaged)
	}
	return h, nil
}

// differs counts the bits in which two texts of the same length differ.
func differs(a []byte, b string) (bits int) {
	for i := range a {
		for x := a[i] ^ b[i]; x != 0; x &= x - 1 {
			bits++
		}
	}
	return bits
}

// next reads a frame. After the last one it makes sure that nothing follows.
func (r *reader) next() (kind byte, payload []byte, err error) {
	var head [headLength]byte
	if err := r.full(head[:]); err != nil {
		return 0, nil, err
	}
	const summed = headLength - sumLength - 4
	length, raw := binary.BigEndian.Uint32(head[1:]), binary.BigEndian.Uint32(head[5:])
	if crc32.Checksum(head[:summed], castagnoli) != binary.BigEndian.Uint32(head[summed:]) || length > mostFrame || raw > mostFrame {
		return 0, nil, r.damaged()
	}
	b, err := r.payload(int(length))
	if err != nil {
		return 0, nil, err
	}
	s := chain(r.last, head[:headLength-sumLength], b)
	if !bytes.Equal(s[:], head[headLength-sumLength:]) {
		return 0, nil, r.damaged()
	}
	kind = head[0]
	if kind == frameData {
		// The sums are right, and yet who made the file may lie. What is made room for goes by the payload, of which no more may come than raw.
		if uint64(raw) > mostRatio*uint64(length) {
			return 0, nil, r.damaged()
		}
		if b, err = r.zstd.DecodeAll(b, make([]byte, 0, raw)); err != nil || len(b) != int(raw) {
			return 0, nil, r.damaged()
		}
	}
	if kind == frameEnd {
		if _, err := r.r.ReadByte(); !errors.Is(err, io.EOF) {
			return 0, nil, fmt.Errorf("%w: something follows its end, which is at byte %d", ErrDamaged, r.at+headLength+int64(length))
		}
	}
	r.at += headLength + int64(length)
	r.last = s
	r.frames++
	return kind, b, nil
}

// payload reads so many bytes. It makes room for twice of what is there, and not for what a length claims.
func (r *reader) payload(length int) ([]byte, error) {
	b := make([]byte, min(length, firstRoom))
	for read := 0; ; read = len(b) {
		if err := r.full(b[read:]); err != nil {
			return nil, err
		}
		if len(b) == length {
			return b, nil
		}
		b = append(b, make([]byte, min(len(b), length-len(b)))...)
	}
}

func (r *reader) full(b []byte) error {
	switch _, err := io.ReadFull(r.r, b); {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: it ends in frame %d, which begins at byte %d", ErrIncomplete, r.frames, r.at)
	case err != nil:
		return fmt.Errorf("backup: reading the file at byte %d: %w", r.at, err)
	}
	return nil
}

func (r *reader) damaged() error {
	return fmt.Errorf("%w: in frame %d, which begins at byte %d", ErrDamaged, r.frames, r.at)
}

func decodeEnding(b []byte) (ending, error) {
	var e ending
	if err := json.Unmarshal(b, &e); err != nil {
		return e, fmt.Errorf("%w: its end does not decode", ErrDamaged)
	}
	return e, nil
}

// frames writes frames.
type frames struct {
	w    io.Writer
	zstd *zstd.Encoder
	last sum
	at   int64
}

func newFrames(w io.Writer) (*frames, error) {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false))
	if err != nil {
		return nil, fmt.Errorf("backup: preparing to compress: %w", err)
	}
	return &frames{w: w, zstd: e}, nil
}

// begin writes the head of the file.
func (f *frames) begin(h head) error {
	b, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("backup: encoding the head: %w", err)
	}
	start := append([]byte(magic), fileVersion)
	frame, s := encodeFrame(f.last, frameHead, b, len(b))
	return f.write(append(start, frame...), s)
}

func (f *frames) data(raw []byte) error {
	frame, s := encodeFrame(f.last, frameData, f.zstd.EncodeAll(raw, nil), len(raw))
	return f.write(frame, s)
}

func (f *frames) end(e ending) error {
	b, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("backup: encoding the end: %w", err)
	}
	frame, s := encodeFrame(f.last, frameEnd, b, len(b))
	return f.write(frame, s)
}

func (f *frames) write(b []byte, s sum) error {
	if _, err := f.w.Write(b); err != nil {
		return err
	}
	f.last = s
	f.at += int64(len(b))
	return nil
}
