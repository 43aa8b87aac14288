// Package shown writes texts of others and numbers as people see them. The command, the page and package admin share it, so that
// none of them shows what another one hides.
package shown

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Escape writes every byte of a text as %XX that cannot be printed, or that plain refuses. plain gets each character that can be
// printed, a line's end and a tab, and where it lies in the text.
func Escape(s string, plain func(at int, r rune) bool) string {
	var out strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		damaged := r == utf8.RuneError && n == 1
		if !damaged && (unicode.IsPrint(r) || r == '\n' || r == '\t') && plain(i, r) {
			out.WriteString(s[i : i+n])
		} else {
			for _, c := range []byte(s[i : i+n]) {
				fmt.Fprintf(&out, "%%%02X", c)
			}
		}
		i += n
	}
	return out.String()
}

// Text writes a text of others, such as an error, without what a terminal would obey or a reader could not see. Lines and tabs stay.
func Text(s string) string { return Escape(s, func(int, rune) bool { return true }) }

// Count writes a number with a + behind it if it is only at least that.
func Count(n int, atLeast bool) string {
	if atLeast {
		return fmt.Sprintf("%d+", n)
	}
	return fmt.Sprint(n)
}
