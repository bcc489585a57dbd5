package simnic

import (
	"encoding/binary"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// Config describes a software ConnectX. The zero value is a ConnectX-6 Dx with
// no wire; Card names another card.
type Config struct {
	Name   string           // RDMA device name; default "mlx5_sim0"
	Netdev string           // name of the port's netdev; default "sim0"
	MAC    net.HardwareAddr // of the netdev; default derived from Seed, locally administered
	MTU    int              // bytes of L3 that the netdev accepts; default 1500, 68 to 65535
	Card   string           // name of a card of Cards(); default "cx6dx"
	Caps   Caps             // default those of the card
	Seed   uint64           // of object numbers and all other random choices

	// Function gives the kind of PCI function the NIC is, and what its e-switch does. The
	// zero value has none.
	Function Function

	// Lenient accepts WQEs that DPDK avoids and not all hardware refuses: a frame of 18 bytes or
	// less, less inline than the port's minimum. Violations are counted either way; the section
	// "Strict on purpose" of docs/testing.md has the witness of each.
	Lenient bool
	// RefuseImmediate fails a SEND with a non-zero immediate by a local protection error. VPP
	// keeps its bookkeeping there, and up to ConnectX-5 its frames leave. Of ConnectX-6 Dx and -7
	// its first SEND is reported to fail with the syndromes 0x04 and 0x52
	// (github.com/FDio/csit/issues/3988); no report says that the immediate is the cause.
	RefuseImmediate bool
	// SelfLoopback lets a transport domain receive its own broadcasts, multicasts
	// and frames to itself. Off, as Linux sets it up for a single user.
	SelfLoopback bool
	// RecordAfterReady makes a receive queue ignore the value of its doorbell record when the queue
	// became ready, until the record changes. Off, the value is used.
	RecordAfterReady bool
	// RingIndex makes completions name a WQE by its index in the ring (wqe_counter, and wqe_id of
	// striding queues). Off, by a counter modulo 65,536.
	RingIndex bool
	// DropTooLong drops and counts a frame that is longer than its receive WQE, as newer firmware
	// does, instead of writing an error completion.
	DropTooLong bool

	// RealTimeClock makes Caps.Timestamps StampsBoth, as REAL_TIME_CLOCK_ENABLE of mlxconfig does.
	// New refuses it on a card without that option (Card.RealTimeOption).
	RealTimeClock bool

	Clock  clock.Clock  // of timestamps and delays; default the system's
	Logger *slog.Logger // default: silent
}

// NIC models one port of a ConnectX and the objects created on it. All methods may
// be called from any goroutine.
type NIC struct {
	cfg   Config
	card  Card
	caps  Caps
	clock clock.Clock
	start time.Time
	log   *slog.Logger

	numbers    numbers
	keys       keyTable
	steering   steering
	eswitch    eswitch
	lists      netdevLists
	counters   counters
	strict     violations
	hooks      atomic.Pointer[Hooks]
	injected   injections
	classifier atomic.Pointer[Classifier]
	sniffers   [2]atomic.Pointer[Classifier] // of frames from the wire, of frames sent
	localMACs  atomic.Pointer[[]uint64]      // sorted
	loopback   loopback
	bursts     pool[rxBurst]
	spaces     pool[workspace]
	lastHash   atomic.Pointer[hashTable]

	mac    atomic.Uint64 // of the netdev, low 48 bits
	mtu    atomic.Int32
	linkUp atomic.Bool
	fatal  atomic.Bool
	wire   port // of the cable
	netdev port // the kernel's slice of the port

	sinkMu sync.Mutex
	sinks  map[int]func(Event)
	nextID int

	background background
	closed     atomic.Bool
	done       chan struct{} // closed by Close
}

// New creates a NIC with its link up and no wire.
func New(cfg Config) (*NIC, error) {
	card, err := CardNamed(cfg.Card)
	if err != nil {
		return nil, statusErrorf(StatusBadParam, "%v", err)
	}
	cfg = cfg.withDefaults(card)
	if len(cfg.MAC) != 6 || cfg.MAC[0]&1 != 0 {
		return nil, statusErrorf(StatusBadParam,
			"netdev MAC %v is not a unicast address of 6 bytes",
			cfg.MAC)
	}
	if cfg.RealTimeClock && !card.RealTimeOption {
		return nil, statusErrorf(StatusBadParam, "%s has no real-time clock to switch on",
			card.Title)
	}
	n := &NIC{cfg: cfg, card: card, caps: cfg.Caps, clock: cfg.Clock, log: cfg.Logger,
		sinks: map[int]func(Event){},
		done:  make(chan struct{})}
	n.start = n.clock.Now()
	n.numbers.initNumbers(cfg.Seed)
	n.keys.initTable()
	n.steering.initTables(n)
	n.eswitch.setLists(&cfg)
	n.mac.Store(macBits(cfg.MAC))
	if err := n.SetMTU(cfg.MTU); err != nil {
		return nil, err
	}
	n.linkUp.Store(true)
	n.SetLocalMACs(nil)
	return n, nil
}

func (cfg Config) withDefaults(card Card) Config {
	if cfg.Name == "" {
		cfg.Name = "mlx5_sim0"
	}
	if cfg.Netdev == "" {
		cfg.Netdev = "sim0"
	}
	if cfg.MAC == nil {
		r := rand.New(rand.NewPCG(cfg.Seed, 0x6d6163))
		cfg.MAC = net.HardwareAddr{0x02, 0x51, byte(r.Uint32()), byte(r.Uint32()),
			byte(r.Uint32()), byte(r.Uint32())}
	}
	if cfg.MTU == 0 {
		cfg.MTU = 1500
	}
	if cfg.Caps == (Caps{}) {
		cfg.Caps = card.Caps
	}
	if cfg.RealTimeClock {
		cfg.Caps.Timestamps = StampsBoth
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return cfg
}

// Config returns the configuration of the NIC, defaults filled in.
func (n *NIC) Config() Config { return n.cfg }

// Card returns the card of the NIC; Caps may differ from the card's.
func (n *NIC) Card() Card { return n.card }

// Caps returns the capabilities of the device.
func (n *NIC) Caps() Caps { return n.caps }

// MAC returns the address of the netdev.
func (n *NIC) MAC() net.HardwareAddr { return macAddr(n.mac.Load()) }

// GUID returns the node GUID: the MAC the NIC was created with as an EUI-64 (IEEE Guidelines for
// EUI, without the inverted bit that IPv6 wants).
func (n *NIC) GUID() uint64 {
	mac := macBits(n.cfg.MAC)
	return mac>>24<<40 | 0xfffe<<24 | mac&0xffffff
}

// SetMAC changes the address of the netdev.
func (n *NIC) SetMAC(mac net.HardwareAddr) error {
	if len(mac) != 6 || mac[0]&1 != 0 {
		return statusErrorf(StatusBadParam, "netdev MAC %v", mac)
	}
	n.mac.Store(macBits(mac))
	n.updateNetdev(func(*netdevLists) {})
	return nil
}

// MTU returns that of the netdev, in bytes of L3. The port takes frames of 18 bytes
// more: Ethernet header and one VLAN tag.
func (n *NIC) MTU() int { return int(n.mtu.Load()) }

// SetMTU changes it at once for frames to come.
func (n *NIC) SetMTU(mtu int) error {
	if mtu < 68 || mtu > 65535 {
		return statusErrorf(StatusBadParam, "MTU %d (68 to 65535)", mtu)
	}
	n.mtu.Store(int32(mtu))
	return nil
}

// Link reports whether the port is up.
func (n *NIC) Link() bool { return n.linkUp.Load() }

// SetLink raises or drops the link. While it is down send queues complete WQEs without sending,
// unless FaultHoldWithoutLink stops them, and nothing is received. A change raises a port event.
func (n *NIC) SetLink(up bool) {
	if n.linkUp.Swap(up) == up {
		return
	}
	t := EventPortDown
	if up {
		t = EventPortUp
	}
	n.emitEvent(Event{Type: t, Port: 1})
	n.resumeSends()
}

// FailDevice puts the device in its fatal state: queues stop for good, control
// commands fail with StatusBadSystem. Raises a device event once.
func (n *NIC) FailDevice() {
	if !n.fatal.Swap(true) {
		n.emitEvent(Event{Type: EventDeviceFatal})
	}
}

// RestoreDevice ends the fatal state, as a reset of the firmware does. The
// caller has destroyed all objects.
func (n *NIC) RestoreDevice() { n.fatal.Store(false) }

// Usable returns nil while control commands may succeed, StatusBadSystem in the fatal
// state and after Close.
func (n *NIC) Usable() error {
	if n.fatal.Load() || n.closed.Load() {
		return StatusBadSystem
	}
	return nil
}

// Close closes the wires and stops every queue. Closing again does nothing.
func (n *NIC) Close() error {
	if n.closed.Swap(true) {
		return nil
	}
	close(n.done)
	err := n.wire.detachWire()
	if e := n.netdev.detachWire(); err == nil {
		err = e
	}
	n.background.stopAndWait()
	return err
}

func macBits(mac []byte) uint64 {
	return uint64(binary.BigEndian.Uint32(mac))<<16 | uint64(binary.BigEndian.Uint16(mac[4:]))
}

func macAddr(v uint64) net.HardwareAddr {
	return net.HardwareAddr{byte(v >> 40), byte(v >> 32), byte(v >> 24),
		byte(v >> 16), byte(v >> 8), byte(v)}
}
