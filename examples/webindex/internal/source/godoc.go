package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/doc"
	"go/doc/comment"
	"go/parser"
	"go/printer"
	"go/token"
	"html/template"
	"io/fs"
	"iter"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/examples/webindex/internal/page"
)

// goBase is in front of the import paths in the URLs of the pages. The pages are
// rendered here, from the source on this machine; the URLs are those under which
// the same packages are documented in public, so that they lead somewhere.
const goBase = "https://pkg.go.dev"

// GoDoc is the documentation of Go's standard library and commands, rendered from
// the source of the toolchain: one page for each package and command, with doc
// links and imports as links, and one that lists them.
type GoDoc struct {
	src   string
	pages []Page
}

// NewGoDoc makes a source of the toolchain whose root goroot is. An empty goroot
// means the one that this program was built with, or else the one that the go
// command names. A root without source is an error.
func NewGoDoc(ctx context.Context, goroot string) (*GoDoc, error) {
	var tried []string
	candidates := []func() string{
		func() string { return goroot },
		func() string { return os.Getenv("GOROOT") },
		func() string { return build.Default.GOROOT },
		func() string {
			out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
			if err != nil {
				return ""
			}
			return strings.TrimSpace(string(out))
		},
	}
	if goroot != "" {
		candidates = candidates[:1]
	}
	for _, c := range candidates {
		root := c()
		if root == "" {
			continue
		}
		src := filepath.Join(root, "src")
		if info, err := os.Stat(filepath.Join(src, "fmt")); err == nil && info.IsDir() {
			return &GoDoc{src: src}, nil
		}
		tried = append(tried, src)
	}
	if len(tried) == 0 {
		return nil, errors.New("the source of Go's standard library was not found: no GOROOT is known and there is no go command; give pages with -dir or -warc")
	}
	return nil, fmt.Errorf("the source of Go's standard library was not found in %s; give pages with -dir or -warc", strings.Join(tried, " nor in "))
}

// ID implements Source.
func (g *GoDoc) ID() string { return "go" }

// Complete implements Source.
func (g *GoDoc) Complete() bool { return true }

// Prepare implements Source. It renders all pages and keeps them.
func (g *GoDoc) Prepare(ctx context.Context) (Summary, error) {
	dirs, err := g.packages(ctx)
	if err != nil {
		return Summary{}, err
	}
	rendered := make([]*goPage, len(dirs))
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, dir := range dirs {
		group.Go(func() error {
			if gctx.Err() != nil {
				return context.Cause(gctx)
			}
			p, err := renderPackage(filepath.Join(g.src, filepath.FromSlash(dir)), dir)
			if err != nil {
				return fmt.Errorf("documentation of %s: %w", dir, err)
			}
			rendered[i] = p
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return Summary{}, err
	}
	rendered = slices.DeleteFunc(rendered, func(p *goPage) bool { return p == nil })
	if len(rendered) == 0 {
		return Summary{}, fmt.Errorf("there is no package in %s", g.src)
	}
	g.pages = g.pages[:0]
	for _, p := range rendered {
		var b bytes.Buffer
		if err := packageTemplate.Execute(&b, p); err != nil {
			return Summary{}, fmt.Errorf("documentation of %s: %w", p.ImportPath, err)
		}
		g.pages = append(g.pages, Page{URL: p.URL(), Body: b.Bytes()})
	}
	var b bytes.Buffer
	if err := indexTemplate.Execute(&b, rendered); err != nil {
		return Summary{}, fmt.Errorf("list of packages: %w", err)
	}
	g.pages = append(g.pages, Page{URL: goBase + "/std", Body: b.Bytes()})
	for _, p := range g.pages {
		if _, err := page.Normalize(p.URL); err != nil {
			return Summary{}, err
		}
		if err := check(p); err != nil {
			return Summary{}, fmt.Errorf("documentation page %s: %w", p.URL, err)
		}
	}
	return Summary{Pages: len(g.pages)}, nil
}

// packages lists the import paths of all directories that may hold a package
// which users see.
func (g *GoDoc) packages(ctx context.Context) ([]string, error) {
	var dirs []string
	err := filepath.WalkDir(g.src, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("the source of Go's standard library: %w", err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !e.IsDir() || p == g.src {
			return nil
		}
		switch name := e.Name(); {
		case name == "internal", name == "vendor", name == "testdata", strings.HasPrefix(name, "."), strings.HasPrefix(name, "_"):
			return filepath.SkipDir
		}
		rel, err := filepath.Rel(g.src, p)
		if err != nil {
			return fmt.Errorf("the source of Go's standard library: %w", err)
		}
		dirs = append(dirs, filepath.ToSlash(rel))
		return nil
	})
	return dirs, err
}

// Items implements Source.
func (g *GoDoc) Items(ctx context.Context) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		for _, p := range g.pages {
			if ctx.Err() != nil {
				yield(Item{}, context.Cause(ctx))
				return
			}
			if !yield(Item{URL: p.URL, Read: func(context.Context) (Page, error) { return p, nil }}, nil) {
				return
			}
		}
	}
}

// goPage is what the templates show of a package.
type goPage struct {
	ImportPath, Name, Synopsis string
	Doc                        template.HTML
	Sections                   []goSection
	Imports                    []string
}

type goSection struct {
	Heading, ID, Code string
	Doc               template.HTML
}

func (p *goPage) URL() string   { return goBase + "/" + p.ImportPath }
func (p *goPage) Command() bool { return p.Name == "main" }
func (p *goPage) Title() string {
	if p.Command() {
		return path.Base(p.ImportPath) + " command"
	}
	return p.Name + " package"
}

// renderPackage reads one directory; it returns nil where there is no package for
// this system, or nothing that is documented.
func renderPackage(dir, importPath string) (*goPage, error) {
	ctxt := build.Default
	ctxt.CgoEnabled = true // so that a machine without a C compiler has the same pages
	pkg, err := ctxt.ImportDir(dir, 0)
	if err != nil {
		var none *build.NoGoError
		var multiple *build.MultiplePackageError
		if errors.As(err, &none) || errors.As(err, &multiple) {
			return nil, nil //nolint:nilnil // no page
		}
		return nil, err
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range slices.Concat(pkg.GoFiles, pkg.CgoFiles) {
		f, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	mode := doc.Mode(0)
	if importPath == "builtin" { // it documents names that no package exports
		mode = doc.AllDecls
	}
	d, err := doc.NewFromFiles(fset, files, importPath, mode)
	if err != nil {
		return nil, err
	}
	if d.Doc == "" && pkg.Name == "main" {
		return nil, nil //nolint:nilnil // a helper of the build
	}
	r := renderer{fset: fset, parser: d.Parser(), printer: d.Printer()}
	r.printer.DocLinkBaseURL = goBase
	p := &goPage{ImportPath: importPath, Name: d.Name, Synopsis: d.Synopsis(d.Doc), Doc: r.html(d.Doc)}
	for _, i := range pkg.Imports {
		if i != "C" && !slices.Contains(strings.Split(i, "/"), "internal") && !strings.HasPrefix(i, "vendor/") {
			p.Imports = append(p.Imports, i)
		}
	}
	if pkg.Name == "main" {
		return p, nil
	}
	p.values(&r, "Constants", d.Consts)
	p.values(&r, "Variables", d.Vars)
	p.funcs(&r, "", d.Funcs)
	for _, t := range d.Types {
		p.add("type "+t.Name, t.Name, r.code(t.Decl), r.html(t.Doc))
		p.values(&r, "", t.Consts)
		p.values(&r, "", t.Vars)
		p.funcs(&r, "", t.Funcs)
		p.funcs(&r, t.Name, t.Methods)
	}
	return p, r.err
}

func (p *goPage) add(heading, id, code string, text template.HTML) {
	p.Sections = append(p.Sections, goSection{Heading: heading, ID: id, Code: code, Doc: text})
}

func (p *goPage) values(r *renderer, heading string, vs []*doc.Value) {
	for i, v := range vs {
		if i > 0 {
			heading = ""
		}
		p.add(heading, "", r.code(v.Decl), r.html(v.Doc))
	}
}

func (p *goPage) funcs(r *renderer, recv string, fs []*doc.Func) {
	for _, f := range fs {
		heading, id := "func "+f.Name, f.Name
		if recv != "" {
			heading, id = "func ("+f.Recv+") "+f.Name, recv+"."+f.Name
		}
		f.Decl.Body = nil
		p.add(heading, id, r.code(f.Decl), r.html(f.Doc))
	}
}

type renderer struct {
	fset    *token.FileSet
	parser  *comment.Parser
	printer *comment.Printer
	err     error
}

func (r *renderer) html(text string) template.HTML {
	return template.HTML(r.printer.HTML(r.parser.Parse(text))) //nolint:gosec // go/doc/comment escapes the text
}

func (r *renderer) code(decl ast.Node) string {
	var b strings.Builder
	cfg := printer.Config{Mode: printer.UseSpaces | printer.TabIndent, Tabwidth: 4}
	if err := cfg.Fprint(&b, r.fset, decl); err != nil && r.err == nil {
		r.err = err
	}
	return b.String()
}

var packageTemplate = template.Must(template.New("package").Parse(`<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{{.Title}} - {{.ImportPath}}</title></head>
<body>
<p><a href="` + goBase + `/std">Standard library</a></p>
<h1>{{.Title}}</h1>
{{if not .Command}}<pre>import "{{.ImportPath}}"</pre>
{{end}}{{.Doc}}
{{range .Sections}}{{if .Heading}}<h3{{if .ID}} id="{{.ID}}"{{end}}>{{.Heading}}</h3>
{{end}}<pre>{{.Code}}</pre>
{{.Doc}}{{end}}{{if .Imports}}<h2>Imports</h2>
<ul>
{{range .Imports}}<li><a href="` + goBase + `/{{.}}">{{.}}</a></li>
{{end}}</ul>
{{end}}</body>
</html>
`))

var indexTemplate = template.Must(template.New("index").Parse(`<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>Standard library</title></head>
<body>
<h1>Standard library</h1>
<table>
{{range .}}<tr><td><a href="{{.URL}}">{{.ImportPath}}</a></td><td>{{.Synopsis}}</td></tr>
{{end}}</table>
</body>
</html>
`))
