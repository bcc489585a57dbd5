package hdr

import "encoding/binary"

// TCP flags, RFC 9293 section 3.1.
const (
	FlagFIN = 0x01
	FlagSYN = 0x02
	FlagRST = 0x04
	FlagPSH = 0x08
	FlagACK = 0x10
	FlagURG = 0x20
	FlagCWR = 0x80

	// FlagsLast end a run of segments that may be merged.
	FlagsLast = FlagPSH | FlagFIN
	// FlagsSpecial are those of segments that are never merged.
	FlagsSpecial = FlagSYN | FlagRST | FlagURG | FlagCWR
)

// TCP option kinds.
const (
	OptEnd       = 0
	OptNop       = 1
	OptSACK      = 5 // RFC 2018
	OptTimestamp = 8 // RFC 7323
)

// TimestampLen is the length of a timestamp option, in bytes: kind, length, value at offset 2, echo
// at 6.
const TimestampLen = 10

// Options are the options of a TCP segment that the link looks at. Both slices begin with the kind
// and refer to the frame; nil: the segment has no such option, or one of a wrong length.
type Options struct {
	Timestamp []byte // TimestampLen bytes
	SACK      []byte // of any length from 2
	// Malformed: the options end in one whose length makes no sense.
	Malformed bool
}

// ParseOptions reads the first timestamp and the first SACK option. It stops at the first option
// that makes no sense.
func ParseOptions(options []byte) (o Options) {
	stamped := false
	for len(options) > 0 {
		switch options[0] {
		case OptEnd:
			return o
		case OptNop:
			options = options[1:]
			continue
		}
		if len(options) < 2 || options[1] < 2 || int(options[1]) > len(options) {
			o.Malformed = true
			return o
		}
		option := options[:options[1]]
		switch {
		case option[0] == OptSACK && o.SACK == nil:
			o.SACK = option
		case option[0] == OptTimestamp && !stamped:
			if stamped = true; len(option) == TimestampLen {
				o.Timestamp = option
			}
		}
		options = options[len(option):]
	}
	return o
}

// OptionsOf are the options of a TCP segment; none if its header length makes no sense.
func OptionsOf(tcp []byte) (o Options) {
	if n := int(tcp[12]>>4) * 4; n > TCPLen && n <= len(tcp) {
		return ParseOptions(tcp[TCPLen:n])
	}
	return o
}

// Before is true if sequence number a comes before b, RFC 9293 section 3.4.
func Before(a, b uint32) bool { return int32(a-b) < 0 }

// Numbers are the sequence and the ACK number of a TCP segment.
func Numbers(tcp []byte) (seq, ack uint32) {
	return binary.BigEndian.Uint32(tcp[4:]), binary.BigEndian.Uint32(tcp[8:])
}

// Tuple is the addresses and ports of a flow: source and destination address, 16 bytes each, an
// IPv4 address in the first four, then source and destination port.
type Tuple [36]byte

// Destination is the destination address with zeros behind an IPv4 address; of a flow in the
// direction that we send the peer's.
func (t *Tuple) Destination() []byte { return t[16:32] }

// tuple reads the tuple of a frame's TCP segment.
func (p *Packet) tuple(frame []byte) (t Tuple) {
	if h := frame[p.L3:]; p.EtherType == TypeIPv6 {
		copy(t[:32], h[8:IPv6Len])
	} else {
		copy(t[:4], h[12:16])
		copy(t[16:20], h[16:20])
	}
	copy(t[32:], frame[p.L4:p.L4+4])
	return t
}

// reversed is the tuple of the other direction.
func (t *Tuple) reversed() (r Tuple) {
	copy(r[:16], t[16:32])
	copy(r[16:32], t[:16])
	copy(r[32:34], t[34:])
	copy(r[34:], t[32:34])
	return r
}
