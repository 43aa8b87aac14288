package ui

import (
	"embed"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"time"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/internal/shown"
)

var errNoActions = errors.New("ui: this page only looks: it was started without actions, or you may not do any")

//go:embed templates
var templateFiles embed.FS

//go:embed static
var staticFiles embed.FS

// templates are the views, each with the frame around it.
var templates = parseTemplates()

func parseTemplates() map[string]*template.Template {
	all := map[string]*template.Template{}
	for _, name := range []string{
		"overview", "observers", "backlog", "parked", "timers", "tables", "locks", "cell", "processes", "replays", "confirm", "done", "error", "login",
	} {
		// The files are part of the program: what is wrong in them shows in every test.
		all[name] = template.Must(template.New(name).Funcs(functions).ParseFS(templateFiles, "templates/frame.html", "templates/"+name+".html"))
	}
	return all
}

var functions = template.FuncMap{
	"link": link, "short": short, "text": text, "value": value, "when": when, "stamp": stamp, "count": shown.Count, "percent": percent,
	"past": func(left admin.Span) admin.Span { return -left },
	"class": func(state string) string {
		if state == "running" {
			return "good"
		}
		return "bad"
	},
	"views": func() [][3]string { return menu },
}

// menu has the address, the view and the text of each link at the top.
var menu = [][3]string{
	{"./", "", "overview"},
	{"observers", "observers", "observers"},
	{"parked", "parked", "parked"},
	{"tables", "tables", "tables"},
	{"locks", "locks", "locks"},
	{"cell", "cell", "cell"},
	{"processes", "processes", "processes"},
	{"replays", "replays", "replays"},
}

// How much of something is shown.
const (
	mostName  = 160     // characters of a name
	mostError = 8 << 10 // bytes of an error
	mostValue = 4 << 10 // bytes of a value
)

// cut is the beginning of bytes that may be long.
func cut(s string) string { return s[:min(len(s), mostName)] }

// short is a name as it can be typed, or its beginning.
func short(b admin.Bytes) string {
	typed := admin.Bytes(string(b)[:min(len(b), 4*mostName)]).String()
	if r := []rune(typed); len(r) > mostName {
		return string(r[:mostName]) + "…"
	}
	return typed
}

// value is a value as it can be typed, or its beginning.
func value(b admin.Bytes) string {
	if len(b) <= mostValue {
		return b.String()
	}
	return fmt.Sprintf("%v… (%d bytes)", b[:mostValue], len(b))
}

// text is a text of others, such as an error, or its beginning, without what a reader could not see. Lines stay lines.
func text(s string) string {
	if len(s) > mostError {
		return shown.Text(s[:mostError]) + "…"
	}
	return shown.Text(s)
}

func when(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// stamp is the time of a timestamp.
func stamp(s admin.Stamp) string {
	if s == 0 {
		return "-"
	}
	return s.Time().Format("2006-01-02 15:04:05.000 UTC")
}

func percent(share float64) string { return fmt.Sprintf("about %.0f%%", 100*share) }

func serveStatic(w http.ResponseWriter, r *http.Request, name string) {
	// The style and the script say nothing of a database.
	http.ServeFileFS(w, r, staticFiles, "static/"+name) //nolint:gosec // of the files that are built in
}
