package admin

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/percolate-go/percolate/internal/shown"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
)

// Bytes are a name or a value: any bytes. As text, and so in JSON, they have a form that can be typed, which
// [ParseBytes] takes back: what can be printed stands for itself, a percent sign and every other byte is %XX, a
// space at either end is %20, and % alone stands for the empty text.
type Bytes string

// String returns the form that can be typed.
func (b Bytes) String() string {
	if b == "" {
		return "%"
	}
	return shown.Escape(string(b), func(at int, r rune) bool {
		return r != '%' && r != '\n' && r != '\t' && (r != ' ' || at > 0 && at < len(b)-1)
	})
}

// Word returns the form that can be typed as one word of a shell: in quotes where a shell would not take it as it is, and without a
// dash in front, which would begin a flag.
func (b Bytes) Word() string {
	s := strings.ReplaceAll(b.String(), "'", "%27")
	if strings.HasPrefix(s, "-") {
		s = "%2D" + s[1:]
	}
	for _, r := range s {
		plain := r >= utf8.RuneSelf || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
		if !plain && !strings.ContainsRune("%+,-./:@_", r) {
			return "'" + s + "'"
		}
	}
	return s
}

// MarshalText returns the form that can be typed.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText is [ParseBytes].
func (b *Bytes) UnmarshalText(text []byte) error {
	s, err := ParseBytes(string(text))
	if err == nil {
		*b = Bytes(s)
	}
	return err
}

// ParseBytes takes the typed form of bytes back. What needs no escape may be escaped all the same, and
// bytes that cannot be printed may stand for themselves. A % that two hexadecimal digits do not follow is
// an error that matches percolator.ErrInvalid, unless it is all of the text. The error says where it stands and shows
// nothing else of the text, which may be a secret.
func ParseBytes(text string) (string, error) {
	if text == "%" {
		return "", nil
	}
	var out strings.Builder
	for rest := text; ; {
		before, after, found := strings.Cut(rest, "%")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		if len(after) < 2 {
			return "", badEscape(text, after)
		}
		c, err := strconv.ParseUint(after[:2], 16, 8)
		if err != nil {
			return "", badEscape(text, after)
		}
		out.WriteByte(byte(c))
		rest = after[2:]
	}
}

// badEscape says which % of a text is wrong, by what follows it, of which it shows two bytes at most.
func badEscape(text, after string) error {
	return fmt.Errorf("admin: %w: two hexadecimal digits must follow each %%, and %q follows the one at byte %d; a percent sign is %%25",
		percolator.ErrInvalid, after[:min(len(after), 2)], len(text)-len(after)-1)
}

// Stamp is a timestamp. As text, and so in JSON, it is a decimal number in a string, because it has more digits than
// most readers of JSON keep.
type Stamp percolator.Timestamp

// String returns the decimal number.
func (s Stamp) String() string { return strconv.FormatUint(uint64(s), 10) }

// Time is the wall time of the timestamp, by the oracle, and the zero Time for 0.
func (s Stamp) Time() time.Time {
	if s == 0 {
		return time.Time{}
	}
	return percolator.Timestamp(s).Time().UTC()
}

// MarshalText returns the decimal number.
func (s Stamp) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText takes the decimal number back.
func (s *Stamp) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 10, 64)
	if err != nil || n > uint64(oracle.Max) {
		return fmt.Errorf("admin: %w: %q is no timestamp: write its decimal digits, as Stamp.String shows them", percolator.ErrInvalid, text)
	}
	*s = Stamp(n)
	return nil
}

// Span is a duration. As text, and so in JSON, it is written like 1m30s.
type Span time.Duration

// String writes the duration, rounded to what people read.
func (s Span) String() string {
	d := time.Duration(s)
	if d.Abs() >= 10*time.Second {
		d = d.Round(time.Second)
	}
	switch a := d.Abs(); {
	case a >= 48*time.Hour:
		return fmt.Sprintf("%d days", int(d.Round(24*time.Hour)/(24*time.Hour)))
	case a >= time.Hour:
		return trimZero(d.Round(time.Minute).String(), "0s")
	case a >= 10*time.Second:
		return d.String()
	case a >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Millisecond).String()
}

// trimZero takes the last, empty part of a duration's text off.
func trimZero(s, part string) string {
	s = strings.TrimSuffix(s, part)
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText writes the duration exactly.
func (s Span) MarshalText() ([]byte, error) { return []byte(time.Duration(s).String()), nil }

// UnmarshalText takes what MarshalText has written back.
func (s *Span) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("admin: %w: %q is no duration: write it as 1h30m or 250ms", percolator.ErrInvalid, text)
	}
	*s = Span(d)
	return nil
}

// Cell names a cell in forms that can be typed.
type Cell struct {
	Table  Bytes `json:"table"`
	Row    Bytes `json:"row"`
	Column Bytes `json:"column"`
}

// CellOf returns the cell with its names as Bytes.
func CellOf(c percolator.Cell) Cell { return Cell{Bytes(c.Table), Bytes(c.Row), Bytes(c.Column)} }

// Name returns the cell as package percolator takes it.
func (c Cell) Name() percolator.Cell {
	return percolator.Cell{Table: string(c.Table), Row: string(c.Row), Column: string(c.Column)}
}

// String writes the parts as words of a shell, with blanks between them, as the command takes them.
func (c Cell) String() string {
	return c.Table.Word() + " " + c.Row.Word() + " " + c.Column.Word()
}
