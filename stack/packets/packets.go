// Package packets has the types of handlers that answer datagrams where they are received, see
// [github.com/rdma-netstack/rdma-netstack/stack.UDPConn.ServePackets]. A server that is written
// against them does not depend on the stack: it looks for the method ServePackets.
package packets

import (
	"net/netip"
	"time"
)

// Room says how many bytes a reply may have that is written into Packet.Reply: what fits into one
// packet of 1500 bytes.
const Room = 1472

// Packet holds a datagram that was received, and the answer to it.
type Packet struct {
	// Payload may be read until the handler returns, and must not be changed.
	Payload []byte
	// From names the sender, and To the address and port of ours that it sent to, which the answer
	// leaves from. IPv4 addresses are never IPv4-mapped.
	From, To netip.AddrPort
	// At tells when the NIC received the datagram or, where the NIC does not say, when it came to
	// the socket. It is zero unless UDPConn.SetReceiveTimestamps asks for it.
	At time.Time
	// TOS holds the type of service, or traffic class. The lower two bits are ECN.
	TOS uint8
	// Reply begins without bytes and with room for [Room]. What it has when the handler returns is
	// sent to From; nothing is if it is empty. It may be made other memory, or part of Payload.
	Reply []byte
}

// Handler answers datagrams: at least one, in the order in which a receive queue had them. Calls of
// one shard, a number from 0, follow each other; those of different shards run at the same time. So
// what a handler keeps by shard needs no lock. It must not keep the packets.
type Handler func(shard int, ps []Packet)
