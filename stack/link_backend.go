package stack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

// Backend is what [Open] puts under a stack. It reads and writes text, so that it can be a flag.
type Backend uint8

// The backends.
const (
	// BackendAuto is rings where NIC.Device has an mlx5 device, else packet sockets.
	BackendAuto Backend = iota
	// BackendRings gives the rings of an mlx5 device, or an error.
	BackendRings
	// BackendPacket is packet sockets (package link/packet) on a netdev of any make. Of NIC only
	// Device, MAC, RxQueues, VLAN and MTU count.
	BackendPacket
)

var backends = [...]string{BackendAuto: "auto", BackendRings: "rings", BackendPacket: "packet"}

// String implements fmt.Stringer.
func (b Backend) String() string {
	if int(b) < len(backends) {
		return backends[b]
	}
	return fmt.Sprintf("Backend(%d)", uint8(b))
}

// Validate says in one sentence what is wrong with b, or nil.
func (b Backend) Validate() error {
	if int(b) >= len(backends) {
		return fmt.Errorf("there is no %s; use BackendAuto, BackendRings or BackendPacket", b)
	}
	return nil
}

// MarshalText implements encoding.TextMarshaler. It never fails.
func (b Backend) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler: auto, rings, packet.
func (b *Backend) UnmarshalText(text []byte) error {
	for i, name := range backends {
		if name == string(text) {
			*b = Backend(i)
			return nil
		}
	}
	return errors.New("want auto, rings or packet")
}

// nic is what a stack of Open is on: a dv.Device or a packet.Interface.
type nic interface {
	LinkUp() bool
	LinkChanged() <-chan struct{}
	Done() <-chan struct{}
	Err() error
	Close() error
}

// carrier returns what carries the frames: the link that outlives its device, once that is kept,
// else the device. Goroutines that look after addresses may ask for it before.
func (s *Stack) carrier() nic {
	if kept := s.failover.Load(); kept != nil {
		return kept
	}
	return s.nic
}

// openBackend opens what s.cfg.Backend says, and returns its link.
func (s *Stack) openBackend(ctx context.Context, cfg dv.Config) (*rdma.Endpoint, error) {
	if s.cfg.Backend == BackendPacket {
		return s.openPacket(cfg)
	}
	dev, err := dv.Open(ctx, cfg)
	if err == nil {
		s.device, s.nic = dev, dev
		return rdma.New(dev, s.linkOptions())
	}
	if s.cfg.Backend == BackendRings || cfg.Kernel != nil || !noRings(err) {
		return nil, err
	}
	link, packetErr := s.openPacket(cfg)
	switch {
	case errors.Is(packetErr, unix.ENODEV):
		return nil, fmt.Errorf("%w; nor is there an interface %s: \"ip link\" lists those there "+
			"are", err, cfg.Device)
	case packetErr != nil:
		return nil, packetErr
	}
	if port, ok := s.packets.(*packet.Port); ok {
		s.log.Warn(fmt.Sprintf("%s is a %s: served through AF_PACKET, not from rings", port.Name(),
			cmp.Or(port.Driver(), "netdev without a driver")))
	}
	return link, nil
}

// noRings is true for a device that is there, and is not one that package dv drives.
func noRings(err error) bool {
	return errors.Is(err, dv.ErrNoRDMA) || errors.Is(err, dv.ErrNotMlx5)
}

func (s *Stack) linkOptions() rdma.Options {
	o := s.cfg.linkOptions()
	o.SpreadRefused = func(err error) {
		s.health.notice(reportRx, err)
		if err == nil {
			s.log.Info("the device spreads flows again", "interface", s.name)
			return
		}
		s.log.Warn("flows stay on the receive queues that they are on: the device refuses another "+
			"table, and is asked again after 1 s to 1 min", "interface", s.name, "error", err)
	}
	return o
}

func (c *Config) linkOptions() rdma.Options {
	return rdma.Options{RxMode: c.RxMode, Spread: c.Spread, RxLimit: c.RxLimit, Clock: c.Clock,
		Random: c.Random}
}

// openPacket opens packet sockets on the netdev that cfg names, or on that of the port it names.
func (s *Stack) openPacket(cfg dv.Config) (*rdma.Endpoint, error) {
	if cfg.Kernel != nil && s.cfg.OpenInterface == nil {
		return nil, errors.New("packet sockets are for a netdev, and NIC.Kernel names none; " +
			"leave Backend unset")
	}
	if cfg.AllowNetdevMAC || cfg.Promiscuous {
		return nil, fmt.Errorf("packet sockets cannot take frames from Linux, which answers those "+
			"to %s itself; leave MAC unset for an address of our own", cfg.Device)
	}
	if s.cfg.OpenInterface == nil {
		if n, err := dv.NetworkOf(dv.Config{Device: cfg.Device}); err == nil {
			cfg.Device = n.Netdev
		}
	}
	port, err := s.openInterface(s.portConfig(cfg))
	if err != nil {
		return nil, err
	}
	s.packets, s.nic = port, port
	return rdma.NewOverPort(port, s.linkOptions())
}

// openInterface opens packet sockets, or what the program has in their place.
func (s *Stack) openInterface(cfg packet.Config) (packet.Interface, error) {
	if open := s.cfg.OpenInterface; open != nil {
		return open(cfg)
	}
	return packet.Open(cfg)
}

// portConfig returns what packet sockets have of cfg.
func (s *Stack) portConfig(cfg dv.Config) packet.Config {
	return packet.Config{Device: cfg.Device, MAC: net.HardwareAddr(cfg.MAC),
		Host: s.cfg.Host, Queues: cfg.RxQueues, VLAN: cfg.VLAN, MTU: cfg.MTU, Random: cfg.Random}
}

// Device returns the RDMA device underneath, for its counters; nil if the stack was made by [New]
// or is on packet sockets, or while the device is away. It belongs to the stack, which closes it
// when it fails: another one takes its place. On a bond of ports with a device each it is the one
// that sends; Devices has all.
func (s *Stack) Device() *dv.Device {
	switch at := s.atWork().(type) {
	case *dv.Device:
		return at
	case *bond:
		return at.sender()
	}
	return nil
}

// Devices returns the RDMA devices underneath, as Device: of a bond all, in its order.
func (s *Stack) Devices() []*dv.Device {
	switch at := s.atWork().(type) {
	case *dv.Device:
		return []*dv.Device{at}
	case *bond:
		return at.devices()
	}
	return nil
}

// atWork returns what carries the frames now; nil: nothing.
func (s *Stack) atWork() any {
	if kept := s.failover.Load(); kept != nil {
		return kept.AtWork()
	}
	return s.nic
}

// PacketPort returns the packet sockets underneath, for their counters; nil if there are none at
// work, or what Config.OpenInterface has made. It belongs to the stack.
func (s *Stack) PacketPort() *packet.Port {
	kept := s.failover.Load()
	switch {
	case kept == nil && (s.device != nil || s.bond != nil):
		return nil
	case kept == nil:
		port, _ := s.packets.(*packet.Port)
		return port
	}
	switch port := kept.AtWork().(type) {
	case *packet.Port:
		return port
	case portBeside:
		return port.Port
	}
	return nil
}
