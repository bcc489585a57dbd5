package simnic

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// maxHeader is the longest L2 to L4 header that frames are cut behind.
const maxHeader = 1024

// cutter makes the headers of the packets that an unsegmented frame stands for:
// TCP segmentation by the rules of linux Documentation/networking/
// segmentation-offloads.rst, UDP likewise without sequence numbers.
type cutter struct {
	template []byte // headers; owned by whoever made the cutter
	p        parsed
	mss      int
	total    int  // payload bytes of all packets
	l3, l4   bool // checksums to be written
}

// newCutter takes headers, whose lengths it corrects in place, and how much
// payload follows in pieces of mss. ok is false when the headers have no whole
// TCP or UDP header.
func newCutter(template []byte, mss, total int) (c cutter, ok bool) {
	c = cutter{template: template, mss: mss, total: total, l3: true, l4: true}
	if len(template) < etherHeader {
		return c, false
	}
	c.p = parse(template)
	c.setLength(template, 0)
	c.p = parse(template)
	return c, c.p.l4At != 0
}

// setLength writes the IP and UDP lengths for n bytes of payload.
func (c *cutter) setLength(b []byte, n int) {
	size := len(c.template) - c.p.l3At + n
	switch {
	case c.p.etherType == etherIPv4 && len(b) >= c.p.l3At+20:
		binary.BigEndian.PutUint16(b[c.p.l3At+2:], uint16(size))
	case c.p.etherType == etherIPv6 && len(b) >= c.p.l3At+ipv6Header:
		binary.BigEndian.PutUint16(b[c.p.l3At+4:], uint16(size-ipv6Header))
	}
	if c.p.l4At != 0 && c.p.proto == protoUDP {
		binary.BigEndian.PutUint16(b[c.p.l4At+4:], uint16(len(c.template)-c.p.l4At+n))
	}
}

// packets is how many there are.
func (c *cutter) packets() int { return max(1, (c.total+c.mss-1)/c.mss) }

// size is the payload of packet i.
func (c *cutter) size(i int) int { return min(c.mss, c.total-i*c.mss) }

// header writes the headers of the packet that carries the n bytes of payload
// at offset at, with sum payloadSum, into dst and returns them. i counts
// packets; dst has room for the template.
func (c *cutter) header(dst []byte, i, at, n int, payloadSum uint16) []byte {
	b := dst[:copy(dst, c.template)]
	c.setLength(b, n)
	if c.p.l3 == mlx5.L3IPv4 {
		id := b[c.p.l3At+4:]
		binary.BigEndian.PutUint16(id, binary.BigEndian.Uint16(id)+uint16(i))
		if c.l3 {
			c.p.setIPv4Checksum(b)
		}
	}
	if c.p.proto == protoTCP {
		c.sequence(b[c.p.l4At:], at, n)
	}
	if c.l4 {
		at := c.p.csumAt()
		binary.BigEndian.PutUint16(b[at:], 0)
		s := add16(c.p.pseudo(b, len(b)-c.p.l4At+n), sum16(b[c.p.l4At:]), payloadSum)
		binary.BigEndian.PutUint16(b[at:], checksumOf(s, c.p.proto == protoUDP))
	}
	return b
}

// sequence sets number and flags: FIN and PSH belong to the last packet, CWR to
// the first (model's choice; drivers do not segment packets with CWR).
func (c *cutter) sequence(tcp []byte, at, n int) {
	binary.BigEndian.PutUint32(tcp[4:], binary.BigEndian.Uint32(tcp[4:])+uint32(at))
	if at+n < c.total {
		tcp[13] &^= tcpFIN | tcpPSH
	}
	if at > 0 {
		tcp[13] &^= tcpCWR
	}
}

// packets is how many packets a frame stands for.
func (f *Frame) packets() int {
	if f.GSO == GSONone || f.MSS == 0 {
		return 1
	}
	payload := len(f.Data) - int(f.HdrLen)
	return max(1, (payload+int(f.MSS)-1)/int(f.MSS))
}

// longest is the length of the longest packet a frame stands for.
func (f *Frame) longest() int {
	if f.GSO == GSONone {
		return len(f.Data)
	}
	return min(len(f.Data), int(f.HdrLen)+int(f.MSS))
}

// bytes is the length of all packets a frame stands for.
func (f *Frame) bytes() int { return len(f.Data) + (f.packets()-1)*int(f.HdrLen) }
