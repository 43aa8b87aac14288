package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Nearly all that a mutant costs is compiling. So one build holds all those that change nothing but bodies of functions: a changed
// function stands there once more for each of its mutants, under a name of its own, and the original begins with the question which
// mutant is on. A mutant that changes more than bodies, or a file of another language, has a build of its own.

// mutantVariable says in the environment of a test which mutant is on: its place in the list, from 1.
const mutantVariable = "PERCOLATE_MUTANT"

// wovenVariable is what it is within a package that was woven.
const wovenVariable = "mutantOn__"

// weaving is the sources into which mutants were woven.
type weaving struct {
	root  string
	files map[string]*wovenFile
	// woven are the mutants that are in, by their name, and the value of mutantVariable that turns each on.
	woven map[string]int
}

type wovenFile struct {
	text    string
	pkg     string
	set     *token.FileSet
	decls   []ast.Decl
	changed []wovenCopy
}

// wovenCopy is a function as a mutant changes it.
type wovenCopy struct {
	mutant   int
	of       *ast.FuncDecl
	text     string
	question string // what the original asks first
}

// weave puts every mutant that it can into the sources below root.
func weave(root string, all []mutant) (*weaving, error) {
	w := &weaving{root: root, files: map[string]*wovenFile{}, woven: map[string]int{}}
	for i := range all {
		if err := w.add(&all[i], i+1); err != nil {
			return nil, fmt.Errorf("%s: %w", all[i].name, err)
		}
	}
	return w, nil
}

// add weaves a mutant in, or does nothing if that is not possible.
func (w *weaving) add(m *mutant, number int) error {
	texts := map[string]string{}
	if err := apply(w.root, m, texts); err != nil {
		return err
	}
	copies := map[*wovenFile][]wovenCopy{}
	for name, text := range texts {
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		file, err := w.file(name)
		if err != nil {
			return err
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, name, text, parser.SkipObjectResolution)
		if err != nil || len(parsed.Decls) != len(file.decls) {
			return nil // its own build says what is wrong
		}
		for i, before := range file.decls {
			after := parsed.Decls[i]
			if source(file.set, file.text, before.Pos(), before.End()) == source(set, text, after.Pos(), after.End()) {
				continue
			}
			f, ok := before.(*ast.FuncDecl)
			g, ok2 := after.(*ast.FuncDecl)
			if !ok || !ok2 || !callable(f) ||
				source(file.set, file.text, f.Pos(), f.Body.Pos()) != source(set, text, g.Pos(), g.Body.Pos()) {
				return nil
			}
			copies[file] = append(copies[file], wovenCopy{
				mutant: number, of: f, question: question(f, number),
				text: source(set, text, g.Pos(), g.Name.Pos()) + copyName(g, number) + source(set, text, g.Name.End(), g.End()),
			})
		}
	}
	for file, more := range copies {
		file.changed = append(file.changed, more...)
	}
	w.woven[m.name] = number
	return nil
}

func (w *weaving) file(name string) (*wovenFile, error) {
	if f := w.files[name]; f != nil {
		return f, nil
	}
	b, err := os.ReadFile(filepath.Join(w.root, filepath.FromSlash(name)))
	if err != nil {
		return nil, err
	}
	f := &wovenFile{text: string(b), set: token.NewFileSet()}
	parsed, err := parser.ParseFile(f.set, name, b, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	f.pkg, f.decls = parsed.Name.Name, parsed.Decls
	w.files[name] = f
	return f, nil
}

func source(set *token.FileSet, text string, from, to token.Pos) string {
	return text[set.Position(from).Offset:set.Position(to).Offset]
}

func copyName(f *ast.FuncDecl, number int) string { return fmt.Sprintf("%s__%d", f.Name.Name, number) }

// callable says whether a function can call another with its own parameters: all have names.
func callable(f *ast.FuncDecl) bool {
	if f.Body == nil || f.Recv != nil && !named(f.Recv) {
		return false
	}
	return named(f.Type.Params)
}

func named(fields *ast.FieldList) bool {
	for _, field := range fields.List {
		if len(field.Names) == 0 || slices.ContainsFunc(field.Names, func(n *ast.Ident) bool { return n.Name == "_" }) {
			return false
		}
	}
	return true
}

// question is the statement that hands a call over to a copy, if its mutant is on.
func question(f *ast.FuncDecl, number int) string {
	call := copyName(f, number)
	if f.Recv != nil {
		call = f.Recv.List[0].Names[0].Name + "." + call
	}
	if f.Type.TypeParams != nil {
		call += "[" + strings.Join(names(f.Type.TypeParams), ", ") + "]"
	}
	call += "(" + strings.Join(names(f.Type.Params), ", ")
	if n := len(f.Type.Params.List); n > 0 {
		if _, ok := f.Type.Params.List[n-1].Type.(*ast.Ellipsis); ok {
			call += "..."
		}
	}
	call += ")"
	if f.Type.Results == nil {
		return fmt.Sprintf(" if %s == %d { %s; return };", wovenVariable, number, call)
	}
	return fmt.Sprintf(" if %s == %d { return %s };", wovenVariable, number, call)
}

func names(fields *ast.FieldList) []string {
	var all []string
	for _, field := range fields.List {
		for _, n := range field.Names {
			all = append(all, n.Name)
		}
	}
	return all
}

// String is the file with its questions and copies.
func (f *wovenFile) String() string {
	text, _ := f.render()
	return text
}

// render also says of which mutants each line is, by their numbers. Lines of the original keep their places.
func (f *wovenFile) render() (string, map[int][]int) {
	var b strings.Builder
	at, of := 0, map[int][]int{}
	for _, d := range f.decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		for _, c := range f.changed {
			if c.of != fn {
				continue
			}
			begin := f.set.Position(fn.Body.Lbrace)
			b.WriteString(f.text[at:max(at, begin.Offset+1)] + c.question)
			at = begin.Offset + 1
			of[begin.Line] = append(of[begin.Line], c.mutant)
		}
	}
	b.WriteString(f.text[at:])
	line := strings.Count(f.text, "\n") + 1
	for _, c := range f.changed {
		b.WriteString("\n" + c.text + "\n")
		for range strings.Count(c.text, "\n") + 2 {
			of[line] = append(of[line], c.mutant)
			line++
		}
	}
	return b.String(), of
}

// drop takes the mutants out of which the compiler complains, so that they get builds of their own. It returns how many.
func (w *weaving) drop(complaints string) int {
	bad := map[int]bool{}
	for name, f := range w.files {
		_, of := f.render()
		for _, m := range regexp.MustCompile(regexp.QuoteMeta(flat(name))+`:(\d+):`).FindAllStringSubmatch(complaints, -1) {
			line, _ := strconv.Atoi(m[1])
			for _, number := range of[line] {
				bad[number] = true
			}
		}
	}
	for _, f := range w.files {
		f.changed = slices.DeleteFunc(f.changed, func(c wovenCopy) bool { return bad[c.mutant] })
	}
	maps.DeleteFunc(w.woven, func(_ string, number int) bool { return bad[number] })
	return len(bad)
}

// flat is the name of a file's woven text.
func flat(name string) string { return strings.ReplaceAll(name, "/", "__") }

// write writes the woven files into dir, and what tells the compiler to take them for those below tree. It returns which packages changed.
func (w *weaving) write(tree, dir string) (overlay string, packages []string, err error) {
	replace := map[string]string{}
	folders := map[string]string{}
	put := func(name, text string) error {
		to := filepath.Join(dir, flat(name))
		replace[filepath.Join(tree, filepath.FromSlash(name))] = to
		return os.WriteFile(to, []byte(text), 0o600)
	}
	for _, name := range slices.Sorted(maps.Keys(w.files)) {
		if len(w.files[name].changed) == 0 {
			continue
		}
		folders[path.Dir(name)] = w.files[name].pkg
		if err := put(name, w.files[name].String()); err != nil {
			return "", nil, err
		}
	}
	for folder, pkg := range folders {
		text := fmt.Sprintf("package %s\n\nimport (\n\t\"os\"\n\t\"strconv\"\n)\n\nvar %s, _ = strconv.Atoi(os.Getenv(%q))\n", pkg, wovenVariable, mutantVariable)
		if err := put(folder+"/mutant__.go", text); err != nil {
			return "", nil, err
		}
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", nil, err
	}
	overlay = filepath.Join(dir, "overlay.json")
	for _, folder := range slices.Sorted(maps.Keys(folders)) {
		packages = append(packages, "./"+folder)
	}
	return overlay, packages, os.WriteFile(overlay, b, 0o600)
}
