// Package xdp receives the frames of a [packet.Port] through AF_XDP sockets (linux
// Documentation/networking/af_xdp.rst): a program in the driver leads what is ours to memory of
// this process before Linux has made a packet of it. It needs CAP_NET_RAW, CAP_NET_ADMIN and
// CAP_BPF while it opens, nothing afterwards, and knows nothing of RDMA.
//
// A [Port] has one AF_XDP socket per receive queue of the interface, and the packet sockets of
// package packet beside them:
//
//	     frame
//	       │
//	 program in the driver ── ours, whole, unicast ──▶ socket of the queue ──▶ Rx(0..n-1)
//	       │ all else, or the queue has no socket
//	       ▼
//	Linux ── filter of the packet sockets ──▶ Rx(n..2n-1)
//
// What the program passes to Linux the packet sockets take: broadcast, groups, fragments, ARP and
// ICMP of the host's address. So nothing is lost, and nothing comes twice, while there is no
// program, or no socket on a queue: before a predecessor has let go, and after the program was
// detached by force.
//
// Frames leave through the packet sockets, which have segmentation and checksums done by the NIC
// or the kernel; or through the AF_XDP sockets (SendRings), where this package does both.
//
// What it takes from others: the interface can have one program and each queue one socket, so a
// second process is refused; frames for Linux pass the program, too, and lose what the driver
// turns off for it (LRO); "ethtool -L" to fewer queues than there are sockets is refused.
package xdp
