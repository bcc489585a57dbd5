// Package rings moves frames through a device's rings alone, without a TCP/IP stack: a generator, a
// counter of received frames, and a forwarder between two ports. The commands pktgen and xconnect
// use it; it also shows the use of package dv alone.
//
// Each worker is one goroutine that owns one queue and spins, as benchmarks of rings do; it ends
// with its context. Other goroutines read its progress through atomic counters.
package rings
