package dv

import (
	"encoding/binary"
	"net/netip"
)

// RSSKey is the key of the Toeplitz hash that spreads flows over receive queues.
type RSSKey [40]byte

// SymmetricRSSKey repeats one 16-bit pattern. A flow and its reverse then have
// the same hash, so that both ways of a connection belong to one queue
// (S. Woo, K. Park: "Scalable TCP Session Monitoring with Symmetric RSS", 2012).
func SymmetricRSSKey() RSSKey {
	var k RSSKey
	for i := 0; i < len(k); i += 2 {
		k[i], k[i+1] = 0x6d, 0x5a
	}
	return k
}

// IP protocol numbers that are hashed with their ports (IANA).
const (
	protoTCP = 6
	protoUDP = 17
)

// Flow is a received flow as its frames have it: Src is the peer.
type Flow struct {
	// Proto is the IP protocol number. Ports matter for 6 (TCP) and 17 (UDP) only.
	Proto    uint8
	Src, Dst netip.AddrPort
}

// maxHashInput is two IPv6 addresses and two ports, in bytes.
const maxHashInput = 16 + 16 + 2 + 2

// toeplitz hashes by table: entry [i][b] is what byte b at input offset i
// contributes. 36 KiB, made once per device, read only.
type toeplitz struct {
	table [maxHashInput][256]uint32
}

func newToeplitz(key RSSKey) *toeplitz {
	t := new(toeplitz)
	var padded [maxHashInput + 8]byte
	copy(padded[:], key[:])
	for i := range t.table {
		// Holds the 32-bit windows of the key that start at the eight bits of byte i.
		window := binary.BigEndian.Uint64(padded[i:])
		for b := range t.table[i] {
			for bit := range 8 {
				if b&(0x80>>bit) != 0 {
					t.table[i][b] ^= uint32(window >> (32 - bit))
				}
			}
		}
	}
	return t
}

// hashBytes returns the hash of in, at most maxHashInput bytes.
func (t *toeplitz) hashBytes(in []byte) uint32 {
	var h uint32
	for i, b := range in {
		h ^= t.table[i][b]
	}
	return h
}

// hashFlow returns what the NIC computes for f: over addresses and, for TCP and UDP, ports.
func (t *toeplitz) hashFlow(f Flow) uint32 {
	var buf [maxHashInput]byte
	in := appendAddr(buf[:0], f.Src.Addr())
	in = appendAddr(in, f.Dst.Addr())
	if f.Proto == protoTCP || f.Proto == protoUDP {
		in = binary.BigEndian.AppendUint16(in, f.Src.Port())
		in = binary.BigEndian.AppendUint16(in, f.Dst.Port())
	}
	return t.hashBytes(in)
}

func appendAddr(b []byte, a netip.Addr) []byte {
	if a = a.Unmap(); a.Is4() {
		four := a.As4()
		return append(b, four[:]...)
	}
	sixteen := a.As16()
	return append(b, sixteen[:]...)
}

// spread is the indirection table as the NIC has it.
type spread struct {
	hash    *toeplitz
	queueAt []int // receive queue of each entry; their number is a power of two
}

// queueOf returns the receive queue that a hash leads to.
func (s *spread) queueOf(hash uint32) int { return s.queueAt[int(hash)&(len(s.queueAt)-1)] }

// evenTable returns a table of 1<<log entries in which the queues take turns.
func evenTable(queues, log int) []int {
	at := make([]int, 1<<log)
	for i := range at {
		at[i] = i % queues
	}
	return at
}
