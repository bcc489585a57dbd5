package rdma

import (
	"encoding/binary"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// Share says which of the received frames an endpoint takes while another process has its
// addresses, too, and receives the same frames: by packet sockets of its own, or by Steering.Relay
// of the one whose rings they come to. Each frame that one of them answers is taken by one of them:
// a TCP connection is the process's that has it in Steering.Flows or, of those that begin later, as
// socket.
type Share uint8

// The shares, of the process before (ShareNote, then ShareKeep) and of the newcomer that takes its
// place (ShareWatch, then ShareTake). ARP replies, ICMP errors, what neighbours and routers say of
// themselves and DHCP's answers go to both in each.
const (
	// ShareNote is everything but what is for no socket, which may be the newcomer's. Flows gets
	// the connections that begin.
	ShareNote Share = iota
	// ShareWatch is only what is for sockets of connections here. What begins a connection or is
	// for no connection goes to Send.
	ShareWatch
	// ShareKeep is only what is for Flows and the sockets of connections here, and datagrams to
	// ports that are not in Ports. What begins a connection anew that was one of Flows goes to
	// Send.
	ShareKeep
	// ShareTake is everything but what is for Flows or for no socket here.
	ShareTake
)

// Steering divides received frames between two processes with the same addresses.
type Steering struct {
	Share Share
	// Flows are those of the process before. Not used by ShareWatch.
	Flows *Flows
	// Ports are the UDP ports on which the newcomer receives, for ShareKeep. It is not changed.
	Ports map[uint16]bool
	// Send gives the other process, or a later moment, a frame in the form that Injector takes, at
	// once, or drops it and returns false. It keeps nothing of it. Workers call it, several at
	// once. Nil drops all.
	Send func(frame []byte) bool
	// Relay does what Send does, for what rings or AF_XDP receive and the other process does not:
	// unicast frames that are left to it or of interest to both. Nil drops them.
	Relay func(frame []byte) bool
}

// Steer divides frames from now on; nil ends that. A batch at hand may still be divided as before:
// see [Endpoint.Between].
func (e *Endpoint) Steer(s *Steering) { e.steering.Store(s) }

// steered reports whether a frame is for this endpoint.
func (w *worker) steered(frame []byte, l *hdr.Packet) bool {
	s := w.e.steering.Load()
	if s == nil {
		return true
	}
	a, flow := w.arrived(frame, l, s)
	if w.origin == originGiven && a.flow() { // the other process had it
		s.Flows.Remove(flow)
		return true
	}
	v := s.Share.decide(a)
	if v == left || a.kind == kindBoth {
		w.relay(frame, s)
	}
	switch {
	case v == taken:
		if s.Share == ShareNote && a.syn {
			s.Flows.note(flow)
		}
		return true
	case v == sent && w.send(frame, s) && s.Share == ShareKeep:
		s.Flows.Remove(flow) // from here on it is the other one's
	}
	return w.drop(dropSteered)
}

// Refuse drops what begins a TCP connection with a listener, from now on: the client tries again.
// Handshakes that have begun go on, and a port without a listener answers with a reset. A batch at
// hand may still be delivered.
func (e *Endpoint) Refuse() { e.refusing.Store(true) }

// refuses reports whether a frame is dropped as nothing may begin any more.
func (w *worker) refuses(frame []byte, l *hdr.Packet) bool {
	if !w.e.refusing.Load() || !l.IsTCP() {
		return false
	}
	s := hdr.Received(frame, l, w.e.flows.Key())
	if s.Flags()&(hdr.FlagSYN|hdr.FlagACK) != hdr.FlagSYN {
		return false
	}
	state, found := w.attachment.networks.Load().socket(l.EtherType, flowOf(frame, l))
	if !found || tcp.EndpointState(state) != tcp.StateListen {
		return false
	}
	return !w.drop(dropRefused)
}

// verdict says what becomes of a frame.
type verdict uint8

const (
	left  verdict = iota // to the other process, which has received it, too
	taken                // by this endpoint
	sent                 // to Steering.Send
)

// decide returns the whole rule.
func (s Share) decide(a arrival) verdict {
	switch {
	case a.kind == kindBoth:
		return taken
	case s == ShareNote:
		return takenIf(a.kind == kindSingle || a.socket != noSocket || a.syn)
	case s == ShareWatch:
		if a.flow() && (a.socket == connection || a.socket == timeWait) {
			return taken
		}
		return sentIf(a.kind != kindTCP || a.syn)
	case s == ShareTake:
		if a.kind == kindSingle {
			return taken
		}
		return takenIf(!a.listed && (a.syn || a.socket != noSocket))
	case a.kind == kindTCP:
		return a.keepSegment()
	default: // ShareKeep
		return takenIf(a.kind == kindUDP && (a.socket == connection ||
			a.socket == listening && !a.newcomers))
	}
}

// keepSegment is decide of a TCP segment for ShareKeep.
func (a arrival) keepSegment() verdict {
	switch {
	case a.socket == connection:
		return taken
	case a.listed && a.syn:
		return sent // it was; the client has begun anew
	default:
		return takenIf(a.listed)
	}
}

func takenIf(yes bool) verdict {
	if yes {
		return taken
	}
	return left
}

func sentIf(yes bool) verdict {
	if yes {
		return sent
	}
	return left
}

// arrival holds what decides whose a received frame is.
type arrival struct {
	kind      arrivalKind
	syn       bool // of a segment: it begins a connection
	socket    socketKind
	listed    bool // its flow is one of Steering.Flows
	newcomers bool // of a datagram: its port is one of Steering.Ports
}

type arrivalKind uint8

const (
	kindSingle arrivalKind = iota // of no flow: ARP and echo requests, to a group, fragments
	kindBoth                      // of interest to all who have the address
	kindTCP                       // of TCP
	kindUDP                       // of UDP
)

type socketKind uint8

const (
	noSocket socketKind = iota
	listening
	connection
	timeWait
)

func (a arrival) flow() bool { return a.kind == kindTCP || a.kind == kindUDP }

// arrived finds out what a frame is that has been parsed, and its flow if it has one.
func (w *worker) arrived(frame []byte, l *hdr.Packet, s *Steering) (a arrival, f Flow) {
	a.kind = arrivalKindOf(frame, l)
	if !a.flow() {
		return a, f
	}
	f = flowOf(frame, l)
	a.listed = s.Flows.Has(f)
	state, found := w.attachment.networks.Load().socket(l.EtherType, f)
	if a.kind == kindUDP {
		a.newcomers = s.Ports[f.LocalPort]
		a.socket = udpSocketKind(state, found)
	} else {
		a.syn = frame[l.L4+13]&(hdr.FlagSYN|hdr.FlagACK) == hdr.FlagSYN
		a.socket = tcpSocketKind(state, found)
	}
	return a, f
}

func tcpSocketKind(state uint32, found bool) socketKind {
	switch {
	case !found:
		return noSocket
	case tcp.EndpointState(state) == tcp.StateListen:
		return listening
	case tcp.EndpointState(state) == tcp.StateTimeWait:
		return timeWait
	}
	return connection
}

func udpSocketKind(state uint32, found bool) socketKind {
	switch {
	case !found:
		return noSocket
	case transport.DatagramEndpointState(state) == transport.DatagramEndpointStateConnected:
		return connection
	}
	return listening
}

const (
	typeARP  = 0x0806
	arpReply = 2
)

func arrivalKindOf(frame []byte, l *hdr.Packet) arrivalKind {
	switch {
	case l.EtherType == typeARP:
		if len(frame) >= hdr.EthLen+8 && binary.BigEndian.Uint16(frame[hdr.EthLen+6:]) == arpReply {
			return kindBoth
		}
	case l.IsTCP():
		return kindTCP
	case l.L4 == 0 || l.End-l.L4 < hdr.UDPLen:
	case l.Proto == hdr.ProtoUDP:
		switch binary.BigEndian.Uint16(frame[l.L4+2:]) {
		case 68, 546: // DHCP's clients: each knows its own answers
			return kindBoth
		}
		if frame[0]&1 == 0 { // not to a group
			return kindUDP
		}
	case l.Proto == hdr.ProtoICMP && isICMPError(frame[l.L4]),
		l.Proto == hdr.ProtoICMPv6 && concernsBothV6(frame[l.L4]):
		return kindBoth
	}
	return kindSingle
}

// isICMPError is true for what tells of a packet that was sent: unreachable, time exceeded,
// parameter problem (RFC 792).
func isICMPError(kind byte) bool { return kind == 3 || kind == 11 || kind == 12 }

// concernsBothV6 is true for errors (RFC 4443), router and neighbour advertisements (RFC 4861).
func concernsBothV6(kind byte) bool { return kind >= 1 && kind <= 4 || kind == 134 || kind == 136 }

// socket returns the state of the socket that netstack would give a segment or datagram of a flow
// to.
func (n *networks) socket(etherType uint16, f Flow) (state uint32, found bool) {
	ep, ok := n.endpoint(etherType, f).(interface{ State() uint32 })
	if !ok {
		return 0, false
	}
	return ep.State(), true
}

// endpoint returns that socket; nil: there is none.
func (n *networks) endpoint(etherType uint16, f Flow) gstack.TransportEndpoint {
	if n == nil {
		return nil
	}
	return n.stack.FindTransportEndpoint(tcpip.NetworkProtocolNumber(etherType),
		tcpip.TransportProtocolNumber(f.Proto), gstack.TransportEndpointID{
			LocalAddress: f.Local, LocalPort: f.LocalPort,
			RemoteAddress: f.Remote, RemotePort: f.RemotePort,
		}, n.nic)
}

// listens says whether anybody listens at the local end of f, be it for both versions of IP.
func (n *networks) listens(etherType uint16, f Flow) bool {
	for _, version := range []uint16{etherType, hdr.TypeIPv6} {
		state, found := n.socket(version, f)
		if found && tcp.EndpointState(state) == tcp.StateListen {
			return true
		}
	}
	return false
}

// Flow is a TCP connection or the flow of a connected UDP socket, seen from here. Addresses of IPv4
// have 4 bytes.
type Flow struct {
	Proto                 uint8 // of IP: 6 or 17
	Local, Remote         tcpip.Address
	LocalPort, RemotePort uint16
}

// Flows holds a set of flows. The zero value and nil are empty; its methods may be called at the
// same time.
type Flows struct {
	mu    sync.RWMutex
	all   map[Flow]struct{}
	noted int // by note
}

// maxNoted bounds what note adds: a flood of SYNs.
const maxNoted = 1 << 16

// Add adds a flow.
func (s *Flows) Add(f Flow) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(f)
}

func (s *Flows) add(f Flow) {
	if s.all == nil {
		s.all = map[Flow]struct{}{}
	}
	s.all[f] = struct{}{}
}

// note adds a flow that begins. Beyond maxNoted it does nothing.
func (s *Flows) note(f Flow) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.noted < maxNoted {
		s.noted++
		s.add(f)
	}
}

// Remove removes a flow, if it is there.
func (s *Flows) Remove(f Flow) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, f)
}

// Has says whether a flow is in the set.
func (s *Flows) Has(f Flow) bool {
	if s == nil {
		return false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, has := s.all[f]
	return has
}

// All returns the flows, in no order.
func (s *Flows) All() []Flow {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make([]Flow, 0, len(s.all))
	for f := range s.all {
		all = append(all, f)
	}
	return all
}

// flowOf returns the flow of a received TCP segment or datagram.
func flowOf(frame []byte, l *hdr.Packet) Flow {
	src, dst, size := l.L3+12, l.L3+16, 4
	if l.EtherType == hdr.TypeIPv6 {
		src, dst, size = l.L3+8, l.L3+24, 16
	}
	return Flow{
		Proto:      l.Proto,
		Local:      tcpip.AddrFromSlice(frame[dst:][:size]),
		Remote:     tcpip.AddrFromSlice(frame[src:][:size]),
		LocalPort:  binary.BigEndian.Uint16(frame[l.L4+2:]),
		RemotePort: binary.BigEndian.Uint16(frame[l.L4:]),
	}
}

// MaxSent gives the most bytes that one call of Steering.Send is given.
const MaxSent = 2 + 0xffff

// send gives a frame to the other process, or to a later moment, and reports whether it could.
func (w *worker) send(frame []byte, s *Steering) bool { return w.sendBy(frame, s.Send) }

// relay gives the other process a frame that only we have received.
func (w *worker) relay(frame []byte, s *Steering) {
	if w.only && w.origin <= originHeld && frame[0]&1 == 0 {
		w.sendBy(frame, s.Relay)
	}
}

func (w *worker) sendBy(frame []byte, send func(frame []byte) bool) bool {
	if send == nil {
		return false
	}
	if len(frame) <= 0xffff {
		w.away = binary.BigEndian.AppendUint16(w.away[:0], uint16(len(frame)))
		w.away = append(w.away, frame...)
		if send(w.away) {
			w.count.sentAway.Add(1)
			return true
		}
	}
	w.count.sentAwayLost.Add(1)
	return false
}

// origin says where a worker's frames come from.
type origin uint8

const (
	originQueue   origin = iota
	originHeld           // our own queues, earlier
	originRelayed        // the other process, which has received them
	originGiven          // likewise, and the flow is ours from here on
)

// Injector delivers frames that have come by Steering.Send or Relay. Any goroutine may call
// its methods.
type Injector struct {
	e *Endpoint
	w *worker // of the attachment delivered to last
}

// NewInjector makes an Injector, the only one of e, as long as it is not closed.
func (e *Endpoint) NewInjector() *Injector { return &Injector{e: e} }

// Deliver delivers frames that our own Send was given, one after the other, as if they were
// received now. The caller keeps the memory. Without an attachment, and after Endpoint.Close, they
// are dropped.
func (i *Injector) Deliver(frames []byte) { i.deliver(frames, originHeld) }

// Relayed is Deliver of frames that the other process's Relay was given. They are not relayed back.
func (i *Injector) Relayed(frames []byte) { i.deliver(frames, originRelayed) }

// Give is Relayed of frames that its Send was given: their flows are this endpoint's from here on.
func (i *Injector) Give(frames []byte) { i.deliver(frames, originGiven) }

func (i *Injector) deliver(frames []byte, from origin) {
	i.e.injecting.Lock()
	defer i.e.injecting.Unlock()
	if !i.attach() {
		return
	}
	w, n := i.w, 0
	w.origin = from
	for len(frames) >= 2 {
		size := int(binary.BigEndian.Uint16(frames))
		if frames = frames[2:]; size > len(frames) || size < minFrame {
			break // not of our making
		}
		p := dv.Packet{Data: frames[:size:size], Frame: dv.NoFrame, Flags: dv.RxL3OK | dv.RxL4OK}
		if w.vlan != 0 {
			p.Flags |= dv.RxVLAN
			p.VLAN = w.vlan
		}
		w.frames[n] = p
		frames = frames[size:]
		if n++; n == len(w.frames) {
			w.receive(n)
			n = 0
		}
	}
	if n > 0 {
		w.receive(n)
	}
	clear(w.frames[:])
}

// minFrame gives the shortest frame: an Ethernet header.
const minFrame = 14

// attach finds the attachment to deliver to; false: there is none.
func (i *Injector) attach() bool {
	e := i.e
	e.mu.Lock()
	s, g := e.attachment, e.workers
	e.mu.Unlock()
	if s == nil || s.stopped() {
		return false
	}
	kind := e.Backend() // of which held frames have come
	if i.w != nil && i.w.attachment == s {
		i.w.group, i.w.kind, i.w.only = g, kind, kind == BackendRings
		return true
	}
	i.release()
	w := &worker{e: e, attachment: s, group: g, q: noRxQueue{}, kind: kind,
		only: kind == BackendRings, count: e.injectedCounters(),
		vlan: e.vlan, merge: newMerger(batchFrames, e.flows, e.opts.Clock)}
	w.merge.off, w.chunks.off = e.opts.NoMerge, e.buffers.chunks != nil
	i.w = w
	return true
}

// receiveKept receives a frame that tcpfix has kept, anew.
func (e *Endpoint) receiveKept(frame []byte) {
	if len(frame) <= 0xffff {
		e.kept.Deliver(append(binary.BigEndian.AppendUint16(nil, uint16(len(frame))), frame...))
	}
}

func (i *Injector) release() {
	if i.w != nil {
		i.w.chunks.release()
		i.w.count.waiting.release()
		i.w = nil
	}
}

// Close frees what Deliver needed.
func (i *Injector) Close() {
	i.e.injecting.Lock()
	defer i.e.injecting.Unlock()
	i.release()
}

// injectedCounters returns those of the Injector.
func (e *Endpoint) injectedCounters() *rxCounters {
	if c := e.injected.Load(); c != nil {
		return c
	}
	c := new(rxCounters)
	c.waiting.random, c.waiting.off = e.random, e.buffers.marks != nil
	e.injected.Store(c)
	return c
}

// noRxQueue is the receive queue of an Injector: frames are the caller's.
type noRxQueue struct{}

func (noRxQueue) Index() int                                  { return 0 }
func (noRxQueue) Poll([]dv.Packet) int                        { return 0 }
func (noRxQueue) Segments(to [][]byte, _ *dv.Packet) [][]byte { return to }
func (noRxQueue) Release([]dv.Packet)                         {}
func (noRxQueue) Arm()                                        {}
func (noRxQueue) Wait() error                                 { return dv.ErrClosed }
func (noRxQueue) Wake()                                       {}

var _ rxQueue = noRxQueue{}
