package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The rule of the README. A file that is in neither list is plumbing as a whole.
var (
	aboutOrders = []string{"orders.go", "stock.go", "customers.go", "totals.go", "mail.go", "shop.go"}
	frame       = []string{"main.go", "http.go", "bodies.go", "refusals.go", "telemetry.go", "mailbox.go"}
)

const library = "github.com/percolate-go/percolate/"

// Names of packages that lines about orders may use. A package that is missing may not be used at all, and "*" is every name.
var allowedToOrders = map[string][]string{
	"context": {"Context"}, "errors": {"*"}, "fmt": {"*"}, "time": {"Time", "Duration", "Hour", "Second"},
	library + "keys":            {"Key"},
	library + "typed":           {"Column", "JSON", "Number", "Encrypted", "Change"},
	library + "percolator":      {"DB", "Txn", "Cell", "Observer", "ErrNotFound"},
	library + "recipes/once":    {"Keys", "New", "Options"},
	library + "recipes/export":  {"Outbox", "New", "Options", "Item", "Sink", "SinkFunc"},
	library + "recipes/combine": {"Combiner", "New"},
	library + "recipes/index":   {"Index", "New", "Options", "Range", "Begins"},
}

// Names that the frame may use besides.
var allowedToFrame = map[string][]string{
	"context": {"Background", "WithTimeout", "WithoutCancel"}, "time": {"Millisecond", "Minute"},
	"bytes": {"*"}, "cmp": {"*"}, "crypto/hmac": {"*"}, "crypto/sha256": {"*"}, "encoding/json": {"*"}, "flag": {"*"}, "io": {"*"}, "log/slog": {"*"}, "net": {"*"},
	"net/http": {"*"}, "os": {"*"}, "os/signal": {"*"}, "regexp": {"*"}, "strconv": {"*"}, "strings": {"*"}, "syscall": {"*"},
	"go.opentelemetry.io/otel": {"*"}, "go.opentelemetry.io/otel/attribute": {"*"}, "go.opentelemetry.io/otel/codes": {"*"},
	"go.opentelemetry.io/otel/metric": {"*"}, "go.opentelemetry.io/otel/sdk/metric": {"*"},
	"go.opentelemetry.io/otel/sdk/metric/metricdata": {"*"}, "go.opentelemetry.io/otel/sdk/trace": {"*"},
	library + "config":         {"Open"},
	library + "percolator":     {"Open", "WithMetrics", "Run", "Timestamp", "ErrUndetermined", "ErrConflict", "ErrClosed", "ErrNotObserved"},
	library + "recipes/export": {"HTTP", "ErrSuperseded"},
}

// Methods and fields that only plumbing uses, whatever they belong to.
var plumbingNames = []string{
	"Run", "Use", "Observe", "Every", "OnError", "WaitIdle", "WaitObserved", "Observers", "Parked", "Release", "DropParked", "Backlog", "Stats",
	"Begin", "Commit", "Rollback", "Outcome", "OutcomeOf", "Configure", "ConfigureTable", "CollectGarbage", "Hold", "Renew", "Replay",
	"Claim", "Finish", "Sweep", "Combine", "AddNow", "Build", "Check", "Repair", "Dead", "Resend", "Drop", "Epoch", "Index",
	"Lock", "Unlock", "RLock", "RUnlock", "Wait", "OnEnd", "StartTimestamp", "create", "destroy",
}

// Methods that turn values into bytes are the frame's way to speak JSON, and plumbing elsewhere.
var codecNames = []string{"Encode", "Decode", "Marshal", "Unmarshal"}

var imported = regexp.MustCompile(`^(?:(.*)/)?([^/]+?)(?:/v\d+)?$`)

// plumber finds the lines of a file that are plumbing.
type plumber struct {
	fset    *token.FileSet
	imports map[string]string // by their names in the file
	allowed []map[string][]string
	names   []string // of plumbing
	lines   map[int]bool
}

func (p *plumber) mark(n ast.Node) {
	for line := p.fset.Position(n.Pos()).Line; line <= p.fset.Position(n.End()).Line; line++ {
		p.lines[line] = true
	}
}

// uses tells whether an expression has something that only plumbing uses, outside of the functions in it.
func (p *plumber) uses(n ast.Node) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BlockStmt:
			return false // its statements are looked at by themselves
		case *ast.ChanType, *ast.SendStmt:
			found = true
		case *ast.UnaryExpr:
			found = found || n.Op == token.ARROW
		case *ast.SelectorExpr:
			of, _ := n.X.(*ast.Ident)
			if of == nil || p.imports[of.Name] == "" || of.Obj != nil {
				found = found || slices.Contains(p.names, n.Sel.Name)
				return true
			}
			ok := slices.ContainsFunc(p.allowed, func(names map[string][]string) bool {
				list := names[p.imports[of.Name]]
				return slices.Contains(list, "*") || slices.Contains(list, n.Sel.Name)
			})
			found = found || !ok
		}
		return true
	})
	return found
}

// look marks the smallest statements and declarations that use plumbing.
func (p *plumber) look(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.GoStmt, *ast.SelectStmt:
		p.mark(n)
		return false
	case *ast.IfStmt: // with what it does about it
		if n.Init != nil && p.uses(n.Init) || p.uses(n.Cond) {
			p.mark(n)
			return false
		}
	case *ast.ForStmt, *ast.RangeStmt, *ast.SwitchStmt, *ast.TypeSwitchStmt, *ast.BlockStmt, *ast.CaseClause, *ast.LabeledStmt:
	case ast.Stmt:
		if p.uses(n) {
			p.mark(n)
		}
	case ast.Spec:
		if _, isImport := n.(*ast.ImportSpec); !isImport && p.uses(n) {
			p.mark(n)
		}
	}
	return true
}

// count counts the lines of a file that hold code, without its imports, and those among them that are plumbing.
func count(t *testing.T, name string) (all, plumbing int) {
	t.Helper()
	source, err := os.ReadFile(name)
	require.NoError(t, err)
	p := &plumber{fset: token.NewFileSet(), imports: map[string]string{}, lines: map[int]bool{}}
	file, err := parser.ParseFile(p.fset, name, source, parser.ParseComments)
	require.NoError(t, err)
	p.allowed, p.names = []map[string][]string{allowedToOrders, allowedToFrame}, plumbingNames
	if !slices.Contains(frame, name) {
		p.allowed, p.names = p.allowed[:1], slices.Concat(plumbingNames, codecNames)
	}
	code := map[int]bool{}
	for i, line := range strings.Split(string(source), "\n") {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
			code[i+1] = true
		}
	}
	delete(code, p.fset.Position(file.Package).Line)
	for _, s := range file.Imports {
		path, err := strconv.Unquote(s.Path.Value)
		require.NoError(t, err)
		as := imported.FindStringSubmatch(path)[2]
		if s.Name != nil {
			as = s.Name.Name
		}
		require.NotEqual(t, ".", as, "%s: a dot import hides what is used", name)
		p.imports[as] = path
	}
	whole := !slices.Contains(aboutOrders, name) && !slices.Contains(frame, name)
	for _, d := range file.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.IMPORT {
			for line := p.fset.Position(g.Pos()).Line; line <= p.fset.Position(g.End()).Line; line++ {
				delete(code, line)
			}
			continue
		}
		ast.Inspect(d, p.look)
		if half := p.share(d, code); whole || half > 0.5 {
			p.mark(d)
		}
	}
	for line := range code {
		if p.lines[line] {
			plumbing++
		}
	}
	return len(code), plumbing
}

// share is which part of a declaration is plumbing.
func (p *plumber) share(d ast.Decl, code map[int]bool) float64 {
	all, marked := 0, 0
	for line := p.fset.Position(d.Pos()).Line; line <= p.fset.Position(d.End()).Line; line++ {
		if code[line] {
			all++
			if p.lines[line] {
				marked++
			}
		}
	}
	return float64(marked) / float64(max(all, 1))
}

// TestBoilerplate counts what is plumbing, by the rule of the README.
func TestBoilerplate(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	var about, around, plumbing int
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		all, p := count(t, name)
		t.Logf("%-14s %4d lines, %3d of them plumbing", name, all, p)
		plumbing += p
		if slices.Contains(frame, name) {
			around += all - p
		} else {
			about += all - p
		}
	}
	all := about + around + plumbing
	share := 100 * float64(plumbing) / float64(all)
	t.Logf("%d lines: %d about orders, %d of the frame, %d plumbing: %.1f %% of all, and %.1f %% beside those about orders", all, about, around, plumbing,
		share, 100*float64(plumbing)/float64(about+plumbing))
	require.Greater(t, about, 250, "nothing was counted")
	require.Positive(t, plumbing, "nothing was found")
	require.LessOrEqual(t, share, 10.0)
}
