package docs

import (
	"fmt"
	"regexp"
	"strings"
)

// Block is a piece of a document that is not prose.
type Block struct {
	// Line is the first line of Text in the document, counted from 1.
	Line int
	// Language is what the opening fence names, "" if it names nothing. An indented block
	// has the language "indented".
	Language string
	// Text has every line of the block, without the indentation of the whole.
	Text string
	// Code is the file that the block is a piece of, if a comment before it names one.
	Code string
	// Unchecked is why the block is not checked, if a comment before it says so.
	Unchecked string
}

var (
	fence   = regexp.MustCompile("^( *)```(.*)$")
	comment = regexp.MustCompile(`^ *<!-- (code|unchecked): (.*\S) -->$`)
	item    = regexp.MustCompile(`^([-*+]|[0-9]+\.) `)
	// hidden is code that a reader sees as such and Blocks would take for prose.
	hidden = regexp.MustCompile("^[ \t>]*(```|~~~)|^\t")
)

// Blocks finds the blocks of a document in Markdown. It returns an error for a fence
// without an end, for a comment that no block follows, and for code that is marked in
// another way: by ~~~, by a tab, or inside a quotation.
func Blocks(document string) ([]Block, error) {
	var blocks []Block
	var next Block // what a comment has said about the block that follows
	var said int   // the line of that comment, 0 if there is none
	inList := false
	lines := strings.Split(document, "\n")
	add := func(b Block) {
		b.Code, b.Unchecked = next.Code, next.Unchecked
		blocks = append(blocks, b)
		next, said = Block{}, 0
	}
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		if m := comment.FindStringSubmatch(line); m != nil {
			if said != 0 {
				return nil, fmt.Errorf("line %d: no block follows this comment", said)
			}
			said = i + 1
			inList = inList && strings.HasPrefix(line, " ")
			if m[1] == "code" {
				next.Code = m[2]
			} else {
				next.Unchecked = m[2]
			}
			continue
		}
		if m := fence.FindStringSubmatch(line); m != nil {
			b := Block{Line: i + 2, Language: strings.TrimSpace(m[2])}
			for i++; ; i++ {
				if i >= len(lines) {
					return nil, fmt.Errorf("line %d: a fence without an end", b.Line-1)
				}
				if strings.TrimSpace(lines[i]) == "```" {
					break
				}
				b.Text += strings.TrimPrefix(lines[i], m[1]) + "\n"
			}
			add(b)
			continue
		}
		if strings.TrimSpace(line) == "" {
			continue
		}
		if hidden.MatchString(line) {
			return nil, fmt.Errorf("line %d: code that nothing would check: use a fence of ``` at the margin or in a list, or four spaces", i+1)
		}
		indented := strings.HasPrefix(line, "    ")
		if indented && !inList && (i == 0 || strings.TrimSpace(lines[i-1]) == "" || comment.MatchString(lines[i-1])) {
			b := Block{Line: i + 1, Language: "indented"}
			for ; i < len(lines) && (strings.HasPrefix(lines[i], "    ") || strings.TrimSpace(lines[i]) == ""); i++ {
				b.Text += strings.TrimPrefix(lines[i], "    ") + "\n"
			}
			i--
			b.Text = strings.TrimRight(b.Text, "\n") + "\n"
			add(b)
			continue
		}
		if said != 0 {
			return nil, fmt.Errorf("line %d: no block follows this comment", said)
		}
		// What is indented below an item of a list belongs to the item.
		if !strings.HasPrefix(line, " ") || item.MatchString(line) {
			inList = item.MatchString(line)
		}
	}
	if said != 0 {
		return nil, fmt.Errorf("line %d: no block follows this comment", said)
	}
	return blocks, nil
}

// Contains tells whether a file has the lines of a block, one after the other. The block
// as a whole may be indented less than the file, since a piece of a function stands at
// the margin of a document.
func Contains(file, block string) bool {
	want := strings.Split(strings.TrimRight(block, "\n"), "\n")
	have := strings.Split(file, "\n")
	for at := 0; at+len(want) <= len(have); at++ {
		indent, found := strings.CutSuffix(have[at], want[0])
		if !found || strings.Trim(indent, "\t ") != "" {
			continue
		}
		same := true
		for i, line := range want {
			got := have[at+i]
			if line == "" {
				same = same && got == ""
			} else {
				same = same && got == indent+line
			}
		}
		if same {
			return true
		}
	}
	return false
}
