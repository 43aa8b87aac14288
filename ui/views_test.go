package ui_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/ui"
)

// TestEveryLink follows every link of every page, from the overview on. Each leads somewhere, looks without writing, and has no script or
// style but the page's own.
func TestEveryLink(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ui.Access{Who: "ann" + hostile, Values: true, Actions: true})
	w.login()
	seen := map[string]bool{"./": true}
	views := map[string]bool{}
	for todo := []string{"./"}; len(todo) > 0; todo = todo[1:] {
		at := todo[0]
		a := w.get(at)
		require.Equal(t, http.StatusOK, a.status, "%s: %s", at, a.body)
		views[strings.SplitN(at, "?", 2)[0]] = true
		require.NotContains(t, a.body, "<script>alert", at)
		require.NotContains(t, a.body, "\u202e", at)
		for _, n := range elements(t, a.body) {
			for _, x := range n.Attr {
				require.False(t, strings.HasPrefix(x.Key, "on") || x.Key == "style", "%s: <%s %s>", at, n.Data, x.Key)
			}
			switch n.Data {
			case "script":
				require.Equal(t, "live.js", attr(n, "src"))
				require.Nil(t, n.FirstChild)
			case "style", "iframe", "img", "object":
				t.Errorf("%s has <%s>", at, n.Data)
			case "a":
				if href := attr(n, "href"); href != "" && !seen[href] {
					seen[href] = true
					todo = append(todo, href)
				}
			}
		}
	}
	for _, view := range []string{"./", "observers", "backlog", "parked", "timers", "tables", "locks", "cell", "processes", "replays", "confirm"} {
		require.True(t, views[view], "no link leads to %s: %v", view, views)
	}
}

// TestViews looks for what each view must say.
func TestViews(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ui.Access{Who: "ann", Values: true, Actions: true})
	w.login()
	typed := func(s string) string { return textOf(admin.Bytes(s).String()) }
	cell := link(t, badCell)
	for view, says := range map[string][]string{
		"./":                                    {typed(badName), "no worker", "the retention", typed("hold" + hostile), "conflicts", "Rates of this process"},
		"observers":                             {typed(badName), "pause", "replay"},
		"backlog?table=" + query(badCell.Table): {"later", "Notifications"},
		"parked":                                {"no end tag in", "retry", "drop", typed(badCell.Row)},
		"parked?observer=" + query(badName):     {"retry them all"},
		"timers?table=" + query(badCell.Table):  {"later", "1h"},
		"tables":                                {typed(badCell.Table), "24h"},
		"locks?table=" + query(badCell.Table):   {"0 locks in 2 rows"},
		cell:                                    {"is parked for the change", "hidden", "show them"},
		cell + "&values=show":                   {typed("secret " + hostile), "hide the values"},
		"processes":                             {"Workers", "Sessions"},
		"replays":                               {"Begun on this page"},
		"confirm?do=pause&observer=" + query("o"): {"No worker begins a run of it"},
	} {
		a := w.get(view)
		require.Equal(t, http.StatusOK, a.status, "%s: %s", view, a.body)
		for _, s := range says {
			require.Contains(t, a.body, s, view)
		}
	}
	require.NotContains(t, w.get(cell).body, "secret ")
	require.Equal(t, http.StatusNotFound, w.get("nothing").status)
	require.Equal(t, http.StatusBadRequest, w.get("cell?table=%25zz&row=r&column=c").status)
	require.Equal(t, http.StatusBadRequest, w.get("confirm?do=nothing").status)
	require.Equal(t, http.StatusBadRequest, w.get("confirm?do=pause").status)
	require.Equal(t, http.StatusNotFound, w.get("backlog?table=nothing").status)
	require.Contains(t, w.get("style.css").header.Get("Content-Type"), "text/css")
	require.Contains(t, w.get("live.js").header.Get("Content-Type"), "javascript")
}

// TestLockInWords shows the lock of a transaction that lives, and when it ends.
func TestLockInWords(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ui.Access{Who: "ann"})
	w.login()
	c := percolator.Cell{Table: "t", Row: "r", Column: "c"}
	lockFor(t, w, c, 7*time.Second)
	for _, view := range []string{link(t, c), "locks?table=t"} {
		a := w.get(view)
		require.Equal(t, http.StatusOK, a.status, a.body)
		require.Contains(t, a.body, "of process lives, alive", view)
		require.Regexp(t, `(its lock ends in|others roll it back in) [0-9.]+m?s`, a.body, view)
	}
	a := w.get("processes")
	require.Contains(t, a.body, "lives")
}

// TestOfAReader has no actions, whatever Authorize says.
func TestOfAReader(t *testing.T) {
	t.Parallel()
	db, _ := open(t)
	r, err := admin.Of(db)
	require.NoError(t, err)
	h, err := ui.Of(r, func(*http.Request) (ui.Access, error) { return ui.Access{Who: "ann", Actions: true}, nil }, ui.Options{})
	require.NoError(t, err)
	a := ask(t, h, http.MethodGet, "/", nil)
	require.Equal(t, http.StatusOK, a.Code, a.Body)
	require.Contains(t, a.Body.String(), "looks only")
	require.Contains(t, a.Body.String(), "this one only looks")
	require.Equal(t, http.StatusForbidden, ask(t, h, http.MethodGet, "/confirm?do=pause&observer=o", nil).Code)
	require.NoError(t, h.Close(t.Context()))
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	db, _ := open(t)
	yes := func(*http.Request) (ui.Access, error) { return ui.Access{}, nil }
	for name, f := range map[string]func() error{
		"no database":    func() error { _, err := ui.New(nil, yes, ui.Options{}); return err },
		"no reader":      func() error { _, err := ui.Of(nil, yes, ui.Options{}); return err },
		"no Authorize":   func() error { _, err := ui.New(db, nil, ui.Options{}); return err },
		"a short secret": func() error { _, err := ui.New(db, yes, ui.Options{Secret: []byte("x")}); return err },
		"a timeout":      func() error { _, err := ui.New(db, yes, ui.Options{Timeout: -1}); return err },
		"a short token":  func() error { _, err := ui.NewLogin("guess me", ui.LoginOptions{}); return err },
		"a lifetime":     func() error { _, err := ui.NewLogin(token, ui.LoginOptions{Lifetime: -1}); return err },
	} {
		require.ErrorIs(t, f(), percolator.ErrInvalid, name)
	}
}
