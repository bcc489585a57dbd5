package stack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/racing"
)

// batchConn has the methods of x/net's PacketConn types.
type batchConn interface {
	ReadBatch(ms []ipv4.Message, flags int) (int, error)
	WriteBatch(ms []ipv4.Message, flags int) (int, error)
}

var (
	_ batchConn = (*UDPConn)(nil)
	_ batchConn = (*ipv4.PacketConn)(nil)
	_ batchConn = (*ipv6.PacketConn)(nil)
)

// messages is a batch of payloads to one address.
func messages(to netip.AddrPort, payloads ...[]byte) []Message {
	ms := make([]Message, len(payloads))
	for i, b := range payloads {
		ms[i] = Message{Buffers: [][]byte{b}, Addr: net.UDPAddrFromAddrPort(to)}
	}
	return ms
}

// TestBatch sends batches with datagrams of all kinds, with and without the fast path, and requires
// them in order.
func TestBatch(t *testing.T) {
	for _, closed := range []bool{false, true} {
		for network, at := range map[string][2]string{
			"udp4": {"192.0.2.1:7", "192.0.2.2:53"},
			"udp6": {"[2001:db8::1]:7", "[2001:db8::2]:53"},
		} {
			r := newDirectRig(t, closed)
			from, to, remote := r.conns(t, network, at[0], at[1])
			send(t, from, to, remote, []byte("resolved"))
			must(t, to.SetReadDeadline(time.Now().Add(time.Minute)))
			var payloads [][]byte
			for i, n := range append(make([]int, 2*maxBatch+3), 1, 64, 3000, 1, 1452, 9000, 5) {
				b := fmt.Appendf(nil, "%d of %s", i, network)
				payloads = append(payloads, append(b, make([]byte, n)...))
			}
			out := messages(remote, payloads...)
			if n, err := from.WriteBatch(out, 0); n != len(out) || err != nil {
				t.Fatalf("sent %d of %d: %v", n, len(out), err)
			}
			for i := range out {
				if out[i].N != len(payloads[i]) {
					t.Errorf("datagram %d: sent %d bytes of %d", i, out[i].N, len(payloads[i]))
				}
			}
			readInOrder(t, to, payloads, at[0])
		}
	}
}

// readInOrder reads batches until all payloads have come.
func readInOrder(t *testing.T, c *UDPConn, payloads [][]byte, from string) {
	t.Helper()
	in := make([]Message, 9)
	for i := range in { // every second one has its datagram in two pieces
		in[i].Buffers = [][]byte{make([]byte, 1<<14)}
		if i%2 == 1 {
			in[i].Buffers = [][]byte{make([]byte, 3), make([]byte, 1<<14)}
		}
	}
	for got := 0; got < len(payloads); {
		n, err := c.ReadBatch(in, 0)
		must(t, err)
		if n < 1 || n > len(in) {
			t.Fatalf("read %d", n)
		}
		for _, m := range in[:n] {
			b := bytes.Join(m.Buffers, nil)[:m.N]
			if !bytes.Equal(b, payloads[got]) || m.Addr.String() != from {
				t.Fatalf("datagram %d is %.20q of %d bytes from %v, want %.20q of %d", got, b,
					len(b),
					m.Addr, payloads[got], len(payloads[got]))
			}
			got++
		}
	}
}

// TestBatchRingsOnce: many datagrams, few doorbells; all are counted.
func TestBatchRingsOnce(t *testing.T) {
	r := newDirectRig(t, false)
	from, to, at := r.conns(t, "udp4", "192.0.2.1:7", "192.0.2.2:53")
	out := messages(at, bytes.Split(make([]byte, maxBatch), nil)...)
	bells := func() uint64 { return r.sender.Device().Stats().Tx[0].Doorbells }
	for deadline := time.Now().Add(30 * time.Second); ; {
		send(t, from, to, at, []byte("resolved"))
		must(t, to.SetReadDeadline(time.Now().Add(time.Minute)))
		before, sent := bells(), r.sender.Stats().UDPSent
		n, err := from.WriteBatch(out, 0)
		must(t, err)
		rang := bells() - before
		if counted := r.sender.Stats().UDPSent - sent; n != len(out) || counted != uint64(n) {
			t.Fatalf("%d sent, %d counted", n, counted)
		}
		for range n {
			_, err := to.Read(make([]byte, 10))
			must(t, err)
		}
		if rang < 10 {
			return
		}
		if time.Now().After(deadline) { // templates are renewed every 100 ms: one try may meet that
			t.Fatalf("%d datagrams, %d doorbells", n, rang)
		}
	}
}

// TestBatchErrors: a batch ends at a datagram that cannot be sent, and the next call reports it.
func TestBatchErrors(t *testing.T) {
	r := newDirectRig(t, false)
	from, to, at := r.conns(t, "udp4", "192.0.2.1:7", "192.0.2.2:53")
	send(t, from, to, at, []byte("resolved"))
	x := []byte("x")
	for name, tt := range map[string]struct {
		bad  []byte
		to   net.Addr
		want error
	}{
		"no port":      {x, &net.UDPAddr{IP: at.Addr().AsSlice()}, syscall.EINVAL},
		"too long":     {make([]byte, 1<<16), net.UDPAddrFromAddrPort(at), syscall.EMSGSIZE},
		"no address":   {x, nil, nil},
		"nil address":  {x, (*net.UDPAddr)(nil), nil},
		"other type":   {x, &net.TCPAddr{IP: at.Addr().AsSlice(), Port: 53}, syscall.EINVAL},
		"other family": {x, &net.UDPAddr{IP: net.ParseIP("2001:db8::2"), Port: 53}, nil},
	} {
		ms := messages(at, x, x, tt.bad, x)
		ms[2].Addr = tt.to
		if n, err := from.WriteBatch(ms, 0); n != 2 || err != nil {
			t.Errorf("%s: sent %d, %v", name, n, err)
		}
		n, err := from.WriteBatch(ms[2:], 0)
		if n != 0 || err == nil || tt.want != nil && !errors.Is(err, tt.want) {
			t.Errorf("%s, first: sent %d, %v", name, n, err)
		}
	}
	if n, err := to.ReadBatch(nil, 0); n != 0 || err != nil {
		t.Errorf("no messages: read %d, %v", n, err)
	}
	connected, err := r.sender.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(at))
	must(t, err)
	refused := func(name string, c *UDPConn, flags int, read bool, want error) {
		t.Helper()
		if n, err := c.WriteBatch(messages(at, x), flags); n != 0 || !errors.Is(err, want) {
			t.Errorf("%s: sent %d, %v", name, n, err)
		}
		if !read {
			return
		}
		if n, err := c.ReadBatch(messages(at, x), flags); n != 0 || !errors.Is(err, want) {
			t.Errorf("%s: read %d, %v", name, n, err)
		}
	}
	refused("connected", connected, 0, false, net.ErrWriteToConnected)
	refused("flags", from, syscall.MSG_PEEK, true, syscall.EINVAL)
	must(t, from.SetDeadline(time.Unix(1, 0)))
	refused("deadline", from, 0, true, os.ErrDeadlineExceeded)
	must(t, from.Close())
	refused("closed", from, 0, true, net.ErrClosed)
}

// TestBatchAddr: an address that the caller still holds is not written to; one that is offered is.
func TestBatchAddr(t *testing.T) {
	r := newDirectRig(t, false)
	for network, at := range map[string]struct{ listen, dial string }{
		"udp4": {"192.0.2.2:53", "192.0.2.2:53"}, "udp6": {"[2001:db8::2]:53", "[2001:db8::2]:53"},
		"udp": {"[::]:54", "192.0.2.2:54"},
	} {
		to, err := r.receiver.ListenUDP(network,
			net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at.listen)))
		must(t, err)
		for name, tt := range map[string]struct {
			addr   net.Addr
			reused bool
		}{
			"none":          {nil, false},
			"in use":        {&net.UDPAddr{IP: make(net.IP, 16)}, false},
			"no room":       {&net.UDPAddr{IP: make(net.IP, 0, 4)}, false},
			"nil":           {(*net.UDPAddr)(nil), false},
			"another type":  {&net.TCPAddr{IP: make(net.IP, 0, 16)}, false},
			"offered":       {&net.UDPAddr{IP: make(net.IP, 0, 16)}, true},
			"offered, used": {&net.UDPAddr{IP: make(net.IP, 16)[:0], Port: 9, Zone: "x"}, true},
		} {
			sender, err := r.sender.Dial(network, at.dial)
			must(t, err)
			_, err = sender.Write([]byte("x"))
			must(t, err)
			must(t, to.SetReadDeadline(time.Now().Add(time.Minute)))
			ms := []Message{{Buffers: [][]byte{make([]byte, 10)}, Addr: tt.addr}}
			_, err = to.ReadBatch(ms, 0)
			must(t, err)
			if got := ms[0].Addr.String(); got != sender.LocalAddr().String() {
				t.Errorf("%s, %s: from %v, want %v", network, name, got, sender.LocalAddr())
			}
			if reused := ms[0].Addr == tt.addr; reused != tt.reused {
				t.Errorf("%s, %s: the caller's address is used: %v", network, name, reused)
			}
			must(t, sender.Close())
		}
	}
}

// TestBatchDoesNotAllocate: neither reading into addresses that are offered, nor sending directly.
func TestBatchDoesNotAllocate(t *testing.T) {
	r := newDirectRig(t, false)
	from, to, at := r.conns(t, "udp4", "192.0.2.1:7", "192.0.2.2:53")
	in := messages(at, make([]byte, 100), make([]byte, 100), make([]byte, 100))
	for i := range in {
		in[i].Addr = &net.UDPAddr{IP: make(net.IP, net.IPv6len)}
	}
	ip := [20]byte{0x45, 12: 192, 0, 2, 1, 192, 0, 2, 2}
	udp := [12]byte{1: 7, 3: 53, 5: 12}
	if n := testing.AllocsPerRun(1000, func() {
		for i := range in {
			if !to.rxq.Deliver(ip[:], udp[:], time.Time{}) {
				t.Fatal("not taken")
			}
			a := in[i].Addr.(*net.UDPAddr)
			a.IP = a.IP[:0]
		}
		n, err := to.ReadBatch(in, 0)
		must(t, err)
		if n != len(in) {
			t.Fatalf("read %d", n)
		}
	}); n != 0 && !racing.Detector {
		t.Errorf("reading: %v allocations", n)
	}
	for before := r.direct.n.Load(); r.direct.n.Load() == before; {
		send(t, from, to, at, []byte("x"))
	}
	r.tap.deaf.Store(true)
	out := messages(at, []byte("x"), []byte("y"))
	n := testing.AllocsPerRun(100, func() { from.WriteBatch(out, 0) })
	if n >= 1 && !racing.Detector {
		t.Errorf("sending: %v allocations", n)
	}
}

// segmentMessage returns the control message UDP_SEGMENT.
func segmentMessage(size uint16) []byte {
	w := controlWriter{b: make([]byte, alignControl(controlHeader+2))}
	w.putMessage(levelUDP, typeSegment, binary.NativeEndian.AppendUint16(nil, size))
	return w.b
}

// TestSegmentsGoAsOne: datagrams of one call, and those of several messages of a batch, are few
// packets for the NIC to cut up, counted as datagrams.
func TestSegmentsGoAsOne(t *testing.T) {
	r := newDirectRig(t, false)
	for network, at := range map[string][2]string{
		"udp4": {"192.0.2.1:7", "192.0.2.2:53"},
		"udp6": {"[2001:db8::1]:7", "[2001:db8::2]:53"},
	} {
		from, to, remote := r.conns(t, network, at[0], at[1])
		send(t, from, to, remote, []byte("resolved"))
		big, odd := make([]byte, 50*1200), make([]byte, 3*700+1)
		for i := range big {
			big[i] = byte(i*7 + i>>8)
		}
		copy(odd, big)
		var payloads [][]byte
		for part := range slices.Chunk(big, 1200) {
			payloads = append(payloads, part)
		}
		for part := range slices.Chunk(odd, 700) {
			payloads = append(payloads, part)
		}
		payloads = append(payloads, []byte("last"))
		ms := messages(remote, big, odd, []byte("last"))
		ms[0].OOB, ms[1].OOB = segmentMessage(1200), segmentMessage(700)
		for deadline := time.Now().Add(30 * time.Second); ; {
			send(t, from, to, remote, []byte("template"))
			must(t, to.SetReadDeadline(time.Now().Add(time.Minute)))
			packets, sent := r.posted(), r.sender.Stats().UDPSent
			n, err := from.WriteBatch(ms, 0)
			if n != 3 || err != nil || ms[0].N != len(big) || ms[1].NN != len(ms[1].OOB) {
				t.Fatalf("%d sent, %+v, %v", n, ms, err)
			}
			readInOrder(t, to, payloads, at[0])
			if got := r.sender.Stats().UDPSent - sent; got != uint64(len(payloads)) {
				t.Fatalf("%d datagrams counted, %d sent", got, len(payloads))
			}
			posted := r.posted() - packets
			if posted == 3 && r.sender.LinkStats().TxUSO > 0 {
				break
			}
			if time.Now().After(deadline) { // templates are renewed every 100 ms
				t.Fatalf("%s: %d packets", network, posted)
			}
		}
		for _, c := range []struct {
			n    int
			size uint16
			want error
		}{{129, 1, syscall.EINVAL}, {3000, 1473, syscall.EMSGSIZE},
			{65508, 1200, syscall.EMSGSIZE}} {
			if network == "udp6" && c.n == 65508 {
				continue
			}
			before := r.sender.Stats().UDPSent
			_, _, err := from.WriteMsgUDP(make([]byte, c.n), segmentMessage(c.size),
				net.UDPAddrFromAddrPort(remote))
			bad := messages(remote, make([]byte, c.n))
			bad[0].OOB = segmentMessage(c.size)
			n, batch := from.WriteBatch(bad, 0)
			if !errors.Is(err, c.want) || !errors.Is(batch, c.want) || n != 0 ||
				r.sender.Stats().UDPSent != before {
				t.Errorf("%s, %d bytes by %d: %v and %v, %d sent", network, c.n, c.size, err, batch,
					r.sender.Stats().UDPSent-before)
			}
		}
	}
}

// posted returns how many packets the sender's queues have posted.
func (r *directRig) posted() (packets uint64) {
	for _, q := range r.sender.Device().Stats().Tx {
		packets += q.Packets
	}
	return packets
}
