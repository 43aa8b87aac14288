// Package tools holds no code. The go.mod beside it names the tools that the Makefile builds, and their versions; with a package here, commands over
// every module, such as "go vet ./...", have something to look at.
package tools
