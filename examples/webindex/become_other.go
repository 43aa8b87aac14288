//go:build !unix

package main

import "errors"

// become cannot replace this process here: the program is run as a child.
func become(string, []string) error { return errors.ErrUnsupported }
