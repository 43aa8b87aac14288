package format

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Cascade says how a change came about. A lock that notifies and a notification carry it, in bytes that stand behind a flag.
// Only the catalog of CascadesVersion allows it: older programs take such records for damaged.
type Cascade struct {
	// Hops is how many runs of observers lie between a write from outside and the change.
	Hops int
	// Span is that of the transaction. The zero Span stands for none: it is stored only if it is sampled.
	Span Span
}

// Span names a span of a trace, as the header traceparent of W3C Trace Context does. Neither ID of a span is zero.
type Span struct {
	Trace [16]byte
	ID    [8]byte
	Flags byte
}

const (
	// MaxHops is the greatest number of hops that is stored.
	MaxHops = math.MaxInt32
	// spanBytes is the length of a stored span.
	spanBytes = 16 + 8 + 1
	// MaxCascade is the length of the longest stored cascade.
	MaxCascade = binary.MaxVarintLen32 + spanBytes
)

func (s *Span) valid() bool { return s.Trace != [16]byte{} && s.ID != [8]byte{} }

// Encode returns the stored bytes: nil for a cascade that says nothing, which is not stored. Hops over MaxHops are stored as that,
// and a Span without both IDs is left out.
func (c Cascade) Encode() []byte {
	spanned := c.Span.valid()
	if c.Hops <= 0 && !spanned {
		return nil
	}
	b := binary.AppendUvarint(make([]byte, 0, MaxCascade), uint64(min(max(c.Hops, 0), MaxHops))) //nolint:gosec // not negative
	if spanned {
		b = append(b, c.Span.Trace[:]...)
		b = append(b, c.Span.ID[:]...)
		b = append(b, c.Span.Flags)
	}
	return b
}

// DecodeCascade undoes Cascade.Encode. An error matches ErrCorrupt.
func DecodeCascade(b []byte) (Cascade, error) {
	var c Cascade
	hops, n := binary.Uvarint(b)
	// Each cascade has one form, so a number has no needless bytes.
	if n <= 0 || hops > MaxHops || n > 1 && b[n-1] == 0 {
		return c, fmt.Errorf("%w: cascade: bad number", ErrCorrupt)
	}
	c.Hops = int(hops) //nolint:gosec // at most MaxHops
	switch rest := b[n:]; len(rest) {
	case 0:
		if c.Hops == 0 {
			return c, fmt.Errorf("%w: cascade: it says nothing", ErrCorrupt)
		}
	case spanBytes:
		copy(c.Span.Trace[:], rest)
		copy(c.Span.ID[:], rest[16:])
		if c.Span.Flags = rest[24]; !c.Span.valid() {
			return c, fmt.Errorf("%w: cascade: bad span", ErrCorrupt)
		}
	default:
		return c, fmt.Errorf("%w: cascade: %d bytes", ErrCorrupt, len(b))
	}
	return c, nil
}

// notifyCascade is the flag beside the kind of a notification that a cascade follows.
const notifyCascade = 0x10

// EncodeNotification returns a notification with an encoded cascade, which may be nil. The result must not be changed.
func EncodeNotification(k NotifyKind, cascade []byte) []byte {
	if len(cascade) > 0 {
		return append([]byte{Version, byte(k) | notifyCascade}, cascade...)
	}
	if k == NotifyWeak {
		return WeakNotification
	}
	return StrongNotification
}

// CascadeOf returns what a notification says of how its change came about; the zero Cascade if it says nothing. An error matches
// ErrCorrupt or rowstore.ErrFormat.
func CascadeOf(notification []byte) (Cascade, error) {
	_, cascade, err := splitNotification(notification)
	return cascade, err
}

// DecodeNotification returns the kind of a notification. An error matches ErrCorrupt or
// rowstore.ErrFormat.
func DecodeNotification(b []byte) (NotifyKind, error) {
	k, _, err := splitNotification(b)
	return k, err
}

func splitNotification(b []byte) (k NotifyKind, c Cascade, err error) {
	if err := checkVersion(b, "notification"); err != nil {
		return 0, c, err
	}
	if len(b) < 2 {
		return 0, c, fmt.Errorf("%w: notification %x", ErrCorrupt, b)
	}
	k = NotifyKind(b[1] &^ notifyCascade)
	cascades := b[1]&notifyCascade != 0
	if k != NotifyStrong && k != NotifyWeak || !cascades && len(b) > 2 {
		return 0, c, fmt.Errorf("%w: notification %x", ErrCorrupt, b)
	}
	if cascades {
		if c, err = DecodeCascade(b[2:]); err != nil {
			return 0, c, fmt.Errorf("notification: %w", err)
		}
	}
	return k, c, nil
}
