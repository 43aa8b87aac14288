package ui

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// LoginOptions are for NewLogin.
type LoginOptions struct {
	// Access is what everybody who knows the token may do. Its Session is set for each login.
	Access Access
	// Lifetime is for how long a login holds. Default 12 h.
	Lifetime time.Duration
	// Secure has the browser send the cookie over TLS alone, also if TLS ends before this program. Over TLS it is always so.
	Secure bool
}

// Login lets people in who know a token. They type it into a form, and get a cookie that stands for it, so the token is in no URL, no
// history and no log. Logins are known in this process alone. Its methods may be called concurrently.
type Login struct {
	token  [sha256.Size]byte
	o      LoginOptions
	cookie string

	mu    sync.Mutex
	until map[[sha256.Size]byte]time.Time // of logins, by the digests of their cookies
}

const (
	leastToken = 20  // bytes: whoever makes one by hand must not make a guessable one
	mostLogins = 256 // at once: then the one that ends first ends
)

// NewLogin makes a Login. A token of fewer than 20 bytes or a negative Lifetime is percolator.ErrInvalid.
func NewLogin(token string, o LoginOptions) (*Login, error) {
	if len(token) < leastToken {
		return nil, fmt.Errorf("ui: NewLogin: %w: the token has %d bytes; it must have %d at least, of random ones", percolator.ErrInvalid, len(token), leastToken)
	}
	if o.Lifetime < 0 {
		return nil, fmt.Errorf("ui: NewLogin: %w: the Lifetime is %v; it may not be negative", percolator.ErrInvalid, o.Lifetime)
	}
	if o.Lifetime == 0 {
		o.Lifetime = 12 * time.Hour
	}
	// Cookies know no ports: pages of two programs on one machine need two names.
	return &Login{token: sha256.Sum256([]byte(token)), o: o, cookie: "percolator_" + rand.Text()[:8], until: map[[sha256.Size]byte]time.Time{}}, nil
}

// Authorize is for New: it lets a request in that has the cookie of a login.
func (l *Login) Authorize(r *http.Request) (Access, error) {
	c, err := r.Cookie(l.cookie)
	if err != nil {
		return Access{}, ErrLogin
	}
	digest := sha256.Sum256([]byte(c.Value))
	l.mu.Lock()
	until, ok := l.until[digest]
	l.mu.Unlock()
	if !ok || time.Now().After(until) {
		return Access{}, ErrLogin
	}
	a := l.o.Access
	a.Session = hex.EncodeToString(digest[:8])
	return a, nil
}

// enter compares a token, in a time that says nothing about it, and sets the cookie.
func (l *Login) enter(w http.ResponseWriter, r *http.Request, token string) bool {
	given := sha256.Sum256([]byte(token))
	if subtle.ConstantTimeCompare(given[:], l.token[:]) != 1 {
		return false
	}
	value := rand.Text()
	now := time.Now()
	l.mu.Lock()
	var first [sha256.Size]byte
	for digest, until := range l.until {
		if now.After(until) {
			delete(l.until, digest)
		} else if at, ok := l.until[first]; !ok || until.Before(at) {
			first = digest
		}
	}
	if len(l.until) >= mostLogins {
		delete(l.until, first)
	}
	l.until[sha256.Sum256([]byte(value))] = now.Add(l.o.Lifetime)
	l.mu.Unlock()
	l.set(w, r, value, int(l.o.Lifetime/time.Second))
	return true
}

// set sets the cookie. Without a path it holds for the folder of the page, which the browser knows best.
func (l *Login) set(w http.ResponseWriter, r *http.Request, value string, seconds int) {
	http.SetCookie(w, &http.Cookie{Name: l.cookie, Value: value, MaxAge: seconds, HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: l.o.Secure || r.TLS != nil}) //nolint:gosec // plain HTTP on the loopback has no other
}

// leave ends the login of a request.
func (l *Login) leave(w http.ResponseWriter, r *http.Request) {
	if c, err := r.Cookie(l.cookie); err == nil {
		l.mu.Lock()
		delete(l.until, sha256.Sum256([]byte(c.Value)))
		l.mu.Unlock()
	}
	l.set(w, r, "", -1)
}

// login serves the form for the token.
func (h *Handler) login(w http.ResponseWriter, r *http.Request) {
	q := &query{h: h}
	if r.Method != http.MethodPost {
		h.render(w, http.StatusOK, "login", &page{Title: "Login", View: "login", Data: ""}, q)
		return
	}
	if !h.o.Login.enter(w, r, r.PostFormValue("token")) {
		h.o.Logger.Warn("ui: a login with a wrong token", "from", r.RemoteAddr)
		h.render(w, http.StatusForbidden, "login", &page{Title: "Login", View: "login", Data: "That is not the token."}, q)
		return
	}
	w.Header().Set("Location", "./")
	w.WriteHeader(http.StatusSeeOther)
}
