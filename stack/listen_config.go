package stack

import (
	"context"
	"net"
	"time"
)

// ListenConfig has the options of a listener. Make one with [Stack.ListenConfig]. It may be used
// from any goroutine as long as its fields are not changed.
type ListenConfig struct {
	// KeepAlive and KeepAliveConfig, of accepted connections, are as in net.ListenConfig: by
	// default what
	// [TCPOptions] says, no probes if KeepAlive is negative and KeepAliveConfig not enabled.
	KeepAlive       time.Duration
	KeepAliveConfig net.KeepAliveConfig

	// ReusePort lets several listeners, or several UDP sockets, have the same address and port, if
	// all of them set it. Each connection is one of theirs, and each peer's datagrams go to one of
	// them (SO_REUSEPORT of Linux).
	ReusePort bool

	// Backlog is [TCPOptions].Backlog of this listener. 0: the stack's.
	Backlog int

	stack *Stack
}

// ListenConfig returns a ListenConfig of this stack with every option at its default.
func (s *Stack) ListenConfig() *ListenConfig { return &ListenConfig{stack: s} }

// Listen is [Stack.Listen] with c's options. ctx bounds the lookup of a name.
func (c *ListenConfig) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	list, err := c.stack.resolveListen(ctx, "tcp", network, address)
	if err != nil {
		return nil, err
	}
	l, err := c.listenTCP(network, list.first().tcp())
	if err != nil {
		return nil, err
	}
	return l, nil
}

// ListenPacket is [Stack.ListenPacket] with c's options. ctx bounds the lookup of a name.
func (c *ListenConfig) ListenPacket(ctx context.Context,
	network, address string) (net.PacketConn, error) {
	list, err := c.stack.resolveListen(ctx, "udp", network, address)
	if err != nil {
		return nil, err
	}
	p, err := c.listenUDP(network, list.first().udp())
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (c *ListenConfig) listenTCP(network string, laddr *net.TCPAddr) (*TCPListener, error) {
	if err := checkNetwork("tcp", network); err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: orNil(laddr), Err: err}
	}
	if laddr == nil {
		laddr = &net.TCPAddr{}
	}
	l := &TCPListener{network: network,
		family: listenFamily(network, laddr.IP), shared: c.ReusePort}
	l.stack, l.keepAlive = c.stack, keepAlive(c.KeepAlive, c.KeepAliveConfig,
		c.stack.cfg.TCP.KeepAlive)
	if err := l.open(laddr, orDefault(c.Backlog, c.stack.cfg.TCP.Backlog)); err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: laddr, Err: err}
	}
	return l, nil
}

func (c *ListenConfig) listenUDP(network string, laddr *net.UDPAddr) (*UDPConn, error) {
	if err := checkNetwork("udp", network); err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: orNil(laddr), Err: err}
	}
	if laddr == nil {
		laddr = &net.UDPAddr{}
	}
	p, err := c.stack.openUDP(&UDPConn{reusePort: c.ReusePort, forGroup: laddr.IP.IsMulticast()},
		network, listenFamily, laddr, nil)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: laddr, Err: err}
	}
	return p, nil
}

// keepAlive is what the two fields of net.Dialer and net.ListenConfig mean together.
func keepAlive(d time.Duration, config, byDefault net.KeepAliveConfig) net.KeepAliveConfig {
	switch {
	case config.Enable:
		return config
	case d < 0:
		return net.KeepAliveConfig{}
	case d > 0:
		return net.KeepAliveConfig{Enable: true, Idle: d}
	}
	return byDefault
}
