package ui_test

import (
	"html/template"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/ui"
)

// textOf is a text as a page has it.
func textOf(s string) string { return template.HTMLEscapeString(s) }

// query is a name in an address.
func query(name string) string { return url.QueryEscape(admin.Bytes(name).String()) }

func link(t *testing.T, c percolator.Cell) string {
	t.Helper()
	return "cell?table=" + query(c.Table) + "&row=" + query(c.Row) + "&column=" + query(c.Column)
}

// ask asks a page without a server, by its name of localhost.
func ask(t testing.TB, h *ui.Handler, method, target string, form url.Values) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader(form.Encode()))
	r.Host = "localhost:8080"
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if method == http.MethodPost {
		r.Header.Set("Origin", "http://localhost:8080")
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// lockFor puts the lock of a process that lives on a cell.
func lockFor(t *testing.T, w *world, c percolator.Cell, left time.Duration) {
	t.Helper()
	now, err := w.db.Now(t.Context())
	require.NoError(t, err)
	stored := format.Cell{Table: format.Escape(c.Table), Row: c.Row, Column: format.Escape(c.Column)}
	lock := format.Lock{Kind: format.KindPut, Expiry: now.Add(left), Session: "lives", Primary: stored}
	lease := format.Session{}.Encode()
	put(t, w, format.TableSessions, "lives", rowstore.Put(rowstore.Write, format.ColumnLease, now.Add(time.Hour), lease))
	put(t, w, stored.Table, stored.Row, rowstore.Put(rowstore.Lock, stored.Column, now, lock.Encode()))
}

func put(t *testing.T, w *world, table, row string, edits ...rowstore.Edit) {
	t.Helper()
	out, err := w.store.Apply(t.Context(), []rowstore.Mutation{{Table: table, Row: row, Edits: edits}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.NoError(t, out[0].Err)
}

func readerOf(t *testing.T, s rowstore.Store) *admin.Reader {
	t.Helper()
	r, err := admin.New(s)
	require.NoError(t, err)
	return r
}

// typedName is a name in the form that can be typed.
func typedName(name string) string { return admin.Bytes(name).String() }
