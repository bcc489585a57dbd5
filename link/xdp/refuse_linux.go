package xdp

import (
	"cmp"
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/internal/bpf"
)

// facts holds what is known of an interface before anything of it is touched.
type facts struct {
	name   string
	driver string // as ethtool -i has it; "": none
	mtu    int
	queues int // that receive

	// program gives the number of the XDP program that is attached, 0 if none, and programName what
	// it is called, as far as that may be known.
	program     uint32
	programName string

	// features holds those of the netdev family of generic netlink, of linux 6.3.
	featuresKnown bool
	features      uint64
	// metadata says that the driver computes checksums of frames sent in zero copy.
	metadata bool

	stripsVLAN   bool // the NIC takes tags out before a program sees the frame
	softwareSums bool // senders on this machine do not leave checksums to a NIC
}

// Bits of NETDEV_A_DEV_XDP_FEATURES (include/uapi/linux/netdev.h).
const (
	featureBasic    = 1 << 0
	featureRedirect = 1 << 1
	featureZeroCopy = 1 << 3
)

// unfit says of drivers why AF_XDP is of no use on their netdevs.
var unfit = map[string]string{
	"tun":                 "it carries segments of 64 KiB, which fit no frame of AF_XDP",
	"bridge":              "it has no queues of a NIC; name one of its ports",
	"bonding":             "AF_XDP sockets must be on its members; name one that is in no bond",
	"team":                "AF_XDP sockets must be on its members; name one that is in no team",
	"802.1Q VLAN Support": "AF_XDP sockets must be on the netdev below; name that, with --vlan",
	"macvlan":             "AF_XDP sockets must be on the netdev below; name that",
	"ipvlan":              "AF_XDP sockets must be on the netdev below; name that",
	"hv_netvsc":           "its frames come by a virtual function, which the program does not see",
}

// refuseConfig says in one sentence why an interface cannot be served as c says, or nil. Nothing
// has been attached yet, so no NIC has reset its rings.
func (f *facts) refuseConfig(c *Config) error {
	no := func(format string, args ...any) error {
		return fmt.Errorf("%s is a %s and not to be served through AF_XDP: %s; use packet sockets",
			f.name, cmp.Or(f.driver, "netdev without a driver"), fmt.Sprintf(format, args...))
	}
	switch why := unfit[f.driver]; {
	case why != "":
		return no("%s", why)
	case f.driver == "veth" && !f.softwareSums:
		return no("senders on this machine leave checksums out and segments whole: "+
			"\"ethtool -K %s tx off\" at both ends changes that", f.name)
	case f.featuresKnown && f.features&featureRedirect == 0:
		return no("its driver runs no XDP programs that redirect")
	case f.stripsVLAN:
		return no("it takes VLAN tags out before a program sees them, and frames of every network "+
			"would come to us: \"ethtool -K %s rxvlan off\" changes that", f.name)
	case f.mtu > maxMTU:
		return no("its MTU is %d, and frames of at most %d bytes of IP fit; "+
			"\"ip link set %s mtu %d\" changes that", f.mtu, maxMTU, f.name, maxMTU)
	case c.Queues > f.queues:
		return no("%d queues are wanted, and it receives by %d; leave the number unset", c.Queues,
			f.queues)
	case f.program != 0 && !c.Await:
		return f.sayTaken()
	}
	return nil
}

// sayTaken says whose program the interface has.
func (f *facts) sayTaken() error {
	if f.programName == bpf.ProgramName {
		return fmt.Errorf("%s is served through AF_XDP by another process (XDP program %d): an "+
			"interface can have one, so end it, or use packet sockets", f.name, f.program)
	}
	return fmt.Errorf("%s has the XDP program %d %q, and can have one: detach it "+
		"(ip link set %s xdp off), or use packet sockets", f.name, f.program, f.programName, f.name)
}

// whyCopy says why frames are copied, in words that follow "copied: ".
func (f *facts) whyCopy(c *Config) string {
	switch {
	case c.Copy:
		return "as asked for"
	case f.driver == "virtio_net":
		return "the driver has no zero copy here: it needs linux 6.13 and a device with " +
			"VIRTIO_F_ACCESS_PLATFORM"
	case f.featuresKnown && f.features&featureZeroCopy == 0:
		return "the driver has no zero copy"
	}
	return "the kernel refused zero copy"
}
