// Package urltest helps to test that what is wrong with a URL is told without its secrets.
package urltest

import (
	"fmt"
	"strings"
)

// The two halves of each password. Neither may be shown.
const (
	One = "s3cr3tOne"
	Two = "s3cr3tTwo"
)

// specials stand between the halves. Each should be encoded in a URL, and is not; or it is the beginning
// of another part of one.
var specials = []string{
	"", "#", "?", " ", "@", "/", ":", "%", "%zz", "&", "=", ";", ",", "[", "]", "\\", "\n", "\t", "\x00", "\"", "<", "+", "://", "?x=", "?a=", "#?", "#@", "?@", "/@", "é",
}

// URLs puts passwords into forms, each of which has %s where one goes. Half of them begin with a special character.
func URLs(forms ...string) []string {
	var all []string
	for _, special := range specials {
		for _, form := range forms {
			all = append(all, strings.ReplaceAll(form, "%s", One+special+Two), strings.ReplaceAll(form, "%s", special+Two))
		}
	}
	return all
}

// Shown returns an error if a text shows a part of a password.
func Shown(text string) error {
	for _, half := range []string{One, Two} {
		if strings.Contains(text, half) {
			return fmt.Errorf("a part of a password is shown: %q", text)
		}
	}
	return nil
}
