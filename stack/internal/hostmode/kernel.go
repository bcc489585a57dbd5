package hostmode

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/internal/backing"
	"github.com/rdma-netstack/rdma-netstack/internal/hostnet"
)

// acceptPause says how long is waited where there is no descriptor for a connection.
const acceptPause = 10 * time.Millisecond

// acceptFrom hands connections of the kernel to listeners.
func (h *Host) acceptFrom(p *Port, from Acceptor) {
	for {
		c, err := from.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed), isPaused(err):
			return
		case err != nil:
			if h.env.Clock.Sleep(h.env.Ctx, acceptPause) != nil {
				return
			}
			continue
		}
		l := h.nextListener(p)
		if l == nil {
			Reset(c)
			continue
		}
		h.accepted.Add(1)
		l.Accept(c)
	}
}

// Reset closes a connection of the kernel with RST.
func Reset(c *net.TCPConn) {
	_ = c.SetLinger(0) // the connection may be over already
	_ = c.Close()
}

// LimitRate keeps a connection of the kernel to a rate in bytes per second.
func LimitRate(c *net.TCPConn, bytesPerSecond uint64) error {
	return backing.LimitRate(c, bytesPerSecond)
}

// nextListener returns the one of p's listeners whose turn it is; nil: none is left.
func (h *Host) nextListener(p *Port) Listener {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(p.users) == 0 {
		return nil
	}
	p.turn++
	p.accepted = true
	return p.users[p.turn%len(p.users)].listener
}

const (
	// Headroom says how many bytes the headers before a datagram's payload may take.
	Headroom = header.IPv6MinimumSize + header.UDPMinimumSize
	// maxPayload says how many bytes a datagram carries at most: by IPv6, whose length leaves
	// its own header out.
	maxPayload = 1<<16 - 1 - header.UDPMinimumSize
	// controlRoom suffices for the control messages that a socket of the kernel reports.
	controlRoom = 128
)

// readFrom delivers datagrams of the kernel to sockets.
func (h *Host) readFrom(p *Port, conn Datagrams) {
	buf, oob := make([]byte, Headroom+maxPayload), make([]byte, controlRoom)
	for {
		n, nn, from, err := conn.Receive(buf[Headroom:], oob)
		switch {
		case errors.Is(err, net.ErrClosed), isPaused(err):
			return
		case err != nil:
			if h.env.Clock.Sleep(h.env.Ctx, acceptPause) != nil {
				return
			}
			continue
		}
		h.received.Add(1)
		from = netip.AddrPortFrom(from.Addr().Unmap().WithZone(""), from.Port())
		if r := h.receiver(p, from); r != nil {
			r.Receive(buf[:Headroom+n], oob[:nn], from, p.key.at)
		}
	}
}

// receiver returns the socket for a datagram; of several that share the port each has its peers.
func (h *Host) receiver(p *Port, from netip.AddrPort) Receiver {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if len(p.users) == 0 {
		return nil
	}
	return p.users[int(from.Port())%len(p.users)].receiver
}

// Send sends a datagram of b by the kernel, with control messages, to what [Host.ByKernel] reports.
// from may be the zero Addr. Errors are those of sendmsg(2).
func (h *Host) Send(b *Binding, payload, oob []byte, from netip.Addr, to netip.AddrPort) error {
	conn, err := h.sender(b, from, to.Addr())
	if err == nil {
		err = conn.Send(payload, oob, netip.AddrPortFrom(h.zoned(to.Addr()), to.Port()))
	}
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err
	}
	if err == nil {
		h.sent.Add(1)
	}
	return err
}

// Dial makes and counts a connection of the kernel's for a program of the stack.
func (h *Host) Dial(ctx context.Context, by *net.Dialer, network, address string) (net.Conn,
	error) {
	c, err := h.kernel.Dial(ctx, by, network, address)
	if err == nil {
		h.dialled.Add(1)
	}
	return c, err
}

// Conns returns the connections that the kernel has accepted at ports of ours, closed ones
// included for as long as the kernel knows them. What it does not tell is not listed.
func (h *Host) Conns() []hostnet.Conn {
	list, err := h.kernel.Conns(func(local, remote netip.AddrPort) bool {
		h.mu.RLock()
		defer h.mu.RUnlock()
		return h.serves(local, remote)
	})
	if err != nil {
		h.env.Log.Debug("the kernel's connections", "interface", h.env.Name, "error", err)
	}
	return list
}

// kernelConn holds both ends of a connection of the kernel.
type kernelConn struct{ local, remote netip.AddrPort }

// serves reports whether a connection of the kernel is one that it has accepted for us. mu is held.
func (h *Host) serves(local, remote netip.AddrPort) bool {
	if _, kept := h.kept[kernelConn{local, remote}]; kept {
		return true
	}
	p := h.ports[portKey{backing.TCP, netip.AddrPortFrom(local.Addr().WithZone(""), local.Port())}]
	return p != nil && p.listener != nil
}

// keepConns notes the connections that the kernel has, before it stops serving at ports of ours:
// they go on, and the ports may be others' next. mu is held.
func (h *Host) keepConns(ports []*Port) {
	if !slices.ContainsFunc(ports, func(p *Port) bool { return p.accepted }) {
		return
	}
	list, err := h.kernel.Conns(h.serves)
	if err != nil {
		h.env.Log.Debug("the kernel's connections", "interface", h.env.Name, "error", err)
		return
	}
	h.kept = map[kernelConn]struct{}{}
	for _, c := range list {
		h.kept[kernelConn{c.Local, c.Remote}] = struct{}{}
	}
}
