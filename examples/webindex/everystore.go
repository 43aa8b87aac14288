//go:build everystore

package main

import (
	_ "github.com/percolate-go/percolate/backends/all" // see stores.go
)
