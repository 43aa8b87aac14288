package redis

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestServerWarnings gives each answer that is worth a warning. Right says nothing.
func TestServerWarnings(t *testing.T) {
	t.Parallel()
	right := serverInfo{aof: true, fsync: "always", saveOK: true}
	require.Empty(t, right.warnings())
	for name, c := range map[string]struct {
		plant func(in *serverInfo, f map[string]string)
		words string
	}{
		"no persistence":  {func(in *serverInfo, _ map[string]string) { in.aof = false }, "persistence is off"},
		"snapshots alone": {func(in *serverInfo, _ map[string]string) { in.aof, in.save = false, "60 1" }, "set appendonly to yes"},
		"everysec":        {func(in *serverInfo, _ map[string]string) { in.fsync = "everysec" }, "everysec"},
		"no fsync":        {func(in *serverInfo, _ map[string]string) { in.fsync = "no" }, "appendfsync is no"},
		"rewrites":        {func(in *serverInfo, _ map[string]string) { in.noFsyncOnRewrite = true }, "set it to no"},
		"not told":        {func(in *serverInfo, _ map[string]string) { in.fsync = "" }, "allow it CONFIG GET"},
		"replicas":        {func(in *serverInfo, _ map[string]string) { in.replicas = 1 }, "min-replicas-to-write"},
		"few clients":     {func(_ *serverInfo, f map[string]string) { f["maxclients"] = "20" }, "maxclients is 20"},
		"many clients":    {func(_ *serverInfo, f map[string]string) { f["maxclients"], f["connected_clients"] = "100", "81" }, "81 of 100 clients"},
		"full":            {func(in *serverInfo, f map[string]string) { in.maxmem, f["used_memory"] = "10485760", "10485000" }, "of 10 MiB"},
		"writes fail":     {func(_ *serverInfo, f map[string]string) { f["aof_last_write_status"] = "err" }, "append-only file failed"},
		"rewrites fail":   {func(_ *serverInfo, f map[string]string) { f["aof_last_bgrewrite_status"] = "err" }, "rewriting"},
		"snapshots fail":  {func(_ *serverInfo, f map[string]string) { f["rdb_last_bgsave_status"] = "err" }, "snapshot failed"},
	} {
		in, f := right, map[string]string{}
		c.plant(&in, f)
		in.takeRoom(f)
		all := in.warnings()
		require.Len(t, all, 1, name)
		require.Contains(t, all[0], c.words)
	}
}

// Under everysec, too, nothing is flushed while the file is rewritten. Without a flush nothing is, anyhow.
func TestServerWarningsOfRewrites(t *testing.T) {
	t.Parallel()
	for fsync, warned := range map[string]bool{"always": true, "everysec": true, "no": false, "": false} {
		in := serverInfo{aof: true, fsync: fsync, saveOK: true}
		before := in.warnings()
		in.noFsyncOnRewrite = true
		all := in.warnings()
		if !warned {
			require.Equal(t, before, all, fsync)
			continue
		}
		require.Len(t, all, len(before)+1, fsync)
		require.Contains(t, all[len(before)], "no-appendfsync-on-rewrite is yes")
	}
	in := serverInfo{fsync: "everysec", saveOK: true, noFsyncOnRewrite: true}
	require.Len(t, in.warnings(), 1, "there is no such file")
}

// TestOldServerIsRefused shows what the doctor tells of a server that is too old.
func TestOldServerIsRefused(t *testing.T) {
	t.Parallel()
	in := serverInfo{version: "6.2.14", product: "Redis 6.2.14", mode: "standalone", role: "master"}
	require.ErrorContains(t, in.check(&Options{}), "the server is Redis 6.2.14; at least Redis 7.0")
}
