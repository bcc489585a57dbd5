package packet

import "net"

// Interface is an Ethernet interface, opened for the frames of one MAC address: a [Port], or what
// carries frames in its place for a program that has its own (stack.Config.Uplink.OpenInterface): a
// TAP device, a switch in the process, a simulation. It is a pointer, or else a value that can be
// compared. Methods may be called from any goroutine.
//
// What is sent may be a TCP segment of up to 64 KiB, and lack its checksums: see [TxFrame].
type Interface interface {
	// Name is the interface's, for errors and logs.
	Name() string
	// MAC is the address whose frames come, and VLAN their 802.1Q network; 0: they have no tag.
	MAC() net.HardwareAddr
	VLAN() uint16
	// MTU gives the largest IP packet, in bytes. It may change: see [MTUTeller].
	MTU() int
	// NumQueues says how many queues there are in each direction, 1 at least; Rx and Tx are queue
	// i. The frames of a flow come by one queue, in order.
	NumQueues() int
	Rx(i int) Receiver
	Tx(i int) Sender
	// SetGroups says which multicast addresses are ours, in place of those of the call before.
	SetGroups(groups []net.HardwareAddr) error
	// Mute drops all that comes from now on, and what has not been received or sent yet; Unmute
	// ends that.
	Mute() error
	Unmute() error
	// Dropped says how many frames had no room before a receive queue. It never falls.
	Dropped() uint64
	// LinkUp says whether frames pass, as far as known. LinkChanged has a token in it when that has
	// changed since the last one was taken; it is for one reader and is never closed.
	LinkUp() bool
	LinkChanged() <-chan struct{}
	// Done is closed when the interface is gone or closed, and Err then says why: an error that is
	// ErrGone, or ErrClosed.
	Done() <-chan struct{}
	Err() error
	// Close ends reception and sending. Closing again does nothing. Frames that a queue's owner has
	// received stay good until its next Receive, or Wait, which give their memory back.
	Close() error
}

// Netdev represents an [Interface] on a netdev of Linux: a [*Port], or what has further sockets on
// it (package link/xdp).
type Netdev interface {
	Interface
	MTUTeller
	// Driver names the netdev's driver, "" if it has none.
	Driver() string
	// SetMAC notes that the netdev has another MAC now, which is ours, too; SetPorts and
	// ChangePorts say which ports of its addresses are ours. They are for Config.Host.
	SetMAC(mac net.HardwareAddr) error
	SetPorts(list []Ports) error
	ChangePorts(added, removed []Ports) error
	// Stats returns all counters. They are not taken at one instant.
	Stats() Stats
}

// Joined represents an [Interface] whose receive queues bring a part of the frames. Those of
// Beside, which nobody else reads, bring the rest; all else of it is not to be used.
type Joined interface {
	Interface
	Beside() Interface
}

// Steered represents an [Interface] that has rules of its own for which frames come: those of the
// XDP program of package link/xdp.
type Steered interface {
	Rules() []Rule
}

// Rule describes such a rule.
type Rule struct {
	Match   string // which frames
	To      string // where they go
	Program uint32 // number of the XDP program that has the rule
	Waiting string // why it is not in effect; "": it is
}

// MTUTeller is an [Interface] whose MTU may change while it is open.
type MTUTeller interface {
	// MTUChanged returns a channel that gets a token when MTU changes, unless it still holds one.
	// It is for one reader and is never closed.
	MTUChanged() <-chan struct{}
}

// Receiver is a receive queue of an [Interface]. It has one owner, the goroutine that calls
// Receive, Arm and Wait; Wake is for everybody.
type Receiver interface {
	// Index is the queue's number.
	Index() int
	// Receive fills dst with received frames and returns how many, 0 if there are none. It does not
	// wait. The frames before are gone. One call after the last frame may return 0 without a look.
	// An owner that stops calls it once more, with no room, or keeps the memory of its frames.
	Receive(dst []Frame) int
	// Arm says that Wait comes next if the Receive in between returns 0, which need not look.
	Arm()
	// Wait waits until there are frames or a Wake, of which one that came before counts. It returns
	// an error when the interface is over, and the frames before are gone, too.
	Wait() error
	Wake()
}

// Sender is a send queue of an [Interface]. Its users hold Lock around calls.
type Sender interface {
	// Lock, TryLock and Unlock are those of a sync.Mutex.
	Lock()
	TryLock() bool
	Unlock()
	// MaxDatagrams says how many bytes of UDP payload Post takes with TxFrame.GSOSize; 0: none.
	MaxDatagrams() int
	// Post adds a frame to the batch that Flush sends, which comes before Unlock. The error is
	// ErrFull, ErrFrameSize or ErrClosed; the frame is counted nowhere then.
	Post(f *TxFrame) error
	Flush()
	// Waiting says how many frames have found no room yet. Retry sends what there is room for now,
	// the oldest first, and returns how many have gone.
	Waiting() int
	Retry() (gone int)
}

var _ Netdev = (*Port)(nil)
