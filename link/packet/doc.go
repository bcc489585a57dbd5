// Package packet sends and receives the frames of one MAC address of our own on any Ethernet
// interface of Linux, through packet sockets (packet(7)): for machines and moments without a NIC
// whose rings can be had. It needs CAP_NET_RAW and nothing else, and knows nothing of RDMA.
//
// A Port is an interface with one socket per queue, in both directions:
//
//   - PACKET_FANOUT spreads received flows over the sockets by hash.
//   - PACKET_VNET_HDR precedes each frame with a virtio_net_hdr (virtio 1.2, 5.1.6) both ways: TCP
//     goes out unsegmented and without checksums, which the NIC or the kernel completes, and comes
//     in as merged by LRO, by GRO, or by a sender on this machine, with what is known of its sum.
//   - PACKET_MR_UNICAST has the NIC pass our MAC, PACKET_MR_MULTICAST our groups.
//   - A filter in the kernel, in place before the first frame, drops what is not for us.
//   - PACKET_IGNORE_OUTGOING leaves out what this machine sends.
//
// Linux drops our frames behind us, as they are to another host's MAC, and answers none of them.
// As with macvlan, this machine's own frames do not come back from the wire: Linux and we do not
// reach each other through the port's interface.
//
// A batch costs one system call each way (recvmmsg, sendmmsg). Rings in memory (TPACKET_V3) would
// save these; but V3 hands over a block when it is full or after a millisecond at the earliest, and
// V2 takes 64 KiB for every frame of the ring if merged ones are to fit.
//
// Nothing here allocates per frame.
package packet
