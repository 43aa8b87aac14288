package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestListenerIsFound asks for the process that listens, also once another has its socket, or another socket has the port.
func TestListenerIsFound(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	for range 2 {
		require.Equal(t, os.Getpid(), listener(port))
	}
	f, err := l.(*net.TCPListener).File()
	require.NoError(t, err)
	heir := exec.CommandContext(t.Context(), "sleep", "60")
	heir.ExtraFiles = []*os.File{f}
	require.NoError(t, heir.Start())
	require.NoError(t, f.Close())
	require.NoError(t, l.Close())
	require.Equal(t, heir.Process.Pid, listener(port))
	require.NoError(t, heir.Process.Kill())
	_ = heir.Wait() // it was killed
	require.Zero(t, listener(port))
	l, err = net.Listen("tcp", l.Addr().String())
	require.NoError(t, err)
	require.Equal(t, os.Getpid(), listener(port))
	require.NoError(t, l.Close())
}

// TestTreeIsAProcessAndItsChildren has a child, which has one too.
func TestTreeIsAProcessAndItsChildren(t *testing.T) {
	t.Parallel()
	child := exec.CommandContext(t.Context(), "sh", "-c", "sleep 60 & echo $!; wait")
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // to end both
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	var grandchild int
	_, err = fmt.Fscan(out, &grandchild)
	require.NoError(t, err)
	var all []int
	tree(child.Process.Pid, func(pid int, _ []string) { all = append(all, pid) })
	require.ElementsMatch(t, []int{child.Process.Pid, grandchild}, all)
	all = nil
	tree(os.Getpid(), func(pid int, _ []string) { all = append(all, pid) })
	require.Contains(t, all, os.Getpid())
	require.Contains(t, all, child.Process.Pid)
	require.NotContains(t, all, grandchild)
	require.Positive(t, memoryOf(child.Process.Pid))
	require.NoError(t, syscall.Kill(-child.Process.Pid, syscall.SIGKILL))
	_ = child.Wait() // it was killed
}
