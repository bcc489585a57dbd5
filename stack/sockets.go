package stack

import (
	"cmp"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
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

// TCPInfo is what ss -i prints of a connection. Durations are nanoseconds in JSON.
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
}

// openConns has the connections and UDP sockets that the program holds. Its mutex is held for an
// entry or a lookup, and for a copy of all connections, which are in a list: a table would take
// three times the memory.
type openConns struct {
	mu    sync.Mutex // guards all, and the places of the connections in the list
	first *TCPConn
	count int
	udp   map[tcpip.Endpoint]*UDPConn
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

// streams is the connections by endpoint, as of now.
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

// socket is the UDP socket of an endpoint, or nil.
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
	r := socketReader{stack: s, fields: newTCPFields()}
	all := r.read()
	waiting(all)
	all = r.sorted(all)
	for i := range all {
		if all[i].State == notAccepted {
			all[i].State = "ESTAB"
		}
	}
	return all
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

// socketSteps are the steps of a microsecond or less after which others may run: data waits for
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
			if so, ok := s.udpSocket(ep); ok {
				all = append(all, so)
			}
		}
	}
	return all
}

// sorted is all in their order.
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

// notAccepted is the state of connections that no Accept has returned, until they are counted.
const notAccepted = "ESTAB, not accepted"

// waiting counts the connections that wait for Accept, for each listener.
func waiting(all []Socket) {
	for i := range all {
		l := &all[i]
		if l.State != "LISTEN" {
			continue
		}
		for i := range all {
			c := &all[i]
			if c.State == notAccepted && c.Local.Port() == l.Local.Port() &&
				(l.Local.Addr().IsUnspecified() || l.Local.Addr() == c.Local.Addr()) {
				l.RecvQ++
			}
		}
	}
}

// udpSocket describes a UDP endpoint; ok is false of endpoints of other kinds.
func (s *Stack) udpSocket(ep tcpip.Endpoint) (so Socket, ok bool) {
	conn := s.conns.socket(ep)
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

// anyPort is the unspecified address of a's version, with port 0.
func anyPort(a netip.Addr) netip.AddrPort {
	if a.Is4() || a.Is4In6() {
		return netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
}
