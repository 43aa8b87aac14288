package testserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// local runs a server as a process of this machine.
type local struct {
	program string
	args    []string
	dir     string              // data and log; removed by close
	account *syscall.Credential // who runs it, nil for the caller
	ready   func(context.Context) error
	ending  os.Signal // what ends the server in order
	tree    bool      // working processes are children of the server

	cmd    *exec.Cmd
	exited chan struct{} // closed when cmd is gone
	guard  *watchdog
}

func (l *local) logPath() string { return filepath.Join(l.dir, "server.log") }

func (l *local) start(ctx context.Context) error {
	if l.running() {
		return errors.New("it runs already")
	}
	l.guard.release() // of a run that ended by itself
	l.guard = nil
	out, err := os.OpenFile(l.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	// The server outlives ctx, which bounds only its start.
	cmd := exec.Command(l.program, l.args...)
	cmd.Dir = l.dir
	cmd.Stdout, cmd.Stderr = out, out
	// A group of its own keeps a terminal's interrupt away from the server: the
	// test process decides when it ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: l.account}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run %s: %w", l.program, err)
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	l.cmd, l.exited = cmd, exited
	if l.guard, err = watch(cmd.Process.Pid, l.dir); err != nil {
		_ = l.kill(ctx)
		return err
	}
	err = poll(ctx, func() error {
		select {
		case <-exited:
			return final{fmt.Errorf("%s ended at once:\n%s", l.program, l.log())}
		default:
			return l.ready(ctx)
		}
	})
	if err != nil {
		_ = l.kill(ctx)
	}
	return err
}

func (l *local) running() bool {
	if l.cmd == nil {
		return false
	}
	select {
	case <-l.exited:
		return false
	default:
		return true
	}
}

// gone waits until the server is gone and ends its watchdog.
func (l *local) gone(ctx context.Context) error {
	select {
	case <-l.exited:
		l.guard.release()
		l.guard = nil
		return nil
	case <-ctx.Done():
		return fmt.Errorf("it does not end: %w", ctx.Err())
	}
}

func (l *local) stop(ctx context.Context) error {
	if l.cmd == nil {
		return nil
	}
	if !l.running() {
		return l.gone(ctx)
	}
	if err := l.cmd.Process.Signal(l.ending); err != nil {
		return err
	}
	return l.gone(ctx)
}

func (l *local) kill(ctx context.Context) error {
	if l.cmd == nil {
		return nil
	}
	// The children are listed before the parent dies: afterwards nothing tells
	// them from others'.
	pids := l.processes()
	signalAll(pids, syscall.SIGKILL)
	if err := l.gone(ctx); err != nil {
		return err
	}
	return poll(ctx, func() error {
		for _, pid := range pids {
			if alive(pid) {
				return fmt.Errorf("process %d does not end", pid)
			}
		}
		return nil
	})
}

func (l *local) crashBackend(ctx context.Context) error {
	if !l.tree {
		return errors.New("it is a single process")
	}
	pids := l.processes()
	if len(pids) < 2 {
		return errors.New("it has no working process")
	}
	children := pids[1:]
	left := func() bool {
		return slices.ContainsFunc(children, func(pid int) bool { return syscall.Kill(pid, 0) == nil })
	}
	// The server notices, and ends the others too: until then one of them may still answer.
	// The newest serves somebody. It may have ended by itself meanwhile, and is not missed by
	// anybody: then it is the turn of the oldest, which lives as long as the server does.
	for _, victim := range slices.Concat(children[len(children)-1:], children) {
		_ = syscall.Kill(victim, syscall.SIGKILL) // what has ended need not be killed
		for patience := time.Now().Add(time.Second); time.Now().Before(patience); {
			if !left() {
				return nil
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("its processes are still there: %w", ctx.Err())
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	return errors.New("its processes are still there")
}

func (l *local) pause(context.Context) error  { return l.signalRunning(syscall.SIGSTOP) }
func (l *local) resume(context.Context) error { return l.signalRunning(syscall.SIGCONT) }

func (l *local) signalRunning(sig syscall.Signal) error {
	if !l.running() {
		return errors.New("it does not run")
	}
	signalAll(l.processes(), sig)
	return nil
}

// processes lists the server's process, first, and its children.
func (l *local) processes() []int {
	if !l.running() {
		return nil
	}
	pids := []int{l.cmd.Process.Pid}
	if l.tree {
		pids = append(pids, children(l.cmd.Process.Pid)...)
	}
	return pids
}

func (l *local) log() string {
	f, err := os.Open(l.logPath())
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	const tail = 16 << 10
	if st, err := f.Stat(); err == nil && st.Size() > tail {
		_, _ = f.Seek(-tail, io.SeekEnd)
	}
	b, _ := io.ReadAll(f)
	return string(b)
}

func (l *local) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	err := l.kill(ctx)
	return errors.Join(err, os.RemoveAll(l.dir))
}

// watchdog ends a server when the test process is gone without having done so
// (killed, or ended by the testing package's timeout). It is a shell that waits
// for the end of a pipe whose other end this process holds.
type watchdog struct {
	cmd  *exec.Cmd
	hold io.WriteCloser
}

const watchdogScript = `
read -r word
[ "$word" = release ] && exit 0
for stat in /proc/[0-9]*/stat; do
	read -r pid _ _ parent _ <"$stat" 2>/dev/null || continue
	[ "$parent" = "$1" ] && list="$list $pid"
done
kill -9 "$1" $list
rm -rf "$2"
`

func watch(pid int, dir string) (*watchdog, error) {
	cmd := exec.Command("/bin/sh", "-c", watchdogScript, "sh", strconv.Itoa(pid), dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return startWatchdog(cmd)
}

func startWatchdog(cmd *exec.Cmd) (*watchdog, error) {
	hold, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("run the watchdog: %w", err)
	}
	return &watchdog{cmd: cmd, hold: hold}, nil
}

func (w *watchdog) release() {
	if w == nil {
		return
	}
	_, _ = io.WriteString(w.hold, "release\n")
	_ = w.hold.Close()
	_ = w.cmd.Wait()
}

// children lists the processes whose parent is pid.
func children(pid int) []int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	var found []int
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it ended meanwhile
		}
		// The name, in brackets, may hold spaces; the fields after it do not.
		_, rest, _ := strings.Cut(string(b), ") ")
		fields := strings.Fields(rest)
		if len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			child, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			found = append(found, child)
		}
	}
	return found
}

func signalAll(pids []int, sig syscall.Signal) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, sig)
	}
}

// alive tells whether a process still runs; one that only waits to be reaped does
// not.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

// final marks an error that polling does not outlast.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// poll calls f until it returns nil, a final error, or ctx ends.
func poll(ctx context.Context, f func() error) error {
	wait := time.NewTimer(0)
	defer wait.Stop()
	<-wait.C
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		err := f()
		if err == nil {
			return nil
		}
		if fin := (final{}); errors.As(err, &fin) {
			return fin.error
		}
		wait.Reset(pause)
		select {
		case <-wait.C:
		case <-ctx.Done():
			return fmt.Errorf("it does not answer: %w", err)
		}
	}
}

// freePorts finds n free ports on 127.0.0.1. They lie below the range from which
// Linux takes ports for outgoing connections, so that a server that was stopped
// finds its port free when it starts again.
func freePorts(n int) ([]int, error) {
	ports := make([]int, 0, n)
	for range 10_000 {
		port := 15_000 + rand.IntN(17_000)
		l, err := net.Listen("tcp", address(port))
		if err != nil {
			continue
		}
		// All stay open until all are found, so that they differ.
		defer l.Close()
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("testserver: no %d free ports on 127.0.0.1", n)
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// tempDir makes a directory that the account can use, nil for the caller's own.
func tempDir(name string, account *syscall.Credential) (string, error) {
	dir, err := os.MkdirTemp("", "percolator-"+name+"-")
	if err == nil && account != nil {
		err = os.Chown(dir, int(account.Uid), int(account.Gid))
	}
	if err != nil {
		return "", fmt.Errorf("testserver: make a directory for %s: %w", name, err)
	}
	return dir, nil
}

// unprivileged is an account for servers that refuse to run as root, nil where
// the caller is not root.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("testserver: running as root, and there is no account postgres or nobody to run the server as")
}

// lookProgram finds a program on the PATH or in the directories in which Debian
// keeps it; the newest of several versions wins.
func lookProgram(name string, patterns ...string) (string, error) {
	for _, pattern := range patterns {
		found, _ := filepath.Glob(filepath.Join(pattern, name))
		if len(found) > 0 {
			best, version := "", -1
			for _, path := range found {
				v := 0
				for _, part := range strings.Split(path, string(filepath.Separator)) {
					if n, err := strconv.Atoi(part); err == nil {
						v = n
					}
				}
				if v > version {
					best, version = path, v
				}
			}
			return best, nil
		}
	}
	return exec.LookPath(name)
}
