package postgres

import (
	"fmt"
	"net/url"
	"strings"
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

// An incarnation that is no text, or none that the server's encoding has, is that of no store. It does not make the server refuse
// what others ask in the same call.
func TestIncarnationsOfNoStore(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	s := openTest(t, with(direct, "schema", fresh(t, direct), "coalesce", "off"))
	same := func(row, incarnation string, family rowstore.Family) rowstore.Mutation {
		return rowstore.Mutation{Table: "t", Row: row, Conditions: []rowstore.Condition{rowstore.SameIncarnation(incarnation), rowstore.Absent(family, "c", 0)}, Edits: put(row, 5).Edits}
	}
	// Conditions on locks are judged by the quick statements, those on notifications by the general one.
	for _, family := range []rowstore.Family{rowstore.Lock, rowstore.Notify} {
		for i, none := range []string{"\xff", "\x00", "日本", ""} {
			row := fmt.Sprint(family, i)
			outs, err := s.Apply(ctx, []rowstore.Mutation{same(row, none, family), put(row+"b", 5)}, rowstore.ApplyOptions{})
			require.NoError(t, err, "%q", none)
			require.False(t, outs[0].Applied)
			require.NoError(t, outs[0].Err)
			require.Zero(t, outs[0].Failed)
			require.True(t, outs[1].Applied)
			outs, err = s.Apply(ctx, []rowstore.Mutation{same(row, outs[1].Incarnation, family)}, rowstore.ApplyOptions{})
			require.NoError(t, err)
			require.True(t, outs[0].Applied)
		}
	}
}

// A connection to listen on that hears nothing of what the store announces is an error, and not a push that works.
func TestListenElsewhere(t *testing.T) {
	t.Parallel()
	direct := testserver.Postgres(t)
	bouncer := testserver.NewPgBouncer(t, testserver.SharedPostgres(t), testserver.PgBouncerOptions{}).URL
	for name, listen := range map[string]string{"another database": databaseOf(t, direct, ""), "a pooler": bouncer} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			s := openTest(t, with(direct, "schema", fresh(t, direct), "listen", listen))
			s.plain.hearWithin = testSettle
			w, _ := rowstore.Unwrap[rowstore.Waker](s)
			told := 0
			err := w.Listen(ctx, func(rowstore.Wake) { told++ })
			require.ErrorIs(t, err, errUnheard)
			require.NotErrorIs(t, err, rowstore.ErrInvalid, "a worker would end")
			require.Zero(t, told)
			require.False(t, strings.Contains(err.Error(), testserver.PostgresPassword))
		})
	}
}
