package howto

import (
	"bytes"
	"context"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	_ "github.com/percolate-go/percolate/backends/pebble"
	_ "github.com/percolate-go/percolate/backends/postgres"
	"github.com/percolate-go/percolate/backup"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func open(t *testing.T, url string) *percolator.DB {
	t.Helper()
	db, err := percolator.Open(t.Context(), url)
	require.NoError(t, err)
	return db
}

func put(t *testing.T, db *percolator.DB, id, note string) {
	t.Helper()
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error { return tx.Set(text(id), []byte(note)) }))
}

func get(t *testing.T, db *percolator.DB, id string) string {
	t.Helper()
	var note []byte
	require.NoError(t, db.View(t.Context(), func(tx *percolator.Txn) (err error) {
		note, err = tx.Get(t.Context(), text(id))
		return err
	}))
	return string(note)
}

func copyShop(ctx context.Context, db *percolator.DB, file, url string) error {
	if _, err := backup.Write(ctx, db, file, backup.Options{}); err != nil {
		return err
	}
	store, err := rowstore.Open(ctx, url)
	if err != nil {
		return err
	}
	_, err = backup.Restore(ctx, store, file, backup.RestoreOptions{})
	return errors.Join(err, store.Close())
}

// TestCopyToAnotherBackend takes a Pebble store to Postgres, while it is open.
func TestCopyToAnotherBackend(t *testing.T) {
	t.Parallel()
	address := testserver.Postgres(t)
	into := address + "?schema=copied"
	if strings.Contains(address, "?") {
		into = address + "&schema=copied"
	}
	db := open(t, "pebble:"+filepath.Join(t.TempDir(), "shop"))
	put(t, db, "1", "before")
	require.NoError(t, copyShop(t.Context(), db, filepath.Join(t.TempDir(), "shop.backup"), into))
	put(t, db, "1", "after")
	require.NoError(t, db.Close(t.Context()))
	db = open(t, into)
	require.Equal(t, "before", get(t, db, "1"))
	put(t, db, "1", "written again")
	require.NoError(t, db.Close(t.Context()))
}

// TestCopyOfAClosedStore is the backup of pebble: a copy of the directory, while nobody has
// it open.
func TestCopyOfAClosedStore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	live, backup := filepath.Join(dir, "live"), filepath.Join(dir, "backup")
	db := open(t, "pebble:"+live)
	put(t, db, "1", "before")
	require.NoError(t, db.Close(t.Context()))
	require.NoError(t, os.CopyFS(backup, os.DirFS(live)))
	db = open(t, "pebble:"+live)
	put(t, db, "1", "after")
	require.NoError(t, db.Close(t.Context()))

	db = open(t, "pebble:"+backup+"?mustexist=true")
	require.Equal(t, "before", get(t, db, "1"))
	put(t, db, "1", "written again")
	require.Equal(t, "written again", get(t, db, "1"))
	require.NoError(t, db.Close(t.Context()))
}

// TestDumpOfPostgres dumps a schema while transactions run, and restores it into another
// database.
func TestDumpOfPostgres(t *testing.T) {
	t.Parallel()
	address, err := url.Parse(testserver.Postgres(t))
	require.NoError(t, err)
	with := func(database, schema string) string {
		u := *address
		if database != "" {
			u.Path = "/" + database
		}
		q := u.Query()
		if schema != "" {
			q.Set("schema", schema)
		}
		u.RawQuery = q.Encode()
		return u.String()
	}
	tool := postgresTools(t)

	db := open(t, with("", "shop"))
	put(t, db, "1", "before")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { // two cells that are always the same
		for ctx.Err() == nil {
			err := db.Update(context.WithoutCancel(ctx), func(tx *percolator.Txn) error {
				n, err := number(ctx, tx, words("a"))
				if err != nil {
					return err
				}
				if err := setNumber(tx, words("a"), n+1); err != nil {
					return err
				}
				return setNumber(tx, words("b"), n+1)
			})
			if err != nil && ctx.Err() == nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	dump := tool(nil, "pg_dump", "--schema=shop", with("", ""))
	stop()
	require.NoError(t, <-ended)
	require.NoError(t, db.Close(t.Context()))

	tool(nil, "psql", "-q", "-c", "CREATE DATABASE restored", with("", ""))
	tool(dump, "psql", "-q", "-v", "ON_ERROR_STOP=1", with("restored", ""))
	db = open(t, with("restored", "shop"))
	require.Equal(t, "before", get(t, db, "1"))
	require.NoError(t, db.View(t.Context(), func(tx *percolator.Txn) error {
		a, err := number(t.Context(), tx, words("a"))
		require.NoError(t, err)
		b, err := number(t.Context(), tx, words("b"))
		require.NoError(t, err)
		require.Equal(t, a, b, "the dump has half of a transaction")
		return nil
	}))
	put(t, db, "1", "written again")
	require.Equal(t, "written again", get(t, db, "1"))
	require.NoError(t, db.Close(t.Context()))
}

// postgresTools runs pg_dump and psql: those of the machine, or of the image of the tests.
func postgresTools(t *testing.T) func(stdin []byte, program string, args ...string) []byte {
	t.Helper()
	var before []string
	if _, err := exec.LookPath("pg_dump"); err != nil {
		for _, image := range []string{os.Getenv("PERCOLATOR_TEST_POSTGRES_IMAGE"), "postgres:15", "percolate-test/postgres"} {
			if image != "" && exec.CommandContext(t.Context(), "docker", "image", "inspect", image).Run() == nil {
				before = []string{"docker", "run", "--rm", "-i", "--network", "host", image}
				break
			}
		}
		require.NotEmpty(t, before, "neither pg_dump nor an image that has it")
	}
	return func(stdin []byte, program string, args ...string) []byte {
		t.Helper()
		line := append(append([]string{}, before...), append([]string{program}, args...)...)
		cmd := exec.CommandContext(t.Context(), line[0], line[1:]...)
		var errs bytes.Buffer
		cmd.Stdin, cmd.Stderr = bytes.NewReader(stdin), &errs
		out, err := cmd.Output()
		require.NoError(t, err, "%s: %s", program, &errs)
		return out
	}
}
