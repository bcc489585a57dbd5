//go:build linux

package hoststack

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// controlOnWire has behaviours of control messages.
var controlOnWire = []wireBehaviour{
	{"control messages of sends", func(w *wired) {
		w.eachUDP(func(kind string, c udpConn, peer netip.Addr) {
			for _, m := range w.sentControl() {
				w.Text(kind+" "+m.name, w.sendWith(c, m.oob, peer, 1))
			}
		})
	}},
	{"IPV6_TCLASS of -1", func(w *wired) {
		w.Text("sent", w.sendWith(w.listenUDP(wireHost6), intControl(unix.IPPROTO_IPV6,
			unix.IPV6_TCLASS, -1), wirePeer6, 1))
	}},
	{"control messages of sends to groups", func(w *wired) {
		w.eachUDP(func(kind string, c udpConn, peer netip.Addr) {
			group := netip.MustParseAddr("239.1.2.3")
			if peer.Is6() {
				group = netip.MustParseAddr("ff05::123")
			}
			for _, m := range []controlBytes{{"nothing", nil},
				{"TOS", intControl(unix.IPPROTO_IP, unix.IP_TOS, 0x2a)},
				{"TCLASS", intControl(unix.IPPROTO_IPV6, unix.IPV6_TCLASS, 0x2b)},
				{"TTL", intControl(unix.IPPROTO_IP, unix.IP_TTL, 9)},
				{"HOPLIMIT", intControl(unix.IPPROTO_IPV6, unix.IPV6_HOPLIMIT, 8)},
				{"SEGMENT", segmentControl(100)}} {
				w.Text(kind+" "+m.name, w.sendWith(c, m.oob, group, 250))
			}
		})
	}},
	{"UDP_SEGMENT", func(w *wired) {
		w.eachUDP(func(kind string, c udpConn, peer netip.Addr) {
			for range 2 { // the second time by the header template of the path
				for _, size := range []int{0, 1, 100, 1200, 1452, 1453, 1472, 1473, 3000} {
					for _, n := range []int{0, 1, 99, 100, 250, 3000, 12800, 12801, 65507} {
						if size == 1 && n > 250 || size == 0 && n > 250 {
							continue
						}
						w.Text(fmt.Sprint(kind, " ", size, " of ", n),
							w.sendWith(c, segmentControl(uint16(size)), peer, n))
					}
				}
			}
			w.Text(kind+" with TOS", w.sendWith(c, append(segmentControl(1000),
				intControl(unix.IPPROTO_IP, unix.IP_TOS, 0x2a)...), peer, 2500))
			for _, v := range []int{-1, 0x10000, 700} {
				w.Text(fmt.Sprint(kind, " option ", v), errno(setUDPOption(c, unix.SOL_UDP,
					unix.UDP_SEGMENT, v)))
			}
			w.Text(kind+" by the option", w.sendWith(c, nil, peer, 2000))
			w.Text(kind+" but for one", w.sendWith(c, segmentControl(0), peer, 1000))
			w.must(setUDPOption(c, unix.SOL_UDP, unix.UDP_SEGMENT, 0))
			w.Text(kind+" without", w.sendWith(c, nil, peer, 1000))
		})
	}},
	{"IPV6_DONTFRAG", func(w *wired) {
		c := w.listenUDP(wireHost6)
		for _, n := range []int{1452, 1453} {
			w.Text(fmt.Sprint(n), w.sendWith(c, intControl(unix.IPPROTO_IPV6,
				unix.IPV6_DONTFRAG, 1), wirePeer6, n))
		}
	}},
	{"control messages of reads", func(w *wired) {
		all := []sockOption{{unix.IPPROTO_IP, unix.IP_PKTINFO},
			{unix.IPPROTO_IP, unix.IP_RECVTTL}, {unix.IPPROTO_IP, unix.IP_RECVTOS},
			{unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO},
			{unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT},
			{unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS}}
		w.eachUDP(func(kind string, c udpConn, peer netip.Addr) {
			read := func(what string, room int) {
				w.Text(kind+" "+what, w.readWith(c, peer, room, false))
			}
			read("nothing", 200)
			for _, o := range all {
				if strings.HasPrefix(kind, "udp4") && o.level == unix.IPPROTO_IPV6 {
					continue
				}
				w.must(setUDPOption(c, o.level, o.name, 1))
				read(fmt.Sprint("only ", o), 200)
				w.must(setUDPOption(c, o.level, o.name, 0))
			}
			for _, o := range all {
				if !strings.HasPrefix(kind, "udp4") || o.level == unix.IPPROTO_IP {
					w.must(setUDPOption(c, o.level, o.name, 1))
				}
			}
			for room := range 140 {
				read(fmt.Sprint("all in ", room), room)
			}
			w.Text(kind+" of fragments", w.readWith(c, peer, 200, true))
		})
	}},
}

// stampsOnWire lists those of the error queue, which programs by rdma-netstack build do not get.
var stampsOnWire = []wireBehaviour{
	{"time stamps of sends", func(w *wired) {
		w.eachUDP(func(kind string, c udpConn, peer netip.Addr) {
			own := intControl(unix.SOL_SOCKET, unix.SO_TIMESTAMPING,
				unix.SOF_TIMESTAMPING_TX_SOFTWARE)
			for _, flags := range []int{1 << 31, 0, unix.SOF_TIMESTAMPING_TX_SOFTWARE,
				unix.SOF_TIMESTAMPING_SOFTWARE, softwareStamps,
				softwareStamps | unix.SOF_TIMESTAMPING_RAW_HARDWARE,
				softwareStamps | unix.SOF_TIMESTAMPING_OPT_ID,
				softwareStamps | unix.SOF_TIMESTAMPING_OPT_ID | unix.SOF_TIMESTAMPING_OPT_TSONLY,
				softwareStamps | unix.SOF_TIMESTAMPING_OPT_ID,
				softwareStamps | 1<<14, // OPT_TX_SWHW
				unix.SOF_TIMESTAMPING_RAW_HARDWARE | unix.SOF_TIMESTAMPING_OPT_ID} {
				name := fmt.Sprintf("%s %#x", kind, flags)
				w.Text(name, errno(setUDPOption(c, unix.SOL_SOCKET, unix.SO_TIMESTAMPING, flags)))
				if flags == 1<<31 {
					continue
				}
				if flags&unix.SOF_TIMESTAMPING_TX_SOFTWARE != 0 {
					for i := range 3 {
						w.Text(name, w.sendWith(c, nil, peer, 100+i)+" "+w.stampOf(c, 300, 200))
					}
				}
				w.Text(name+" by message", w.sendWith(c, own, peer, 8)+" "+
					w.stampOf(c, 300, 200))
				for _, room := range []int{0, 1, 16, 40, 64, 70, 80, 96, 111, 112, 124, 128} {
					w.Text(fmt.Sprint(name, " in ", room), w.sendWith(c, own, peer, 8)+" "+
						w.stampOf(c, room/9, room)) // no flow label
				}
			}
		})
	}},
}

// softwareStamps asks for stamps that both hosts have, and for what is reported of them.
const softwareStamps = unix.SOF_TIMESTAMPING_TX_SOFTWARE | unix.SOF_TIMESTAMPING_SOFTWARE

// stampOf describes what the error queue has: the bytes of the datagram without MAC addresses,
// identification and checksums, and control messages without the time.
func (w *wired) stampOf(c udpConn, size, room int) string {
	w.Helper()
	b, oob := make([]byte, size), make([]byte, room)
	n, oobn, flags, err := readErrorQueue(c, b, oob)
	if err != nil {
		return errno(err)
	}
	now := uint64(time.Now().Unix())
	for at := unix.CmsgLen(0); at+8 <= oobn && at < unix.CmsgLen(48); at += 16 {
		if s := binary.NativeEndian.Uint64(oob[at:]); s != 0 && now-s < 100 {
			clear(oob[at:min(at+16, len(oob))])
			oob[at] = 't'
		}
	}
	clear(b[:min(n, 12)])
	if n > 14 {
		ip := b[14:]
		if ip[0]>>4 == 4 && len(ip) > 28 {
			clear(ip[4:6])
			clear(ip[10:12])
			clear(ip[20:22]) // the port that was free
			clear(ip[22:24])
			clear(ip[26:28])
		} else if len(ip) > 48 {
			clear(ip[1:4]) // the label
			clear(ip[40:44])
			clear(ip[46:48])
		}
	}
	return fmt.Sprintf("%d %x %d %x %#x", n, b[:n], oobn, oob[:oobn], flags)
}

// readErrorQueue calls recvmsg with MSG_ERRQUEUE, once there is something.
func readErrorQueue(c udpConn, b, oob []byte) (n, oobn, flags int, err error) {
	if c, ok := c.(*stack.UDPConn); ok {
		return c.ReadErrorQueue(b, oob)
	}
	raw, err := c.(*net.UDPConn).SyscallConn()
	if err != nil {
		return 0, 0, 0, err
	}
	broken := raw.Control(func(fd uintptr) {
		for {
			n, oobn, flags, _, err = unix.Recvmsg(int(fd), b, oob, unix.MSG_ERRQUEUE)
			if err != unix.EAGAIN {
				return
			}
			p := []unix.PollFd{{Fd: int32(fd)}} // POLLERR needs no asking
			if ready, _ := unix.Poll(p, int(time.Minute.Milliseconds())); ready == 0 {
				return
			}
		}
	})
	if broken != nil {
		return 0, 0, 0, broken
	}
	return n, oobn, flags, err
}

// sockOption names a socket option.
type sockOption struct{ level, name int }

// receives maps options to what stands for them in package stack.
var receives = map[sockOption]stack.ControlMessages{
	{unix.IPPROTO_IP, unix.IP_PKTINFO}:          stack.ReceivePacketInfo4,
	{unix.IPPROTO_IP, unix.IP_RECVTTL}:          stack.ReceiveTTL,
	{unix.IPPROTO_IP, unix.IP_RECVTOS}:          stack.ReceiveTOS,
	{unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO}:  stack.ReceivePacketInfo6,
	{unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT}: stack.ReceiveHopLimit,
	{unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS}:   stack.ReceiveTrafficClass,
	{unix.SOL_UDP, unix.UDP_GRO}:                stack.ReceiveSegments,
}

// setUDPOption sets a socket option, or what stands for it.
func setUDPOption(c udpConn, level, name, v int) (err error) {
	if c, ok := c.(*stack.UDPConn); ok {
		if level == unix.SOL_UDP && name == unix.UDP_SEGMENT {
			return c.SetSegmentSize(v)
		}
		if level == unix.SOL_SOCKET && name == unix.SO_TIMESTAMPING {
			return c.SetTransmitTimestamps(stack.TimestampFlags(v))
		}
		return c.SetReceive(receives[sockOption{level, name}], v != 0)
	}
	raw, err := c.(*net.UDPConn).SyscallConn()
	if err != nil {
		return err
	}
	broken := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, name, v) })
	if broken != nil {
		return broken
	}
	return err
}

// eachUDP runs f with a socket of each family, and a peer that it can reach.
func (w *wired) eachUDP(f func(kind string, c udpConn, peer netip.Addr)) {
	w.Helper()
	for _, k := range []struct {
		network string
		peer    netip.Addr
	}{{"udp4", wirePeer4}, {"udp", wirePeer4}, {"udp", wirePeer6}, {"udp6", wirePeer6}} {
		c, err := w.ListenUDP(k.network, nil)
		w.must(err)
		w.must(c.SetDeadline(soon()))
		f(fmt.Sprint(k.network, " ", k.peer), c, k.peer)
		w.must(c.Close())
	}
}

type controlBytes struct {
	name string
	oob  []byte
}

// control returns a control message.
func control(level, kind int, data []byte) []byte {
	b := binary.NativeEndian.AppendUint64(nil, uint64(unix.CmsgLen(len(data))))
	b = binary.NativeEndian.AppendUint32(b, uint32(level))
	b = binary.NativeEndian.AppendUint32(b, uint32(kind))
	b = append(b, data...)
	return append(b, make([]byte, unix.CmsgSpace(len(data))-len(b))...)
}

func intControl(level, kind, v int) []byte {
	return control(level, kind, binary.NativeEndian.AppendUint32(nil, uint32(v)))
}

func segmentControl(size uint16) []byte {
	return control(unix.SOL_UDP, unix.UDP_SEGMENT, binary.NativeEndian.AppendUint16(nil, size))
}

// packetInfo returns IP_PKTINFO or IPV6_PKTINFO.
func packetInfo(index int, source netip.Addr) []byte {
	number := binary.NativeEndian.AppendUint32(nil, uint32(index))
	if source.Is4() {
		return control(unix.IPPROTO_IP, unix.IP_PKTINFO,
			append(append(number, source.AsSlice()...), 0, 0, 0, 0))
	}
	return control(unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, append(source.AsSlice(), number...))
}

// sentControl returns control messages that are right, wrong and unknown.
func (w *wired) sentControl() (all []controlBytes) {
	add := func(name string, oob []byte) { all = append(all, controlBytes{name, oob}) }
	add("nothing", nil)
	for _, o := range []sockOption{{unix.IPPROTO_IP, unix.IP_TOS}, {unix.IPPROTO_IP, unix.IP_TTL},
		{unix.IPPROTO_IP, 52 /* IP_PROTOCOL */}, {unix.IPPROTO_IPV6, unix.IPV6_TCLASS},
		{unix.IPPROTO_IPV6, unix.IPV6_HOPLIMIT}, {unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG}} {
		for _, v := range []int{-2, -1, 0, 1, 2, 3, 0xb8, 0xff, 0x100} {
			if v != -1 || o.name != unix.IPV6_TCLASS {
				add(fmt.Sprint(o, " ", v), intControl(o.level, o.name, v))
			}
		}
		for _, n := range []int{0, 1, 2, 5, 8} {
			add(fmt.Sprint(o, " of ", n, " bytes"), control(o.level, o.name,
				[]byte{1, 0, 0, 0, 0, 0, 0, 0}[:n]))
		}
	}
	for _, a := range []netip.Addr{wireHost4, wirePeer4, wireAll4, netip.IPv4Unspecified(),
		wireHost6, wirePeer6, netip.IPv6Unspecified(), netip.AddrFrom16(wireHost4.As16()),
		netip.AddrFrom16(wirePeer4.As16()), netip.MustParseAddr("fe80::1234")} {
		for _, index := range []int{0, w.index, 9999} {
			name := fmt.Sprint("from ", a, " of ", index)
			if index == w.index {
				name = fmt.Sprint("from ", a, " of ours")
			}
			add(name, packetInfo(index, a))
		}
	}
	short, long := packetInfo(0, wireHost4), packetInfo(0, wireHost4)
	binary.NativeEndian.PutUint64(short, uint64(unix.CmsgLen(11)))
	long = append(long, 0, 0, 0, 0, 0, 0, 0, 0)
	binary.NativeEndian.PutUint64(long, uint64(unix.CmsgLen(16)))
	add("IP_PKTINFO too short", short)
	add("IP_PKTINFO too long", long)
	short, long = packetInfo(0, wireHost6), packetInfo(0, wireHost6)
	binary.NativeEndian.PutUint64(short, uint64(unix.CmsgLen(19)))
	long = append(long, 0, 0, 0, 0, 0, 0, 0, 0)
	binary.NativeEndian.PutUint64(long, uint64(unix.CmsgLen(24)))
	add("IPV6_PKTINFO too short", short)
	add("IPV6_PKTINFO too long", long)

	add("several", append(append(intControl(unix.IPPROTO_IP, unix.IP_TOS, 0x2a),
		intControl(unix.IPPROTO_IPV6, unix.IPV6_TCLASS, 0x2b)...),
		append(intControl(unix.IPPROTO_IP, unix.IP_TTL, 9),
			intControl(unix.IPPROTO_IPV6, unix.IPV6_HOPLIMIT, 8)...)...))
	add("twice", append(intControl(unix.IPPROTO_IP, unix.IP_TOS, 1),
		intControl(unix.IPPROTO_IP, unix.IP_TOS, 2)...))
	add("a wrong one behind", append(intControl(unix.IPPROTO_IP, unix.IP_TOS, 1),
		intControl(unix.IPPROTO_IP, unix.IP_TTL, 0)...))
	for _, n := range []int{1, 15, 16, 17, 19} {
		add(fmt.Sprint("cut to ", n), intControl(unix.IPPROTO_IP, unix.IP_TOS, 1)[:n])
	}
	for _, n := range []uint64{0, 15, 16, 25, 1 << 31, 1<<63 + 20, ^uint64(0)} {
		b := intControl(unix.IPPROTO_IP, unix.IP_TOS, 1)
		binary.NativeEndian.PutUint64(b, n)
		add(fmt.Sprint("of length ", n), b)
	}
	add("junk behind", append(intControl(unix.IPPROTO_IP, unix.IP_TOS, 1), 1, 2, 3))
	for _, o := range []sockOption{{unix.IPPROTO_IP, 99}, {unix.IPPROTO_IPV6, 199},
		{unix.SOL_UDP, 99}, {unix.SOL_SOCKET, 99}, {unix.SOL_SOCKET, unix.SCM_RIGHTS},
		{unix.SOL_SOCKET, unix.SCM_CREDENTIALS}, {unix.IPPROTO_TCP, 1}, {99, 99}, {-1, -1}} {
		add(fmt.Sprint("unknown ", o), intControl(o.level, o.name, 0))
	}
	for _, v := range []int{0, 1, 2, 3, 4, 0x10, 0x40, 0x80, 1 << 31} {
		add(fmt.Sprint("SO_TIMESTAMPING ", v), intControl(unix.SOL_SOCKET, unix.SO_TIMESTAMPING, v))
	}
	for _, n := range []int{0, 3, 5, 8} {
		add(fmt.Sprint("SO_TIMESTAMPING of ", n, " bytes"), control(unix.SOL_SOCKET,
			unix.SO_TIMESTAMPING, make([]byte, n)))
	}
	for _, n := range []int{0, 1, 3, 4} {
		add(fmt.Sprint("UDP_SEGMENT of ", n, " bytes"), control(unix.SOL_UDP, unix.UDP_SEGMENT,
			[]byte{100, 0, 0, 0}[:n]))
	}
	return all
}

// sendWith sends n bytes with control messages, and describes what is on the wire.
func (w *wired) sendWith(c udpConn, oob []byte, peer netip.Addr, n int) string {
	w.Helper()
	port := w.wirePort()
	sent, oobn, err := c.WriteMsgUDP(make([]byte, n), oob, peerAddr(peer, port))
	if err != nil {
		return errno(err)
	}
	var all []string
	for left := n; left > 0 || len(all) == 0; {
		ip := w.next("a datagram", is(17, port))
		_, at := protocolOf(ip)
		size := len(ip) - at - 8
		left -= size
		all = append(all, fmt.Sprint(headersOf(ip), " ", size))
	}
	return fmt.Sprint(sent, oobn, " ", squeeze(all))
}

// headersOf lists what control messages change of an IP header.
func headersOf(ip []byte) string {
	if ip[0]>>4 == 4 {
		from, _ := netip.AddrFromSlice(ip[12:16])
		return fmt.Sprintf("%v class %#x ttl %d", from, ip[1], ip[8])
	}
	from, _ := netip.AddrFromSlice(ip[8:24])
	return fmt.Sprintf("%v class %#x ttl %d", from, ip[0]<<4|ip[1]>>4, ip[7])
}

// squeeze says once what is there several times in a row.
func squeeze(all []string) string {
	var out []string
	for i := 0; i < len(all); {
		n := i
		for n < len(all) && all[n] == all[i] {
			n++
		}
		out = append(out, fmt.Sprint(n-i, "x(", all[i], ")"))
		i = n
	}
	return strings.Join(out, " ")
}

// readWith has a datagram with a class and a time to live come, and returns what is read with room
// for so many bytes of control messages.
func (w *wired) readWith(c udpConn, peer netip.Addr, room int, fragmented bool) string {
	w.Helper()
	host := wireHost4
	if peer.Is6() {
		host = wireHost6
	}
	body := datagram(7, port(c.LocalAddr()), "12345678")
	sumIn(peer, host, 17, body)
	first, second := body, []byte(nil)
	if fragmented {
		first, second = body[:8], body[8:]
	}
	for i, part := range [][]byte{first, second} {
		if part == nil {
			continue
		}
		o := option{hops: 77}
		if fragmented && peer.Is4() {
			o.fragment = []uint16{0x2000, 1}[i]
		} else if fragmented {
			o.first = 44
			o.extensions = []byte{17, 0, 0, []byte{1, 8}[i], 0, 0, 0, 7}
		}
		protocol := byte(17)
		if fragmented {
			protocol = 255 // the checksum is there
		}
		ip := packet(peer, host, protocol, part, o)
		if peer.Is4() {
			ip[9] = 17
			ip[1] = 0x2b
			ip[10], ip[11] = 0, 0
			binary.BigEndian.PutUint16(ip[10:], sum(ip[:20], 0))
		} else {
			ip[0], ip[1] = 0x62, 0xb0
		}
		w.deliver(ip)
	}
	oob := make([]byte, room)
	n, oobn, flags, _, err := c.ReadMsgUDP(make([]byte, 8), oob)
	w.hideIndex(oob[:oobn])
	return fmt.Sprintf("%d %d %#x %x %s", n, oobn, flags, oob, errno(err))
}

// hideIndex overwrites the index of the interface, as far as there has been room for it, where it
// is right: each host has its own.
func (w *wired) hideIndex(oob []byte) {
	want := binary.NativeEndian.AppendUint32(nil, uint32(w.index))
	for len(oob) > unix.CmsgLen(0) {
		n := int(binary.NativeEndian.Uint64(oob))
		at := -1
		switch kind := (sockOption{int(oob[8]), int(oob[12])}); kind {
		case sockOption{unix.IPPROTO_IP, unix.IP_PKTINFO}:
			at = unix.CmsgLen(0)
		case sockOption{unix.IPPROTO_IPV6, unix.IPV6_PKTINFO}:
			at = unix.CmsgLen(16)
		}
		for i := 0; at >= 0 && i < len(want) && at+i < n; i++ {
			if oob[at+i] == want[i] {
				oob[at+i] = '*'
			}
		}
		oob = oob[min(unix.CmsgSpace(n-unix.CmsgLen(0)), len(oob)):]
	}
}
