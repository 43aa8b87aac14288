package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// TestBackupAndRestore takes a database from a store to another one by the commands, in a file that is refused when it is damaged.
func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	url, dir := someLinks(t), t.TempDir()
	file, into := filepath.Join(dir, "links.backup"), "pebble:"+filepath.Join(dir, "into")
	a := ask(t, url, "backup", file)
	require.Equal(t, exitOK, a.status, a.err)
	require.Contains(t, a.out, "is complete: 5 cells of 5 rows")
	require.Equal(t, exitUsage, ask(t, url, "backup", file).status, "the file is there")
	require.Equal(t, exitUsage, ask(t, url, "restore", file).status, "the store is not empty")

	b, err := os.ReadFile(file)
	require.NoError(t, err)
	bad := filepath.Join(dir, "bad")
	b[len(b)/2] ^= 4
	require.NoError(t, os.WriteFile(bad, b, 0o600))
	require.Equal(t, exitCorrupt, ask(t, into, "restore", bad).status)
	require.Equal(t, exitCorrupt, ask(t, into, "restore", "--check", bad).status)
	require.NoError(t, os.WriteFile(bad, b[:len(b)/3], 0o600))
	require.Contains(t, ask(t, into, "restore", bad).err, "not complete")
	require.NoError(t, os.WriteFile(bad, []byte("something else that is no backup at all"), 0o600))
	require.Equal(t, exitFormat, ask(t, into, "restore", bad).status)

	a = ask(t, "", "restore", "--check", "--json", file)
	require.Equal(t, exitOK, a.status, a.err)
	require.Contains(t, a.out, `"cells": 5`)
	a = ask(t, into, "restore", file)
	require.Equal(t, exitOK, a.status, a.err)
	require.Equal(t, answer{out: "value of %00%FF%25\n"}, ask(t, into, "get", "links", "%00%FF%25", "to"))
	require.Equal(t, ask(t, url, "history", "links", "a", "to"), ask(t, into, "history", "links", "a", "to"))
}

// TestExportAndImport takes values through a file, and says how to go on after a bad line.
func TestExportAndImport(t *testing.T) {
	t.Parallel()
	url, dir := someLinks(t), t.TempDir()
	file := filepath.Join(dir, "links.csv")
	a := ask(t, url, "export", file)
	require.Equal(t, exitOK, a.status, a.err)
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(b), "links,%00%FF%25,to,value of %00%FF%25\n")
	require.Equal(t, exitUsage, ask(t, url, "export", file).status, "the file is there")
	a = ask(t, url, "export", "-", "--table", "links")
	require.Contains(t, a.out, `{"table":"links","row":"empty","column":"to","value":"%"}`)

	into := someLinks(t)
	require.Equal(t, exitOK, ask(t, into, "delete", "links", "c d", "to").status)
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(b), "links,b,", "links,%b,", 1)), 0o600))
	a = ask(t, into, "import", file)
	require.Equal(t, exitUsage, a.status, a.err)
	require.Contains(t, a.err, "line 4")
	require.Equal(t, exitNotFound, ask(t, into, "get", "links", "c d", "to").status, "a part of the batch was written")
	a = ask(t, into, "import", "--after", "4", file)
	require.Equal(t, exitOK, a.status, a.err)
	require.Equal(t, answer{out: "value of c d\n"}, ask(t, into, "get", "links", "c d", "to"))
}

// TestRestoreBesideAnotherApplication restores into a schema that has tables of another application, as a program may open a store in one. They stay
// as they are. A schema in which one of them has a name that the store needs is refused.
func TestRestoreBesideAnotherApplication(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "links.backup")
	require.Equal(t, exitOK, ask(t, someLinks(t), "backup", file).status)
	srv := testserver.NewPostgres(t, nil)
	postgresDo(t, srv.URL, `CREATE SCHEMA office; CREATE TABLE office.invoice (id integer PRIMARY KEY, sum integer); INSERT INTO office.invoice VALUES (1, 100);
		CREATE SCHEMA bureau; CREATE TABLE bureau.data (x integer); INSERT INTO bureau.data VALUES (7)`)
	into := everystore.With(srv.URL, "schema=office")
	a := ask(t, into, "restore", file)
	require.Equal(t, exitOK, a.status, a.err)
	require.Equal(t, answer{out: "value of b\n"}, ask(t, into, "get", "links", "b", "to"))
	postgresDo(t, srv.URL, "DO $$ BEGIN ASSERT (SELECT sum FROM office.invoice) = 100; END $$")
	require.Equal(t, exitUsage, ask(t, into, "restore", file).status, "the store is not empty any more")

	taken := everystore.With(srv.URL, "schema=bureau")
	for _, args := range [][]string{{"restore", file}, {"migrate", "run", "--make"}} {
		a = ask(t, taken, args...)
		require.Equal(t, exitFormat, a.status, "%q: %s", args, a.err)
		require.Contains(t, a.err, "use another schema")
	}
	require.Equal(t, exitNoStore, ask(t, taken, "doctor").status, "there is none")
	postgresDo(t, srv.URL, "DO $$ BEGIN ASSERT (SELECT x FROM bureau.data) = 7 AND to_regclass('bureau.cell') IS NULL; END $$")
}

// TestNoStoreForABadFile restores files that are damaged or cut off anywhere. Each is refused before a store is made for it.
func TestNoStoreForABadFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	whole := filepath.Join(dir, "whole")
	require.Equal(t, exitOK, ask(t, someLinks(t), "backup", whole).status)
	b, err := os.ReadFile(whole)
	require.NoError(t, err)
	var bad []string
	for _, length := range []int{0, 1, 10, 18, 30, len(b) / 3, len(b) / 2, len(b) - 1} {
		file := filepath.Join(dir, fmt.Sprint("cut off at ", length))
		require.NoError(t, os.WriteFile(file, b[:length], 0o600))
		bad = append(bad, file)
	}
	for _, at := range []int{0, 17, 25, 60, len(b) / 2, len(b) - 2} {
		file := filepath.Join(dir, fmt.Sprint("damaged at ", at))
		damaged := bytes.Clone(b)
		damaged[at] ^= 1
		require.NoError(t, os.WriteFile(file, damaged, 0o600))
		bad = append(bad, file)
	}
	everystore.URLs(t, func(t *testing.T, url string) {
		for _, file := range bad {
			a := ask(t, url, "restore", file)
			require.Contains(t, []int{exitCorrupt, exitFormat}, a.status, "%s: %s", file, a.err)
			_, err := rowstore.Open(t.Context(), everystore.With(url, "asis=true"))
			require.ErrorIs(t, err, rowstore.ErrNoStore, file)
			if dir, pebble := strings.CutPrefix(url, "pebble:"); pebble {
				require.NoDirExists(t, dir, file)
			}
		}
		a := ask(t, url, "restore", whole)
		require.Equal(t, exitOK, a.status, a.err)
		require.Equal(t, answer{out: "value of b\n"}, ask(t, url, "get", "links", "b", "to"))
	})
}

// filling is a store that has no room left after some calls.
type filling struct {
	rowstore.Store
	left atomic.Int64
}

func (s *filling) Unwrap() rowstore.Store { return s.Store }

func (s *filling) Apply(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	if s.left.Add(-1) < 0 {
		return nil, fmt.Errorf("%w: make room", rowstore.ErrFull)
	}
	return s.Store.Apply(ctx, muts, opts)
}

// TestRestoreWithoutRoom restores into a store that is full, from the beginning and in the middle. The command says so by the exit status of that kind,
// and goes on when there is room. A full store can be looked at.
func TestRestoreWithoutRoom(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, url := filepath.Join(dir, "links.backup"), "pebble:"+filepath.Join(dir, "into")
	require.Equal(t, exitOK, ask(t, someLinks(t), "backup", file).status)
	a := ask(t, url+"?minfree=9999GB", "restore", file)
	require.Equal(t, exitFull, a.status, a.err)
	require.Contains(t, a.err, "make room")
	require.Contains(t, a.err, "restore the same backup again to go on")
	for left := range int64(2) {
		var out, errs strings.Builder
		opened := func(ctx context.Context, asIs bool) (rowstore.Store, error) {
			s, err := rowstore.Open(ctx, everystore.With(url, fmt.Sprintf("asis=%v", asIs)))
			if err != nil {
				return nil, err
			}
			f := &filling{Store: s}
			f.left.Store(left)
			return f, nil
		}
		require.Equal(t, exitFull, run(t.Context(), []string{"restore", file}, strings.NewReader(""), &out, &errs, opened), errs.String())
	}
	a = ask(t, url, "restore", file)
	require.Equal(t, exitOK, a.status, a.err)
	require.Contains(t, a.out, "from where it was cut off")
	full := url + "?minfree=9999GB"
	require.Equal(t, answer{out: "value of b\n"}, ask(t, full, "get", "links", "b", "to"))
	a = ask(t, full, "doctor")
	require.Equal(t, exitFindings, a.status, a.err)
	require.Contains(t, a.out, "the store refuses writes")
	a = ask(t, full, "set", "links", "b", "to", "new")
	require.Equal(t, exitFull, a.status, a.err)
	require.Equal(t, answer{out: "value of b\n"}, ask(t, url, "get", "links", "b", "to"))
	require.Equal(t, exitFull, ask(t, full, "gc", "run").status)
	a = ask(t, url+"?minfree=1", "gc", "run")
	require.Equal(t, exitOK, a.status, a.err)
}
