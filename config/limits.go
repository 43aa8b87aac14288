package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/goccy/go-yaml/scanner"
	"github.com/goccy/go-yaml/token"
)

// The parser of YAML takes time by the square of how deep a file is nested, or how many keys a mapping has, and memory alike. So the
// file is bounded before it: its length, which bounds its tokens for a start, then their number, and what they nest. The documentation
// of the package names the limits.
const (
	longestFile  = 256 << 10 // in bytes
	mostTokens   = 30_000    // the words and signs that the parser sees
	mostNested   = 20        // lists and mappings
	longestKey   = 1024      // in bytes: each node has the keys that it is under in its path
	mostInARow   = 100       // empty lines, of which those at the end of a block are removed one by one, each time with a copy of the block; and < signs
	mostTabs     = 1000      // in a line: in quotes the scanner looks from each to the end of the line
	mostAliased  = 10_000    // values behind aliases, which are decoded anew for each alias
	mostExpanded = 1 << 20   // bytes that variables and files stand for
)

var errLong = fmt.Errorf("%w: the file is longer than %d bytes", ErrInvalid, longestFile)

// tokenize splits a file into what the parser reads, and refuses what it would take long for.
func tokenize(content []byte) (token.Tokens, error) {
	if len(content) > longestFile {
		return nil, errLong
	}
	if err := checkText(content); err != nil {
		return nil, err
	}
	var tokens token.Tokens
	var s scanner.Scanner
	s.Init(string(content))
	// Behind a token that is invalid nothing counts, and the scanner would go on for long: the parser says what is wrong with it.
	for {
		found, err := s.Scan()
		if !errors.Is(err, io.EOF) {
			tokens.Add(found...)
		}
		if err != nil {
			break
		}
	}
	if err := checkNesting(tokens); err != nil {
		return nil, err
	}
	if len(tokens) > mostTokens {
		return nil, atToken(tokens[mostTokens], fmt.Sprintf("more than %d words and signs", mostTokens))
	}
	return tokens, nil
}

// checkText refuses what the scanner itself takes time by the square for.
func checkText(content []byte) error {
	// A line that is not empty has a break of its own, so the count of empty ones begins at -1 behind it.
	line, empty, signs, tabs := 1, 0, 0, 0
	for i, c := range content {
		if c != '<' {
			signs = 0
		}
		switch {
		case c == '\n' || c == '\r' && !bytes.HasPrefix(content[i+1:], []byte("\n")):
			if empty++; empty > mostInARow {
				return fmt.Errorf("%w: [%d] more than %d empty lines in a row", ErrInvalid, line, mostInARow)
			}
			line, tabs = line+1, 0
		case c == ' ' || c == '\r':
		case c == '\t':
			if tabs++; tabs > mostTabs {
				return fmt.Errorf("%w: [%d] more than %d tabs in a line", ErrInvalid, line, mostTabs)
			}
		case c == '<':
			empty = -1
			if signs++; signs > mostInARow {
				return fmt.Errorf("%w: [%d] more than %d < in a row", ErrInvalid, line, mostInARow)
			}
		default:
			empty = -1
		}
	}
	return nil
}

// nesting follows how deep a file is nested. Signs in quotes, blocks and comments are no tokens of their own.
type nesting struct {
	open []int // the columns of the lists and mappings that are open; 0 for those in brackets
}

// checkNesting refuses tokens that are nested too deep, and keys that are too long.
func checkNesting(tokens token.Tokens) error {
	var n nesting
	var last *token.Token
	for _, t := range tokens {
		switch t.Type {
		case token.CommentType:
			continue
		case token.SequenceStartType, token.MappingStartType:
			n.open = append(n.open, 0)
		case token.SequenceEndType, token.MappingEndType:
			n.toBracket()
			n.open = n.open[:max(len(n.open)-1, 0)]
		case token.CollectEntryType:
			n.toBracket()
		case token.DocumentHeaderType, token.DocumentEndType:
			n.open = n.open[:0]
		case token.SequenceEntryType, token.MappingKeyType:
			n.at(t.Position.Column)
		case token.MappingValueType:
			key := last
			if key == nil {
				key = t
			}
			if len(key.Value) > longestKey {
				return atToken(key, fmt.Sprintf("a key of more than %d bytes", longestKey))
			}
			n.at(key.Position.Column)
		}
		if len(n.open) > mostNested {
			return atToken(t, fmt.Sprintf("nested more than %d deep", mostNested))
		}
		last = t
	}
	return nil
}

// at begins an item or a key at a column: what stands further to the right has ended.
func (n *nesting) at(column int) {
	for len(n.open) > 0 && n.open[len(n.open)-1] > column {
		n.open = n.open[:len(n.open)-1]
	}
	if len(n.open) == 0 || n.open[len(n.open)-1] != column {
		n.open = append(n.open, column)
	}
}

// toBracket ends all that has begun behind the last open bracket.
func (n *nesting) toBracket() {
	for len(n.open) > 0 && n.open[len(n.open)-1] > 0 {
		n.open = n.open[:len(n.open)-1]
	}
}
