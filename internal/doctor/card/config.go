package card

import (
	"net"
	"net/netip"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/internal/doctor"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// Config says which card to try, and what there is to try it with. What is nil is done without:
// the checks that need it are skipped and say so.
type Config struct {
	// NIC names the device. Sizes of rings and the like are the checks' own.
	NIC dv.Config
	// OpenNode opens the device node once more, for the second context that switches loopback
	// on. Needed without Wire.
	OpenNode func() (uverbs.Kernel, error)

	// Wire is the other end of the port's cable. nil: frames come from Netdev.
	Wire wire.Wire
	// Netdev is Linux's side of the port: what is sent there is sent by the netdev. Both stay
	// the caller's.
	Netdev wire.Wire
	// NetdevMAC is the netdev's own address, LinuxAddress an IPv4 address that Linux has there
	// and answers ARP for.
	NetdevMAC    net.HardwareAddr
	LinuxAddress netip.Addr
	// Neighbours are hosts on the link, with IPv4 addresses: they are asked by ARP if nothing
	// comes from the netdev.
	Neighbours []netip.Addr

	// UnicastList lists the addresses besides its own that the netdev has asked the e-switch for.
	UnicastList func() ([]net.HardwareAddr, error)
	// Ask asks the user for something, and does not wait. nil: nobody is there.
	Ask func(what string)

	// Environment says what is known of the machine.
	Environment []doctor.Fact

	// Patience bounds the wait for a frame or completion, default 2 s; PullPatience that for the
	// user, default 20 s.
	Patience, PullPatience time.Duration
}

// Defaults of Config.
const (
	patience     = 2 * time.Second
	pullPatience = 20 * time.Second
)

func (c *Config) setDefaults() {
	if c.Patience == 0 {
		c.Patience = patience
	}
	if c.PullPatience == 0 {
		c.PullPatience = pullPatience
	}
}
