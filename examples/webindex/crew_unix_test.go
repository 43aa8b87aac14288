//go:build unix

package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// gone tells whether a process has ended. Nobody may have asked for its status yet.
func gone(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return true
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(stat), ") Z ")
}

// Worker processes end with their parent: if that is killed, and if the terminal interrupts
// all of them. What they leave is right, and another run finishes it.
func TestProcessesEndWithTheirParent(t *testing.T) {
	t.Parallel()
	const pages = 120
	config, dir := redisConfig(t), linked(t, "site", pages)
	self, err := os.Executable()
	require.NoError(t, err)
	for name, end := range map[string]func(parent int) error{
		"killed":      func(parent int) error { return syscall.Kill(parent, syscall.SIGKILL) },
		"terminated":  func(parent int) error { return syscall.Kill(parent, syscall.SIGTERM) },
		"interrupted": func(parent int) error { return syscall.Kill(-parent, syscall.SIGINT) },
	} {
		cmd := exec.CommandContext(t.Context(), self, "-config", config, "-dir", dir, "-loaders", "1", "-processes", "3")
		cmd.Env = append(os.Environ(), asProgram+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a group of its own, as a terminal gives it
		started := make(chan []int, 1)
		stderr := &watched{}
		stderr.line = working(func(_ int, pids []int) { started <- pids })
		cmd.Stdout, cmd.Stderr = io.Discard, stderr
		require.NoError(t, cmd.Start())
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		var pids []int
		select {
		case pids = <-started:
		case err := <-done:
			require.FailNow(t, "it ended by itself", "%s: %v\n%s", name, err, stderr)
		}
		require.Len(t, pids, 3)
		for _, pid := range pids {
			require.False(t, gone(pid), name)
		}
		t.Cleanup(func() {
			for _, pid := range pids {
				if t.Failed() && !gone(pid) {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
		})
		require.NoError(t, end(cmd.Process.Pid))
		<-done
		require.Eventually(t, func() bool {
			left := 0
			for _, pid := range pids {
				if !gone(pid) {
					left++
				}
			}
			return left == 0
		}, endWithin+10*time.Second, 20*time.Millisecond, name)
		if name != "killed" {
			require.Equal(t, 130, cmd.ProcessState.ExitCode(), "%s: %s", name, stderr)
			require.Contains(t, stderr.String(), "webindex: interrupted")
			require.NotContains(t, stderr.String(), "has ended", name)
		}
		// The next one needs something to do.
		for i := range pages {
			writeFiles(t, dir, map[string]string{fmt.Sprintf("%s%d.html", name, i): fmt.Sprintf("<title>%s</title>%d <a href=p%d.html>x</a>", name, i, i)})
		}
	}
	stderr := &watched{}
	stdout, err := crewRun(t.Context(), t, stderr, "-config", config, "-dir", dir, "-processes", "2", "-check")
	require.NoError(t, err, "%s%s", stdout, stderr)
	require.Contains(t, stdout, "check         ok")
	require.Contains(t, stdout, fmt.Sprintf("index         %d pages", 4*pages))
}
