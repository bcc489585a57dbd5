package rdma

import (
	"encoding/binary"
	"sync"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
)

// arrivals is a stack that records the sequence numbers it receives, by source port.
type arrivals struct {
	mu   sync.Mutex
	seqs map[uint16][]uint32
	n    int
}

func (a *arrivals) DeliverNetworkPacket(_ tcpip.NetworkProtocolNumber, pkt *gstack.PacketBuffer) {
	tcp := pkt.Data().AsRange().ToSlice()[hdr.IPv4Len:]
	a.mu.Lock()
	defer a.mu.Unlock()
	if pkt.Data().AsRange().ToSlice()[9] != hdr.ProtoTCP {
		return
	}
	port := binary.BigEndian.Uint16(tcp)
	a.seqs[port] = append(a.seqs[port], binary.BigEndian.Uint32(tcp[4:]))
	a.n++
}

func (*arrivals) DeliverLinkPacket(tcpip.NetworkProtocolNumber, *gstack.PacketBuffer) {}

// await returns once n segments have come, each flow's in order.
func (a *arrivals) await(t testing.TB, n int) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		a.mu.Lock()
		got := a.n
		a.mu.Unlock()
		if got >= n {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d segments of %d", got, n)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for port, seqs := range a.seqs {
		for i, seq := range seqs {
			if seq != uint32(i) {
				t.Fatalf("flow %d: segment %d came in place of %d", port, seq, i)
			}
		}
	}
}

// sending is an endpoint that may have more to send than its NIC accepts, and the segments that
// arrive at the other end of the cable.
type sending struct {
	*Endpoint
	s       *sender
	nic     *simnic.NIC
	arrived *arrivals
}

func newSending(t testing.TB) *sending {
	nics, devs := devices(t, setup{dv: dv.Config{NIC: dv.NIC{Rings: dv.Rings{TxQueueSize: 256,
		DelayDrop: true}}}})
	e, err := New(devs[0], Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	peer, err := New(devs[1], Options{NoMerge: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(peer.Close)
	e.flows.Close() // nobody acknowledges what these tests send
	s := &sending{e, e.tx[0], nics[0], &arrivals{seqs: map[uint16][]uint32{}}}
	peer.Attach(s.arrived)
	return s
}

// segmentOf is segment number seq of a flow.
func segmentOf(port uint16, seq uint32) *gstack.PacketBuffer {
	f := tcpFrame{Src: ourMAC, Dst: peerMAC, From: 1, To: 2, Ports: [2]uint16{port, 80}, Seq: seq,
		Flags: header.TCPFlagAck, TTL: 64, Payload: make([]byte, 200)}
	return f.Packet()
}

// send has the endpoint take segments from to to of a flow, which must not wait.
func (s *sending) send(t testing.TB, port uint16, from, to uint32) {
	t.Helper()
	for seq := from; seq < to; seq++ {
		pkt := segmentOf(port, seq)
		err := s.writeOne(pkt)
		pkt.DecRef()
		if err != nil {
			t.Fatalf("segment %d: %s", seq, err)
		}
	}
	if got := s.Stats(); got.TxWaits != 0 || got.TxDropped != 0 {
		t.Fatalf("waited for or dropped: %+v", got)
	}
}

const udpSize = hdr.EthLen + hdr.IPv4Len + hdr.TCPLen

// udpPacket is like a segment, but of another protocol.
func udpPacket() *gstack.PacketBuffer {
	pkt := tcpFrame{Src: ourMAC, Dst: peerMAC}.Packet()
	pkt.NetworkHeader().Slice()[9] = hdr.ProtoUDP
	return pkt
}

// still keeps the timer from running for waiting segments, for which it is always armed again.
func (s *sending) still(t testing.TB) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !s.stopTimer(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the timer is not to be caught between two of its turns")
		}
	}
}

// alone keeps the timer from running on an endpoint without waiting segments.
func (s *sending) alone() {
	s.s.q.Lock()
	defer s.s.q.Unlock()
	s.s.backlog.armed = true
}

// stopTimer reports whether the timer was waiting. The endpoint then considers it armed, and does
// not arm it again.
func (s *sending) stopTimer() bool {
	s.s.q.Lock()
	defer s.s.q.Unlock()
	return s.s.backlog.timer.Stop()
}

// fill makes the NIC delay all completions, and sends n segments of flow 1, of which some must
// wait.
func (s *sending) fill(t testing.TB, n uint32) *holder {
	t.Helper()
	held := hold(s.nic)
	s.send(t, 1, 0, n)
	got := s.Stats()
	if got.TxBacklog == 0 || got.TxBacklog >= uint64(n) || got.TxBacklog != got.TxBacklogged ||
		got.TxBacklogMax != got.TxBacklog || got.TxPackets != uint64(n) {
		t.Fatalf("ring full: %+v", got)
	}
	return held
}

// TestBacklogDrains fills the ring of a NIC that delays all completions. The segments that find no
// room are kept, and are sent in order after the completions, by any caller.
func TestBacklogDrains(t *testing.T) {
	const n = 1000
	eventually := func(t *testing.T, s *sending, do func()) {
		for deadline := time.Now().Add(30 * time.Second); s.Stats().TxBacklog > 0; do() {
			if time.Now().After(deadline) {
				t.Fatalf("still waiting: %+v", s.Stats())
			}
		}
	}
	for _, tc := range []struct {
		name  string
		alone bool // without the timer
		then  func(t *testing.T, s *sending)
	}{
		{"by the timer", false, func(*testing.T, *sending) {}},
		{"by the next writer", true, func(t *testing.T, s *sending) {
			next := uint32(0)
			eventually(t, s, func() { s.send(t, 2, next, next+1); next++ })
		}},
		{"by a writer of something else", true, func(t *testing.T, s *sending) {
			pkt := udpPacket()
			defer pkt.DecRef()
			eventually(t, s, func() { s.writeOne(pkt) })
		}},
		{"by a receive worker", true,
			func(t *testing.T, s *sending) { eventually(t, s, s.tryDrainAll) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSending(t)
			if tc.alone {
				s.alone()
			}
			held := s.fill(t, n)
			held.release()
			tc.then(t, s)
			s.arrived.await(t, n)
			if got := s.Stats(); got.TxBacklog != 0 ||
				got.TxBacklogDropped != 0 || got.TxWaits != 0 {
				t.Errorf("at the end: %+v", got)
			}
		})
	}
}

// TestBacklogOfManyWriters has several flows send faster than a NIC that delays completions.
func TestBacklogOfManyWriters(t *testing.T) {
	const flows, n = 8, 200
	s := newSending(t)
	s.nic.Inject(simnic.QueueFault{Kind: simnic.FaultLateCompletion, Delay: 50 * time.Millisecond})
	// until a segment has waited: none does when this goroutine is slower than the delay
	held := hold(s.nic)
	var wg sync.WaitGroup
	for port := range uint16(flows) {
		wg.Go(func() { s.send(t, port, 0, n) })
	}
	for deadline := time.Now().Add(30 * time.Second); s.Stats().TxBacklogged == 0 &&
		time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	held.release()
	wg.Wait()
	s.arrived.await(t, flows*n)
	if got := s.Stats(); got.TxBacklogged == 0 || got.TxBacklog != 0 || got.TxBacklogDropped != 0 {
		t.Errorf("%+v", got)
	}
}

// TestBacklogBound: when no more can be kept a writer waits, here until its time is over, and its
// segment is refused and counted.
func TestBacklogBound(t *testing.T) {
	for _, tc := range []struct {
		name string
		size int
		most int // that are kept
	}{
		{"packets", 0, backlogPackets},
		{"bytes", 60000, backlogBytes / 60000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSending(t)
			held := hold(s.nic)
			f := tcpFrame{Src: ourMAC, Dst: peerMAC, Flags: header.TCPFlagAck,
				Payload: make([]byte, tc.size)}
			pkt := f.Packet()
			defer pkt.DecRef()
			pkt.GSOOptions = gstack.GSO{Type: gstack.GSOTCPv4, NeedsCsum: true, MSS: 1000}
			taken := 0
			err := s.writeOne(pkt)
			for ; err == nil; err = s.writeOne(pkt) {
				if taken++; taken > 2*backlogPackets {
					t.Fatal("no bound")
				}
			}
			got := s.Stats()
			if !is[*tcpip.ErrNoBufferSpace](err) || got.TxDropped != 1 || got.TxWaits != 1 ||
				got.TxPackets != uint64(taken) {
				t.Errorf("%v, %+v", err, got)
			}
			if int(got.TxBacklog) > tc.most || int(got.TxBacklog) < tc.most-10 {
				t.Errorf("%d kept", got.TxBacklog)
			}
			held.release()
			if err := s.writeOne(pkt); err != nil {
				t.Errorf("with room: %s", err)
			}
		})
	}
}

// TestBacklogIsLetGo: waiting packets are dropped and counted when the endpoint is detached or
// closed, and no packet is held any more.
func TestBacklogIsLetGo(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(s *sending)
	}{
		{"closed", func(s *sending) { s.Close() }},
		{"detached", func(s *sending) { s.Attach(nil) }},
		{"attached elsewhere", func(s *sending) { s.Attach(newSink()) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSending(t)
			s.Attach(newSink())
			held := hold(s.nic)
			defer held.release()
			pkt := segmentOf(1, 0)
			defer pkt.DecRef()
			for range 1000 {
				if err := s.writeOne(pkt); err != nil {
					t.Fatal(err)
				}
			}
			kept := s.Stats().TxBacklog
			if refs := pkt.ReadRefs(); kept == 0 || refs != 1+int64(kept) {
				t.Fatalf("%d kept, %d references", kept, refs)
			}
			tc.end(s)
			for deadline := time.Now().Add(30 * time.Second); s.Stats().TxBacklog > 0 &&
				time.Now().Before(deadline); {
				time.Sleep(time.Millisecond)
			}
			s.s.lock() // who drops them lets go of them before it gives the lock back
			s.s.unlock()
			if got, refs := s.Stats(), pkt.ReadRefs(); got.TxBacklog != 0 ||
				got.TxBacklogDropped != kept || refs != 1 {
				t.Errorf("%d references left: %+v", refs, got)
			}
		})
	}
}

// TestBacklogClosed: a packet written after the close is refused, because it would never be
// released.
func TestBacklogClosed(t *testing.T) {
	s := newSending(t)
	s.Close()
	pkt := segmentOf(1, 0)
	defer pkt.DecRef()
	s.s.q.Lock()
	defer s.s.q.Unlock()
	if err := s.s.enqueue(pkt); err == nil || pkt.ReadRefs() != 1 {
		t.Errorf("%v, %d references", err, pkt.ReadRefs())
	}
}

// TestBacklogTurns: urgent packets go before waiting segments, datagrams have a share and wait when
// they exceed it; a reset goes after the segments.
func TestBacklogTurns(t *testing.T) {
	s := newSending(t)
	held := s.fill(t, 500)
	s.still(t)
	before := s.Stats()
	rst := tcpframe.ResetPacket()
	defer rst.DecRef()
	if err := s.writeOne(rst); err != nil {
		t.Errorf("a reset: %s", err)
	}
	if got := s.Stats(); got.TxBacklog != before.TxBacklog+1 {
		t.Errorf("a reset overtakes segments: %+v", got)
	}
	arp := tcpFrame{}.Packet()
	defer arp.DecRef()
	copy(arp.LinkHeader().Slice()[12:], "\x08\x06")
	if err := s.writeOne(arp); err != nil {
		t.Errorf("ARP: %s", err)
	}
	if got := s.Stats(); got.TxBacklog != before.TxBacklog+1 || got.TxWaits != 0 {
		t.Errorf("ARP waits: %+v", got)
	}
	s.s.q.Lock()
	s.s.reserve = 0 // room, which segments wait for
	s.s.backlog.bypassed = bypassBytes - udpSize
	s.s.q.Unlock()
	udp := udpPacket()
	defer udp.DecRef()
	if err := s.writeOne(udp); err != nil {
		t.Errorf("a datagram within its share: %s", err)
	}
	if err := s.writeOne(udp); !is[*tcpip.ErrNoBufferSpace](err) {
		t.Errorf("a datagram beyond its share: %v", err)
	}
	if got := s.Stats(); got.TxWaits != 1 || got.TxDropped != 1 {
		t.Errorf("beyond its share: %+v", got)
	}
	held.release()
	if err := s.writeOne(udp); err != nil {
		t.Errorf("a datagram when segments have gone: %s", err)
	}
}
