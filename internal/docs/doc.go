// Package docs checks the documents of this repository: their code compiles or is the
// same as in files that tests run, their commands exist, and their links lead somewhere.
//
// A block of code in a document stands between fences that name its language, or is
// indented by four spaces and holds commands of a shell. A comment before it may say
// more:
//
//	<!-- code: PATH -->        the block is a piece of this file, word for word
//	<!-- unchecked: REASON --> the block cannot be checked, and why
//
// Without a comment, Go must be a whole program, which is compiled; YAML and JSON are
// parsed, and percolator.yaml by its schema; of commands, the syntax is checked, and that
// the targets, folders, packages and flags that they name exist.
package docs
