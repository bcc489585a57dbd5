package sim

import (
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// beside holds the kernel's part of a port whose address is the kernel's and ours.
//
//	switch ── port ── NIC ── rings, by rules
//	                   └──── netdev ── packet sockets
//	                               └── kernel
//
// While alone is set the NIC lacks an RDMA device, and the netdev gets everything from the port.
type beside struct {
	alone     atomic.Bool
	sent, got atomic.Uint64 // frames that passed the port then

	mu  sync.Mutex
	nic func([]frame.Frame) // takes what the netdev sends; guarded by mu
}

// shareWithKernel puts a kernel with the host's address beside the stack.
func (h *ourHost) shareWithKernel(n *network) {
	h.netdev = &netdev{plan: h.plan.Netdev, name: fmt.Sprint("host", h.index), mtu: h.mtu,
		clock: n.clock, put: h.putBeside}
	h.kernel = newKernelModel(h, n.clock.now, func(f []byte) {
		h.netdev.mu.Lock()
		defer h.netdev.mu.Unlock()
		if !h.netdev.gone && !h.netdev.down {
			h.netdev.transmit(f)
		}
	})
	h.netdev.above = h.kernel.receive
}

// onHost returns the config of a stack on the kernel's address.
func (h *ourHost) onHost(c stack.Config) stack.Config {
	c.Host, c.Addresses = true, nil
	c.NIC = h.plan.Device.NIC
	c.NIC.Model.Kernel = h.slot.open
	c.NIC.Model.Facts = dv.PortFacts{Name: fmt.Sprint("mlx5_", h.index),
		Netdev: fmt.Sprint("host", h.index), MAC: h.kernel.hardware(), MTU: h.mtu}
	if h.plan.Sockets {
		c.Uplink.Backend = stack.BackendPacket
	}
	c.Driver = h.tune
	c.Uplink.OpenInterface = h.openHostSockets
	return c.WithHostKernel(h.kernel)
}

// plugBeside connects a card with the port, and with the kernel's netdev.
func (h *ourHost) plugBeside(nic *simnic.NIC) error {
	if err := nic.ConnectNetdev(netdevWire{h}); err != nil {
		return err
	}
	return nic.ConnectWire(besideWire{cable{h.port}, h})
}

// putBeside sends a frame of the netdev.
func (h *ourHost) putBeside(f []byte) {
	b := &h.beside
	b.mu.Lock()
	send := b.nic
	b.mu.Unlock()
	switch {
	case b.alone.Load():
		b.sent.Add(1)
		h.port.put(f)
	case send != nil:
		send([]frame.Frame{{Data: f}})
	}
}

// netdevWire connects a card with the kernel's netdev.
type netdevWire struct{ h *ourHost }

var _ wire.Wire = netdevWire{}

// Start implements wire.Wire.
func (c netdevWire) Start(recv func([]frame.Frame)) error {
	c.h.beside.mu.Lock()
	defer c.h.beside.mu.Unlock()
	c.h.beside.nic = recv
	return nil
}

// Send implements wire.Wire.
func (c netdevWire) Send(frames []frame.Frame) (int, error) {
	list := make([][]byte, len(frames))
	for i := range frames {
		list[i] = slices.Clone(frames[i].Data)
	}
	c.h.netdev.receive(list)
	return len(frames), nil
}

// Offloads implements wire.Wire.
func (netdevWire) Offloads() frame.Offload { return 0 }

// Close implements wire.Wire.
func (c netdevWire) Close() error {
	c.h.beside.mu.Lock()
	defer c.h.beside.mu.Unlock()
	c.h.beside.nic = nil
	return nil
}

// besideWire represents a cable that leads past a card without RDMA device.
type besideWire struct {
	cable
	h *ourHost
}

// Start implements wire.Wire.
func (c besideWire) Start(recv func([]frame.Frame)) error {
	c.port.connect(func(frames [][]byte) {
		if b := &c.h.beside; b.alone.Load() {
			b.got.Add(uint64(len(frames)))
			c.h.netdev.receive(frames)
			return
		}
		batch := make([]frame.Frame, len(frames))
		for i, f := range frames {
			batch[i].Data = f
		}
		recv(batch)
	})
	return nil
}

// hardware returns the netdev's MAC address.
func (k *kernelModel) hardware() net.HardwareAddr {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.mac)
}

// setHardware gives the netdev another MAC address.
func (k *kernelModel) setHardware(mac net.HardwareAddr) {
	k.change(func() { k.mac = slices.Clone(mac) })
	k.net.link.SetLinkAddress(tcpip.LinkAddress(mac))
}
