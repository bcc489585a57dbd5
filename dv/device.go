package dv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/internal/random"
)

// Device describes one port of an mlx5 NIC, opened. Its methods may be called from any goroutine.
//
//	Open ──▶ up ──▶ stopping ──▶ closed
//	         │  Stop    ▲  Close
//	         ▼          │
//	       failed ──────┘   Err is ErrFailed, Done is closed; objects are gone or going
//
// A queue in error recovers by itself and leaves the device up.
type Device struct {
	// Set by Open; read only afterwards.
	config  Config // with its defaults filled in
	facts   PortFacts
	port    uint8 // number of the port on the RDMA device, from 1
	guid    string
	caps    Caps
	plan    plan
	log     *slog.Logger
	rx      []*RxQueue
	tx      []*TxQueue
	pool    *Pool
	flowTag uint32 // of the unicast rules, 24 bits
	stages  []OpeningStage

	rebalances atomic.Uint64
	spread     atomic.Pointer[spread] // replaced by Rebalance; read by any goroutine

	// Kernel objects that several steps of Open use, and what Close undoes. Open
	// and Close are the only users.
	cleanup cleanup
	memory  deviceMemory
	context *uverbs.Context
	pd      *uverbs.PD
	mr      *uverbs.MR
	// of WithSendMemory
	sendMemory sendMemory
	rxObjects  []*rxKernelObjects
	hashed     hashed
	txObjects  []*txKernelObjects
	// of rules that are made once
	fixedRules []RuleInfo
	left       []*leftRule    // guarded by hashed.mu
	watch      sync.WaitGroup // the reader of asynchronous events

	registered  registration // our addresses in the list of the port's netdev
	outOfBuffer portCounter

	mac atomic.Pointer[net.HardwareAddr] // nil: Config.MAC; written by SetMAC

	// Written by the reader of asynchronous events.
	linkUp      atomic.Bool
	linkChanges atomic.Uint64
	linkChanged chan struct{} // capacity 1: a token for LinkChanged

	netdevMTU  atomic.Int32  // see SetNetdevMTU
	mtuChanged chan struct{} // capacity 1: a token for MTUChanged
	netdevMAC  toldMAC

	close    sync.Once
	closeErr error // written in close

	mu   sync.Mutex
	done chan struct{} // closed, with mu held, when the device is over
	err  error         // guarded by mu; why the device is over
}

// Errors of a running device.
var (
	// ErrClosed: the device was stopped or closed.
	ErrClosed = fmt.Errorf("device is closed: %w", os.ErrClosed)
	// ErrFailed: the device or one of its queues failed for good; Device.Err
	// has the cause. Close it and open it again.
	ErrFailed = errors.New("device failed")
	// ErrRingFull: no room for this packet now. Flush, Reclaim, try again.
	ErrRingFull = errors.New("send ring is full")
	// ErrFrameSize: shorter than an Ethernet header or longer than the device sends.
	ErrFrameSize = errors.New("frame size out of range")
	// ErrNotSupported: the device or the kernel lacks what was asked for.
	ErrNotSupported = fmt.Errorf("device lacks the feature: %w", errors.ErrUnsupported)
)

// Open opens the device that cfg names and brings its queues up; frames for its MAC arrive from
// then on. A ctx that is done before that stops the work between two steps. On failure nothing is
// left behind, and the error is one sentence that says what to do.
func Open(ctx context.Context, cfg Config) (*Device, error) {
	began := cfg.Clock.Now()
	t, err := locatePort(&cfg)
	if err != nil {
		return nil, err
	}
	t.took = cfg.Clock.Since(began)
	return openTarget(ctx, cfg, t)
}

func newDevice(cfg Config, t *target) *Device {
	d := &Device{config: cfg, facts: t.facts, port: t.facts.Port, guid: t.guid,
		flowTag: newFlowTag(random.From(cfg.Random)),
		log:     cfg.Logger, done: make(chan struct{}), linkChanged: make(chan struct{}, 1),
		mtuChanged: make(chan struct{}, 1),
		stages:     []OpeningStage{{Name: "finding the device", Took: t.took}}}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	d.netdevMTU.Store(int32(t.facts.MTU))
	return d
}

// openTarget opens a device that was found.
func openTarget(ctx context.Context, cfg Config, t *target) (*Device, error) {
	d := newDevice(cfg, t)
	err := d.timeStage("checking limits", func() error { return d.makePlan(t) })
	if err == nil {
		err = d.bringUp(ctx, t)
	}
	if err != nil {
		err = asPermission(fmt.Errorf("open %s: %w", d.Name(), err))
		if undo := d.cleanup.undoAll(); undo != nil {
			d.log.Warn("undoing a failed open", "device", d.Name(), "error", undo)
		}
		return nil, err
	}
	d.log.Info("device is up", "device", d.Name(), "netdev", d.Netdev(), "mac",
		d.MAC().String(), "vlan", d.VLAN(),
		"firmware", d.caps.Firmware, "rx", d.NumRx(), "tx", d.NumTx(),
		"pinned_bytes", d.plan.pinnedBytes())
	d.log.Debug("opening a device takes time", "device", d.Name(), "took", d.Opening())
	on, off := featureSummary(d.Features())
	d.log.Debug("features", "device", d.Name(), "on", on, "off", off)
	return d, nil
}

// Name returns the RDMA device's name.
func (d *Device) Name() string { return d.facts.Name }

// GUID returns the node GUID of the RDMA device, which stays when names and addresses change; ""
// if it has none, or is not of this machine.
func (d *Device) GUID() string {
	if strings.Trim(d.guid, "0:") == "" {
		return ""
	}
	return d.guid
}

// Port returns the number of the port on the RDMA device, from 1.
func (d *Device) Port() int { return int(d.port) }

// Netdev returns the name of the port's Linux interface, "" if it has none here.
func (d *Device) Netdev() string { return d.facts.Netdev }

// MAC returns the address whose frames come to us.
func (d *Device) MAC() net.HardwareAddr {
	if changed := d.mac.Load(); changed != nil {
		return *changed
	}
	return d.config.MAC
}

// VLAN returns the 802.1Q network that we are in, 0 if none.
func (d *Device) VLAN() uint16 { return d.config.VLAN }

// SendMemory returns how many bytes of WithSendMemory the NIC knows and, if that was asked for
// and there are none, why.
func (d *Device) SendMemory() (int, error) { return d.plan.sendMemory, d.sendMemory.err }

// stripsVLAN: the NIC takes tags out of received frames.
func (d *Device) stripsVLAN() bool {
	return d.config.Tuning.StripVLAN || d.config.VLAN != 0 && d.context.Caps().VLANStrip
}

// HostMode reports whether Config.HostMode is set.
func (d *Device) HostMode() bool { return d.config.HostMode }

// MTU returns the largest IP packet received and sent now, in bytes: the netdev's MTU, which may
// change, but no more than MTULimit.
func (d *Device) MTU() int { return min(d.plan.mtuLimit, d.NetdevMTU()) }

// MTULimit returns the largest MTU that the device can work with, in bytes: Config.MTU, or what the
// receive buffers hold, which are made for the MTU that the netdev has during Open.
func (d *Device) MTULimit() int { return d.plan.mtuLimit }

// NetdevMTU returns the MTU of the port's netdev, in bytes, as last told.
func (d *Device) NetdevMTU() int { return int(d.netdevMTU.Load()) }

// SetNetdevMTU tells the device which MTU its netdev has now. A device of this machine learns it
// from the kernel; this is for one that Config.Kernel opens.
func (d *Device) SetNetdevMTU(bytes int) {
	if d.netdevMTU.Swap(int32(bytes)) == int32(bytes) {
		return
	}
	for _, q := range d.tx {
		q.longest.Store(int32(d.MTU() + frameOverhead))
	}
	select {
	case d.mtuChanged <- struct{}{}:
	default:
	}
}

// MTUChanged returns a channel that gets a token when NetdevMTU changes, unless it still holds one.
// It is for one reader and is never closed.
func (d *Device) MTUChanged() <-chan struct{} { return d.mtuChanged }

// toldMAC holds the netdev's MAC address as SetNetdevMAC has told it.
type toldMAC struct {
	mu     sync.Mutex
	mac    net.HardwareAddr // nil: not told
	notify []chan<- struct{}
}

// SetNetdevMAC tells the device which MAC address its netdev has now, as SetNetdevMTU does of the
// MTU: for a device that Config.Kernel opens. The device's own stays until SetMAC.
func (d *Device) SetNetdevMAC(mac net.HardwareAddr) {
	t := &d.netdevMAC
	t.mu.Lock()
	defer t.mu.Unlock()
	if bytes.Equal(t.mac, mac) {
		return
	}
	t.mac = bytes.Clone(mac)
	for _, ch := range t.notify {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// NetdevMAC returns the MAC address that SetNetdevMAC was last given; nil: it was not called. It
// must not be changed.
func (d *Device) NetdevMAC() net.HardwareAddr {
	d.netdevMAC.mu.Lock()
	defer d.netdevMAC.mu.Unlock()
	return d.netdevMAC.mac
}

// NotifyNetdevMAC sends a token to ch each time that NetdevMAC changes, unless ch is full.
func (d *Device) NotifyNetdevMAC(ch chan<- struct{}) {
	d.netdevMAC.mu.Lock()
	defer d.netdevMAC.mu.Unlock()
	d.netdevMAC.notify = append(d.netdevMAC.notify, ch)
}

// PinnedBytes returns the memory that the NIC may write and read: frames, staging memory, rings.
func (d *Device) PinnedBytes() int { return d.plan.pinnedBytes() }

// NumRx returns the number of receive queues.
func (d *Device) NumRx() int { return len(d.rx) }

// NumTx returns the number of send queues.
func (d *Device) NumTx() int { return len(d.tx) }

// Rx is receive queue i. A queue lives as long as its device.
func (d *Device) Rx(i int) *RxQueue { return d.rx[i] }

// Tx is send queue i.
func (d *Device) Tx(i int) *TxQueue { return d.tx[i] }

// Pool returns the device's frame buffers.
func (d *Device) Pool() *Pool { return d.pool }

// Caps returns what the device can do.
func (d *Device) Caps() Caps { return d.caps }

// QueueFor returns the receive queue that frames of f come to: choose ports by it
// to keep a connection on one queue.
func (d *Device) QueueFor(f Flow) int {
	s := d.spread.Load()
	return s.queueOf(s.hash.hashFlow(f))
}

// ActiveRxQueues returns how many receive queues get flows now, see Rebalance.
func (d *Device) ActiveRxQueues() (n int) {
	seen := make([]bool, len(d.rx))
	for _, q := range d.spread.Load().queueAt {
		if !seen[q] {
			seen[q] = true
			n++
		}
	}
	return n
}

// Stats returns all counters. They are not taken at one instant, and those of
// a busy queue may be a batch old.
func (d *Device) Stats() Stats {
	s := Stats{LinkUp: d.linkUp.Load(), LinkChanges: d.linkChanges.Load(),
		OutOfBuffer: d.OutOfBuffer(), ActiveRxQueues: d.ActiveRxQueues(),
		Rebalances: d.rebalances.Load()}
	for _, q := range d.rx {
		s.Rx = append(s.Rx, q.Stats())
	}
	for _, q := range d.tx {
		s.Tx = append(s.Tx, q.Stats())
	}
	return s
}

// LinkUp is the port's state as last told.
func (d *Device) LinkUp() bool { return d.linkUp.Load() }

// LinkChanged has a token in it when the port's state has been told since the last one was taken:
// look at LinkUp then, and at Stats for how often. It is for one reader and is never closed.
func (d *Device) LinkChanged() <-chan struct{} { return d.linkChanged }

// Done is closed when the device fails for good or is stopped; Err says why.
func (d *Device) Done() <-chan struct{} { return d.done }

// Err returns nil while the device works, then ErrClosed or an error that is
// ErrFailed and has the cause in it.
func (d *Device) Err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

// Stop ends reception and sending: every RxQueue.Wait returns ErrClosed, every Poll returns 0,
// every Post ErrClosed. Join the queues' owners then, and Close. Stopping again does nothing.
func (d *Device) Stop() { d.endOnce(ErrClosed, signalStopped) }

// failWith ends the device for a reason other than Stop.
func (d *Device) failWith(cause error) {
	d.endOnce(fmt.Errorf("%w: %w", ErrFailed, cause), signalFailed)
}

// endOnce records why the device is over, once, and tells every queue.
func (d *Device) endOnce(why error, signal uint32) {
	d.mu.Lock()
	first := d.err == nil
	if first {
		d.err = why
		close(d.done)
	}
	d.mu.Unlock()
	if first && signal == signalFailed {
		d.log.Error("device failed", "device", d.Name(), "error", why)
	}
	for _, q := range d.tx {
		q.signals.raiseBits(signal)
	}
	for _, q := range d.rx {
		q.signals.raiseBits(signal)
		q.Wake()
	}
}

// Close stops the device, destroys its kernel objects and returns its memory: Packets still held
// and queues are dead from then on. The owners of the receive queues must have stopped (see Stop).
// Closing again waits for the first Close and returns its result. A device that had failed closes
// without an error: its objects died with it.
func (d *Device) Close() error {
	d.close.Do(func() {
		d.Stop()
		for _, q := range d.tx {
			q.Lock() // a packet being posted now is the last
			defer q.Unlock()
		}
		if failed := d.Err(); errors.Is(failed, ErrFailed) {
			d.tellDumps(failed)
		}
		err := d.cleanup.undoAll()
		for _, q := range d.tx { // no NIC knows the queues any more
			q.releaseAllHeld()
		}
		if failed := d.Err(); err != nil && errors.Is(failed, ErrFailed) {
			d.log.Warn("objects of the failed device could not be destroyed",
				"device", d.Name(), "error", err)
			return
		}
		d.closeErr = err
	})
	return d.closeErr
}

// Opening says how long Open took.
type Opening struct {
	Took     time.Duration
	Commands uint64        // to the kernel's driver, one after the other
	InKernel time.Duration // inside them
	Stages   []OpeningStage
}

// OpeningStage describes one part of Open. What it took besides InKernel is our own work, and
// system calls that are no command of the driver: mmap and madvise of the memory, sysfs and
// netlink.
type OpeningStage struct {
	Name     string
	Took     time.Duration
	Commands uint64
	InKernel time.Duration
}

// Opening says how long Open took for this device, and where.
func (d *Device) Opening() Opening {
	o := Opening{Stages: d.stages}
	for _, s := range d.stages {
		o.Took += s.Took
		o.Commands += s.Commands
		o.InKernel += s.InKernel
	}
	return o
}

// timeStage runs one stage of Open and notes how long it took.
func (d *Device) timeStage(name string, do func() error) error {
	var s OpeningStage
	if d.context != nil {
		c := d.context.Commands()
		s.Commands, s.InKernel = c.Count, c.Took
	}
	began := d.config.Clock.Now()
	if err := do(); err != nil {
		return err
	}
	s.Name, s.Took = name, d.config.Clock.Since(began)
	if d.context != nil {
		c := d.context.Commands()
		s.Commands, s.InKernel = c.Count-s.Commands, c.Took-s.InKernel
	}
	d.stages = append(d.stages, s)
	return nil
}

// LogValue implements slog.LogValuer: the stages, each with its time, its commands and their time.
func (o Opening) LogValue() slog.Value {
	const unit = 10 * time.Microsecond
	attrs := make([]slog.Attr, 0, len(o.Stages)+1)
	for _, s := range append([]OpeningStage{{"all", o.Took, o.Commands, o.InKernel}},
		o.Stages...) {
		attrs = append(attrs, slog.String(s.Name, fmt.Sprintf("%v, %d commands %v",
			s.Took.Round(unit), s.Commands, s.InKernel.Round(unit))))
	}
	return slog.GroupValue(attrs...)
}

// cleanup remembers how to undo what was done, in order. It is used by one goroutine at a time.
type cleanup struct {
	steps []cleanupStep
}

// cleanupStep is one thing done, and what takes it back.
type cleanupStep struct {
	name string
	undo func() error
}

// runStep runs create and remembers undo if it worked. The error names the step.
func (l *cleanup) runStep(name string, create, undo func() error) error {
	if err := create(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	l.steps = append(l.steps, cleanupStep{name, undo})
	return nil
}

// undoAll undoes everything, last step first, and forgets it. A step that
// fails does not stop the others; the errors come back joined.
func (l *cleanup) undoAll() error {
	var errs []error
	for i := len(l.steps) - 1; i >= 0; i-- {
		if err := l.steps[i].undo(); err != nil {
			errs = append(errs, fmt.Errorf("undo %s: %w", l.steps[i].name, err))
		}
	}
	l.steps = nil
	return errors.Join(errs...)
}
