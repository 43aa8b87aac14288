package typed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/percolate-go/percolate/percolator"
)

// Codec turns the values of a column into bytes and back. Decode must give what Encode got. It gets the cell because an
// encryption depends on it; most codecs ignore it. Both may be called concurrently. The slices given to and returned by them
// belong to whoever gets them. Neither may have an effect on data.
//
// A codec whose stored values may be of versions that it does not know has a method Versioned() bool, which
// returns true. Then a Column reads a value before it replaces or deletes it, and leaves it if
// Decode gives an error that matches ErrVersion.
type Codec[T any] interface {
	Encode(ctx context.Context, cell percolator.Cell, value T) ([]byte, error)
	Decode(ctx context.Context, cell percolator.Cell, stored []byte) (T, error)
}

var (
	// ErrDecode is matched by the errors of stored bytes that a codec cannot turn into a value.
	ErrDecode = errors.New("typed: the stored bytes are no value of the column's type")
	// ErrVersion is matched by the errors of values of a version that the program does not know: a newer program has written
	// them. They match ErrDecode, too.
	ErrVersion = fmt.Errorf("%w: the program does not know their version", ErrDecode)
)

func undecodable(err error) error { return fmt.Errorf("%w: %w", ErrDecode, withoutValue(err)) }

// unquoted is an error of the standard library about a stored value, and its text does not quote the value: errors go into logs and into parked
// runs. A program can still look.
type unquoted struct {
	text string
	err  error
}

func (u unquoted) Error() string { return u.text }
func (u unquoted) Unwrap() error { return u.err }

func withoutValue(err error) error {
	var number *strconv.NumError
	var at *time.ParseError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &number):
		return unquoted{"no number or truth value: " + number.Err.Error(), err}
	case errors.As(err, &at):
		return unquoted{"no time as RFC 3339 writes it", err}
	case errors.As(err, &kind):
		what, _, _ := strings.Cut(kind.Value, " ") // "number 300"
		return unquoted{fmt.Sprintf("JSON: a %s does not fit into %v (field %q, at byte %d)", what, kind.Type, kind.Field, kind.Offset), err}
	}
	text := err.Error()
	if strings.HasPrefix(text, unknownField) {
		return err
	}
	if without := quotation.ReplaceAllLiteralString(text, `"..."`); without != text {
		return unquoted{without, err}
	}
	return err
}

// Errors of encoding/json that have no type, and those of math/big and of others' UnmarshalJSON, quote what they were given.
var quotation = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// unknownField begins an error that quotes a name, and no value.
const unknownField = "json: unknown field "

// Text stores a text as its bytes, which need not be UTF-8.
type Text[T ~string] struct{}

// Encode never returns an error.
func (Text[T]) Encode(_ context.Context, _ percolator.Cell, value T) ([]byte, error) {
	return []byte(value), nil
}

// Decode never returns an error.
func (Text[T]) Decode(_ context.Context, _ percolator.Cell, stored []byte) (T, error) {
	return T(stored), nil
}

// Bytes stores bytes as they are. Nil is stored as empty bytes.
type Bytes struct{}

// Encode never returns an error.
func (Bytes) Encode(_ context.Context, _ percolator.Cell, value []byte) ([]byte, error) {
	return bytes.Clone(value), nil
}

// Decode never returns an error.
func (Bytes) Decode(_ context.Context, _ percolator.Cell, stored []byte) ([]byte, error) {
	return stored, nil
}

// Integer is what Number stores.
type Integer interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

// Number stores an integer in decimal, so that people can read it.
type Number[T Integer] struct{}

// Encode never returns an error.
func (Number[T]) Encode(_ context.Context, _ percolator.Cell, value T) ([]byte, error) {
	if value < 0 {
		return strconv.AppendInt(nil, int64(value), 10), nil
	}
	return strconv.AppendUint(nil, uint64(value), 10), nil
}

// Decode returns an error that matches ErrDecode for anything but a decimal number that fits
// into T.
func (Number[T]) Decode(_ context.Context, _ percolator.Cell, stored []byte) (T, error) {
	s := string(stored)
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		if v := T(i); (v < 0) == (i < 0) && int64(v) == i {
			return v, nil
		}
	} else if u, err := strconv.ParseUint(s, 10, 64); err == nil {
		if v := T(u); v >= 0 && uint64(v) == u {
			return v, nil
		}
	}
	return 0, undecodable(fmt.Errorf("%d bytes are no number from the range of %T", len(s), T(0)))
}

// JSON stores a value as encoding/json writes it.
type JSON[T any] struct {
	// Strict refuses objects with fields that T does not have, by an error that names the field. Without it a program that reads a value and writes it back
	// drops the fields that a newer program has added.
	Strict bool
}

// Encode returns the error of json.Marshal.
func (JSON[T]) Encode(_ context.Context, _ percolator.Cell, value T) ([]byte, error) {
	return json.Marshal(&value) // by its pointer, since methods of pointers are called to read it
}

// Decode returns an error that matches ErrDecode for bytes that are not exactly one JSON value for T.
func (j JSON[T]) Decode(_ context.Context, _ percolator.Cell, stored []byte) (value T, err error) {
	d := json.NewDecoder(bytes.NewReader(stored))
	if j.Strict {
		d.DisallowUnknownFields()
	}
	if err := d.Decode(&value); err != nil {
		var none T
		return none, undecodable(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		var none T
		return none, undecodable(errors.New("there is something behind the JSON value"))
	}
	return value, nil
}

// Proto stores a message in the wire format of protocol buffers. T is a pointer to a generated type. The fields that a newer program has
// added are kept when a value is read and written back.
type Proto[T proto.Message] struct{}

// Encode returns the error of proto.Marshal, and one that matches percolator.ErrInvalid for a nil message: it would be
// stored as an empty one.
func (Proto[T]) Encode(_ context.Context, _ percolator.Cell, value T) ([]byte, error) {
	if any(value) == nil || !value.ProtoReflect().IsValid() {
		return nil, fmt.Errorf("typed: Proto: %w: the message is nil", percolator.ErrInvalid)
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(value)
}

// Decode returns an error that matches ErrDecode for bytes that are no message, and percolator.ErrInvalid for a T that is
// no pointer to a generated type.
func (Proto[T]) Decode(_ context.Context, _ percolator.Cell, stored []byte) (T, error) {
	var none, value T
	ok := any(none) != nil // an interface has no type to make a message of
	if ok {
		value, ok = none.ProtoReflect().Type().New().Interface().(T)
	}
	if !ok {
		return none, fmt.Errorf("typed: Proto: %w: %v is no generated message", percolator.ErrInvalid, reflect.TypeFor[T]())
	}
	if err := proto.Unmarshal(stored, value); err != nil {
		return none, undecodable(err)
	}
	return value, nil
}

// Versions stores a number in front of each value that says how the rest is encoded. So the encoding of a column can change:
// give all programs the new codec beside the old one first, and when they all have it, make it Current. A value of a version that
// is not there is neither read nor overwritten; the errors match ErrVersion. An observer's run for
// it is parked: release it when the new program runs.
type Versions[T any] struct {
	// Current is the version in which values are written. It must be in Codecs.
	Current byte
	// Codecs are those of the versions that can be read. Their results must all be values of T, so an older one brings what it
	// has read up to date.
	Codecs map[byte]Codec[T]
}

// Versioned is true: see Codec.
func (Versions[T]) Versioned() bool { return true }

// Encrypts tells whether any of the codecs does.
func (v Versions[T]) Encrypts() bool {
	for _, codec := range v.Codecs {
		if e, ok := codec.(interface{ Encrypts() bool }); ok && e.Encrypts() {
			return true
		}
	}
	return false
}

// Encode returns the errors of the current codec, and one that matches percolator.ErrInvalid if there is none.
func (v Versions[T]) Encode(ctx context.Context, cell percolator.Cell, value T) ([]byte, error) {
	codec := v.Codecs[v.Current]
	if codec == nil {
		return nil, fmt.Errorf("typed: Versions: %w: there is no codec for the current version %d", percolator.ErrInvalid, v.Current)
	}
	b, err := codec.Encode(ctx, cell, value)
	if err != nil {
		return nil, err
	}
	return append([]byte{v.Current}, b...), nil
}

// Decode returns the errors of the version's codec, one that matches ErrVersion if there is
// none, and one that matches ErrDecode if the value has no version.
func (v Versions[T]) Decode(ctx context.Context, cell percolator.Cell, stored []byte) (T, error) {
	var none T
	if len(stored) == 0 {
		return none, undecodable(errors.New("an empty value has no version"))
	}
	codec := v.Codecs[stored[0]]
	if codec == nil {
		return none, fmt.Errorf("%w: %d", ErrVersion, stored[0])
	}
	return codec.Decode(ctx, cell, stored[1:])
}

// versioned tells whether a codec's values must be looked at before they are replaced.
func versioned(codec any) bool {
	v, ok := codec.(interface{ Versioned() bool })
	return ok && v.Versioned()
}
