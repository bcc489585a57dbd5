package slice

import (
	"context"
	"net"
	"strings"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// The types whose methods differ from package net's.
type (
	TCPConn     = stack.TCPConn
	TCPListener = stack.TCPListener
	UDPConn     = stack.UDPConn
)

// ours reports whether a network is the slice's.
func ours(network string) bool {
	return strings.HasPrefix(network, "tcp") || strings.HasPrefix(network, "udp")
}

// Dialer has the fields of net.Dialer that stack.Dialer has.
type Dialer struct {
	Timeout         time.Duration
	Deadline        time.Time
	LocalAddr       net.Addr
	FallbackDelay   time.Duration
	KeepAlive       time.Duration
	KeepAliveConfig net.KeepAliveConfig
}

// DialContext is net.Dialer's.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if !ours(network) {
		h := net.Dialer{Timeout: d.Timeout, Deadline: d.Deadline, LocalAddr: d.LocalAddr,
			FallbackDelay: d.FallbackDelay,
			KeepAlive:     d.KeepAlive, KeepAliveConfig: d.KeepAliveConfig}
		return h.DialContext(ctx, network, address)
	}
	s := Default().Dialer()
	s.Timeout, s.Deadline, s.LocalAddr, s.FallbackDelay = d.Timeout, d.Deadline,
		d.LocalAddr, d.FallbackDelay
	s.KeepAlive, s.KeepAliveConfig = d.KeepAlive, d.KeepAliveConfig
	return s.DialContext(ctx, network, address)
}

// Dial is net.Dialer's.
func (d *Dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

// ListenConfig has the fields of net.ListenConfig that stack.ListenConfig has.
type ListenConfig struct {
	KeepAlive       time.Duration
	KeepAliveConfig net.KeepAliveConfig
}

func (c *ListenConfig) ours() *stack.ListenConfig {
	l := Default().ListenConfig()
	l.KeepAlive, l.KeepAliveConfig = c.KeepAlive, c.KeepAliveConfig
	return l
}

func (c *ListenConfig) hosts() *net.ListenConfig {
	return &net.ListenConfig{KeepAlive: c.KeepAlive, KeepAliveConfig: c.KeepAliveConfig}
}

// Listen is net.ListenConfig's.
func (c *ListenConfig) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	if !ours(network) {
		return c.hosts().Listen(ctx, network, address)
	}
	return c.ours().Listen(ctx, network, address)
}

// ListenPacket is net.ListenConfig's.
func (c *ListenConfig) ListenPacket(ctx context.Context,
	network, address string) (net.PacketConn, error) {
	if !ours(network) {
		return c.hosts().ListenPacket(ctx, network, address)
	}
	return c.ours().ListenPacket(ctx, network, address)
}
