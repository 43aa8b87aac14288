package redis

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1.
	_ "embed"
	"encoding/hex"
	"strings"
)

var (
	//go:embed scripts/oracle_part.lua
	oraclePart string
	//go:embed scripts/read_part.lua
	readPart string
	//go:embed scripts/write_part.lua
	writePart string
	//go:embed scripts/write.lua
	writeLua string
	//go:embed scripts/quick.lua
	quickLua string
	//go:embed scripts/begin_part.lua
	beginPart string
	//go:embed scripts/wake_part.lua
	wakePart string
	//go:embed scripts/push.lua
	pushLua string
	//go:embed scripts/past_part.lua
	pastPart string
	//go:embed scripts/draw.lua
	drawLua string
	//go:embed scripts/begin.lua
	beginLua string
	//go:embed scripts/read.lua
	readLua string
	//go:embed scripts/scan.lua
	scanLua string
	//go:embed scripts/drawn_part.lua
	drawnPart string
	//go:embed scripts/range.lua
	rangeLua string
	//go:embed scripts/tables.lua
	tablesLua string
	//go:embed scripts/split.lua
	splitLua string
	//go:embed scripts/slots.lua
	slotsLua string
	//go:embed scripts/notified.lua
	notifiedLua string
	//go:embed scripts/open.lua
	openLua string
	//go:embed scripts/raise.lua
	raiseLua string
	//go:embed scripts/level.lua
	levelLua string
	//go:embed scripts/raised.lua
	raisedLua string
	//go:embed scripts/moves.lua
	movesLua string
	//go:embed scripts/move.lua
	moveLua string
)

// locals makes the functions that every script needs local to it: a lookup of a
// global costs more.
const locals = `local call, su, sp = redis.call, struct.unpack, struct.pack
local byte, sub, find, char, floor = string.byte, string.sub, string.find, string.char, math.floor
`

// primaryOnly begins the scripts that must ask the server whether it is a primary:
// see script.strict.
const primaryOnly = `if not find(call('INFO', 'replication'), 'role:master', 1, true) then
  return redis.error_reply('READONLY percolator: the server is a replica')
end
`

// answerOut ends the scripts that write.
const answerOut = "return cmsgpack.pack(out)\n"

// script is a Lua script and its name in the server's cache. The flags decide
// when the server refuses it as a whole: without allow-oom when it is out of
// memory, without no-writes on a replica or when it cannot persist.
//
// Every call is for a primary, and a server may be demoted at any time, under open
// connections. A replica that takes no writes refuses by itself each script that
// is not flagged no-writes, which costs nothing: so scripts that only read lack
// that flag too. strict is the variant that asks for the server's role itself. It
// is for servers that, as replicas, would take writes, and for reads where the
// server refuses writes for other reasons.
type script struct {
	source string
	sha    string
	writes bool
	strict *script // nil: the script asks in any case
	reads  bool    // it changes nothing, not even the oracle
}

func newScript(flags string, parts ...string) *script {
	src := "#!lua"
	if flags != "" {
		src += " flags=" + flags
	}
	src += "\n" + locals + strings.Join(parts, "")
	sum := sha1.Sum([]byte(src)) //nolint:gosec // see above
	return &script{source: src, sha: hex.EncodeToString(sum[:])}
}

// newWriter is a script that changes rows.
func newWriter(flags string, parts ...string) *script {
	sc := newScript(flags, parts...)
	sc.strict = newScript(flags, append([]string{primaryOnly}, parts...)...)
	sc.writes, sc.strict.writes = true, true
	return sc
}

// newReader is a script that changes nothing.
func newReader(parts ...string) *script {
	sc := newScript("allow-oom", parts...)
	sc.strict = newScript("no-writes", append([]string{primaryOnly}, parts...)...)
	sc.reads, sc.strict.reads = true, true
	return sc
}

var (
	writeScript = newWriter("", oraclePart, writePart, writeLua, pastPart, beginPart, wakePart, answerOut)
	// quickScript is writeScript for batches of nothing but quick groups; see
	// writeEncoder.quick.
	quickScript = newWriter("", oraclePart, writePart, quickLua, pastPart, beginPart, answerOut)
	// freeScript is writeScript for mutations that only free memory.
	freeScript = newWriter("allow-oom", oraclePart, writePart, writeLua, pastPart, beginPart, wakePart, answerOut)
	// The oracle asks for the role with its own call of INFO. Its state has a fixed size, so a server without free memory
	// lets it draw: otherwise nobody could begin a transaction, and read.
	drawScript = newScript("allow-oom", oraclePart, drawLua)
	// pushScript changes nothing, and anybody may run it any number of times. But it is for a primary alone.
	pushScript = newScript("allow-oom", primaryOnly, pushLua)
	// beginScript changes the oracle alone, which anybody may do any number of times.
	beginScript = newScript("allow-oom", oraclePart, pastPart, beginLua)
	readScript  = newReader(readPart, readLua)
	scanScript  = newReader(readPart, "local took\n", scanLua)
	// scanDrawnScript changes the oracle alone, as beginScript does.
	scanDrawnScript = newScript("allow-oom", oraclePart, drawnPart, readPart, scanLua)
	rangeScript     = newReader(rangeLua)
	tablesScript    = newReader(tablesLua)
	splitScript     = newReader(splitLua)
	roleScript      = newReader("return '1'")
	// listenScript answers the server's replication id.
	listenScript = newReader("return string.match(call('INFO', 'replication'), 'master_replid:(%x+)') or ''\n")
	openScript   = newScript("", primaryOnly, openLua)
	// recordScript is openScript for whoever makes nothing. It runs where the server takes no writes.
	recordScript = newScript("no-writes", primaryOnly, openLua)

	slotsScript    = newReader(readPart, slotsLua)
	notifiedScript = newReader(notifiedLua)
	// These change where the store keeps something, and not what it holds. Anybody may run them
	// any number of times.
	raiseScript  = newScript("", primaryOnly, raiseLua)
	levelScript  = newScript("", primaryOnly, levelLua)
	raisedScript = newScript("", primaryOnly, raisedLua)
	moveScript   = newScript("allow-oom", primaryOnly, moveLua)
	movesScript  = newReader(movesLua)
)
