package stack

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
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/hostnet"
	"github.com/rdma-netstack/rdma-netstack/link/failover"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

// defaultMaxOutage is Config.MaxOutage if that is 0.
const defaultMaxOutage = 2 * time.Minute

// noFallback names the Config.Fallback that says so.
const noFallback = "none"

// keepLink has the link outlive its device, unless cfg says that the stack is to end with it.
func (s *Stack) keepLink(cfg dv.Config) {
	if s.cfg.MaxOutage < 0 {
		if s.device != nil {
			startMACFollower(s, identify(s.device, cfg))
		}
		return
	}
	c := failover.Config{Endpoint: s.link, MaxOutage: s.cfg.MaxOutage, Grace: s.cfg.GracePeriod,
		Changed: s.backendChanged, Logger: s.log, Clock: s.cfg.Clock}
	var first failover.Opened
	if s.device != nil || s.bond != nil {
		var id *identity
		if s.bond != nil {
			id = &identity{cfg: cfg, host: s.host}
			first = s.bond.opened()
		} else {
			id = identify(s.device, cfg)
			id.host = s.host
			first = id.opened(s.device)
		}
		if id.host != nil || id.ownsNetdevMAC {
			id.address = s.HardwareAddr
		}
		id.use = s.useDevice
		startMACFollower(s, id)
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
	s.failover.Store(failover.Start(first, c))
}

func (id *identity) opened(dev *dv.Device) failover.Opened {
	o := failover.Opened{Device: dev, Backend: rdma.Rings(dev), Name: dev.Name(),
		Ifindex: int(id.ifindex.Load())}
	if id.host != nil {
		o.Backend = rdma.RingsAndSockets(dev, id.host.sockets())
	}
	return o
}

// identity is by what a device is known when it comes back: names such as mlx5_0, the numbers and
// the addresses of netdevs, may be others by then. The node GUID and the number of the port stay,
// unless it is another card.
type identity struct {
	cfg     dv.Config // with the MAC address that the stack had first
	guid    string    // of the RDMA device; "": not known
	port    int
	mac     net.HardwareAddr // of the port's netdev; nil: not known
	netdev  string           // as it was called
	ifindex atomic.Int64     // of the netdev; 0: it has none here
	upper   string           // the netdev that it is a member of, such as a bond; "": none
	queues  int
	host    *host // Config.Host: has packet sockets beside the rings; else nil
	// ownsNetdevMAC: the stack's MAC address is that of the port's netdev
	ownsNetdevMAC bool
	// address is the stack's MAC address now, for one that follows the netdev's; nil: it never
	// changes
	address func() net.HardwareAddr

	use func(*dv.Device) error // is told of each device
}

// identify returns what there is to know of a device at work.
func identify(dev *dv.Device, cfg dv.Config) *identity {
	id := &identity{cfg: cfg, queues: dev.NumRx()}
	id.cfg.MAC = dev.MAC()
	id.note(dev)
	i, err := net.InterfaceByIndex(int(id.ifindex.Load()))
	id.ownsNetdevMAC = cfg.AllowNetdevMAC && err == nil && bytes.Equal(i.HardwareAddr, dev.MAC())
	return id
}

// note notes what there is to know of a device that is open.
func (id *identity) note(dev *dv.Device) {
	i, err := net.InterfaceByName(dev.Netdev())
	if err == nil {
		id.ifindex.Store(int64(i.Index))
	}
	id.netdev = dev.Netdev()
	if id.cfg.Kernel != nil {
		return
	}
	id.guid, id.port = dev.GUID(), dev.Port()
	if err == nil {
		id.mac, id.upper = i.HardwareAddr, upperOf(id.netdev)
	}
}

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
	if id.host != nil && id.host.sockets().Err() != nil {
		return failover.Opened{}, fmt.Errorf("%s is not there: %w", id.host.name(), dv.ErrNotFound)
	}
	cfg := id.cfg
	if cfg.Kernel == nil && (id.mac != nil || id.guid != "" || id.host != nil) {
		found, err := id.find()
		switch {
		case err != nil:
			return failover.Opened{}, err
		case found.ofBond:
			return id.host.reopenBond(ctx, cfg, id.use)
		}
		cfg.Device = found.device
		if found.mtu != 0 && cfg.MTU > found.mtu {
			cfg.MTU = 0 // the netdev's; the link's cap stays
		}
		if id.host != nil {
			cfg.MAC = nil // the netdev's, whatever that is
		}
	}
	if id.address != nil && cfg.Kernel == nil && id.host == nil {
		cfg.MAC = id.address()
	}
	dev, err := openAgain(ctx, cfg, func(dev *dv.Device) error {
		if id.address != nil { // the link follows the netdev's address, and this device with it
			if err := dev.SetMAC(id.address()); err != nil {
				return err
			}
		}
		return id.use(dev)
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

// foundDevice describes a device that has come back, as dv.Config.Device names it; or there is one
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
	if id.host != nil {
		cfg, ofBond, err := id.host.deviceConfig()
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
func (s *Stack) fallback(id *identity) string {
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

// nameOf returns the present name of netdev, which may have been renamed if it is the port's.
func (id *identity) nameOf(netdev string) string {
	if i, err := net.InterfaceByIndex(int(id.ifindex.Load())); err == nil && netdev == id.netdev {
		return i.Name
	}
	return netdev
}

// openFallback opens packet sockets, or what the program has in their place, that nothing comes to
// yet.
func (s *Stack) openFallback(netdev string, id *identity) (failover.OpenedPort, error) {
	netdev = id.nameOf(netdev)
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
		if s.host != nil {
			s.host.hideIfGone()
		}
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
	if kept := s.failover.Load(); kept != nil {
		return kept.Status()
	}
	return failover.Status{}
}

// macRetry says how long after a change of the netdev's MAC that could not be followed it is tried
// again.
const macRetry = time.Second

// macFollower keeps the link's MAC address that of the netdev, for a stack that has that: on the
// host's own addresses, or with NIC.AllowNetdevMAC. One goroutine uses it.
type macFollower struct {
	s       *Stack
	refused string // why the last change could not be followed; "": there is none

	// of the device, unless it is on the host's own addresses
	id      *identity
	watcher *hostnet.Watcher
	kernel  *hostnet.Kernel
}

// startMACFollower follows the netdev of the device, which is in the network namespace of the
// calling thread, until the stack ends. On the host's own addresses there is a goroutine that does
// so anyway, and a MAC of our own never changes.
func startMACFollower(s *Stack, id *identity) {
	if s.host != nil || !id.ownsNetdevMAC {
		return
	}
	f := &macFollower{s: s, id: id}
	var err error
	if f.watcher, err = hostnet.Watch(); err == nil {
		if f.kernel, err = hostnet.Open(); err != nil {
			err = errors.Join(err, f.watcher.Close())
		}
	}
	if err != nil {
		s.log.Warn("changes of the netdev's MAC are not followed", "error", err)
		return
	}
	s.background.Go(f.followNetdev)
}

// followNetdev compares the netdev's MAC with the link's whenever something has changed.
func (f *macFollower) followNetdev() {
	defer f.watcher.Close()
	defer f.kernel.Close()
	late := f.s.clock.NewTimer(time.Hour)
	defer late.Stop()
	for {
		link, err := f.kernel.LinkAt(int(f.id.ifindex.Load()))
		if err == nil { // else it is away, or in another network namespace
			if wait := f.follow(link.Name, link.MAC); wait > 0 {
				late.Reset(wait)
			}
		}
		select {
		case <-f.s.ctx.Done():
			return
		case <-f.watcher.Changed():
		case <-late.C:
		}
		if f.s.clock.Sleep(f.s.ctx, hostPause) != nil {
			return
		}
	}
}

// follow makes mac, which the netdev has, the link's, and says when to try again; 0: it is done.
func (f *macFollower) follow(netdev string, mac net.HardwareAddr) (again time.Duration) {
	s := f.s
	before := s.HardwareAddr()
	if len(mac) != 6 || bytes.Equal(mac, before) {
		f.settle()
		return 0
	}
	if err := f.change(before, mac); err != nil {
		if s.ctx.Err() != nil {
			return 0
		}
		err = fmt.Errorf("netdev %s has the MAC %v now, which we cannot follow, and frames for it "+
			"do not come: %w", netdev, mac, err)
		s.health.report(reportLink, err)
		if f.refused != err.Error() {
			f.refused = err.Error()
			s.log.Error("the MAC of the netdev has changed", "interface", s.name, "error", err)
		}
		return macRetry
	}
	s.claims.moves.Add(1)
	s.log.Warn("the MAC of the netdev has changed, and ours with it", "interface", s.name,
		"netdev", netdev, "before", before.String(), "now", mac.String())
	f.settle()
	s.announceTwice()
	if s.link != nil {
		s.link.Repeat()
	}
	return 0
}

// settle ends what a change that could not be followed has made known.
func (f *macFollower) settle() {
	if f.refused == "" {
		return
	}
	f.refused = ""
	if f.s.carrier().LinkUp() {
		f.s.health.report(reportLink, nil)
	}
}

// change gives packet sockets, devices, link and netstack another MAC, or none of them.
func (f *macFollower) change(before, mac net.HardwareAddr) error {
	var port *packet.Port
	if f.s.host != nil {
		port = f.s.host.sockets()
		if err := port.SetMAC(mac); err != nil {
			return err
		}
	}
	if err := f.s.link.SetMAC(mac); err != nil {
		if port != nil {
			err = errors.Join(err, port.SetMAC(before))
		}
		return err
	}
	own := tcpip.LinkAddress(mac)
	f.s.claims.own.Store(&own)
	return nil
}
