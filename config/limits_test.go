package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const oneStore = "stores:\n  main: {url: 'memory:'}\n"

// What the parser of YAML would take a long time for, or much memory, is refused before it runs. Without that some of these files take
// longer than any test may.
func TestFilesThatWouldTakeLong(t *testing.T) {
	t.Parallel()
	const n = longestFile - 1000
	rep := func(head, unit string) string { return head + strings.Repeat(unit, n/len(unit)) }
	steps := func() string {
		var b strings.Builder
		for i := range 700 {
			b.WriteString(strings.Repeat(" ", i) + "a:\n")
		}
		return b.String()
	}
	deep := fmt.Sprintf("nested more than %d deep", mostNested)
	tokens := fmt.Sprintf("more than %d words and signs", mostTokens)
	for name, c := range map[string]struct{ file, want string }{
		"lists":               {rep("", "["), deep},
		"mappings":            {rep("", "{"), deep},
		"mappings with keys":  {rep("", "{a: "), deep},
		"pairs in lists":      {rep("", "[a: "), deep},
		"lists over lines":    {rep("", "[\n"), deep},
		"items":               {rep("", "- "), deep},
		"items after tabs":    {rep("", "-\t"), "tabs in a line"},
		"items in a list":     {rep("[", "- "), deep},
		"keys":                {rep("", "a: "), deep},
		"keys that are asked": {rep("", "? "), deep},
		"keys of nothing":     {rep("", ": "), deep},
		"steps":               {steps(), deep},
		"tags":                {rep("", "!!str "), tokens},
		"tags on lines":       {rep("", "!a\n"), tokens},
		"anchors":             {rep("", "&a "), tokens},
		"tags in a list":      {rep("[", "!a "), tokens},
		"aliases":             {rep("", "*a "), tokens},
		"ends":                {rep("", "]"), tokens},
		"short lists":         {rep("", "[]"), tokens},
		"a long mapping":      {oneStore + "tables:\n" + numbered(" t%d: m\n", mostTokens/3), tokens},
		"documents":           {rep("", "---\na: b\n"), tokens},
		"no text":             {rep("", "@"), ": ["},
		"a long key":          {strings.Repeat("k", longestKey+1) + ":\n  a: b\n", fmt.Sprintf("[1:1] a key of more than %d bytes", longestKey)},
		"a long quoted key":   {"a: {'" + strings.Repeat("k", longestKey+1) + "' : b}\n", "[1:5] a key of more than"},
		"a long key asked":    {"? " + strings.Repeat("k", longestKey+1) + " # c\n: b\n", "[1:3] a key of more than"},
		"empty lines":         {rep(oneStore+"# \n  x: |\n", "\n"), fmt.Sprintf("[%d] more than %d empty lines in a row", 5+mostInARow, mostInARow)},
		"lines of Windows":    {rep(oneStore+"a: |\n", "\r\n"), "empty lines in a row"},
		"lines of a Mac":      {rep(oneStore+"a: >\n  x\n", "\r"), "empty lines in a row"},
		"blank lines":         {rep(oneStore+"a: >\n  x\n", "   \t\n"), "empty lines in a row"},
		"signs of merges":     {rep("a: ", "<"), fmt.Sprintf("[1] more than %d < in a row", mostInARow)},
		"tabs":                {"a: \"" + strings.Repeat("\t|", mostTabs+1), fmt.Sprintf("[1] more than %d tabs in a line", mostTabs)},
		"a long text":         {rep(oneStore, "#") + strings.Repeat("#", 2000), fmt.Sprintf("longer than %d bytes", longestFile)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse([]byte(c.file), env)
			require.ErrorIs(t, err, ErrInvalid)
			require.ErrorContains(t, err, c.want)
		})
	}
}

// Signs in quotes, blocks and comments nest nothing, and what stands side by side is not deep.
func TestFilesWithinTheLimits(t *testing.T) {
	t.Parallel()
	signs := strings.Repeat("[{- ? a: ", 1000)
	for name, text := range map[string]string{
		"in single quotes": "'" + signs + "'", "in double quotes": `"` + signs + `"`, "in a block": "|-\n      " + signs, "in a folded block": ">-\n      " + signs,
	} {
		f, err := Parse([]byte("stores:\n  main:\n    url: 'redis://h'\n    password: "+text+"\n"), env)
		require.NoError(t, err, name)
		require.Equal(t, strings.TrimSpace(signs), strings.TrimSpace(f.Stores["main"].Password), name)
	}
	for name, c := range map[string]struct {
		file              string
		addresses, tables int
	}{
		"a comment":           {"#" + signs + "\nstores: {a: {scheme: redis, addresses: [h]}} #" + signs + "\n", 1, 0},
		"a list in a line":    {"stores: {a: {scheme: redis, addresses: [" + strings.Repeat("h, ", 10000) + "]}}\n", 10000, 0},
		"a list over lines":   {"stores:\n  a:\n    scheme: redis\n    addresses: [\n" + strings.Repeat("  h,\n  i,\n", 2000) + "]\n", 4000, 0},
		"a list of items":     {"stores:\n  a:\n    scheme: redis\n    addresses:\n" + strings.Repeat("    - h\n", 10000), 10000, 0},
		"items at the key":    {"stores:\n  a:\n    scheme: redis\n    addresses:\n" + strings.Repeat("    - h\n", 10000) + "    path: x\n", 10000, 0},
		"a mapping in a line": {"stores: {a: {scheme: redis, addresses: [h]}}\ntables: {" + numbered("t%d: a, ", 3000) + "}\n", 1, 3000},
		"quoted keys":         {"stores: {a: {scheme: redis, addresses: [h]}}\ntables: {" + numbered("'t%d' : 'a', ", 3000) + "}\n", 1, 3000},
		"a mapping of lines":  {"stores: {a: {scheme: redis, addresses: [h]}}\ntables:\n" + numbered("  t%d: a\n", 3000), 1, 3000},
		"keys that are asked": {"stores: {a: {scheme: redis, addresses: [h]}}\ntables:\n" + numbered("  ? t%d\n  : a\n", 3000), 1, 3000},
		"anchors, tags":       {"stores: {a: {scheme: redis, addresses: [h]}}\ntables:\n" + numbered("  !!str t%d: &a%[1]d a\n", 3000), 1, 3000},
		"many stores":         {"authoritative: a\nstores:\n  a: {scheme: redis, addresses: [h]}\n" + numbered("  s%d:\n    scheme: redis\n    addresses:\n      - h\n    parameters:\n      a: b\n", 500), 1, 0},
		"empty lines":         {strings.Repeat("\n", mostInARow) + "stores: {a: {scheme: redis, addresses: [h]}}\n" + strings.Repeat(" \r\n", mostInARow) + "#\n" + strings.Repeat("\n", mostInARow), 1, 0},
		"tabs":                {"stores: {a: {scheme: redis, addresses: [h]}}\n" + strings.Repeat("#"+strings.Repeat("\t", mostTabs)+"\n", 5), 1, 0},
		"a long name":         {"stores: {a: {scheme: redis, addresses: [h]}}\ntables: {" + strings.Repeat("t", longestKey) + ": a}\n", 1, 1},
		"the most":            {"stores: {a: {scheme: redis, addresses: [h]}}\n" + strings.Repeat("#", longestFile-100) + "\n", 1, 0},
	} {
		f, err := Parse([]byte(c.file), env)
		require.NoError(t, err, name)
		require.Len(t, f.Stores["a"].Addresses, c.addresses, name)
		require.Len(t, f.Tables, c.tables, name)
	}
}

func numbered(format string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// An alias is decoded anew wherever it stands, so what aliases bring in is bounded, and what they are for works.
func TestAliasesAreBounded(t *testing.T) {
	t.Parallel()
	large := "stores:\n  a: &a {scheme: redis, addresses: [h], parameters: {" + numbered("k%d: v, ", 200) + "}}\n"
	few := mostAliased / 300
	f, err := Parse([]byte("authoritative: a\n"+large+numbered("  s%d: *a\n", few)), env)
	require.NoError(t, err)
	require.Len(t, f.Stores, few+1)
	require.Equal(t, f.Stores["a"], f.Stores["s0"])

	for name, file := range map[string]string{
		"stores": "authoritative: a\n" + large + numbered("  s%d: *a\n", mostAliased/100),
		"text":   "authoritative: a\nstores:\n  a: &a {scheme: redis, addresses: [h], password: '" + strings.Repeat("x", longestFile/4) + "'}\n" + numbered("  s%d: *a\n", 5),
		"keys": "authoritative: a\nstores:\n  a: {scheme: redis, addresses: [h], path: &k '" + strings.Repeat("k", longestFile/4) + "'}\n" +
			numbered("  s%d: {scheme: redis, addresses: [h], parameters: {*k : v}}\n", 5),
	} {
		_, err := Parse([]byte(file), env)
		require.ErrorIs(t, err, ErrInvalid, name)
		require.ErrorContains(t, err, "aliases stand for more than", name)
	}
}

// A short name may stand for a long text, and often.
func TestWhatIsPutInIsBounded(t *testing.T) {
	t.Parallel()
	long := func(string) (string, bool) { return strings.Repeat("x", mostExpanded/4), true }
	for times, fits := range map[int]bool{4: true, 5: false} {
		f, err := Parse([]byte("stores: {a: {scheme: redis, addresses: [h], user: u, password: '"+strings.Repeat("${A}", times)+"'}}\n"), long)
		if fits {
			require.NoError(t, err)
			require.Len(t, f.Stores["a"].Password, mostExpanded)
			continue
		}
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, fmt.Sprintf("what variables and files stand for is longer than %d bytes", mostExpanded))
	}
}
