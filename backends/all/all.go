// Package all registers every backend with rowstore.Open. Import it for that
// alone:
//
//	import _ "github.com/percolate-go/percolate/backends/all"
//
// A program that wants fewer dependencies imports the backends that it uses
// instead.
package all

import (
	_ "github.com/percolate-go/percolate/backends/pebble"   // pebble:PATH, memory:
	_ "github.com/percolate-go/percolate/backends/postgres" // postgres://, postgresql://
	_ "github.com/percolate-go/percolate/backends/redis"    // redis://, rediss://, unix://, +cluster, +sentinel
	_ "github.com/percolate-go/percolate/backends/tikvraw"  // tikv://
)
