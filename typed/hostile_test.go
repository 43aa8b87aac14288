package typed_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"

	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/typed"
)

// namedKey is a vault of one key, of whatever name.
type namedKey struct {
	vault
	name string
}

func (n namedKey) Current(ctx context.Context, c percolator.Cell) (string, []byte, error) {
	return n.name, bytes.Repeat([]byte{7}, 32), nil
}

func (n namedKey) Key(ctx context.Context, c percolator.Cell, name string) ([]byte, error) {
	if name != n.name {
		return nil, typed.ErrKeyGone
	}
	return bytes.Repeat([]byte{7}, 32), nil
}

// The name of a key may have each length that is documented.
func TestEncryptedKeyNames(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 127, 128, 253, 254, 255} {
		codec := typed.Encrypted[name]{Codec: typed.Text[name]{}, Keys: namedKey{name: strings.Repeat("k", n)}}
		require.Equal(t, name("secret"), roundTrip(t, codec, "secret"), "%d bytes", n)
	}
	for _, n := range []int{0, 256} {
		codec := typed.Encrypted[name]{Codec: typed.Text[name]{}, Keys: namedKey{name: strings.Repeat("k", n)}}
		_, err := codec.Encode(t.Context(), cell, "secret")
		require.ErrorIs(t, err, percolator.ErrInvalid, "%d bytes", n)
	}
}

// Whatever bytes there are, no codec panics.
func TestCodecsOfGarbage(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		stored := rapid.SliceOfN(rapid.Byte(), 0, 600).Draw(r, "stored")
		if len(stored) > 1 && rapid.Bool().Draw(r, "encrypted") {
			stored[0] = 1
		}
		key := namedKey{name: "k"}
		_, err := typed.Encrypted[int]{Codec: typed.Number[int]{}, Keys: key}.Decode(t.Context(), cell, bytes.Clone(stored))
		require.Error(r, err)
		_, _ = typed.Versions[int]{Codecs: map[byte]typed.Codec[int]{1: typed.JSON[int]{}}}.Decode(t.Context(), cell, bytes.Clone(stored))
		_, _ = typed.Proto[*wrapperspb.StringValue]{}.Decode(t.Context(), cell, bytes.Clone(stored))
		_, _ = typed.JSON[map[string]any]{Strict: true}.Decode(t.Context(), cell, bytes.Clone(stored))
	})
}

// What is not complete is an error, and not a panic.
func TestIncompleteCodecs(t *testing.T) {
	t.Parallel()
	key := namedKey{name: "k"}
	whole := typed.Encrypted[int]{Codec: typed.Number[int]{}, Keys: key}
	stored, err := whole.Encode(t.Context(), cell, 7)
	require.NoError(t, err)
	for _, codec := range []typed.Encrypted[int]{{}, {Codec: typed.Number[int]{}}, {Keys: key}} {
		_, err := codec.Encode(t.Context(), cell, 7)
		require.ErrorIs(t, err, percolator.ErrInvalid)
		_, err = codec.Decode(t.Context(), cell, stored)
		require.ErrorIs(t, err, percolator.ErrInvalid)
		require.False(t, codec.Versioned())
	}
	_, err = typed.Versions[int]{Current: 1, Codecs: map[byte]typed.Codec[int]{1: nil}}.Encode(t.Context(), cell, 7)
	require.ErrorIs(t, err, percolator.ErrInvalid)
	_, err = typed.Versions[int]{Current: 1, Codecs: map[byte]typed.Codec[int]{1: nil}}.Decode(t.Context(), cell, []byte{1, '7'})
	require.ErrorIs(t, err, typed.ErrVersion)

	// A nil message would be stored as an empty one.
	_, err = typed.Proto[*wrapperspb.StringValue]{}.Encode(t.Context(), cell, nil)
	require.ErrorIs(t, err, percolator.ErrInvalid)
	_, err = typed.Proto[proto.Message]{}.Encode(t.Context(), cell, nil)
	require.ErrorIs(t, err, percolator.ErrInvalid)
	_, err = typed.Proto[proto.Message]{}.Decode(t.Context(), cell, nil)
	require.ErrorIs(t, err, percolator.ErrInvalid)
	require.Empty(t, roundTrip(t, typed.Proto[*wrapperspb.StringValue]{}, &wrapperspb.StringValue{}).GetValue())
}

// quoting has fields of types whose errors quote what they cannot decode.
type quoting struct {
	Quoted int `json:",string"`
	Number json.Number
	Big    *big.Int
	At     time.Time
}

// What was decrypted does not get into the text of an error, which may be logged, and stored with a parked run.
func TestDecryptedValuesAreNotShown(t *testing.T) {
	t.Parallel()
	key := namedKey{name: "k"}
	stored, err := typed.Encrypted[name]{Codec: typed.Text[name]{}, Keys: key}.Encode(t.Context(), cell, "4111111111111111x")
	require.NoError(t, err)
	numbers := typed.Encrypted[int]{Codec: typed.Number[int]{}, Keys: key}
	_, err = numbers.Decode(t.Context(), cell, stored)
	require.ErrorIs(t, err, typed.ErrDecode)
	require.NotContains(t, err.Error(), "4111")
	stored, err = typed.Encrypted[int]{Codec: typed.JSON[int]{}, Keys: key}.Encode(t.Context(), cell, 4111111111111111)
	require.NoError(t, err)
	_, err = typed.Encrypted[int8]{Codec: typed.JSON[int8]{}, Keys: key}.Decode(t.Context(), cell, stored)
	require.ErrorIs(t, err, typed.ErrDecode)
	require.NotContains(t, err.Error(), "4111")
	var kind *json.UnmarshalTypeError
	require.ErrorAs(t, err, &kind, "a program can still look")

	for _, stored := range []string{`{"Quoted":"4111x"}`, `{"Quoted":4111}`, `{"Number":"4111\"x"}`, `{"Big":"4111\"x"}`, `{"At":"4111"}`, `{"Quoted":"\"4111"}`} {
		_, err := typed.JSON[quoting]{}.Decode(t.Context(), cell, []byte(stored))
		require.ErrorIs(t, err, typed.ErrDecode, stored)
		require.NotContains(t, err.Error(), "4111", stored)
	}
	_, err = typed.JSON[quoting]{Strict: true}.Decode(t.Context(), cell, []byte(`{"nmae": 1}`))
	require.ErrorContains(t, err, "nmae")

	db := percolatetest.Open(t)
	col := typed.Column[int]{Table: "t", Name: "n", Codec: numbers}
	secret := typed.Column[name]{Table: "t", Name: "n", Codec: typed.Encrypted[name]{Codec: typed.Text[name]{}, Keys: key}}
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error { return secret.Set(t.Context(), tx, "a", "4111111111111111x") }))
	o := col.Observer("o", func(context.Context, *percolator.Txn, typed.Change[int]) error { return nil })
	o.MaxAttempts = 1
	parked := parkedBy(t, db, o)
	require.Len(t, parked, 1)
	require.NotContains(t, parked[0].Error, "4111")
}

// Whoever destroys a customer's key goes on: scans pass the customer's rows, and observers get the changes of them.
func TestDestroyedKeys(t *testing.T) {
	t.Parallel()
	db := percolatetest.Open(t)
	keys := vault{keys: map[string][]byte{}}
	for _, row := range []string{"a", "b", "c"} {
		keys.keys[row] = bytes.Repeat([]byte{1}, 32)
	}
	col := typed.Column[int]{Table: "t", Name: "n", Codec: typed.Encrypted[int]{Codec: typed.Number[int]{}, Keys: keys}}
	in := func(f func(tx *percolator.Txn) error) { t.Helper(); require.NoError(t, db.Update(t.Context(), f)) }
	var changes []typed.Change[int]
	o := col.Observer("o", func(_ context.Context, _ *percolator.Txn, c typed.Change[int]) error {
		c.Commit = 0
		changes = append(changes, c)
		return nil
	})
	o.MaxAttempts, o.Concurrency = 1, 1
	in(func(tx *percolator.Txn) error {
		return errors.Join(col.Set(t.Context(), tx, "a", 1), col.Set(t.Context(), tx, "b", 2), col.Set(t.Context(), tx, "c", 3))
	})
	require.Empty(t, parkedBy(t, db, o))
	require.Len(t, changes, 3)
	changes = nil

	delete(keys.keys, "b")
	require.NoError(t, db.View(t.Context(), func(tx *percolator.Txn) error {
		seen := map[string]int{}
		gone := ""
		for row, err := range col.Scan(t.Context(), tx, percolator.Range{}) {
			if errors.Is(err, typed.ErrKeyGone) {
				gone += row.Key
				continue
			}
			require.NoError(t, err)
			seen[row.Key] = row.Value
		}
		require.Equal(t, "b", gone)
		require.Equal(t, map[string]int{"a": 1, "c": 3}, seen)
		got, err := col.GetMany(t.Context(), tx, "a", "b", "c")
		require.ErrorIs(t, err, typed.ErrKeyGone)
		require.Equal(t, seen, got)
		_, err = col.Get(t.Context(), tx, "b")
		require.ErrorIs(t, err, typed.ErrKeyGone)
		return nil
	}))

	// The cell changes once more, and is deleted.
	in(func(tx *percolator.Txn) error { return tx.Notify(col.Cell("b")) })
	require.Empty(t, parkedBy(t, db, o))
	require.Equal(t, []typed.Change[int]{{Row: "b", OldGone: true, NewGone: true, Attempt: 1}}, changes)
	changes = nil
	in(func(tx *percolator.Txn) error { return col.Delete(t.Context(), tx, "b") })
	require.Empty(t, parkedBy(t, db, o))
	require.Equal(t, []typed.Change[int]{{Row: "b", OldGone: true, Attempt: 1}}, changes)
	changes = nil
	keys.keys["b"] = bytes.Repeat([]byte{2}, 32)
	in(func(tx *percolator.Txn) error { return col.Set(t.Context(), tx, "b", 5) })
	require.Empty(t, parkedBy(t, db, o))
	require.Equal(t, []typed.Change[int]{{Row: "b", New: 5, NewFound: true, Attempt: 1}}, changes)
}

// pointed has JSON by its pointer alone, and hidden shows nothing without it.
type pointed struct{ hidden string }

func (p *pointed) MarshalJSON() ([]byte, error) { return json.Marshal(p.hidden) }
func (p *pointed) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &p.hidden) }
func (p *pointed) String() string               { return p.hidden }

// texted has a text by its pointer alone.
type texted struct{ hidden string }

func (p *texted) MarshalText() ([]byte, error) { return []byte(p.hidden), nil }
func (p *texted) UnmarshalText(b []byte) error { p.hidden = string(b); return nil }

func TestMethodsOfPointers(t *testing.T) {
	t.Parallel()
	require.Equal(t, pointed{"x"}, roundTrip(t, typed.JSON[pointed]{}, pointed{"x"}))
	require.Equal(t, texted{"x"}, roundTrip(t, typed.JSON[texted]{}, texted{"x"}))
	type within struct {
		P pointed
		T texted
	}
	require.Equal(t, within{pointed{"x"}, texted{"y"}}, roundTrip(t, typed.JSON[within]{}, within{pointed{"x"}, texted{"y"}}))
	require.Equal(t, "5", func() string { v := roundTrip(t, typed.JSON[big.Int]{}, *big.NewInt(5)); return v.String() }())
	type all struct {
		P pointed
		T texted
		W within
	}
	rows, err := typed.NewTable[all]("t")
	require.NoError(t, err)
	want := all{pointed{"x"}, texted{"y"}, within{pointed{"x"}, texted{"y"}}}
	require.Equal(t, want, stored(t, rows, want))
}

// stored sets a row and reads it.
func stored[T any](t *testing.T, rows *typed.Table[T], value T) (got T) {
	t.Helper()
	db := percolatetest.Open(t)
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error { return rows.Set(tx, "r", value) }))
	require.NoError(t, db.View(t.Context(), func(tx *percolator.Txn) (err error) {
		got, err = rows.Get(t.Context(), tx, "r")
		return err
	}))
	return got
}

type base struct{ ID string }

type Shown struct{ Name string }

type stamp time.Time

type digest []byte

// What a table cannot keep is refused when the table is made, and not lost when it is written.
func TestFieldsThatWouldBeLost(t *testing.T) {
	t.Parallel()
	refused := func(_ any, err error) {
		t.Helper()
		require.ErrorIs(t, err, percolator.ErrInvalid)
	}
	refused(typed.NewTable[struct {
		base
		A int
	}]("t"))
	refused(typed.NewTable[struct {
		*base
		A int
	}]("t"))
	refused(typed.NewTable[struct{ A stamp }]("t"))
	refused(typed.NewTable[struct{ A []stamp }]("t"))
	refused(typed.NewTable[struct {
		sync.Mutex
		A int
	}]("t"))
	refused(typed.NewTable[struct{ A error }]("t"))
	refused(typed.NewTable[struct{ A map[string]error }]("t"))
	refused(typed.NewTable[struct{ A map[float64]int }]("t"))
	refused(typed.NewTable[struct{ A *func() }]("t"))
	type fine struct {
		base       `percolator:"-"`
		sync.Mutex `percolator:"-"`
		Shown
		Addr  netip.Addr
		Set   map[netip.Addr]struct{}
		Any   any
		By    map[int8]*Shown
		D     digest
		none  int
		Ratio float64
	}
	_, err := typed.NewTable[fine]("t")
	require.NoError(t, err)
	type kept struct {
		Shown
		D, Nil digest
		When   *time.Time
		None   *int `percolator:",omitzero"`
		Ratio  float64
		Any    any
	}
	rows, err := typed.NewTable[kept]("t")
	require.NoError(t, err)
	when := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	got := stored(t, rows, kept{Shown: Shown{"x"}, D: digest{0, 255}, When: &when, Ratio: math.Inf(-1), Any: []any{"y", nil}})
	require.Equal(t, kept{Shown: Shown{"x"}, D: digest{0, 255}, Nil: digest{}, When: &when, Ratio: math.Inf(-1), Any: []any{"y", nil}}, got)
	require.True(t, math.IsNaN(stored(t, rows, kept{Ratio: math.NaN()}).Ratio))
}

// A table that nobody has made writes nothing and says so.
func TestTablesThatWereNotMade(t *testing.T) {
	t.Parallel()
	db := percolatetest.Open(t)
	var none *typed.Table[item]
	made, err := typed.NewTable[item]("t")
	require.NoError(t, err)
	for _, table := range []*typed.Table[item]{none, {}} {
		require.Empty(t, table.Columns())
		require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error {
			_, err := table.Get(t.Context(), tx, "r")
			require.ErrorIs(t, err, percolator.ErrInvalid)
			require.ErrorIs(t, table.Set(tx, "r", item{}), percolator.ErrInvalid)
			require.ErrorIs(t, table.Delete(tx, "r"), percolator.ErrInvalid)
			require.ErrorIs(t, table.Update(t.Context(), tx, "r", func(*item, bool) error { return nil }), percolator.ErrInvalid)
			scanned := 0
			for _, err := range table.Scan(t.Context(), tx, percolator.Range{}) {
				require.ErrorIs(t, err, percolator.ErrInvalid)
				scanned++
			}
			require.Equal(t, 1, scanned)
			return nil
		}))
	}
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error {
		require.ErrorIs(t, made.Update(t.Context(), tx, "r", nil), percolator.ErrInvalid)
		return nil
	}))
}

// A row that is damaged does not hide those behind it.
func TestScanPassesDamagedRows(t *testing.T) {
	t.Parallel()
	db := percolatetest.Open(t)
	rows, err := typed.NewTable[item]("t")
	require.NoError(t, err)
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error {
		return errors.Join(rows.Set(tx, "a", item{"a", 1}), rows.Set(tx, "b", item{"b", 2}), rows.Set(tx, "c", item{"c", 3}),
			tx.Set(percolator.Cell{Table: "t", Row: "b", Column: "Amount"}, []byte("many")))
	}))
	require.NoError(t, db.View(t.Context(), func(tx *percolator.Txn) error {
		seen := ""
		for row, err := range rows.Scan(t.Context(), tx, percolator.Range{}) {
			if row.Key == "b" {
				require.ErrorIs(t, err, typed.ErrDecode)
				continue
			}
			require.NoError(t, err)
			seen += row.Value.Name
		}
		require.Equal(t, "ac", seen)
		return nil
	}))
}
