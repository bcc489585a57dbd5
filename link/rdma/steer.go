package rdma

import "github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"

// Share is which of the received frames an endpoint takes while another process has its addresses,
// too, and receives the same frames: by packet sockets of its own, or by Steering.Relay of the one
// whose rings they come to. Each frame that one of them answers is taken by one of them: a TCP
// connection is the process's that has it in Steering.Flows or, of those that begin later, as
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
	// Relay is Send for what rings receive and the other process does not: unicast frames that are
	// left to it or of interest to both. Nil drops them.
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
	w.count.steered.Add(1)
	w.refusal = "it is another process's, which has the same address"
	return false
}

// verdict is what becomes of a frame.
type verdict uint8

const (
	left  verdict = iota // to the other process, which has received it, too
	taken                // by this endpoint
	sent                 // to Steering.Send
)

// decide is the whole rule.
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
