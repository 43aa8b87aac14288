package config

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// The file is decoded from its syntax tree, for two reasons. First, a string of the
// schema is the text of the file, even where YAML alone would take it for a number.
// Second, no error repeats the file's text: it may be a secret in the wrong place.

// decode reads a file into out, a pointer to a struct of the schema.
func decode(content []byte, out any) error {
	content = bytes.TrimPrefix(content, []byte("\ufeff")) // editors of Windows put it there, and the parser takes it for a part of the first key
	if err := checkEncoding(content); err != nil {
		return err
	}
	tokens, err := tokenize(content)
	if err != nil {
		return err
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		return syntaxError(err)
	}
	var body ast.Node
	for _, doc := range file.Docs {
		switch {
		case doc.Body == nil || doc.Body.Type() == ast.CommentType || doc.Body.Type() == ast.NullType && isEmpty(doc.Body):
		case body != nil:
			return at(doc.Body, "a second YAML document: a file has one")
		default:
			body = doc.Body
		}
	}
	if body == nil {
		return nil
	}
	d := decoder{anchors: map[string]ast.Node{}}
	return d.value(body, reflect.ValueOf(out).Elem())
}

// checkEncoding refuses text that is not UTF-8, because the parser would replace it.
func checkEncoding(content []byte) error {
	line := 1
	for rest := content; len(rest) > 0; line++ {
		text, after, _ := bytes.Cut(rest, []byte("\n"))
		if !utf8.Valid(text) {
			return fmt.Errorf("%w: [%d] the line is not UTF-8", ErrInvalid, line)
		}
		rest = after
	}
	return nil
}

// syntaxError says where the file is not YAML. It leaves out the parser's own words
// where they quote the file.
func syntaxError(err error) error {
	var e yaml.Error
	if !errors.As(err, &e) {
		return fmt.Errorf("%w: the file is not YAML", ErrInvalid)
	}
	what := "the file is not YAML here"
	if message := e.GetMessage(); !strings.ContainsAny(message, "\"`\n") {
		what = message
	}
	return atToken(e.GetToken(), what)
}

func at(n ast.Node, format string, args ...any) error {
	return atToken(n.GetToken(), fmt.Sprintf(format, args...))
}

func atToken(t *token.Token, what string) error {
	if t == nil || t.Position == nil {
		return fmt.Errorf("%w: %s", ErrInvalid, what)
	}
	return fmt.Errorf("%w: [%d:%d] %s", ErrInvalid, t.Position.Line, t.Position.Column, what)
}

// isEmpty tells whether nothing is written where a value could be.
func isEmpty(n ast.Node) bool {
	return n.Type() == ast.NullType && (n.GetToken().Type == token.ImplicitNullType || strings.TrimSpace(n.GetToken().Value) == "")
}

type decoder struct {
	anchors map[string]ast.Node
	depth   int
	// aliased tells whether what is decoded stands behind an alias; values and bytes are how much did.
	aliased       bool
	values, bytes int
}

const mostDepth = 50 // of aliases within aliases

// value decodes a node into a part of the schema.
func (d *decoder) value(n ast.Node, v reflect.Value) error {
	if d.depth++; d.depth > mostDepth {
		return at(n, "nested too deep")
	}
	defer func(aliased bool) { d.depth, d.aliased = d.depth-1, aliased }(d.aliased)
	n, err := d.resolve(n)
	if err != nil {
		return err
	}
	if err := d.count(n, 1, 0); err != nil {
		return err
	}
	if isEmpty(n) {
		return nil // as if left out
	}
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		text, err := d.text(n)
		if err != nil {
			return err
		}
		if err := u.UnmarshalText([]byte(text)); err != nil {
			return at(n, "%v", err)
		}
		return nil
	}
	switch v.Kind() {
	case reflect.Struct:
		return d.structure(n, v)
	case reflect.Map:
		return d.mapping(n, v)
	case reflect.Slice:
		return d.sequence(n, v)
	case reflect.String:
		text, err := d.text(n)
		v.SetString(text)
		return err
	case reflect.Int:
		text := n.GetToken().Value
		i, err := strconv.Atoi(text)
		if n.Type() != ast.IntegerType || err != nil || strconv.Itoa(i) != text {
			return at(n, "not a number such as 5 or 4096")
		}
		v.SetInt(int64(i))
	case reflect.Bool:
		b, ok := n.(*ast.BoolNode)
		if !ok {
			return at(n, "neither true nor false")
		}
		v.SetBool(b.Value)
	default:
		return at(n, "the schema has a field of a kind that is not known")
	}
	return nil
}

// resolve returns the node behind anchors, aliases and tags.
func (d *decoder) resolve(n ast.Node) (ast.Node, error) {
	for range mostDepth {
		switch node := n.(type) {
		case *ast.AnchorNode:
			if node.Value == nil || isEmpty(node.Value) { // perhaps a secret that begins so
				return nil, at(n, "an anchor of nothing: put a text that begins with & in quotes")
			}
			d.anchors[node.Name.GetToken().Value] = node.Value
			n = node.Value
		case *ast.AliasNode:
			of, ok := d.anchors[node.Value.GetToken().Value]
			if !ok {
				return nil, at(n, "an alias of no anchor before it")
			}
			n, d.aliased = of, true
		case *ast.TagNode:
			if tag := node.Start.Value; tag != "!!str" && tag != "!!int" && tag != "!!bool" && tag != "!!map" && tag != "!!seq" {
				return nil, at(n, "a tag that has no meaning here")
			}
			if node.Value == nil || isEmpty(node.Value) {
				return nil, at(n, "a tag of nothing: put a text that begins with ! in quotes")
			}
			n = node.Value
		default:
			if n == nil {
				return nil, fmt.Errorf("%w: a value is missing", ErrInvalid)
			}
			return n, nil
		}
	}
	return nil, at(n, "nested too deep")
}

// count adds what is decoded to what stands behind aliases, if it does.
func (d *decoder) count(n ast.Node, values, bytes int) error {
	if !d.aliased {
		return nil
	}
	d.values, d.bytes = d.values+values, d.bytes+bytes
	if d.values > mostAliased || d.bytes > longestFile {
		return at(n, "the aliases stand for more than %d values, or %d bytes of text", mostAliased, longestFile)
	}
	return nil
}

// text is a scalar as it is written.
func (d *decoder) text(n ast.Node) (string, error) {
	s, err := scalar(n)
	if err != nil {
		return "", err
	}
	return s, d.count(n, 0, len(s))
}

func scalar(n ast.Node) (string, error) {
	switch node := n.(type) {
	case *ast.StringNode:
		if t := n.GetToken(); t.Type == token.StringType && strings.Contains(strings.TrimSpace(t.Origin), "\t") {
			return "", at(n, "a tab, which the parser would leave out: put the text in quotes")
		}
		return node.Value, nil
	case *ast.LiteralNode:
		return node.Value.Value, nil
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, nil
	case *ast.NullNode:
		return "", at(n, "null is no text: leave the key out, or put the text in quotes")
	}
	return "", at(n, "not a text but a list or a mapping")
}

// entries lists what a mapping holds.
func (d *decoder) entries(n ast.Node) ([]*ast.MappingValueNode, error) {
	switch node := n.(type) {
	case *ast.MappingNode:
		return node.Values, nil
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{node}, nil
	}
	return nil, at(n, "not a mapping of keys to values")
}

// key is the text of a mapping's key.
func (d *decoder) key(e *ast.MappingValueNode) (string, error) {
	var n ast.Node = e.Key
	if k, ok := n.(*ast.MappingKeyNode); ok {
		n = k.Value
	}
	if _, ok := n.(*ast.MergeKeyNode); ok {
		return "", at(n, "merge keys have no meaning here")
	}
	defer func(aliased bool) { d.aliased = aliased }(d.aliased)
	n, err := d.resolve(n)
	if err != nil {
		return "", err
	}
	return d.text(n)
}

func (d *decoder) structure(n ast.Node, v reflect.Value) error {
	entries, err := d.entries(n)
	if err != nil {
		return err
	}
	fields := map[string]int{}
	var known []string
	for i := range v.NumField() {
		name := v.Type().Field(i).Tag.Get("yaml")
		fields[name] = i
		known = append(known, name)
	}
	slices.Sort(known)
	for _, e := range entries {
		key, err := d.key(e)
		if err != nil {
			return err
		}
		i, ok := fields[key]
		if !ok {
			return at(e.Key, "no such key here (there are: %s)", strings.Join(known, ", "))
		}
		if i < 0 {
			return at(e.Key, "the key is there twice")
		}
		fields[key] = -1
		if err := d.value(e.Value, v.Field(i)); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) mapping(n ast.Node, v reflect.Value) error {
	entries, err := d.entries(n)
	if err != nil {
		return err
	}
	v.Set(reflect.MakeMap(v.Type()))
	for _, e := range entries {
		key, err := d.key(e)
		if err != nil {
			return err
		}
		if v.MapIndex(reflect.ValueOf(key)).IsValid() {
			return at(e.Key, "the key is there twice")
		}
		if v.Type().Elem().Kind() == reflect.Struct && isEmpty(e.Value) {
			return at(e.Key, "a key without anything under it")
		}
		value := reflect.New(v.Type().Elem()).Elem()
		if err := d.value(e.Value, value); err != nil {
			return err
		}
		v.SetMapIndex(reflect.ValueOf(key), value)
	}
	return nil
}

func (d *decoder) sequence(n ast.Node, v reflect.Value) error {
	s, ok := n.(*ast.SequenceNode)
	if !ok {
		return at(n, "not a list")
	}
	for _, item := range s.Values {
		value := reflect.New(v.Type().Elem()).Elem()
		if err := d.value(item, value); err != nil {
			return err
		}
		v.Set(reflect.Append(v, value))
	}
	return nil
}

var (
	plainName = regexp.MustCompile(`^[A-Za-z0-9_.*-]{1,40}$`)
	variable  = regexp.MustCompile(`^[A-Z_][A-Z0-9_]*$`)
)

// shown returns a name of the file as an error may show it. Text that does not look
// like a name may be a URL or a secret that was put where a name belongs.
func shown(name string) string {
	if !plainName.MatchString(name) {
		return "(a name that is not shown)"
	}
	return name
}
