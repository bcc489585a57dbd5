//go:build linux

package localhost

import (
	"net"
	"net/netip"
	"slices"
	"sync/atomic"

	"golang.org/x/net/ipv4"

	"github.com/rdma-netstack/rdma-netstack/unmodified"
)

// socket shows addresses of loopback in the place of those of slices.
type socket struct {
	unmodified.Socket
	host   *Host
	at     *slice
	ports  []port
	closed atomic.Bool
}

// wrap returns the socket that package net gets: of datagrams, which come in batches, or another.
func wrap(s unmodified.Socket, h *Host, at *slice, ports []port) unmodified.Socket {
	one := &socket{Socket: s, host: h, at: at, ports: ports}
	if b, ok := s.(batches); ok {
		return &datagrams{one, b}
	}
	return one
}

// Close closes the socket.
func (s *socket) Close() error {
	if !s.closed.Swap(true) {
		s.host.leave(s.at, s.ports...)
		s.host.notes.add(s.host, func(*Notes) {})
	}
	return s.Socket.Close()
}

// LocalAddr returns the address that the socket is bound to.
func (s *socket) LocalAddr() net.Addr { return shownSocket(s.Socket.LocalAddr()) }

// RemoteAddr returns the address that it is connected to, or nil.
func (s *socket) RemoteAddr() net.Addr {
	a := s.Socket.RemoteAddr()
	if a == nil {
		return nil
	}
	return shownSocket(a)
}

// Accept returns a connection.
func (s *socket) Accept() (any, *net.TCPConn, error) {
	c, byKernel, err := s.Socket.Accept()
	if is, ok := c.(unmodified.Socket); ok && err == nil {
		s.host.join(s.at)
		c = wrap(is, s.host, s.at, nil)
	}
	return c, byKernel, err
}

// batches gives what sockets of datagrams implement for golang.org/x/net/internal/socket.
type batches interface {
	ReadBatch([]ipv4.Message, int) (int, error)
	WriteBatch([]ipv4.Message, int) (int, error)
	SetOptionBytes(level, name int, b []byte) (bool, error)
}

// datagrams holds a socket of UDP.
type datagrams struct {
	*socket
	batches batches
}

// noteFrom counts a datagram of the own slice.
func (d *datagrams) noteFrom(from netip.Addr) {
	if is := from.Unmap(); is == d.at.v4 || is == d.at.v6 {
		d.host.own.Add(1)
	}
}

// ReadAddr receives a datagram.
func (d *datagrams) ReadAddr(b []byte) (int, netip.AddrPort, error) {
	n, from, err := d.Socket.ReadAddr(b)
	d.noteFrom(from.Addr())
	return n, shownPort(from), err
}

// WriteAddr sends a datagram.
func (d *datagrams) WriteAddr(b []byte, to netip.AddrPort) (int, error) {
	return d.Socket.WriteAddr(b, d.host.sentTo(d.at, to))
}

// ReadMsg receives a datagram and its control messages.
func (d *datagrams) ReadMsg(b, oob []byte, flags int) (n, oobn, ret int, from netip.AddrPort,
	err error) {
	n, oobn, ret, from, err = d.Socket.ReadMsg(b, oob, flags)
	d.noteFrom(from.Addr())
	showPacketInfo(oob[:oobn])
	return n, oobn, ret, shownPort(from), err
}

// WriteMsg sends a datagram with control messages.
func (d *datagrams) WriteMsg(b, oob []byte, to netip.AddrPort) (n, oobn int, err error) {
	return d.Socket.WriteMsg(b, d.at.namePacketInfo(oob), d.host.sentTo(d.at, to))
}

// ReadBatch receives datagrams.
func (d *datagrams) ReadBatch(ms []ipv4.Message, flags int) (int, error) {
	n, err := d.batches.ReadBatch(ms, flags)
	for i := range ms[:max(n, 0)] {
		from := addressOf(ms[i].Addr).Addr()
		d.noteFrom(from)
		ms[i].Addr = shownSocket(ms[i].Addr)
		showPacketInfo(ms[i].OOB[:ms[i].NN])
	}
	return n, err
}

// WriteBatch sends datagrams.
func (d *datagrams) WriteBatch(ms []ipv4.Message, flags int) (int, error) {
	out := slices.Clone(ms)
	for i := range out {
		out[i].OOB = d.at.namePacketInfo(out[i].OOB)
		if a, ok := out[i].Addr.(*net.UDPAddr); ok && a != nil {
			is := addressOf(a)
			if by := d.host.sentTo(d.at, is); by != is {
				out[i].Addr = withIP(a, replaceIP(a.IP, by.Addr()))
			}
		}
	}
	n, err := d.batches.WriteBatch(out, flags)
	for i := range out {
		ms[i].N, ms[i].NN = out[i].N, out[i].NN
	}
	return n, err
}

// SetOptionBytes sets an option.
func (d *datagrams) SetOptionBytes(level, name int, b []byte) (bool, error) {
	return d.batches.SetOptionBytes(level, name, b)
}
