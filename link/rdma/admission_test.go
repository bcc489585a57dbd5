package rdma

import (
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/random"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// synACKFor is the SYN-ACK that a received ACK acknowledges, as e sends it.
func synACKFor(t *testing.T, e *Endpoint, ack []byte) *hdr.Segment {
	t.Helper()
	frame := append([]byte(nil), ack...)
	ip, in := frame[hdr.EthLen:], ack[hdr.EthLen:]
	copy(ip[12:16], in[16:20])
	copy(ip[16:20], in[12:16])
	out, in := ip[hdr.IPv4Len:], in[hdr.IPv4Len:]
	copy(out[0:2], in[2:4])
	copy(out[2:4], in[0:2])
	binary.BigEndian.PutUint32(out[4:], binary.BigEndian.Uint32(in[8:])-1)
	out[13] = hdr.FlagSYN | hdr.FlagACK
	pkt := gstack.NewPacketBuffer(gstack.PacketBufferOptions{ReserveHeaderBytes: len(frame)})
	t.Cleanup(pkt.DecRef)
	copy(pkt.LinkHeader().Push(len(frame)), frame)
	s := hdr.ParseSent(pkt, e.flows.Key())
	return &s
}

// greet serves connections: it sends one word to each.
func greet(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		conn.Write([]byte("hello"))
	}
}

// TestHandshakesInFlood: while more segments than the limit admits wait for a listener that does
// not process them, connections to another listener are accepted.
func TestHandshakesInFlood(t *testing.T) {
	for _, tc := range []struct {
		name    string
		flags   header.TCPFlags // of the flood
		known   bool            // the client has had data from the server
		cookies bool
		long    string
	}{
		{name: "SYNs, from an address that is known", flags: hdr.FlagSYN, known: true},
		{name: "SYNs, at the second try", flags: hdr.FlagSYN, long: "a SYN is repeated after 1 s"},
		{name: "ACKs, with cookies", flags: hdr.FlagACK, cookies: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.long != "" {
				need.Long(t, tc.long)
			}
			server, client := pair(t, setup{opts: Options{RxLimit: 8 << 20},
				dv: dv.Config{NIC: dv.NIC{Rings: dv.Rings{DelayDrop: true}}}})
			cookies := tcpip.TCPAlwaysUseSynCookies(tc.cookies)
			server.stack.SetTransportProtocolOption(tcp.ProtocolNumber, &cookies)
			server.listen(t, server.v4, 80)
			idle := server.listener(t)
			go greet(server.listen(t, server.v4, 81))
			if tc.known {
				greeted(t, client.dial(t, server.v4, 81))
			}
			idle.LockUser()
			defer idle.UnlockUser()
			rng := seed(t)
			for n := 0; server.ep.Stats().RxShed == 0; n += 50 {
				if n > 1000000 {
					t.Fatal("nothing is shed")
				}
				frames := make([][]byte, 50)
				for i := range frames {
					frames[i] = strangerFrame(rng, tc.flags)
				}
				postWaiting(t, client.dev.Tx(0), frames...)
			}
			greeted(t, client.dial(t, server.v4, 81))
			if n := client.stack.Stats().TCP.Retransmits.Value(); tc.known && n > 0 {
				t.Errorf("the client sent %d segments again", n)
			}
		})
	}
}

// postWaiting posts frames as there is room.
func postWaiting(t *testing.T, q *dv.TxQueue, frames ...[]byte) {
	t.Helper()
	q.Lock()
	defer q.Unlock()
	for _, f := range frames {
		err := q.Post(&dv.TxPacket{Bufs: [][]byte{f}})
		for ; err == dv.ErrRingFull; err = q.Post(&dv.TxPacket{Bufs: [][]byte{f}}) {
			q.Flush()
			q.Reclaim()
			runtime.Gosched()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	q.Flush()
}

// greeted waits for what greet says.
func greeted(t *testing.T, conn net.Conn) {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(alive))
	if _, err := io.ReadFull(conn, make([]byte, 5)); err != nil {
		t.Fatalf("no greeting: %v", err)
	}
}

// TestRecent: the latest entries are remembered, as many as there is room for, and no others.
func TestRecent(t *testing.T) {
	const size = 1 << 10
	rng := seed(t)
	r := newRecent(size)
	if r.has(0) {
		t.Error("0 is remembered from the beginning")
	}
	var noted []uint64
	for range 8 * size {
		noted = append(noted, rng.Uint64())
		r.note(noted[len(noted)-1])
		if !r.has(noted[len(noted)-1]) {
			t.Fatalf("%x is forgotten at once", noted[len(noted)-1])
		}
	}
	late, early := 0, 0
	for i, hash := range noted {
		if r.has(hash) && i >= len(noted)-size/8 {
			late++
		} else if r.has(hash) && i < 4*size {
			early++
		}
	}
	if late < size/8*8/10 || early > size/20 {
		t.Errorf("%d of the last %d are remembered, and %d of the first %d", late, size/8, early,
			4*size)
	}
	for range size {
		if hash := rng.Uint64(); r.has(hash) {
			t.Errorf("%x is remembered and was never noted", hash)
		}
	}
}

// BenchmarkAdmissionSent is the cost of an outgoing segment with data.
func BenchmarkAdmissionSent(b *testing.B) {
	a := newAdmission(random.Source{}.HashKey(), clock.Clock{})
	f := segment(0)
	frame := f.Bytes()
	b.ReportAllocs()
	for b.Loop() {
		s := hdr.Received(frame, parsed(frame), a.key)
		s.Flow() // known by then
		a.sent(&s)
	}
}
