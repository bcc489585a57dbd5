package stack

import (
	"fmt"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

// handoverFlow is a TCP connection or a connected UDP socket of the process before, seen from
// there.
type handoverFlow struct {
	Proto  uint8          `json:"proto"` // of IP
	Local  netip.AddrPort `json:"local"`
	Remote netip.AddrPort `json:"remote"`
}

func (f handoverFlow) link() rdma.Flow {
	return rdma.Flow{
		Proto: f.Proto,
		Local: toAddress(f.Local.Addr()), LocalPort: f.Local.Port(),
		Remote: toAddress(f.Remote.Addr()), RemotePort: f.Remote.Port(),
	}
}

func fromFlow(f rdma.Flow) handoverFlow {
	return handoverFlow{f.Proto, netip.AddrPortFrom(fromAddress(f.Local), f.LocalPort),
		netip.AddrPortFrom(fromAddress(f.Remote), f.RemotePort)}
}

// workTries says how often settleTime is waited for a worker that has a batch at hand, or for a
// backend that changes meanwhile.
const workTries = 5

// workOff returns once netstack's goroutines have taken from their queues what the link took before
// this call: a SYN that waits there is no connection yet, and its client's next segment would be
// another's to answer with a RST. live is held, as Close ends those goroutines.
func (s *Stack) workOff() error {
	for range workTries {
		if !s.await(s.link.Between()) {
			continue
		}
		s.pausing.Lock()
		defer s.pausing.Unlock()
		s.net.Pause() // returns once each has found its queue empty
		s.net.Resume()
		return nil
	}
	return fmt.Errorf("the link still delivers what it received %v ago: try again",
		workTries*settleTime)
}

// addFlows adds our connections and connected UDP sockets.
func (s *Stack) addFlows(to *rdma.Flows) {
	s.eachFlow(func(f rdma.Flow, _ tcp.EndpointState) { to.Add(f) })
}

// eachFlow calls do for each of our connections and connected UDP sockets. The state of the latter
// is of no meaning.
func (s *Stack) eachFlow(do func(rdma.Flow, tcp.EndpointState)) {
	for _, ep := range s.net.RegisteredEndpoints() {
		proto, state := udp.ProtocolNumber, tcp.EndpointState(0)
		if t, ok := ep.(*tcp.Endpoint); ok {
			if state = tcp.EndpointState(t.State()); state == tcp.StateListen {
				continue
			}
			proto = tcp.ProtocolNumber
		}
		has, ok := ep.(tcpip.Endpoint)
		if !ok {
			continue
		}
		if info, ok := has.Info().(*gstack.TransportEndpointInfo); ok && info.ID.RemotePort != 0 {
			do(rdma.Flow{
				Proto: uint8(proto),
				Local: info.ID.LocalAddress, LocalPort: info.ID.LocalPort,
				Remote: info.ID.RemoteAddress, RemotePort: info.ID.RemotePort,
			}, state)
		}
	}
}

// unconnectedPorts returns the ports of our UDP sockets that are not connected.
func (s *Stack) unconnectedPorts() (ports []uint16) {
	for _, so := range s.Sockets() {
		if so.Network == "udp" && so.Remote.Port() == 0 {
			ports = append(ports, so.Local.Port())
		}
	}
	return ports
}
