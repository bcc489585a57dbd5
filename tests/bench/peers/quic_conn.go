package main

import (
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// quicConn makes quic-go use what a socket of ours can do: read in batches, and send many packets
// by one call. quic-go looks for SyscallConn, by which it sets options, and then for ReadBatch; it
// asks for segmentation by a control message (UDP_SEGMENT). The descriptor is that of a kernel's
// socket that carries nothing, so the options have no effect; marks for ECN are not sent, which
// quic-go notices.
type quicConn struct {
	*stack.UDPConn
	options *net.UDPConn
	batches sync.Pool // of *[]stack.Message
}

// newQUICConn takes the socket over.
func newQUICConn(c *stack.UDPConn) (*quicConn, error) {
	options, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, err
	}
	return &quicConn{UDPConn: c, options: options,
		batches: sync.Pool{New: func() any { return new([]stack.Message) }}}, nil
}

// SyscallConn is that of the socket for options.
func (c *quicConn) SyscallConn() (syscall.RawConn, error) { return c.options.SyscallConn() }

// Close closes both sockets.
func (c *quicConn) Close() error { return errors.Join(c.UDPConn.Close(), c.options.Close()) }

// WriteMsgUDP sends b, or the packets of the size that oob says that b is made of.
func (c *quicConn) WriteMsgUDP(b, oob []byte, addr *net.UDPAddr) (n, oobn int, err error) {
	size := segmentSize(oob)
	if size == 0 || len(b) <= size {
		return c.UDPConn.WriteMsgUDP(b, nil, addr)
	}
	batch := c.batches.Get().(*[]stack.Message)
	defer c.batches.Put(batch)
	*batch = segments((*batch)[:0], b, size, addr)
	for ms := *batch; len(ms) > 0; {
		sent, err := c.WriteBatch(ms, 0)
		if err != nil {
			return 0, 0, err
		}
		ms = ms[sent:]
	}
	return len(b), len(oob), nil
}

// segments appends the datagrams that b is made of.
func segments(ms []stack.Message, b []byte, size int, addr *net.UDPAddr) []stack.Message {
	for len(b) > 0 {
		n := min(size, len(b))
		ms = append(ms, stack.Message{Buffers: [][]byte{b[:n]}, Addr: addr})
		b = b[n:]
	}
	return ms
}

// segmentSize is that of a UDP_SEGMENT control message; 0 if there is none.
func segmentSize(oob []byte) int {
	for len(oob) > 0 {
		h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			return 0
		}
		if h.Level == unix.IPPROTO_UDP && h.Type == unix.UDP_SEGMENT && len(data) >= 2 {
			return int(binary.NativeEndian.Uint16(data))
		}
		oob = rest
	}
	return 0
}
