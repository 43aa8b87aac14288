//go:build unix

package main

import (
	"fmt"
	"os"
	"syscall"
)

// become runs a program in this process, in the place of this one, so that every signal
// reaches the program, also one that kills. It returns only if that fails.
func become(program string, args []string) error {
	err := syscall.Exec(program, append([]string{program}, args...), os.Environ()) //nolint:gosec // the program was just built
	return fmt.Errorf("running %s: %w", program, err)
}
