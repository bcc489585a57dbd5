package stack

import (
	"encoding/binary"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

// TimestampFlags says what is stamped of the datagrams that a socket sends, and what is told of it:
// the flags of SO_TIMESTAMPING, with Linux's numbers (linux include/uapi/linux/net_tstamp.h).
type TimestampFlags uint32

const (
	// TimestampTxHardware asks for the NIC's stamp of each datagram: SOF_TIMESTAMPING_TX_HARDWARE.
	TimestampTxHardware TimestampFlags = 1 << 0
	// TimestampTxSoftware asks for the time at which each is handed to the NIC, or to the kernel:
	// SOF_TIMESTAMPING_TX_SOFTWARE. There is none beside the NIC's unless TimestampBoth is set.
	TimestampTxSoftware TimestampFlags = 1 << 1
	// TimestampSoftware reports stamps of software: SOF_TIMESTAMPING_SOFTWARE.
	TimestampSoftware TimestampFlags = 1 << 4
	// TimestampRawHardware reports the NIC's: SOF_TIMESTAMPING_RAW_HARDWARE.
	TimestampRawHardware TimestampFlags = 1 << 6
	// TimestampID numbers the datagrams that are stamped from 0 on: SOF_TIMESTAMPING_OPT_ID.
	TimestampID TimestampFlags = 1 << 7
	// TimestampOnly leaves the bytes of the datagram out: SOF_TIMESTAMPING_OPT_TSONLY.
	TimestampOnly TimestampFlags = 1 << 11
	// TimestampBoth gives both stamps, one behind the other: SOF_TIMESTAMPING_OPT_TX_SWHW.
	TimestampBoth TimestampFlags = 1 << 14

	timestampsTx    = TimestampTxHardware | TimestampTxSoftware
	timestampsKnown = timestampsTx | TimestampSoftware | TimestampRawHardware | TimestampID |
		TimestampOnly | TimestampBoth
)

// What a read of the error queue reports besides, as struct sock_extended_err {u32 errno; u8
// origin, type, code, pad; u32 info, data;} and the address of an offender: linux
// include/uapi/linux/errqueue.h, net/ipv4/ip_sockglue.c ip_recv_error, net/ipv6/datagram.c
// ipv6_recv_error.
const (
	typeReceiveError4, typeReceiveError6 = 11, 25 // IP_RECVERR of levelIP, IPV6_RECVERR of levelV6

	extendedError4, extendedError6 = 16 + 16, 16 + 28 // with sockaddr_in, sockaddr_in6
	originTimestamping             = 4
	noMessage                      = 42     // ENOMSG
	flagErrorQueue                 = 0x2000 // MSG_ERRQUEUE
)

// SetTransmitTimestamps asks for time stamps of what is sent from now on, as SO_TIMESTAMPING does;
// [UDPConn.ReadErrorQueue] returns them. 0 ends that. The receiving side is
// [UDPConn.SetReceiveTimestamps]. A control message SO_TIMESTAMPING of a write, with
// TimestampTxHardware and TimestampTxSoftware only, takes the place of these two for one datagram.
// Other flags of Linux's are EINVAL.
//
// The NIC's stamp is that of the completion, for which each datagram then has a descriptor of its
// own; its clock is compared with the system's as for [ReceiveTimestamps]. There is none on packet
// sockets and AF_XDP, where the device's clock is unknown, and for a datagram that is sent in
// fragments. Of a write with UDP_SEGMENT the first datagram is stamped, as on Linux. Datagrams that
// leave by a socket of the kernel's, with Config.Host, have no stamp. A datagram that is stamped
// takes longer to send than others do.
func (c *UDPConn) SetTransmitTimestamps(flags TimestampFlags) error {
	if flags&^timestampsKnown != 0 {
		return c.setError(os.NewSyscallError("setsockopt", syscall.EINVAL))
	}
	return c.set(func() {
		q := c.sentQueue()
		q.mu.Lock()
		defer q.mu.Unlock()
		if flags&^TimestampFlags(q.flags.Load())&TimestampID != 0 {
			q.next.Store(0)
		}
		q.flags.Store(uint32(flags))
	})
}

// ReadErrorQueue waits for the stamp of a datagram that was sent, see
// [UDPConn.SetTransmitTimestamps], until the read deadline. Each call returns one, as recvmsg with
// MSG_ERRQUEUE does, which however does not wait: in b the datagram with its Ethernet, IP and UDP
// headers, whose checksums may be missing, or nothing with TimestampOnly; in oob SCM_TIMESTAMPING,
// if its stamp is reported, and IP_RECVERR, or IPV6_RECVERR, with a struct sock_extended_err:
// ENOMSG, origin SO_EE_ORIGIN_TIMESTAMPING, and the number of the datagram in ee_data. flags has
// MSG_ERRQUEUE, MSG_TRUNC and MSG_CTRUNC. Stamps wait in a queue of the size of the receive buffer;
// those for which it has no room are counted in Stats.UDPStampsLost.
func (c *UDPConn) ReadErrorQueue(b, oob []byte) (n, oobn, flags int, err error) {
	if err := c.done(); err != nil {
		return 0, 0, 0, c.readError(err)
	}
	q := c.sentQueue()
	q.rd.mu.Lock()
	defer q.rd.mu.Unlock()
	for {
		if err := c.check(&q.rd); err != nil {
			return 0, 0, 0, c.readError(err)
		}
		if s, ok := q.takeOldest(); ok {
			n, oobn, flags = c.putStamp(b, oob, &s, TimestampFlags(q.flags.Load()))
			return n, oobn, flags, nil
		}
		q.rd.park()
	}
}

// putStamp writes what a read of the error queue returns.
func (c *UDPConn) putStamp(b, oob []byte, s *sentStamp, report TimestampFlags) (n, oobn,
	flags int) {
	flags = flagErrorQueue
	if n = copy(b, s.data); n < len(s.data) {
		flags |= syscall.MSG_TRUNC
	}
	w := controlWriter{b: oob}
	var data [timestampsLen]byte
	switch {
	case s.byNIC && report&TimestampRawHardware != 0:
		putTimespec(data[32:], s.at)
		w.putMessage(levelSocket, typeTimestamping, data[:])
	case !s.byNIC && report&TimestampSoftware != 0:
		putTimespec(data[:], s.at)
		w.putMessage(levelSocket, typeTimestamping, data[:])
	}
	clear(data[:])
	binary.NativeEndian.PutUint32(data[:], noMessage)
	data[4] = originTimestamping
	binary.NativeEndian.PutUint32(data[12:], s.id)
	if c.family == inet4 {
		w.putMessage(levelIP, typeReceiveError4, data[:extendedError4])
	} else {
		c.putSource(data[16:], s.data)
		w.putMessage(levelV6, typeReceiveError6, data[:extendedError6])
	}
	if w.truncated {
		flags |= syscall.MSG_CTRUNC
	}
	return n, w.n, flags
}

// putSource writes the source address of a packet as struct sockaddr_in6, which Linux names as the
// offender on sockets of IPv6.
func (c *UDPConn) putSource(to, packet []byte) {
	const internet6 = 10 // AF_INET6
	if len(packet) <= header.EthernetMinimumSize+header.IPv4MinimumSize {
		return
	}
	ip := packet[header.EthernetMinimumSize:]
	if ip[0]>>4 == 4 {
		copy(to[18:], "\xff\xff")
		copy(to[20:], ip[12:16])
	} else {
		from := tcpip.AddrFrom16Slice(ip[8:24])
		copy(to[8:], ip[8:24])
		if header.IsV6LinkLocalUnicastAddress(from) {
			binary.NativeEndian.PutUint32(to[24:], uint32(c.stack.zones.linkNumber()))
		}
	}
	binary.NativeEndian.PutUint16(to, internet6)
}

// sentStamp holds a stamp that waits to be read.
type sentStamp struct {
	at    int64 // nanoseconds since 1970
	byNIC bool
	id    uint32
	data  []byte // the packet from its Ethernet header on
}

// sentStamps represents the error queue of a socket that has asked for it.
type sentStamps struct {
	rd    ioSide
	flags atomic.Uint32 // TimestampFlags of the socket
	next  atomic.Uint32 // number of the next datagram that is stamped

	mu      sync.Mutex
	waiting []sentStamp // oldest first; guarded by mu
	charged int64       // for what waits; guarded by mu
}

// sentQueue returns the socket's, which the first call makes.
func (c *UDPConn) sentQueue() *sentStamps {
	if q := c.sentStamps.Load(); q != nil {
		return q
	}
	if c.sentStamps.CompareAndSwap(nil, new(sentStamps)) {
		q := c.sentStamps.Load()
		c.rd.copyDeadline(c.stack.clock, &q.rd)
		if c.closed.Load() {
			q.rd.stop()
		}
	}
	return c.sentStamps.Load()
}

// add queues a stamp, and reports whether there was room.
func (q *sentStamps) add(s sentStamp, room int64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.charged >= room {
		return false
	}
	q.charged += charge(len(s.data))
	q.waiting = append(q.waiting, s)
	return true
}

func (q *sentStamps) takeOldest() (s sentStamp, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		return s, false
	}
	s = q.waiting[0]
	q.charged -= charge(len(s.data))
	q.waiting[0] = sentStamp{}
	if q.waiting = q.waiting[1:]; len(q.waiting) == 0 {
		q.waiting = nil
	}
	return s, true
}

// wantedStamps returns which stamps the socket wants of what it sends.
func (c *UDPConn) wantedStamps() TimestampFlags {
	if q := c.sentStamps.Load(); q != nil {
		return TimestampFlags(q.flags.Load()) & timestampsTx
	}
	return 0
}

// applyTimestamping takes a control message SO_TIMESTAMPING.
func (o *sendOptions) applyTimestamping(m *controlMessage) syscall.Errno {
	if len(m.data) != 4 {
		return syscall.EINVAL
	}
	flags := TimestampFlags(binary.NativeEndian.Uint32(m.data))
	if flags&^timestampsTx != 0 {
		return syscall.EINVAL
	}
	o.stamps = flags
	return 0
}

// stampWish owns one packet whose stamps are wanted. It implements rdma.StampTaker.
type stampWish struct {
	conn  *UDPConn
	queue *sentStamps
	wants TimestampFlags
	data  []byte
	id    uint32
}

var _ rdma.StampTaker = (*stampWish)(nil)

// wishStamps returns the owner of a packet that is sent with o.
func (c *UDPConn) wishStamps(o *sendOptions) *stampWish {
	q := c.sentQueue()
	flags := TimestampFlags(q.flags.Load())
	w := &stampWish{conn: c, queue: q, wants: flags&^timestampsTx | o.stamps}
	if flags&TimestampID != 0 {
		w.id = q.next.Add(1) - 1
	}
	return w
}

// KUID implements tcpip.PacketOwner.
func (*stampWish) KUID() uint32 { return 0 }

// KGID implements tcpip.PacketOwner.
func (*stampWish) KGID() uint32 { return 0 }

// Posted implements rdma.StampTaker.
func (w *stampWish) Posted(frame [][]byte, byNIC bool) {
	w.notePosted(frame, byNIC, w.conn.stack.clock.Now())
}

// notePosted takes note of a packet that was handed on, no sooner than at.
func (w *stampWish) notePosted(frame [][]byte, byNIC bool, at time.Time) {
	byNIC = byNIC && w.wants&TimestampTxHardware != 0
	if w.wants&TimestampOnly == 0 {
		for _, b := range frame {
			w.data = append(w.data, b...)
		}
	}
	// linux net/core/skbuff.c __skb_tstamp_tx: not while the NIC's is to come
	if w.wants&TimestampTxSoftware != 0 && (!byNIC || w.wants&TimestampBoth != 0) {
		w.queueStamp(at, false)
	}
}

// Sent implements rdma.StampTaker.
func (w *stampWish) Sent(at time.Time) {
	if w.wants&TimestampTxHardware != 0 {
		w.queueStamp(at, true)
	}
}

func (w *stampWish) queueStamp(at time.Time, byNIC bool) {
	c := w.conn
	if c.closed.Load() {
		return
	}
	room := c.ep.SocketOptions().GetReceiveBufferSize()
	if !w.queue.add(sentStamp{at.UnixNano(), byNIC, w.id, w.data}, room) {
		c.stack.udp.stampsLost.Add(1)
		return
	}
	w.queue.rd.notify()
}

// writeStamped sends a packet whose stamps are wanted. The link stamps what it sends whole; what
// else leaves, or comes back to us, has the time at which it was written: after the write the peer
// may have it already.
func (c *UDPConn) writeStamped(r *gstack.Route, params gstack.NetworkHeaderParams, whole bool,
	pkt *gstack.PacketBuffer, o *sendOptions) tcpip.Error {
	w := c.wishStamps(o)
	byLink := c.stack.link != nil && whole && r.OutgoingNIC() == nicID &&
		r.Loop()&gstack.PacketOut != 0
	if byLink {
		pkt.Owner = w
	}
	at := c.stack.clock.Now()
	err := r.WritePacket(params, pkt)
	if err != nil || byLink {
		return err
	}
	var frame [][]byte
	if whole {
		frame = append(frame, pkt.ToView().AsSlice())
	}
	w.notePosted(frame, false, at)
	return nil
}
