//go:build linux

package hoststack

// byDesign has the reason for every behaviour that intentionally differs from the kernel's. An
// entry whose behaviour does not differ fails the test.
var byDesign = map[string]string{
	"udp data/an answer comes from the address that was asked": "the kernel answers from its " +
		"first address, which the client that asked the second one does not know; we answer from " +
		"the second",
	"groups/a time to live of 0": "the kernel keeps such datagrams " +
		"inside the host; netstack would put them on the wire, so we refuse it",
	"sockets/File": "there is no descriptor to hand " +
		"out; the error says so and is errors.ErrUnsupported",
	"sockets/SyscallConn": "the method's presence tells " +
		"libraries that there is a kernel socket, and they give up on a connection when it " +
		"fails; without it they take their portable path",
}

// noGroups is the reason of behaviours with groups on the host's own addresses.
const noGroups = "groups on the host's MAC are Linux's: opening and joining say that they are " +
	"unsupported, and nothing is sent to or received from them"

// byDesignOnHost is byDesign of stacks on the host's own addresses.
var byDesignOnHost = map[string]string{
	"udp data/an answer comes from the address that was asked": byDesign["udp data/an answer "+
		"comes from the address that was asked"],
	"sockets/File":        byDesign["sockets/File"],
	"sockets/SyscallConn": byDesign["sockets/SyscallConn"],
	"addresses/TCP from loopback to an address of our own": "such a connection is the kernel's, " +
		"from its socket for one version of IP: the bytes of an IPv4 address are 4, of a " +
		"listener for both versions 16; netip.AddrPort and the text are the same",
	"addresses/DialTCP and DialUDP to the wildcard address": "the wildcard address is this host, " +
		"which the kernel connects to; DialTCP returns a *stack.TCPConn, so it refuses, and says " +
		"to use DialContext",

	"groups/ListenMulticastUDP hears its group":                                    noGroups,
	"groups/two members on a port hear the group, the newest what is for the host": noGroups,
	"groups/ListenPacket on the address of a group":                                noGroups,
	"groups/a socket on the wildcard address hears what another has joined":        noGroups,
	"groups/a socket on one address hears no group":                                noGroups,
	"groups/who may have the port of a group's socket":                             noGroups,
	"groups/what ListenMulticastUDP refuses":                                       noGroups,
	"groups/joining and leaving what cannot be":                                    noGroups,
	"groups/loopback of what is sent to a group":                                   noGroups,
	"groups/a time to live of 0":                                                   noGroups,
	"groups/DialUDP to a group":                                                    noGroups,
	"groups/large datagrams to a group":                                            noGroups,
	"groups/what routers are told":                                                 noGroups,
}
