package stack

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"syscall"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
)

// Netstack tells sockets of some ICMP errors only, and puts several codes into one. So the errors
// are read here, from what netstack's network layer has validated, and netstack's own are kept from
// its sockets: only TCP's path MTU is left to it. What each error means to a socket is Linux's
// choice (net/ipv4/icmp.c icmp_err_convert, net/ipv6/icmp.c icmpv6_err_convert):
//
//   - A connected UDP socket is told of those that Linux calls fatal. All others lose datagrams.
//   - A TCP dial fails at once, if the message is about its SYN.
//   - A TCP connection goes on. If it then gets no answer until it gives up, that is the error
//     instead of ETIMEDOUT (RFC 1122 section 4.2.3.9).
//
// A handshake that a client has begun is left alone, also where Linux gives it up: the sequence
// number of our SYN-ACK, which a forger does not know, is netstack's.

// Types of ICMP messages that are read here, of RFC 792 and RFC 4443 section 2.1.
const (
	icmp4Unreachable  = 3
	icmp4TimeExceeded = 11
	icmp4Parameter    = 12
	icmp4TooBig       = 4 // code of icmp4Unreachable
	icmp4Reassembly   = 1 // code of icmp4TimeExceeded
	icmp6Unreachable  = 1
	icmp6TooBig       = 2
	icmp6TimeExceeded = 3
	icmp6Parameter    = 4
	icmp6FirstInfo    = 128 // errors have lower types
	icmpHeaderLen     = 8   // of errors
	quotedPortsLen    = 8   // what is quoted at least of the transport header
)

// errnoNoNet is Linux's ENONET, which other systems lack.
const errnoNoNet = syscall.Errno(64)

// meaning holds what an error of ICMP means to a socket.
type meaning struct {
	errno syscall.Errno
	fatal bool // to connected UDP sockets
}

// unreachable4 and unreachable6 are the meanings of the codes of "destination unreachable".
var (
	unreachable4 = [...]meaning{
		0:  {syscall.ENETUNREACH, false},
		1:  {syscall.EHOSTUNREACH, false},
		2:  {syscall.ENOPROTOOPT, true},
		3:  {syscall.ECONNREFUSED, true},
		4:  {syscall.EMSGSIZE, false},
		5:  {syscall.EOPNOTSUPP, false},
		6:  {syscall.ENETUNREACH, true},
		7:  {syscall.EHOSTDOWN, true},
		8:  {errnoNoNet, true},
		9:  {syscall.ENETUNREACH, true},
		10: {syscall.EHOSTUNREACH, true},
		11: {syscall.ENETUNREACH, false},
		12: {syscall.EHOSTUNREACH, false},
		13: {syscall.EHOSTUNREACH, true},
		14: {syscall.EHOSTUNREACH, true},
		15: {syscall.EHOSTUNREACH, true},
	}
	unreachable6 = [...]meaning{
		0: {syscall.ENETUNREACH, false},
		1: {syscall.EACCES, true},
		2: {syscall.EHOSTUNREACH, false},
		3: {syscall.EHOSTUNREACH, false},
		4: {syscall.ECONNREFUSED, true},
		5: {syscall.EACCES, true},
		6: {syscall.EACCES, true},
	}
)

// icmpMessage is an error of ICMP about a packet of ours.
type icmpMessage struct {
	v6         bool
	kind, code byte
	mtu        int // the next hop's, of a message that a packet was too big
	protocol   tcpip.TransportProtocolNumber
	local      tcpip.Address // source of the packet that it is about
	remote     tcpip.Address
	// ports of the packet that it is about, and the sequence number, if that is a TCP segment
	localPort, remotePort uint16
	sequence              uint32
}

// parseICMP reads an error of ICMP, from its ICMP header on. It is not ok if the message is none,
// or quotes no first fragment with ports.
func parseICMP(v6 bool, b []byte) (m icmpMessage, ok bool) {
	if len(b) < icmpHeaderLen {
		return m, false
	}
	m.v6, m.kind, m.code = v6, b[0], b[1]
	quoted := b[icmpHeaderLen:]
	if v6 {
		if m.kind >= icmp6FirstInfo {
			return m, false
		}
		m.mtu = int(min(binary.BigEndian.Uint32(b[4:]), 1<<16))
		return m, m.quote6(quoted)
	}
	switch m.kind {
	case icmp4Unreachable, icmp4TimeExceeded, icmp4Parameter:
	default:
		return m, false
	}
	m.mtu = int(binary.BigEndian.Uint16(b[6:]))
	return m, m.quote4(quoted)
}

// quote4 reads the beginning of an IPv4 packet.
func (m *icmpMessage) quote4(b []byte) bool {
	if len(b) < header.IPv4MinimumSize || b[0]>>4 != 4 {
		return false
	}
	ip := header.IPv4(b)
	n := int(ip.HeaderLength())
	if n < header.IPv4MinimumSize || n > len(b) || ip.FragmentOffset() != 0 {
		return false
	}
	m.protocol = ip.TransportProtocol()
	m.local, m.remote = ip.SourceAddress(), ip.DestinationAddress()
	return m.quoteTransport(b[n:])
}

// quote6 reads the beginning of an IPv6 packet. Ours have no extension header but a fragment's.
func (m *icmpMessage) quote6(b []byte) bool {
	if len(b) < header.IPv6MinimumSize || b[0]>>4 != 6 {
		return false
	}
	ip := header.IPv6(b)
	m.protocol = tcpip.TransportProtocolNumber(ip.NextHeader())
	m.local, m.remote = ip.SourceAddress(), ip.DestinationAddress()
	b = b[header.IPv6MinimumSize:]
	if m.protocol == header.IPv6FragmentHeader {
		if len(b) < header.IPv6FragmentHeaderSize {
			return false
		}
		f := header.IPv6Fragment(b)
		if f.FragmentOffset() != 0 {
			return false
		}
		m.protocol = f.TransportProtocol()
		b = b[header.IPv6FragmentHeaderSize:]
	}
	return m.quoteTransport(b)
}

func (m *icmpMessage) quoteTransport(b []byte) bool {
	if len(b) < quotedPortsLen ||
		m.protocol != tcp.ProtocolNumber && m.protocol != udp.ProtocolNumber {
		return false
	}
	m.localPort, m.remotePort = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	m.sequence = binary.BigEndian.Uint32(b[4:])
	return true
}

// tooBig reports whether the message says that a packet was larger than a link's MTU.
func (m *icmpMessage) tooBig() bool {
	if m.v6 {
		return m.kind == icmp6TooBig
	}
	return m.kind == icmp4Unreachable && m.code == icmp4TooBig
}

// meaning returns what the message means to sockets; not ok: nothing. Of tooBig it is what a UDP
// socket is told, unless it fragments by [PathMTUDont].
func (m *icmpMessage) meaning() (e meaning, ok bool) {
	switch {
	case m.tooBig():
		return meaning{syscall.EMSGSIZE, true}, true
	case m.v6:
		return m.meaning6(), true
	case m.kind == icmp4Parameter:
		return meaning{syscall.EPROTO, true}, true
	case m.kind == icmp4TimeExceeded:
		return meaning{syscall.EHOSTUNREACH, false}, m.code != icmp4Reassembly
	case int(m.code) < len(unreachable4):
		return unreachable4[m.code], true
	}
	return e, false
}

func (m *icmpMessage) meaning6() meaning {
	switch {
	case m.kind == icmp6Unreachable && int(m.code) < len(unreachable6):
		return unreachable6[m.code]
	case m.kind == icmp6TimeExceeded:
		return meaning{syscall.EHOSTUNREACH, false}
	}
	return meaning{syscall.EPROTO, m.kind == icmp6Unreachable || m.kind == icmp6Parameter}
}

// network returns the version of IP of the packet that the message is about.
func (m *icmpMessage) network() tcpip.NetworkProtocolNumber {
	if m.v6 {
		return ipv6Protocol
	}
	return ipv4Protocol
}

// flow returns the connection that the message is about.
func (m *icmpMessage) flow() flow {
	return flow{m.local, m.remote, m.localPort, m.remotePort}
}

// icmpError describes an error that ICMP has told of, for netstack to keep until a socket asks for
// it.
type icmpError struct {
	tcpip.Error // none of netstack's has all errnos; this one is never looked at
	errno       syscall.Errno
	// of a TCP connection: its segments, and how many had come. One that came later is an answer,
	// which takes the error back.
	segments *tcpip.StatCounter
	before   uint64
}

// Number returns the errno that the socket reports.
func (e icmpError) Number() syscall.Errno {
	if e.segments != nil && e.segments.Value() != e.before {
		return syscall.ETIMEDOUT
	}
	return e.errno
}

// flow holds the ends of a TCP connection.
type flow struct {
	local, remote         tcpip.Address
	localPort, remotePort uint16
}

// dial is a TCP handshake of ours, from the first SYN on.
type dial struct {
	flow     flow
	sequence uint32        // of the SYN; guarded by icmpErrors.mu
	sent     bool          // the SYN; guarded by icmpErrors.mu
	errno    atomic.Uint32 // 0: no message has ended it
	failed   chan struct{} // capacity 1
}

// maxEarly bounds the SYNs whose dial has not asked for them yet. It does so at once; those that a
// program has netstack send by itself never do.
const maxEarly = 1024

// icmpErrors tells sockets what ICMP says of their packets.
type icmpErrors struct {
	stack   atomic.Pointer[Stack] // nil until it is built
	mtus    *pathMTUs
	dropped *tcpip.StatCounter // packets for one host in frames for several

	mu    sync.Mutex
	dials map[flow]*dial // guarded by mu
	early map[flow]*dial // SYNs that are not of dials, or not known to be; guarded by mu
}

func newICMPErrors(m *pathMTUs) *icmpErrors {
	return &icmpErrors{mtus: m, dropped: new(tcpip.StatCounter), dials: map[flow]*dial{},
		early: map[flow]*dial{}}
}

// dial returns the handshake of a flow, of which a SYN may have been sent. The caller calls ended
// after the last SYN.
func (e *icmpErrors) dial(f flow) *dial {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := e.early[f]
	if d == nil {
		d = newDial(f)
	}
	delete(e.early, f)
	e.dials[f] = d
	return d
}

func newDial(f flow) *dial { return &dial{flow: f, failed: make(chan struct{}, 1)} }

// ended forgets a handshake. Nil is none.
func (e *icmpErrors) ended(d *dial) {
	if d == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.dials, d.flow)
}

// sends takes note of a SYN that netstack sends to a host.
func (e *icmpErrors) sends(r *gstack.Route, pkt *gstack.PacketBuffer) {
	const handshake = header.TCPFlagSyn | header.TCPFlagAck
	h := header.TCP(pkt.TransportHeader().Slice())
	if len(h) < header.TCPMinimumSize || h.Flags()&handshake != header.TCPFlagSyn {
		return
	}
	e.note(flow{r.LocalAddress(), r.RemoteAddress(), h.SourcePort(), h.DestinationPort()},
		h.SequenceNumber())
}

// note remembers the sequence number of a flow's SYN.
func (e *icmpErrors) note(f flow, sequence uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := e.dials[f]
	if d == nil {
		for old := range e.early { // any one: map order is random
			if len(e.early) < maxEarly {
				break
			}
			delete(e.early, old)
		}
		d = newDial(f)
		e.early[f] = d
	}
	d.sequence, d.sent = sequence, true
}

// fail ends the handshake that m is about and reports whether there is one, also where m is not
// about its SYN and so does not end it.
func (e *icmpErrors) fail(m *icmpMessage, errno syscall.Errno) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := e.dials[m.flow()]
	if d == nil {
		d = e.early[m.flow()]
	}
	if d == nil {
		return false
	}
	if d.sent && m.sequence-d.sequence <= 1 && d.errno.CompareAndSwap(0, uint32(errno)) {
		env.Notify(d.failed)
	}
	return true
}

// received reads a packet of ICMP that is for this host.
func (e *icmpErrors) received(v6 bool, pkt *gstack.PacketBuffer) {
	s := e.stack.Load()
	b := pkt.TransportHeader().Slice()
	if s == nil || len(b) == 0 || v6 && b[0] >= icmp6FirstInfo {
		return
	}
	b = append(append([]byte(nil), b...), pkt.Data().AsRange().ToSlice()...)
	m, ok := parseICMP(v6, b)
	if !ok || m.local != intactFor(v6, pkt, b) || !s.owns(m.local) {
		return
	}
	e.tell(s, &m)
}

// intactFor returns the address that an ICMP message was sent to; none if its checksum is wrong.
func intactFor(v6 bool, pkt *gstack.PacketBuffer, icmp []byte) (to tcpip.Address) {
	if v6 {
		ip := header.IPv6(pkt.NetworkHeader().Slice())
		sum := header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: icmp,
			Src: ip.SourceAddress(), Dst: ip.DestinationAddress()})
		if header.ICMPv6(icmp).Checksum() == sum {
			to = ip.DestinationAddress()
		}
		return to
	}
	if header.ICMPv4Checksum(icmp, 0) == header.ICMPv4(icmp).Checksum() {
		to = header.IPv4(pkt.NetworkHeader().Slice()).DestinationAddress()
	}
	return to
}

// tell tells the socket whose packet m is about.
func (e *icmpErrors) tell(s *Stack, m *icmpMessage) {
	ep := s.net.FindTransportEndpoint(m.network(), m.protocol, gstack.TransportEndpointID{
		LocalAddress: m.local, LocalPort: m.localPort,
		RemoteAddress: m.remote, RemotePort: m.remotePort,
	}, nicID)
	switch ep := ep.(type) {
	case nil:
	case *tcp.Endpoint:
		e.tellTCP(ep, m)
	case tcpip.Endpoint:
		if c := s.conns.socket(ep); c != nil {
			e.tellUDP(c, m)
		}
	}
}

// tellTCP fails a dial, or leaves the error to a connection, which fails with it if no answer comes
// until it gives up.
func (e *icmpErrors) tellTCP(ep *tcp.Endpoint, m *icmpMessage) {
	connected := isConnected(tcp.EndpointState(ep.State()))
	switch what, ok := m.meaning(); {
	case !ok:
	case m.tooBig(): // netstack lowers the connection's own
		if connected {
			e.mtus.learn(m.remote, m.mtu)
		}
	case !connected && e.fail(m, what.errno):
	case connected:
		segments := &ep.Stats().(*tcp.Stats).SegmentsReceived
		ep.UpdateLastError(icmpError{Error: &tcpip.ErrHostUnreachable{}, errno: what.errno,
			segments: segments, before: segments.Value()})
	}
}

// isConnected reports whether a handshake is over and the connection is not.
func isConnected(s tcp.EndpointState) bool {
	switch s {
	case tcp.StateEstablished, tcp.StateFinWait1, tcp.StateFinWait2, tcp.StateCloseWait,
		tcp.StateLastAck, tcp.StateClosing:
		return true
	}
	return false
}

// tellUDP reports an error to a connected socket, and remembers the MTU of a path.
func (e *icmpErrors) tellUDP(c *UDPConn, m *icmpMessage) {
	what, ok := m.meaning()
	if m.tooBig() {
		if !c.hasSentTo(m) {
			return
		}
		e.mtus.learn(m.remote, m.mtu)
		ok = PathMTUDiscovery(c.discovery.Load()) != PathMTUDont
	}
	if ok && what.fatal && c.raddr != nil {
		c.ep.SocketOptions().SetLastError(icmpError{Error: &tcpip.ErrHostUnreachable{},
			errno: what.errno})
		c.rd.notify()
		c.wr.notify()
	}
}
