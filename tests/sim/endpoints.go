package sim

import (
	"fmt"
	"strings"

	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// tcpEndpoints describes the TCP endpoints that netstack knows; nil: none.
func tcpEndpoints(s *gstack.Stack) (all []string) {
	for _, list := range [][]gstack.TransportEndpoint{s.RegisteredEndpoints(),
		s.CleanupEndpoints()} {
		for _, ep := range list {
			if ep, ok := ep.(*tcp.Endpoint); ok {
				local, _ := ep.GetLocalAddress()
				remote, _ := ep.GetRemoteAddress()
				all = append(all, fmt.Sprintf("port %d to %d: %v", local.Port, remote.Port,
					tcp.EndpointState(ep.State())))
			}
		}
	}
	return all
}

// endpointList describes the TCP endpoints of all hosts.
func (w *world) endpointList() string {
	var all []string
	for i, h := range w.hosts {
		if eps := h.connections(); len(eps) > 0 {
			all = append(all, fmt.Sprintf("host %d has %s", i, strings.Join(eps, ", ")))
		}
	}
	return strings.Join(all, "; ")
}
