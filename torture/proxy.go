package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// network is the toxiproxies between processes and servers, all in this process.
type network struct {
	server  *toxiproxy.ApiServer // holds what proxies share; it does not listen
	proxies []*proxy
}

// proxy is the way of some processes to one server.
type proxy struct {
	*toxiproxy.Proxy
	name string
}

func newNetwork() *network {
	return &network{server: toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())}
}

// add starts a proxy at a free port of this machine.
func (n *network) add(name, upstream string) (*proxy, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	p := &proxy{Proxy: toxiproxy.NewProxy(n.server, name, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), upstream), name: name}
	if err := p.Start(); err != nil {
		return nil, fmt.Errorf("starting the proxy %s: %w", name, err)
	}
	n.proxies = append(n.proxies, p)
	return p, nil
}

func (n *network) close() {
	for _, p := range n.proxies {
		p.Stop()
	}
}

// cut ends all connections through a proxy and refuses new ones.
func (p *proxy) cut() { p.Stop() }

// mend undoes cut.
func (p *proxy) mend() error { return p.Start() }

// poison adds a toxic: https://github.com/Shopify/toxiproxy#toxics.
func (p *proxy) poison(name, kind, direction string, attributes map[string]int) error {
	b, err := json.Marshal(map[string]any{
		"name": name, "type": kind, "stream": direction, "toxicity": 1, "attributes": attributes,
	})
	if err != nil {
		return err
	}
	if _, err := p.Toxics.AddToxicJson(bytes.NewReader(b)); err != nil {
		return fmt.Errorf("toxic %s: %w", kind, err)
	}
	return nil
}

// cure removes a toxic.
func (p *proxy) cure(ctx context.Context, name string) error {
	if err := p.Toxics.RemoveToxic(ctx, name); err != nil {
		return fmt.Errorf("removing a toxic: %w", err)
	}
	return nil
}

// freePort finds a free port below those that Linux takes for outgoing connections,
// so that a proxy that was stopped finds its port free.
func freePort() (int, error) {
	for range 10_000 {
		port := 15_000 + rand.IntN(17_000)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		return port, l.Close()
	}
	return 0, fmt.Errorf("no free port on 127.0.0.1")
}
