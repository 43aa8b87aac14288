package ui

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net"
	"net/http"
	"net/url"
	"strings"
)

// mostForm bounds a form. Names of a cell have at most 3 kB, and each byte may be typed with three.
const mostForm = 64 << 10

// protect sets what every answer says to a browser.
func protect(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	// A browser names the origin of a form only if it may name the referrer to it.
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// hostOf is the name in a Host header, without the port, as Options.Hosts has it.
func hostOf(header string) string {
	name, _, err := net.SplitHostPort(header)
	if err != nil {
		name = header
	}
	return strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(name, "["), "]"))
}

// sameOrigin tells whether a browser says that a request comes from a page of this origin. A request that says nothing is
// refused: every browser says it of a form.
func sameOrigin(r *http.Request) bool {
	site, origin := r.Header.Get("Sec-Fetch-Site"), r.Header.Get("Origin")
	switch {
	case site == "" && origin == "", site != "" && site != "same-origin":
		return false
	case origin == "":
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && u.Host == r.Host && (u.Scheme == "https" || u.Scheme == "http" && r.TLS == nil)
}

// formSecret is what a form of this page holds, and nobody else knows.
func (h *Handler) formSecret(a Access) string {
	mac := hmac.New(sha256.New, h.o.Secret)
	// The length keeps two pairs apart that would read the same.
	_, _ = mac.Write([]byte{byte(len(a.Session) >> 8), byte(len(a.Session))})
	_, _ = mac.Write([]byte(a.Session + a.Who))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// genuine tells whether a form is of this page, for this person.
func (h *Handler) genuine(r *http.Request, a Access) bool {
	return hmac.Equal([]byte(r.PostFormValue("secret")), []byte(h.formSecret(a)))
}
