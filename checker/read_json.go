package checker

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// peek passes over space and gives the next byte, 0 at the end.
func (d *decoder) peek() byte {
	for d.pos < len(d.text) {
		switch c := d.text[d.pos]; c {
		case ' ', '\t', '\r', '\n':
			d.pos++
		default:
			return c
		}
	}
	return 0
}

func (d *decoder) expect(c byte) error {
	got := d.peek()
	if got != c {
		if d.pos >= len(d.text) {
			return errCutOff
		}
		return fmt.Errorf("%q where %q should be", got, c)
	}
	d.pos++
	return nil
}

// each reads what stands between open and shut, separated by commas.
func (d *decoder) each(open, shut byte, element func() error) error {
	if err := d.expect(open); err != nil {
		return err
	}
	if d.peek() == shut {
		d.pos++
		return nil
	}
	for {
		if err := element(); err != nil {
			return err
		}
		if d.peek() == shut {
			d.pos++
			return nil
		}
		if err := d.expect(','); err != nil {
			return err
		}
	}
}

func (d *decoder) word(w string) error {
	d.peek()
	if len(d.text)-d.pos < len(w) || string(d.text[d.pos:d.pos+len(w)]) != w {
		return fmt.Errorf("%s expected", w)
	}
	d.pos += len(w)
	return nil
}

// string reads a string. The bytes are valid until the next call.
func (d *decoder) string() ([]byte, error) {
	if err := d.expect('"'); err != nil {
		return nil, err
	}
	from := d.pos
	plain := true
	for d.pos < len(d.text) {
		c := d.text[d.pos]
		d.pos++
		switch {
		case c == '"':
			if plain {
				return d.text[from : d.pos-1], nil
			}
			// Rare: left to the standard library.
			var s string
			if err := json.Unmarshal(d.text[from-1:d.pos], &s); err != nil {
				return nil, fmt.Errorf("bad string: %w", err)
			}
			return []byte(s), nil
		case c == '\\':
			plain = false
			d.pos++
		case c < ' ' || c >= utf8.RuneSelf:
			plain = false
		}
	}
	return nil, errCutOff
}

func (d *decoder) text2() (string, error) {
	raw, err := d.string()
	return string(raw), err
}

// number gives the text of a number.
func (d *decoder) number() string {
	d.peek()
	from := d.pos
	for d.pos < len(d.text) {
		switch c := d.text[d.pos]; {
		case c >= '0' && c <= '9', c == '-', c == '+', c == '.', c == 'e', c == 'E':
			d.pos++
			continue
		}
		break
	}
	return string(d.text[from:d.pos])
}

func (d *decoder) int() (int64, error) {
	d.peek()
	// The usual number is read without making a string of it.
	var v int64
	at, from := d.pos, d.pos
	if at < len(d.text) && d.text[at] == '-' {
		at++
	}
	first := at
	for at < len(d.text) && at-first < 18 && d.text[at] >= '0' && d.text[at] <= '9' {
		v = 10*v + int64(d.text[at]-'0')
		at++
	}
	if at > first && at < len(d.text) {
		switch d.text[at] {
		case ',', ']', '}', ' ', '\t', '\r', '\n':
			if d.pos = at; first > from {
				v = -v
			}
			return v, nil
		}
	}
	v, err := strconv.ParseInt(d.number(), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("not an integer: %w", err)
	}
	return v, nil
}

func (d *decoder) uint() (uint64, error) {
	v, err := strconv.ParseUint(d.number(), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("not a timestamp: %w", err)
	}
	return v, nil
}

// skip passes over a value.
func (d *decoder) skip(depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("nested deeper than %d", maxDepth)
	}
	switch c := d.peek(); c {
	case '{':
		return d.each('{', '}', func() error {
			if _, err := d.string(); err != nil {
				return err
			}
			if err := d.expect(':'); err != nil {
				return err
			}
			return d.skip(depth + 1)
		})
	case '[':
		return d.each('[', ']', func() error { return d.skip(depth + 1) })
	case '"':
		_, err := d.string()
		return err
	case 't':
		return d.word("true")
	case 'f':
		return d.word("false")
	case 'n':
		return d.word("null")
	}
	if d.number() == "" {
		return errors.New("no value")
	}
	return nil
}
