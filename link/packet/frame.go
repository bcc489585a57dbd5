package packet

import (
	"encoding/binary"
	"errors"
)

// Frame is one received frame.
type Frame struct {
	// Data holds the frame from its Ethernet header on, without FCS and VLAN tag. It is the queue's
	// memory, the caller's until the next Receive.
	Data []byte
	// GSOSize gives the payload of each of the segments that a merged TCP frame was made of, but
	// for the last, in bytes; 0: the frame is as it was sent.
	GSOSize uint16
	// VLAN is the tag control information, valid with RxTagged.
	VLAN uint16
	// Flags says what is known of the frame.
	Flags RxFlags
}

// RxFlags says what is known of a received frame.
type RxFlags uint8

const (
	// RxChecksumOK: the TCP or UDP checksum has been verified, or the data has not been on a wire
	// since its sender: the field then has a part of the sum only.
	RxChecksumOK RxFlags = 1 << iota
	// RxHeaderOK: so with the IPv4 header's.
	RxHeaderOK
	// RxTagged: the frame had an 802.1Q tag.
	RxTagged
)

// TxFrame describes one frame to send, or one TCP segment or UDP datagram to be cut up.
type TxFrame struct {
	// Bufs are the frame's bytes in order, from the Ethernet header on. The first 128 bytes are
	// copied by Post, the rest when Flush returns: they must not change before.
	Bufs [][]byte
	// GSOSize > 0 asks for segmentation: the payload of TCP goes out in segments of so many bytes,
	// and that of UDP in datagrams, if MaxDatagrams takes it. Implies TxChecksum.
	GSOSize int
	// VLAN is the tag control information to insert with TxTag.
	VLAN uint16
	// Flags asks for checksums and tagging.
	Flags TxFlags
}

// TxFlags asks for work on a frame to be sent.
type TxFlags uint8

const (
	// TxChecksum: compute the IPv4 header checksum and that of TCP or UDP, whatever the fields
	// have. A frame that is neither is sent as it is.
	TxChecksum TxFlags = 1 << iota
	// TxTag: insert an 802.1Q tag with TxFrame.VLAN behind the MAC addresses.
	TxTag
)

// Errors of a queue.
var (
	// ErrFull: no room for this frame now. Retry, then try again.
	ErrFull = errors.New("the socket's send buffer is full")
	// ErrFrameSize: shorter than an Ethernet header or longer than the interface sends.
	ErrFrameSize = errors.New("frame size out of range")
	// ErrClosed: the port was stopped or closed.
	ErrClosed = errors.New("the port is closed")
	// ErrGone: the interface was removed, or moved to another network namespace.
	ErrGone = errors.New("the interface is gone")
)

// Sizes of headers and where their fields are, in bytes.
const (
	ethLen  = 14
	vlanLen = 4
	ipv4Len = 20
	ipv6Len = 40
	tcpLen  = 20
	udpLen  = 8

	// maxFrame gives the longest frame there can be without BIG TCP: an IP packet of 64 KiB - 1.
	maxFrame = ethLen + 65535
)

const (
	typeIPv4 = 0x0800
	typeIPv6 = 0x86dd
	typeVLAN = 0x8100

	protoTCP = 6
	protoUDP = 17
)

// splitter cuts up a frame with several datagrams of one flow behind one header, as a sender with
// UDP_SEGMENT leaves it to its NIC: here the frame has not met one.
type splitter struct {
	frame  []byte
	t      transport
	header int    // bytes of all headers
	size   int    // payload of each datagram but the last
	at     int    // the next payload
	id     uint16 // the next IPv4 identification
	arena  []byte // the datagrams of this batch; grows to what a batch has needed
}

// beginFrame starts on a frame of datagrams with size bytes of payload each. False: it is none.
func (s *splitter) beginFrame(frame []byte, size int) bool {
	t, ok := findTransport(frame)
	if !ok || t.proto != protoUDP || size <= 0 {
		return false
	}
	s.frame, s.t, s.header, s.size = frame, t, t.at+udpLen, size
	s.at, s.id = s.header, binary.BigEndian.Uint16(frame[t.ip+4:])
	return true
}

// hasMore reports whether there are datagrams left.
func (s *splitter) hasMore() bool { return s.at < len(s.frame) }

// nextDatagram returns the next datagram as a frame of its own, without the UDP checksum.
func (s *splitter) nextDatagram() []byte {
	payload := s.frame[s.at:min(s.at+s.size, len(s.frame))]
	s.at += len(payload)
	begin := len(s.arena)
	s.arena = append(append(s.arena, s.frame[:s.header]...), payload...)
	f := s.arena[begin:]
	ip, length := f[s.t.ip:s.t.at], udpLen+len(payload)
	if s.t.v6 {
		binary.BigEndian.PutUint16(ip[4:], uint16(length))
	} else {
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+length))
		binary.BigEndian.PutUint16(ip[4:], s.id)
		s.id++
		ip[10], ip[11] = 0, 0
		binary.BigEndian.PutUint16(ip[10:], ^addWords(0, ip))
	}
	binary.BigEndian.PutUint16(f[s.t.at+4:], uint16(length))
	return f[:len(f):len(f)]
}
