package postgres

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/conformance"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func TestMain(m *testing.M) { testserver.Main(m) }

var schemas atomic.Int64

// fresh names a schema that nothing else uses, and drops it when the test ends.
// direct is a URL of the server itself.
func fresh(t testing.TB, direct string) string {
	t.Helper()
	name := fmt.Sprintf("Test \"%d\" o'clock", schemas.Add(1))
	t.Cleanup(func() { sqlDo(t, direct, "DROP SCHEMA IF EXISTS "+pgx.Identifier{name}.Sanitize()+" CASCADE") })
	return name
}

// recycler lends schemas to tests one after another, emptied in between. A connection
// plans the functions of a schema when it first calls them, which takes longer than most
// tests, and behind a pooler connections outlive the tests. The oracle goes on, as it
// does when a store is opened again.
type recycler struct {
	direct string
	mu     sync.Mutex
	free   []string
}

// recycled lends schemas of the server until the test ends.
func recycled(t testing.TB) (direct string, schemas *recycler) {
	t.Helper()
	schemas = &recycler{direct: testserver.Postgres(t)}
	t.Cleanup(func() { schemas.drop(t) })
	return schemas.direct, schemas
}

// schema lends a schema until the test ends. What a failed test leaves is dropped.
func (r *recycler) schema(t testing.TB) string {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var name string
	if last := len(r.free) - 1; last >= 0 {
		name, r.free = r.free[last], r.free[:last]
	} else {
		name = fmt.Sprintf("Recycled \"%d\" o'clock", schemas.Add(1))
	}
	t.Cleanup(func() {
		quoted := pgx.Identifier{name}.Sanitize()
		if t.Failed() {
			sqlDo(t, r.direct, "DROP SCHEMA IF EXISTS "+quoted+" CASCADE")
			return
		}
		// What is deleted stays as pages, which a scan or a sample by the next borrower would walk.
		var empty strings.Builder
		for _, table := range []string{"cell", "past", "data", "notify"} {
			table = quoted + "." + table
			fmt.Fprintf(&empty, "IF pg_relation_size('%s') > 262144 THEN TRUNCATE %s; ELSE DELETE FROM %s; END IF;\n", strings.ReplaceAll(table, "'", "''"), table, table)
		}
		sqlDo(t, r.direct, "DO $do$ BEGIN\n"+empty.String()+"END $do$")
		r.mu.Lock()
		defer r.mu.Unlock()
		r.free = append(r.free, name)
	})
	return name
}

// drop removes what was lent, when all tests that borrow are over.
func (r *recycler) drop(t testing.TB) {
	t.Helper()
	for _, name := range r.free {
		sqlDo(t, r.direct, "DROP SCHEMA IF EXISTS "+pgx.Identifier{name}.Sanitize()+" CASCADE")
	}
}

// sqlDo runs statements on a connection of their own and returns the first field of
// the last line.
func sqlDo(t testing.TB, dsn, sql string) string {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, dsn)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(ctx)) }()
	results, err := conn.PgConn().Exec(ctx, sql).ReadAll()
	require.NoError(t, err, sql)
	last := results[len(results)-1]
	if len(last.Rows) == 0 {
		return ""
	}
	return string(last.Rows[len(last.Rows)-1][0])
}

// with adds parameters to a URL.
func with(dsn string, pairs ...string) string {
	for i := 0; i < len(pairs); i += 2 {
		dsn += "&" + pairs[i] + "=" + strings.ReplaceAll(url.QueryEscape(pairs[i+1]), "+", "%20")
	}
	return dsn
}

// openTest opens a store and closes it when the test ends.
func openTest(t testing.TB, dsn string) *Store {
	t.Helper()
	s, err := OpenURL(context.Background(), dsn)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// sizesElsewhere is why only some runs of the suite have tests of sizes.
const sizesElsewhere = "TestConformance, TestConformanceUncoalesced and TestConformancePgBouncer have them"

func TestConformance(t *testing.T) {
	t.Parallel()
	direct, schemas := recycled(t)
	conformance.Run(t, func(t testing.TB) rowstore.Store {
		return openTest(t, with(direct, "schema", schemas.schema(t)))
	}, conformance.Scale(0.1))
}

func TestConformanceUncoalesced(t *testing.T) {
	t.Parallel()
	direct, schemas := recycled(t)
	conformance.RunStore(t, func(t testing.TB) rowstore.Store {
		return openTest(t, with(direct, "schema", schemas.schema(t), "coalesce", "off"))
	}, conformance.Scale(0.1))
}
