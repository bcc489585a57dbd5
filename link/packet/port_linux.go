package packet

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/netlink"
)

// Port describes an interface, opened. Its methods may be called from any goroutine.
//
//	Open ──▶ open ──▶ stopped ──▶ closed
//	          │  Stop   ▲  Close
//	          ▼         │
//	         gone ──────┘   Err is ErrGone, Done is closed
//
// An interface that goes down stays open: LinkUp tells, what is sent meanwhile is dropped.
type Port struct {
	// Set by Open.
	name  string
	iface iface
	cfg   Config
	rx    []*RxQueue
	tx    []*TxQueue

	cutsUDP bool // the kernel cuts up UDP, too

	groups groups
	ports  atomic.Pointer[portTable] // Config.Host: what comes to us; else nil
	// fragments holds those of Config.Host whose datagram is not whole
	fragments fragments

	mtu         atomic.Int32                     // bytes; Config.MTU is the most
	mtuChanged  chan struct{}                    // capacity 1
	mac         atomic.Pointer[net.HardwareAddr] // nil: Config.MAC
	linkUp      atomic.Bool
	linkChanges atomic.Uint64
	linkChanged chan struct{}     // capacity 1
	watcher     *netlink.Listener // nil until the interface is watched
	stopped     atomic.Bool       // Err is set

	once     sync.Once
	closeErr error

	mu     sync.Mutex
	done   chan struct{}
	err    error // guarded by mu; why the port is over
	closed bool  // guarded by mu
}

// Open opens the interface that cfg names; frames for its MAC arrive from then on. On failure
// nothing is left behind, and the error is one sentence that says what to do.
func Open(cfg Config) (*Port, error) {
	if err := cfg.fillDefaults(); err != nil {
		return nil, err
	}
	cfg.Device = canonical(cfg.Device)
	p := &Port{name: cfg.Device, done: make(chan struct{}), linkChanged: make(chan struct{}, 1),
		mtuChanged: make(chan struct{}, 1), cutsUDP: kernelCutsUDP()}
	fds, err := openSockets(&cfg, &p.iface)
	if err != nil {
		return nil, err
	}
	p.cfg = cfg
	p.mtu.Store(int32(cfg.usableMTU(p.iface.mtu)))
	p.linkUp.Store(p.iface.up && p.iface.carrier)
	for i, fd := range fds {
		if err := p.addQueue(i, fd); err != nil {
			return nil, errors.Join(err, p.closeAll(fds[i:]))
		}
	}
	if err := p.watch(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	if err := p.startReceiving(); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", cfg.Device, err), p.Close())
	}
	return p, nil
}

// startReceiving lets frames in.
func (p *Port) startReceiving() error {
	if p.cfg.Host {
		return p.SetPorts(nil)
	}
	return p.changeGroups(nil, true)
}

// openSockets makes the sockets and sets them up but for the filter, so that no frame has come.
func openSockets(cfg *Config, i *iface) (fds []int, err error) {
	defer func() {
		if err != nil {
			for _, fd := range fds {
				unix.Close(fd)
			}
			fds = nil
		}
	}()
	for range cfg.Queues {
		fd, err := newSocket()
		if err != nil {
			return fds, err
		}
		fds = append(fds, fd)
	}
	if *i, err = ifaceNamed(fds[0], cfg.Device); err != nil {
		return fds, err
	}
	for _, fd := range fds {
		if err := prepareAndBind(fd, i.index); err != nil {
			return fds, fmt.Errorf("open %s: %w", cfg.Device, err)
		}
	}
	if err := i.askAddress(fds[0]); err != nil {
		return fds, err
	}
	if err := cfg.checkInterface(i); err != nil {
		return fds, err
	}
	err = joinFanout(fds)
	if !cfg.Host {
		err = errors.Join(err, setMembership(fds[0], i.index, unix.PACKET_ADD_MEMBERSHIP, cfg.MAC))
	}
	if err != nil {
		return fds, fmt.Errorf("open %s: %w", cfg.Device, err)
	}
	return fds, nil
}

// addQueue makes queue i of a socket, which is its own then.
func (p *Port) addQueue(i, fd int) error {
	file := os.NewFile(uintptr(fd), fmt.Sprintf("packet socket %d of %s", i, p.name))
	raw, err := file.SyscallConn()
	if err != nil {
		return fmt.Errorf("open %s: %w", p.name, err)
	}
	rx, tx := new(RxQueue), &TxQueue{port: p, index: i, fd: fd}
	rx.initSocket(p, i, file, raw, fd)
	p.rx, p.tx = append(p.rx, rx), append(p.tx, tx)
	return nil
}

// closeAll closes what Open has made, and sockets that are no queues yet.
func (p *Port) closeAll(fds []int) error {
	for _, fd := range fds {
		unix.Close(fd)
	}
	return p.Close()
}

// Name returns the interface's name when it was opened.
func (p *Port) Name() string { return p.name }

// Driver returns the name of the interface's driver, such as virtio_net; "" if it has none.
func (p *Port) Driver() string { return p.iface.driver }

// MAC returns the address whose frames come to us.
func (p *Port) MAC() net.HardwareAddr {
	if changed := p.mac.Load(); changed != nil {
		return *changed
	}
	return p.cfg.MAC
}

// SetMAC notes that the interface has another MAC now, which is ours, too. It is for a port with
// Config.Host: the kernel's filter passes what is sent to the interface, whatever its address is.
func (p *Port) SetMAC(mac net.HardwareAddr) error {
	if !p.cfg.Host || len(mac) != 6 {
		return fmt.Errorf("MAC %v is not that of %s: the port has one of its own", mac, p.name)
	}
	mac = slices.Clone(mac)
	p.mac.Store(&mac)
	return nil
}

// VLAN returns the 802.1Q network that we are in, 0 if none.
func (p *Port) VLAN() uint16 { return p.cfg.VLAN }

// MTU returns the largest IP packet sent now, in bytes: the interface's MTU, as last told, but no
// more than Config.MTU.
func (p *Port) MTU() int { return int(p.mtu.Load()) }

// MTUChanged implements [MTUTeller].
func (p *Port) MTUChanged() <-chan struct{} { return p.mtuChanged }

// NumQueues returns the number of queues, in each direction.
func (p *Port) NumQueues() int { return len(p.rx) }

// Rx is receive queue i, a [*RxQueue]. A queue lives as long as its port.
func (p *Port) Rx(i int) Receiver { return p.rx[i] }

// Tx is send queue i, a [*TxQueue].
func (p *Port) Tx(i int) Sender { return p.tx[i] }

// LinkUp says whether the interface is up and has a carrier, as last told.
func (p *Port) LinkUp() bool { return p.linkUp.Load() }

// LinkChanged has a token in it when LinkUp has changed since the last one was taken. It is for
// one reader and is never closed.
func (p *Port) LinkChanged() <-chan struct{} { return p.linkChanged }

// Done is closed when the interface is gone or the port is stopped; Err says why.
func (p *Port) Done() <-chan struct{} { return p.done }

// Err returns nil while the port works, then ErrClosed or an error that is ErrGone.
func (p *Port) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Stop ends reception and sending: every Wait returns ErrClosed, and so does every Post. Stopping
// again does nothing.
func (p *Port) Stop() { p.endOnce(ErrClosed) }

// endOnce records why the port is over, once, and tells every queue.
func (p *Port) endOnce(why error) {
	p.mu.Lock()
	if p.err == nil {
		p.err = why
		p.stopped.Store(true)
		close(p.done)
	}
	p.mu.Unlock()
	for _, q := range p.rx {
		q.Wake()
	}
}

// Stats returns all counters. They are not taken at one instant.
func (p *Port) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Stats{LinkUp: p.LinkUp(), LinkChanges: p.linkChanges.Load(),
		FragmentsDropped: p.fragments.discarded()}
	for i := range p.rx {
		if !p.closed {
			p.rx[i].countDrops()
		}
		s.Rx = append(s.Rx, p.rx[i].countersNow())
		s.Tx = append(s.Tx, p.tx[i].countersNow())
	}
	return s
}

// Dropped returns how many frames the kernel had no room for.
func (p *Port) Dropped() (n uint64) {
	for _, q := range p.Stats().Rx {
		n += q.Dropped
	}
	return n
}

// Close stops the port and closes its sockets; the interface is as it was. It waits for calls of
// queues that are going on, but for Wait, which it ends. Closing again waits for the first Close
// and returns its result.
func (p *Port) Close() error {
	p.once.Do(func() {
		p.Stop()
		if p.watcher != nil {
			p.closeErr = p.watcher.Close()
		}
		p.Stats() // the last drops
		p.mu.Lock()
		defer p.mu.Unlock()
		p.closed = true
		for i := range p.rx {
			p.tx[i].closeSocket()
			p.rx[i].closeSocket()
			p.closeErr = errors.Join(p.closeErr, p.rx[i].file.Close())
		}
	})
	return p.closeErr
}
