package tutorial

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/docs"
	"github.com/percolate-go/percolate/internal/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

const document = "../tutorial.md"

// patience is how long a test waits for what must happen.
const patience = 3 * time.Minute

// programs builds the programs of all steps.
func programs(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", dir+"/", "./step1", "./step2", "./step3", "./step4").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return dir
}

// process is a program that runs in the background, until it is killed or interrupted.
type process struct {
	cmd *exec.Cmd
	out bytes.Buffer
}

func start(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd}
	cmd.Stdout, cmd.Stderr = &p.out, &p.out
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return p
}

// interrupt does what Ctrl-C does, and wants the program to end well.
func (p *process) interrupt(t *testing.T) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(os.Interrupt))
	require.NoError(t, p.cmd.Wait(), &p.out)
}

// TestTutorial builds the programs once for all that it tests.
func TestTutorial(t *testing.T) {
	t.Parallel()
	bin := programs(t)
	t.Run("as written", func(t *testing.T) { followTutorial(t, bin) })
	t.Run("workers die", func(t *testing.T) { killWorkers(t, bin) })
}

// followTutorial does what the tutorial says: it runs the commands of its blocks, in their
// order, with the program of the part that they stand in, and compares what they print.
func followTutorial(t *testing.T, bin string) {
	t.Parallel()
	text, err := os.ReadFile(document)
	require.NoError(t, err)
	blocks, err := docs.Blocks(string(text))
	require.NoError(t, err)
	folder := t.TempDir()
	env := store(t, "tutorial")

	var step, last string   // the program of this part, and what its last command printed
	var again func() string // runs the last command once more
	var workers []*process
	steps, outputs, silent := map[string]bool{}, 0, 0
	for _, b := range blocks {
		if m := regexp.MustCompile(`^docs/tutorial/(step\d)/main\.go$`).FindStringSubmatch(b.Code); m != nil {
			step = m[1]
			steps[step] = true
		}
		switch {
		case b.Unchecked != "":
		case b.Language == "text":
			if want := strings.TrimSpace(b.Text); len(workers) == 0 {
				require.Equal(t, want, last, "line %d of the tutorial", b.Line)
			} else { // observers run after the commit
				eventually(t, want, again)
			}
			outputs++
		case b.Language == "sh":
			for line := range strings.Lines(b.Text) {
				args, ours := strings.CutPrefix(strings.TrimSpace(line), "go run .")
				if !ours {
					continue
				}
				program := filepath.Join(bin, step)
				command := func(ctx context.Context) *exec.Cmd {
					cmd := exec.CommandContext(ctx, program, words(args)...)
					cmd.Dir, cmd.Env = folder, env
					return cmd
				}
				if strings.TrimSpace(args) == "work" {
					workers = append(workers, start(t, command(context.WithoutCancel(t.Context()))))
					continue
				}
				again = func() string { return output(t, command(t.Context())) }
				last = again()
				if strings.Contains(args, "list 1h") { // no output follows this block
					require.Empty(t, last)
					silent++
				}
			}
		}
	}
	require.Equal(t, 1, silent)
	require.Len(t, steps, 4)
	require.Equal(t, 5, outputs)
	require.Len(t, workers, 1)
	workers[0].interrupt(t)
}

// output runs a command to its end and returns what it printed. Warnings about the
// server of the tests go to standard error.
func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	require.NoError(t, err, "%s: %s", cmd, &errs)
	return strings.TrimSpace(string(out))
}

// words splits a line as a shell does, as far as the tutorial needs it.
func words(line string) []string {
	var all []string
	for _, m := range regexp.MustCompile(`"([^"]*)"|(\S+)`).FindAllStringSubmatch(line, -1) {
		all = append(all, m[1]+m[2])
	}
	return all
}

// eventually waits until printed returns want.
func eventually(t *testing.T, want string, printed func() string) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); ; <-tick.C {
		got := printed()
		if got == want {
			return
		}
		require.Less(t, time.Since(began), patience, "the counts are still\n%s\nand not\n%s", got, want)
	}
}

// store is the environment of a program whose store is a schema of its own.
func store(t *testing.T, schema string) []string {
	t.Helper()
	address := testserver.Postgres(t)
	separator := "?"
	if strings.Contains(address, "?") {
		separator = "&"
	}
	return append(os.Environ(), "NOTES_STORE="+address+separator+"schema="+schema)
}

// killWorkers is the end of the tutorial: one of two workers is killed while notes are
// added, then both, and no change is lost.
func killWorkers(t *testing.T, bin string) {
	t.Parallel()
	env := store(t, "workers_die")
	notes := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), filepath.Join(bin, "step4"), args...)
		cmd.Env = env
		return cmd
	}
	printed := func(args ...string) string { return output(t, notes(args...)) }
	first, second := start(t, notes("work")), start(t, notes("work"))
	printed("add", "1", "never")
	eventually(t, "never: 1", func() string { return printed("counts") })
	for i, id := range []string{"2", "3", "4", "5", "6"} {
		printed("add", id, "never say "+id)
		if i == 2 {
			require.NoError(t, first.cmd.Process.Kill())
			require.Error(t, first.cmd.Wait())
		}
	}
	eventually(t, "2: 1\n3: 1\n4: 1\n5: 1\n6: 1\nnever: 6\nsay: 5", func() string { return printed("counts") })

	require.NoError(t, second.cmd.Process.Kill())
	require.Error(t, second.cmd.Wait())
	printed("add", "1", "say")
	third := start(t, notes("work"))
	eventually(t, "2: 1\n3: 1\n4: 1\n5: 1\n6: 1\nnever: 5\nsay: 6", func() string { return printed("counts") })
	third.interrupt(t)
}

// TestObserversStayTheSame: the tutorial says that one file serves two parts.
func TestObserversStayTheSame(t *testing.T) {
	t.Parallel()
	third, err := os.ReadFile("step3/observers.go")
	require.NoError(t, err)
	fourth, err := os.ReadFile("step4/observers.go")
	require.NoError(t, err)
	require.Equal(t, string(third), string(fourth))
}
