package kit

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Params reads the parameters of a store's URL, the part behind the question mark. Each
// method reads one parameter, and [Params.Err] returns the first thing that is wrong,
// unknown parameters included. Errors match rowstore.ErrInvalid. They name parameters that
// the program knows, and show no value: it may be a part of a password that was not
// encoded.
//
//	p := kit.ParseParams(query)
//	opts.CacheSize = p.Size("cache", 0)
//	opts.MustExist = p.Bool("mustexist", false)
//	return opts, p.Err()
type Params struct {
	values url.Values
	known  []string
	err    error
}

// ParseParams reads a query such as "cache=64MB&mustexist=true". Its errors come with Err.
func ParseParams(query string) *Params {
	values, err := url.ParseQuery(query)
	if err != nil {
		return &Params{err: fmt.Errorf("%w: the URL's parameters are not well encoded", rowstore.ErrInvalid)}
	}
	return &Params{values: values}
}

// fail keeps the first error.
func (p *Params) fail(name, want string) {
	if p.err == nil {
		p.err = fmt.Errorf("%w: the parameter %s is not %s", rowstore.ErrInvalid, name, want)
	}
}

// take returns the value of a parameter and whether it is there.
func (p *Params) take(name string) (string, bool) {
	p.known = append(p.known, name)
	values := p.values[name]
	switch {
	case len(values) > 1:
		p.fail(name, "there once")
		return "", false
	case len(values) == 0:
		return "", false
	default:
		return values[0], true
	}
}

// String returns a parameter as it is, def if it is not there.
func (p *Params) String(name, def string) string {
	if v, ok := p.take(name); ok {
		return v
	}
	return def
}

// Strings returns all values of a parameter that may be there more than once, nil if it is
// not there.
func (p *Params) Strings(name string) []string {
	p.known = append(p.known, name)
	return p.values[name]
}

// OneOf returns a parameter that is one of a few words, def if it is not there.
func (p *Params) OneOf(name, def string, words ...string) string {
	v, ok := p.take(name)
	if !ok {
		return def
	}
	if !slices.Contains(words, v) {
		p.fail(name, "one of "+strings.Join(words, ", "))
		return def
	}
	return v
}

// Bool returns a parameter that is true or false (or another spelling that
// strconv.ParseBool knows, or on or off), def if it is not there.
func (p *Params) Bool(name string, def bool) bool {
	v, ok := p.take(name)
	if !ok {
		return def
	}
	switch v {
	case "on":
		return true
	case "off":
		return false
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		p.fail(name, "true or false")
		return def
	}
	return b
}

// Int returns a parameter that is a whole number from least to most, def if it is not there.
func (p *Params) Int(name string, def, least, most int) int {
	v, ok := p.take(name)
	if !ok {
		return def
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < least || n > most {
		p.fail(name, fmt.Sprintf("a whole number from %d to %d", least, most))
		return def
	}
	return n
}

// Duration returns a parameter that is a time above 0, such as 500ms or 3s, def if it is
// not there.
func (p *Params) Duration(name string, def time.Duration) time.Duration {
	v, ok := p.take(name)
	if !ok {
		return def
	}
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		p.fail(name, "a time such as 500ms or 3s")
		return def
	}
	return d
}

// Size returns a parameter that is a number of bytes above 0, def if it is not there. It
// may have a unit: KB, MB, GB and TB, or K, KiB and so on, are powers of 1024.
func (p *Params) Size(name string, def int64) int64 {
	v, ok := p.take(name)
	if !ok {
		return def
	}
	// Its length may change: bytes that are no UTF-8 grow.
	upper := strings.ToUpper(v)
	digits := strings.TrimRight(upper, "KMGTIB")
	shift, ok := map[string]uint{
		"": 0, "B": 0, "K": 10, "KB": 10, "KIB": 10, "M": 20, "MB": 20, "MIB": 20, "G": 30, "GB": 30, "GIB": 30, "T": 40, "TB": 40, "TIB": 40,
	}[upper[len(digits):]]
	n, err := strconv.ParseInt(digits, 10, 64)
	if !ok || err != nil || n <= 0 || n > 1<<62>>shift {
		p.fail(name, "a size such as 64MB")
		return def
	}
	return n << shift
}

// Err returns the first error of the methods above. If there is none, it returns one for a
// parameter that none of them asked for, with a list of those that they did.
func (p *Params) Err() error {
	if p.err != nil {
		return p.err
	}
	for name := range p.values {
		if !slices.Contains(p.known, name) {
			known := slices.Compact(slices.Sorted(slices.Values(p.known)))
			if len(known) == 0 {
				return fmt.Errorf("%w: the URL has a parameter, and the store takes none", rowstore.ErrInvalid)
			}
			return fmt.Errorf("%w: the URL has an unknown parameter (known: %s)", rowstore.ErrInvalid, strings.Join(known, ", "))
		}
	}
	return nil
}
