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

	// Of the template: the fields that count from packet to packet, and the sums of all others.
	id           uint16
	seq          uint32
	flags        byte
	ipSum, l4Sum uint16
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
	if c.p.l4At == 0 {
		return c, false
	}
	c.addUp()
	return c, true
}

// addUp reads the template, so that headers need not be read again once they are written.
func (c *cutter) addUp() {
	if c.p.l3 == mlx5.L3IPv4 {
		ip := c.template[c.p.l3At:]
		c.id = be16(ip[4:])
		c.ipSum = add16(be16(ip), sum16(ip[6:10]), sum16(ip[12:int(ip[0]&15)*4]))
	}
	l4, pseudo := c.template[c.p.l4At:], c.p.pseudo(c.template, 0)
	if c.p.proto == protoUDP {
		c.l4Sum = add16(pseudo, sum16(l4[:4]), sum16(l4[8:]))
		return
	}
	c.seq, c.flags = binary.BigEndian.Uint32(l4[4:]), l4[13]
	c.l4Sum = add16(pseudo, sum16(l4[:4]), sum16(l4[8:12]), uint16(l4[12])<<8, be16(l4[14:]), sum16(l4[18:]))
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
		c.number(b[c.p.l3At:], i, n)
	}
	size := uint32(len(b) - c.p.l4At + n)
	sum := uint32(c.l4Sum) + uint32(payloadSum) + size>>16 + size&0xffff
	if c.p.proto == protoTCP {
		sum += c.sequence(b[c.p.l4At:], at, n)
	} else {
		sum += size & 0xffff // the length in the header
	}
	if c.l4 {
		binary.BigEndian.PutUint16(b[c.p.csumAt():], checksumOf(fold16(sum), c.p.proto == protoUDP))
	}
	return b
}

// number sets the number of IPv4 packet i, which carries n bytes, and its checksum.
func (c *cutter) number(ip []byte, i, n int) {
	id := c.id + uint16(i)
	binary.BigEndian.PutUint16(ip[4:], id)
	if c.l3 {
		length := uint16(len(c.template) - c.p.l3At + n)
		binary.BigEndian.PutUint16(ip[10:], ^fold16(uint32(c.ipSum)+uint32(length)+uint32(id)))
	}
}

// sequence sets number and flags and returns their sum: FIN and PSH belong to the
// last packet, CWR to the first (model's choice; drivers do not segment packets
// with CWR).
func (c *cutter) sequence(tcp []byte, at, n int) (sum uint32) {
	seq, flags := c.seq+uint32(at), c.flags
	if at+n < c.total {
		flags &^= tcpFIN | tcpPSH
	}
	if at > 0 {
		flags &^= tcpCWR
	}
	binary.BigEndian.PutUint32(tcp[4:], seq)
	tcp[13] = flags
	return seq>>16 + seq&0xffff + uint32(flags)
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
