package redis

import (
	"fmt"
	"strconv"
)

// leastClients is what a handful of processes need: each has a pool, and a connection for pushes.
const leastClients = 64

// takeRoom reads how much room the server has left, and whether it can write to its disk.
func (in *serverInfo) takeRoom(f map[string]string) {
	in.clients, _ = strconv.Atoi(f["connected_clients"])
	in.clientsMost, _ = strconv.Atoi(f["maxclients"])
	in.used, _ = strconv.ParseInt(f["used_memory"], 10, 64)
	in.usedMost, _ = strconv.ParseInt(in.maxmem, 10, 64)
	switch {
	case in.aof && f["aof_last_write_status"] == "err":
		in.writing = "writing the append-only file failed last time"
	case in.aof && f["aof_last_bgrewrite_status"] == "err":
		in.writing = "rewriting the append-only file failed last time"
	case f["rdb_last_bgsave_status"] == "err":
		in.writing = "writing the snapshot failed last time"
	}
}

// shortages are about a server that refuses work, or is about to.
func (in *serverInfo) shortages() []string {
	var w []string
	switch {
	case in.clientsMost > 0 && in.clientsMost < leastClients:
		w = append(w, fmt.Sprintf("maxclients is %d: a few processes use that up, and the server then refuses connections, those of new workers first; set it to 1000 or more", in.clientsMost))
	case in.clientsMost > 0 && in.clients > in.clientsMost/5*4:
		w = append(w, fmt.Sprintf("%d of %d clients (maxclients) are connected: the server refuses connections soon; raise maxclients, or make the processes' pools smaller", in.clients, in.clientsMost))
	}
	if in.usedMost > 0 && in.used > in.usedMost/10*9 {
		w = append(w, fmt.Sprintf("%d of %d MiB (maxmemory) are in use: a full server refuses every write, also of a garbage collection; raise maxmemory, and see whether garbage is collected", in.used>>20, in.usedMost>>20))
	}
	if in.writing != "" {
		w = append(w, in.writing+": the server may refuse writes until it works again; look at its log and at the room on its disk")
	}
	return w
}
