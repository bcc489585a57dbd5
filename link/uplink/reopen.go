package uplink

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/hostnet"
	"github.com/rdma-netstack/rdma-netstack/link/failover"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

// noFallback names the Config.Uplink.Fallback that says so.
const noFallback = "none"

// Keep makes the uplink outlive its device, unless Config says that it ends with that. Config's
// Changed is called from then on.
func (u *Uplink) Keep() {
	cfg := u.opened
	if u.device != nil {
		u.id = u.identify(u.device, cfg)
	} else if u.bond != nil {
		u.id = &identity{u: u, cfg: cfg}
	}
	if u.cfg.MaxOutage < 0 {
		return
	}
	c := failover.Config{Endpoint: u.link, MaxOutage: u.cfg.MaxOutage, Grace: u.cfg.GracePeriod,
		Changed: u.cfg.Changed, Logger: u.cfg.Logger, Clock: u.cfg.Clock}
	var first failover.Opened
	if id := u.id; id != nil {
		if u.bond != nil {
			first = u.bond.opened()
		} else {
			first = id.opened(u.device)
		}
		if u.cfg.Host != nil || id.ownsNetdevMAC {
			id.address = u.cfg.HardwareAddr
		}
		c.Open = func(ctx context.Context) (failover.Opened, error) { return id.open(ctx) }
		if u.cfg.Host != nil {
			c.Joined = true
			c.OpenPort = func() (failover.OpenedPort, error) { return u.openBeside(id.cfg.VLAN) }
		} else if netdev := u.fallback(id); netdev != "" {
			c.OpenPort = func() (failover.OpenedPort, error) { return u.openFallback(netdev, id) }
		}
	} else {
		first = failover.Opened{Device: u.packets, Backend: rdma.Sockets(u.packets),
			Name: u.packets.Name()}
		again := u.cfg.portConfig(cfg)
		again.Device, again.MAC, again.MTU = u.packets.Name(), u.packets.MAC(), 0
		open := func() (packet.Interface, error) { return u.reopenInterface(again) }
		if u.cfg.Host != nil {
			open = func() (packet.Interface, error) { return u.cfg.Host.Reopen() }
		}
		c.Open = func(context.Context) (failover.Opened, error) {
			port, err := open()
			if err != nil {
				return failover.Opened{}, err
			}
			return failover.Opened{Device: port, Backend: rdma.Sockets(port),
				Name: again.Device}, nil
		}
	}
	if cfg.Model.Kernel == nil && (u.id != nil || u.cfg.OpenInterface == nil) {
		w, err := failover.Watch()
		if err != nil {
			u.cfg.Logger.Warn("the return of a lost device is noticed late", "error", err)
		} else {
			c.Signals, u.watcher = w.Signals(), w
		}
	}
	u.kept.Store(failover.Start(first, c))
}

func (id *identity) opened(dev *dv.Device) failover.Opened {
	o := failover.Opened{Device: dev, Backend: rdma.Rings(dev), Name: dev.Name(),
		Ifindex: int(id.ifindex.Load())}
	if host := id.u.cfg.Host; host != nil {
		o.Backend = rdma.RingsAndSockets(dev, host.Sockets())
	}
	return o
}

// identity says by what a device is known when it comes back: names such as mlx5_0, the numbers and
// the addresses of netdevs, may be others by then. The node GUID and the number of the port stay,
// unless it is another card.
type identity struct {
	u       *Uplink
	cfg     dv.Config // with the MAC address that the stack had first
	guid    string    // of the RDMA device; "": not known
	port    int
	mac     net.HardwareAddr // of the port's netdev; nil: not known
	netdev  string           // as it was called
	ifindex atomic.Int64     // of the netdev; 0: it has none here
	upper   string           // the netdev that it is a member of, such as a bond; "": none
	queues  int
	// ownsNetdevMAC: the stack's MAC address is that of the port's netdev
	ownsNetdevMAC bool
	// netdevElsewhere: this machine does not have that netdev, see dv.Device.SetNetdevMAC
	netdevElsewhere bool
	// address is the stack's MAC address now, for one that follows the netdev's; nil: it never
	// changes
	address func() net.HardwareAddr

	// of Config.Kernel: the device at work, and a token when it is another or its netdev's MAC is
	device     atomic.Pointer[dv.Device]
	macChanged chan struct{} // of capacity 1
}

// identify returns what there is to know of a device at work.
func (u *Uplink) identify(dev *dv.Device, cfg dv.Config) *identity {
	id := &identity{u: u, cfg: cfg, queues: dev.NumRx(), macChanged: make(chan struct{}, 1)}
	id.cfg.MAC = dev.MAC()
	id.note(dev)
	i, err := net.InterfaceByIndex(int(id.ifindex.Load()))
	switch here := err == nil && bytes.Equal(i.HardwareAddr, dev.MAC()); {
	case !cfg.Steering.AllowNetdevMAC:
	case here:
		id.ownsNetdevMAC = true
	case cfg.Model.Kernel != nil && bytes.Equal(cfg.Model.Facts.MAC, dev.MAC()):
		id.ownsNetdevMAC, id.netdevElsewhere = true, true
	}
	return id
}

// note notes what there is to know of a device that is open.
func (id *identity) note(dev *dv.Device) {
	i, err := net.InterfaceByName(dev.Netdev())
	if err == nil {
		id.ifindex.Store(int64(i.Index))
	}
	id.netdev = dev.Netdev()
	if id.cfg.Model.Kernel != nil {
		dev.NotifyNetdevMAC(id.macChanged)
		id.device.Store(dev)
		notify(id.macChanged)
		return
	}
	id.guid, id.port = dev.GUID(), dev.Port()
	if err == nil {
		id.mac, id.upper = i.HardwareAddr, upperOf(id.netdev)
	}
}

// MACSource tells of the netdev whose MAC address is a stack's. One goroutine uses it.
type MACSource interface {
	// Netdev returns the name and the MAC address that it has now; ok is false while they are not
	// known, as it is away or in another network namespace.
	Netdev() (name string, mac net.HardwareAddr, ok bool)
	// Changed returns a channel that gets a token when they may have changed.
	Changed() <-chan struct{}
	Close() error
}

// kernelMACs follows a netdev of this machine by rtnetlink.
type kernelMACs struct {
	id      *identity
	watcher *hostnet.Watcher
	kernel  *hostnet.Kernel
}

func watchMAC(id *identity) (MACSource, error) {
	m := &kernelMACs{id: id}
	var err error
	if m.watcher, err = hostnet.Watch(); err != nil {
		return nil, err
	}
	if m.kernel, err = hostnet.Open(); err != nil {
		return nil, errors.Join(err, m.watcher.Close())
	}
	return m, nil
}

// Netdev implements MACSource.
func (m *kernelMACs) Netdev() (name string, mac net.HardwareAddr, ok bool) {
	link, err := m.kernel.LinkAt(int(m.id.ifindex.Load()))
	return link.Name, link.MAC, err == nil
}

// Changed implements MACSource.
func (m *kernelMACs) Changed() <-chan struct{} { return m.watcher.Changed() }

// Close implements MACSource.
func (m *kernelMACs) Close() error {
	m.kernel.Close()
	return m.watcher.Close()
}

// toldMACs follows a netdev that is elsewhere by what Device.SetNetdevMAC says.
type toldMACs struct{ id *identity }

// Netdev implements MACSource.
func (m toldMACs) Netdev() (name string, mac net.HardwareAddr, ok bool) {
	dev := m.id.device.Load()
	mac = dev.NetdevMAC()
	return dev.Netdev(), mac, mac != nil
}

// Changed implements MACSource.
func (m toldMACs) Changed() <-chan struct{} { return m.id.macChanged }

// Close implements MACSource.
func (toldMACs) Close() error { return nil }

// upperOf returns the netdev that netdev is a member of: a bond, or the netvsc or net_failover
// device of a virtual function.
func upperOf(netdev string) string {
	target, err := os.Readlink(filepath.Join("/sys/class/net", netdev, "master"))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// open opens the device that is there now. One that has fewer queues, or smaller rings, is taken
// with what it has.
func (id *identity) open(ctx context.Context) (failover.Opened, error) {
	host := id.u.cfg.Host
	if host != nil && host.Sockets().Err() != nil {
		return failover.Opened{}, fmt.Errorf("%s is not there: %w", host.Name(), dv.ErrNotFound)
	}
	cfg := id.cfg
	if cfg.Model.Kernel == nil && (id.mac != nil || id.guid != "" || host != nil) {
		found, err := id.find()
		switch {
		case err != nil:
			return failover.Opened{}, err
		case found.ofBond:
			return id.u.reopenBond(ctx, cfg, id.u.cfg.UseDevice)
		}
		cfg.Device = found.device
		if found.mtu != 0 && cfg.MTU > found.mtu {
			cfg.MTU = 0 // the netdev's; the link's cap stays
		}
		if host != nil {
			cfg.MAC = nil // the netdev's, whatever that is
		}
	}
	if id.address != nil && cfg.Model.Kernel == nil && host == nil {
		cfg.MAC = id.address()
	}
	dev, err := openAgain(ctx, cfg, func(dev *dv.Device) error {
		if id.address != nil { // the link follows the netdev's address, and this device with it
			if err := dev.SetMAC(id.address()); err != nil {
				return err
			}
		}
		return id.u.cfg.UseDevice(dev)
	})
	if err != nil {
		return failover.Opened{}, err
	}
	id.note(dev)
	return id.opened(dev), nil
}

// openAgain opens a device that has come back, and has it used. It may be another model: one that
// refuses the numbers or sizes of queues gets those that any device has room for, and one that
// lacks an optional feature does without; the log says what was given up.
func openAgain(ctx context.Context, cfg dv.Config, use func(*dv.Device) error) (*dv.Device, error) {
	dev, err := dv.Open(ctx, cfg)
	for _, step := range []struct {
		less  func(dv.Config) dv.Config
		given string
	}{
		{dv.Config.WithDefaultSizes, "the numbers and sizes of its queues"},
		{dv.Config.WithoutOptionalFeatures, "its numbers and sizes of queues, striding, " +
			"VLAN stripping, delayed drops and event moderation"},
	} {
		if !refusedByModel(err) {
			break
		}
		why := err
		cfg = step.less(cfg)
		if dev, err = dv.Open(ctx, cfg); err == nil && cfg.Logger != nil {
			cfg.Logger.Warn("the device that is back lacks what the one before had, and works "+
				"with the defaults for "+step.given, "device", dev.Name(), "error", why)
		}
	}
	if err != nil {
		return nil, err
	}
	if err := use(dev); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return dev, nil
}

// refusedByModel reports whether a device refused what another model might have granted.
func refusedByModel(err error) bool {
	return errors.Is(err, dv.ErrConfig) || errors.Is(err, dv.ErrNotSupported) ||
		errors.Is(err, syscall.EOPNOTSUPP)
}

// foundDevice describes a device that has come back, as dv.NIC.Device names it; or there is one
// for each of several members of a bond.
type foundDevice struct {
	device string
	mtu    int // of its netdev; 0: not known
	ofBond bool
}

// find returns the device with the node GUID and the port of before; or else, of another card, the
// one whose netdev has the address, or is a member of the same netdev, of several one that can be
// used. On the host's own addresses it is what is below the netdev now: members of a bond may have
// come or gone, and with them the device of a RoCE LAG.
func (id *identity) find() (foundDevice, error) {
	if id.u.cfg.Host != nil {
		cfg, ofBond, err := id.u.deviceConfig()
		found := foundDevice{device: cfg.Device, ofBond: ofBond}
		if i, err := net.InterfaceByName(cfg.Device); err == nil {
			found.mtu = i.MTU
		}
		return found, err
	}
	same := 0
	known, knownErr := dv.Find(func(d dv.DeviceInfo) bool {
		is := id.guid != "" && d.GUID == id.guid && d.Port == id.port
		if is {
			same++
		}
		return is
	})
	if knownErr == nil && same == 1 {
		return foundDevice{device: known.Device(), mtu: known.MTU}, nil
	}
	found, err := dv.Find(func(d dv.DeviceInfo) bool {
		return id.mac != nil && bytes.Equal(d.MAC, id.mac) ||
			id.upper != "" && d.Netdev != "" && upperOf(d.Netdev) == id.upper
	})
	switch {
	case err == dv.ErrNotFound && same == 1:
		err = knownErr
	case err == dv.ErrNotFound:
		err = fmt.Errorf("no RDMA device here has the node GUID %s, or a netdev with address %v: "+
			"%w", cmp.Or(id.guid, "of before"), id.mac, err)
	}
	return foundDevice{device: found.Device(), mtu: found.MTU}, err
}

// fallback returns the netdev for packet sockets while the device is away, "" for none.
func (u *Uplink) fallback(id *identity) string {
	switch {
	case u.cfg.Fallback == noFallback:
		return ""
	case u.cfg.Fallback != "":
		return u.cfg.Fallback
	case id.mac == nil || bytes.Equal(id.cfg.MAC, id.mac) || id.cfg.Steering.Promiscuous:
		return "" // Linux has the frames then
	case id.upper != "":
		return id.upper
	}
	return id.netdev
}

// nameOf returns the present name of netdev, which may have been renamed if it is the port's.
func (id *identity) nameOf(netdev string) string {
	if i, err := net.InterfaceByIndex(int(id.ifindex.Load())); err == nil && netdev == id.netdev {
		return i.Name
	}
	return netdev
}

// openFallback opens packet sockets, or what the program has in their place, that nothing comes to
// yet.
func (u *Uplink) openFallback(netdev string, id *identity) (failover.OpenedPort, error) {
	netdev = id.nameOf(netdev)
	port, err := u.openInterface(packet.Config{Device: netdev, MAC: net.HardwareAddr(id.cfg.MAC),
		Queues: id.queues, VLAN: id.cfg.VLAN, Random: id.cfg.Random, SampleDrops: sampleDrops})
	if err != nil {
		return failover.OpenedPort{}, err
	}
	// no groups: the netdev is not to pass all of them for a port that is muted
	if err := errors.Join(port.SetGroups(nil), port.Mute()); err != nil {
		return failover.OpenedPort{}, errors.Join(err, port.Close())
	}
	return failover.OpenedPort{Port: port, Backend: rdma.Sockets(port), Name: netdev}, nil
}

// portBeside is such sockets as those that carry the frames while the device is away. They are
// never muted: they receive while the device is there, too.
type portBeside struct{ packet.Netdev }

// Mute implements failover.Port.
func (portBeside) Mute() error { return nil }

// Unmute implements failover.Port.
func (portBeside) Unmute() error { return nil }

// openBeside gives the link the sockets that are open, or others when the netdev is made again.
func (u *Uplink) openBeside(vlan uint16) (failover.OpenedPort, error) {
	port := u.cfg.Host.Sockets()
	if port.Err() != nil {
		var err error
		if port, err = u.cfg.Host.Reopen(); err != nil {
			return failover.OpenedPort{}, err
		}
	}
	return failover.OpenedPort{Port: portBeside{port}, Name: port.Name(),
		Backend: rdma.SocketsInVLAN(port, vlan)}, nil
}
