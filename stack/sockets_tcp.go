package stack

import (
	"net/netip"
	"reflect"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// stateWords are ss's words for netstack's states, where they differ.
var stateWords = map[tcp.EndpointState]string{
	tcp.StateInitial: "UNCONN", tcp.StateBound: "UNCONN", tcp.StateClose: "UNCONN",
	tcp.StateError: "UNCONN", tcp.StateConnecting: "SYN-SENT", tcp.StateSynRecv: "SYN-RECV",
	tcp.StateEstablished: "ESTAB", tcp.StateFinWait1: "FIN-WAIT-1", tcp.StateFinWait2: "FIN-WAIT-2",
}

// tcpSocket describes a TCP endpoint.
func (s *Stack) tcpSocket(ep *tcp.Endpoint) Socket {
	state := tcp.EndpointState(ep.State())
	so := Socket{Network: "tcp", State: stateWords[state]}
	if so.State == "" {
		so.State = state.String()
	}
	info := ep.Info().(*gstack.TransportEndpointInfo)
	so.Local = endOf(info, info.ID.LocalAddress, info.ID.LocalPort)
	so.Remote = endOf(info, info.ID.RemoteAddress, info.ID.RemotePort)
	if state == tcp.StateListen {
		so.SendQ = s.backlogOf(ep)
		return so
	}
	so.RecvQ, _ = ep.GetSockOptInt(tcpip.ReceiveQueueSizeOption)
	so.TCP = tcpInfo(ep)
	so.SendQ = so.TCP.unacked(ep)
	conn, open := s.conns.get(ep).(*TCPConn)
	switch {
	case open:
		so.TCP.BytesAcked = less(conn.written.Load(), uint64(so.SendQ))
		so.TCP.BytesReceived = conn.received.Load() + uint64(so.RecvQ)
	case state == tcp.StateEstablished:
		so.State = notAccepted
	}
	return so
}

// endOf is one end of an endpoint. Netstack has no address for any.
func endOf(info *gstack.TransportEndpointInfo, a tcpip.Address, port uint16) netip.AddrPort {
	if a.Len() > 0 {
		return netip.AddrPortFrom(fromAddress(a), port)
	}
	if info.NetProto == ipv6Protocol {
		return netip.AddrPortFrom(netip.IPv6Unspecified(), port)
	}
	return netip.AddrPortFrom(netip.IPv4Unspecified(), port)
}

// backlogOf is the most connections that wait for Accept.
func (s *Stack) backlogOf(ep *tcp.Endpoint) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.listeners {
		if l.ep == ep {
			return l.backlog
		}
	}
	return 0
}

// tcpInfo reads what netstack tells of a connection.
func tcpInfo(ep *tcp.Endpoint) *TCPInfo {
	var o tcpip.TCPInfoOption
	ep.GetSockOpt(&o)
	var cc tcpip.CongestionControlOption
	ep.GetSockOpt(&cc)
	st := ep.Stats().(*tcp.Stats)
	return &TCPInfo{
		Congestion: string(cc), RTO: o.RTO, RTT: o.RTT, RTTVar: o.RTTVar,
		Cwnd: int(o.SndCwnd), Ssthresh: int(o.SndSsthresh),
		SegsOut: st.SegmentsSent.Value(), SegsIn: st.SegmentsReceived.Value(),
		Retrans: st.SendErrors.Retransmits.Value(),
	}
}

// unacked returns the bytes that are written and not acknowledged, and sets what else netstack
// does not tell: the segment size, the number of segments in flight, what was agreed on.
func (i *TCPInfo) unacked(ep *tcp.Endpoint) (bytes int) {
	readSender(ep, func(snd, queue reflect.Value) {
		of := reflect.ValueOf(ep).Elem()
		i.Timestamps = of.FieldByName("SendTSOk").Bool()
		i.SACK = of.FieldByName("SACKPermitted").Bool()
		i.SndWscale = int(snd.FieldByName("SndWndScale").Uint())
		if rcv := of.FieldByName("rcv"); !rcv.IsNil() {
			i.RcvWscale = int(rcv.Elem().FieldByName("RcvWndScale").Uint())
		}
		i.MSS = int(snd.FieldByName("MaxPayloadSize").Int())
		i.Unacked = max(0, int(snd.FieldByName("Outstanding").Int()))
		bytes = max(0, int(queue.FieldByName("SndBufUsed").Int()))
	})
	return bytes
}

// readSender calls read with netstack's sender of a connection (tcp.sender) and its send queue
// (tcp.sndQueueInfo) while their lock is held; not for an endpoint that has no sender yet. Fields
// are read by name: their lock is exported, they are not.
func readSender(ep *tcp.Endpoint, read func(snd, queue reflect.Value)) {
	ep.LockUser()
	defer ep.UnlockUser()
	v := reflect.ValueOf(ep).Elem()
	if snd := v.FieldByName("snd"); !snd.IsNil() {
		read(snd.Elem(), v.FieldByName("sndQueueInfo"))
	}
}
