package redis

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// worked is how long a server has worked since its start, by the system's account. Other than the
// server's record of slow calls, it does not grow while the server waits for a processor.
func worked(t testing.TB, c *goredis.Client) time.Duration {
	t.Helper()
	text, err := c.Info(context.Background(), "cpu").Result()
	require.NoError(t, err)
	var all time.Duration
	found := 0
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_sys" || name == "used_cpu_user" {
			seconds, err := strconv.ParseFloat(value, 64)
			require.NoError(t, err)
			all += time.Duration(seconds * float64(time.Second))
			found++
		}
	}
	require.Equal(t, 2, found, "%s", text)
	return all
}

// TestWideRowIsWrittenInBoundedTime writes and collects many columns at a time of a row of 10,000 columns,
// which has more and more versions: no call is more than 50 ms of work for the server.
func TestWideRowIsWrittenInBoundedTime(t *testing.T) {
	t.Parallel()
	const (
		columns  = 10_000
		versions = 16 // more than the fields of a column hold beside its newest one
		together = 500
		most     = 1024 // of which the core makes one mutation, which prewrites or commits them
		bound    = 50 * time.Millisecond
	)
	srv := testserver.NewRedis(t, map[string]string{"appendonly": "no"})
	s := bare(t, with(t, srv.URL))
	c := admin(t, srv.URL)
	longest := map[string]time.Duration{}
	step := func(what string, m rowstore.Mutation) {
		before := worked(t, c)
		apply(t, s, m)
		longest[what] = max(longest[what], worked(t, c)-before)
	}
	write := func(from, to, ts int) rowstore.Mutation {
		m := rowstore.Mutation{Table: "t", Row: "wide"}
		for i := from; i < min(to, columns); i++ {
			m.Conditions = append(m.Conditions, rowstore.Absent(rowstore.Write, columnName(i), rowstore.Timestamp(ts)))
			m.Edits = append(m.Edits, rowstore.Put(rowstore.Write, columnName(i), rowstore.Timestamp(ts), []byte(columnName(i)+"@"+strconv.Itoa(ts))))
		}
		return m
	}
	for ts := 1; ts <= versions; ts++ {
		for from := 0; from < columns; from += together {
			step("write", write(from, from+together, ts))
		}
	}
	const start, at = versions + 1, versions + 2
	lock := []byte(strings.Repeat("a lock with a value", 8))
	for from := 0; from < columns; from += most {
		prewrite, commit := rowstore.Mutation{Table: "t", Row: "wide"}, rowstore.Mutation{Table: "t", Row: "wide"}
		for i := from; i < min(from+most, columns); i++ {
			c := columnName(i)
			prewrite.Conditions = append(prewrite.Conditions,
				rowstore.Absent(rowstore.Lock, c, 0), rowstore.Absent(rowstore.Write, c, start), rowstore.Absent(rowstore.Mark, c, start))
			prewrite.Edits = append(prewrite.Edits, rowstore.Put(rowstore.Lock, c, start, lock))
			commit.Conditions = append(commit.Conditions, rowstore.Present(c, start))
			commit.Edits = append(commit.Edits, rowstore.Delete(rowstore.Lock, c, start), rowstore.Put(rowstore.Write, c, at, lock))
		}
		step("prewrite", prewrite)
		step("commit", commit)
	}
	for from := 0; from < columns; from += together {
		m := rowstore.Mutation{Table: "t", Row: "wide"}
		for i := from; i < from+together; i++ {
			m.Edits = append(m.Edits, rowstore.DeleteRange(rowstore.Write, columnName(i), 0, at-1))
		}
		step("collection", m)
	}
	t.Log(longest)
	require.Len(t, readRow(t, s, "wide", allVersions...), columns)
	for what, took := range longest {
		require.Less(t, took, bound, what)
	}
}
