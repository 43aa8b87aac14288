package typed

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/percolate-go/percolate/percolator"
)

// Keys are the keys of Encrypted. A key has 32 bytes and a name of 1 to 255 bytes, which is stored in
// the clear beside each value. The methods may be called concurrently, and often: keep what you have fetched. They must not use
// the transaction.
type Keys interface {
	// Current returns the key by which a value of the cell is encrypted now: that of the customer
	// whose row it is, say.
	Current(ctx context.Context, cell percolator.Cell) (name string, key []byte, err error)
	// Key returns the key of a name that Current once gave. If it was destroyed, the error should match ErrKeyGone.
	Key(ctx context.Context, cell percolator.Cell, name string) (key []byte, err error)
}

// ErrKeyGone says that a value cannot be decrypted any more, because its key was destroyed.
var ErrKeyGone = errors.New("typed: the key was destroyed")

// Encrypted encrypts what another codec has encoded, with AES-256-GCM and a random nonce; encrypt no more
// than 2^32 values by one key. A value can be decrypted only in its own cell: moved to another row, it is taken for
// damaged. The length of a value can be seen, and which values have the same key.
//
// To erase all that is known of a customer, also in backups and in the history that is kept, give each a key of its own and
// destroy it.
type Encrypted[T any] struct {
	Codec Codec[T]
	Keys  Keys
}

const (
	encryptedFormat = 1
	keyBytes        = 32
)

// Versioned tells whether the codec within is.
func (e Encrypted[T]) Versioned() bool { return versioned(e.Codec) }

// Encrypts is true: what is stored is not to be seen. Package index asks for it, because the entries of an index lie in the clear.
func (Encrypted[T]) Encrypts() bool { return true }

func (e Encrypted[T]) check() error {
	if e.Codec == nil || e.Keys == nil {
		return fmt.Errorf("typed: Encrypted: %w: it has no Codec or no Keys", percolator.ErrInvalid)
	}
	return nil
}

// unshown is an error of the codec about what was decrypted. Errors go into logs and into parked runs, which are
// stored in the clear, and the words of a codec may hold a part of the value.
type unshown struct{ err error }

func (unshown) Error() string {
	return "typed: what was decrypted is refused by the codec, whose words are not shown, since they may hold a part of it"
}

func (u unshown) Unwrap() error { return u.err }

// Encode returns the errors of the codec and of Keys, and one that matches percolator.ErrInvalid
// for a key or a name of a wrong length, and without a Codec or Keys.
func (e Encrypted[T]) Encode(ctx context.Context, cell percolator.Cell, value T) ([]byte, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	plain, err := e.Codec.Encode(ctx, cell, value)
	if err != nil {
		return nil, err
	}
	name, key, err := e.Keys.Current(ctx, cell)
	if err != nil {
		return nil, fmt.Errorf("typed: finding the key: %w", err)
	}
	if len(name) == 0 || len(name) > 255 {
		return nil, fmt.Errorf("typed: Encrypted: %w: the key's name has %d bytes; it must have 1 to 255", percolator.ErrInvalid, len(name))
	}
	aead, err := newCipher(key)
	if err != nil {
		return nil, err
	}
	b := append([]byte{encryptedFormat, byte(len(name))}, name...)
	b = append(b, make([]byte, aead.NonceSize())...)
	nonce := b[2+len(name):]
	if _, err := rand.Read(nonce); err != nil {
		return nil, fmt.Errorf("typed: drawing a nonce: %w", err)
	}
	return aead.Seal(b, nonce, plain, place(cell, name)), nil
}

// Decode returns the errors of the codec and of Keys, and one that matches ErrDecode for a value that is not encrypted, is damaged, or
// belongs to another cell. The text of the codec's errors is left out, since it may hold a part of the value; errors.Is and
// errors.As find them.
func (e Encrypted[T]) Decode(ctx context.Context, cell percolator.Cell, stored []byte) (T, error) {
	var none T
	if err := e.check(); err != nil {
		return none, err
	}
	if len(stored) < 2 || len(stored) < 2+int(stored[1]) {
		return none, undecodable(errors.New("too short to be encrypted"))
	}
	if stored[0] != encryptedFormat {
		return none, undecodable(fmt.Errorf("not encrypted, or in a format %d that is not known", stored[0]))
	}
	name, rest := string(stored[2:2+int(stored[1])]), stored[2+int(stored[1]):]
	key, err := e.Keys.Key(ctx, cell, name)
	if err != nil {
		return none, fmt.Errorf("typed: finding the key %q: %w", name, err)
	}
	aead, err := newCipher(key)
	if err != nil {
		return none, err
	}
	if len(rest) < aead.NonceSize() {
		return none, undecodable(errors.New("too short to be encrypted"))
	}
	plain, err := aead.Open([]byte{}, rest[:aead.NonceSize()], rest[aead.NonceSize():], place(cell, name))
	if err != nil {
		return none, undecodable(err)
	}
	value, err := e.Codec.Decode(ctx, cell, plain)
	if err != nil && !errors.Is(err, ErrVersion) {
		err = unshown{err}
	}
	return value, err
}

func newCipher(key []byte) (cipher.AEAD, error) {
	if len(key) != keyBytes {
		return nil, fmt.Errorf("typed: Encrypted: %w: the key has %d bytes; it must have %d", percolator.ErrInvalid, len(key), keyBytes)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("typed: Encrypted: %w", err)
	}
	return cipher.NewGCM(block)
}

// place binds a value to its cell. The lengths keep different cells apart.
func place(cell percolator.Cell, name string) []byte {
	var b []byte
	for _, s := range []string{cell.Table, cell.Row, cell.Column, name} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	return b
}
