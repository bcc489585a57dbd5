package mlx5

import "encoding/binary"

// Offsets in bytes within the 8-byte doorbell record of a queue pair or work
// queue, in host memory. Counters are big-endian and count in 16 bits.
const (
	RecordRecv = 0 // receive WQEs posted
	RecordSend = 4 // basic blocks of the send ring posted
)

// Offsets in bytes within the 8-byte doorbell record of a completion queue.
const (
	RecordConsumer = 0 // consumer index, 24 bits
	RecordArm      = 4 // arm word
)

// UARArm gives the offset of the 8-byte completion queue register in a page of device registers.
const UARArm = 0x20

// RecordIndexMask keeps of a completion queue's consumer index what its record
// and its arm word carry.
const RecordIndexMask = 0xffffff

// Doorbell returns the value of the send doorbell register for the WQE whose control
// segment is at ctrl: its first 8 bytes, as the big-endian number they are.
func Doorbell(ctrl []byte) uint64 { return binary.BigEndian.Uint64(ctrl[:8]) }

// ArmWord returns the request for one event of a completion queue. sn is the number
// of events delivered so far, ci the consumer index; solicited asks for the
// next solicited or error completion instead of just the next.
func ArmWord(sn uint32, solicited bool, ci uint32) uint32 {
	w := sn&3<<28 | ci&RecordIndexMask
	if solicited {
		w |= 1 << 24
	}
	return w
}

// ParseArmWord returns the reverse of ArmWord: sn modulo 4, ci modulo 2^24.
func ParseArmWord(w uint32) (sn uint32, solicited bool, ci uint32) {
	return w >> 28 & 3, w>>24&1 != 0, w & RecordIndexMask
}

// ArmDoorbell returns the value of the register at UARArm for that word.
func ArmDoorbell(word, cqn uint32) uint64 { return uint64(word)<<32 | uint64(cqn) }
