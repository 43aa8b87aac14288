package postgres

import (
	"fmt"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// databaseOf makes a database on a server, with options of CREATE DATABASE, and returns its URL.
func databaseOf(t *testing.T, direct, options string) string {
	t.Helper()
	name := fmt.Sprintf("database%d", schemas.Add(1))
	sqlDo(t, direct, "CREATE DATABASE "+name+" "+options)
	atend.Do(t, func() { sqlDo(t, direct, "DROP DATABASE "+name+" WITH (FORCE)") })
	u, err := url.Parse(direct)
	require.NoError(t, err)
	u.Path = "/" + name
	return u.String()
}

// A schema's name may be any text: also in a database of another encoding, which is then the client's by default, and with the tags of the
// literals that the store's functions are written in.
func TestNamesOfSchemas(t *testing.T) {
	t.Parallel()
	direct := testserver.Postgres(t)
	euc := databaseOf(t, direct, "TEMPLATE template0 ENCODING 'EUC_JP' LOCALE 'C'")
	utf8 := databaseOf(t, direct, "")
	for name, dsn := range map[string]string{
		"日本":            euc,
		"größe":         utf8,
		"x$body$y":      utf8,
		"$do$":          utf8,
		"$body$$body_$": utf8,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			s := openTest(t, with(dsn, "schema", name))
			require.Equal(t, "1", sqlDo(t, with(dsn, "client_encoding", "UTF8"), "SELECT count(*) FROM pg_namespace WHERE nspname = "+literal(name)))
			require.NoError(t, writeDrawn(ctx, s, "\xff\x00"))
			rows, err := s.Read(ctx, []rowstore.RowRead{pointOf("\xff\x00", oracle.Max)})
			require.NoError(t, err)
			require.Len(t, rows[0].Versions, 1)
			e := earOf(ctx, t, openTest(t, with(dsn, "schema", name, "listen", dsn)))
			e.hearOf(map[uint16]bool{notifies(ctx, t, s, "r"): true})
			sqlDo(t, with(dsn, "client_encoding", "UTF8"), newNames(name).expand("UPDATE {{schema}}.meta SET version = 9"))
			openTest(t, with(dsn, "schema", name)) // which migrates it
		})
	}
}
