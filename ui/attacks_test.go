package ui_test

import (
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/ui"
)

func TestWithoutToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ui.Access{Who: "ann", Actions: true, Values: true})
	for _, view := range []string{"./", "observers", "parked", "cell", "confirm?do=pause&observer=o", "nothing"} {
		a := w.get(view)
		require.Equal(t, http.StatusSeeOther, a.status, view)
		require.Equal(t, "login", a.header.Get("Location"), view)
		require.Empty(t, a.body)
	}
	require.Equal(t, http.StatusSeeOther, w.post("act", url.Values{"do": {"pause"}, "observer": {typedName(badName)}}).status)
	for _, bad := range []string{"", "a", token + "x", token[1:], strings.ToUpper(token)} {
		a := w.post("login", url.Values{"token": {bad}})
		require.Equal(t, http.StatusForbidden, a.status)
		require.Empty(t, a.header.Values("Set-Cookie"))
		require.NotContains(t, a.body, token)
	}
	// The token counts in the form alone, not in an address, where logs and histories would keep it.
	require.Equal(t, http.StatusForbidden, w.post("login?token="+url.QueryEscape(token), nil).status)
	require.Equal(t, http.StatusSeeOther, w.get("./?token="+url.QueryEscape(token)).status)
	require.NotContains(t, w.log.String(), token)
	infos, err := w.db.Observers(t.Context())
	require.NoError(t, err)
	require.False(t, infos[0].Paused)
}

// TestCookie is kept from scripts and other sites, and ends with the logout.
func TestCookie(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ui.Access{Who: "ann"})
	a := w.post("login", url.Values{"token": {token}})
	cookie := a.header.Get("Set-Cookie")
	require.Contains(t, cookie, "HttpOnly")
	require.Contains(t, cookie, "SameSite=Strict")
	require.NotContains(t, cookie, "Secure") // this server has no TLS
	require.NotContains(t, cookie, url.QueryEscape(token))
	stolen := w.request(http.MethodGet, "./", nil)
	stolen.Header.Set("Cookie", strings.SplitN(cookie, ";", 2)[0])
	require.Equal(t, http.StatusOK, w.do(w.browser(), stolen).status)
	require.Equal(t, http.StatusSeeOther, w.post("logout", form(t, w.get("./").body, "logout")).status)
	require.Equal(t, http.StatusSeeOther, w.get("./").status)
	stolen = w.request(http.MethodGet, "./", nil)
	stolen.Header.Set("Cookie", strings.SplitN(cookie, ";", 2)[0])
	require.Equal(t, http.StatusSeeOther, w.do(w.browser(), stolen).status)
}

func TestLoginEnds(t *testing.T) {
	t.Parallel()
	l, err := ui.NewLogin(token, ui.LoginOptions{Lifetime: time.Nanosecond, Secure: true})
	require.NoError(t, err)
	db, _ := open(t)
	h, err := ui.New(db, l.Authorize, ui.Options{Login: l})
	require.NoError(t, err)
	a := ask(t, h, http.MethodPost, "/login", url.Values{"token": {token}})
	require.Equal(t, http.StatusSeeOther, a.Code)
	require.Contains(t, a.Header().Get("Set-Cookie"), "Secure")
	r := a.Result() //nolint:bodyclose // of a recorder
	require.Len(t, r.Cookies(), 1)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	require.NoError(t, err)
	req.AddCookie(r.Cookies()[0])
	_, err = l.Authorize(req)
	require.ErrorIs(t, err, ui.ErrLogin)
}

// TestForeignHost is a name that resolves to this address: DNS rebinding.
func TestForeignHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ui.Access{Who: "ann", Actions: true})
	w.login()
	for host, known := range map[string]bool{
		"evil.example": false, "evil.example:80": false, "localhost.evil.example": false, "127.0.0.1.evil.example": false, "[::2]:80": false, "0.0.0.0": false,
		"localhost": true, "LOCALHOST:80": true, "[::1]:8080": true, "127.0.0.1": true,
	} {
		for _, view := range []string{"./", "style.css", "login"} {
			r := w.request(http.MethodGet, view, nil)
			for _, c := range w.client.Jar.Cookies(r.URL) {
				r.AddCookie(c)
			}
			r.Host = host
			want := http.StatusMisdirectedRequest
			if known {
				want = http.StatusOK
			}
			require.Equal(t, want, w.do(&http.Client{Transport: w.client.Transport}, r).status, "%s of %s", view, host)
		}
	}
}

// TestForgedForms come from other pages, or have no secret or another login's.
func TestForgedForms(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ui.Access{Who: "ann", Actions: true})
	w.login()
	genuine := form(t, w.get("confirm?do=pause&observer="+query(badName)).body, "act")
	forged := func(change func(r *http.Request)) int {
		r := w.request(http.MethodPost, "act", genuine)
		change(r)
		return w.do(w.client, r).status
	}
	for name, change := range map[string]func(r *http.Request){
		"another site":   func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") },
		"a sibling":      func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") },
		"an address bar": func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "none") },
		"another origin": func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") },
		"another port":   func(r *http.Request) { r.Header.Set("Origin", "http://127.0.0.1:1") },
		"a null origin":  func(r *http.Request) { r.Header.Set("Origin", "null") },
		"an old browser": func(r *http.Request) { r.Header.Del("Sec-Fetch-Site"); r.Header.Set("Origin", "http://evil.example") },
		"no browser":     func(r *http.Request) { r.Header.Del("Sec-Fetch-Site"); r.Header.Del("Origin") },
	} {
		require.Equal(t, http.StatusForbidden, forged(change), name)
	}
	first := genuine.Get("secret")
	w.client = w.browser()
	w.login()
	for _, secret := range []string{"", "x", first} {
		genuine.Set("secret", secret)
		require.Equal(t, http.StatusForbidden, forged(func(*http.Request) {}), "the secret %q", secret)
	}
	// An address does nothing, whatever it says.
	require.Equal(t, http.StatusNotFound, w.get("act?"+genuine.Encode()).status)
	genuine.Set("secret", form(t, w.get("./").body, "logout").Get("secret"))
	empty := w.request(http.MethodPost, "act?"+genuine.Encode(), nil)
	require.Equal(t, http.StatusForbidden, w.do(w.client, empty).status)
	require.Equal(t, http.StatusMethodNotAllowed, w.do(w.client, w.request(http.MethodPut, "act", genuine)).status)
	infos, err := w.db.Observers(t.Context())
	require.NoError(t, err)
	require.False(t, infos[0].Paused)
	require.Equal(t, http.StatusOK, forged(func(*http.Request) {})) // the same, not forged
}

func TestWhoOnlyLooks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ui.Access{Who: "ann"})
	w.login()
	require.NotContains(t, w.get("observers").body, "confirm?")
	require.NotContains(t, w.get("parked").body, "confirm?")
	require.Equal(t, http.StatusForbidden, w.get("confirm?do=pause&observer="+query(badName)).status)
	secret := form(t, w.get("./").body, "logout").Get("secret")
	for _, do := range []string{"pause", "resume", "release", "release-all", "drop", "replay", "cancel-replay"} {
		f := url.Values{"do": {do}, "observer": {typedName(badName)}, "secret": {secret}, "table": {"t"}, "row": {"r"}, "column": {"c"}}
		require.Equal(t, http.StatusForbidden, w.post("act", f).status, do)
	}
	a := w.get(link(t, badCell) + "&values=show")
	require.NotContains(t, a.body, "secret ")
	require.Contains(t, a.body, "you may not see them")
}

// TestHeaders are those that a browser needs to know.
func TestHeaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ui.Access{Who: "ann"})
	w.login()
	for _, view := range []string{"./", "login", "style.css", "nothing", "cell?row=%25zz"} {
		h := w.get(view).header
		require.Equal(t, "no-store", h.Get("Cache-Control"), view)
		require.Equal(t, "nosniff", h.Get("X-Content-Type-Options"), view)
		policy := h.Get("Content-Security-Policy")
		require.Contains(t, policy, "default-src 'none'", view)
		require.Contains(t, policy, "frame-ancestors 'none'", view)
		require.NotContains(t, policy, "unsafe", view)
	}
}

// TestLargeForms are not read to their end, and large names are shown in part.
func TestLarge(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ui.Access{Who: "ann", Actions: true})
	w.login()
	require.Equal(t, http.StatusBadRequest, w.post("act", url.Values{"secret": {strings.Repeat("x", 1<<20)}}).status)
	a := w.get("confirm?do=pause&observer=" + strings.Repeat("x", 10_000))
	require.Contains(t, a.body, strings.Repeat("x", 160)+"…<")
}

// TestOwnAuthorize is a program's: its errors deny, and say nothing to who asks.
func TestOwnAuthorize(t *testing.T) {
	t.Parallel()
	db, _ := open(t)
	h, err := ui.New(db, func(r *http.Request) (ui.Access, error) {
		if r.Header.Get("X-User") == "" {
			return ui.Access{}, errors.New("the directory is at ldap.internal")
		}
		return ui.Access{Who: r.Header.Get("X-User")}, nil
	}, ui.Options{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	a := ask(t, h, http.MethodGet, "/", nil)
	require.Equal(t, http.StatusForbidden, a.Code)
	require.NotContains(t, a.Body.String(), "ldap")
	require.Equal(t, http.StatusForbidden, ask(t, h, http.MethodGet, "/login", nil).Code)
	require.Equal(t, http.StatusOK, ask(t, h, http.MethodGet, "/live.js", nil).Code)
}
