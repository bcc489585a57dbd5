package stack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/failover"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

// defaultMaxOutage is Config.MaxOutage if that is 0.
const defaultMaxOutage = 2 * time.Minute

// noFallback is the Config.Fallback that says so.
const noFallback = "none"

// keepLink has the link outlive its device, unless cfg says that the stack is to end with it.
func (s *Stack) keepLink(cfg dv.Config) {
	if s.cfg.MaxOutage < 0 {
		return
	}
	c := failover.Config{Endpoint: s.link, MaxOutage: s.cfg.MaxOutage, Grace: s.cfg.GracePeriod,
		Changed: s.backendChanged, Logger: s.log, Clock: s.cfg.Clock}
	var first failover.Opened
	if s.device != nil || s.bond != nil {
		var id identity
		if s.bond != nil {
			id = identity{cfg: cfg, host: s.host}
			first = s.bond.opened()
		} else {
			id = identify(s.device, cfg)
			id.host = s.host
			first = id.opened(s.device, id.ifindex)
		}
		id.use = s.useDevice
		c.Open = func(ctx context.Context) (failover.Opened, error) { return id.open(ctx) }
		if s.host != nil {
			c.Joined = true
			c.OpenPort = func() (failover.OpenedPort, error) {
				return s.host.openBeside(id.cfg.VLAN)
			}
		} else if netdev := s.fallback(id); netdev != "" {
			c.OpenPort = func() (failover.OpenedPort, error) { return s.openFallback(netdev, id) }
		}
	} else {
		first = failover.Opened{Device: s.packets, Backend: rdma.Sockets(s.packets),
			Name: s.packets.Name()}
		again := s.portConfig(cfg)
		again.Device, again.MAC, again.MTU = s.packets.Name(), s.packets.MAC(), 0
		open := func() (packet.Interface, error) { return s.openInterface(again) }
		if s.host != nil {
			open = func() (packet.Interface, error) { return s.host.reopen() }
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
	if cfg.Kernel == nil && (s.device != nil || s.bond != nil || s.cfg.OpenInterface == nil) {
		w, err := failover.Watch()
		if err != nil {
			s.log.Warn("the return of a lost device is noticed late", "error", err)
		} else {
			c.Signals, s.watcher = w.Signals(), w
		}
	}
	s.failover = failover.Start(first, c)
	s.nic = s.failover
}

func (id *identity) opened(dev *dv.Device, ifindex int) failover.Opened {
	o := failover.Opened{Device: dev, Backend: rdma.Rings(dev), Name: dev.Name(), Ifindex: ifindex}
	if id.host != nil {
		o.Backend = rdma.RingsAndSockets(dev, id.host.sockets())
	}
	return o
}

// identity is by what a device is known when it comes back: names such as mlx5_0, and the numbers
// of netdevs, may be others by then.
type identity struct {
	cfg     dv.Config        // with the MAC address that the stack has
	mac     net.HardwareAddr // of the port's netdev; nil: not known
	netdev  string           // as it was called
	ifindex int
	upper   string // the netdev that it is a member of, such as a bond; "": none
	queues  int
	host    *host // Config.Host: has packet sockets beside the rings; else nil

	use func(*dv.Device) error // is told of each device
}

// identify is what there is to know of a device at work.
func identify(dev *dv.Device, cfg dv.Config) identity {
	id := identity{cfg: cfg, netdev: dev.Netdev(), queues: dev.NumRx()}
	id.cfg.MAC = dev.MAC()
	if cfg.Kernel != nil {
		return id
	}
	if i, err := net.InterfaceByName(id.netdev); err == nil {
		id.mac, id.ifindex = i.HardwareAddr, i.Index
		id.upper = upperOf(id.netdev)
	}
	return id
}

// upperOf is the netdev that netdev is a member of: a bond, or the netvsc or net_failover device of
// a virtual function.
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
	if id.host != nil && id.host.sockets().Err() != nil {
		return failover.Opened{}, fmt.Errorf("%s is not there: %w", id.host.netdev, dv.ErrNotFound)
	}
	cfg := id.cfg
	ifindex := 0
	if id.mac != nil || id.host != nil && cfg.Kernel == nil {
		found, err := id.find()
		switch {
		case err != nil:
			return failover.Opened{}, err
		case found.ofBond:
			return id.host.reopenBond(ctx, cfg, id.use)
		}
		cfg.Device = found.name
		if i, err := net.InterfaceByName(found.netdev); err == nil {
			ifindex = i.Index
			if cfg.MTU > i.MTU {
				cfg.MTU = 0 // the netdev's; the link's cap stays
			}
		}
	}
	dev, err := openAgain(ctx, cfg, id.use)
	if err != nil {
		return failover.Opened{}, err
	}
	return id.opened(dev, ifindex), nil
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

// foundDevice is a device that has come back, and its netdev; or there is one for each of several
// members of a bond.
type foundDevice struct {
	name, netdev string
	ofBond       bool
}

// find is the device whose netdev has the address, or is a member of the same netdev, and that
// netdev; of several one that can be used. On the host's own addresses it is what is below the
// netdev now: members of a bond may have come or gone, and with them the device of a RoCE LAG.
func (id *identity) find() (foundDevice, error) {
	if id.host != nil {
		cfg, ofBond, err := id.host.deviceConfig()
		return foundDevice{cfg.Device, cfg.Device, ofBond}, err
	}
	found, err := dv.Find(func(d dv.DeviceInfo) bool {
		return bytes.Equal(d.MAC, id.mac) ||
			id.upper != "" && d.Netdev != "" && upperOf(d.Netdev) == id.upper
	})
	if err == dv.ErrNotFound {
		err = fmt.Errorf("no RDMA device here has a netdev with address %v: %w", id.mac, err)
	}
	return foundDevice{name: found.Name, netdev: found.Netdev}, err
}

// fallback is the netdev for packet sockets while the device is away, "" for none.
func (s *Stack) fallback(id identity) string {
	switch {
	case s.cfg.Fallback == noFallback:
		return ""
	case s.cfg.Fallback != "":
		return s.cfg.Fallback
	case id.mac == nil || bytes.Equal(id.cfg.MAC, id.mac) || id.cfg.Promiscuous:
		return "" // Linux has the frames then
	case id.upper != "":
		return id.upper
	}
	return id.netdev
}

// openFallback opens packet sockets, or what the program has in their place, that nothing comes to
// yet.
func (s *Stack) openFallback(netdev string, id identity) (failover.OpenedPort, error) {
	port, err := s.openInterface(packet.Config{Device: netdev, MAC: net.HardwareAddr(id.cfg.MAC),
		Queues: id.queues, VLAN: id.cfg.VLAN, Random: id.cfg.Random})
	if err != nil {
		return failover.OpenedPort{}, err
	}
	// no groups: the netdev is not to pass all of them for a port that is muted
	if err := errors.Join(port.SetGroups(nil), port.Mute()); err != nil {
		return failover.OpenedPort{}, errors.Join(err, port.Close())
	}
	return failover.OpenedPort{Port: port, Backend: rdma.Sockets(port), Name: netdev}, nil
}

// backendChanged acts on what has become of the device.
func (s *Stack) backendChanged(c failover.Change) {
	switch c.State {
	case failover.Lost:
		s.health.report(reportDevice, c.Cause)
		return
	case failover.Up:
		s.health.report(reportDevice, nil)
	}
	switch {
	case c.Expired:
		s.outage.begin()
		s.health.report(reportStack, syscall.ENETDOWN)
		s.abortConnections()
	case c.Backend != rdma.BackendNone:
		s.outage.end()
		s.health.report(reportStack, nil)
	}
	s.mtu.follow()
	if s.host != nil {
		notify(s.host.returned) // the kernel's sockets get the datagrams that rings do not take
	}
	if c.LinkUp {
		s.linkIsUp()
	} else {
		s.health.report(reportLink, errLinkDown)
	}
}

// LinkStatus says what carries the stack's frames, and what has become of its device; the zero
// value if the stack ends with its device, or was made by [New].
func (s *Stack) LinkStatus() failover.Status {
	if s.failover == nil {
		return failover.Status{}
	}
	return s.failover.Status()
}
