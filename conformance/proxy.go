package conformance

import (
	"fmt"
	"net"
	"sync"
)

// Proxy passes TCP connections on to a server, and breaks them when asked. It does what
// Hooked.Break needs for a store over the network. All methods may be called at any time.
type Proxy struct {
	listener net.Listener
	server   string
	running  sync.WaitGroup

	mu     sync.Mutex
	moment Moment        // 0: nothing is broken
	breaks int           // how many there were
	let    int           // answers that still get through, of a break after the call
	mended chan struct{} // closed when the break is over
	conns  map[net.Conn]struct{}
	closed bool
}

// NewProxy starts a proxy at a free port of this machine. It leads to the server at an
// address, host:port. Close ends it.
func NewProxy(server string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("conformance: starting a proxy: %w", err)
	}
	p := &Proxy{listener: l, server: server, conns: map[net.Conn]struct{}{}}
	p.running.Go(p.accept)
	return p, nil
}

// Addr is the proxy's own address, host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Break breaks what goes through the proxy, until mend is called; see [Moment]. At most
// one break is in force. A call may take several exchanges with the server, so a break
// after the call cuts off the first, the second or the third answer, in turns.
func (p *Proxy) Break(m Moment) (mend func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	mended := make(chan struct{})
	p.moment, p.mended, p.let = m, mended, p.breaks%3
	p.breaks++
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.moment, p.mended = 0, nil
		close(mended)
	})
}

// Close ends the proxy and all connections through it.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	if p.mended != nil {
		p.moment = BeforeCall
	}
	err := p.listener.Close()
	for c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.running.Wait()
	return err
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		if p.closed {
			_, _ = client.Close(), server.Close()
		} else {
			p.conns[client], p.conns[server] = struct{}{}, struct{}{}
			p.running.Go(func() { p.pass(client, server, true) })
			p.running.Go(func() { p.pass(server, client, false) })
		}
		p.mu.Unlock()
	}
}

// pass carries bytes one way until either side ends or is cut off.
func (p *Proxy) pass(from, to net.Conn, requests bool) {
	defer func() {
		_, _ = from.Close(), to.Close()
		p.mu.Lock()
		delete(p.conns, from)
		delete(p.conns, to)
		p.mu.Unlock()
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && !p.forward(to, buf[:n], requests) {
			return
		}
		if err != nil {
			return
		}
	}
}

// forward sends bytes on as far as the break in force allows, and tells whether the
// connection stays.
func (p *Proxy) forward(to net.Conn, b []byte, requests bool) bool {
	p.mu.Lock()
	moment, mended, closed := p.moment, p.mended, p.closed
	lost := moment == AfterCall && !requests && p.let <= 0
	if moment == AfterCall && !requests {
		p.let--
	}
	p.mu.Unlock()
	switch {
	case closed, moment == BeforeCall, lost:
		return false
	case moment == InCall:
		if requests {
			_, _ = to.Write(b[:(len(b)+1)/2])
		}
		return false
	case moment == HangCall:
		<-mended
	}
	_, err := to.Write(b)
	return err == nil
}
