package rdma

import (
	"bytes"
	"io"
	"net/netip"
	"sync"
	"testing"

	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/moving"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// sentTwice opens an endpoint that has sent a segment twice, of which the test holds a reference.
func sentTwice(t *testing.T) (*Endpoint, *dv.Device, *gstack.PacketBuffer) {
	t.Helper()
	_, dev := openDevice(t, 1, setup{})
	e, err := New(dev, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	e.Attach(newSink())
	pkt := segmentOf(1, 0)
	t.Cleanup(pkt.DecRef)
	for range 2 {
		if err := e.writeOne(pkt); err != nil {
			t.Fatal(err)
		}
	}
	return e, dev, pkt
}

// TestResendIsLetGo: an endpoint that is detached or closed has no reference to a segment that was
// sent twice.
func TestResendIsLetGo(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(*Endpoint)
	}{
		{"closed", (*Endpoint).Close},
		{"detached", func(e *Endpoint) { e.Attach(nil) }},
		{"attached elsewhere", func(e *Endpoint) { e.Attach(newSink()) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, _, pkt := sentTwice(t)
			if refs := pkt.ReadRefs(); refs != 2 {
				t.Fatalf("%d references while it waits", refs)
			}
			tc.end(e)
			if refs := pkt.ReadRefs(); refs != 1 {
				t.Errorf("%d references left", refs)
			}
		})
	}
}

// TestResendFitsMTU: what the link sends again is no longer than its MTU allows by then.
func TestResendFitsMTU(t *testing.T) {
	e, dev, _ := sentTwice(t)
	const mtu = 128 // less than the segment has
	before := dev.Tx(0).Stats()
	e.SetMTU(mtu)
	e.flows.Repeat()
	now := dev.Tx(0).Stats()
	if size := now.Bytes - before.Bytes; now.Packets != before.Packets+1 ||
		size > hdr.EthLen+mtu || size <= hdr.EthLen+hdr.IPv4Len+hdr.TCPLen {
		t.Errorf("%d packets of %d bytes", now.Packets-before.Packets, size)
	}
}

// TestResendOnTheWire: what the link sends again, once it is up, arrives. Netstack's own
// retransmissions are lost.
func TestResendOnTheWire(t *testing.T) {
	need.Long(t, "a retransmission timeout in real time")
	var mu sync.Mutex
	var again chan struct{} // closed when netstack has sent the data twice; nil: nothing is lost
	lost := 0
	lose := func(frame []byte) bool {
		l := parsed(frame)
		if l.Proto != hdr.ProtoTCP || l.L4 == 0 {
			return false
		}
		tcp := frame[l.L4:l.End]
		mu.Lock()
		defer mu.Unlock()
		if again == nil || len(tcp)-int(tcp[12]>>4)*4 != 1000 {
			return false
		}
		if lost++; lost == 2 {
			close(again)
		}
		return true
	}
	a, b := pair(t, setup{lose: lose, dv: dv.Config{NIC: dv.NIC{Rings: dv.Rings{DelayDrop: true}}}})
	resent := uint64(0)
	for _, address := range []netip.Addr{a.v4, a.v6} {
		ln := a.listen(t, address, 80)
		conn := b.dial(t, address, 80)
		server, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		twice := make(chan struct{})
		mu.Lock()
		again, lost = twice, 0
		mu.Unlock()
		want := data(1000, 1)
		if _, err := conn.Write(want); err != nil {
			t.Fatal(err)
		}
		<-twice
		mu.Lock()
		again = nil
		mu.Unlock()
		b.ep.Repeat()
		got := make([]byte, len(want))
		moves := moving.Conn(server, new(moving.Meter), moving.Limit)
		if _, err := io.ReadFull(moves, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%v: %v, %x", address, err, got)
		}
		n := b.ep.Stats().TxResent
		if n == resent {
			t.Errorf("%v: the link has sent nothing again", address)
		}
		resent = n
		server.Close()
		conn.Close()
		ln.Close()
	}
}
