package testserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// DefaultTiKV is the version of the images of PD and TiKV that are taken where
// PERCOLATOR_TEST_TIKV_VERSION names no other. It is not called the latest tested
// one, as with Redis and Postgres, because it is not: this repository's CI has no
// registry to pull them from, and a run prints what it ran against (see Ran).
const DefaultTiKV = "v7.5.1"

// tikvImages are the images of PD and of TiKV.
func tikvImages() (pd, tikv []string) {
	version := os.Getenv("PERCOLATOR_TEST_TIKV_VERSION")
	if version == "" {
		version = DefaultTiKV
	}
	return images("PERCOLATOR_TEST_PD_IMAGE", "pingcap/pd:"+version), images("PERCOLATOR_TEST_TIKV_IMAGE", "pingcap/tikv:"+version)
}

// TiKVCluster is a PD and three stores.
type TiKVCluster struct {
	// URL names its PD: tikv://127.0.0.1:PORT
	URL string
	// From says how the servers run.
	From string
	// PD and Stores may each be killed, paused and started by themselves. They are nil
	// for a cluster that the environment named.
	PD     *Server
	Stores []*Server
}

var sharedTiKV struct {
	once    sync.Once
	cluster *TiKVCluster
	err     error
}

// TiKV returns the URL of a TiKV cluster for this test package, tikv://HOST:PORT,
// without a prefix: tests keep apart by prefix. It is the cluster that
// PERCOLATOR_TEST_TIKV names, or one of containers, started on first use. There is no
// third way, so that unlike a Redis or a Postgres it may not be had: then it returns
// an error that says why, which Ran has noted, and the tests that run against
// client-go's mock cluster are all there are.
func TiKV(t testing.TB) (string, error) {
	t.Helper()
	s := &sharedTiKV
	s.once.Do(func() {
		if url := os.Getenv("PERCOLATOR_TEST_TIKV"); url != "" {
			s.cluster = &TiKVCluster{URL: url, From: "named by PERCOLATOR_TEST_TIKV"}
		} else if s.cluster, s.err = StartTiKV(1); s.err == nil {
			packageServers.Lock()
			packageServers.all = append(packageServers.all, append(s.cluster.Stores, s.cluster.PD)...)
			packageServers.Unlock()
		}
		if s.err != nil {
			Ran("tikv", "no real cluster: "+firstLine(s.err))
			return
		}
		Ran("tikv", "a real cluster, "+s.cluster.From)
		t.Logf("testserver: %s, %s", s.cluster.URL, s.cluster.From)
	})
	if s.err != nil {
		return "", s.err
	}
	return s.cluster.URL, nil
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// StartTiKV starts a cluster with stores of version 1 or 2 of the API. The caller closes
// the servers. Its error is as TiKV's.
func StartTiKV(api int) (_ *TiKVCluster, err error) {
	pdNames, tikvNames := tikvImages()
	pdImage, err := findImage(pdNames)
	if err != nil {
		return nil, err
	}
	tikvImage, err := findImage(tikvNames)
	if err != nil {
		return nil, err
	}
	c := &TiKVCluster{From: "containers of " + pdImage + " and " + tikvImage}
	defer func() {
		if err != nil {
			for _, s := range append(c.Stores, c.PD) {
				if s != nil {
					err = errors.Join(err, s.Close())
				}
			}
		}
	}()
	if c.PD, err = startPD(pdImage); err != nil {
		return nil, fmt.Errorf("testserver: PD: %w", err)
	}
	c.URL = "tikv://" + address(c.PD.Port)
	for range 3 {
		s, err := startStore(tikvImage, c.PD.Port, tikvSettings(api))
		if err != nil {
			return nil, fmt.Errorf("testserver: TiKV: %w", err)
		}
		c.Stores = append(c.Stores, s)
	}
	return c, nil
}

// tikvSettings is the configuration of a small store. Version 2 of the API needs
// TTLs on.
func tikvSettings(api int) string {
	settings := `
[storage]
reserve-space = "0MB"
reserve-raft-space = "0MB"
api-version = %d
enable-ttl = %t
[storage.block-cache]
capacity = "128MB"
[server]
grpc-concurrency = 2
[readpool.unified]
max-thread-count = 2
`
	return fmt.Sprintf(settings, api, api == 2)
}

func startPD(image string) (*Server, error) {
	return onFreePorts(2, func(ports []int) (*Server, error) {
		client, peer := "http://"+address(ports[0]), "http://"+address(ports[1])
		d := &box{
			image: image, ending: "SIGTERM",
			command: []string{
				"/pd-server", "--name=pd", "--data-dir=" + filepath.Join(boxDir, "pd"),
				"--client-urls=" + client, "--peer-urls=" + peer, "--initial-cluster=pd=" + peer, "--log-level=warn",
			},
			ready: func(ctx context.Context) error {
				var members struct {
					Leader *struct {
						Name string `json:"name"`
					} `json:"leader"`
				}
				if err := getJSON(ctx, client+"/pd/api/v1/members", &members); err != nil {
					return err
				}
				if members.Leader == nil {
					return errors.New("it has no leader yet")
				}
				return nil
			},
		}
		s := &Server{URL: "tikv://" + address(ports[0]), Host: "127.0.0.1", Port: ports[0], From: "container of " + image, driver: d}
		return s, startOrClose(d)
	})
}

func startStore(image string, pdPort int, settings string) (*Server, error) {
	return onFreePorts(2, func(ports []int) (*Server, error) {
		d := &box{
			image: image, ending: "SIGTERM",
			// The settings are no file of the test, which may be gone when a store that was
			// killed starts again.
			command: []string{
				"/bin/sh", "-c",
				`printf '%s' "$1" > ` + boxDir + `/tikv.toml; shift; exec /tikv-server --config=` + boxDir + `/tikv.toml "$@"`, "tikv", settings,
				"--addr=" + address(ports[0]), "--status-addr=" + address(ports[1]),
				"--pd-endpoints=" + address(pdPort), "--data-dir=" + filepath.Join(boxDir, "tikv"), "--log-level=warn",
			},
			ready: func(ctx context.Context) error { return storeIsUp(ctx, pdPort, address(ports[0])) },
		}
		s := &Server{Host: "127.0.0.1", Port: ports[0], From: "container of " + image, driver: d}
		return s, startOrClose(d)
	})
}

// storeIsUp asks PD whether it knows the store at an address, and that it lives.
func storeIsUp(ctx context.Context, pdPort int, addr string) error {
	var all struct {
		Stores []struct {
			Store struct {
				Address string `json:"address"`
				State   string `json:"state_name"`
			} `json:"store"`
		} `json:"stores"`
	}
	if err := getJSON(ctx, "http://"+address(pdPort)+"/pd/api/v1/stores", &all); err != nil {
		return err
	}
	for _, s := range all.Stores {
		if s.Store.Address == addr {
			if s.Store.State == "Up" {
				return nil
			}
			return fmt.Errorf("PD says that the store is %s", s.Store.State)
		}
	}
	return errors.New("PD does not know the store yet")
}

func getJSON(ctx context.Context, url string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	// A connection that is kept would be a goroutine at the end of the tests.
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(into)
}
