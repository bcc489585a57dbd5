package stack

import (
	"cmp"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
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
		info.BytesAcked = subtract(conn.written.Load(), uint64(so.SendQ))
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
