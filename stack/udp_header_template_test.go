package stack

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/racing"
)

// tap is a wire that records the UDP frames sent through it.
type tap struct {
	wire.Wire
	deaf   atomic.Bool // record nothing
	mu     sync.Mutex
	frames [][]byte
}

func (w *tap) Send(frames []frame.Frame) (int, error) {
	if w.deaf.Load() {
		return w.Wire.Send(frames)
	}
	w.mu.Lock()
	for _, f := range frames {
		ip := f.Data[14:]
		if kind := binary.BigEndian.Uint16(f.Data[12:]); kind == 0x800 && ip[9] == 17 ||
			kind == 0x86dd && (ip[6] == 17 || ip[6] == 44) {
			w.frames = append(w.frames, slices.Clone(f.Data))
		}
	}
	w.mu.Unlock()
	return w.Wire.Send(frames)
}

func (w *tap) drain() [][]byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.frames
	w.frames = nil
	return f
}

// directly counts datagrams that go to the link directly, and refuses them on request.
type directly struct {
	datagramLink
	n      atomic.Int64
	refuse tcpip.Error
}

func (d *directly) WriteDatagram(headers, payload []byte) tcpip.Error {
	if d.refuse != nil {
		return d.refuse
	}
	d.n.Add(1)
	return d.datagramLink.WriteDatagram(headers, payload)
}

// directRig is two stacks on software NICs: a sender whose cable is tapped, and a receiver.
type directRig struct {
	sender, receiver *Stack
	tap              *tap
	direct           *directly // nil without the fast path
}

func newDirectRig(t *testing.T, closed bool) *directRig {
	t.Helper()
	tap := &tap{}
	r := newDirectRigOn(t, closed, func(w wire.Wire) wire.Wire {
		tap.Wire = w
		return tap
	})
	r.tap = tap
	return r
}

// newDirectRigOn makes a rig whose sender is on what on makes of its end of the cable. One send
// queue keeps the order of datagrams to several addresses.
func newDirectRigOn(t *testing.T, closed bool, on func(wire.Wire) wire.Wire) *directRig {
	t.Helper()
	r := &directRig{}
	a, b := wire.Pair()
	for i, wire := range []wire.Wire{on(a), b} {
		nic, err := simnic.New(simnic.Config{Seed: uint64(i + 1)})
		must(t, err)
		t.Cleanup(func() { nic.Close() })
		must(t, nic.ConnectWire(wire))
		s, err := Open(context.Background(), Config{
			NIC: dv.NIC{
				Model: dv.Model{
					Kernel: kernel.Opener(nic),
					Facts: dv.PortFacts{Name: "sim", Netdev: "simnet", MAC: nic.MAC(),
						MTU: nic.MTU()},
				}, MAC: net.HardwareAddr{2, 0, 0, 0, 0, byte(i + 1)}, TxQueues: 1,
			},
			Addresses: []netip.Prefix{
				netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), 24),
				netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 15: byte(i + 1)}),
					64),
			},
			Addressing: AddressOptions{DuplicateDetection: -1, NoAnnounce: true},
			NoFastPath: closed,
		})
		must(t, err)
		t.Cleanup(func() { s.Close() })
		if i == 0 {
			r.sender = s
		} else {
			r.receiver = s
		}
	}
	if d := r.sender.datagrams; d != nil {
		r.direct = &directly{datagramLink: d}
		r.sender.datagrams = r.direct
	}
	return r
}

// conns is a socket of each stack.
func (r *directRig) conns(t *testing.T, network, local, remote string) (from, to *UDPConn,
	at netip.AddrPort) {
	t.Helper()
	at = netip.MustParseAddrPort(remote)
	from, err := r.sender.ListenUDP(network,
		net.UDPAddrFromAddrPort(netip.MustParseAddrPort(local)))
	must(t, err)
	to, err = r.receiver.ListenUDP(network, net.UDPAddrFromAddrPort(at))
	must(t, err)
	return from, to, at
}

// send sends b and waits for it.
func send(t *testing.T, from, to *UDPConn, at netip.AddrPort, b []byte) {
	t.Helper()
	_, err := from.WriteToUDPAddrPort(b, at)
	must(t, err)
	got := make([]byte, 4096)
	must(t, to.SetReadDeadline(time.Now().Add(time.Minute)))
	n, _, err := to.ReadFromUDPAddrPort(got)
	must(t, err)
	if !bytes.Equal(got[:n], b) {
		t.Errorf("%d bytes arrived, %d sent", n, len(b))
	}
}

// sizes of payload: around what is written into descriptors, and what has to be fragmented.
var sizes = []int{0, 1, 17, 18, 19, 63, 64, 500, 1452, 1453, 1472, 1473, 2000}

// TestHeaderTemplateFrames compares frames that were made directly with netstack's, byte for byte.
func TestHeaderTemplateFrames(t *testing.T) {
	for _, tt := range []struct {
		network, local, remote string
		direct                 int64 // how many of sizes can go directly
	}{
		{"udp4", "192.0.2.1:7", "192.0.2.2:53", 11},
		{"udp6", "[2001:db8::1]:7", "[2001:db8::2]:53", 9},
	} {
		t.Run(tt.network, func(t *testing.T) {
			var all [2][][]byte
			for i, closed := range []bool{true, false} {
				r := newDirectRig(t, closed)
				from, to, at := r.conns(t, tt.network, tt.local, tt.remote)
				send(t, from, to, at, []byte("which resolves the neighbour"))
				for r.sender.neighbours.Waits() { // what follows may not overtake it
					time.Sleep(time.Millisecond)
				}
				send(t, from, to, at, []byte("which has the headers made"))
				sent, begin := r.sender.Stats(), time.Now()
				for _, n := range sizes {
					b := bytes.Repeat([]byte{byte(n)}, n)
					send(t, from, to, at, b)
				}
				now := r.sender.Stats()
				if now.UDPSent-sent.UDPSent != uint64(len(sizes)) ||
					now.IPSent-sent.IPSent < uint64(len(sizes)) {
					t.Errorf("counted %+v, before %+v", now, sent)
				}
				lapsed := int64(time.Since(begin) / templateLifetime) // each costs one
				if !closed && r.direct.n.Load() < tt.direct-lapsed {
					t.Errorf("%d datagrams went directly", r.direct.n.Load())
				}
				all[i] = r.tap.drain()
			}
			same(t, all[1], all[0])
		})
	}
}

// same requires frames to be equal except for the identification of fragments and the value of flow
// labels, of which each stack has its own.
func same(t *testing.T, got, want [][]byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d frames, want %d", len(got), len(want))
	}
	for i := range got {
		a, b := got[i], want[i]
		// may be fragmented, or is
		if a[12] == 0x08 && a[20]&0x40 == 0 || a[12] == 0x86 && a[20] == 44 {
			continue
		}
		if a[12] == 0x86 {
			a, b = slices.Clone(a), slices.Clone(b)
			for _, f := range [][]byte{a, b} {
				if f[15]&15|f[16]|f[17] == 0 {
					t.Errorf("frame %d has no flow label", i)
				}
				f[15] &= 0xf0
				f[16], f[17] = 0, 0
			}
		}
		if !bytes.Equal(a, b) {
			t.Errorf("frame %d\n%x, want\n%x", i, a, b)
		}
	}
}

// TestHeaderTemplateGoesStale: headers are not used for long, nor after a change of addresses.
func TestHeaderTemplateGoesStale(t *testing.T) {
	r := newDirectRig(t, false)
	from, to, at := r.conns(t, "udp4", "192.0.2.1:7", "192.0.2.2:53")
	direct := func() bool {
		before := r.direct.n.Load()
		send(t, from, to, at, []byte("x"))
		return r.direct.n.Load() > before
	}
	aged := func(age time.Duration) {
		for _, p := range from.routes.routes {
			if h := p.template.Load(); h != nil {
				old := *h
				old.built = time.Now().Add(-age)
				p.template.Store(&old)
			}
		}
	}
	for direct() == false {
	}
	aged(2 * templateLifetime)
	if direct() {
		t.Error("used old headers")
	}
	aged(-time.Hour) // whatever the machine does meanwhile
	if !direct() {
		t.Error("did not make new ones")
	}
	r.sender.addrs.AddressesChanged()
	if direct() {
		t.Error("used headers of addresses that have changed")
	}
	r.direct.refuse = &tcpip.ErrNotSupported{}
	aged(-time.Hour)
	if direct() {
		t.Error("counted what was refused")
	}
}

// TestHeaderTemplateErrors: an error of the link reaches the caller as netstack's errors do.
func TestHeaderTemplateErrors(t *testing.T) {
	r := newDirectRig(t, false)
	from, to, at := r.conns(t, "udp4", "192.0.2.1:7", "192.0.2.2:53")
	for before := r.direct.n.Load(); r.direct.n.Load() == before; {
		send(t, from, to, at, []byte("x"))
	}
	for _, p := range from.routes.routes {
		h := *p.template.Load()
		h.built = time.Now().Add(time.Hour)
		p.template.Store(&h)
	}
	r.direct.refuse = &tcpip.ErrNoBufferSpace{}
	if _, err := from.WriteToUDPAddrPort([]byte("x"), at); err != nil {
		t.Errorf("a full ring: %v", err)
	}
	r.direct.refuse = &tcpip.ErrClosedForSend{}
	if _, err := from.WriteToUDPAddrPort([]byte("x"), at); err == nil {
		t.Error("a closed link: no error")
	}
}

// TestHeaderTemplateDoesNotAllocate on the direct path.
func TestHeaderTemplateDoesNotAllocate(t *testing.T) {
	r := newDirectRig(t, false)
	from, to, at := r.conns(t, "udp4", "192.0.2.1:7", "192.0.2.2:53")
	for before := r.direct.n.Load(); r.direct.n.Load() == before; {
		send(t, from, to, at, []byte("x"))
	}
	r.tap.deaf.Store(true)
	b := make([]byte, 64)
	before := r.direct.n.Load()
	n := testing.AllocsPerRun(500, func() { from.WriteToUDPAddrPort(b, at) })
	if went := r.direct.n.Load() - before; n >= 1 && went > 400 && !racing.Detector {
		t.Errorf("%v allocations", n)
	}
}

// TestTTL checks the frames sent, on either path and by either version of IP, before SetTTL, after
// it, and with the default again.
func TestTTL(t *testing.T) {
	for _, closed := range []bool{false, true} {
		r := newDirectRig(t, closed)
		for _, c := range []struct {
			network, local, remote string
			at                     int // of the TTL in a frame
		}{{"udp4", "192.0.2.1:7", "192.0.2.2:53", 22},
			{"udp6", "[2001:db8::1]:7", "[2001:db8::2]:53", 21}} {
			from, to, at := r.conns(t, c.network, c.local, c.remote)
			for _, ttl := range []struct{ set, want int }{{-1, 64}, {1, 1},
				{255, 255}, {7, 7}, {-1, 64}} {
				must(t, from.SetTTL(ttl.set))
				r.tap.drain()
				for range 3 {
					send(t, from, to, at, []byte("x"))
				}
				_, err := from.WriteBatch(messages(at, []byte{1}, []byte{2}), 0)
				must(t, err)
				send(t, from, to, at, []byte{1})
				for _, f := range r.tap.drain() {
					if int(f[c.at]) != ttl.want {
						t.Errorf("closed %t, %s, SetTTL(%d): a frame has %d", closed,
							c.network, ttl.set, f[c.at])
					}
				}
				must(t, to.SetReadDeadline(time.Now().Add(time.Minute)))
				for range 2 {
					_, _, err := to.ReadFromUDPAddrPort(make([]byte, 8))
					must(t, err)
				}
			}
		}
	}
}
