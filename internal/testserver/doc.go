// Package testserver gives tests a running Redis or Postgres, and a TiKV cluster
// where one can be had.
//
// A package that needs a server calls [Redis] or [Postgres], which start one for
// the whole package on first use, and hands its TestMain to [Main], which stops
// them at the end:
//
//	func TestMain(m *testing.M) { testserver.Main(m) }
//
//	func TestStore(t *testing.T) {
//		url := testserver.Redis(t)
//		...
//	}
//
// A test that hurts its server (kills, stops or pauses it) starts one of its own
// with [NewRedis], [NewRedisCluster], [NewPostgres] or [NewPgBouncer].
//
// Where a server comes from, first that works:
//
//  1. the one named by PERCOLATOR_TEST_REDIS or PERCOLATOR_TEST_POSTGRES (shared
//     servers only: a test never kills a server that is not its own);
//  2. a container, where a Docker engine answers and has the image;
//  3. the programs installed on this machine.
//
// PERCOLATOR_TEST_SERVERS=containers or =local leaves only one of 2 and 3. Where
// nothing works the test fails and says what to install: no test is skipped for
// want of a server. TiKV is the exception: [TiKV] and [StartTiKV] know only 1 and 2,
// and return an error that says why there is no cluster, because package tikvtest's
// mock of one runs anywhere. What ran against what is noted with [Ran], and printed
// at the end of `make test`.
//
// Every server listens on 127.0.0.1 at a free port, keeps its data in a temporary
// directory, and ends with the test process however that ends: a watchdog process
// holds a pipe to it.
package testserver
