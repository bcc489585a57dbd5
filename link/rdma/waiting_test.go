package rdma

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/random"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// strangerFrame is a segment for port 80 of the first host from a random port of a stranger.
func strangerFrame(rng *rand.Rand, flags header.TCPFlags) []byte {
	f := segment(0)
	f.Dst, f.Src = "\x02\x00\x00\x00\x00\x01", "\x02\x00\x00\x00\x00\x02"
	f.Payload, f.Flags, f.Seq = nil, flags, rng.Uint32()
	f.Ports = [2]uint16{uint16(1024 + rng.IntN(60000)), 80}
	b := f.Bytes()
	copy(b[hdr.EthLen+12:], []byte{10, 9, 0, byte(100 + rng.IntN(100)), 10, 9, 0, 1})
	fixChecksums(b)
	return b
}

// fixChecksums corrects those of a TCP segment in IPv4.
func fixChecksums(frame []byte) {
	ip, segment := header.IPv4(frame[hdr.EthLen:]), header.TCP(frame[hdr.EthLen+hdr.IPv4Len:])
	ip.SetChecksum(0)
	ip.SetChecksum(^ip.CalculateChecksum())
	segment.SetChecksum(0)
	segment.SetChecksum(
		^segment.CalculateChecksum(header.PseudoHeaderChecksum(header.TCPProtocolNumber,
			ip.SourceAddress(), ip.DestinationAddress(), uint16(len(segment)))))
}

// listener is the endpoint that listens on a host.
func (h *host) listener(t testing.TB) *tcp.Endpoint {
	t.Helper()
	for _, e := range h.stack.RegisteredEndpoints() {
		if ep, ok := e.(*tcp.Endpoint); ok && ep.EndpointState() == tcp.StateListen {
			return ep
		}
	}
	t.Fatal("nobody listens")
	return nil
}

// heapInUse is the memory in use.
func heapInUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestACKFlood: ACKs of strangers to a listening port whose queue is not processed take no more
// memory than the limit. Existing connections are served meanwhile, and new ones are accepted as
// soon as the queue is processed again.
func TestACKFlood(t *testing.T) {
	need.Long(t, "two floods, 3 s")
	for _, fast := range []bool{false, true} {
		t.Run(fmt.Sprint("fast path ", fast), func(t *testing.T) { floodWithACKs(t, fast) })
	}
}

func floodWithACKs(t *testing.T, fast bool) {
	const limit = 4 << 20
	server, client := pair(t, setup{opts: Options{RxLimit: limit},
		dv: dv.Config{NIC: dv.NIC{Rings: dv.Rings{DelayDrop: true}}}})
	if fast {
		server.ep.SetLocalAddresses([]netip.Prefix{netip.PrefixFrom(server.v4, 24)})
	}
	go echo(server.listen(t, server.v4, 80))
	conn := client.dial(t, server.v4, 80)
	if err := answers(conn, alive); err != nil {
		t.Fatal(err)
	}
	listener := server.listener(t)
	listener.LockUser() // the queue is not processed from here on
	rng := seed(t)
	before := heapInUse()
	most := uint64(0)
	for range 400 {
		frames := make([][]byte, 100)
		for i := range frames {
			frames[i] = strangerFrame(rng, hdr.FlagACK)
		}
		post(t, client.dev.Tx(0), frames...)
		most = max(most, server.ep.Stats().RxWaiting)
		if err := answers(conn, alive); err != nil {
			t.Fatalf("a connection among the flood: %v", err)
		}
	}
	grown, s := int64(heapInUse())-int64(before), server.ep.Stats()
	t.Logf("40000 ACKs, %d shed; the heap grew by %d KiB, %d KiB estimated",
		s.RxShed, grown>>10, s.RxWaiting>>10)
	if most == 0 || most > limit || s.RxShed == 0 {
		t.Errorf("%d bytes wait of a limit of %d, %d packets were shed", most, limit, s.RxShed)
	}
	if grown > 2*limit {
		t.Errorf("the heap grew by %d bytes, want %d at most", grown, 2*limit)
	}
	if (s.RxFastPath > 0) != fast {
		t.Errorf("%d packets took the fast path", s.RxFastPath)
	}
	listener.UnlockUser()
	if err := answers(client.dial(t, server.v4, 80), alive); err != nil {
		t.Errorf("a new connection after the flood: %v", err)
	}
	for deadline := time.Now().Add(alive); server.ep.Stats().RxWaiting > limit/8; {
		if err := answers(conn, alive); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes are still said to wait", server.ep.Stats().RxWaiting)
		}
	}
}

// TestSlowReader: data that a slow reader leaves unread is bounded by its receive buffer, and does
// not count.
func TestSlowReader(t *testing.T) {
	server, client := pair(t, setup{opts: Options{RxLimit: minRxLimit},
		dv: dv.Config{NIC: dv.NIC{Rings: dv.Rings{DelayDrop: true}}}})
	ln := server.listen(t, server.v4, 80)
	accepted := make(chan net.Conn, 2)
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	conn := client.dial(t, server.v4, 80)
	<-accepted
	piece := make([]byte, 64<<10)
	for total := 0; total < 2*minRxLimit; total += len(piece) {
		conn.SetWriteDeadline(time.Now().Add(alive))
		if n, err := conn.Write(piece); err != nil {
			t.Fatalf("%d bytes were taken, %v", total+n, err)
		}
	}
	for err := error(nil); err == nil; { // until the buffers are full
		conn.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
		_, err = conn.Write(piece)
	}
	client.dial(t, server.v4, 80)
	<-accepted
	if s := server.ep.Stats(); s.RxShed > 0 || s.RxWaiting > minRxLimit/2 {
		t.Errorf("%d packets shed, %d bytes wait", s.RxShed, s.RxWaiting)
	}
}

// TestShedding: which packets are dropped first when much waits.
func TestShedding(t *testing.T) {
	server, client := pair(t, setup{})
	go echo(server.listen(t, server.v4, 80))
	conn := client.dial(t, server.v4, 80)
	if err := answers(conn, alive); err != nil {
		t.Fatal(err)
	}
	w := &worker{e: server.ep, attachment: server.ep.attachment, count: new(rxCounters)}
	rng := seed(t)
	known := strangerFrame(rng, hdr.FlagACK)
	copy(known[hdr.EthLen+12:], []byte{10, 9, 0, 2})
	binary.BigEndian.PutUint16(known[hdr.EthLen+hdr.IPv4Len:],
		uint16(conn.LocalAddr().(*net.TCPAddr).Port))
	data := strangerFrame(rng, hdr.FlagACK|hdr.FlagPSH)
	data = append(data[:hdr.EthLen+hdr.IPv4Len+hdr.TCPLen], "data"...)
	binary.BigEndian.PutUint16(data[hdr.EthLen+2:], hdr.IPv4Len+hdr.TCPLen+4)
	fragment := strangerFrame(rng, hdr.FlagACK)
	fragment[hdr.EthLen+6] = 0x20 // more fragments
	again := strangerFrame(rng, hdr.FlagSYN)
	copy(again[hdr.EthLen+12:], []byte{10, 9, 0, 2})
	answer := strangerFrame(rng, hdr.FlagACK)
	server.ep.admission.begin()
	server.ep.admission.sent(synACKFor(t, server.ep, answer))
	datagram := strangerFrame(rng, hdr.FlagACK)
	datagram[hdr.EthLen+9] = hdr.ProtoUDP
	for _, tc := range []struct {
		name  string
		frame []byte
		from  pressure // the lowest pressure at which it is dropped; 0: never
	}{
		{"ACK of a stranger", strangerFrame(rng, hdr.FlagACK), pressureHalf},
		{"FIN of a stranger", strangerFrame(rng, hdr.FlagACK|hdr.FlagFIN), pressureHalf},
		{"SYN-ACK of a stranger", strangerFrame(rng, hdr.FlagACK|hdr.FlagSYN), pressureHalf},
		{"SYN", strangerFrame(rng, hdr.FlagSYN), pressureHigh},
		{"SYN of an address that data was sent to", again, pressureSevere},
		{"ACK of a connection", known, pressureFull},
		{"ACK of a SYN-ACK", answer, pressureFull},
		{"fragment", fragment, pressureHalf},
		{"data", data, 0},
		{"datagram", datagram, 0},
		{"ARP", arpFrame(), 0},
	} {
		l := hdr.Packet{EtherType: binary.BigEndian.Uint16(tc.frame[12:]), L3: hdr.EthLen}
		l.Parse(tc.frame)
		for p := pressureNone; p <= pressureFull; p++ {
			if got, want := w.sheds(tc.frame, &l, p), tc.from != 0 && p >= tc.from; got != want {
				t.Errorf("%s at pressure %d: shed %v, want %v", tc.name, p, got, want)
			}
		}
	}
}

// TestWaitingSamples: whatever the order in which packets are released, the estimate is close to
// the real value, and 0 at the end.
func TestWaitingSamples(t *testing.T) {
	rng := seed(t)
	var q waiting
	defer q.release()
	var held []buffer.Buffer
	content := data(60, 1)
	for range 50000 {
		b := q.add(buffer.NewViewWithData(content))
		if b.Size() != 60 || !bytes.Equal(b.Flatten(), content) {
			t.Fatalf("the packet became %x", b.Flatten())
		}
		held = append(held, b)
		for len(held) > 4000 || len(held) > 0 && rng.IntN(3) == 0 {
			i := rng.IntN(min(len(held), 64))
			held[i].Release()
			held[i] = held[0]
			held = held[1:]
		}
	}
	if n := q.packets.Load(); n < 3000 || n > 5500 {
		t.Errorf("%d packets estimated, there are %d", n, len(held))
	}
	for i := range held {
		held[i].Release()
	}
	if q.collect(); q.packets.Load() != 0 {
		t.Errorf("%d packets estimated, there are none", q.packets.Load())
	}
}

// TestQuietQueueIsLookedAt: what a flood has left behind on one queue, which nothing comes to any
// more, is no pressure on the others once the stack has worked it off, and is not told as waiting.
func TestQuietQueueIsLookedAt(t *testing.T) {
	var quiet, busy rxCounters
	defer quiet.waiting.release()
	defer busy.waiting.release()
	e := &Endpoint{rxLimit: minRxLimit,
		admission: newAdmission(random.Source{}.HashKey(), clock.Clock{})}
	e.rx.Store(&[]*rxCounters{&quiet, &busy})
	w := &worker{e: e, count: &busy}
	flood := func() (held []buffer.Buffer) {
		for int(quiet.waiting.packets.Load())*waitingSize < minRxLimit {
			held = append(held, quiet.waiting.add(buffer.NewViewWithData(data(60, 1))))
		}
		return held
	}
	held := flood()
	if p := w.pressureNow(); p != pressureFull {
		t.Errorf("pressure %d with all of the limit waiting, want %d", p, pressureFull)
	}
	for i := range held {
		held[i].Release()
	}
	if p := w.pressureNow(); p != pressureNone {
		t.Errorf("pressure %d with nothing waiting, want none", p)
	}
	held = flood()
	for i := range held {
		held[i].Release()
	}
	if n := e.collectWaiting(); n != 0 {
		t.Errorf("%d bytes are told to wait, want none", n)
	}
}
