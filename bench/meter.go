package main

import (
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// meter measures what a side costs: the CPU of this process and of the server's
// processes, and what goes over the connections to it.
type meter struct {
	client  time.Duration
	server  time.Duration
	root    int // the server's first process, 0 where it cannot be seen
	port    int // of the server, 0 for none
	traffic traffic
}

// startMeter begins to measure. server is the URL of the server that the side
// uses, "" for none. Of a server on another machine, or in processes that this
// one may not look at, the CPU stays unknown.
func startMeter(server string) *meter {
	m := &meter{}
	if server != "" {
		if host, port := hostPort(server); port != 0 {
			m.port = port
			if isLocal(host) {
				m.root = listener(port)
			}
		}
	}
	if m.port != 0 {
		m.traffic = ownTraffic(m.port)
	}
	if m.root != 0 {
		m.server = treeCPU(m.root)
	}
	m.client = processCPU()
	return m
}

// stop adds the costs since the start to a sample, for each of its operations.
func (m *meter) stop(s *Sample) {
	n := float64(s.Ops)
	s.CPU += float64((processCPU() - m.client).Nanoseconds()) / 1e3 / n
	s.ServerCPU, s.Bytes, s.Trips = -1, -1, -1
	switch {
	case m.port == 0: // all that there is was in this process
		s.ServerCPU, s.Bytes, s.Trips = 0, 0, 0
		return
	case m.root != 0:
		s.ServerCPU = float64((treeCPU(m.root) - m.server).Nanoseconds()) / 1e3 / n
	}
	if now := ownTraffic(m.port); now.known {
		since := now.since(m.traffic)
		s.Bytes = float64(since.bytes) / n
		s.Trips = float64(since.sent) / n
	}
}

// hostPort is the address in a URL; the port is 0 where there is none.
func hostPort(raw string) (string, int) {
	u, err := url.Parse(raw)
	if err != nil {
		return "", 0
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		port = map[string]int{"redis": 6379, "rediss": 6379, "postgres": 5432, "postgresql": 5432}[u.Scheme]
	}
	return u.Hostname(), port
}

func isLocal(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// listener finds the process that listens on a local TCP port, also in a
// container that has the host's network; 0 where it is not to be seen. Of several,
// which inherited the socket, it is the oldest.
func listener(port int) int {
	inodes := map[string]bool{}
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(file) // #nosec G304 -- of the kernel
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			// Local address, state 0A (listens), inode.
			if len(f) < 10 || f[3] != "0A" {
				continue
			}
			_, hex, _ := strings.Cut(f[1], ":")
			if p, err := strconv.ParseInt(hex, 16, 32); err == nil && int(p) == port {
				inodes["socket:["+f[9]+"]"] = true
			}
		}
	}
	if len(inodes) == 0 {
		return 0
	}
	if known, ok := listeners.Load(port); ok {
		fds, _ := filepath.Glob("/proc/" + strconv.Itoa(known.(int)) + "/fd/*")
		if slices.ContainsFunc(fds, func(fd string) bool { return isOneOf(fd, inodes) }) {
			return known.(int)
		}
	}
	best := 0
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		if !isOneOf(fd, inodes) {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(fd, "/")[2])
		if err == nil && (best == 0 || pid < best) {
			best = pid
		}
	}
	listeners.Store(port, best)
	return best
}

// isOneOf tells whether a file in /proc/PID/fd is one of these sockets.
func isOneOf(fd string, inodes map[string]bool) bool {
	link, err := os.Readlink(fd)
	return err == nil && inodes[link]
}

// listeners are the processes that listener has found, by port: to find one takes a look at every open file of the machine.
var listeners sync.Map

// clockTick is the unit of times in /proc. The kernel's interface fixes it at 1/100 s
// on every architecture that Go runs on.
const clockTick = 10 * time.Millisecond

// treeCPU is the CPU time of a process, of its children that are there and of
// those that it has waited for.
func treeCPU(root int) time.Duration {
	total := time.Duration(0)
	tree(root, func(pid int, f []string) {
		times := f[11:13]
		if pid == root {
			times = f[11:15] // with those of the children that ended
		}
		for _, field := range times {
			n, err := strconv.ParseInt(field, 10, 64)
			if err == nil {
				total += time.Duration(n) * clockTick
			}
		}
	})
	return total
}

// memoryOf is what a process has in memory, in bytes. 0 is nothing that can be seen.
func memoryOf(pid int) int64 { return residentIn(pid, func(p int) bool { return p == pid }) }

// memoryOfChildren is what the children of a process have in memory, without its own.
func memoryOfChildren(root int) int64 { return residentIn(root, func(p int) bool { return p != root }) }

func residentIn(root int, counts func(pid int) bool) (bytes int64) {
	tree(root, func(pid int, f []string) {
		if pages, err := strconv.ParseInt(f[21], 10, 64); err == nil && counts(pid) {
			bytes += pages * int64(os.Getpagesize())
		}
	})
	return bytes
}

// tree visits a process and its children that are there, with the fields of proc_pid_stat(5) from the third on.
func tree(root int, visit func(pid int, f []string)) {
	// The kernel's list of the children of a process may lack some while others end.
	all, _ := os.ReadDir("/proc")
	for _, entry := range all {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue // no process
		}
		text, err := os.ReadFile("/proc/" + entry.Name() + "/stat") // #nosec G304 -- of the kernel
		if err != nil {
			continue // it ended meanwhile
		}
		// The name, in brackets, may hold spaces; the fields after it do not. They
		// begin with the third: state, parent; the 14th to 17th are times, and the 24th is the memory.
		_, rest, _ := strings.Cut(string(text), ") ")
		f := strings.Fields(rest)
		if len(f) < 22 || pid != root && f[1] != strconv.Itoa(root) {
			continue
		}
		visit(pid, f)
	}
}

// traffic is what this process's connections to one port have carried so far.
type traffic struct {
	known bool
	each  map[string]flow // by the connection's local address
}

type flow struct{ bytes, sent uint64 }

// since adds up what the connections carried after an earlier look. What one that
// was closed meanwhile carried is lost; those of pools stay open.
func (t traffic) since(before traffic) flow {
	var sum flow
	for name, f := range t.each {
		b := before.each[name]
		if f.bytes < b.bytes || f.sent < b.sent {
			b = flow{} // another connection by the same name
		}
		sum.bytes += f.bytes - b.bytes
		sum.sent += f.sent - b.sent
	}
	return sum
}

// ownTraffic asks the kernel about every open connection of this process to the
// port. A message that a driver writes at once is one segment on the loopback,
// unless it is longer than 64 KiB.
func ownTraffic(port int) traffic {
	t := traffic{each: map[string]flow{}}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return t
	}
	for _, e := range fds {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		remote, err := unix.Getpeername(fd)
		if err != nil || portOf(remote) != port {
			continue
		}
		local, err := unix.Getsockname(fd)
		if err != nil {
			continue
		}
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			continue
		}
		t.known = true
		t.each[strconv.Itoa(portOf(local))] = flow{bytes: info.Bytes_sent + info.Bytes_received, sent: uint64(info.Data_segs_out)}
	}
	return t
}

func portOf(a unix.Sockaddr) int {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return a.Port
	case *unix.SockaddrInet6:
		return a.Port
	}
	return 0
}
