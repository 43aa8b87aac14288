package testserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
)

// The newest server versions that the suites were run against. The environment
// may name other images: PERCOLATOR_TEST_REDIS_IMAGE, PERCOLATOR_TEST_POSTGRES_IMAGE,
// PERCOLATOR_TEST_PGBOUNCER_IMAGE.
const (
	LatestTestedRedis    = "7.0"
	LatestTestedPostgres = "15"
)

// The images of a server, best first: the one that the environment names, or the
// official one and then that of `make images`. PgBouncer has no official image.
func redisImages() []string {
	return images("PERCOLATOR_TEST_REDIS_IMAGE", "redis:"+LatestTestedRedis, "percolate-test/redis")
}

func postgresImages() []string {
	return images("PERCOLATOR_TEST_POSTGRES_IMAGE", "postgres:"+LatestTestedPostgres, "percolate-test/postgres")
}

func pgBouncerImages() []string {
	return images("PERCOLATOR_TEST_PGBOUNCER_IMAGE", "percolate-test/postgres", "percolate-test/pgbouncer")
}

func images(variable string, known ...string) []string {
	if named := os.Getenv(variable); named != "" {
		return []string{named}
	}
	return known
}

// Labels of the containers that this package starts. The owner tells which of them
// nobody will miss.
const (
	labelKind  = "org.percolate-go.test"
	labelOwner = "org.percolate-go.test.owner"
)

// engine is the connection to the container engine, made on first use.
var engine struct {
	sync.Mutex
	tried    bool
	err      error
	provider *testcontainers.DockerProvider
	apart    bool // see weigh
}

// silent keeps testcontainers' narration out of the tests' output.
type silent struct{}

func (silent) Printf(string, ...any) {}

// connect finds a container engine on this machine that can give a container the
// host's network, or says why there is none. It decides once for the process.
func connect() (*testcontainers.DockerProvider, error) {
	engine.Lock()
	defer engine.Unlock()
	if !engine.tried {
		engine.tried = true
		engine.provider, engine.err = connectNow()
	}
	return engine.provider, engine.err
}

func connectNow() (*testcontainers.DockerProvider, error) {
	if want := os.Getenv("PERCOLATOR_TEST_SERVERS"); want == "local" {
		return nil, errors.New("containers: not asked for (PERCOLATOR_TEST_SERVERS=local)")
	}
	// Servers listen on this machine's loopback. Published ports would do as well for
	// one server, but not for a Redis Cluster, whose nodes tell clients where they are.
	if host := os.Getenv("DOCKER_HOST"); runtime.GOOS != "linux" || host != "" && !strings.HasPrefix(host, "unix://") {
		return nil, errors.New("containers: the engine must be on this machine, and that a Linux")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	// Without this the constructor below would look for an engine for a long time.
	api, err := client.New(client.FromEnv)
	if err != nil {
		return nil, fmt.Errorf("containers: %w", err)
	}
	defer func() { _ = api.Close() }() // it was only asked
	if _, err := api.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err != nil {
		return nil, fmt.Errorf("containers: no engine answers: %w", err)
	}
	// The reaper of testcontainers is an image of its own. Where that is not at hand,
	// watchdogs and removeOrphans stand in; they work with it too, so it is off unless
	// asked for.
	if os.Getenv("TESTCONTAINERS_RYUK_DISABLED") == "" {
		if err := os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true"); err != nil {
			return nil, err
		}
	}
	log.SetDefault(silent{})
	provider, err := testcontainers.NewDockerProvider(
		testcontainers.WithLogger(silent{}), testcontainers.WithDefaultBridgeNetwork(testcontainers.Bridge))
	if err != nil {
		return nil, fmt.Errorf("containers: %w", err)
	}
	removeOrphans(ctx, provider.Client())
	if info, err := api.Info(ctx, client.InfoOptions{}); err == nil {
		engine.apart = info.Info.CgroupDriver == "cgroupfs" && !grouped()
	}
	return provider, nil
}

// grouped tells whether the scheduler takes the processes of a session for one.
func grouped() bool {
	b, err := os.ReadFile("/proc/sys/kernel/sched_autogroup_enabled")
	return err == nil && strings.TrimSpace(string(b)) == "1"
}

// weigh gives a server the weight of a few busy processes. An engine that manages the control groups by itself puts all containers into one group. Where the scheduler does not group
// sessions too, that counts as one process among all those of the tests: on a busy machine no server answers in time. Where it does, the servers and the tests are even.
func weigh(h *container.HostConfig) {
	const processes, ofOne = 4, 1024
	if engine.apart {
		h.CgroupParent, h.CPUShares = "/", processes*ofOne
	}
}

func closeEngine() error {
	engine.Lock()
	defer engine.Unlock()
	if engine.provider == nil {
		return nil
	}
	return engine.provider.Close()
}

// owner names this process among all that this machine ever ran since its boot.
func owner(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 20 {
		return ""
	}
	return fmt.Sprintf("%d:%s", pid, fields[19]) // the time at which it started
}

// removeOrphans removes containers whose test process is gone. Failures are left
// to the next run.
func removeOrphans(ctx context.Context, api client.APIClient) {
	list, err := api.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: client.Filters{}.Add("label", labelKind+"=server"),
	})
	if err != nil {
		return
	}
	for _, c := range list.Items {
		of := c.Labels[labelOwner]
		first, _, _ := strings.Cut(of, ":")
		if pid, err := strconv.Atoi(first); err == nil && owner(pid) != of {
			_, _ = api.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		}
	}
}

// findImage returns the first of the images that the engine has. It pulls none:
// that takes long, and scripts/test-servers has done it where it can be done.
func findImage(candidates []string) (string, error) {
	provider, err := connect()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, image := range candidates {
		if _, err := provider.Client().ImageInspect(ctx, image); err == nil {
			return image, nil
		}
	}
	return "", fmt.Errorf("containers: the engine has no image %s (make images builds one)", strings.Join(candidates, " or "))
}

// boxDir is where a container keeps its data: every image has it, and every account
// may write there.
const boxDir = "/var/tmp"

// smallDisk is a file system of a container that is soon full, for tests of that.
const smallDisk = "/small"

// box runs a server in a container.
type box struct {
	image, user string
	command     []string
	env         map[string]string
	ending      string // the signal that ends the server in order
	tree        bool   // working processes are children of the server
	ready       func(context.Context) error

	in    testcontainers.Container
	api   client.APIClient
	guard *watchdog
}

// again calls the engine, and once more where the call was lost: the library closes the connections that
// its client shares whenever one of its own calls ends, sometimes under a call that just begins. The kernel
// may also fail to freeze a container whose processes are busy, and does so a moment later.
func again(ctx context.Context, call func() error) error {
	var err error
	for try := range 5 {
		err = call()
		switch {
		case err == nil:
			return nil
		case strings.Contains(err.Error(), "CloseIdleConnections called"):
		case strings.Contains(err.Error(), "unable to freeze"):
			select {
			case <-time.After(100 * time.Millisecond << try):
			case <-ctx.Done():
				return err
			}
		default:
			return err
		}
	}
	return err
}

func (b *box) start(ctx context.Context) error {
	if b.in == nil {
		if err := b.create(ctx); err != nil {
			return err
		}
	} else if running, err := b.running(ctx); err != nil || running {
		return errors.Join(err, errors.New("it runs already"))
	}
	if err := again(ctx, func() error { return b.in.Start(ctx) }); err != nil {
		return err
	}
	return poll(ctx, func() error {
		err := b.ready(ctx)
		if err != nil {
			if running, rerr := b.running(ctx); rerr == nil && !running {
				return final{fmt.Errorf("it ended at once:\n%s", b.log())}
			}
		}
		return err
	})
}

func (b *box) create(ctx context.Context) error {
	provider, err := connect()
	if err != nil {
		return err
	}
	b.api = provider.Client()
	request := testcontainers.ContainerRequest{
		Image: b.image, Env: b.env,
		Entrypoint: b.command[:1], Cmd: b.command[1:],
		Labels: map[string]string{labelKind: "server", labelOwner: owner(os.Getpid())},
		ConfigModifier: func(c *container.Config) {
			c.User = b.user
			// A volume of its own, removed with the container, which takes over who may
			// write there from the image: the layers of a container are slow to write to.
			c.Volumes = map[string]struct{}{boxDir: {}}
		},
		HostConfigModifier: func(h *container.HostConfig) {
			h.NetworkMode = "host"
			weigh(h)
			// Certificates, sockets and what else a test names in the settings of a
			// server are files of the test, in its temporary directory.
			if dir := os.TempDir(); dir != boxDir {
				h.Binds = []string{dir + ":" + dir}
			}
			h.ShmSize = 256 << 20
			h.Tmpfs = map[string]string{smallDisk: "rw,size=16m,mode=1777"}
		},
	}
	err = again(ctx, func() error {
		b.in, err = provider.CreateContainer(ctx, request)
		return err
	})
	if err != nil {
		b.in = nil
		return err
	}
	b.guard, err = watchContainer(b.in.GetContainerID())
	return err
}

func (b *box) running(ctx context.Context) (bool, error) {
	running := false
	err := again(ctx, func() error {
		got, err := b.api.ContainerInspect(ctx, b.in.GetContainerID(), client.ContainerInspectOptions{})
		running = err == nil && got.Container.State.Running
		return err
	})
	return running, err
}

// end sends a signal and waits until the container runs no more.
func (b *box) end(ctx context.Context, signal string) error {
	if running, err := b.running(ctx); err != nil || !running {
		return err
	}
	id := b.in.GetContainerID()
	err := again(ctx, func() error {
		_, err := b.api.ContainerKill(ctx, id, client.ContainerKillOptions{Signal: signal})
		return err
	})
	if err != nil {
		return err
	}
	wait := b.api.ContainerWait(ctx, id, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	select {
	case <-wait.Result:
		return nil
	case err := <-wait.Error:
		return err
	}
}

func (b *box) stop(ctx context.Context) error { return b.end(ctx, b.ending) }

func (b *box) kill(ctx context.Context) error {
	_ = b.resume(ctx) // an engine refuses to kill what it has paused
	return b.end(ctx, "SIGKILL")
}

// crashScript kills one child of the first process of its container, and waits until
// that process has noticed and has ended the others too: what is sent before may still be
// answered by one of them. It takes the newest, which serves somebody. That one may have
// ended by itself meanwhile, and is not missed by anybody: then it takes the oldest, which
// lives as long as the server does.
const crashScript = `
children=
for stat in /proc/[0-9]*/stat; do
	read -r pid _ state parent _ <"$stat" 2>/dev/null || continue
	[ "$parent" = 1 ] && [ "$pid" != $$ ] && [ "$state" != Z ] && children="$children $pid" && newest=$pid
done
for victim in "$newest" $children; do
	kill -9 "$victim" 2>/dev/null
	for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
		left=
		for pid in $children; do
			kill -0 "$pid" 2>/dev/null && left=$pid && break
		done
		[ "$left" ] || exit 0
		sleep 0.05
	done
done
echo "process $left is still there"
exit 1
`

func (b *box) crashBackend(ctx context.Context) error {
	if !b.tree {
		return errors.New("it is a single process")
	}
	status, out, err := b.in.Exec(ctx, []string{"/bin/sh", "-c", crashScript})
	if err == nil && status != 0 {
		text, _ := io.ReadAll(out)
		err = fmt.Errorf("status %d: %s", status, text)
	}
	return err
}

func (b *box) pause(ctx context.Context) error {
	return again(ctx, func() error {
		_, err := b.api.ContainerPause(ctx, b.in.GetContainerID(), client.ContainerPauseOptions{})
		return err
	})
}

func (b *box) resume(ctx context.Context) error {
	return again(ctx, func() error {
		_, err := b.api.ContainerUnpause(ctx, b.in.GetContainerID(), client.ContainerUnpauseOptions{})
		return err
	})
}

func (b *box) log() string {
	if b.in == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	logs, err := b.in.Logs(ctx)
	if err != nil {
		return err.Error()
	}
	defer logs.Close()
	text, _ := io.ReadAll(logs)
	const tail = 16 << 10
	return string(text[max(0, len(text)-tail):])
}

func (b *box) close() error {
	if b.in == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	_, err := b.api.ContainerRemove(ctx, b.in.GetContainerID(), client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	b.guard.release()
	b.guard = nil
	return err
}

// watchContainer removes a container when this process is gone without having done
// so. Without the docker program removeOrphans of the next run does it.
func watchContainer(id string) (*watchdog, error) {
	docker, err := exec.LookPath("docker")
	if err != nil {
		return nil, nil
	}
	const script = `
read -r word
[ "$word" = release ] && exit 0
"$1" rm -f -v "$2"
`
	cmd := exec.Command("/bin/sh", "-c", script, "sh", docker, id)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return startWatchdog(cmd)
}
