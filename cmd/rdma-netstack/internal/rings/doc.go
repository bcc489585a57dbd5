// Package rings moves frames with nothing but a device's rings, no TCP/IP stack: a generator, a
// counter of what arrives, and a forwarder between two ports. It is what the commands pktgen and
// xconnect run, and shows package dv by itself.
//
// Each worker is one goroutine that owns one queue and spins, as benchmarks of rings do; it ends
// with its context. Progress is read from other goroutines through atomic counters.
package rings
