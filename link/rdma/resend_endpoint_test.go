package rdma

import (
	"bytes"
	"encoding/binary"
	"io"
	"net/netip"
	"sync"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/moving"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

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
			_, dev := openDevice(t, 1, setup{})
			e, err := New(dev, Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(e.Close)
			e.Attach(newSink())
			pkt := segmentOf(1, 0)
			defer pkt.DecRef()
			for range 2 {
				if err := e.writeOne(pkt); err != nil {
					t.Fatal(err)
				}
			}
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

// TestResendOnTheWire: netstack's own retransmissions are dropped, the link's are not. After a
// retransmission at 120 ms the link, which has no round-trip sample, waits for a second in which
// netstack sends nothing: from 1.8 s to 2.8.
func TestResendOnTheWire(t *testing.T) {
	need.Long(t, "retransmission timeouts in real time, 5 s")
	var mu sync.Mutex
	var first []byte // of the timestamps
	armed := false
	lose := func(frame []byte) bool {
		l := parsed(frame)
		if l.Proto != hdr.ProtoTCP || l.L4 == 0 {
			return false
		}
		tcp := frame[l.L4:l.End]
		mu.Lock()
		defer mu.Unlock()
		if !armed || len(tcp)-int(tcp[12]>>4)*4 != 1000 {
			return false
		}
		if first == nil {
			first = bytes.Clone(tcp)
		}
		return binary.BigEndian.Uint32(hdr.OptionsOf(tcp).Timestamp[2:])-binary.BigEndian.Uint32(
			hdr.OptionsOf(first).Timestamp[2:]) < 2300
	}
	a, b := pair(t, setup{lose: lose, dv: dv.Config{DelayDrop: true}})
	for _, address := range []netip.Addr{a.v4, a.v6} {
		ln := a.listen(t, address, 80)
		conn := b.dial(t, address, 80)
		server, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		armed, first = true, nil
		mu.Unlock()
		want := data(1000, 1)
		if _, err := conn.Write(want); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(want))
		moves := moving.Conn(server, new(moving.Meter), moving.Limit)
		if _, err := io.ReadFull(moves, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%v: %v, %x", address, err, got)
		}
		server.Close()
		conn.Close()
		ln.Close()
	}
	if b.ep.Stats().TxResent == 0 {
		t.Error("the link sent nothing again")
	}
}
