package uplink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/hostnet"
	"github.com/rdma-netstack/rdma-netstack/link/failover"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

// bond joins the RDMA devices of a bond's members into one nic. Linux decides which member sends;
// each has rings, and all rules. It is the nic for as long as one device is left:
//
//	           opened                          lost, or the member has left
//	no rings ──────────▶ in the link's backend ─────────────────────────────▶ being closed
//	 ▲    ▲ │ refused: again after 250 ms to 5 s                                   │
//	 │    └─┘                                                                      │
//	 └─────────────────────────────────────────────────────────────────────────────┘
//
// Frames of a member without rings come by the packet sockets of the bond. If it is the one that
// sends, or none is, these send too. One goroutine, run, decides; devices are opened and closed
// beside it.
type bond struct {
	u    *Uplink
	cfg  dv.Config // of each device, but for Device
	use  func(*dv.Device) error
	port packet.Netdev // of the bond

	changed chan struct{} // capacity 1: a token for LinkChanged
	mtu     chan struct{} // capacity 1: a token for MTUChanged
	wake    chan struct{} // capacity 1: a device was opened, closed or lost
	done    chan struct{} // closed when no device is left
	ctx     context.Context
	cancel  context.CancelFunc
	events  <-chan struct{} // the bond may have changed
	watcher *hostnet.Watcher
	ended   sync.WaitGroup // run, and what it has started
	close   sync.Once

	// run's, once that has started.
	link  *rdma.Endpoint
	retry clock.ChanTimer

	mu      sync.Mutex // guards what follows
	members map[string]*bondMember
	at      []rdma.Member // in the backend
	backend rdma.Backend  // the link's, or it is about to be; written by run
	lost    error         // why the last device was lost
	errs    []error       // of devices that were closed
}

// bondMember describes a member that has a device, or had, or is to have one. Guarded by bond.mu.
type bondMember struct {
	device  *dv.Device // nil: there is none
	busy    bool       // it is being opened or closed
	opened  time.Time
	pause   time.Duration // from a loss or a refusal to the next attempt
	next    time.Time     // of that
	refusal string        // of the last attempt
}

const (
	firstBondPause, longestBondPause = 250 * time.Millisecond, 5 * time.Second
	// steadyBond says how long a device must have worked for the pause after its loss to be short.
	steadyBond = time.Second
	// bondPause gives the least time between two looks at the bond.
	bondPause = 5 * time.Millisecond
	// bondRetry says when the bond is looked at again that could not be followed.
	bondRetry = 20 * time.Millisecond
)

// openBond opens the devices of the bond's members, one at least. The caller starts the bond.
func (u *Uplink) openBond(ctx context.Context, cfg dv.Config, use func(*dv.Device) error) (*bond,
	error) {
	b := &bond{u: u, cfg: cfg, use: use, port: u.cfg.Host.Sockets(),
		members: map[string]*bondMember{},
		changed: make(chan struct{}, 1), mtu: make(chan struct{}, 1),
		wake: make(chan struct{}, 1), done: make(chan struct{})}
	b.ctx, b.cancel = context.WithCancel(u.cfg.Ended)
	if f := u.cfg.Bond; f != nil {
		b.events = f.Changed
	} else {
		w, err := hostnet.Watch()
		if err != nil {
			return nil, err
		}
		b.watcher, b.events = w, w.Changed()
	}
	below, err := u.below()
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	var errs []error
	for _, p := range below.Devices {
		if b.mayHaveRings(p, below) {
			dev, err := b.open(ctx, p.Name)
			errs = append(errs, err)
			b.members[p.Name] = &bondMember{}
			b.note(b.members[p.Name], dev, err)
		}
	}
	b.at = b.plan(below)
	if len(b.at) == 0 {
		return nil, errors.Join(append(errs, b.Close())...)
	}
	b.backend = b.backendOf(b.at, below)
	return b, nil
}

// reopenBond opens and starts a bond in place of a nic that was lost.
func (u *Uplink) reopenBond(ctx context.Context, cfg dv.Config,
	use func(*dv.Device) error) (failover.Opened, error) {
	b, err := u.openBond(ctx, cfg, use)
	if err != nil {
		return failover.Opened{}, err
	}
	b.start(u.link)
	return b.opened(), nil
}

// start follows the bond, and puts the link to work on the devices there are.
func (b *bond) start(link *rdma.Endpoint) {
	b.link = link
	b.retry = b.u.cfg.Clock.NewTimer(time.Hour)
	b.ended.Go(b.run)
}

// opened returns b for the link's failover.
func (b *bond) opened() failover.Opened {
	return failover.Opened{Device: b, Backend: b.backend, Name: "bond " + b.u.cfg.Host.Name()}
}

// open opens the device of a member.
func (b *bond) open(ctx context.Context, name string) (*dv.Device, error) {
	cfg := b.cfg
	cfg.Device = name
	if i, err := net.InterfaceByName(name); err == nil && cfg.MTU > i.MTU {
		cfg.MTU = 0 // the member's; the link's cap stays
	}
	if f := b.u.cfg.Bond; f != nil {
		cfg = f.Member(cfg, name)
	}
	return openAgain(ctx, cfg, func(dev *dv.Device) error {
		// the link, once there is one, follows the bond's address, and this device with it
		if mac := b.u.cfg.HardwareAddr(); mac != nil {
			if err := dev.SetMAC(mac); err != nil {
				return err
			}
		}
		return b.use(dev)
	})
}

// devices returns those at work.
func (b *bond) devices() (all []*dv.Device) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.at {
		all = append(all, m.Device)
	}
	return all
}

// sender returns a device that sends, or the first if none does.
func (b *bond) sender() *dv.Device {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.at[max(slices.IndexFunc(b.at, func(m rdma.Member) bool { return m.Sends }), 0)].Device
}

// LinkUp implements nic: it is the bond's.
func (b *bond) LinkUp() bool { return b.port.LinkUp() }

// LinkChanged implements nic. Another member that sends is a change.
func (b *bond) LinkChanged() <-chan struct{} { return b.changed }

// MTUChanged returns a channel that gets a token when the bond's or a member's MTU changes.
func (b *bond) MTUChanged() <-chan struct{} { return b.mtu }

// Done implements nic.
func (b *bond) Done() <-chan struct{} { return b.done }

// Err implements nic.
func (b *bond) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lost
}

// Close implements nic: it closes all devices.
func (b *bond) Close() error {
	b.close.Do(func() {
		b.cancel()
		b.ended.Wait()
		var errs []error
		if b.watcher != nil {
			errs = append(errs, b.watcher.Close())
		}
		for _, m := range b.members {
			if m.device != nil {
				errs = append(errs, m.device.Close())
			}
		}
		b.mu.Lock()
		b.errs = append(b.errs, errs...)
		b.mu.Unlock()
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	return errors.Join(b.errs...)
}

// run follows the bond until Close, or until no device is left.
func (b *bond) run() {
	defer b.retry.Stop()
	for b.look() {
		select {
		case <-b.ctx.Done():
			return
		case <-b.events:
		case <-b.wake:
		case <-b.retry.C:
		case <-b.port.LinkChanged():
			notify(b.changed)
		case <-b.port.MTUChanged():
			notify(b.mtu)
		}
		if b.u.cfg.Clock.Sleep(b.ctx, bondPause) != nil {
			return
		}
	}
}

// look has the link work on the devices there are, as the bond is now, and opens and closes what is
// to be. It is false when no device is left.
func (b *bond) look() bool {
	below, err := b.u.below()
	if err != nil { // the netdev is gone, and the packet sockets end with it
		return true
	}
	b.mu.Lock()
	now, next := b.at, b.plan(below)
	b.mu.Unlock()
	if len(next) == 0 && b.changing(below) {
		b.retry.Reset(bondRetry)
		return true
	}
	if len(next) == 0 {
		close(b.done)
		return false
	}
	if !slices.Equal(now, next) && !b.change(next, below) {
		b.retry.Reset(bondRetry)
		return true
	}
	b.release()
	b.openMissing(below)
	return true
}

// changing reports whether the bond's address was being changed while below was asked for: a member
// has the one that the bond has by now.
func (b *bond) changing(below hostnet.Below) bool {
	again, err := b.u.below()
	return err == nil && !bytes.Equal(again.MAC, below.MAC) &&
		slices.ContainsFunc(below.Devices, func(p hostnet.Port) bool {
			return bytes.Equal(p.MAC, again.MAC)
		})
}

// plan returns the members that have rings now, and what each is for. mu is held, or nobody else
// knows b.
func (b *bond) plan(below hostnet.Below) (list []rdma.Member) {
	for _, p := range below.Devices {
		m := b.members[p.Name]
		if m == nil || m.device == nil || m.busy || !b.mayHaveRings(p, below) {
			continue
		}
		if err := m.device.Err(); err != nil {
			b.lost = err
			continue
		}
		list = append(list, rdma.Member{Device: m.device, Sends: p.Sends, Receives: p.Receives})
	}
	if len(list) == 0 && b.lost == nil {
		b.lost = fmt.Errorf("no member of bond %s has rings: %w", b.u.cfg.Host.Name(), dv.ErrNoRDMA)
	}
	return list
}

// mayHaveRings says whether a device may be for rings: its function is mlx5, and it has the bond's
// address.
func (b *bond) mayHaveRings(p hostnet.Port, below hostnet.Below) bool {
	return p.Card != "" && bytes.Equal(p.MAC, below.MAC) && slices.Contains(bondModes, below.Mode)
}

func (b *bond) backendOf(list []rdma.Member, below hostnet.Below) rdma.Backend {
	return rdma.Members{List: list, Spread: below.Mode != bondModes[0], Sockets: b.port}.Backend()
}

// change has the link work on list, and reports whether it does: it may not be on the former
// devices yet, or not any more.
func (b *bond) change(list []rdma.Member, below hostnet.Below) bool {
	to := b.backendOf(list, below)
	changed, err := b.link.SwitchFrom(b.backend, to)
	if err != nil {
		b.refuse(err)
	}
	if err != nil || !changed {
		return false
	}
	b.mu.Lock()
	before := senders(b.at)
	b.at, b.backend = list, to
	b.mu.Unlock()
	after := senders(list)
	b.u.cfg.Logger.Warn("the bond's members have changed", "interface", b.u.cfg.Host.Name(),
		"rings", names(list, func(rdma.Member) bool { return true }), "sends", after)
	if before != after {
		notify(b.changed)
	}
	return true
}

// senders names the members that send.
func senders(list []rdma.Member) string {
	by := names(list, func(m rdma.Member) bool { return m.Sends })
	if by == "" {
		return "packet sockets"
	}
	return by
}

func names(list []rdma.Member, which func(rdma.Member) bool) string {
	var all []string
	for _, m := range list {
		if which(m) {
			all = append(all, m.Netdev())
		}
	}
	return strings.Join(all, ", ")
}

// refuse takes the devices that the link is not on for ones that it cannot work on.
func (b *bond) refuse(why error) {
	if b.ctx.Err() != nil {
		return
	}
	b.u.cfg.Logger.Warn("a member of the bond cannot be used", "interface", b.u.cfg.Host.Name(),
		"error", why)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.members {
		if m.device != nil && !b.atWork(m.device) {
			b.closeMember(m)
		}
	}
}

// atWork says whether the link is on a device. mu is held.
func (b *bond) atWork(dev *dv.Device) bool {
	return slices.ContainsFunc(b.at, func(o rdma.Member) bool { return o.Device == dev })
}

// release closes the devices that the link is not on any more.
func (b *bond) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.members {
		if m.device != nil && !m.busy && !b.atWork(m.device) {
			b.closeMember(m)
		}
	}
}

// closeMember closes a member's device, beside run. mu is held.
func (b *bond) closeMember(m *bondMember) {
	if m.busy {
		return
	}
	now := b.u.cfg.Clock.Now()
	if m.pause = min(2*m.pause, longestBondPause); now.Sub(m.opened) >= steadyBond {
		m.pause = firstBondPause
	}
	dev := m.device
	m.busy, m.device, m.next = true, nil, now.Add(max(m.pause, firstBondPause))
	b.ended.Go(func() {
		err := dev.Close()
		lost := dev.Err() != nil
		b.mu.Lock()
		if m.busy = false; err != nil && !lost {
			b.errs = append(b.errs, err)
		}
		b.mu.Unlock()
		notify(b.wake)
	})
}

// openMissing opens the devices of members that have none, beside run, when it is time.
func (b *bond) openMissing(below hostnet.Below) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now, wait := b.u.cfg.Clock.Now(), time.Duration(0)
	for _, p := range below.Devices {
		m := b.members[p.Name]
		if m == nil {
			m = &bondMember{}
			b.members[p.Name] = m
		}
		if m.device != nil || m.busy || !b.mayHaveRings(p, below) {
			continue
		}
		if left := m.next.Sub(now); left > 0 {
			if wait == 0 || left < wait {
				wait = left
			}
			continue
		}
		m.busy = true
		b.ended.Go(func() {
			dev, err := b.open(b.ctx, p.Name)
			b.mu.Lock()
			m.busy = false
			b.note(m, dev, err)
			b.mu.Unlock()
			notify(b.wake)
		})
	}
	if wait > 0 {
		b.retry.Reset(wait)
	}
}

// note takes the result of an attempt to open a member's device. mu is held, or nobody else knows
// b.
func (b *bond) note(m *bondMember, dev *dv.Device, err error) {
	m.device, m.opened = dev, b.u.cfg.Clock.Now()
	if err != nil {
		if m.refusal != err.Error() && b.ctx.Err() == nil {
			b.u.cfg.Logger.Info("a member of the bond has no rings", "interface",
				b.u.cfg.Host.Name(), "error", err)
		}
		m.pause = min(max(2*m.pause, firstBondPause), longestBondPause)
		m.next, m.refusal = m.opened.Add(m.pause), err.Error()
		return
	}
	m.refusal = ""
	b.ended.Go(func() {
		for {
			select {
			case <-dev.MTUChanged():
				notify(b.mtu)
				continue
			case <-dev.Done():
				notify(b.wake)
			case <-b.ctx.Done():
			}
			return
		}
	})
}
