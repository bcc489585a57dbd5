package pcie

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// Config configures the PCI function.
type Config struct {
	DeviceID uint16       // PCI device id; default that of the NIC
	Logger   *slog.Logger // default: silent
	// Pacing offers the rates of send queues that the NIC has (simnic.Caps.Pacing). Recordings of
	// kernels are of functions without.
	Pacing bool
	// Rules, unless nil, is told of each flow rule that the driver sets, with what it matches, and
	// of each that it deletes, with nil; not of those that are left when the driver leaves. The
	// goroutine in Serve calls it, so it must not block.
	Rules func(at RuleAt, m *simnic.Match)
}

// Function is a software ConnectX as a PCI function of a virtual machine. It serves one virtual
// machine at a time.
//
// The goroutine in Serve reads the machine's messages and owns all state not marked otherwise.
// Completions and events come from any goroutine.
type Function struct {
	nic *simnic.NIC
	log *slog.Logger
	cfg Config

	dma    dmaMap
	irq    *irqs
	eqs    eqTable
	config *configSpace

	cmdQueue     uint64 // guest address of the command queue
	health       uint32
	nicInterface uint32
	enabled      bool
	issi         int
	given        []uint64 // pages the driver gave
	general      []byte   // capability group 0, as the driver set it
	vport        [vportContextSize]byte
	portAdmin    uint32
	portMTU      int
	portFEC      fecPolicy
	numbers      [numKinds]numbers
	objects      objectTable
	abandoned    map[string]int // as Abandoned returns it

	statsMu sync.Mutex
	stats   map[string]CommandStats // guarded by statsMu

	// mu is held while a message is executed, so that Resources sees the state between two.
	mu sync.Mutex

	fatal       atomic.Bool // shown in the initialisation segment
	unsubscribe func()
}

// CommandStats counts one firmware command.
type CommandStats struct{ Done, Refused uint64 }

// New presents nic as a PCI function. The caller keeps nic and closes it after the function.
func New(nic *simnic.NIC, cfg Config) *Function {
	if cfg.DeviceID == 0 {
		cfg.DeviceID = nic.DeviceID()
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	f := &Function{nic: nic, log: cfg.Logger, cfg: cfg, irq: newIRQs(),
		stats: map[string]CommandStats{}}
	f.eqs.irq = f.irq
	f.reset()
	f.unsubscribe = nic.Subscribe(f.event)
	return f
}

// Close ends the function's subscription to the NIC's events. Serve must have returned.
func (f *Function) Close() error {
	f.unsubscribe()
	return nil
}

// event passes a port or device event on to the driver. It runs on any goroutine.
func (f *Function) event(e simnic.Event) {
	switch e.Type {
	case simnic.EventPortUp:
		f.portEvent(portUp)
	case simnic.EventPortDown:
		f.portEvent(portDown)
	case simnic.EventDeviceFatal:
		f.fatal.Store(true)
	}
}

// reset puts the function into its power-on state: it destroys queues and event queues and keeps
// memory maps.
func (f *Function) reset() {
	f.resetFirmware()
	f.irq.reset()
	f.config = newConfigSpace(f.cfg.DeviceID)
}

// functionReset is a function-level reset: as reset, but for the configuration space, which the
// virtual machine monitor owns and restores, and the interrupts, which it sets up through that.
func (f *Function) functionReset() {
	f.log.Warn("function-level reset")
	f.resetFirmware()
}

// resetFirmware resets the state of the firmware, without PCI configuration space and interrupts.
func (f *Function) resetFirmware() {
	f.releaseAll()
	f.nic.RestoreDevice()
	f.fatal.Store(false)
	f.cmdQueue, f.given, f.enabled, f.issi, f.nicInterface = 0, nil, false, 0, 0
	f.general = f.generalCapBytes()
	f.vport = [vportContextSize]byte{}
	f.nic.SetLoopback(true, true) // until the driver switches it off
	f.nic.SetUnicastList(nil)
	f.nic.SetMulticastList(nil)
	f.nic.SetReceiveMode(false, false)
	f.portAdmin, f.portMTU = paosDown, f.nic.MTU()+portOverhead
	f.portFEC = fecPolicy{}
}

// releaseAll destroys the driver's objects and event queues, and frees all numbers.
func (f *Function) releaseAll() {
	f.objects.destroyAll(f)
	f.eqs.mu.Lock()
	f.eqs.m = map[uint32]*eq{}
	f.eqs.mu.Unlock()
	f.numbers = [numKinds]numbers{}
}

// Serve accepts one machine on l and serves it until it disconnects, which returns nil, or ctx
// ends. It destroys all objects that the machine created before it returns.
func (f *Function) Serve(ctx context.Context, l *net.UnixListener) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	conn, err := l.AcceptUnix()
	if err != nil {
		return fmt.Errorf("wait for a virtual machine: %w", err)
	}
	defer conn.Close()
	stopConn := context.AfterFunc(ctx, func() { conn.Close() })
	defer stopConn()
	f.log.Info("virtual machine connected")
	s := &server{conn: conn, fn: f}
	err = s.serve()
	f.log.Info("virtual machine gone", "error", err)
	f.mu.Lock()
	f.reset()
	f.mu.Unlock()
	f.dma.close()
	return err
}

// read executes a load from a region.
func (f *Function) read(region uint32, off uint64, p []byte) error {
	switch region {
	case regionBAR0:
		f.readBAR(off, p)
	case regionConfig:
		f.config.read(off, p)
	default:
		return fmt.Errorf("read of region %d: %w", region, unix.EINVAL)
	}
	return nil
}

// write executes a store to a region.
func (f *Function) write(region uint32, off uint64, p []byte) error {
	switch region {
	case regionBAR0:
		f.writeBAR(off, p)
	case regionConfig:
		f.config.write(off, p)
		if f.config.takeReset() {
			f.functionReset()
		}
	default:
		return fmt.Errorf("write of region %d: %w", region, unix.EINVAL)
	}
	return nil
}

// count records the outcome of a command.
func (f *Function) count(op opcode, err error) {
	f.statsMu.Lock()
	defer f.statsMu.Unlock()
	s := f.stats[op.String()]
	if err == nil {
		s.Done++
	} else {
		s.Refused++
	}
	f.stats[op.String()] = s
}

// Commands counts the firmware commands so far, by name. Safe from any goroutine.
func (f *Function) Commands() map[string]CommandStats {
	f.statsMu.Lock()
	defer f.statsMu.Unlock()
	out := make(map[string]CommandStats, len(f.stats))
	for k, v := range f.stats {
		out[k] = v
	}
	return out
}
