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

// tcpSocket describes a TCP endpoint. info is where its Socket.TCP is put.
func (r *socketReader) tcpSocket(ep *tcp.Endpoint, info *TCPInfo) Socket {
	s, state := r.stack, tcp.EndpointState(ep.State())
	so := Socket{Network: "tcp", State: stateWords[state]}
	if so.State == "" {
		so.State = state.String()
	}
	so.SendQ = r.fields.read(ep, &so, info)
	if state == tcp.StateListen {
		so.SendQ = s.backlogOf(ep)
		return so
	}
	so.RecvQ, _ = ep.GetSockOptInt(tcpip.ReceiveQueueSizeOption)
	r.options(ep, info)
	so.TCP = info
	conn, open := r.conns[ep]
	switch {
	case open:
		info.BytesAcked = less(conn.written.Load(), uint64(so.SendQ))
		info.BytesReceived = conn.received.Load() + uint64(so.RecvQ)
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
