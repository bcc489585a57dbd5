// Package rdma is the gVisor link endpoint over the queues of package dv, or over the packet
// sockets of package packet, which work on any NIC (backends.go): frames on one side, PacketBuffers
// on the other.
//
// # Receiving
//
// Each receive queue has one worker goroutine, its owner (worker.go). For each batch of frames it
//
//   - linearizes each frame that lies in several buffers (rx.go),
//   - drops frames for others, parses the headers once (internal/hdr) and verifies checksums that
//     the NIC did not verify,
//   - merges consecutive segments of a TCP flow (merge.go; merge.go where a frame continues
//     the one before),
//   - copies the rest into buffers of the stack, of which it reuses the large ones, up to 2 MiB of
//     them (rx.go),
//   - gives the frames back to the ring,
//   - and only then delivers, inline: a further goroutine costs 60 us of round trip (rx.go).
//
// A worker that finds nothing parks in the netpoller, unless it is to poll (worker.go).
//
//	ring ─Poll─▶ classifyAndMerge ─▶ buildPackets ─▶ Release ─▶ DeliverNetworkPacket
//
// The fast path leads past netstack's network layer to its transport layer (deliver.go), and for
// datagrams to the socket (deliver.go), which is told once per batch.
//
// The stack would queue TCP segments without payload without a bound. So they are counted while
// they wait there, and dropped from some number on, those of no connection first (flood.go).
//
// The stack asks once per NIC whether checksums are verified on reception; the NIC answers per
// frame. So the endpoint says yes and verifies in software what the NIC did not. Only fragments are
// left to the stack, see BindStack.
//
// # Sending
//
// Many goroutines call WritePackets with locks of the stack held. A flow stays on one queue, and
// each queue has a lock. Packets are copied into the NIC's memory, segments larger than the MSS are
// left to the NIC to cut, and a call rings one doorbell per run of packets for one queue (tx.go,
// tx.go). The stack cannot be told "later", and a packet dropped here costs it a
// retransmission timeout. So TCP segments that find the ring full wait in a backlog, bounded, in
// order (backlog.go); other packets wait in their sender, up to a millisecond. ARP, ICMP and RST do
// neither and have a reserve. sender.go has the states.
//
// Completions are read before every write and after every reception, as one may report an error
// that stops the queue until it is replaced; and by a timer while anything is outstanding
// (sender.go).
//
// ACKCoalescer (internal/delack), a queueing discipline in front of the endpoint, delays pure ACKs,
// as RFC 1122 and RFC 5681 allow. netstack does not.
//
// # What makes up for netstack
//
// Some of netstack's TCP goes wrong for reasons that are visible on the link. Package
// internal/tcpfix puts that right by changing received segments.
//
// # Lifetime
//
// Attach starts the workers. Attach(nil) and Wait only tell them to end: netstack calls both with
// its own mutex held, which a worker in the middle of a delivery may want. Close joins them. The
// device is its opener's: Stop it or not, Close the endpoint, then Close the device.
package rdma
