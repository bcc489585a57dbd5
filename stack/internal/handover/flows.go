package handover

import (
	"fmt"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
)

// flow names a TCP connection or a connected UDP socket of the process before, as seen from
// there.
type flow struct {
	Proto  uint8          `json:"proto"` // of IP
	Local  netip.AddrPort `json:"local"`
	Remote netip.AddrPort `json:"remote"`
}

func (f flow) link() rdma.Flow {
	return rdma.Flow{
		Proto: f.Proto,
		Local: env.ToAddress(f.Local.Addr()), LocalPort: f.Local.Port(),
		Remote: env.ToAddress(f.Remote.Addr()), RemotePort: f.Remote.Port(),
	}
}

func fromFlow(f rdma.Flow) flow {
	return flow{f.Proto, netip.AddrPortFrom(env.FromAddress(f.Local), f.LocalPort),
		netip.AddrPortFrom(env.FromAddress(f.Remote), f.RemotePort)}
}

// workTries says how often settleTime is waited for a worker that has a batch at hand, or for a
// backend that changes meanwhile.
const workTries = 5

// workOff returns once netstack's goroutines have taken from their queues what the link took before
// this call: a SYN that waits there is no connection yet, and its client's next segment would be
// another's to answer with a RST. The stack is entered, as Close ends those goroutines.
func (m *Handover) workOff() error {
	for range workTries {
		if !m.await(m.stack.Link().Between()) {
			continue
		}
		m.pausing.Lock()
		defer m.pausing.Unlock()
		m.env.Net.Pause() // returns once each has found its queue empty
		m.env.Net.Resume()
		return nil
	}
	return fmt.Errorf("the link still delivers what it received %v ago: try again",
		workTries*settleTime)
}

// addFlows adds our connections and connected UDP sockets.
func (m *Handover) addFlows(to *rdma.Flows) {
	m.eachFlow(func(f rdma.Flow, _ tcp.EndpointState) { to.Add(f) })
}

// eachFlow calls do for each of our connections and connected UDP sockets. The state of the latter
// is of no meaning.
func (m *Handover) eachFlow(do func(rdma.Flow, tcp.EndpointState)) {
	for _, ep := range m.env.Net.RegisteredEndpoints() {
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

// WorksOff reports whether netstack is waited for to take from its queues what they hold.
func (m *Handover) WorksOff() bool {
	if !m.pausing.TryLock() {
		return true
	}
	m.pausing.Unlock()
	return false
}
