package format

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/percolate-go/percolate/percolator/oracle"
)

// ShortValue is the longest value that travels inside Lock and Write, in bytes. A longer
// one goes to Data at the start timestamp.
const ShortValue = 255

// Kind says what a transaction does to a cell.
type Kind byte

// The kinds.
const (
	KindPut    Kind = 1
	KindDelete Kind = 2
	KindLock   Kind = 3 // lock only: GetForUpdate
)

// String names the kind.
func (k Kind) String() string {
	switch k {
	case KindPut:
		return "put"
	case KindDelete:
		return "delete"
	case KindLock:
		return "lock only"
	}
	return fmt.Sprintf("kind %d", byte(k))
}

const (
	flagKind    = 0x03
	flagNotify  = 0x04 // lock: a notification goes with the commit
	flagLong    = 0x08 // the value is in Data
	flagCascade = 0x10 // lock that notifies: a cascade stands before the value
	flagAll     = flagKind | flagNotify | flagLong | flagCascade
)

// Lock is the content of a Lock version, whose timestamp is the start.
type Lock struct {
	Kind    Kind
	Notify  bool      // a notification goes with the commit
	Long    bool      // the value is in Data
	Expiry  Timestamp // of a primary's lock
	Session string    // of the process that holds it
	Primary Cell      // stored names
	Cascade []byte    // of one that notifies: an encoded Cascade, nil for none. The notification gets it
	Value   []byte    // of a put that is not long
}

// Encode returns the stored bytes.
func (l *Lock) Encode() []byte {
	cascades := l.Notify && len(l.Cascade) > 0
	size := 2 + 10 + 4*4 + len(l.Session) + len(l.Primary.Table) + len(l.Primary.Row) + len(l.Primary.Column) + len(l.Value)
	if cascades {
		size += 1 + len(l.Cascade)
	}
	b := make([]byte, 0, size)
	flags := byte(l.Kind)
	if l.Notify {
		flags |= flagNotify
	}
	if l.Long {
		flags |= flagLong
	}
	if cascades {
		flags |= flagCascade
	}
	b = append(b, Version, flags)
	b = binary.AppendUvarint(b, uint64(l.Expiry))
	b = appendString(b, l.Session)
	b = appendString(b, l.Primary.Table)
	b = appendString(b, l.Primary.Row)
	b = appendString(b, l.Primary.Column)
	if cascades {
		b = append(binary.AppendUvarint(b, uint64(len(l.Cascade))), l.Cascade...)
	}
	return append(b, l.Value...)
}

// DecodeLock undoes Lock.Encode. An error matches ErrCorrupt or
// rowstore.ErrFormat.
func DecodeLock(b []byte) (Lock, error) {
	var l Lock
	flags, rest, err := decodeHead(b, "lock")
	if err != nil {
		return l, err
	}
	l.Kind, l.Notify, l.Long = Kind(flags&flagKind), flags&flagNotify != 0, flags&flagLong != 0
	expiry, n := binary.Uvarint(rest)
	if n <= 0 {
		return l, fmt.Errorf("%w: lock: bad expiry", ErrCorrupt)
	}
	l.Expiry, rest = Timestamp(expiry), rest[n:]
	for _, s := range []*string{&l.Session, &l.Primary.Table, &l.Primary.Row, &l.Primary.Column} {
		if *s, rest, err = takeString(rest); err != nil {
			return l, fmt.Errorf("%w: lock: bad string", ErrCorrupt)
		}
	}
	if l.Primary.Table == "" || l.Primary.Row == "" || l.Primary.Column == "" {
		return l, fmt.Errorf("%w: lock: no primary", ErrCorrupt)
	}
	if flags&flagCascade != 0 {
		if l.Cascade, rest, err = takeCascade(rest); err != nil || !l.Notify {
			return l, fmt.Errorf("%w: lock: bad cascade", ErrCorrupt)
		}
	}
	if len(rest) > ShortValue || (len(rest) > 0 && (l.Long || l.Kind != KindPut)) || (l.Long && l.Kind != KindPut) {
		return l, fmt.Errorf("%w: lock: bad value", ErrCorrupt)
	}
	l.Value = rest
	return l, nil
}

// Write is the content of a Write version, whose timestamp is the commit.
type Write struct {
	Kind  Kind // put or delete
	Long  bool // the value is in Data
	Start Timestamp
	Value []byte // of a put that is not long
}

// Encode returns the stored bytes.
func (w *Write) Encode() []byte {
	b := make([]byte, 0, 10+len(w.Value))
	flags := byte(w.Kind)
	if w.Long {
		flags |= flagLong
	}
	b = append(b, Version, flags)
	b = binary.BigEndian.AppendUint64(b, uint64(w.Start))
	return append(b, w.Value...)
}

// DecodeWrite undoes Write.Encode. An error matches ErrCorrupt or
// rowstore.ErrFormat.
func DecodeWrite(b []byte) (Write, error) {
	var w Write
	flags, rest, err := decodeHead(b, "write")
	if err != nil {
		return w, err
	}
	w.Kind, w.Long = Kind(flags&flagKind), flags&flagLong != 0
	if w.Kind == KindLock || flags&(flagNotify|flagCascade) != 0 || len(rest) < 8 {
		return w, fmt.Errorf("%w: write: bad head", ErrCorrupt)
	}
	w.Start, w.Value = Timestamp(binary.BigEndian.Uint64(rest)), rest[8:]
	if len(w.Value) > ShortValue || (len(w.Value) > 0 && (w.Long || w.Kind != KindPut)) || (w.Long && w.Kind != KindPut) {
		return w, fmt.Errorf("%w: write: bad value", ErrCorrupt)
	}
	return w, nil
}

func decodeHead(b []byte, what string) (flags byte, rest []byte, err error) {
	if err := checkVersion(b, what); err != nil {
		return 0, nil, err
	}
	if len(b) < 2 {
		return 0, nil, fmt.Errorf("%w: %s: %d bytes", ErrCorrupt, what, len(b))
	}
	if b[1]&^flagAll != 0 || b[1]&flagKind == 0 {
		return 0, nil, fmt.Errorf("%w: %s: flags %#x", ErrCorrupt, what, b[1])
	}
	return b[1], b[2:], nil
}

// NotifyKind tells notifications apart.
type NotifyKind byte

// The kinds of notifications.
const (
	NotifyStrong NotifyKind = 1 // goes with a write
	NotifyWeak   NotifyKind = 2 // stands for itself: Txn.Notify
)

// The stored bytes of notifications that carry no cascade. They must not be changed.
var (
	StrongNotification = []byte{Version, byte(NotifyStrong)}
	WeakNotification   = []byte{Version, byte(NotifyWeak)}
)

// EncodeMark returns the mark that a transaction leaves when it commits a cell that it
// only locked. It names the start timestamp, which must not be 0. The mark of a roll back, or of a fence, stands at the
// start timestamp itself and has no value.
func EncodeMark(start Timestamp) []byte {
	return binary.BigEndian.AppendUint64([]byte{Version}, uint64(start))
}

// DecodeMark undoes EncodeMark. It returns 0 for a mark that names no start timestamp.
// An error matches ErrCorrupt or
// rowstore.ErrFormat.
func DecodeMark(b []byte) (start Timestamp, err error) {
	if len(b) == 0 {
		return 0, nil
	}
	if err := checkVersion(b, "mark"); err != nil {
		return 0, err
	}
	if len(b) == 9 {
		start = Timestamp(binary.BigEndian.Uint64(b[1:]))
	}
	if start == 0 {
		return 0, fmt.Errorf("%w: mark %x", ErrCorrupt, b)
	}
	return start, nil
}

// EncodeAck returns the acknowledgment of a run that began at start.
func EncodeAck(start Timestamp) []byte {
	return binary.BigEndian.AppendUint64([]byte{Version}, uint64(start))
}

// DecodeAck undoes EncodeAck. An error matches ErrCorrupt or
// rowstore.ErrFormat.
func DecodeAck(b []byte) (Timestamp, error) {
	if err := checkVersion(b, "acknowledgment"); err != nil {
		return 0, err
	}
	if len(b) != 9 {
		return 0, fmt.Errorf("%w: acknowledgment %x", ErrCorrupt, b)
	}
	return Timestamp(binary.BigEndian.Uint64(b[1:])), nil
}

// Failure is stored beside a cell, for an observer whose function failed for the
// cell's newest change. A parked one counts as covering that change.
type Failure struct {
	Change    Timestamp
	Attempts  int
	Parked    bool
	NotBefore Timestamp // of the next attempt
	// Replay asks for a run whatever the observer has acknowledged: DB.Replay. It goes with the record, which the
	// run that takes effect removes. A parked run has had its attempts. Programs that know only catalogs of version
	// 6 take such a record for damaged.
	Replay bool
}

const (
	failureParked = 1
	failureReplay = 2
)

// Encode returns the stored bytes.
func (f *Failure) Encode() []byte {
	b := []byte{Version, 0}
	if f.Parked {
		b[1] |= failureParked
	}
	if f.Replay {
		b[1] |= failureReplay
	}
	b = binary.AppendUvarint(b, uint64(f.Change))
	b = binary.AppendUvarint(b, uint64(f.NotBefore))
	return binary.AppendUvarint(b, uint64(max(f.Attempts, 0)))
}

// DecodeFailure undoes Failure.Encode. An error matches ErrCorrupt or
// rowstore.ErrFormat.
func DecodeFailure(b []byte) (Failure, error) {
	var f Failure
	if err := checkVersion(b, "failure record"); err != nil {
		return f, err
	}
	if len(b) < 2 || b[1] > failureParked|failureReplay {
		return f, fmt.Errorf("%w: failure record: bad head", ErrCorrupt)
	}
	f.Parked, f.Replay = b[1]&failureParked != 0, b[1]&failureReplay != 0
	rest := b[2:]
	var n [3]uint64
	for i := range n {
		v, w := binary.Uvarint(rest)
		if w <= 0 {
			return f, fmt.Errorf("%w: failure record: bad number", ErrCorrupt)
		}
		n[i], rest = v, rest[w:]
	}
	if len(rest) > 0 || n[0] > uint64(oracle.Max) || n[1] > uint64(oracle.Max) || n[2] > math.MaxInt32 {
		return f, fmt.Errorf("%w: failure record: out of range", ErrCorrupt)
	}
	f.Change, f.NotBefore, f.Attempts = Timestamp(n[0]), Timestamp(n[1]), int(n[2])
	return f, nil
}

func appendString(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

func takeString(b []byte) (string, []byte, error) {
	n, w := binary.Uvarint(b)
	if w <= 0 || n > uint64(len(b)-w) {
		return "", nil, ErrCorrupt
	}
	return string(b[w : w+int(n)]), b[w+int(n):], nil //nolint:gosec // n is at most len(b)
}

// takeCascade takes an encoded cascade and its length off the front of b, and checks it.
func takeCascade(b []byte) (cascade, rest []byte, err error) {
	n, w := binary.Uvarint(b)
	if w != 1 || n > uint64(len(b)-w) {
		return nil, nil, ErrCorrupt
	}
	cascade, rest = b[w:w+int(n)], b[w+int(n):] //nolint:gosec // n is at most len(b)
	_, err = DecodeCascade(cascade)
	return cascade, rest, err
}
