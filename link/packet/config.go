package packet

import (
	"bytes"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/random"
)

// Config says which interface to open and how. The zero value of every field but Device is useful.
type Config struct {
	// Device gives the name, or an alternative one, of an Ethernet interface in the calling
	// thread's network namespace.
	Device string
	// MAC is the address whose frames come to us. Default: a random, locally administered one. The
	// interface's own is refused: Linux would answer the same frames.
	MAC net.HardwareAddr
	// Host takes the interface's own MAC, and of its frames what [Port.SetPorts] says only. Linux
	// has all frames as well, and is kept from answering ours by whoever holds the ports there.
	Host bool
	// Queues gives the number of sockets, 1 to 64. Default 1.
	Queues int
	// VLAN names the 802.1Q network whose frames come to us, 1 to 4094; 0: frames without a tag.
	VLAN uint16
	// MTU gives the largest IP packet sent, in bytes, at most the interface's. Default the
	// interface's. If the interface's is less later, that counts.
	MTU int
	// Random says where a random MAC comes from; nil: the system's.
	Random io.Reader
	// SampleDrops lets one frame in so many pass, at random, of those that the kernel drops by
	// [Port.DropSources] and does not count: so their receiver knows that they still come. A power
	// of two up to 2^31; 0: none passes.
	SampleDrops uint32
}

const maxQueues = 64

// fillDefaults fills defaults in and says in one sentence what is wrong.
func (c *Config) fillDefaults() error {
	if c.Queues == 0 {
		c.Queues = 1
	}
	switch {
	case c.Device == "":
		return fmt.Errorf("no interface named: set Device to one that \"ip link\" lists")
	case c.Queues < 1 || c.Queues > maxQueues:
		return fmt.Errorf("%d queues: 1 to %d are possible", c.Queues, maxQueues)
	case c.SampleDrops&(c.SampleDrops-1) != 0:
		return fmt.Errorf("SampleDrops %d: one frame in a power of two may pass", c.SampleDrops)
	case c.VLAN > 4094:
		return fmt.Errorf("VLAN %d: networks have numbers from 1 to 4094", c.VLAN)
	case c.Host && c.MAC != nil:
		return fmt.Errorf("MAC %v: the host's is that of %s; leave it unset", c.MAC, c.Device)
	case c.Host && c.VLAN != 0:
		return fmt.Errorf("VLAN %d: the host's addresses are on a netdev of the VLAN; name that",
			c.VLAN)
	case c.Host:
	case c.MAC == nil:
		c.MAC = make(net.HardwareAddr, 6)
		random.From(c.Random).Read(c.MAC)
		c.MAC[0] = c.MAC[0]&^1 | 2
	case len(c.MAC) != 6 || c.MAC[0]&1 != 0 || bytes.Equal(c.MAC, make([]byte, 6)):
		return fmt.Errorf("MAC %v is no address of one Ethernet host: "+
			"leave it unset for a random one", c.MAC)
	}
	return nil
}

// checkInterface checks c against the interface.
func (c *Config) checkInterface(i *iface) error {
	if c.Host {
		c.MAC = i.mac
	}
	switch {
	case !i.ethernet:
		return fmt.Errorf("%s is no Ethernet interface: "+
			"name one that \"ip link\" lists as link/ether", c.Device)
	case !i.up:
		return fmt.Errorf("netdev %s is down, and passes no frames: ip link set %[1]s up: %w",
			c.Device, unix.ENETDOWN)
	case c.MTU != 0 && (c.MTU > i.mtu || c.MTU < 68):
		return fmt.Errorf("MTU %d: %s has %d bytes", c.MTU, c.Device, i.mtu)
	case bytes.Equal(c.MAC, i.mac) && !c.Host:
		return fmt.Errorf("MAC %v is that of %s itself, and Linux would answer the same frames: "+
			"leave it unset for a random one", c.MAC, c.Device)
	}
	return nil
}

// usableMTU returns the largest IP packet to send on an interface with such an MTU.
func (c *Config) usableMTU(mtu int) int {
	if c.MTU == 0 {
		return mtu
	}
	return min(c.MTU, mtu)
}

// iface holds what the kernel says about an interface.
type iface struct {
	index    int
	mac      net.HardwareAddr
	mtu      int
	ethernet bool
	up       bool // administratively
	carrier  bool
	driver   string
}
