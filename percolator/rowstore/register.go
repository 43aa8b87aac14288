package rowstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// registry has what opens a store, by scheme.
var registry = struct {
	sync.RWMutex
	openers map[string]func(ctx context.Context, url string) (Store, error)
}{openers: map[string]func(ctx context.Context, url string) (Store, error){}}

// Register makes a backend known under URL schemes, as database/sql drivers do.
// A backend calls it from init, with its OpenURL, say. open gets the URL as it was
// written, so that each backend parses what is its own. An error of it must not contain a
// password that the URL holds.
//
// Register panics if a scheme is empty or taken, or open is nil: these are mistakes of a
// program, not of its input.
func Register[S Store](open func(ctx context.Context, url string) (S, error), schemes ...string) {
	if open == nil {
		panic("rowstore: Register without a function")
	}
	registry.Lock()
	defer registry.Unlock()
	for _, scheme := range schemes {
		if _, taken := registry.openers[scheme]; taken || scheme == "" {
			panic(fmt.Sprintf("rowstore: Register of scheme %q, which is empty or registered already", scheme))
		}
		registry.openers[scheme] = func(ctx context.Context, url string) (Store, error) {
			s, err := open(ctx, url)
			if err != nil {
				return nil, err // not s: a nil pointer would be a Store that is not nil
			}
			return s, nil
		}
	}
}

// Schemes lists the registered URL schemes in order.
func Schemes() []string {
	registry.RLock()
	defer registry.RUnlock()
	all := make([]string, 0, len(registry.openers))
	for s := range registry.openers {
		all = append(all, s)
	}
	slices.Sort(all)
	return all
}

// Open opens the store that url names, by its scheme: the part before the first
// colon. If the scheme is not registered, the error matches ErrInvalid and lists those that
// are. If the backend cannot open the store, the error is the backend's.
func Open(ctx context.Context, url string) (Store, error) {
	scheme, rest, ok := strings.Cut(url, ":")
	if !ok {
		scheme = ""
	}
	registry.RLock()
	open := registry.openers[scheme]
	registry.RUnlock()
	if open == nil {
		known := strings.Join(Schemes(), ", ")
		if known == "" {
			known = "none; import a backend, or backends/all"
		}
		// What only looks like a scheme may be a part of a password.
		if !isScheme(scheme) || !strings.HasPrefix(rest, "//") {
			return nil, fmt.Errorf("%w: no backend for the URL, which begins with none of the registered schemes (%s)", ErrInvalid, known)
		}
		return nil, fmt.Errorf("%w: no backend for the URL scheme %q (registered: %s)", ErrInvalid, scheme, known)
	}
	return open(ctx, url)
}

// isScheme tells whether s can be the scheme of a URL.
func isScheme(s string) bool {
	for i, c := range []byte(s) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || !(c >= '0' && c <= '9') && c != '+' && c != '-' && c != '.') {
			return false
		}
	}
	return s != ""
}
