// Package privileges takes from a process what it no longer needs once its stack is open: its
// capabilities (Drop), system calls that servers on a slice do not make (Filter), and the file
// system but for some paths (Restrict). Each holds for all threads of the process, for good.
//
//	st, err := stack.Open(ctx, cfg)
//	ln, err := st.Listen("tcp", ":443")
//	err = privileges.Drop(privileges.NetRaw)
//	err = privileges.Filter()
//
// A stack on rings or packet sockets still needs CAP_NET_RAW: a queue in error is replaced by a new
// raw packet queue pair, and a device or interface that returns is opened again
// (Config.Uplink.MaxOutage). Where RLIMIT_MEMLOCK is below what the device needs, it also needs
// CAP_IPC_LOCK for that. With stack.Config.Host it needs, for addresses that the host gets later,
// CAP_NET_ADMIN (filters of TCP sockets, Linux commit 5d39580f68e6 and stable releases that have
// it, such as 6.18.44) and for ports below 1024 CAP_NET_BIND_SERVICE; other address events need
// none. A stack on stacktest, or on the software NIC, needs none at all.
//
// Linux only, and only in programs without cgo (CGO_ENABLED=0, or the build tags netgo and osusergo
// if nothing else needs C): the Go runtime can change threads that C made in no way.
package privileges

import "errors"

// ErrUnsupported is returned where the system, the kernel or the build has no such thing. The
// message says which.
var ErrUnsupported = errors.New("not supported here")

// Capability gives the number of a capability of Linux (capabilities(7)).
type Capability int

// Capabilities that a server may still need once its stack is open.
const (
	NetBindService Capability = 10 // ports below 1024 of the host
	NetAdmin       Capability = 12 // filters of the host's TCP sockets
	NetRaw         Capability = 13 // raw packet queue pairs, flow rules, packet sockets
	IPCLock        Capability = 14 // memory beyond RLIMIT_MEMLOCK
)

// Paths holds what Restrict leaves of the file system. A path that does not exist is passed over.
type Paths struct {
	Read    []string // files and directory trees to be read
	Write   []string // trees in which files and sockets may be made, written and removed, too
	Devices []string // device nodes, or trees of them, to be opened, mapped and controlled
}
