// Package tutorial has tests only: they do what docs/tutorial.md says. The folders beside
// this file hold the programs of its parts.
package tutorial
