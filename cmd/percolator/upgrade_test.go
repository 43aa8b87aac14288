package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator"
)

// before is the version of the library that upgrades are tested from. It knows catalogs up to version 4, and version 7 of
// the schema on Postgres.
const before = "f189bc6367ed3a5239483b3386e3bba8f8b6ed9f"

// buildBefore builds testdata/before with that version, once for each machine: the program stays in the cache of the repository.
var buildBefore = sync.OnceValues(func() (string, error) {
	source, err := os.ReadFile("testdata/before/main.go")
	if err != nil {
		return "", err
	}
	cache, err := filepath.Abs("../../.cache")
	if err != nil {
		return "", err
	}
	built := filepath.Join(cache, fmt.Sprintf("before-%.8s-%.4x", before, sha256.Sum256(source)))
	if _, err := os.Stat(built); err == nil {
		return built, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(cache, "before-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	run := func(in, name string, args ...string) error {
		c := exec.Command(name, args...)
		c.Dir = in
		c.Env = append(os.Environ(), "GIT_INDEX_FILE="+filepath.Join(dir, "index"), "GOWORK=off")
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", c.Args, err, out)
		}
		return nil
	}
	root := filepath.Dir(cache)
	git := []string{"-c", "safe.directory=*"}
	if err := run(root, "git", append(git, "read-tree", before)...); err != nil {
		return "", fmt.Errorf("the test of upgrades builds commit %s, which is not here; fetch the whole history, with git fetch --unshallow or fetch-depth: 0: %w", before, err)
	}
	src := filepath.Join(dir, "src")
	if err := run(root, "git", append(git, "checkout-index", "-a", "--prefix="+src+"/")...); err != nil {
		return "", err
	}
	program := filepath.Join(src, "cmd", "before")
	if err := os.MkdirAll(program, 0o755); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(program, "main.go"), source, 0o644); err != nil {
		return "", err
	}
	if err := run(src, "go", "build", "-o", filepath.Join(dir, "program"), "./cmd/before"); err != nil {
		return "", err
	}
	// Whole or not at all, whoever else builds it.
	return built, os.Rename(filepath.Join(dir, "program"), built)
})

// olderProgram is a process that runs the older program.
type olderProgram struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// upgradeLease is the catalog lease of the databases. A process that a loaded machine keeps from work for as long passes for dead.
const upgradeLease = 3 * time.Second

// startOlder starts the older program. If that cannot open the store, it says why.
func startOlder(t *testing.T, url string) (_ *olderProgram, refused string) {
	t.Helper()
	bin, err := buildBefore()
	require.NoError(t, err)
	p := &olderProgram{t: t, cmd: exec.CommandContext(t.Context(), bin, url, upgradeLease.String())}
	var errs strings.Builder
	p.cmd.Stderr = &errs
	p.in, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.out = bufio.NewReader(out)
	require.NoError(t, p.cmd.Start())
	if line, err := p.out.ReadString('\n'); err != nil {
		require.Error(t, p.cmd.Wait(), line)
		return nil, errs.String()
	}
	atend.Do(t, func() { _ = p.in.Close(); _ = p.cmd.Wait() })
	return p, ""
}

func older(t *testing.T, url string) *olderProgram {
	t.Helper()
	p, refused := startOlder(t, url)
	require.Empty(t, refused)
	return p
}

// ask gives a command, and returns the answer.
func (p *olderProgram) ask(command string) string {
	p.t.Helper()
	_, err := io.WriteString(p.in, command+"\n")
	require.NoError(p.t, err)
	answer, err := p.out.ReadString('\n')
	require.NoError(p.t, err, command)
	return strings.TrimSpace(answer)
}

func (p *olderProgram) do(commands ...string) {
	p.t.Helper()
	for _, c := range commands {
		require.Equal(p.t, "done", p.ask(c), c)
	}
}

// meanwhile runs the command while the program commits, so that it shows that it lives.
func (p *olderProgram) meanwhile(orders map[string]int, command func() answer, status int, words string) {
	p.t.Helper()
	done := make(chan answer, 1)
	go func() { done <- command() }()
	for {
		prefix := fmt.Sprintf("m%d-", len(orders))
		select {
		case a := <-done:
			require.Equal(p.t, status, a.status, a.out+a.err)
			require.Contains(p.t, a.out+a.err, words)
			return
		default:
			p.do("set " + prefix + " 1")
			orders[prefix] = 1
		}
	}
}

// newer opens the store with this version.
func newer(t *testing.T, url string) *percolator.DB {
	t.Helper()
	db, err := percolator.Open(t.Context(), url, percolator.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	atend.Do(t, func() { closeNewer(t, db) })
	return db
}

// closeNewer may be called twice.
func closeNewer(t *testing.T, db *percolator.DB) {
	if err := db.Close(context.WithoutCancel(t.Context())); !errors.Is(err, percolator.ErrClosed) {
		require.NoError(t, err)
	}
}

// ships runs a worker of this version with the observer of the older program, until stop.
func ships(t *testing.T, db *percolator.DB) (w *percolator.Worker, stop func()) {
	t.Helper()
	w = percolator.NewWorker(db, percolator.WorkerConfig{})
	require.NoError(t, w.Observe(percolator.Observer{Name: "ship", Table: "order", Column: "state", Func: func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
		runs, err := tx.Get(ctx, cell("shipped", c.Row, "runs"))
		if err != nil && !errors.Is(err, percolator.ErrNotFound) {
			return err
		}
		if err := tx.Set(cell("shipped", c.Row, "runs"), append(runs, '+')); err != nil {
			return err
		}
		return tx.Set(cell("shipped", c.Row, "by"), []byte("now"))
	}}))
	running, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(running) }()
	var once sync.Once
	stop = func() { once.Do(func() { end(); assert.NoError(t, <-ended) }) }
	atend.Do(t, stop)
	return w, stop
}

func order(t *testing.T, db *percolator.DB, prefix string, n int) {
	t.Helper()
	for i := range n {
		require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error {
			return tx.Set(cell("order", prefix+strconv.Itoa(i), "state"), []byte("new"))
		}))
	}
}

// shipped makes sure that each order was shipped once, and says how many each version has shipped.
func shipped(t *testing.T, db *percolator.DB, orders map[string]int) map[string]int {
	t.Helper()
	by := map[string]int{}
	require.NoError(t, db.View(t.Context(), func(tx *percolator.Txn) error {
		for prefix, n := range orders {
			for i := range n {
				row := prefix + strconv.Itoa(i)
				runs, err := tx.Get(t.Context(), cell("shipped", row, "runs"))
				if err != nil {
					return fmt.Errorf("order %s: %w", row, err)
				}
				require.Equal(t, "+", string(runs), "order %s was not shipped once", row)
				who, err := tx.Get(t.Context(), cell("shipped", row, "by"))
				if err != nil {
					return err
				}
				by[string(who)]++
			}
		}
		return nil
	}))
	return by
}

func catalogOf(t *testing.T, db *percolator.DB) int {
	t.Helper()
	r, err := admin.Of(db)
	require.NoError(t, err)
	o, err := r.Overview(t.Context())
	require.NoError(t, err)
	return o.Version
}

// saidBy asks the command, and expects an exit status and words.
func saidBy(t *testing.T, url string, status int, words string, args ...string) {
	t.Helper()
	a := ask(t, url, args...)
	require.Equal(t, status, a.status, "%v: %s%s", args, a.out, a.err)
	require.Contains(t, a.out+a.err, words, "%v", args)
}

// TestUpgradeOfPebble has programs of both versions use a store one after the other.
func TestUpgradeOfPebble(t *testing.T) {
	t.Parallel()
	url := "pebble:" + filepath.Join(t.TempDir(), "data")
	orders := map[string]int{"a": 10, "b": 10, "c": 5, "d": 5}
	p := older(t, url)
	p.do("set a 10", "work", "idle", "rest", "set b 10")
	saidBy(t, url, exitUnavailable, "in use", "migrate")
	p.do("close")

	db := newer(t, url)
	order(t, db, "c", 5)
	w, stop := ships(t, db)
	require.NoError(t, w.WaitIdle(t.Context()))
	stop()
	require.Equal(t, map[string]int{"before": 10, "now": 15}, shipped(t, db, map[string]int{"a": 10, "b": 10, "c": 5}))
	require.Equal(t, format.PlainCatalogVersion, catalogOf(t, db))
	closeNewer(t, db)

	// Nothing was raised, so one may go back.
	p = older(t, url)
	p.do("set d 5", "work", "idle", "rest", "close")
	raised(t, url, neededCatalog)

	db = newer(t, url)
	require.Equal(t, map[string]int{"before": 15, "now": 15}, shipped(t, db, orders))
}

// neededCatalog is what the older program says of a catalog that was raised.
const neededCatalog = "a newer version of this library wrote it (version 5, this one knows 4); upgrade this program"

// raised raises the catalog of a store that no older program has open, which is refused from then on.
func raised(t *testing.T, url, needs string) {
	t.Helper()
	saidBy(t, url, exitFindings, "percolator migrate run raises the catalog", "migrate", "check")
	saidBy(t, url, exitOK, "the catalog was raised from version 2 to version 5", "migrate", "run")
	saidBy(t, url, exitOK, "nothing is to be done", "migrate", "check")
	saidBy(t, url, exitOK, "nothing was to be done", "migrate", "run")
	_, refused := startOlder(t, url)
	require.Contains(t, refused, needs)
}

// TestUpgradeOfRedis has a newer program migrate a store that an older one has open. That is refused from then on, and
// loses nothing that it has committed.
func TestUpgradeOfRedis(t *testing.T) {
	t.Parallel()
	url := everystore.With(testserver.Redis(t), "prefix=upgrade")
	orders := map[string]int{"a": 10, "b": 10}
	p := older(t, url)
	p.do("set a 10", "work", "idle", "rest", "set b 10")
	saidBy(t, url, exitFindings, "has layout version 2: percolator migrate run brings it to version 3", "migrate", "check")
	p.do("set c 5")
	orders["c"] = 5
	db := newer(t, url)
	require.Contains(t, p.ask("set d 1"), "error (format: true)")
	_, refused := startOlder(t, url)
	require.Contains(t, refused, "has format version 3, this program writes version 2")

	w, stop := ships(t, db)
	order(t, db, "e", 5)
	orders["e"] = 5
	require.NoError(t, w.WaitIdle(t.Context()))
	require.Equal(t, map[string]int{"before": 10, "now": 20}, shipped(t, db, orders))
	stop()
	require.ErrorIs(t, db.View(t.Context(), func(tx *percolator.Txn) error {
		_, err := tx.Get(t.Context(), cell("order", "d0", "state"))
		return err
	}), percolator.ErrNotFound)
}

// upgraded runs f over a store that programs of both versions may have open at the same time.
func upgraded(t *testing.T, f func(t *testing.T, url string)) {
	space := strings.ToLower(t.Name())
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		// The first newer program migrates the schema, which lets those go on that have it open, and no others in.
		f(t, everystore.With(testserver.Postgres(t), "schema="+space))
	})
}

// TestRollingUpgrade replaces programs one after the other, while both versions work.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	upgraded(t, func(t *testing.T, url string) {
		p := older(t, url)
		p.do("set a 10", "work", "idle", "rest", "set b 10")
		orders := map[string]int{"a": 10, "b": 10}
		db := newer(t, url)
		w, stop := ships(t, db)
		p.do("work")
		// Both take their part.
		for round := 0; ; round++ {
			mine, theirs := fmt.Sprintf("n%d-", round), fmt.Sprintf("o%d-", round)
			order(t, db, mine, 10)
			p.do("set " + theirs + " 10")
			require.NoError(t, w.WaitIdle(t.Context()))
			now := shipped(t, db, map[string]int{mine: 10, theirs: 10})
			orders[mine], orders[theirs] = 10, 10
			require.Less(t, round, 100, "one of the two ships nothing: %v", now)
			if now["before"] > 0 && now["now"] > 0 {
				break
			}
		}
		saidBy(t, url, exitFindings, "1 of 2 processes run programs that know no catalog of version 5", "migrate", "check")
		p.meanwhile(orders, func() answer { return ask(t, url, "migrate", "run") }, exitOlder, "an older program has the database open")
		p.meanwhile(orders, func() answer { return ask(t, url, "gc", "run") }, exitOK, "removed")
		require.Equal(t, format.PlainCatalogVersion, catalogOf(t, db))
		p.do("set e 5")

		_, refused := startOlder(t, url)
		const needs = "has version 10, and this program knows versions up to 7: use a newer program"
		require.Contains(t, refused, needs)
		p.do("idle", "rest", "close")
		require.NoError(t, w.WaitIdle(t.Context()))
		orders["e"] = 5
		shipped(t, db, orders)
		raised(t, url, needs)
		order(t, db, "g", 5)
		require.NoError(t, w.WaitIdle(t.Context()))
		stop()
		orders["g"] = 5
		shipped(t, db, orders)
	})
}

// TestOlderProgramIsCutOff uses something that the older program does not know while that goes on: it is refused, and
// loses nothing that it has committed.
func TestOlderProgramIsCutOff(t *testing.T) {
	t.Parallel()
	upgraded(t, func(t *testing.T, url string) {
		p := older(t, url)
		p.do("work", "set a 5", "idle")
		db := newer(t, url)
		later := cell("order", "a0", "state")
		require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error {
			return tx.NotifyAfter(t.Context(), later, 24*time.Hour)
		}))
		require.Equal(t, format.TimersVersion, catalogOf(t, db))
		orders := map[string]int{"a": 5}
		for round := 0; ; round++ {
			prefix := fmt.Sprintf("b%d-", round)
			if answer := p.ask("set " + prefix + " 1"); answer != "done" {
				require.Contains(t, answer, "error (format: true)")
				require.Contains(t, answer, "upgrade this program")
				break
			}
			orders[prefix] = 1
		}
		p.do("rest") // workers of that version go on trying, and keep their share
		w, _ := ships(t, db)
		require.NoError(t, w.WaitIdle(t.Context()))
		shipped(t, db, orders)
	})
}
