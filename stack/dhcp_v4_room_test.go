package stack_test

import (
	"sync/atomic"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// fullPort is a link that has no room for what is to be sent while full is true.
type fullPort struct {
	*netpair.Port
	full atomic.Bool
}

func (p *fullPort) WritePackets(pkts gstack.PacketBufferList) (int, tcpip.Error) {
	if p.full.Load() {
		return 0, &tcpip.ErrNoBufferSpace{}
	}
	return p.Port.WritePackets(pkts)
}

// TestDHCPNoRoom: the link comes up while it has no room for the client's question: that is as good
// as lost, and asked again (world 10187 of tests/sim).
func TestDHCPNoRoom(t *testing.T) {
	v := newVirtualTime(t)
	d, client, port := leasedFull(t, v, time.Hour)
	v.stop()
	port.full.Store(true)
	sent := client.Stats().DHCPSent
	client.LinkIsUp()
	eventually(t, "a question", func() bool { return client.Stats().DHCPSent > sent })
	port.full.Store(false)
	if !v.AdvanceUntil(5*time.Second, func() bool { return d.confirmed.Load() > 0 }) ||
		!hasAddr(client, "192.0.2.50") {
		t.Errorf("confirmed %d times, addresses %v", d.confirmed.Load(), client.Addrs())
	}
}
