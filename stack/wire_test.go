package stack_test

import (
	"bytes"
	"log/slog"
	"net/netip"
	"sync"
	"testing"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// Hardware addresses on a cable: the stack's and those of others.
var (
	macOurs   = []byte{2, 0, 0, 0, 0, 0xa}
	macOther  = []byte{2, 0, 0, 0, 0, 0xb}
	broadcast = []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
)

// station is the far end of a cable, whose frames a test writes byte by byte.
type station struct {
	port *netpair.Port

	mu     sync.Mutex
	frames [][]byte     // what has come; guarded by mu
	answer func([]byte) // called for each; guarded by mu
}

// newStation makes a cable: the port for a stack and the station at its other end.
func newStation(t *testing.T) (*netpair.Port, *station) {
	t.Helper()
	netpair.CheckLeaks(t)
	near, far := netpair.NewPorts(netpair.Faults{})
	st := &station{port: far}
	far.Attach(st)
	t.Cleanup(far.Close)
	return near, st
}

// onStation is a stack with short timeouts, and the station at the other end of its cable.
func onStation(t *testing.T, cfg stack.Config) (*stack.Stack, *station) {
	t.Helper()
	near, st := newStation(t)
	s, err := stack.New(near, cfg)
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s, st
}

// DeliverNetworkPacket implements gstack.NetworkDispatcher.
func (st *station) DeliverNetworkPacket(_ tcpip.NetworkProtocolNumber, pkt *gstack.PacketBuffer) {
	view := pkt.ToView()
	f := bytes.Clone(view.AsSlice())
	view.Release()
	st.take(f)
}

// take notes a frame, which becomes the station's.
func (st *station) take(f []byte) {
	st.mu.Lock()
	st.frames = append(st.frames, f)
	answer := st.answer
	st.mu.Unlock()
	if answer != nil {
		answer(f)
	}
}

// DeliverLinkPacket implements gstack.NetworkDispatcher.
func (*station) DeliverLinkPacket(tcpip.NetworkProtocolNumber, *gstack.PacketBuffer) {}

// onFrame has f called for each frame that arrives from now on.
func (st *station) onFrame(f func([]byte)) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.answer = f
}

// count is the number of received frames that begin with head and are ok.
func (st *station) count(head []byte, ok func([]byte) bool) (n int) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, f := range st.frames {
		if bytes.HasPrefix(f, head) && (ok == nil || ok(f)) {
			n++
		}
	}
	return n
}

// send puts a frame on the cable.
func (st *station) send(frame []byte) {
	pkt := gstack.NewPacketBuffer(gstack.PacketBufferOptions{Payload: buffer.MakeWithData(frame)})
	defer pkt.DecRef()
	var list gstack.PacketBufferList
	list.PushBack(pkt)
	st.port.WritePackets(list)
}

// arpFrame is an ARP packet (RFC 826) in a broadcast frame; op is 1 for a request and 2 for a
// reply.
func arpFrame(op byte, mac []byte, ip string, targetMAC []byte, target string) []byte {
	return bytes.Join([][]byte{
		broadcast, mac, {8, 6}, {0, 1, 8, 0, 6, 4, 0, op},
		mac, netip.MustParseAddr(ip).AsSlice(), targetMAC, netip.MustParseAddr(target).AsSlice(),
	}, nil)
}

// icmp6Frame is a message of neighbour discovery, whose checksum it fills in, to an IPv6 group.
func icmp6Frame(mac []byte, from, to string, message ...[]byte) []byte {
	icmp := bytes.Join(message, nil)
	dst := netip.MustParseAddr(to).As16()
	f := bytes.Join([][]byte{
		{0x33, 0x33, dst[12], dst[13], dst[14], dst[15]}, mac, {0x86, 0xdd},
		{0x60, 0, 0, 0, byte(len(icmp) >> 8), byte(len(icmp)), 58, 255},
		netip.MustParseAddr(from).AsSlice(), dst[:], icmp,
	}, nil)
	sum := ^sum16(icmpWithPseudo(f))
	f[56], f[57] = byte(sum>>8), byte(sum)
	return f
}

// advertFrame is a neighbour advertisement (RFC 4861 section 4.4) to all nodes, with the override
// flag.
func advertFrame(mac []byte, ip string) []byte {
	return icmp6Frame(mac, ip, "ff02::1", []byte{136, 0, 0, 0, 0x20, 0, 0, 0},
		netip.MustParseAddr(ip).AsSlice(), []byte{2, 1}, mac)
}

// logged collects what a stack logs.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

// Write implements io.Writer.
func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// lines are those that contain what.
func (l *logged) lines(what string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(l.text.Bytes()) {
		if bytes.Contains(line, []byte(what)) {
			n++
		}
	}
	return n
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
