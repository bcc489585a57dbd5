package sim

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// HostKind is what a host runs.
type HostKind uint8

// The kinds of hosts.
const (
	Ours     HostKind = iota // package stack over link/rdma, dv and a software NIC
	Plain                    // gVisor's netstack on a link without our additions
	Scripted                 // no stack
	Leases                   // no stack: a DHCP server
)

// HostPlan is one host.
type HostPlan struct {
	Kind HostKind
	IPv6 bool // beside IPv4
	// Leased: the address of IPv4 comes from a DHCP server.
	Leased bool
	// NetdevMAC: the MAC address is that of the port's netdev, and follows it.
	NetdevMAC bool

	// Of Ours.
	Card        string
	Device      dv.Config // sizes and options
	RxMode      stack.RxMode
	ACKDelay    time.Duration
	NoFastPath  bool
	DisableSACK bool
	DisableRACK bool
	Detection   time.Duration // of duplicate addresses
	Buffers     stack.BufferRange
	RxLimit     int
	MaxOutage   time.Duration
	Grace       time.Duration // stack.Config.Uplink.GracePeriod
	InPlace     bool          // large writes are sent without copying
	Refusals    int           // of memory that is to be locked, when the device is opened first
	Fallback    bool          // packet sockets of Netdev carry frames while the device is away
	Netdev      NetdevPlan
	Memory      MemoryPlan
	Upgraded    bool // in processes that take each other's places, on packet sockets of Netdev
	Rings       bool // or on the rings of Card
	Messages    int  // that a connection between two of them holds, each of them Late
	Late        time.Duration

	OnHost     bool // on the address of a kernel that is there, too
	Sockets    bool // OnHost: by packet sockets only
	OwnFilters bool // OnHost: each socket of the kernel has a filter of its own

	Rate uint64 // of its connections and UDP sockets, bytes per second; 0: none

	// Of Plain: netstack cuts super-segments in software.
	SoftwareGSO bool
}

// String lists what differs from the defaults.
func (h HostPlan) String() string {
	switch h.Kind {
	case Scripted:
		return "a script"
	case Leases:
		return "a DHCP server"
	case Plain:
		return fmt.Sprintf("netstack, segmentation in software %v, IPv6 %v", h.SoftwareGSO, h.IPv6)
	}
	d := &h.Device
	return fmt.Sprintf("ours on %s, queues %d+%d of %d+%d, stage %d, spare %d, striding %v, "+
		"no compression %v, no multi-packet %v, no multi-segment %v, BlueFlame %v, "+
		"events %d/%dus, "+
		"delay drop %v, inline %d, mode %v, ACK delay %v, no fast path %v, no SACK %v, "+
		"no RACK %v, "+
		"detection %v, buffers %+v, limit %d, outage %v, grace %v, in place %v, refusals %d, "+
		"memory %+v, "+
		"IPv6 %v, leased %v, fallback %v %+v, upgraded %v, rings %v, messages %d %v, "+
		"the netdev's MAC %v, rate %d, on the host's address %v, by sockets only %v, "+
		"own filters %v",
		h.Card, d.RxQueues, d.TxQueues, d.Rings.RxQueueSize,
		d.Rings.TxQueueSize, d.Tuning.TxBufferSize, d.Tuning.SpareFrames, d.Rings.Striding,
		d.Tuning.NoCompression,
		d.Tuning.NoMultiPacketSend, d.Tuning.NoMultiSegment, d.Tuning.BlueFlame,
		d.Tuning.EventFrames, d.Tuning.EventMicroseconds,
		d.Rings.DelayDrop, d.Tuning.TxInline, h.RxMode, h.ACKDelay, h.NoFastPath, h.DisableSACK,
		h.DisableRACK,
		h.Detection, h.Buffers, h.RxLimit, h.MaxOutage, h.Grace, h.InPlace, h.Refusals, h.Memory,
		h.IPv6,
		h.Leased, h.Fallback, h.Netdev, h.Upgraded, h.Rings,
		h.Messages, h.Late, h.NetdevMAC, h.Rate, h.OnHost, h.Sockets, h.OwnFilters)
}

// prefixes are the addresses of a host with this number.
func (h *HostPlan) prefixes(i int) []netip.Prefix {
	var all []netip.Prefix
	if !h.Leased {
		all = append(all, netip.PrefixFrom(address(i), 24))
	}
	if h.IPv6 {
		all = append(all, netip.PrefixFrom(address6(i), 64))
	}
	return all
}

// newHostPlans draws two or three hosts.
func newHostPlans(d dice, mtu int) []HostPlan {
	hosts := []HostPlan{newOurs(d, mtu)}
	for range 1 + d.IntN(2) {
		if d.chance(0.5) {
			hosts = append(hosts, HostPlan{Kind: Plain, SoftwareGSO: d.chance(0.5)})
		} else {
			hosts = append(hosts, newOurs(d, mtu))
		}
	}
	if d.chance(0.3) {
		hosts = append(hosts, HostPlan{Kind: Scripted})
	}
	return hosts
}

func newOurs(d dice, mtu int) HostPlan {
	h := HostPlan{
		Kind: Ours, Card: one(d, "cx4lx", "cx5", "cx6dx", "cx7", "bf2"),
		RxMode:     one(d, stack.RxAdaptive, stack.RxInterrupt),
		ACKDelay:   one(d, 0, 0, -1, time.Millisecond, 40*time.Millisecond),
		NoFastPath: d.chance(0.2), DisableSACK: d.chance(0.1), DisableRACK: d.chance(0.2),
		Detection: one(d, -1, 0, time.Second), RxLimit: one(d, 0, 0, 256<<10),
	}
	if d.chance(0.2) {
		n := one(d, 16, 64, 256) << 10
		h.Buffers = stack.BufferRange{Min: 4 << 10, Default: n, Max: 4 * n}
	}
	h.Device = newDevice(d, h.Card, mtu)
	return h
}

// newDevice draws sizes that make rings wrap and run full.
func newDevice(d dice, card string, mtu int) dv.Config {
	c := dv.Config{
		NIC: dv.NIC{
			RxQueues: one(d, 1, 1, 2, 4),
			TxQueues: one(d, 1, 1, 2, 4),
			Rings: dv.Rings{
				RxQueueSize: one(d, 64, 64, 128, 512),
				TxQueueSize: one(d, 64, 128, 256, 1024),
			},
		},
		Tuning: dv.Tuning{
			TxBufferSize:      one(d, 128, 256) << 10,
			SpareFrames:       one(d, 1, 16, 256),
			NoCompression:     d.chance(0.3),
			NoMultiPacketSend: d.chance(0.3),
			NoMultiSegment:    d.chance(0.5),
			BlueFlame:         d.chance(0.3),
		},
	}
	c.Rings.DelayDrop = d.chance(0.1)
	striding := d.chance(0.3)
	c.Rings.Striding = striding && card != "cx4lx" && card != "cx5"
	if d.chance(0.3) {
		c.Tuning.EventFrames, c.Tuning.EventMicroseconds = uint16(one(d, 2, 8, 64)), uint16(one(d,
			8, 50, 500))
	}
	if d.chance(0.3) {
		c.Tuning.TxInline = one(d, 60, 200, 900)
	}
	return c
}
