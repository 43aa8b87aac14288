package everystore

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Suspend stops the process where it is, as a debugger, a full machine or a migration of a virtual one does, and waits until it stands still.
func (p *Process) Suspend(t testing.TB) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	p.Until(t, func() bool { return p.state(t) == "T" }, "it goes on")
}

// Resume lets a suspended process go on.
func (p *Process) Resume(t testing.TB) {
	t.Helper()
	require.Equal(t, "T", p.state(t), "it was not suspended all the time")
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
}

// state is the state of the process, a letter; see proc_pid_stat(5).
func (p *Process) state(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/stat")
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(text), ") ")
	return rest[:1]
}
