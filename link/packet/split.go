package packet

import "encoding/binary"

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

// forgetReturned forgets what was returned.
func (s *splitter) forgetReturned() { s.arena = s.arena[:0] }
