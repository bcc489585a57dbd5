// Package hdr finds the headers of a frame: Ethernet, IPv4 or IPv6, TCP or UDP. A frame is parsed
// once, and what was found is passed down with it.
//
//	received   Packet.Parse     rx.go -> verify, merge, fast path, tcpfix.Flows.Received
//	sent       ParseSent        ack.go or tx.go -> queue, kind, tcpfix.Flows.Sent
//
// A Packet is offsets only. A Segment adds what more than one of its readers asks of a TCP segment:
// flags, the key of its flow, options. The flow and the options are read at first use and kept.
//
// The values have no lock. They refer to the frame's memory and are of use as long as that is.
package hdr
