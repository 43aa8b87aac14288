package percolator

import (
	"encoding/binary"
	"fmt"
)

// Each stored record begins with a version byte, so that a later format can be told
// from this one. A user's value in Data is not a record and has no version byte; nor
// has the empty mark of a roll back. Decoders accept any bytes and return an error for
// garbage.
const formatVersion = 1

// shortValue is the longest value that travels inside Lock and Write; a longer
// one goes to Data at the start timestamp (design: 255 bytes).
const shortValue = 255

type kind byte

const (
	kindPut    kind = 1
	kindDelete kind = 2
	kindLock   kind = 3 // lock only: GetForUpdate
)

func (k kind) String() string {
	switch k {
	case kindPut:
		return "put"
	case kindDelete:
		return "delete"
	case kindLock:
		return "lock only"
	}
	return fmt.Sprintf("kind %d", byte(k))
}

const (
	flagKind   = 0x03
	flagNotify = 0x04 // lock: a notification goes with the commit
	flagLong   = 0x08 // the value is in Data
	flagAll    = flagKind | flagNotify | flagLong
)

// lockValue is the content of a Lock version, whose timestamp is the start.
type lockValue struct {
	kind    kind
	notify  bool
	long    bool
	expiry  Timestamp
	session string
	primary Cell // stored names
	value   []byte
}

func (l *lockValue) encode() []byte {
	b := make([]byte, 0, 2+10+4*4+len(l.session)+len(l.primary.Table)+len(l.primary.Row)+len(l.primary.Column)+len(l.value))
	flags := byte(l.kind)
	if l.notify {
		flags |= flagNotify
	}
	if l.long {
		flags |= flagLong
	}
	b = append(b, formatVersion, flags)
	b = binary.AppendUvarint(b, uint64(l.expiry))
	b = appendString(b, l.session)
	b = appendString(b, l.primary.Table)
	b = appendString(b, l.primary.Row)
	b = appendString(b, l.primary.Column)
	return append(b, l.value...)
}

func decodeLock(b []byte) (lockValue, error) {
	var l lockValue
	flags, rest, err := decodeHead(b, "lock")
	if err != nil {
		return l, err
	}
	l.kind, l.notify, l.long = kind(flags&flagKind), flags&flagNotify != 0, flags&flagLong != 0
	expiry, n := binary.Uvarint(rest)
	if n <= 0 {
		return l, fmt.Errorf("%w: lock: bad expiry", ErrCorrupt)
	}
	l.expiry, rest = Timestamp(expiry), rest[n:]
	for _, s := range []*string{&l.session, &l.primary.Table, &l.primary.Row, &l.primary.Column} {
		if *s, rest, err = takeString(rest); err != nil {
			return l, fmt.Errorf("%w: lock: bad string", ErrCorrupt)
		}
	}
	if l.primary.Table == "" || l.primary.Row == "" || l.primary.Column == "" {
		return l, fmt.Errorf("%w: lock: no primary", ErrCorrupt)
	}
	if len(rest) > shortValue || (len(rest) > 0 && (l.long || l.kind != kindPut)) || (l.long && l.kind != kindPut) {
		return l, fmt.Errorf("%w: lock: bad value", ErrCorrupt)
	}
	l.value = rest
	return l, nil
}

// writeValue is the content of a Write version, whose timestamp is the commit.
type writeValue struct {
	kind  kind // put or delete
	long  bool
	start Timestamp
	value []byte
}

func (w *writeValue) encode() []byte {
	b := make([]byte, 0, 10+len(w.value))
	flags := byte(w.kind)
	if w.long {
		flags |= flagLong
	}
	b = append(b, formatVersion, flags)
	b = binary.BigEndian.AppendUint64(b, uint64(w.start))
	return append(b, w.value...)
}

func decodeWrite(b []byte) (writeValue, error) {
	var w writeValue
	flags, rest, err := decodeHead(b, "write")
	if err != nil {
		return w, err
	}
	w.kind, w.long = kind(flags&flagKind), flags&flagLong != 0
	if w.kind == kindLock || flags&flagNotify != 0 || len(rest) < 8 {
		return w, fmt.Errorf("%w: write: bad head", ErrCorrupt)
	}
	w.start, w.value = Timestamp(binary.BigEndian.Uint64(rest)), rest[8:]
	if len(w.value) > shortValue || (len(w.value) > 0 && (w.long || w.kind != kindPut)) || (w.long && w.kind != kindPut) {
		return w, fmt.Errorf("%w: write: bad value", ErrCorrupt)
	}
	return w, nil
}

func decodeHead(b []byte, what string) (flags byte, rest []byte, err error) {
	if len(b) < 2 {
		return 0, nil, fmt.Errorf("%w: %s: %d bytes", ErrCorrupt, what, len(b))
	}
	if b[0] != formatVersion {
		return 0, nil, fmt.Errorf("%w: %s: format version %d, this library knows %d", ErrCorrupt, what, b[0], formatVersion)
	}
	if b[1]&^flagAll != 0 || b[1]&flagKind == 0 {
		return 0, nil, fmt.Errorf("%w: %s: flags %#x", ErrCorrupt, what, b[1])
	}
	return b[1], b[2:], nil
}

type notifyKind byte

const (
	notifyStrong notifyKind = 1
	notifyWeak   notifyKind = 2
)

var (
	strongValue = []byte{formatVersion, byte(notifyStrong)}
	weakValue   = []byte{formatVersion, byte(notifyWeak)}
)

func decodeNotify(b []byte) (notifyKind, error) {
	if len(b) != 2 || b[0] != formatVersion || (b[1] != byte(notifyStrong) && b[1] != byte(notifyWeak)) {
		return 0, fmt.Errorf("%w: notification %x", ErrCorrupt, b)
	}
	return notifyKind(b[1]), nil
}

// When a transaction commits a cell that it only locked, it leaves a mark there that
// names its start timestamp. The mark of a roll back, or of a fence, stands at the
// start timestamp itself and has no value.
func encodeMark(start Timestamp) []byte {
	return binary.BigEndian.AppendUint64([]byte{formatVersion}, uint64(start))
}

// decodeMark returns 0 for a mark that names no start timestamp.
func decodeMark(b []byte) (start Timestamp, err error) {
	if len(b) == 0 {
		return 0, nil
	}
	if len(b) == 9 && b[0] == formatVersion {
		start = Timestamp(binary.BigEndian.Uint64(b[1:]))
	}
	if start == 0 {
		return 0, fmt.Errorf("%w: mark %x", ErrCorrupt, b)
	}
	return start, nil
}

// An acknowledgment is the start timestamp of the run that made it.
func encodeAck(start Timestamp) []byte {
	return binary.BigEndian.AppendUint64([]byte{formatVersion}, uint64(start))
}

func decodeAck(b []byte) (Timestamp, error) {
	if len(b) != 9 || b[0] != formatVersion {
		return 0, fmt.Errorf("%w: acknowledgment %x", ErrCorrupt, b)
	}
	return Timestamp(binary.BigEndian.Uint64(b[1:])), nil
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
