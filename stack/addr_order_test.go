package stack_test

import (
	"slices"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// TestAddrsOrder: the addresses come in the same order each time, those of IPv4 first.
func TestAddrsOrder(t *testing.T) {
	s, _ := netpair.New(t, netpair.Faults{})
	first := s.Addrs()
	if !first[0].Addr().Is4() || len(first) < 3 {
		t.Fatalf("addresses %v: want one of IPv4 first, then two of IPv6", first)
	}
	for range 50 {
		if again := s.Addrs(); !slices.Equal(again, first) {
			t.Fatalf("addresses %v, then %v", first, again)
		}
	}
}
