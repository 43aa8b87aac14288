package typed

import (
	"bytes"
	"context"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// Table stores structs as rows: each exported field is a column. So transactions that change different fields of a
// row do not conflict, and observers are set off by the field that they name. Make one with NewTable.
//
// A field's column has the name of the field, or that in its tag:
//
//	type Order struct {
//		Customer string    `percolator:"customer"`
//		Paid     time.Time `percolator:"paid,omitzero"` // no cell until it is paid
//		Items    []Item    `percolator:"items"`         // as JSON
//		Cached   int       `percolator:"-"`             // not stored
//	}
//
// Texts and bytes are stored as they are, numbers and truth values as Go writes them, times as RFC 3339 with nanoseconds, and everything
// else as JSON: an embedded struct too, in one column, and types that have JSON of their own both ways. A field with omitzero has no cell while it is the zero value of its type. Columns
// that the struct does not name are left alone. The zero Table is of no use: its methods return percolator.ErrInvalid.
type Table[T any] struct {
	name   string
	fields []field
}

// field is a field of the struct and its column.
type field struct {
	index    int
	column   string
	omitZero bool
}

const tag = "percolator"

// NewTable makes a Table of a name. Errors match percolator.ErrInvalid: T is no struct or has no field to store, two fields have
// one column, a tag has another option than omitzero or is on a field that is not exported, T embeds a struct that is not exported (its fields
// would be lost), or the type of a field cannot be stored as JSON: a channel, an interface with methods, a struct
// without exported fields or JSON of its own, say.
func NewTable[T any](name string) (*Table[T], error) {
	bad := func(format string, args ...any) (*Table[T], error) {
		return nil, fmt.Errorf("typed: NewTable: %w: "+format, append([]any{percolator.ErrInvalid}, args...)...)
	}
	t := reflect.TypeFor[T]()
	if name == "" {
		return bad("the table's name is empty")
	}
	if t.Kind() != reflect.Struct {
		return bad("%v is no struct", t)
	}
	table := &Table[T]{name: name}
	for i := range t.NumField() {
		f := t.Field(i)
		value, tagged := f.Tag.Lookup(tag)
		column, options, _ := strings.Cut(value, ",")
		switch {
		case value == "-" || !f.IsExported() && !tagged && !(f.Anonymous && showsFields(f.Type)):
			continue
		case !f.IsExported() && f.Anonymous:
			return bad("%v embeds %v, which is not exported, so that its fields would not be stored: name the field and export it, or tag it with \"-\"", t, f.Type)
		case !f.IsExported():
			return bad("field %s of %v has a tag and is not exported", f.Name, t)
		case options != "" && options != "omitzero":
			return bad("field %s of %v has the option %q in its tag; there is only omitzero", f.Name, t, options)
		case !storable(f.Type):
			return bad("field %s of %v has the type %v, which cannot be stored", f.Name, t, f.Type)
		}
		if column == "" {
			column = f.Name
		}
		if slices.ContainsFunc(table.fields, func(o field) bool { return o.column == column }) {
			return bad("two fields of %v have the column %q", t, column)
		}
		table.fields = append(table.fields, field{index: i, column: column, omitZero: options != ""})
	}
	if len(table.fields) == 0 {
		return bad("%v has no field to store", t)
	}
	return table, nil
}

// storable tells whether a type can be stored, as far as the type alone tells, so that nothing is lost silently, and nothing is written that
// cannot be read.
func storable(t reflect.Type) bool {
	for range 8 { // types may contain themselves
		if ownJSON(t) || ownText(t) {
			return true
		}
		switch t.Kind() { //nolint:exhaustive // all others can
		case reflect.Chan, reflect.Func, reflect.UnsafePointer, reflect.Complex64, reflect.Complex128, reflect.Uintptr:
			return false
		case reflect.Interface:
			return t.NumMethod() == 0
		case reflect.Struct:
			return t.NumField() == 0 || showsFields(t)
		case reflect.Map:
			if k := t.Key(); k.Kind() != reflect.String && !(reflect.Int <= k.Kind() && k.Kind() <= reflect.Uint64) && !ownText(k) {
				return false
			}
			t = t.Elem()
		case reflect.Pointer, reflect.Slice, reflect.Array:
			t = t.Elem()
		default:
			return true
		}
	}
	return true
}

// showsFields tells whether a type is a struct, or a pointer to one, with exported fields.
func showsFields(t reflect.Type) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct && slices.ContainsFunc(reflect.VisibleFields(t), reflect.StructField.IsExported)
}

// check returns an error for a Table that NewTable has not made.
func (t *Table[T]) check() error {
	if t == nil || len(t.fields) == 0 {
		return fmt.Errorf("typed: %w: the Table was not made by NewTable", percolator.ErrInvalid)
	}
	return nil
}

// Columns lists the columns, in the order of the fields.
func (t *Table[T]) Columns() []string {
	if t == nil {
		return nil
	}
	columns := make([]string, len(t.fields))
	for i, f := range t.fields {
		columns[i] = f.column
	}
	return columns
}

func (t *Table[T]) cells(row string) []percolator.Cell {
	cells := make([]percolator.Cell, len(t.fields))
	for i, f := range t.fields {
		cells[i] = percolator.Cell{Table: t.name, Row: row, Column: f.column}
	}
	return cells
}

// Get reads a row, in one call. Fields without a cell are zero. If no field has one, the error matches
// percolator.ErrNotFound; if a cell cannot be decoded, ErrDecode.
func (t *Table[T]) Get(ctx context.Context, tx *percolator.Txn, row string) (T, error) {
	var none T
	if err := t.check(); err != nil {
		return none, err
	}
	stored, err := tx.GetMany(ctx, t.cells(row)...)
	if err != nil {
		return none, err
	}
	if len(stored) == 0 {
		return none, fmt.Errorf("%w: row %q of table %q", percolator.ErrNotFound, row, t.name)
	}
	columns := make(map[string][]byte, len(stored))
	for cell, b := range stored {
		columns[cell.Column] = b
	}
	return t.decode(row, columns)
}

// Set writes all fields of a row, whatever is there: those with omitzero that are zero are deleted.
func (t *Table[T]) Set(tx *percolator.Txn, row string, value T) error {
	if err := t.check(); err != nil {
		return err
	}
	encoded, err := t.encode(row, value)
	if err != nil {
		return err
	}
	return t.put(tx, row, encoded, nil)
}

// Update reads a row, lets f change it, and writes those fields alone that f has changed. An error of f is returned as it is, and nothing is
// written. Others that change the same fields at the same time conflict. Those that change other fields do not, whatever f went by; use
// percolator.Serializable where that matters. A nil f is percolator.ErrInvalid.
//
// A row that is not there is zero; found tells f whether it is there. Update makes it, also if f changes nothing: a new row has a cell of every
// field, but for those with omitzero that stay zero, which are not written. So two that make a row at
// the same time conflict, whatever they set, and observers of all those fields run. If every field has omitzero, two that set different ones do not
// conflict, and a row of zeros is not there.
func (t *Table[T]) Update(ctx context.Context, tx *percolator.Txn, row string, f func(value *T, found bool) error) error {
	if f == nil {
		return fmt.Errorf("typed: Update: %w: the function is nil", percolator.ErrInvalid)
	}
	value, err := t.Get(ctx, tx, row)
	found := err == nil
	if err != nil && !errors.Is(err, percolator.ErrNotFound) {
		return err
	}
	before := make([][]byte, len(t.fields)) // without a cell
	if found {
		if before, err = t.encode(row, value); err != nil {
			return err
		}
	}
	if err := f(&value, found); err != nil {
		return err
	}
	after, err := t.encode(row, value)
	if err != nil {
		return err
	}
	return t.put(tx, row, after, before)
}

// Delete removes the cells of all fields. Other columns of the row stay.
func (t *Table[T]) Delete(tx *percolator.Txn, row string) error {
	if err := t.check(); err != nil {
		return err
	}
	for _, cell := range t.cells(row) {
		if err := tx.Delete(cell); err != nil {
			return err
		}
	}
	return nil
}

// Scan visits the rows of a range that have a cell in one of the fields, as Txn.Scan does. The range's Table and Columns must be
// empty. A row that cannot be decoded gives an error that matches ErrDecode, with the row's key. A loop that goes on after it gets the
// rows behind it.
func (t *Table[T]) Scan(ctx context.Context, tx *percolator.Txn, r percolator.Range) iter.Seq2[Row[T], error] {
	return func(yield func(Row[T], error) bool) {
		if err := t.check(); err != nil {
			yield(Row[T]{}, err)
			return
		}
		if r.Table != "" || len(r.Columns) > 0 {
			yield(Row[T]{}, fmt.Errorf("typed: Scan: %w: the range names a table or columns, which the Table does", percolator.ErrInvalid))
			return
		}
		r.Table, r.Columns = t.name, t.Columns()
		for row, err := range tx.Scan(ctx, r) {
			if err != nil {
				yield(Row[T]{}, err)
				return
			}
			out := Row[T]{Key: row.Key}
			out.Value, err = t.decode(row.Key, row.Columns)
			if !yield(out, err) {
				return
			}
		}
	}
}

// encode returns the bytes of each field; nil for one that has no cell.
func (t *Table[T]) encode(row string, value T) ([][]byte, error) {
	v := reflect.ValueOf(value)
	out := make([][]byte, len(t.fields))
	for i, f := range t.fields {
		fv := v.Field(f.index)
		if f.omitZero && fv.IsZero() {
			continue
		}
		b, err := encodeField(fv)
		if err != nil {
			return nil, fmt.Errorf("typed: encoding column %q of row %q of table %q: %w", f.column, row, t.name, err)
		}
		out[i] = b
	}
	return out, nil
}

// put writes the fields that differ from before; nil stands for a row that may be anything, and nil of a field for no cell.
func (t *Table[T]) put(tx *percolator.Txn, row string, after, before [][]byte) error {
	for i, cell := range t.cells(row) {
		if before != nil && (after[i] == nil) == (before[i] == nil) && bytes.Equal(after[i], before[i]) {
			continue
		}
		var err error
		if after[i] == nil {
			err = tx.Delete(cell)
		} else {
			err = tx.Set(cell, after[i])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *Table[T]) decode(row string, columns map[string][]byte) (T, error) {
	var value T
	v := reflect.ValueOf(&value).Elem()
	for _, f := range t.fields {
		stored, found := columns[f.column]
		if !found {
			continue
		}
		if err := decodeField(v.Field(f.index), stored); err != nil {
			var none T
			return none, fmt.Errorf("typed: column %q of row %q of table %q: %w", f.column, row, t.name, undecodable(err))
		}
	}
	return value, nil
}

// ownJSON tells whether a type has JSON of its own, both ways.
func ownJSON(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[json.Marshaler]()) && p.Implements(reflect.TypeFor[json.Unmarshaler]())
}

// ownText tells whether a type has a text of its own, both ways, which encoding/json takes.
func ownText(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[encoding.TextMarshaler]()) && p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// plainBytes tells whether a type is that of bytes, perhaps by another name.
func plainBytes(t reflect.Type) bool {
	return t.Kind() == reflect.Slice && t.Elem() == reflect.TypeFor[byte]()
}

// encodeField goes by the type of the field alone, as decodeField does: what a field of type any holds is JSON, whatever it is.
func encodeField(v reflect.Value) ([]byte, error) {
	if v.Type() == reflect.TypeFor[time.Time]() {
		value, _ := v.Interface().(time.Time)
		if y := value.UTC().Year(); y < 0 || y > 9999 {
			return nil, fmt.Errorf("%w: the year %d; it must be from 0 to 9999", percolator.ErrInvalid, y)
		}
		return value.UTC().AppendFormat([]byte{}, time.RFC3339Nano), nil
	}
	if ownJSON(v.Type()) {
		return pointedJSON(v)
	}
	if plainBytes(v.Type()) {
		return append([]byte{}, v.Bytes()...), nil
	}
	switch v.Kind() { //nolint:exhaustive // all others are JSON
	case reflect.String:
		return []byte(v.String()), nil
	case reflect.Bool:
		return strconv.AppendBool(nil, v.Bool()), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return strconv.AppendInt(nil, v.Int(), 10), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return strconv.AppendUint(nil, v.Uint(), 10), nil
	case reflect.Float32, reflect.Float64:
		return strconv.AppendFloat(nil, v.Float(), 'g', -1, v.Type().Bits()), nil
	}
	return pointedJSON(v)
}

// pointedJSON writes a value as JSON by a pointer to it. Else methods of pointers would not be called, which are called to
// read it again.
func pointedJSON(v reflect.Value) ([]byte, error) {
	p := reflect.New(v.Type())
	p.Elem().Set(v)
	return json.Marshal(p.Interface())
}

func decodeField(v reflect.Value, stored []byte) error {
	if target, ok := v.Addr().Interface().(*time.Time); ok {
		var err error
		*target, err = time.Parse(time.RFC3339Nano, string(stored))
		return err
	}
	if ownJSON(v.Type()) {
		return json.Unmarshal(stored, v.Addr().Interface())
	}
	if plainBytes(v.Type()) {
		v.SetBytes(append([]byte{}, stored...))
		return nil
	}
	s := string(stored)
	switch v.Kind() { //nolint:exhaustive // all others are JSON
	case reflect.String:
		v.SetString(s)
		return nil
	case reflect.Bool:
		b, err := strconv.ParseBool(s)
		v.SetBool(b)
		return err
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		i, err := strconv.ParseInt(s, 10, v.Type().Bits())
		v.SetInt(i)
		return err
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		u, err := strconv.ParseUint(s, 10, v.Type().Bits())
		v.SetUint(u)
		return err
	case reflect.Float32, reflect.Float64:
		f, err := strconv.ParseFloat(s, v.Type().Bits())
		v.SetFloat(f)
		return err
	}
	return json.Unmarshal(stored, v.Addr().Interface())
}
