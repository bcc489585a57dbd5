package upstream

import (
	"runtime"
	"syscall"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
)

// TestConnectionCost: what a connection takes from the heap at the side that is connected to.
func TestConnectionCost(t *testing.T) {
	h := newHost(t, false)
	h.listen(10)
	const many = 100
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for n := range uint16(many) {
		s := segment{port: 5000 + n, flags: syn, win: -1, options: options(mss(1000))}
		h.quietly(s)
		h.quietly(segment{port: 5000 + n, flags: ack, seq: 1, ack: 1, win: -1})
		if c := h.accept(); c == nil {
			t.Fatal("no connection")
		}
		h.quietly(segment{port: 5000 + n, flags: rst, seq: 1})
	}
	runtime.ReadMemStats(&after)
	objects := (after.Mallocs - before.Mallocs) / many
	shows(t, "25-connection-cost", objects > 60, "%d objects of %d bytes a connection, those of "+
		"this test among them", objects, (after.TotalAlloc-before.TotalAlloc)/many)
}

// segmentFor returns a packet with a segment without data for the listener.
func segmentFor(port uint16, seq uint32, flags header.TCPFlags) []byte {
	b := make([]byte, header.IPv4MinimumSize+header.TCPMinimumSize)
	ip := header.IPv4(b)
	ip.Encode(&header.IPv4Fields{TotalLength: uint16(len(b)), TTL: 64,
		Protocol: uint8(header.TCPProtocolNumber), SrcAddr: host4(2), DstAddr: host4(1)})
	ip.SetChecksum(^ip.CalculateChecksum())
	header.TCP(b[header.IPv4MinimumSize:]).Encode(&header.TCPFields{SrcPort: port, DstPort: 80,
		SeqNum: seq, AckNum: 7, DataOffset: header.TCPMinimumSize, Flags: flags,
		WindowSize: 65535})
	return b
}

// TestListenerQueue: segments without data for a listener wait in a queue without a bound while
// netstack has no time for them.
func TestListenerQueue(t *testing.T) {
	const many = 10000
	h := newHost(t, false)
	h.listen(10)
	for n := range uint32(many) {
		arrive(h.link, segmentFor(4000, n, ack)) // netstack's goroutines have no processor now
	}
	answers := len(h.packets())
	shows(t, "24-listener-queue", answers == many, "%d of %d waited, each is answered", answers,
		many)
	h.advance(time.Second)
}

// gate is a link on which packets wait.
type gate struct {
	*channel.Endpoint
	entered, open chan struct{}
}

// WritePackets implements gstack.LinkWriter.
func (g *gate) WritePackets(list gstack.PacketBufferList) (int, tcpip.Error) {
	select {
	case g.entered <- struct{}{}:
	default:
	}
	<-g.open
	return g.Endpoint.WritePackets(list)
}

// processorTime is what this process has taken.
func processorTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestListenerSpin: one of netstack's goroutines has a listener's lock, and waits for the link; the
// other, which has a SYN for the listener, too, tries again and again meanwhile. Which goroutine a
// SYN is for depends on a hash of its ports.
func TestListenerSpin(t *testing.T) {
	before := runtime.GOMAXPROCS(2)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	const tries, waits, much = 20, 100 * time.Millisecond, 10 * time.Millisecond
	var spent time.Duration
	for try := 0; try < tries && spent < much; try++ {
		g := &gate{channel.New(1024, mtu, ""), make(chan struct{}, 1), make(chan struct{})}
		g.LinkEPCapabilities |= gstack.CapabilityRXChecksumOffload
		h := &host{t: t, clock: &clock{}, isn: map[uint16]uint32{}, port: 80, link: g.Endpoint}
		h.stack = newStackOn(g, h.clock, 1, nil)
		h.listen(100)
		arrive(h.link, segmentFor(4000, 1, syn))
		<-g.entered
		arrive(h.link, segmentFor(4001+uint16(try), 1, syn))
		began := processorTime()
		time.Sleep(waits)
		spent = processorTime() - began
		close(g.open)
		h.stack.Close()
	}
	shows(t, "23-listener-spin", spent >= much, "%v of processor time in %v in which nothing "+
		"could be done", spent.Round(time.Millisecond), waits)
}
