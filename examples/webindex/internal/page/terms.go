package page

import (
	"iter"
	"strings"
	"unicode"
)

// MaxTermLen is the greatest length of a term in bytes; longer words are no
// terms.
const MaxTermLen = 48

// stopWords are so common in English that they tell no page from another.
var stopWords = func() map[string]bool {
	m := make(map[string]bool)
	for w := range strings.FieldsSeq("a an and are as at be but by can for from has have if in into is it its may no not of on or " +
		"such than that the their then there these they this to was which will with you your") {
		m[w] = true
	}
	return m
}()

// Terms gives the terms of a text in order, repeated ones included. A term is a
// run of letters and digits in lower case; where a script is written without
// spaces, each character is one. Single ASCII characters, very common English
// words and words over MaxTermLen are left out. Queries are cut in the same way.
func Terms(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		word := make([]rune, 0, 64)
		flush := func() bool {
			if len(word) == 0 {
				return true
			}
			w := string(word)
			single := len(w) == 1
			word = word[:0]
			if single || len(w) > MaxTermLen || stopWords[w] {
				return true
			}
			return yield(w)
		}
		for _, r := range text {
			switch {
			case unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana):
				if !flush() || !yield(string(r)) {
					return
				}
			case unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.IsMark(r):
				// A very long run is cut off here only to bound memory: it stays longer
				// than any term.
				if len(word) <= MaxTermLen {
					word = append(word, unicode.ToLower(r))
				}
			default:
				if !flush() {
					return
				}
			}
		}
		flush()
	}
}
