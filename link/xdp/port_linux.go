package xdp

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/bpf"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
)

// Port represents an interface whose frames come through AF_XDP sockets, and through the packet
// sockets beside them. Its methods may be called from any goroutine.
//
//	Open ──▶ waiting ──▶ serving ──▶ over, as the packet.Port
//	           │  the program is not attached, or a queue has no socket of ours: another process
//	           ▼  has them. All arrives by packet sockets; it is tried again until it is done.
//	          over
type Port struct {
	*packet.Port
	cfg       Config
	facts     facts
	asker     *asker
	index     int // of the interface
	at        namespace
	rx        []*RxQueue
	tx        []packet.Sender
	kept      sync.WaitGroup // the goroutine of keepTaking
	muted     atomic.Bool
	over      atomic.Bool // Err is set, or will be
	once      sync.Once
	ended     error  // of the first Close
	programID uint32 // as "bpftool prog" lists it; 0: not known

	mu      sync.Mutex
	program int // file descriptors, guarded by mu as is what follows; -1: there is none
	link    int // of the program and the interface
	sockets int // an XSKMAP
	macs    int // Config.Host: the interface's MAC
	table   int // Config.Host: our ports
	ports   map[portKey]int
	sources sources
	bound   int    // queues with a socket
	lacking error  // why not all of them; nil: they have
	queues  int    // of the interface, as last seen
	changes uint64 // of queues
	told    error  // what Config.Report was called with last
	toldOf  int    // the number of queues that told is about; 0: another process
	closed  bool
}

// Open opens the interface that cfg names; frames arrive from then on. It asks first and attaches
// last: an interface that cannot be served so is left as it was, its NIC's rings, too, and the
// error is one sentence that says why.
func Open(cfg Config) (*Port, error) {
	if err := cfg.Send.Validate(); err != nil {
		return nil, err
	}
	asker, err := newAsker()
	if err != nil {
		return nil, err
	}
	p := &Port{cfg: cfg, asker: asker, at: ownNamespace(), program: -1, link: -1, sockets: -1,
		macs: -1, table: -1, ports: map[portKey]int{}, sources: sources{trie: -1,
			held: map[sourceKey]*source{}, uncounted: map[packet.SourceDrop]uint64{}}}
	if p.Port, err = p.openSockets(); err != nil {
		p.at.closeFile()
		return nil, errors.Join(err, asker.closeSockets())
	}
	err = p.makeObjects()
	if err == nil {
		err = p.takeQueues()
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	p.kept.Add(1)
	go p.keepTaking()
	return p, nil
}

// openSockets opens the packet sockets, one for each queue, if nothing stands against AF_XDP.
func (p *Port) openSockets() (_ *packet.Port, err error) {
	if p.facts, p.index, err = p.asker.factsOf(p.cfg.Device); err != nil {
		return nil, err
	}
	if err := p.facts.refuseConfig(&p.cfg); err != nil {
		return nil, err
	}
	if p.cfg.Queues == 0 {
		p.cfg.Queues = min(p.facts.queues, maxQueues)
	}
	p.cfg.Device = p.facts.name
	return packet.Open(p.cfg.Config)
}

// maxQueues repeats that of package packet.
const maxQueues = 64

// makeObjects makes all that needs privileges, and attaches none of it.
func (p *Port) makeObjects() (err error) {
	n := p.Port.NumQueues()
	p.queues = p.facts.queues
	p.sockets, err = newMap(unix.BPF_MAP_TYPE_XSKMAP, 4, 4, uint32(n), 0, "sockets")
	if err != nil {
		return err
	}
	build := func(sources int) []byte {
		return ownMACProgram([6]byte(p.MAC()), p.cfg.VLAN, sources, p.sockets)
	}
	if p.cfg.Host {
		const most = 1 << 18 // keys of ports; memory is taken as they come
		if p.macs, err = newMap(unix.BPF_MAP_TYPE_ARRAY, 4, 8, 1, 0, "mac"); err != nil {
			return err
		}
		if p.table, err = newMap(unix.BPF_MAP_TYPE_HASH, portKeyLen, 4, most,
			unix.BPF_F_NO_PREALLOC, "ports"); err != nil {
			return err
		}
		if err := p.putMAC(p.MAC()); err != nil {
			return err
		}
		build = func(sources int) []byte {
			return hostProgram(hostMaps{mac: p.macs, ports: p.table, sources: sources,
				sockets: p.sockets})
		}
	}
	if err := p.loadWithSources(build); err != nil {
		return err
	}
	p.programID = idOfProgram(p.program)
	for i := range n {
		s, err := newSocket(p.cfg.Send)
		if err != nil {
			return err
		}
		q := newRxQueue(p, i, s)
		p.rx = append(p.rx, q)
		if p.cfg.Send == SendRings {
			p.tx = append(p.tx, &txQueue{port: p, index: i, socket: s, rx: q})
		} else {
			p.tx = append(p.tx, p.Port.Tx(i))
		}
	}
	return nil
}

const (
	// settle says for how long a program and sockets of a process that has ended may be in our way:
	// the kernel takes them away after the process.
	settle = time.Second
	// again says how long to wait before what others have is asked for again, and look how long
	// between looks at the number of queues.
	again, look = 20 * time.Millisecond, 5 * time.Second
)

// takeQueues takes what it can and waits for a second for the rest; with Config.Await it does not.
func (p *Port) takeQueues() error {
	for deadline := time.Now().Add(settle); ; time.Sleep(again) {
		err := p.takeRest()
		switch {
		case err == nil:
			return nil
		case p.cfg.Await && isTaken(err):
			return nil
		case !isTaken(err) || time.Now().After(deadline):
			return p.whoHasIt(err)
		}
	}
}

// isTaken reports whether somebody else has what was asked for.
func isTaken(err error) bool { return errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST) }

// whoHasIt says who has the interface, if somebody has.
func (p *Port) whoHasIt(err error) error {
	if !isTaken(err) || p.link >= 0 {
		return err
	}
	now, _, asked := p.asker.factsOf(p.Name())
	if asked != nil || now.program == 0 {
		return err
	}
	return now.sayTaken()
}

// takeRest attaches the program and binds the sockets, as far as that is not done. It needs no
// privileges. The error is of the first that failed.
func (p *Port) takeRest() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.lacking = p.takeLocked()
	return p.lacking
}

func (p *Port) takeLocked() error {
	if p.link < 0 {
		// The program first, which zero copy needs: it passes all while no queue has a socket.
		err := p.at.doInside(func() (err error) {
			p.link, err = attachProgram(p.program, p.index, unix.XDP_FLAGS_DRV_MODE)
			return err
		})
		if err != nil {
			return p.explainAttach(err)
		}
	}
	var first error
	for i, q := range p.rx {
		if q.bound.Load() {
			continue
		}
		if err := q.socket.bindTo(p.index, i, p.cfg.Options); err != nil {
			if isTaken(err) {
				err = fmt.Errorf("another process has an AF_XDP socket on queue %d of %s (ss "+
					"--xdp lists it): %w", i, p.Name(), err)
			}
			first = cmp.Or(first, err)
			continue
		}
		if err := q.useSocket(); err != nil {
			return err
		}
		p.bound++
		if !p.muted.Load() {
			if err := p.leadQueue(i); err != nil {
				return err
			}
		}
	}
	return first
}

// leadQueue makes the program lead a queue's frames to its socket. mu is held, or nobody else is
// about.
func (p *Port) leadQueue(i int) error {
	err := bpf.PutElement(p.sockets, nativeBytes(uint32(i)), nativeBytes(uint32(p.rx[i].socket.fd)))
	if err != nil {
		return fmt.Errorf("lead frames of queue %d of %s to its socket: %w", i, p.Name(), err)
	}
	return nil
}

// explainAttach says what the errors of attaching mean, which the kernel does not.
func (p *Port) explainAttach(err error) error {
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%s is a %s and not to be served through AF_XDP: its driver runs no XDP "+
			"programs, or not with the offloads that are on; use packet sockets: %w", p.Name(),
			cmp.Or(p.facts.driver, "netdev without a driver"), err)
	case errors.Is(err, unix.ERANGE):
		return fmt.Errorf("attach the XDP program to %s: an MTU is too large for it, its own or "+
			"the other end's; set it to %d: %w", p.Name(), maxMTU, err)
	}
	return explainPrivilege("attach the XDP program to "+p.Name(), err)
}

// keepTaking takes what others let go of, looks at the number of queues, and wakes whoever waits
// when the port is over.
func (p *Port) keepTaking() {
	defer p.kept.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-p.Done():
			p.over.Store(true)
			for _, q := range p.rx {
				q.Wake()
			}
			return
		case <-timer.C:
		}
		wait := look
		if isTaken(p.takeRest()) {
			wait = again
		}
		p.lookAtQueues()
		timer.Reset(wait)
	}
}

// errQueues tells of queues without a socket.
var errQueues = errors.New("receive queues without an AF_XDP socket")

// lookAtQueues makes known what is not as it was asked for, when that changes.
func (p *Port) lookAtQueues() {
	n, err := p.asker.queuesOf(p.Name())
	p.mu.Lock()
	if err == nil && p.queues != n {
		p.queues, p.changes = n, p.changes+1
	}
	now := p.shortcoming()
	number := 0 // of queues that have been told of
	if p.lacking == nil {
		number = p.queues
	}
	changed := (now == nil) != (p.told == nil) || now != nil && number != 0 && number != p.toldOf
	p.told, p.toldOf = now, number
	p.mu.Unlock()
	if changed && p.cfg.Report != nil {
		p.cfg.Report(now)
	}
}

// shortcoming says which queues have no socket of ours, and why. mu is held.
func (p *Port) shortcoming() error {
	switch {
	case p.lacking != nil:
		return fmt.Errorf("%w: frames of %s come by packet sockets until another process has let "+
			"go of it: %w", errQueues, p.Name(), p.lacking)
	case p.queues > len(p.rx):
		return fmt.Errorf("%w: %s receives by %d queues and has sockets on %d, and what comes by "+
			"the others arrives by packet sockets; start again to have it otherwise", errQueues,
			p.Name(), p.queues, len(p.rx))
	}
	return nil
}

// Stop ends reception and sending, as [packet.Port.Stop] does.
func (p *Port) Stop() {
	p.over.Store(true)
	p.Port.Stop()
}

// NumQueues implements packet.Interface.
func (p *Port) NumQueues() int { return len(p.rx) }

// Rx implements packet.Interface.
func (p *Port) Rx(i int) packet.Receiver { return p.rx[i] }

// Tx implements packet.Interface.
func (p *Port) Tx(i int) packet.Sender { return p.tx[i] }

// Beside implements packet.Joined.
func (p *Port) Beside() packet.Interface { return p.Port }

// SetMAC notes that the interface has another MAC now. See [packet.Port.SetMAC].
func (p *Port) SetMAC(mac net.HardwareAddr) error {
	if err := p.Port.SetMAC(mac); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	return p.putMAC(mac)
}

// putMAC tells the program the interface's MAC.
func (p *Port) putMAC(mac net.HardwareAddr) error {
	var value [8]byte
	copy(value[:], mac)
	if err := bpf.PutElement(p.macs, nativeBytes(0), value[:]); err != nil {
		return fmt.Errorf("tell the XDP program of %s its MAC: %w", p.Name(), err)
	}
	return nil
}

// SetPorts tells the packet sockets and the program which ports of the host's addresses are ours,
// in place of those of the call before. What the program has not been told yet comes by the packet
// sockets.
func (p *Port) SetPorts(list []packet.Ports) error {
	if err := p.Port.SetPorts(list); err != nil {
		return err
	}
	now := map[portKey]int{}
	for _, ports := range list {
		for _, k := range keysOf(ports) {
			now[k]++
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for k := range p.ports {
		if now[k] == 0 {
			errs = append(errs, p.forgetPort(k))
		}
	}
	for k, n := range now {
		if p.ports[k] == 0 {
			errs = append(errs, p.tellPort(k))
		}
		p.ports[k] = n
	}
	return errors.Join(errs...)
}

// ChangePorts does as SetPorts for single ports that were added and removed since.
func (p *Port) ChangePorts(added, removed []packet.Ports) error {
	if err := p.Port.ChangePorts(added, removed); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, ports := range removed {
		k := keyOf(ports.Addr, ports.UDP, ports.First, 0)
		if p.ports[k]--; p.ports[k] <= 0 {
			errs = append(errs, p.forgetPort(k))
		}
	}
	for _, ports := range added {
		k := keyOf(ports.Addr, ports.UDP, ports.First, 0)
		if p.ports[k]++; p.ports[k] == 1 {
			errs = append(errs, p.tellPort(k))
		}
	}
	return errors.Join(errs...)
}

// tellPort puts a port into the program's map, and forgetPort takes one out. mu is held.
func (p *Port) tellPort(k portKey) error {
	if p.closed {
		return nil
	}
	if err := bpf.PutElement(p.table, k[:], nativeBytes(1)); err != nil {
		return fmt.Errorf("tell the XDP program of %s port %d: %w", p.Name(),
			binary.BigEndian.Uint16(k[keyPort:]), err)
	}
	return nil
}

func (p *Port) forgetPort(k portKey) error {
	delete(p.ports, k)
	if p.closed {
		return nil
	}
	if err := bpf.DropElement(p.table, k[:]); err != nil {
		return fmt.Errorf("take port %d from the XDP program of %s: %w",
			binary.BigEndian.Uint16(k[keyPort:]), p.Name(), err)
	}
	return nil
}

// Mute implements packet.Interface: the program passes all to Linux, whose packet sockets drop it.
func (p *Port) Mute() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.Port.Mute()
	p.muted.Store(true)
	for i, q := range p.rx {
		if q.bound.Load() && !p.closed {
			err = errors.Join(err, bpf.DropElement(p.sockets, nativeBytes(uint32(i))))
		}
		q.dropReceived()
	}
	return errors.Join(err, p.putSources())
}

// Unmute implements packet.Interface.
func (p *Port) Unmute() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.Port.Unmute()
	for i, q := range p.rx {
		q.dropReceived()
		if q.bound.Load() && !p.closed {
			err = errors.Join(err, p.leadQueue(i))
		}
	}
	p.muted.Store(false)
	return errors.Join(err, p.putSources())
}

// Dropped implements packet.Interface.
func (p *Port) Dropped() uint64 {
	n := p.Port.Dropped()
	for _, q := range p.rx {
		c := q.countsNow()
		n += c.dropped + c.ringFull
	}
	return n
}

// Stats returns the counters: receive queues of AF_XDP first, then those of packet sockets.
func (p *Port) Stats() packet.Stats {
	st := p.Port.Stats()
	beside := st.Rx
	st.Rx = nil
	for _, q := range p.rx {
		st.Rx = append(st.Rx, q.countersNow())
	}
	st.Rx = append(st.Rx, beside...)
	if p.cfg.Send == SendRings {
		for i, t := range p.tx {
			st.Tx[i] = t.(*txQueue).countersNow()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	st.XDP = &packet.XDPStats{Queues: len(p.rx), Bound: p.bound, NetdevQueues: p.queues,
		QueueChanges: p.changes, ZeroCopy: p.zeroCopy(), SendsByRings: p.cfg.Send == SendRings}
	if p.lacking != nil {
		st.XDP.Lacking = p.lacking.Error()
	}
	return st
}

// zeroCopy reports whether all queues that have a socket receive without a copy. mu is held.
func (p *Port) zeroCopy() bool {
	for _, q := range p.rx {
		if q.bound.Load() && !q.socket.zeroCopy {
			return false
		}
	}
	return p.bound > 0
}

// Describe says in words that follow "served through AF_XDP" how that is done.
func (p *Port) Describe() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	how := "in zero copy"
	switch {
	case p.bound < len(p.rx):
		how = fmt.Sprintf("once another process has let go of it: %v", p.lacking)
	case !p.zeroCopy():
		how = "in copies: " + p.facts.whyCopy(&p.cfg)
	}
	by := "packet sockets"
	if p.cfg.Send == SendRings {
		by = "its rings"
	}
	queues := "1 queue"
	if n := len(p.rx); n > 1 {
		queues = fmt.Sprintf("%d queues", n)
	}
	return fmt.Sprintf("%s, %s, sent by %s", how, queues, by)
}

// Close ends reception and sending: Linux has all frames then. Closing again waits for the first
// Close and returns its result.
func (p *Port) Close() error {
	p.once.Do(func() {
		p.Stop()
		p.kept.Wait()
		p.mu.Lock()
		for k, have := range p.sources.held {
			p.countSource(k, have, p.keepCount)
		}
		p.closed = true
		var errs []error
		closeAll := func(fds ...*int) {
			for _, fd := range fds {
				if *fd >= 0 {
					errs = append(errs, unix.Close(*fd))
				}
				*fd = -1
			}
		}
		closeAll(&p.link)
		p.mu.Unlock()
		for i, q := range p.rx {
			if p.cfg.Send == SendRings {
				p.tx[i].(*txQueue).closeQueue()
			}
			errs = append(errs, q.closeQueue())
		}
		closeAll(&p.program, &p.sockets, &p.macs, &p.table, &p.sources.trie)
		p.at.closeFile()
		errs = append(errs, p.asker.closeSockets())
		p.ended = errors.Join(append(errs, p.Port.Close())...)
	})
	return p.ended
}
