package diagnose

import (
	"fmt"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// Bounds of what connections, listeners and sockets may do.
const (
	// someConns is the share of connections that is worth a line.
	someConns = 0.05
	// longPath is the round-trip time from which on a window bounds the rate, and longSend that
	// from which on a send buffer does.
	longPath, longSend = 5 * time.Millisecond, time.Millisecond
	// backlogFull is the share of a backlog that waits in both snapshots.
	backlogFull = 0.8
	// unread gives the bytes that a program leaves unread for good, on one connection.
	unread = 64 << 10
)

func clientRules() []rule {
	return []rule{
		{Kind{"client-window-full", "clients read more slowly than they are sent to, or their " +
			"receive windows are too small for the path",
			"at the client: read faster, larger SO_RCVBUF or net.ipv4.tcp_rmem; rdma-netstack " +
				"ss -ti shows which"}, fullWindow},
		{Kind{"send-buffer-full", "the send buffer holds less than is under way on the path, so " +
			"that the connection waits for acknowledgements",
			"SetWriteBuffer, or SendBuffer.Max of stack.Config.TCP: the rate times the " +
				"round-trip time"}, fullSendBuffer},
		{Kind{"listener-backlog", "the program accepts more slowly than clients connect, or a " +
			"flood of SYNs came: clients wait for a second or more",
			"accept in a goroutine of its own; TCP.Backlog of stack.Config; rdma-netstack ss " +
				"-l; against a flood rdma-netstack filter deny PREFIX"}, fullBacklog},
		{Kind{"receive-buffers-full", "the program reads more slowly than data comes, or not at " +
			"all", "read faster (rdma-netstack profile cpu); SetReadBuffer; rdma-netstack ss " +
			"-uan shows the socket"}, fullReceiveBuffers},
		{Kind{"memory-pressure", "connections hold nearly as much memory as they may: buffers " +
			"shrink, writes wait, data is dropped",
			"find who does not read (rdma-netstack ss); else TCP.MaxMemory of stack.Config"},
			memoryPressure},
	}
}

// windowBounds says that a connection has more to send than the client has room for, and that this
// is what keeps it from sending.
func windowBounds(s stack.Socket) bool {
	t := s.TCP
	waits := s.SendQ > inFlight(s) && inFlight(s)+t.MSS > t.SndWnd
	return t.MSS > 0 && waits && t.SndWnd < t.Cwnd*t.MSS &&
		(t.SndWnd < 2*t.MSS || t.RTT >= longPath)
}

func fullWindow(o *observation) (float64, string) {
	n, one := o.connsWhere(windowBounds)
	if s := share(uint64(n), uint64(o.established)); n > 0 && s >= someConns {
		return 20 * s, fmt.Sprintf("%d of %d connections wait for room at the client; that of %v "+
			"takes %d bytes, and %d are to be sent", n, o.established, one.Remote,
			one.TCP.SndWnd, one.SendQ)
	}
	return 0, ""
}

// bufferBounds says that all that the program may have written is under way, while path and client
// would take more.
func bufferBounds(s stack.Socket) bool {
	t, flight := s.TCP, inFlight(s)
	return t.SndBuf > 0 && s.SendQ*10 >= t.SndBuf*8 && flight*10 >= s.SendQ*9 &&
		t.Cwnd*t.MSS*4 > s.SendQ*5 && t.SndWnd*4 > s.SendQ*5 && t.RTT >= longSend
}

func fullSendBuffer(o *observation) (float64, string) {
	n, one := o.connsWhere(bufferBounds)
	if s := share(uint64(n), uint64(o.established)); n > 0 && s >= someConns {
		return 30 * s, fmt.Sprintf("%d of %d connections have a send buffer's worth under way; "+
			"that of %v is of %d bytes, its path takes %d and its client %d", n, o.established,
			one.Remote, one.TCP.SndBuf, one.TCP.Cwnd*one.TCP.MSS, one.TCP.SndWnd)
	}
	return 0, ""
}

func fullBacklog(o *observation) (float64, string) {
	refused := o.added("tcp_listen_overflow_syn_drop", "tcp_listen_overflow_ack_drop",
		"tcp_forward_max_in_flight_drop")
	if refused >= least {
		accepted := o.added("tcp_passive_connection_openings")
		return costOfLoss(share(refused, refused+accepted)), fmt.Sprintf("%d attempts to connect "+
			"were dropped, %d connections were accepted", refused, accepted)
	}
	old := map[string]int{}
	for _, s := range o.before.Sockets {
		if isFullListener(s) {
			old[s.Local.String()] = s.RecvQ
		}
	}
	for _, s := range o.after.Sockets {
		if _, was := old[s.Local.String()]; was && isFullListener(s) {
			return 10, fmt.Sprintf("%d connections to %v wait to be accepted, of %d that may",
				s.RecvQ, s.Local, s.SendQ)
		}
	}
	return 0, ""
}

func isFullListener(s stack.Socket) bool {
	return s.State == "LISTEN" && s.SendQ > 0 && float64(s.RecvQ) >= backlogFull*float64(s.SendQ)
}

func fullReceiveBuffers(o *observation) (float64, string) {
	if dropped := o.added("udp_receive_buffer_errors"); dropped >= least {
		lost := share(dropped, dropped+o.added("udp_packets_received"))
		evidence := fmt.Sprintf("%d datagrams (%s) were dropped", dropped, percent(lost))
		if s, n := o.mostDrops(); n > 0 {
			evidence += fmt.Sprintf(", %d of them for the socket %v, where %d bytes wait", n,
				s.Local, s.RecvQ)
		}
		return costOfLoss(lost), evidence
	}
	n, one := 0, stack.Socket{}
	for _, c := range o.conns {
		read := func(s stack.Socket) uint64 { return s.TCP.BytesReceived - uint64(s.RecvQ) }
		if c.before.RecvQ >= unread && c.after.RecvQ >= unread && read(c.before) == read(c.after) {
			n, one = n+1, c.after
		}
	}
	if s := share(uint64(n), uint64(o.established)); n > 0 && s >= someConns {
		return 10 * s, fmt.Sprintf("of %d of %d connections nothing was read, though data is "+
			"there: %d bytes on that of %v", n, o.established, one.RecvQ, one.Remote)
	}
	return 0, ""
}

// mostDrops returns the UDP socket that dropped the most datagrams, and how many.
func (o *observation) mostDrops() (most stack.Socket, drops uint64) {
	old := map[string]uint64{}
	for _, s := range o.before.Sockets {
		if s.Network == "udp" {
			old[s.Local.String()] = s.Drops
		}
	}
	for _, s := range o.after.Sockets {
		if s.Network != "udp" {
			continue
		}
		if n := s.Drops - min(s.Drops, old[s.Local.String()]); n > drops {
			most, drops = s, n
		}
	}
	return most, drops
}

func memoryPressure(o *observation) (float64, string) {
	used, limit := o.gauge("memory_used"), o.gauge("memory_limit")
	overflows, pressures := o.added("memory_overflows"), o.added("memory_pressures")
	cost := 0.0
	switch {
	case overflows > 0:
		cost = 80
	case pressures > 0 || limit > 0 && used >= limit/3*2:
		cost = 40
	default:
		return 0, ""
	}
	return cost, fmt.Sprintf("connections hold %d of %d bytes; two thirds were reached %d times, "+
		"all of it %d times", used, limit, pressures, overflows)
}
