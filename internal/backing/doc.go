// Package backing keeps the kernel off ports of the host's own addresses which a TCP/IP stack
// outside the kernel serves. It needs no privileges beyond those for the port itself.
//
// A Socket is the kernel's socket of one address and port, bound, and of TCP listening, with a BPF
// filter (SO_ATTACH_BPF, socket(7)) that drops what one network device has received: that is the
// other stack's. All sockets of a stack share few filters where bpf(2) is allowed, see [Filters].
// So
//
//   - nobody else gets the port (EADDRINUSE), and no ephemeral port is taken from it,
//   - the kernel answers nothing that the other stack answers: a segment that finds a listener is
//     dropped by its filter before the listener's state is asked, be it a SYN or not (tcp_filter in
//     net/ipv4/tcp_ipv4.c), and a datagram that finds a socket is no reason for an ICMP error,
//   - processes of this host, its containers, and whoever comes by another device are served by the
//     kernel: see [Socket.Listener] and [Socket.Conn].
//
// A socket that is bound without listening does not do for TCP: the kernel then answers with RST.
//
// When the process ends, however it does, the sockets are closed, and the kernel answers for the
// ports at once.
package backing
