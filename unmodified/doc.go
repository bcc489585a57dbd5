// Package unmodified puts the sockets of the program that it is linked into on a slice, without a
// change to the program. "rdma-netstack build" links it, see package overlay and
// docs/unmodified.md; nothing else need import it.
//
// A program has one [Program], made of the environment by [FromEnvironment]. Package net asks it
// for each TCP and UDP socket. It opens the stack at the first one that is to be the slice's:
// a program that only prints its version opens no device.
//
//	         FromEnvironment          first socket            the stack opens
//	(none) ──────────────────▶ idle ──────────────▶ opening ──────────────────▶ open
//	                            ▲                      │
//	                            └──────────────────────┘ it does not: the call fails
//
// A socket of the slice has no descriptor. Where a program asks for one (syscall.RawConn), it gets
// that of a stand-in: a kernel socket of the same kind that is never connected or bound to a port,
// on which it sets and reads options, which are then applied to the slice's socket; or, to read and
// write, one end of a socket pair that carries the connection's data.
package unmodified
