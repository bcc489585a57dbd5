package uplink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/hostnet"
	"github.com/rdma-netstack/rdma-netstack/link/failover"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/link/xdp"
)

// Backend says what [Open] opens. It reads and writes text, so that it can be a flag.
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
	// BackendXDP stands for AF_XDP sockets (package link/xdp) on a netdev of any make whose driver
	// has XDP, or an error. Of NIC only Device, MAC, VLAN and MTU count.
	BackendXDP
)

var backends = [...]string{BackendAuto: "auto", BackendRings: "rings", BackendPacket: "packet",
	BackendXDP: "xdp"}

// String implements fmt.Stringer.
func (b Backend) String() string {
	if int(b) < len(backends) {
		return backends[b]
	}
	return fmt.Sprintf("Backend(%d)", uint8(b))
}

// isSockets reports whether b is sockets of a netdev, and never rings.
func (b Backend) isSockets() bool { return b == BackendPacket || b == BackendXDP }

// Validate says in one sentence what is wrong with b, or nil.
func (b Backend) Validate() error {
	if int(b) >= len(backends) {
		return fmt.Errorf("there is no %s; use BackendAuto, BackendRings, BackendPacket or "+
			"BackendXDP", b)
	}
	return nil
}

// MarshalText implements encoding.TextMarshaler. It never fails.
func (b Backend) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler: auto, rings, packet, xdp.
func (b *Backend) UnmarshalText(text []byte) error {
	for i, name := range backends {
		if name == string(text) {
			*b = Backend(i)
			return nil
		}
	}
	return errors.New("want auto, rings, packet or xdp")
}

// Config says what an Uplink is to be on and who is told of it.
type Config struct {
	// NIC names the device, all of its fields set; its Dumped is called as of [dv.Config].
	NIC     dv.Config
	Backend Backend
	// XDP says how BackendXDP moves frames. Successor: another process has the device, and gives it
	// back soon.
	XDP       xdp.Options
	Successor bool
	// XDPReport hears when queues come to have no AF_XDP socket, and with nil when all have.
	XDPReport func(error)
	// Fallback is the netdev whose packet sockets carry the frames while the device is away.
	// Empty: the one that the port's netdev is a member of, else the port's; "none": nothing.
	Fallback string
	// MaxOutage and GracePeriod are those of [failover.Config], with the difference that the uplink
	// ends with its device if MaxOutage is negative.
	MaxOutage, GracePeriod time.Duration
	// OpenInterface opens what carries frames where packet sockets would; nil: [packet.Open].
	// On the host's own address it opens a packet.Netdev.
	OpenInterface func(packet.Config) (packet.Interface, error)
	Options       rdma.Options

	// Host is the host's own address that the stack serves on; nil: it has one of its own.
	Host Host
	// Ended is done when the stack ends, which then calls Close.
	Ended context.Context
	// HardwareAddr returns the stack's MAC address, nil before it has one.
	HardwareAddr func() net.HardwareAddr
	// UseDevice is given each device that is opened after the first.
	UseDevice func(*dv.Device) error
	Changed   func(failover.Change) // as of [failover.Config]

	Logger *slog.Logger
	Clock  clock.Clock
	Bond   *BondFacts // of a test; nil: the kernel's
}

// Host describes a netdev whose addresses a stack serves on, with packet sockets beside the rings.
type Host interface {
	Name() string // of the netdev now
	// Sockets returns the packet sockets. The first are open before [Open] is called.
	Sockets() packet.Netdev
	// Reopen opens packet sockets on a netdev that was made again, in place of those.
	Reopen() (packet.Netdev, error)
	Below() (hostnet.Below, error) // asks the kernel what is below the netdev
}

// Uplink carries the frames of a stack. A nil *Uplink stands for a link that somebody else has
// made. Its methods may be called by any goroutine.
type Uplink struct {
	cfg    Config
	link   *rdma.Endpoint
	opened dv.Config // how the device was opened

	nic     failover.Device  // the first
	device  *dv.Device       // the first, nil unless that is one
	bond    *bond            // the first, nil unless that is one
	packets packet.Interface // the first, or with Host what is beside it
	id      *identity        // of the first device or bond; nil: there is none

	kept    atomic.Pointer[failover.Link] // nil: it ends with its nic
	watcher *failover.Watcher             // nil: there is none
}

// Open opens what cfg.Backend says. ctx bounds that. [Uplink.Keep] follows once the stack is on
// the endpoint.
func Open(ctx context.Context, cfg Config) (*Uplink, error) {
	u := &Uplink{cfg: cfg}
	open := u.openOwn
	if cfg.Host != nil {
		open = u.openOnHost
	}
	var err error
	if u.link, err = open(ctx); err != nil {
		return nil, errors.Join(err, u.Close())
	}
	return u, nil
}

// openOwn opens the link of a stack with addresses of its own.
func (u *Uplink) openOwn(ctx context.Context) (*rdma.Endpoint, error) {
	cfg := u.cfg.NIC
	u.opened = cfg
	if u.cfg.Backend.isSockets() {
		return u.openPacket(cfg)
	}
	dev, err := dv.Open(ctx, cfg)
	if err == nil {
		u.device, u.nic = dev, dev
		return rdma.New(dev, u.cfg.Options)
	}
	if u.cfg.Backend == BackendRings || cfg.Model.Kernel != nil || !noRings(err) {
		return nil, err
	}
	link, packetErr := u.openPacket(cfg)
	switch {
	case errors.Is(packetErr, unix.ENODEV):
		return nil, fmt.Errorf("%w; nor is there an interface %s: \"ip link\" lists those there "+
			"are", err, cfg.Device)
	case packetErr != nil:
		return nil, packetErr
	}
	if port, ok := u.packets.(packet.Netdev); ok {
		u.cfg.Logger.Warn(fmt.Sprintf("%s is a %s: served through AF_PACKET, not from rings",
			port.Name(), cmp.Or(port.Driver(), "netdev without a driver")))
	}
	return link, nil
}

// openOnHost opens the rings of the netdev's device, beside the packet sockets, if it has one.
func (u *Uplink) openOnHost(ctx context.Context) (*rdma.Endpoint, error) {
	port := u.cfg.Host.Sockets()
	u.packets, u.nic = port, port
	if u.cfg.Backend.isSockets() {
		return rdma.NewOverPort(port, u.cfg.Options)
	}
	cfg, ofBond, err := u.deviceConfig()
	u.opened = cfg
	var link *rdma.Endpoint
	if err == nil {
		link, err = u.openRings(ctx, cfg, ofBond)
	}
	if err == nil || u.cfg.Backend == BackendRings || !noRings(err) {
		return link, err
	}
	u.cfg.Logger.Warn(fmt.Sprintf("%s is a %s: served through AF_PACKET, not from rings",
		port.Name(), cmp.Or(port.Driver(), "netdev without a driver")), "error", err)
	return rdma.NewOverPort(port, u.cfg.Options)
}

// openRings opens the device of cfg, or those of a bond's members, and returns the link.
func (u *Uplink) openRings(ctx context.Context, cfg dv.Config, ofBond bool) (link *rdma.Endpoint,
	err error) {
	if ofBond {
		b, err := u.openBond(ctx, cfg, func(*dv.Device) error { return nil })
		if err != nil {
			return nil, err
		}
		u.bond, u.nic = b, b
		if link, err = rdma.NewOverMembers(b.backend, u.cfg.Options); err == nil {
			b.start(link)
		}
		return link, err
	}
	dev, err := dv.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	u.device, u.nic = dev, dev
	return rdma.NewOverRingsAndSockets(dev, u.cfg.Host.Sockets(), u.cfg.Options)
}

// noRings reports whether err tells of a device that is there, and that package dv cannot drive.
func noRings(err error) bool {
	return errors.Is(err, dv.ErrNoRDMA) || errors.Is(err, dv.ErrNotMlx5)
}

// openPacket opens packet sockets on the netdev that cfg names, or on that of the port it names.
func (u *Uplink) openPacket(cfg dv.Config) (*rdma.Endpoint, error) {
	if cfg.Model.Kernel != nil && u.cfg.OpenInterface == nil {
		return nil, errors.New("packet sockets are for a netdev, and NIC.Model names none; " +
			"leave Backend unset")
	}
	if cfg.Steering.AllowNetdevMAC || cfg.Steering.Promiscuous {
		return nil, fmt.Errorf("packet sockets cannot take frames from Linux, which answers those "+
			"to %s itself; leave MAC unset for an address of our own", cfg.Device)
	}
	if u.cfg.OpenInterface == nil {
		if n, err := dv.NetworkOf(dv.NIC{Device: cfg.Device}); err == nil {
			cfg.Device = n.Netdev
		}
	}
	port, err := u.openInterface(u.cfg.portConfig(cfg))
	if err != nil {
		return nil, err
	}
	u.packets, u.nic = port, port
	return rdma.NewOverPort(port, u.cfg.Options)
}

// openInterface opens packet sockets, or what the program has in their place.
func (u *Uplink) openInterface(cfg packet.Config) (packet.Interface, error) {
	if open := u.cfg.OpenInterface; open != nil {
		return open(cfg)
	}
	return u.cfg.OpenNetdev(cfg)
}

// reopenInterface does so once more, after the first has ended.
func (u *Uplink) reopenInterface(cfg packet.Config) (packet.Interface, error) {
	if open := u.cfg.OpenInterface; open != nil {
		return open(cfg)
	}
	return u.cfg.ReopenNetdev(cfg)
}

// OpenNetdev opens a netdev by the sockets that c.Backend says.
func (c *Config) OpenNetdev(cfg packet.Config) (packet.Netdev, error) {
	if c.OpenInterface != nil {
		return c.openGiven(cfg)
	}
	if c.Backend != BackendXDP {
		port, err := packet.Open(cfg)
		if err != nil {
			return nil, err
		}
		return port, nil
	}
	cfg.Queues = 0 // those of the netdev
	port, err := xdp.Open(xdp.Config{Config: cfg, Options: c.XDP, Await: c.Successor,
		Report: c.XDPReport})
	if err != nil {
		return nil, err
	}
	c.Logger.Info(fmt.Sprintf("%s is a %s: served through AF_XDP %s", port.Name(),
		cmp.Or(port.Driver(), "netdev without a driver"), port.Describe()))
	return port, nil
}

// openGiven opens a netdev by OpenInterface.
func (c *Config) openGiven(cfg packet.Config) (packet.Netdev, error) {
	port, err := c.OpenInterface(cfg)
	if err != nil {
		return nil, err
	}
	netdev, ok := port.(packet.Netdev)
	if !ok {
		return nil, errors.Join(errors.New("OpenInterface has opened no packet.Netdev"),
			port.Close())
	}
	return netdev, nil
}

// ReopenNetdev does what OpenNetdev does, for a netdev that was removed and has come back: packet
// sockets if it cannot be served through AF_XDP any more, as when the privileges for that have been
// given up.
func (c *Config) ReopenNetdev(cfg packet.Config) (packet.Netdev, error) {
	again := *c
	again.Successor = false // that has been settled
	port, err := again.OpenNetdev(cfg)
	if c.Backend != BackendXDP {
		return port, err
	}
	if err != nil {
		sockets, packetErr := packet.Open(cfg)
		if packetErr != nil {
			return nil, errors.Join(err, packetErr)
		}
		port = sockets
	}
	if c.XDPReport != nil {
		c.XDPReport(err)
	}
	return port, nil
}

// sampleDrops says which part of the frames that the kernel drops by source comes to the filter all
// the same, which drops them and so knows that their source still sends: 1 in 1024.
const sampleDrops = 1 << 10

// PortConfig returns what packet sockets have of c.
func (c *Config) PortConfig() packet.Config { return c.portConfig(c.NIC) }

func (c *Config) portConfig(nic dv.Config) packet.Config {
	return packet.Config{Device: nic.Device, MAC: net.HardwareAddr(nic.MAC),
		Host: c.Host != nil, Queues: nic.RxQueues, VLAN: nic.VLAN, MTU: nic.MTU,
		Random: nic.Random, SampleDrops: sampleDrops}
}

// Endpoint returns the link, which is closed before the uplink.
func (u *Uplink) Endpoint() *rdma.Endpoint { return u.link }

// HasRings reports whether Open has opened rings.
func (u *Uplink) HasRings() bool { return u.device != nil || u.bond != nil }

// FirstDevice returns the device that Open has opened; nil on a bond, and on packet sockets.
func (u *Uplink) FirstDevice() *dv.Device { return u.device }

// FirstInterface returns the packet sockets that Open has opened, or those beside the rings.
func (u *Uplink) FirstInterface() packet.Interface { return u.packets }

// WatchMAC returns the source to follow, if the stack's MAC address is to be that of the device's
// netdev whenever it changes; else nil. The netdev is in the network namespace of the calling
// thread. Call [Uplink.Keep] first.
func (u *Uplink) WatchMAC() (MACSource, error) {
	switch {
	case u.cfg.Host != nil || u.id == nil || !u.id.ownsNetdevMAC:
		return nil, nil
	case u.id.netdevElsewhere:
		return toldMACs{u.id}, nil
	}
	return watchMAC(u.id)
}

// current returns what the uplink is now: the link that outlives its device, once that is kept,
// else the device. Goroutines that look after addresses may ask for it before.
func (u *Uplink) current() failover.Device {
	if kept := u.kept.Load(); kept != nil {
		return kept
	}
	return u.nic
}

// IsKept reports whether the uplink outlives its device.
func (u *Uplink) IsKept() bool { return u != nil && u.kept.Load() != nil }

// LinkUp reports whether the uplink has a link.
func (u *Uplink) LinkUp() bool { return u == nil || u.current().LinkUp() }

// LinkChanged returns the channel that has a token after a change of LinkUp, for one reader.
func (u *Uplink) LinkChanged() <-chan struct{} { return u.current().LinkChanged() }

// MTUChanged returns the channel that has a token when the uplink has another MTU;
// nil: it never does.
func (u *Uplink) MTUChanged() <-chan struct{} {
	if t, ok := u.current().(interface{ MTUChanged() <-chan struct{} }); ok {
		return t.MTUChanged()
	}
	return nil
}

// Done returns the channel that is closed once the uplink has ended; Err says why.
func (u *Uplink) Done() <-chan struct{} { return u.current().Done() }

func (u *Uplink) Err() error { return u.current().Err() }

// LinkState returns LinkUp, and how often that has changed.
func (u *Uplink) LinkState() (up bool, changes uint64) {
	if u == nil {
		return true, 0
	}
	kept := u.kept.Load()
	switch {
	case kept != nil:
		return kept.LinkUp(), kept.Status().LinkChanges
	case u.device != nil:
		st := u.device.Stats()
		return st.LinkUp, st.LinkChanges
	case u.bond != nil:
		return u.bond.LinkUp(), 0
	}
	if port, ok := u.packets.(packet.Netdev); ok {
		changes = port.Stats().LinkChanges
	}
	return u.packets.LinkUp(), changes
}

// Status says what has become of the device; the zero value if the uplink ends with it.
func (u *Uplink) Status() failover.Status {
	if u.IsKept() {
		return u.kept.Load().Status()
	}
	return failover.Status{}
}

// Recover looks for the device now, see [failover.Link.Recover].
func (u *Uplink) Recover() {
	if u.IsKept() {
		u.kept.Load().Recover()
	}
}

// Device returns the device at work, of a bond one that sends; nil: there is none.
func (u *Uplink) Device() *dv.Device {
	switch at := u.atWork().(type) {
	case *dv.Device:
		return at
	case *bond:
		return at.sender()
	}
	return nil
}

// Devices returns the devices at work: of a bond all, in its order.
func (u *Uplink) Devices() []*dv.Device {
	switch at := u.atWork().(type) {
	case *dv.Device:
		return []*dv.Device{at}
	case *bond:
		return at.devices()
	}
	return nil
}

// PacketPort returns the packet sockets at work; nil: there are none.
func (u *Uplink) PacketPort() packet.Netdev {
	switch port := u.atWork().(type) {
	case portBeside:
		return port.Netdev
	case packet.Netdev:
		return port
	}
	return nil
}

// atWork returns what carries the frames now; nil: nothing.
func (u *Uplink) atWork() any {
	if u == nil {
		return nil
	}
	if kept := u.kept.Load(); kept != nil {
		return kept.AtWork()
	}
	return u.nic
}

// Close closes the uplink. The endpoint must not work any more.
func (u *Uplink) Close() error {
	if u == nil || u.current() == nil {
		return nil
	}
	err := u.current().Close()
	if u.watcher != nil {
		err = errors.Join(err, u.watcher.Close())
	}
	return err
}

// notify puts a token into c unless it has one.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
