package stack

import (
	"cmp"
	"iter"
	"log/slog"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/internal/hostnet"
)

// Socket is one TCP or UDP socket as ss of iproute2 shows it. The JSON names are stable.
type Socket struct {
	Network string `json:"network"` // tcp or udp
	State   string `json:"state"`   // LISTEN, ESTAB, TIME-WAIT ... as ss prints them
	// RecvQ and SendQ are bytes: received and not read; written and not acknowledged. Of a
	// listener they are connections: not accepted yet, and the most of these. SendQ of a UDP
	// socket is 0: datagrams go out at once. Of datagrams that wait in netstack, as those do that
	// were fragmented, RecvQ has the first only.
	RecvQ int `json:"recv_q"`
	SendQ int `json:"send_q"`
	// Local and Remote are the ends; the address is unspecified (0.0.0.0, ::) for any, and the
	// port of Remote 0 where there is no peer.
	Local  netip.AddrPort `json:"local"`
	Remote netip.AddrPort `json:"remote"`
	// Drops are datagrams for which the receive buffer had no room, on a UDP socket.
	Drops uint64 `json:"drops,omitempty"`
	// Kernel says that it is a connection of the kernel's, which has come to a listener of ours
	// otherwise than by our netdev (Config.Host).
	Kernel bool     `json:"kernel,omitempty"`
	TCP    *TCPInfo `json:"tcp,omitempty"` // of a connection
}

// TCPInfo holds what ss -i prints of a connection. Durations are nanoseconds in JSON.
type TCPInfo struct {
	Congestion string        `json:"congestion"`
	RTO        time.Duration `json:"rto_ns"`
	RTT        time.Duration `json:"rtt_ns"` // smoothed; 0: not measured yet
	RTTVar     time.Duration `json:"rttvar_ns"`
	MSS        int           `json:"mss"`      // bytes of payload per segment sent
	Cwnd       int           `json:"cwnd"`     // segments
	Ssthresh   int           `json:"ssthresh"` // segments
	Unacked    int           `json:"unacked"`  // segments in flight
	SegsOut    uint64        `json:"segs_out"`
	SegsIn     uint64        `json:"segs_in"`
	Retrans    uint64        `json:"retrans"` // segments sent again since the connection began
	// What was agreed on in the handshake: timestamps and SACK, and by how many bits the windows
	// that we get and give are shifted.
	Timestamps bool `json:"timestamps"`
	SACK       bool `json:"sack"`
	SndWscale  int  `json:"snd_wscale"`
	RcvWscale  int  `json:"rcv_wscale"`
	// Bytes written and acknowledged, and received in order, since the connection began. They are
	// known while the program has the connection open, and 0 after its Close.
	BytesAcked    uint64 `json:"bytes_acked"`
	BytesReceived uint64 `json:"bytes_received"`
	// SndWnd gives the bytes that the peer has room for, as it said last, and SndBuf those that the
	// program may have written and not acknowledged.
	SndWnd int `json:"snd_wnd"`
	SndBuf int `json:"snd_buf"`
}

// openConns has the connections and UDP sockets that the program holds. Its mutex is held for an
// entry or a lookup, and for a copy of all connections, which are in a list: a table would take
// three times the memory.
type openConns struct {
	net         *gstack.Stack
	failedDials atomic.Uint64
	mu          sync.Mutex // guards all, and the places of the connections in the list
	first       *TCPConn
	count       int
	udp         map[tcpip.Endpoint]*UDPConn

	starts slowStarts
	paced  pacedConns
}

// endpoints yields the TCP endpoints that netstack has at the time of the call, and their states.
func (o *openConns) endpoints() iter.Seq2[*tcp.Endpoint, tcp.EndpointState] {
	all := o.net.RegisteredEndpoints()
	return func(yield func(*tcp.Endpoint, tcp.EndpointState) bool) {
		for _, ep := range all {
			if t, ok := ep.(*tcp.Endpoint); ok && !yield(t, tcp.EndpointState(t.State())) {
				return
			}
		}
	}
}

// peers returns the addresses of own, and those of connections and connected UDP sockets. One that
// has only asked for a connection is none.
func (o *openConns) peers(own []netip.Prefix) (all []netip.Addr) {
	for _, p := range own {
		all = append(all, p.Addr())
	}
	for _, ep := range o.net.RegisteredEndpoints() {
		has, ok := ep.(tcpip.Endpoint)
		if !ok {
			continue
		}
		if t, ok := ep.(*tcp.Endpoint); ok {
			switch tcp.EndpointState(t.State()) {
			case tcp.StateListen, tcp.StateSynRecv, tcp.StateClose, tcp.StateError:
				continue
			}
		}
		info, ok := has.Info().(*gstack.TransportEndpointInfo)
		if !ok || info.ID.RemotePort == 0 {
			continue
		}
		if a, ok := netip.AddrFromSlice(info.ID.RemoteAddress.AsSlice()); ok {
			all = append(all, a)
		}
	}
	return all
}

func (o *openConns) add(c *TCPConn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c.next = o.first; c.next != nil {
		c.next.prev = c
	}
	o.first = c
	o.count++
}

func (o *openConns) remove(c *TCPConn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c.next != nil {
		c.next.prev = c.prev
	}
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		o.first = c.next
	}
	c.next, c.prev = nil, nil
	o.count--
}

// streams returns the connections by endpoint, as of now.
func (o *openConns) streams() map[tcpip.Endpoint]*TCPConn {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := make(map[tcpip.Endpoint]*TCPConn, o.count)
	for c := o.first; c != nil; c = c.next {
		all[c.ep] = c
	}
	return all
}

func (o *openConns) addUDP(c *UDPConn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.udp == nil {
		o.udp = map[tcpip.Endpoint]*UDPConn{}
	}
	o.udp[c.ep] = c
}

func (o *openConns) removeUDP(c *UDPConn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.udp, c.ep)
}

// socket returns the UDP socket of an endpoint, or nil.
func (o *openConns) socket(ep tcpip.Endpoint) *UDPConn {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.udp[ep]
}

// Sockets lists every TCP and UDP socket, in the order listeners first, then by local and remote
// address. It may be called at any time, from any goroutine, and lets others run in between: with
// 10,000 connections it takes tens of milliseconds. It takes each socket's lock for a moment; the
// values of one socket belong together, those of different sockets need not. With Config.Host those
// are listed as well that the kernel has accepted for us, see Socket.Kernel; what it has dialled
// for us is not.
func (s *Stack) Sockets() []Socket {
	r := socketReader{stack: s, fields: s.fields}
	return r.sorted(r.read())
}

// socketReader reads sockets for one caller. It has what would be allocated for each of them.
type socketReader struct {
	stack  *Stack
	conns  map[tcpip.Endpoint]*TCPConn // those that the program holds
	fields tcpFields
	info   tcpip.TCPInfoOption
	cc     tcpip.CongestionControlOption
	steps  int
}

// socketSteps gives the steps of a microsecond or less after which others may run: data waits for
// less than it would for one more batch of frames.
const socketSteps = 64

// step lets others run now and then.
func (r *socketReader) step() {
	if r.steps++; r.steps%socketSteps == 0 {
		runtime.Gosched()
	}
}

// read reads all sockets, in netstack's order.
func (r *socketReader) read() []Socket {
	s := r.stack
	eps := s.net.RegisteredEndpoints()
	r.conns = s.conns.streams()
	seen := make(map[gstack.TransportEndpoint]struct{}, len(eps))
	infos := make([]TCPInfo, len(eps))
	all := slices.Grow(s.host.conns(), len(eps))
	for i, ep := range eps {
		r.step()
		if _, twice := seen[ep]; twice { // once for each version of IP
			continue
		}
		seen[ep] = struct{}{}
		switch ep := ep.(type) {
		case *tcp.Endpoint:
			all = append(all, r.tcpSocket(ep, &infos[i]))
		case tcpip.Endpoint:
			if so, ok := s.conns.udpSocket(ep); ok {
				all = append(all, so)
			}
		}
	}
	return all
}

// sorted returns all in their order.
func (r *socketReader) sorted(all []Socket) []Socket {
	places := make([]*Socket, len(all))
	for i := range all {
		places[i] = &all[i]
	}
	slices.SortFunc(places, func(a, b *Socket) int {
		r.step()
		if c := cmp.Or(cmp.Compare(a.Network, b.Network),
			cmp.Compare(order(a), order(b))); c != 0 {
			return c
		}
		if c := a.Local.Compare(b.Local); c != 0 {
			return c
		}
		return a.Remote.Compare(b.Remote)
	})
	sorted := make([]Socket, len(all))
	for i, so := range places {
		sorted[i] = *so
	}
	return sorted
}

// order puts listeners before connections.
func order(s *Socket) int {
	if s.State == "LISTEN" {
		return 0
	}
	return 1
}

// udpSocket describes a UDP endpoint; ok is false of endpoints of other kinds.
func (o *openConns) udpSocket(ep tcpip.Endpoint) (so Socket, ok bool) {
	conn := o.socket(ep)
	if conn == nil {
		return so, false
	}
	queued, _ := ep.GetSockOptInt(tcpip.ReceiveQueueSizeOption)
	so = Socket{Network: "udp", State: "UNCONN",
		RecvQ: queued + int(conn.rxq.charged.Load()),
		Local: conn.laddr.AddrPort(), Remote: anyPort(conn.laddr.AddrPort().Addr())}
	if conn.raddr != nil {
		so.State, so.Remote = "ESTAB", conn.raddr.AddrPort()
	}
	if st, is := ep.Stats().(*tcpip.TransportEndpointStats); is {
		so.Drops = st.ReceiveErrors.ReceiveBufferOverflow.Value()
	}
	so.Drops += conn.rxq.dropped.Load()
	return so, true
}

// anyPort returns the unspecified address of a's version, with port 0.
func anyPort(a netip.Addr) netip.AddrPort {
	if a.Is4() || a.Is4In6() {
		return netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
}

// stateWords are ss's words for netstack's states, where they differ.
var stateWords = map[tcp.EndpointState]string{
	tcp.StateInitial: "UNCONN", tcp.StateBound: "UNCONN", tcp.StateClose: "UNCONN",
	tcp.StateError: "UNCONN", tcp.StateConnecting: "SYN-SENT", tcp.StateSynRecv: "SYN-RECV",
	tcp.StateEstablished: "ESTAB", tcp.StateFinWait1: "FIN-WAIT-1", tcp.StateFinWait2: "FIN-WAIT-2",
}

// tcpSocket describes a TCP endpoint. info is where its Socket.TCP is put.
func (r *socketReader) tcpSocket(ep *tcp.Endpoint, info *TCPInfo) Socket {
	state := tcp.EndpointState(ep.State())
	so := Socket{Network: "tcp", State: stateWords[state]}
	if so.State == "" {
		so.State = state.String()
	}
	so.SendQ = r.fields.read(ep, &so, info)
	if state == tcp.StateListen {
		so.RecvQ, so.SendQ = r.stack.listeners.waitingFor(ep)
		return so
	}
	so.RecvQ, _ = ep.GetSockOptInt(tcpip.ReceiveQueueSizeOption)
	r.options(ep, info)
	so.TCP = info
	if conn, open := r.conns[ep]; open {
		info.BytesAcked = less(conn.written.Load(), uint64(so.SendQ))
		info.BytesReceived = conn.received.Load() + uint64(so.RecvQ)
	}
	return so
}

// endOf returns one end of an endpoint. Netstack has no address for any.
func endOf(info *gstack.TransportEndpointInfo, a tcpip.Address, port uint16) netip.AddrPort {
	if a.Len() > 0 {
		return netip.AddrPortFrom(fromAddress(a), port)
	}
	if info.NetProto == ipv6Protocol {
		return netip.AddrPortFrom(netip.IPv6Unspecified(), port)
	}
	return netip.AddrPortFrom(netip.IPv4Unspecified(), port)
}

// options reads what netstack tells of a connection.
func (r *socketReader) options(ep *tcp.Endpoint, i *TCPInfo) {
	r.cc = ""
	ep.GetSockOpt(&r.info)
	ep.GetSockOpt(&r.cc)
	st := ep.Stats().(*tcp.Stats)
	i.Congestion = string(r.cc)
	i.RTO, i.RTT, i.RTTVar = r.info.RTO, r.info.RTT, r.info.RTTVar
	i.Cwnd, i.Ssthresh = int(r.info.SndCwnd), int(r.info.SndSsthresh)
	i.SegsOut, i.SegsIn = st.SegmentsSent.Value(), st.SegmentsReceived.Value()
	i.Retrans = st.SendErrors.Retransmits.Value()
	i.SndBuf = int(ep.SocketOptions().GetSendBufferSize())
}

// tcpFields holds the places of netstack's fields that it has no option for. To look for one by its
// name takes a hundred times as long as to read it. Another version of gVisor than that of our
// go.mod may have named one differently: it then reads as 0.
type tcpFields struct {
	timestamps, sack, snd, rcv, queue fieldPlace // of tcp.Endpoint
	sndWscale, mss, outstanding       fieldPlace // of tcp.sender
	ssthresh, cwnd, cc                fieldPlace // of tcp.sender
	finSent, sndUna, sndNxt, sndWnd   fieldPlace // of tcp.sender
	rcvWscale                         fieldPlace // of tcp.receiver
	used                              fieldPlace // of tcp.sndQueueInfo
	scoreboard                        fieldPlace // of tcp.Endpoint
	ranges                            fieldPlace // of tcp.SACKScoreboard
	rangeCount                        fieldPlace // of its btree.BTreeG
	recovery                          fieldPlace // of tcp.sender
	highRxt, active, last             fieldPlace // of tcp.TCPFastRecoveryState
	writeList, state                  fieldPlace // of tcp.sender
	segments, firstSegment            fieldPlace // of tcp.protectedWriteList, of its list
	packet, seq, sentTimes, lost      fieldPlace // of tcp.segment
	nextSegment                       fieldPlace // of tcp.segment

	missing []string // type and name of those that are not there
}

// findTCPFields looks for the fields of ep, which is the type of a tcp.Endpoint.
func findTCPFields(ep reflect.Type) (f tcpFields) {
	place := func(of reflect.Type, name string, kinds ...reflect.Kind) (at fieldPlace) {
		if of != nil && of.Kind() == reflect.Struct {
			if field, ok := of.FieldByName(name); ok && slices.Contains(kinds, field.Type.Kind()) {
				return fieldPlace{field.Index, field.Type}
			}
			name = of.Name() + "." + name
		}
		f.missing = append(f.missing, name)
		return at
	}
	number := []reflect.Kind{reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64}
	f.timestamps = place(ep, "SendTSOk", reflect.Bool)
	f.sack = place(ep, "SACKPermitted", reflect.Bool)
	f.snd = place(ep, "snd", reflect.Pointer)
	f.rcv = place(ep, "rcv", reflect.Pointer)
	f.queue = place(ep, "sndQueueInfo", reflect.Struct)
	snd := f.snd.pointsTo()
	f.sndWscale = place(snd, "SndWndScale", number...)
	f.mss = place(snd, "MaxPayloadSize", number...)
	f.outstanding = place(snd, "Outstanding", number...)
	f.ssthresh, f.cwnd = place(snd, "Ssthresh", reflect.Int), place(snd, "SndCwnd", reflect.Int)
	f.cc = place(snd, "cc", reflect.Interface)
	f.finSent = place(snd, "finSent", reflect.Bool)
	f.sndUna, f.sndNxt = place(snd, "SndUna", number...), place(snd, "SndNxt", number...)
	f.sndWnd = place(snd, "SndWnd", number...)
	f.rcvWscale = place(f.rcv.pointsTo(), "RcvWndScale", number...)
	f.used = place(f.queue.kind, "SndBufUsed", number...)
	f.scoreboard = place(ep, "scoreboard", reflect.Pointer)
	f.ranges = place(f.scoreboard.pointsTo(), "ranges", reflect.Pointer)
	f.rangeCount = place(f.ranges.pointsTo(), "length", reflect.Int)
	f.recovery = place(snd, "FastRecovery", reflect.Struct)
	f.highRxt = place(f.recovery.kind, "HighRxt", number...)
	f.active = place(f.recovery.kind, "Active", reflect.Bool)
	f.last = place(f.recovery.kind, "Last", number...)
	f.state = place(snd, "state", number...)
	f.writeList = place(snd, "writeList", reflect.Struct)
	f.segments = place(f.writeList.kind, "writeList", reflect.Struct)
	f.firstSegment = place(f.segments.kind, "head", reflect.Pointer)
	segment := f.firstSegment.pointsTo()
	f.packet = place(segment, "pkt", reflect.Pointer)
	f.seq = place(segment, "sequenceNumber", number...)
	f.sentTimes = place(segment, "xmitCount", number...)
	f.lost = place(segment, "lost", reflect.Bool)
	f.nextSegment = place(segment, "next", reflect.Pointer)
	return f
}

// report logs what is missing, in one line.
func (f *tcpFields) report(log *slog.Logger) {
	if len(f.missing) > 0 {
		log.Warn("this version of gVisor lacks fields of TCP connections: ss shows 0 for them, "+
			"a closed connection may wait for its peer's FIN longer, and slow start begins with "+
			"ten segments after a pause; use the version in the go.mod of rdma-netstack",
			"fields", strings.Join(f.missing, " "))
	}
}

// fieldPlace is where a struct has a field. The zero value is nowhere: it reads as 0.
type fieldPlace struct {
	index []int
	kind  reflect.Type
}

// pointsTo returns the type that the field points to; nil: there is no such field.
func (p fieldPlace) pointsTo() reflect.Type {
	if p.kind == nil {
		return nil
	}
	return p.kind.Elem()
}

// in returns the field of v, a struct; the zero Value where there is none.
func (p fieldPlace) in(v reflect.Value) reflect.Value {
	if p.index == nil || !v.IsValid() {
		return reflect.Value{}
	}
	field, err := v.FieldByIndexErr(p.index)
	if err != nil {
		return reflect.Value{}
	}
	return field
}

// target returns what the field of v points to; the zero Value where it is nil.
func (p fieldPlace) target(v reflect.Value) reflect.Value {
	if v = p.in(v); !v.IsValid() {
		return v
	}
	return v.Elem()
}

func (p fieldPlace) bool(v reflect.Value) bool {
	v = p.in(v)
	return v.IsValid() && v.Bool()
}

func (p fieldPlace) int(v reflect.Value) int {
	switch v = p.in(v); {
	case !v.IsValid():
		return 0
	case v.CanUint():
		return int(v.Uint())
	}
	return int(v.Int())
}

// read sets the ends of a socket, and of i the segment size, the number of segments in flight and
// what was agreed on. It returns how many bytes are written and not acknowledged.
func (f *tcpFields) read(ep *tcp.Endpoint, so *Socket, i *TCPInfo) (unacked int) {
	ep.LockUser()
	defer ep.UnlockUser()
	setEnds(so, &ep.TransportEndpointInfo)
	v := reflect.ValueOf(ep).Elem()
	snd := f.snd.target(v)
	if !snd.IsValid() {
		return 0
	}
	i.Timestamps, i.SACK = f.timestamps.bool(v), f.sack.bool(v)
	i.SndWscale, i.RcvWscale = f.sndWscale.int(snd), f.rcvWscale.int(f.rcv.target(v))
	i.MSS = f.mss.int(snd)
	i.Unacked, i.SndWnd = max(0, f.outstanding.int(snd)), f.sndWnd.int(snd)
	return max(0, f.used.int(f.queue.in(v)))
}

// segmentSize returns how many bytes of payload a segment of a connection holds; 0 where that is
// not known.
func (f *tcpFields) segmentSize(e tcpip.Endpoint) int {
	ep, ok := e.(*tcp.Endpoint)
	if !ok {
		return 0
	}
	ep.LockUser()
	defer ep.UnlockUser()
	return f.mss.int(f.snd.target(reflect.ValueOf(ep).Elem()))
}

// unsent returns how many bytes a connection has been given and not sent yet; 0 where it lacks a
// field that tells.
func (f *tcpFields) unsent(e tcpip.Endpoint) int {
	ep, ok := e.(*tcp.Endpoint)
	if !ok || f.sndUna.index == nil || f.sndNxt.index == nil {
		return 0
	}
	ep.LockUser()
	defer ep.UnlockUser()
	v := reflect.ValueOf(ep).Elem()
	snd := f.snd.target(v)
	inFlight := int(uint32(f.sndNxt.int(snd) - f.sndUna.int(snd)))
	return max(0, f.used.int(f.queue.in(v))-inFlight)
}

// finAcked reports whether the peer has acknowledged a connection's FIN. False where a field that
// tells is missing.
func (f *tcpFields) finAcked(ep *tcp.Endpoint) bool {
	ep.LockUser()
	defer ep.UnlockUser()
	snd := f.snd.target(reflect.ValueOf(ep).Elem())
	return f.sndUna.index != nil && f.sndNxt.index != nil && f.finSent.bool(snd) &&
		f.sndUna.int(snd) == f.sndNxt.int(snd)
}

// moreRanges says how many ranges of what SACK reports a connection keeps besides netstack's 100:
// those of a window and queue of 4,200 packets of which each second one is lost.
const moreRanges = 2000

// keepRanges makes a connection keep moreRanges more of the ranges that SACK reports, until
// keepFewRanges or its next timeout. kept is what the call before returned, or nil. It lowers the
// count that netstack compares with its bound; with 2,000 ranges, where that is 0, SACK counts for
// nothing until there is one more or less.
//
// netstack keeps 100 ranges: of more it learns nothing, not even that one of those has grown. Where
// slow start has filled a queue each second frame is lost, a thousand of them. What is beyond those
// ranges counts as in flight, more than the window holds: nothing is sent until the timeout.
//
// Upstream: docs/upstream/38-sack-ranges.md. No longer needed when TestSACKRanges of
// tests/conformance/upstream fails.
func (f *tcpFields) keepRanges(ep *tcp.Endpoint, kept sackRanges) sackRanges {
	ep.LockUser()
	defer ep.UnlockUser()
	tree, count := f.rangesOf(ep)
	if !count.IsValid() || tree == kept {
		return kept
	}
	count.SetInt(count.Int() - moreRanges)
	return tree
}

// keepFewRanges undoes what keepRanges has done, which returned kept.
func (f *tcpFields) keepFewRanges(ep *tcp.Endpoint, kept sackRanges) {
	ep.LockUser()
	defer ep.UnlockUser()
	if tree, count := f.rangesOf(ep); count.IsValid() && tree == kept {
		count.SetInt(count.Int() + moreRanges)
	}
}

// sackRanges identifies the ranges that a connection keeps: a timeout begins new ones.
type sackRanges any

// rangesOf returns the ranges that a connection keeps, and netstack's count of them, which is the
// zero Value where it has none. The connection's lock is held.
func (f *tcpFields) rangesOf(ep *tcp.Endpoint) (tree sackRanges, count reflect.Value) {
	at := f.ranges.in(f.scoreboard.target(reflect.ValueOf(ep).Elem()))
	if !at.IsValid() || at.IsNil() || f.rangeCount.index == nil {
		return nil, count
	}
	return writable(at).Interface(), writable(f.rangeCount.in(at.Elem()))
}

// setThreshold makes a connection grow its window by slow start up to so many segments. It reports
// whether the field is there.
func (f *tcpFields) setThreshold(ep *tcp.Endpoint, segments int) bool {
	ep.LockUser()
	defer ep.UnlockUser()
	at := f.ssthresh.in(f.snd.target(reflect.ValueOf(ep).Elem()))
	if at.IsValid() {
		writable(at).SetInt(int64(segments))
	}
	return at.IsValid()
}

// growCubic gives a connection whose window is full, outside of slow start, the window that CUBIC
// has now.
func (f *tcpFields) growCubic(ep *tcp.Endpoint, now tcpip.MonotonicTime) {
	ep.LockUser()
	defer ep.UnlockUser()
	snd := f.snd.target(reflect.ValueOf(ep).Elem())
	at, cubic := f.cwnd.in(snd), f.cubicIn(snd)
	if !at.IsValid() || cubic == nil {
		return
	}
	if cwnd := int(at.Int()); f.outstanding.int(snd) >= cwnd && f.ssthresh.int(snd) <= cwnd {
		writable(at).SetInt(int64(cubicWindow(cubic, now.Sub(cubic.T), cwnd)))
	}
}

// beginEpoch lets CUBIC's window grow as after the last loss. netstack counts the time in which a
// connection rests, or has less to write than its window: CUBIC then has the window of minutes of
// growth, and all that there is to send goes at once.
//
// Upstream: docs/upstream/34-cubic-idle.md. No longer needed when TestCubicIdle of
// tests/conformance/upstream fails.
func (f *tcpFields) beginEpoch(ep *tcp.Endpoint, now tcpip.MonotonicTime) {
	ep.LockUser()
	defer ep.UnlockUser()
	if cubic := f.cubicIn(f.snd.target(reflect.ValueOf(ep).Elem())); cubic != nil {
		cubic.T = now
	}
}

// cubicIn returns the state of a sender's CUBIC; nil: it has none.
func (f *tcpFields) cubicIn(snd reflect.Value) *tcp.TCPCubicState {
	cc := f.cc.target(snd)
	if cc.Kind() != reflect.Pointer {
		return nil
	}
	state := fieldOf(cc.Elem(), "TCPCubicState", reflect.Struct)
	if !state.IsValid() {
		return nil
	}
	cubic, _ := writable(state).Addr().Interface().(*tcp.TCPCubicState)
	return cubic
}

func setEnds(so *Socket, info *gstack.TransportEndpointInfo) {
	so.Local = endOf(info, info.ID.LocalAddress, info.ID.LocalPort)
	so.Remote = endOf(info, info.ID.RemoteAddress, info.ID.RemotePort)
}

func kernelSocket(c hostnet.Conn) Socket {
	return Socket{Network: "tcp", State: c.State, RecvQ: c.RecvQ, SendQ: c.SendQ, Local: c.Local,
		Remote: c.Remote, Kernel: true, TCP: &TCPInfo{RTO: c.RTO, RTT: c.RTT, RTTVar: c.RTTVar,
			MSS: c.MSS, Cwnd: c.Cwnd, Ssthresh: c.Ssthresh, Unacked: c.Unacked, SegsOut: c.SegsOut,
			SegsIn: c.SegsIn, Retrans: c.Retrans, Timestamps: c.Timestamps, SACK: c.SACK,
			SndWscale: c.SndWscale, RcvWscale: c.RcvWscale, BytesAcked: c.BytesAcked,
			BytesReceived: c.BytesReceived}}
}

// conns returns the connections that the kernel has accepted at ports of ours. A nil host has none.
func (h *host) conns() (all []Socket) {
	if h == nil {
		return nil
	}
	for _, c := range h.Conns() {
		all = append(all, kernelSocket(c))
	}
	return all
}
