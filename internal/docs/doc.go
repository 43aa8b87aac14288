// Package docs checks the documents of this repository: that their programs run
// and their links lead somewhere. It has tests only.
package docs
