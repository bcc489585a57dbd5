package stack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/link/pipe"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
)

// readStamp reads one stamp of c's, and takes its control messages apart: both stamps of
// SCM_TIMESTAMPING, the zero time for none, and the number.
func readStamp(t *testing.T, c *UDPConn) (software, nic time.Time, id uint32, data []byte) {
	t.Helper()
	b, oob := make([]byte, 4096), make([]byte, 200)
	must(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
	n, oobn, flags, err := c.ReadErrorQueue(b, oob)
	must(t, err)
	if flags != 0x2000 {
		t.Errorf("flags %#x", flags)
	}
	m, rest, ok, _ := nextControl(oob[:oobn])
	native := binary.NativeEndian
	if ok && m.level == 1 && m.kind == 37 && len(m.data) == 48 {
		stamp := func(at int) (s time.Time) {
			if seconds := int64(native.Uint64(m.data[at:])); seconds != 0 {
				s = time.Unix(seconds, int64(native.Uint64(m.data[at+8:])))
			}
			return s
		}
		software, nic = stamp(0), stamp(32)
		m, rest, ok, _ = nextControl(rest)
	}
	if !ok || len(rest) != 0 || native.Uint32(m.data) != 42 || m.data[4] != 4 {
		t.Fatalf("control messages %x", oob[:oobn])
	}
	return software, nic, native.Uint32(m.data[12:]), b[:n]
}

// between reports whether a stamp is of the time from before to after, by a clock that is known to
// a millisecond.
func between(at, before, after time.Time) bool {
	return !at.Before(before.Round(0).Add(-time.Millisecond)) &&
		!at.After(after.Add(time.Millisecond))
}

const allStamps = TimestampTxHardware | TimestampTxSoftware | TimestampSoftware |
	TimestampRawHardware

// TestTransmitTimestamps: each datagram that is sent comes back with the NIC's stamp, or, asked for
// or without a NIC's, the system's, between sending and arriving, numbered in order.
func TestTransmitTimestamps(t *testing.T) {
	r := newDirectRig(t, false)
	for network, at := range map[string][2]string{
		"udp4": {"192.0.2.1:7", "192.0.2.2:53"},
		"udp6": {"[2001:db8::1]:7", "[2001:db8::2]:53"},
	} {
		from, to, remote := r.conns(t, network, at[0], at[1])
		send(t, from, to, remote, []byte("not stamped"))
		for _, c := range []struct {
			flags         TimestampFlags
			software, nic bool
		}{
			{allStamps, false, true},
			{allStamps | TimestampOnly, false, true},
			{allStamps | TimestampBoth, true, true},
			{allStamps &^ TimestampTxHardware, true, false},
			{allStamps &^ TimestampTxSoftware, false, true},
		} {
			must(t, from.SetTransmitTimestamps(0))
			must(t, from.SetTransmitTimestamps(c.flags|TimestampID))
			for i := range uint32(3) {
				r.tap.drain()
				before := time.Now()
				send(t, from, to, remote, []byte("stamped"))
				after := time.Now()
				frame := bytes.TrimRight(r.tap.drain()[0], "\x00") // of the padding
				for _, byNIC := range []bool{false, true} {
					if byNIC && !c.nic || !byNIC && !c.software {
						continue
					}
					software, nic, id, data := readStamp(t, from)
					at, none := software, nic
					if byNIC {
						at, none = nic, software
					}
					if !none.IsZero() || !between(at, before, after) || id != i {
						t.Errorf("%s, flags %#x: stamps %v and %v of %d, sent from %v to %v",
							network, c.flags, software, nic, id, before, after)
					}
					if c.flags&TimestampOnly != 0 {
						frame = nil
					}
					if !bytes.Equal(data, frame) {
						t.Errorf("%s, flags %#x: %x, sent was %x", network, c.flags, data, frame)
					}
				}
			}
		}
	}
}

// TestTransmitTimestampsOfEach: by a control message one datagram is stamped; of a batch each, in
// order, of segments the first; a group's, too; one in fragments by software.
func TestTransmitTimestampsOfEach(t *testing.T) {
	r := newDirectRig(t, false)
	from, to, remote := r.conns(t, "udp4", "192.0.2.1:7", "192.0.2.2:53")
	send(t, from, to, remote, []byte("resolved"))
	must(t, from.SetTransmitTimestamps(TimestampSoftware|TimestampRawHardware|TimestampID))
	wish := func(flags TimestampFlags) []byte {
		w := controlWriter{b: make([]byte, 24)}
		w.putMessage(levelSocket, typeTimestamping, binary.NativeEndian.AppendUint32(nil,
			uint32(flags)))
		return w.b
	}
	stamped := func(what string, id uint32, wantNIC bool) {
		t.Helper()
		software, nic, got, _ := readStamp(t, from)
		if got != id || software.IsZero() != wantNIC || nic.IsZero() == wantNIC {
			t.Errorf("%s: stamps %v and %v of %d, want %d", what, software, nic, got, id)
		}
	}
	_, _, err := from.WriteMsgUDPAddrPort([]byte("x"), wish(TimestampTxHardware), remote)
	must(t, err)
	_, err = to.Read(make([]byte, 10))
	must(t, err)
	send(t, from, to, remote, []byte("not stamped"))
	stamped("one", 0, true)
	for _, bad := range [][]byte{wish(TimestampRawHardware), wish(1 << 8), wish(0)[:19],
		wish(1 << 31)} {
		binary.NativeEndian.PutUint64(bad, uint64(min(20, len(bad))))
		if _, _, err := from.WriteMsgUDPAddrPort([]byte("x"), bad,
			remote); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%x: %v", bad, err)
		}
	}
	must(t, from.SetTransmitTimestamps(allStamps|TimestampID))
	var batch []Message
	for range 40 {
		batch = append(batch, Message{Buffers: [][]byte{[]byte("batch")},
			Addr: net.UDPAddrFromAddrPort(remote)})
	}
	n, err := from.WriteBatch(batch, 0)
	must(t, err)
	for i := range n {
		stamped("batch", uint32(1+i), true)
	}
	must(t, from.SetSegmentSize(100))
	_, err = from.WriteToUDPAddrPort(make([]byte, 250), remote)
	must(t, err)
	must(t, from.SetSegmentSize(0))
	stamped("segments", 41, true)
	_, err = from.WriteToUDPAddrPort([]byte("group"), netip.MustParseAddrPort("224.0.1.129:319"))
	must(t, err)
	stamped("group", 42, true)
	_, err = from.WriteToUDPAddrPort(make([]byte, 3000), remote)
	must(t, err)
	stamped("fragments", 43, false)
	_, err = from.WriteToUDPAddrPort([]byte("to us"), netip.MustParseAddrPort("192.0.2.1:9"))
	must(t, err)
	stamped("loopback", 44, false)
}

// TestTransmitTimestampsBounded: stamps beyond the receive buffer are counted; a reader waits until
// its deadline, or the socket is closed; a socket that is closed takes none.
func TestTransmitTimestampsBounded(t *testing.T) {
	r := newDirectRig(t, false)
	from, to, remote := r.conns(t, "udp4", "192.0.2.1:7", "192.0.2.2:53")
	send(t, from, to, remote, []byte("resolved"))
	if err := from.SetTransmitTimestamps(1 << 8); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("SOF_TIMESTAMPING_TX_SCHED: %v", err)
	}
	must(t, from.SetTransmitTimestamps(allStamps|TimestampID))
	must(t, from.SetReadBuffer(8192))
	room := 2 * from.Settings().ReadBuffer
	const each = 1024
	fits := (room + each + 41) / (each + 42)
	for range fits + 5 {
		send(t, from, to, remote, make([]byte, each))
	}
	if lost := r.sender.Stats().UDPStampsLost; lost != 5 {
		t.Errorf("%d lost of %d, with a buffer of %d", lost, fits+5, room)
	}
	for i := range fits {
		if _, _, id, data := readStamp(t, from); id != uint32(i) || len(data) != each+42 {
			t.Errorf("stamp of %d with %d bytes, want %d", id, len(data), i)
		}
	}
	must(t, from.SetReadDeadline(time.Now().Add(-time.Second)))
	if _, _, _, err := from.ReadErrorQueue(nil, nil); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("past the deadline: %v", err)
	}
	must(t, from.SetReadDeadline(time.Time{}))
	send(t, from, to, remote, make([]byte, 10))
	oob := make([]byte, 70)
	n, oobn, flags, err := from.ReadErrorQueue(make([]byte, 3), oob)
	if n != 3 || oobn != 64 || flags != 0x2000|syscall.MSG_TRUNC|syscall.MSG_CTRUNC || err != nil {
		t.Errorf("without room: %d, %d, %#x, %v", n, oobn, flags, err)
	}
	woken := make(chan error)
	go func() {
		_, _, _, err := from.ReadErrorQueue(nil, nil)
		woken <- err
	}()
	must(t, from.Close())
	if err := <-woken; !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if err := from.SetTransmitTimestamps(0); !errors.Is(err, net.ErrClosed) {
		t.Errorf("set when closed: %v", err)
	}
}

// TestTransmitTimestampsOfSoftware: a stack without a NIC that stamps has the system's, and none
// where only the NIC's are asked for.
func TestTransmitTimestampsOfSoftware(t *testing.T) {
	_, s := newHeardLink(t)
	c, err := s.ListenUDP("udp4", &net.UDPAddr{Port: 53})
	must(t, err)
	to := netip.AddrPortFrom(netip.MustParseAddr("224.0.0.251"), 9)
	must(t, c.SetTransmitTimestamps(allStamps&^TimestampTxSoftware|TimestampID))
	_, err = c.WriteToUDPAddrPort([]byte("x"), to)
	must(t, err)
	must(t, c.SetTransmitTimestamps(allStamps|TimestampID))
	before := time.Now()
	_, err = c.WriteToUDPAddrPort([]byte("y"), to)
	must(t, err)
	software, nic, id, data := readStamp(t, c)
	if !between(software, before, time.Now()) || !nic.IsZero() || id != 1 ||
		!bytes.HasSuffix(data, []byte("y")) {
		t.Errorf("stamps %v and %v of %d, %x", software, nic, id, data)
	}
}

// timedLink notes when each packet came to it.
type timedLink struct {
	resolvingLink
	came chan time.Time
}

func (l timedLink) WritePackets(list gstack.PacketBufferList) (int, tcpip.Error) {
	const protocol, datagram = 9, 17 // of the IP header
	for _, pkt := range list.AsSlice() {
		if ip := pkt.NetworkHeader().Slice(); len(ip) > protocol && ip[protocol] == datagram {
			select {
			case l.came <- time.Now():
			default: // the later fragments
			}
			time.Sleep(2 * time.Millisecond) // the peer has it long before the write returns
		}
	}
	return l.resolvingLink.WritePackets(list)
}

// TestSoftwareStampBeforeArrival: the system's stamp is no later than the packet at the link, as
// the peer may have it before the write returns, whole or in fragments.
func TestSoftwareStampBeforeArrival(t *testing.T) {
	x, y := pipe.New("\x02\x00\x00\x00\x00\x0a", "\x02\x00\x00\x00\x00\x0b", 1500)
	y.Attach(nil)
	l := timedLink{resolvingLink{x}, make(chan time.Time, 1)}
	s, err := New(l, Config{Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")},
		Addressing: AddressOptions{DuplicateDetection: -1, NoAnnounce: true}})
	must(t, err)
	defer s.Close()
	c, err := s.ListenUDP("udp4", &net.UDPAddr{Port: 53})
	must(t, err)
	must(t, c.SetTransmitTimestamps(TimestampTxSoftware|TimestampSoftware))
	to := netip.AddrPortFrom(netip.MustParseAddr("224.0.0.251"), 9)
	for _, size := range []int{1, 4000} {
		_, err = c.WriteToUDPAddrPort(make([]byte, size), to)
		must(t, err)
		software, _, _, _ := readStamp(t, c)
		select {
		case came := <-l.came:
			if software.After(came) {
				t.Errorf("%d bytes: left at %v, came at %v", size, software, came)
			}
		default:
			t.Errorf("%d bytes have not come to the link", size)
		}
	}
}
