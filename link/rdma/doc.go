// Package rdma is the gVisor link endpoint over the queues of package dv: frames on one side, PacketBuffers on the
// other.
//
// # Receiving
//
// Each receive queue has one worker goroutine, its owner. It takes what the ring has (worker.go), makes one piece
// of every frame that lies in several buffers (rx_linear.go), judges every frame:
// for us? sound? checksum right? (parse.go, verify.go), joins consecutive segments of a TCP flow into one (merge.go, and
// merge_fast.go where a frame obviously goes on), copies what remains into buffers of the stack, of which it uses the large
// ones again, up to 2 MiB of them (rx_chunk.go), gives the frames back to the ring, and only then delivers (rx.go), inline:
// a further hop costs 60 us of round trip. A worker that finds nothing parks in the netpoller, unless it is to poll (rxmode.go).
//
//	ring ─Poll─▶ judge ─▶ join ─▶ copy ─▶ DeliverNetworkPacket
//	  ▲                            │
//	  └──────────Release───────────┘
//
// Two shorter ways lead past parts of netstack: to its transport layer (fastpath.go), and for datagrams to the socket itself (sink.go),
// which is copied to and told once per batch.
//
// What the stack would queue without a bound, TCP segments without payload, is counted while it waits there, and shed from
// some number on, that of strangers first (waiting.go).
//
// The stack asks once per NIC whether checksums are verified on reception, the NIC answers per frame. So the endpoint says
// yes and verifies itself what the NIC did not vouch for. Only fragments are left to the stack, see BindStack.
//
// # Sending
//
// WritePackets is called from many goroutines with locks of the stack held. A flow stays on one queue; each queue has a
// lock; packets are copied into the NIC's memory, segments larger than the MSS are left to the NIC to cut up, and one
// doorbell goes out per call (tx.go). The stack has no way to be told "later", and a packet dropped here costs it a
// retransmission timeout. So TCP segments that find the ring full are kept in a backlog, bounded, and follow in order
// (backlog.go); whatever else waits in its sender, up to a millisecond. ARP, ICMP and the like do neither and have a reserve.
//
// Completions are looked for before every write and after every reception, for one may tell of an error that leaves the queue
// mute until it is replaced; and by a timer while anything is outstanding (completion_timer.go).
//
// ACKCoalescer (ack.go) is a queueing discipline to put in front: it holds pure ACKs back for a moment, as RFC 1122 and RFC
// 5681 allow and netstack by itself never does.
//
// # What netstack does not see
//
// Some of netstack's TCP goes wrong for reasons that are visible on the link, and is put right there, by changing what arrives
// (flows.go): a window shut on segments that were allowed (zero_window.go), a round trip time measured from a SYN that was lost
// (syn_rtt_fix.go), a loss inside a super-segment (gso_sack_filter.go).
//
// # Lifetime
//
// Attach starts the workers. Attach(nil) and Wait only tell them to end, for netstack calls both with its own mutex held,
// which a worker in the middle of a delivery may want. Close joins them. The device is its opener's: Stop it or not, Close
// the endpoint, then Close the device.
package rdma
