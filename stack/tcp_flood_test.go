package stack_test

import (
	"net"
	"testing"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// TestSYNFlood: handshakes that are never completed take a bounded amount of memory, and do not
// block other connections.
func TestSYNFlood(t *testing.T) {
	const backlog, flood = 8, 1000
	noReset := func(end int, f []byte) bool { // the flooder sends no resets
		return end == 1 && len(f) > 47 && f[12] == 8 && f[13] == 0 && f[23] == 6 &&
			f[47]&byte(header.TCPFlagRst) != 0
	}
	server, client := netpair.New(t, netpair.Faults{Tap: noReset},
		netpair.Server(func(c *stack.Config) { c.TCP.Backlog = backlog }))
	l, err := server.ListenTCP("tcp4", nil)
	must(t, err)
	before := len(server.Netstack().RegisteredEndpoints())
	for i := range uint16(flood) {
		sendSYN(t, client, server, 1+i, uint16(l.Addr().(*net.TCPAddr).Port))
	}
	eventually(t, "the flood", func() bool { return server.Stats().RxPackets >= flood })
	if n := len(server.Netstack().RegisteredEndpoints()) - before; n > 2*backlog {
		t.Errorf("%d half-open connections, with a backlog of %d", n, backlog)
	}
	c, err := client.DialTimeout("tcp", at(netpair.ServerIP4, l.Addr()), hangs)
	must(t, err)
	defer c.Close()
	s, err := l.Accept()
	must(t, err)
	defer s.Close()
	if got, want := s.RemoteAddr().String(), c.LocalAddr().String(); got != want {
		t.Errorf("accepted %s, want %s", got, want)
	}
}

// sendSYN begins a handshake of the client, from a port, of which the client's stack has no state.
func sendSYN(t *testing.T, client, server *stack.Stack, from, to uint16) {
	t.Helper()
	src, dst := tcpip.AddrFrom4(netpair.ClientIP4.As4()), tcpip.AddrFrom4(netpair.ServerIP4.As4())
	packet := make([]byte, header.IPv4MinimumSize+header.TCPMinimumSize)
	tcp := header.TCP(packet[header.IPv4MinimumSize:])
	tcp.Encode(&header.TCPFields{
		SrcPort: from, DstPort: to, SeqNum: 1, DataOffset: header.TCPMinimumSize,
		Flags: header.TCPFlagSyn, WindowSize: 65535,
	})
	tcp.SetChecksum(^tcp.CalculateChecksum(header.PseudoHeaderChecksum(header.TCPProtocolNumber,
		src, dst, uint16(len(tcp)))))
	ip := header.IPv4(packet)
	ip.Encode(&header.IPv4Fields{TotalLength: uint16(len(packet)), TTL: 64,
		Protocol: uint8(header.TCPProtocolNumber), SrcAddr: src, DstAddr: dst})
	ip.SetChecksum(^ip.CalculateChecksum())
	if err := client.Netstack().WritePacketToRemote(1, tcpip.LinkAddress(server.HardwareAddr()),
		header.IPv4ProtocolNumber, buffer.MakeWithData(packet)); err != nil {
		t.Fatal(err)
	}
}
