package ui

import (
	"fmt"
	"net/url"
	"strconv"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/percolator"
)

// query is what a request asks for.
type query struct {
	h      *Handler
	access Access
	values url.Values
	shown  bool // values of cells are shown
}

// actions tells whether the request may change something.
func (q *query) actions() bool { return q.access.Actions && q.h.db != nil }

// name reads a name in the form that can be typed, "" without one.
func (q *query) name(of string) (string, error) {
	s, err := admin.ParseBytes(q.values.Get(of))
	if err != nil {
		return "", fmt.Errorf("%s: %w", of, err)
	}
	return s, nil
}

// names reads several names.
func (q *query) names(of ...string) ([]string, error) {
	out := make([]string, len(of))
	for i, n := range of {
		var err error
		if out[i], err = q.name(n); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (q *query) cell() (percolator.Cell, error) {
	n, err := q.names("table", "row", "column")
	if err != nil {
		return percolator.Cell{}, err
	}
	return percolator.Cell{Table: n[0], Row: n[1], Column: n[2]}, nil
}

// stamp reads a timestamp, 0 without one.
func (q *query) stamp(of string) (percolator.Timestamp, error) {
	s := q.values.Get(of)
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("%s: %w: %q is no timestamp; it must be a number, as the page shows it", of, percolator.ErrInvalid, s)
	}
	return percolator.Timestamp(n), nil
}

// link makes the address of a view, relative to the page. Parts come in pairs: a name, and bytes in the form that can be typed or a
// text. Empty ones are left out.
func link(view string, parts ...any) (string, error) {
	v := url.Values{}
	for i := 0; i+1 < len(parts); i += 2 {
		name, ok := parts[i].(string)
		if !ok {
			return "", fmt.Errorf("ui: a link to %s: %v is no name", view, parts[i])
		}
		if b, is := parts[i+1].(admin.Bytes); is && b == "" || parts[i+1] == "" {
			continue
		}
		v.Set(name, fmt.Sprint(parts[i+1]))
	}
	if len(v) == 0 {
		return view, nil
	}
	return view + "?" + v.Encode(), nil
}
