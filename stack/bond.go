package stack

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/hostnet"
	"github.com/rdma-netstack/rdma-netstack/link/failover"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

// bond is the RDMA devices of a bond's members as one nic. Linux decides which member sends; each
// has rings, and all rules. It is the nic for as long as one device is left:
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
	h    *host
	cfg  dv.Config // of each device, but for Device
	use  func(*dv.Device) error
	port *packet.Port // of the bond

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
)

// openBond opens the devices of the bond's members, one at least. The caller starts the bond.
func (h *host) openBond(ctx context.Context, cfg dv.Config, use func(*dv.Device) error) (*bond,
	error) {
	b := &bond{h: h, cfg: cfg, use: use, port: h.sockets(), members: map[string]*bondMember{},
		changed: make(chan struct{}, 1), mtu: make(chan struct{}, 1),
		wake: make(chan struct{}, 1), done: make(chan struct{})}
	b.ctx, b.cancel = context.WithCancel(h.stack.ctx)
	if f := h.stack.cfg.bond; f != nil {
		b.events = f.changed
	} else {
		w, err := hostnet.Watch()
		if err != nil {
			return nil, err
		}
		b.watcher, b.events = w, w.Changed()
	}
	below, err := h.below()
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

// reopenBond is openBond when a device has been lost.
func (h *host) reopenBond(ctx context.Context, cfg dv.Config,
	use func(*dv.Device) error) (failover.Opened, error) {
	b, err := h.openBond(ctx, cfg, use)
	if err != nil {
		return failover.Opened{}, err
	}
	b.start(h.stack.link)
	return b.opened(), nil
}

// start has the bond followed, and the link work on the devices there are.
func (b *bond) start(link *rdma.Endpoint) {
	b.link = link
	b.retry = b.h.stack.clock.NewTimer(time.Hour)
	b.ended.Go(b.run)
}

// opened returns b for the link's failover.
func (b *bond) opened() failover.Opened {
	return failover.Opened{Device: b, Backend: b.backend, Name: "bond " + b.h.name()}
}

// open opens the device of a member.
func (b *bond) open(ctx context.Context, name string) (*dv.Device, error) {
	cfg := b.cfg
	cfg.Device = name
	if i, err := net.InterfaceByName(name); err == nil && cfg.MTU > i.MTU {
		cfg.MTU = 0 // the member's; the link's cap stays
	}
	if f := b.h.stack.cfg.bond; f != nil {
		cfg = f.member(cfg, name)
	}
	return openAgain(ctx, cfg, func(dev *dv.Device) error {
		if b.h.stack.link != nil { // the link follows the bond's address, and this device with it
			if err := dev.SetMAC(b.h.stack.HardwareAddr()); err != nil {
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
