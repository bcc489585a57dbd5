// Package quic lets quic-go use a slice's UDP socket as it uses one of the kernel's. Packets are
// read in batches and sent many at a time (UDP_SEGMENT), which the NIC cuts up; they are marked for
// ECN, whose marks are read; and none is fragmented, so that quic-go finds out the path's MTU.
// quic-go is not changed:
//
//	pc, err := st.ListenUDP("udp", &net.UDPAddr{Port: 443})
//	conn, err := slice.New(pc) // slice ".../contrib/quic"
//	transport := &quic.Transport{Conn: conn}
//	server := &http3.Server{...}
//	err = server.Serve(conn)
//
// Without it quic-go sends and reads one packet of at most 1,280 bytes per call.
//
// quic-go sets socket options by a descriptor. Linux makes one for it, see [Conn]. On other systems
// quic-go does without, as if it had been given the socket itself.
//
// A module of its own has this package, so that the stack does not depend on quic-go, which only
// the tests need.
package quic

import (
	"errors"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// Conn adds to a socket of a slice what quic-go looks for: on Linux the method SyscallConn. Its
// descriptor is that of a socket of the kernel that has no port and carries nothing. What is set
// there of IP_MTU_DISCOVER, IP_RECVTOS, IP_PKTINFO, and of their namesakes for IPv6, is set on the
// slice's socket when Control returns; sizes of buffers are set by SetReadBuffer and
// SetWriteBuffer.
//
// Where net.core.rmem_max is below 7 MiB, and the process has no CAP_NET_ADMIN, quic-go logs once
// that it could not increase the receive buffer. That is about the kernel's socket; the slice's has
// what [stack.Config.UDPBuffer] allows.
type Conn struct {
	*stack.UDPConn
	options *optionSocket
}

// New takes the socket over: close the Conn instead. The error is the kernel's, of a process that
// may not open another descriptor.
func New(c *stack.UDPConn) (*Conn, error) {
	o, err := newOptionSocket(c)
	if err != nil {
		return nil, err
	}
	return &Conn{c, o}, nil
}

// Close frees the port, see [stack.UDPConn.Close].
func (c *Conn) Close() error { return errors.Join(c.UDPConn.Close(), c.options.closeSocket()) }
