// Package tcp tests what our TCP does on the wire, and when: tables of scripts, on a virtual clock.
// One end is a [stack.Stack] on link/rdma, the driver and a software ConnectX, with all that they
// add to netstack's TCP: held ACKs, merged segments, and the workarounds of package tcpfix. The
// other end is the script: it writes every packet by hand and compares every packet that comes,
// with its time. script_test.go describes the language.
//
// A row names its source, an RFC or the topic of a published suite, and says where Linux differs.
package tcp
