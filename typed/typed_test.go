package typed_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"

	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/typed"
)

var cell = percolator.Cell{Table: "t", Row: "r", Column: "c"}

func roundTrip[T any](t require.TestingT, codec typed.Codec[T], value T) T {
	b, err := codec.Encode(context.Background(), cell, value)
	require.NoError(t, err)
	require.NotNil(t, b)
	got, err := codec.Decode(context.Background(), cell, b)
	require.NoError(t, err)
	return got
}

type name string

func TestCodecs(t *testing.T) {
	t.Parallel()
	require.Equal(t, name("a\x00"), roundTrip(t, typed.Text[name]{}, "a\x00"))
	require.Equal(t, []byte{}, roundTrip(t, typed.Bytes{}, []byte{}))
	require.Equal(t, map[string]int{"a": 1}, roundTrip(t, typed.JSON[map[string]int]{}, map[string]int{"a": 1}))
	require.Equal(t, "x", roundTrip(t, typed.Proto[*wrapperspb.StringValue]{}, wrapperspb.String("x")).GetValue())
	require.Equal(t, uint64(math.MaxUint64), roundTrip(t, typed.Number[uint64]{}, math.MaxUint64))
	rapid.Check(t, func(t *rapid.T) {
		i, b := rapid.Int64().Draw(t, "i"), rapid.Int8().Draw(t, "b")
		require.Equal(t, i, roundTrip(t, typed.Number[int64]{}, i))
		require.Equal(t, b, roundTrip(t, typed.Number[int8]{}, b))
		require.Equal(t, i, roundTrip(t, typed.Versions[int64]{Current: 2, Codecs: map[byte]typed.Codec[int64]{2: typed.JSON[int64]{}}}, i))
	})
}

func TestWhatIsNoValue(t *testing.T) {
	t.Parallel()
	refuses := func(decode func(b []byte) error, stored ...string) {
		t.Helper()
		for _, s := range stored {
			require.ErrorIs(t, decode([]byte(s)), typed.ErrDecode, "%q", s)
		}
	}
	refuses(func(b []byte) error {
		_, err := typed.Number[int8]{}.Decode(t.Context(), cell, b)
		return err
	}, "", "x", "1.5", "128", "-129", "1 ", "18446744073709551615", "99999999999999999999")
	refuses(func(b []byte) error {
		_, err := typed.Number[uint8]{}.Decode(t.Context(), cell, b)
		return err
	}, "-1", "256")
	refuses(func(b []byte) error {
		_, err := typed.JSON[int]{}.Decode(t.Context(), cell, b)
		return err
	}, "", "1 2", "1}", `"a"`, "[")
	refuses(func(b []byte) error {
		_, err := typed.JSON[struct{ A int }]{Strict: true}.Decode(t.Context(), cell, b)
		return err
	}, `{"A":1,"B":2}`)
	refuses(func(b []byte) error {
		_, err := typed.Proto[*wrapperspb.StringValue]{}.Decode(t.Context(), cell, b)
		return err
	}, "\x0a\xff")
	refuses(func(b []byte) error {
		_, err := typed.Versions[int]{Codecs: map[byte]typed.Codec[int]{1: typed.JSON[int]{}}}.Decode(t.Context(), cell, b)
		return err
	}, "", "\x02[1]", "\x01x")
	_, err := typed.Versions[int]{Current: 9}.Encode(t.Context(), cell, 1)
	require.ErrorIs(t, err, percolator.ErrInvalid)
	_, err = typed.JSON[chan int]{}.Encode(t.Context(), cell, nil)
	require.Error(t, err)
}

// vault holds a key for each row.
type vault struct {
	keys map[string][]byte
	err  error
}

func (v vault) Current(_ context.Context, c percolator.Cell) (string, []byte, error) {
	return "key of " + c.Row, v.keys[c.Row], v.err
}

func (v vault) Key(_ context.Context, c percolator.Cell, name string) ([]byte, error) {
	if key := v.keys[c.Row]; key != nil && name == "key of "+c.Row {
		return key, nil
	}
	return nil, typed.ErrKeyGone
}

func TestEncrypted(t *testing.T) {
	t.Parallel()
	keys := map[string][]byte{"r": bytes.Repeat([]byte{1}, 32), "other": bytes.Repeat([]byte{1}, 32), "short": {1}}
	codec := typed.Encrypted[name]{Codec: typed.Text[name]{}, Keys: vault{keys: keys}}
	require.Equal(t, name("secret"), roundTrip(t, codec, "secret"))
	require.Equal(t, name(""), roundTrip(t, codec, ""))
	stored, err := codec.Encode(t.Context(), cell, "secret")
	require.NoError(t, err)
	require.NotContains(t, string(stored), "secret")
	again, err := codec.Encode(t.Context(), cell, "secret")
	require.NoError(t, err)
	require.NotEqual(t, stored, again, "another nonce")
	for i := range stored {
		damaged := bytes.Clone(stored)
		damaged[i] ^= 1
		_, err := codec.Decode(t.Context(), cell, damaged)
		require.Error(t, err, "byte %d", i)
		_, err = codec.Decode(t.Context(), cell, stored[:i])
		require.Error(t, err, "%d bytes", i)
	}
	elsewhere := cell
	elsewhere.Column = "d"
	_, err = codec.Decode(t.Context(), elsewhere, stored)
	require.ErrorIs(t, err, typed.ErrDecode, "moved to another cell")
	_, err = codec.Encode(t.Context(), percolator.Cell{Row: "short"}, "x")
	require.ErrorIs(t, err, percolator.ErrInvalid)
	delete(keys, "r")
	_, err = codec.Decode(t.Context(), cell, stored)
	require.ErrorIs(t, err, typed.ErrKeyGone)
	require.NotErrorIs(t, err, typed.ErrDecode)
	away := errors.New("away")
	_, err = typed.Encrypted[name]{Codec: typed.Text[name]{}, Keys: vault{keys: keys, err: away}}.Encode(t.Context(), cell, "x")
	require.ErrorIs(t, err, away)
}

func TestColumn(t *testing.T) {
	t.Parallel()
	db := percolatetest.Open(t)
	col := typed.Column[int]{Table: "t", Name: "n", Codec: typed.Number[int]{}}
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error {
		for row, n := range map[string]int{"a": 1, "b": -2, "c": 3} {
			if err := col.Set(t.Context(), tx, row, n); err != nil {
				return err
			}
		}
		require.NoError(t, col.Delete(t.Context(), tx, "c"))
		require.NoError(t, tx.Set(col.Cell("d"), []byte("damaged")))
		return tx.Set(percolator.Cell{Table: "t", Row: "a", Column: "another"}, nil)
	}))
	require.NoError(t, db.View(t.Context(), func(tx *percolator.Txn) error {
		n, err := col.Get(t.Context(), tx, "b")
		require.NoError(t, err)
		require.Equal(t, -2, n)
		_, err = col.Get(t.Context(), tx, "c")
		require.ErrorIs(t, err, percolator.ErrNotFound)
		_, err = col.Get(t.Context(), tx, "d")
		require.ErrorIs(t, err, typed.ErrDecode)
		require.ErrorContains(t, err, col.Cell("d").String())
		all, err := col.GetMany(t.Context(), tx, "a", "b", "c")
		require.NoError(t, err)
		require.Equal(t, map[string]int{"a": 1, "b": -2}, all)
		_, err = col.GetMany(t.Context(), tx, "a", "d")
		require.ErrorIs(t, err, typed.ErrDecode)
		var rows []typed.Row[int]
		for row, err := range col.Scan(t.Context(), tx, percolator.Range{To: "d"}) {
			require.NoError(t, err)
			rows = append(rows, row)
		}
		require.Equal(t, []typed.Row[int]{{Key: "a", Value: 1}, {Key: "b", Value: -2}}, rows)
		for _, bad := range []percolator.Range{{Table: "t"}, {Columns: []string{"n"}}} {
			for _, err := range col.Scan(t.Context(), tx, bad) {
				require.ErrorIs(t, err, percolator.ErrInvalid)
			}
		}
		for _, err := range col.Scan(t.Context(), tx, percolator.Range{From: "d"}) {
			require.ErrorIs(t, err, typed.ErrDecode)
		}
		_, err = typed.Column[int]{Table: "t", Name: "n"}.Get(t.Context(), tx, "a")
		require.ErrorIs(t, err, percolator.ErrInvalid)
		return nil
	}))
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error {
		n, err := col.GetForUpdate(t.Context(), tx, "a")
		require.Equal(t, 1, n)
		return err
	}))
}

// A program that does not know the newest version neither reads, overwrites nor deletes such values.
func TestVersionsAreNotOverwritten(t *testing.T) {
	t.Parallel()
	db := percolatetest.Open(t)
	one := typed.Versions[int]{Current: 1, Codecs: map[byte]typed.Codec[int]{1: typed.Number[int]{}}}
	two := typed.Versions[int]{Current: 2, Codecs: map[byte]typed.Codec[int]{1: typed.Number[int]{}, 2: typed.JSON[int]{}}}
	keys := vault{keys: map[string][]byte{"a": make([]byte, 32), "b": make([]byte, 32)}}
	for _, codecs := range [][2]typed.Codec[int]{
		{one, two},
		{typed.Encrypted[int]{Codec: one, Keys: keys}, typed.Encrypted[int]{Codec: two, Keys: keys}},
	} {
		older, newer := typed.Column[int]{"t", "n", codecs[0]}, typed.Column[int]{"t", "n", codecs[1]}
		in := func(f func(tx *percolator.Txn) error) error { return db.Update(t.Context(), f) }
		require.NoError(t, in(func(tx *percolator.Txn) error { return tx.Delete(older.Cell("a")) }))
		require.NoError(t, in(func(tx *percolator.Txn) error { return older.Set(t.Context(), tx, "a", 7) }))
		require.NoError(t, in(func(tx *percolator.Txn) error {
			n, err := newer.Get(t.Context(), tx, "a")
			require.Equal(t, 7, n)
			return errors.Join(err, newer.Set(t.Context(), tx, "a", n+1))
		}))
		require.ErrorIs(t, in(func(tx *percolator.Txn) error { return older.Set(t.Context(), tx, "a", 1) }), typed.ErrVersion)
		require.ErrorIs(t, in(func(tx *percolator.Txn) error { return older.Delete(t.Context(), tx, "a") }), typed.ErrVersion)
		require.NoError(t, in(func(tx *percolator.Txn) error {
			n, err := newer.Get(t.Context(), tx, "a")
			require.Equal(t, 8, n)
			return errors.Join(err, older.Set(t.Context(), tx, "b", 1), tx.Set(older.Cell("b"), []byte("\x01damaged")))
		}))
		// Damaged is not newer: it may be mended.
		require.NoError(t, in(func(tx *percolator.Txn) error { return newer.Set(t.Context(), tx, "b", 2) }))
	}
}

func TestObserverGetsValues(t *testing.T) {
	t.Parallel()
	db := percolatetest.Open(t)
	amount := typed.Column[int]{Table: "order", Name: "amount", Codec: typed.Versions[int]{Current: 1, Codecs: map[byte]typed.Codec[int]{1: typed.Number[int]{}}}}
	total := typed.Column[int]{Table: "total", Name: "sum", Codec: typed.Number[int]{}}
	o := amount.Observer("sum", func(ctx context.Context, tx *percolator.Txn, c typed.Change[int]) error {
		sum, err := total.Get(ctx, tx, "all")
		if err != nil && !errors.Is(err, percolator.ErrNotFound) {
			return err
		}
		return total.Set(ctx, tx, "all", sum+c.New-c.Old)
	})
	o.MaxAttempts = 1
	steps := []struct {
		change func(tx *percolator.Txn) error
		sum    int
	}{
		{func(tx *percolator.Txn) error {
			return errors.Join(amount.Set(t.Context(), tx, "a", 5), amount.Set(t.Context(), tx, "b", 7))
		}, 12},
		{func(tx *percolator.Txn) error { return amount.Set(t.Context(), tx, "a", 1) }, 8},
		{func(tx *percolator.Txn) error { return amount.Delete(t.Context(), tx, "b") }, 1},
	}
	for _, step := range steps {
		require.NoError(t, db.Update(t.Context(), step.change))
		percolatetest.RunUntilIdle(t, db, o)
		require.NoError(t, db.View(t.Context(), func(tx *percolator.Txn) error {
			sum, err := total.Get(t.Context(), tx, "all")
			require.Equal(t, step.sum, sum)
			return err
		}))
	}
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error {
		return errors.Join(tx.Set(amount.Cell("a"), []byte("\x02new")), tx.Set(amount.Cell("c"), []byte("\x01damaged")))
	}))
	parked := map[string]string{}
	for _, run := range parkedBy(t, db, o) {
		parked[run.Cell.Row] = run.Error
	}
	require.Len(t, parked, 2)
	require.Contains(t, parked["a"], "does not know their version")
	require.Contains(t, parked["c"], "no number")
	require.Nil(t, amount.Observer("none", nil).OnChange)
}

// parkedBy runs an observer until it is idle, and returns what is parked then.
func parkedBy(t *testing.T, db *percolator.DB, o percolator.Observer) []percolator.ParkedRun {
	w := percolator.NewWorker(db, percolator.WorkerConfig{})
	require.NoError(t, w.Observe(o))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	require.NoError(t, w.WaitIdle(t.Context()))
	stop()
	<-ended
	runs, err := db.Parked(t.Context())
	require.NoError(t, err)
	return runs
}

type money int64

func (m money) MarshalJSON() ([]byte, error) {
	return json.Marshal(big.NewInt(int64(m)).String() + " ct")
}

type order struct {
	Customer string    `percolator:"customer"`
	Paid     time.Time `percolator:"paid,omitzero"`
	Items    []item    `percolator:"items"`
	Count    uint16
	Share    float32
	Gift     bool
	Raw      []byte
	Big      *big.Int `percolator:",omitzero"`
	Price    money
	Grid     [][]int
	Cached   int `percolator:"-"`
	hidden   int
}

type item struct {
	Name   string
	Amount int
}

func TestTable(t *testing.T) {
	t.Parallel()
	orders, err := typed.NewTable[order]("order")
	require.NoError(t, err)
	require.Equal(t, []string{"customer", "paid", "items", "Count", "Share", "Gift", "Raw", "Big", "Price", "Grid"}, orders.Columns())
	db := percolatetest.Open(t)
	full := order{
		Customer: "ann", Paid: time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("x", 3600)), Items: []item{{"pen", 2}}, Count: 65535,
		Share: 0.1, Gift: true, Raw: []byte{0}, Big: big.NewInt(1 << 40), Price: 3, Grid: [][]int{{1}, nil}, Cached: 1, hidden: 1,
	}
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error {
		return errors.Join(orders.Set(tx, "1", full), orders.Set(tx, "2", order{}))
	}))
	full.Cached, full.hidden, full.Paid = 0, 0, full.Paid.UTC()
	require.NoError(t, db.View(t.Context(), func(tx *percolator.Txn) error {
		got, err := orders.Get(t.Context(), tx, "1")
		require.NoError(t, err)
		require.Equal(t, full, got)
		_, err = orders.Get(t.Context(), tx, "3")
		require.ErrorIs(t, err, percolator.ErrNotFound)
		_, err = tx.Get(t.Context(), percolator.Cell{Table: "order", Row: "2", Column: "paid"})
		require.ErrorIs(t, err, percolator.ErrNotFound, "omitzero")
		b, err := tx.Get(t.Context(), percolator.Cell{Table: "order", Row: "1", Column: "Price"})
		require.NoError(t, err)
		require.Equal(t, "3", string(b), "JSON of its own counts only both ways")
		keys := ""
		for row, err := range orders.Scan(t.Context(), tx, percolator.Range{}) {
			require.NoError(t, err)
			keys += row.Key + row.Value.Customer
		}
		require.Equal(t, "1ann2", keys)
		for _, err := range orders.Scan(t.Context(), tx, percolator.Range{Table: "x"}) {
			require.ErrorIs(t, err, percolator.ErrInvalid)
		}
		return nil
	}))
}

// Updates of different fields do not conflict, and write those alone.
func TestTableUpdates(t *testing.T) {
	t.Parallel()
	orders, err := typed.NewTable[order]("order")
	require.NoError(t, err)
	db := percolatetest.Open(t)
	full := order{Customer: "ann", Paid: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), Raw: []byte{}}
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error {
		return errors.Join(orders.Set(tx, "1", full), orders.Set(tx, "2", order{}))
	}))
	first, err := db.Begin(t.Context())
	require.NoError(t, err)
	second, err := db.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, orders.Update(t.Context(), first, "1", func(o *order, found bool) error {
		require.True(t, found)
		o.Paid = time.Time{}
		return nil
	}))
	require.NoError(t, orders.Update(t.Context(), second, "1", func(o *order, _ bool) error { o.Count = 1; return nil }))
	require.NoError(t, first.Commit(t.Context()))
	require.NoError(t, second.Commit(t.Context()))
	stop := errors.New("stop")
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error {
		require.ErrorIs(t, orders.Update(t.Context(), tx, "1", func(o *order, _ bool) error { o.Count = 2; return stop }), stop)
		require.NoError(t, orders.Update(t.Context(), tx, "4", func(o *order, found bool) error {
			require.False(t, found)
			o.Customer = "bob"
			return nil
		}))
		require.NoError(t, orders.Delete(tx, "2"))
		require.ErrorIs(t, orders.Set(tx, "5", order{Paid: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}), percolator.ErrInvalid)
		return tx.Set(percolator.Cell{Table: "order", Row: "6", Column: "Count"}, []byte("70000"))
	}))
	require.NoError(t, db.View(t.Context(), func(tx *percolator.Txn) error {
		got, err := orders.Get(t.Context(), tx, "1")
		require.NoError(t, err)
		want := full
		want.Paid, want.Count = time.Time{}, 1
		require.Equal(t, want, got)
		_, err = orders.Get(t.Context(), tx, "2")
		require.ErrorIs(t, err, percolator.ErrNotFound)
		bob, err := orders.Get(t.Context(), tx, "4")
		require.NoError(t, err)
		require.Equal(t, "bob", bob.Customer)
		_, err = orders.Get(t.Context(), tx, "6")
		require.ErrorIs(t, err, typed.ErrDecode)
		require.ErrorContains(t, err, "Count")
		return nil
	}))
}

// TestTableMakesARow has Update make a row. It has a cell of every field, so two that make it conflict, but for fields with omitzero that stay zero: these
// are not written at all.
func TestTableMakesARow(t *testing.T) {
	t.Parallel()
	type visit struct {
		Name string
		Pay  int       `percolator:"pay,omitzero"`
		Left time.Time `percolator:"left,omitzero"`
	}
	visits, err := typed.NewTable[visit]("visit")
	require.NoError(t, err)
	db, ctx := percolatetest.Open(t), t.Context()
	update := func(tx *percolator.Txn, row string, f func(v *visit)) {
		require.NoError(t, visits.Update(ctx, tx, row, func(v *visit, found bool) error {
			require.False(t, found)
			f(v)
			return nil
		}))
	}
	begin := func() *percolator.Txn {
		tx, err := db.Begin(ctx)
		require.NoError(t, err)
		return tx
	}
	zero := begin()
	update(zero, "zero", func(*visit) {})
	require.NoError(t, zero.Commit(ctx))
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		_, err := visits.Get(ctx, tx, "zero")
		return err
	}), "a row of which all is zero is none")

	first, second, third := begin(), begin(), begin()
	update(first, "new", func(v *visit) { v.Pay = 1 })
	update(second, "new", func(v *visit) { v.Name = "ann" })
	require.NoError(t, third.Set(percolator.Cell{Table: "visit", Row: "new", Column: "left"}, []byte("2026-01-02T03:04:05Z")))
	require.NoError(t, first.Commit(ctx))
	require.ErrorIs(t, second.Commit(ctx), percolator.ErrConflict)
	require.NoError(t, third.Commit(ctx), "a field that stayed zero was written")
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		name, err := tx.Get(ctx, percolator.Cell{Table: "visit", Row: "new", Column: "Name"})
		require.NoError(t, err)
		require.Empty(t, name)
		return nil
	}))
}

func TestTablesThatCannotBe(t *testing.T) {
	t.Parallel()
	check := func(_ any, err error) {
		t.Helper()
		require.ErrorIs(t, err, percolator.ErrInvalid)
	}
	type itself []itself
	check(typed.NewTable[order](""))
	check(typed.NewTable[int]("t"))
	check(typed.NewTable[struct{}]("t"))
	check(typed.NewTable[struct{ A chan int }]("t"))
	check(typed.NewTable[struct{ A []func() }]("t"))
	check(typed.NewTable[struct {
		A int `percolator:"x"`
		B int `percolator:"x"`
	}]("t"))
	check(typed.NewTable[struct {
		A int `percolator:"x,omitempty"`
	}]("t"))
	check(typed.NewTable[struct {
		a int `percolator:"x"`
	}]("t"))
	_, err := typed.NewTable[struct{ A itself }]("t")
	require.NoError(t, err)
}

// Errors get into logs and records of parked runs, so they say what is wrong with a stored value, and not the value.
func TestErrorsHoldNoValues(t *testing.T) {
	t.Parallel()
	type row struct {
		Count int8
		Ratio float32
		Yes   bool
		At    time.Time
		List  []int8
	}
	rows, err := typed.NewTable[row]("t")
	require.NoError(t, err)
	db := percolatetest.Open(t)
	for column, stored := range map[string]string{"Count": "4111x", "Ratio": "4111x", "Yes": "4111", "At": "4111-1x", "List": "[4111]"} {
		require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error {
			return tx.Set(percolator.Cell{Table: "t", Row: column, Column: column}, []byte(stored))
		}))
		require.NoError(t, db.View(t.Context(), func(tx *percolator.Txn) error {
			_, err := rows.Get(t.Context(), tx, column)
			require.ErrorIs(t, err, typed.ErrDecode)
			require.ErrorContains(t, err, column)
			require.NotContains(t, err.Error(), "4111")
			return nil
		}))
	}
	_, err = typed.Number[int]{}.Decode(t.Context(), cell, []byte("4111-1111"))
	require.ErrorIs(t, err, typed.ErrDecode)
	require.NotContains(t, err.Error(), "4111")
	_, err = typed.JSON[int8]{}.Decode(t.Context(), cell, []byte("4111"))
	require.ErrorIs(t, err, typed.ErrDecode)
	require.NotContains(t, err.Error(), "4111")
}

// TestTimeInAny: a field of type any is JSON whatever it holds, and so the row can be read.
func TestTimeInAny(t *testing.T) {
	t.Parallel()
	type row struct {
		Name  string
		Extra any
		At    time.Time
	}
	ctx, db := t.Context(), percolatetest.Open(t)
	table, err := typed.NewTable[row]("t")
	require.NoError(t, err)
	at := time.Date(2024, 5, 6, 7, 8, 9, 10, time.UTC)
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error { return table.Set(tx, "1", row{"ann", at, at}) }))
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		got, err := table.Get(ctx, tx, "1")
		require.Equal(t, row{"ann", at.Format(time.RFC3339Nano), at}, got)
		return err
	}))
}
