package dv

import (
	"io"
	"log/slog"
	"net"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// NIC says which port a device is opened on, which of its frames come to us and by how many queues.
// The zero value of every field but Device (or Model) is useful. Names in brackets are those of
// VPP's rdma plugin for the same thing.
type NIC struct {
	// Device is an RDMA device ("mlx5_0"), one of several ports of it ("mlx5_0/2", as "rdma link"
	// has it), or the netdev of a port by its name or an alternative one ("enp1s0f0") [host-if].
	// In switchdev mode the device alone is its uplink. Unused with Model.
	Device string

	// MAC is the address whose frames come to us. Default: a random, locally administered one. The
	// port's own MAC is refused unless Steering.AllowNetdevMAC is set, multicast always.
	MAC net.HardwareAddr
	// VLAN names the 802.1Q network we are in, 1 to 4094; 0 is none. The NIC then steers us its
	// frames only, so that Linux keeps those of other networks even for our MAC, and takes the tag
	// out (Packet.VLAN) if it can. Frames are sent with the tag that TxPacket.VLAN says, as ever.
	VLAN uint16
	// MTU gives the largest IP packet received or sent, in bytes, at most the port's own. Default
	// the port's. It sets size and number of the buffers of a frame [max-pktlen]. If the port's
	// changes later, Device.MTU follows as far as MTU and the buffers go.
	MTU int

	// RxQueues and TxQueues are the numbers of queues [num-rx-queues]. Default 1.
	RxQueues, TxQueues int

	Rings    Rings
	Steering Steering
	Model    Model
}

// Rings sizes the rings of a NIC and says how they are filled.
type Rings struct {
	// RxQueueSize counts the frames a receive ring holds [rx-queue-size], a power of two of at
	// least 64. Default 1024, or less with many queues so that pinned memory stays below 32 MiB.
	RxQueueSize int
	// TxQueueSize gives the number of 64-byte blocks of a send ring [tx-queue-size], a power of two
	// of at least 64. Default 1024, or less, likewise. A frame takes one or two.
	TxQueueSize int
	// Striding makes the NIC pack received frames into large buffers, each in as many strides of
	// 256 bytes as it takes, instead of giving each a buffer of its own: small frames then take
	// little memory, and a ring holds many more of them [the reverse of no-striding]. Packet.Frame
	// is then a buffer of many frames, which is used again when all of them are back. Never write
	// behind a Packet's Data. Refused where the device cannot.
	Striding bool
	// DelayDrop makes the NIC hold a frame for which a receive queue has no buffer, and everything
	// behind it on the port, for up to 100 ms instead of dropping it. Nothing is lost in bursts
	// then, but a program that stops reading slows down Linux's traffic on the port, too. It needs
	// CAP_SYS_RAWIO (unix.EPERM) and a device that can (unix.EOPNOTSUPP).
	DelayDrop bool
}

// Steering permits taking unicast frames that Linux would receive.
type Steering struct {
	// AllowNetdevMAC permits MAC to be the port's own, which is then the default.
	// Linux receives no unicast frame on this port from then on, its users over the
	// network included. For a virtual function that is given away whole.
	AllowNetdevMAC bool
	// Promiscuous takes every unicast frame of the port, whatever its MAC.
	// Linux then receives none of them.
	Promiscuous bool
}

// Model replaces the port of this machine by one that is not, such as the software NIC of package
// simnic.
type Model struct {
	// Kernel opens the device. Nil: Device names one of this machine.
	Kernel func() (uverbs.Kernel, error)
	// Facts describes its port, as there is no netdev to ask.
	Facts PortFacts
}

// Config adds to a NIC what only a program that drives the rings itself, or watches how they are
// driven, decides.
type Config struct {
	NIC

	// HostMode leaves the port's MAC to Linux: MAC is the netdev's own, and nothing comes to us but
	// what the rules of Device.AddRule steer, by address and port. Broadcast and multicast stay
	// with Linux. The port may be a virtual function, and needs no trust.
	HostMode bool
	// TakesOver keeps unicast away until Device.TakeOver: MAC is another process's on this port,
	// which goes on with its connections for a while. Not used with HostMode, where rules have
	// PriorityHandOver for this.
	TakesOver bool
	// TakeMulticast permits taking broadcast and multicast away from Linux on
	// a device that cannot give both of us a copy. Without it such a device is
	// refused; where copies work it has no effect.
	TakeMulticast bool

	// ActiveRxQueues says to how many of the receive queues, from the first on, the indirection
	// table leads at first; Device.Rebalance changes that. Default all.
	ActiveRxQueues int
	// RSSKey is the hash key that spreads flows over receive queues. Default SymmetricRSSKey.
	RSSKey RSSKey

	Tuning Tuning

	// Dumped is told what the rings of a queue held when it went into error, at most once a second
	// for each queue, and when a failed device is closed those of all. The queue's user waits for
	// it: it must return at once, and not call the device. nil: nobody wants to know.
	Dumped func(Dump)
	// Addresses opens the list of addresses that the netdev of Model receives. nil: nobody
	// goes by such a list.
	Addresses func() (AddressList, error)
	// Interpose puts what it returns between the driver and the kernel, for tools that watch the
	// calls (uverbs.Record). It must pass Close on. nil: nothing is between.
	Interpose func(uverbs.Kernel) uverbs.Kernel

	// Clock gives the time that the driver goes by, and Random where its random numbers come
	// from, which any goroutine may read; the zero values are the system's. For simulations.
	Clock  clock.Clock
	Random io.Reader

	// Logger gets set-up, faults and recoveries, never packets; at level Debug also what is on and
	// off. nil: silence.
	Logger *slog.Logger

	sendMemory func(bytes int) ([]byte, error) // see WithSendMemory
}

// Tuning chooses formats of descriptors and sizes that are best left alone but for measurements.
type Tuning struct {
	// TxBufferSize is the staging memory of one send queue in bytes, a power of
	// two of at least 128 KiB. Default 1 MiB, or less with many queues, as of Rings.
	TxBufferSize int
	// SpareFrames says for how many frames there are buffers beyond those of the
	// receive rings: frames that callers or PostFrame keep for a while. Default 256.
	SpareFrames int
	// TxInline gives the longest frame in bytes that Post writes into its descriptor
	// as a whole, which saves the NIC a read of memory and costs the ring room:
	// 60 to 900. Default 98. [txq_inline_max of DPDK]
	TxInline int
	// NoMultiPacketSend gives each frame a send descriptor of its own [no-empw].
	// Default: frames with the same flags share one, if the device can.
	NoMultiPacketSend bool
	// BlueFlame makes a flush of a single short descriptor write it into the doorbell register, so
	// that an idle NIC need not fetch it: one round trip over the bus less for a lone packet, more
	// work for the processor with each. Off by default, as batches gain nothing.
	BlueFlame bool
	// NoCompression makes the NIC write a whole completion for each received frame.
	// Default, if the device can: completions of similar frames in a row are
	// compressed, and tell all but length and hash once for all of them, time
	// stamps too; those of a striding ring do not tell the hash either.
	NoCompression bool
	// NoMultiSegment gives every frame one buffer that holds the longest
	// [no-multi-seg]. Default, with an MTU above 2414: 2 to 8 smaller buffers per
	// receive descriptor, of which a frame takes those it reaches (Packet.More).
	NoMultiSegment bool
	// StripVLAN moves the outer 802.1Q tag of received frames into Packet.VLAN, if the device can.
	StripVLAN bool
	// EventFrames and EventMicroseconds hold the event that RxQueue.Arm asks for until so many
	// frames are there or so much time has passed: fewer wake-ups for some delay. 0 of EventFrames:
	// the event comes with the first frame; else both must be set.
	EventFrames, EventMicroseconds uint16
}

// WithSendMemory returns c with memory of the caller's, which is not Go heap and stays mapped until
// Close has returned, that Post leaves payload of segmented packets in instead of copying it, see
// [TxPacket.Holder]. Open calls get with the number of bytes that may be registered: 16 MiB, or
// less where less may be locked. Fewer may come; the NIC may only read them. If get fails, or
// nothing may be locked, packets are copied: [Device.SendMemory] and a line of the log say why.
func (c Config) WithSendMemory(get func(bytes int) ([]byte, error)) Config {
	c.sendMemory = get
	return c
}

// WithDefaultSizes returns c with the numbers and sizes of queues and buffers that every device has
// room for. All other fields are kept: what frames we take, and how, is not the device's choice.
func (c Config) WithDefaultSizes() Config {
	c.RxQueues, c.TxQueues, c.ActiveRxQueues = 0, 0, 0
	c.Rings.RxQueueSize, c.Rings.TxQueueSize = 0, 0
	c.Tuning.TxBufferSize, c.Tuning.SpareFrames = 0, 0
	return c
}

// WithoutOptionalFeatures returns c without what only some devices can do, and frames pass without:
// Striding, StripVLAN, DelayDrop, and events that are held back. All other fields are kept.
func (c Config) WithoutOptionalFeatures() Config {
	c.Rings.Striding, c.Tuning.StripVLAN, c.Rings.DelayDrop = false, false, false
	c.Tuning.EventFrames, c.Tuning.EventMicroseconds = 0, 0
	return c
}

// PortFacts holds what the netdev of a port would tell.
type PortFacts struct {
	// Name is the RDMA device's name, Netdev its port's. For messages.
	Name, Netdev string
	// MAC is the netdev's own address, not to be taken from it.
	MAC net.HardwareAddr
	// MTU is the netdev's, in bytes; 0 means 1500.
	MTU int
	// Port is the device's port number; 0 means 1.
	Port uint8
	// Down: the netdev is administratively down, so that the port passes nothing.
	Down bool
	// Virtual: an SR-IOV virtual function, whose switch passes only its own MAC.
	Virtual bool
	// Representor: the netdev stands for a function behind the e-switch (switchdev).
	Representor bool
	// Netvsc is the Hyper-V netdev whose data this port carries, "" if it is none's. The
	// host's switch then passes only the port's own MAC, and broadcasts come to Netvsc.
	Netvsc string
}
