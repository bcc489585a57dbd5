package webrtc

import (
	"net"

	"github.com/pion/transport/v5"
	"github.com/pion/transport/v5/stdnet"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
)

// kernelNet gives the interfaces and UDP sockets of a network namespace's kernel. Nothing else of
// it is asked for.
type kernelNet struct {
	transport.Net
	in *lab.Net
}

func newKernelNet(in *lab.Net) (kernelNet, error) {
	n := kernelNet{in: in}
	err := in.Do(func() (err error) {
		n.Net, err = stdnet.NewNet()
		return err
	})
	return n, err
}

// ListenUDP implements transport.Net.
func (n kernelNet) ListenUDP(network string, at *net.UDPAddr) (c transport.UDPConn, err error) {
	err = n.in.Do(func() (err error) {
		c, err = n.Net.ListenUDP(network, at)
		return err
	})
	return c, err
}

// ListenPacket implements transport.Net.
func (n kernelNet) ListenPacket(network, at string) (net.PacketConn, error) {
	return n.in.ListenPacket(network, at)
}
