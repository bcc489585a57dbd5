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
