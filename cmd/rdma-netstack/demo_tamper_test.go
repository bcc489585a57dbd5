package main

import (
	"net/netip"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// TestDemoFindsFaults misconfigures the slice and requires that the matching check reports it.
func TestDemoFindsFaults(t *testing.T) {
	need.Long(t, "clients give up after 5 s in each case")
	need.NetNS(t)
	for _, row := range []struct {
		name   string
		tamper func(*stack.Config)
		check  string
	}{
		{"the slice takes everything", func(c *stack.Config) { c.NIC.Steering.Promiscuous = true },
			"isolation"},
		{"the slice has the netdev's MAC", func(c *stack.Config) {
			c.NIC.MAC, c.NIC.Steering.AllowNetdevMAC = newStation("netdev", 20).mac, true
		}, "netdev_mac"},
		{"the slice has the netdev's MAC", func(c *stack.Config) {
			c.NIC.MAC, c.NIC.Steering.AllowNetdevMAC = newStation("netdev", 20).mac, true
		}, "netdev_http"},
		{"the slice has another address", func(c *stack.Config) {
			c.Addresses = []netip.Prefix{netip.MustParsePrefix("192.0.2.11/24")}
		}, "ping4"},
		{"the slice has no IPv6", func(c *stack.Config) { c.Addresses = c.Addresses[:1] },
			"dns_udp"},
	} {
		t.Run(row.name+"/"+row.check, func(t *testing.T) {
			t.Parallel()
			w, err := newWorld(t.Context(),
				demoFlags{queues: 1, clients: "go", limit: 5 * time.Second, tamper: row.tamper})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := w.close(); err != nil {
					t.Error(err)
				}
			}()
			w.load.start(t.Context())
			for _, c := range w.checks() {
				if c.name != row.check {
					continue
				}
				if got := w.try(t.Context(), c); got.OK {
					t.Errorf("%s is ok: %s", row.check, got.Detail)
				} else {
					t.Log(got.Detail)
				}
			}
		})
	}
}
