package main

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/net/ipv4"

	"github.com/rdma-netstack/rdma-netstack/contrib/pion"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// A selective forwarding unit sends what comes from a publisher to each subscriber, in a packet of
// its own whose RTP header (RFC 3550, section 5.1) is rewritten. Nothing is encrypted: SRTP costs
// the same on any stack.

// First bytes of what an SFU receives. It sends a request back when it is done.
const (
	sfuReset = 1    // forget the subscribers
	sfuJoin  = 2    // the sender subscribes
	rtpMark  = 0x80 // a packet of RTP, without padding, extension and contributors
)

const rtpHeader = 12 // bytes

// packetSender sends packets, now or when flush is called.
type packetSender interface {
	sendPacket(b []byte, to netip.AddrPort) error
	flush() error
}

// sfu serves a socket, to which it writes by what sender makes of it.
func (s *services) sfu(sender func(net.PacketConn) packetSender) func(net.PacketConn) error {
	return func(conn net.PacketConn) error {
		f := forwarder{services: s, out: sender(conn)}
		buf := make([]byte, 2<<10)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return err
			}
			switch at := addrPortOf(from); {
			case n >= rtpHeader && buf[0] == rtpMark:
				f.forward(buf[:n])
				continue
			case buf[0] == sfuReset:
				f.subscribers = f.subscribers[:0]
			case !slices.Contains(f.subscribers, at):
				f.subscribers = append(f.subscribers, at)
			}
			_, err = conn.WriteTo(buf[:n], from)
			f.count(err, 0)
		}
	}
}

func addrPortOf(a net.Addr) netip.AddrPort {
	at := a.(*net.UDPAddr).AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

// forwarder sends packets to all subscribers.
type forwarder struct {
	services    *services
	out         packetSender
	subscribers []netip.AddrPort
	number      uint16
}

func (f *forwarder) forward(b []byte) {
	f.number++
	for i, to := range f.subscribers {
		binary.BigEndian.PutUint16(b[2:], f.number)
		binary.BigEndian.PutUint32(b[8:], uint32(i)) // the source
		f.count(f.out.sendPacket(b, to), 1)
	}
	f.count(f.out.flush(), 0)
}

func (f *forwarder) count(err error, n uint64) {
	if err != nil {
		f.services.failed.Add(1)
		return
	}
	f.services.sent.Add(n)
}

// singly sends each packet by a call.
func singly(conn net.PacketConn) packetSender { return singleSender{conn} }

type singleSender struct{ net.PacketConn }

func (s singleSender) sendPacket(b []byte, to netip.AddrPort) error {
	if c, ok := s.PacketConn.(interface {
		WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error)
	}); ok {
		_, err := c.WriteToUDPAddrPort(b, to)
		return err
	}
	_, err := s.WriteTo(b, net.UDPAddrFromAddrPort(to))
	return err
}

func (singleSender) flush() error { return nil }

// inBatches sends many packets by a call, if the socket can: contrib/pion's on ours, sendmmsg on
// the kernel's.
func inBatches(conn net.PacketConn) packetSender {
	switch c := conn.(type) {
	case *stack.UDPConn:
		return pionSender{pion.NewBatchConn(c, pion.Batch{Size: sfuBatch})}
	case *net.UDPConn:
		return newBatchSender(ipv4.NewPacketConn(c))
	}
	return singly(conn)
}

// sfuBatch says how many packets a call sends at most, as pion.Batch does by default.
const sfuBatch = 64

// pionSender leaves it to the BatchConn when what waits is sent.
type pionSender struct{ *pion.BatchConn }

func (s pionSender) sendPacket(b []byte, to netip.AddrPort) error {
	_, err := s.WriteToAddrPort(b, to)
	return err
}

func (pionSender) flush() error { return nil }

// batchSender sends by sendmmsg: full batches, and at flush what is left.
type batchSender struct {
	conn     *ipv4.PacketConn
	messages []ipv4.Message // with memory of their own
	n        int            // that wait
}

func newBatchSender(conn *ipv4.PacketConn) *batchSender {
	s := &batchSender{conn: conn, messages: make([]ipv4.Message, sfuBatch)}
	for i := range s.messages {
		s.messages[i].Buffers, s.messages[i].Addr = make([][]byte, 1), new(net.UDPAddr)
	}
	return s
}

func (s *batchSender) sendPacket(b []byte, to netip.AddrPort) error {
	m := &s.messages[s.n]
	m.Buffers[0] = append(m.Buffers[0][:0], b...)
	a := m.Addr.(*net.UDPAddr)
	ip := to.Addr().As4()
	a.IP, a.Port = append(a.IP[:0], ip[:]...), int(to.Port())
	if s.n++; s.n == len(s.messages) {
		return s.flush()
	}
	return nil
}

func (s *batchSender) flush() error {
	rest := s.messages[:s.n]
	s.n = 0
	for len(rest) > 0 {
		n, err := s.conn.WriteBatch(rest, 0)
		if err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}
