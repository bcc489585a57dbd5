package stack_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// TestDHCPDeclinedRenewal: a renewal gives another address, which another host has. It is declined,
// and the client waits before it asks again (RFC 2131 section 3.1 point 5).
func TestDHCPDeclinedRenewal(t *testing.T) {
	const wait = 2 * time.Second
	clock := newVirtualTime(t).Clock.Clock()
	netpair.CheckLeaks(t)
	a, b := netpair.NewPorts(netpair.Faults{})
	server, err := stack.New(a,
		stack.Config{Addressing: stack.AddressOptions{DuplicateDetection: -1}, Clock: clock,
			Addresses: []netip.Prefix{
				netip.PrefixFrom(netpair.ServerIP4, 24), netip.MustParsePrefix("192.0.2.70/24")}})
	must(t, err)
	defer server.Close()
	d := &dhcpServer{lasts: 2 * time.Second, fallback: "192.0.2.60", clock: clock}
	d.start(t, server, "192.0.2.50")
	cfg := stack.WithRenewal(stack.Config{Dynamic: stack.DHCPv4,
		Addressing: stack.AddressOptions{Timeout: hangs}, Clock: clock},
		time.Second)
	client, err := stack.New(b, stack.WithDeclineWait(cfg, wait))
	must(t, err)
	defer client.Close()
	if !hasAddr(client, "192.0.2.50") {
		t.Fatalf("addresses %v", client.Addrs())
	}
	d.offer("192.0.2.70")
	eventually(t, "the address that is free", func() bool { return hasAddr(client, "192.0.2.60") })
	if hasAddr(client, "192.0.2.70") || hasAddr(client, "192.0.2.50") {
		t.Errorf("addresses %v", client.Addrs())
	}
	if paused := time.Duration(d.paused.Load()); paused < wait {
		t.Errorf("%v between DECLINE and DISCOVER, want %v at least", paused, wait)
	}
}
