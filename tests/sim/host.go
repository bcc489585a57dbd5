package sim

import (
	"context"
	"net"
	"net/netip"
)

// host is a machine on the switch. up, down and the calls of sockets wait on virtual time: the
// scheduler must not call them. check and left are the scheduler's, while nothing runs.
type host interface {
	up(ctx context.Context) error
	listen(at netip.AddrPort) (net.Listener, error)
	dial(ctx context.Context, to netip.AddrPort) (net.Conn, error)
	packets(at netip.AddrPort) (net.PacketConn, error)
	// send takes what the host has put on its link but not yet given to the switch.
	send()
	// check reports a violated invariant. quiet says that no frame is in progress.
	check() error
	// connections describes the TCP endpoints that are left.
	connections() []string
	down() error
	// left reports what is left after down.
	left() error
}

// address is that of host i.
func address(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}) }

// otherAddress is the one that host i comes to if its address moves.
func otherAddress(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 101)}) }

// address6 is that of host i in IPv6.
func address6(i int) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfd, 0x10, 15: byte(i + 1)})
}

// hardware is the hardware address of host i.
func hardware(i int) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0, byte(i + 1)} }
