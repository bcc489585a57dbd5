package stacktest

import (
	"net/netip"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/link/veth"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// mtu of the wire between the two, in bytes.
const mtu = 1500

// Addresses are those of the stacks that [Pair] makes, from the documentation prefixes of RFC 5737
// and RFC 3849. They exist in the two stacks only.
type Addresses struct{ ServerIP4, ClientIP4, ServerIP6, ClientIP6 netip.Prefix }

// Used returns the addresses: 192.0.2.1/24 and 2001:db8::1/64 of the server, 192.0.2.2/24 and
// 2001:db8::2/64 of the client.
func Used() Addresses {
	return Addresses{
		netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("192.0.2.2/24"),
		netip.MustParsePrefix("2001:db8::1/64"), netip.MustParsePrefix("2001:db8::2/64"),
	}
}

// Pair returns two stacks on one memory wire; either may serve. changes see both configurations
// before the stacks are made. The stacks are closed when the test ends, before cleanups that were
// registered earlier; the test may close them itself.
func Pair(t testing.TB,
	changes ...func(server, client *stack.Config)) (server, client *stack.Stack) {
	t.Helper()
	u := Used()
	one := stack.Config{Addresses: []netip.Prefix{u.ServerIP4, u.ServerIP6},
		Addressing: stack.AddressOptions{DuplicateDetection: -1}}
	other := stack.Config{Addresses: []netip.Prefix{u.ClientIP4, u.ClientIP6},
		Addressing: stack.AddressOptions{DuplicateDetection: -1}}
	for _, change := range changes {
		change(&one, &other)
	}
	a, b := veth.NewPair(mtu, veth.DefaultBacklogSize)
	server, err := stack.New(a, one)
	if err != nil {
		b.Close()
		t.Fatalf("the server's stack: %v", err)
	}
	t.Cleanup(func() { server.Close() })
	client, err = stack.New(b, other)
	if err != nil {
		t.Fatalf("the client's stack: %v", err)
	}
	t.Cleanup(func() { client.Close() })
	return server, client
}
