package stack

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"
)

// TestBatchAddrPort sends batches with datagrams of all kinds among them, with and without the lane, and wants them in order.
func TestBatchAddrPort(t *testing.T) {
	for _, closed := range []bool{false, true} {
		for network, at := range map[string][2]string{"udp4": {"192.0.2.1:7", "192.0.2.2:53"}, "udp6": {"[2001:db8::1]:7", "[2001:db8::2]:53"}} {
			r := newDirectRig(t, closed)
			from, to, remote := r.conns(t, network, at[0], at[1])
			send(t, from, to, remote, []byte("resolved"))
			must(t, to.SetReadDeadline(time.Now().Add(time.Minute)))
			var out, in [][]byte
			var dst []netip.AddrPort
			for i, n := range append(make([]int, 2*maxBatch+3), 1, 64, 3000, 1, 1452, 9000, 5) {
				b := fmt.Appendf(nil, "%d of %s", i, network)
				out, dst = append(out, append(b, make([]byte, n)...)), append(dst, remote)
			}
			if n, err := from.WriteBatchAddrPort(out, dst); n != len(out) || err != nil {
				t.Fatalf("sent %d of %d: %v", n, len(out), err)
			}
			for range 9 {
				in = append(in, make([]byte, 0, 1<<14))
			}
			for got, peers := 0, make([]netip.AddrPort, 20); got < len(out); {
				n, err := to.ReadBatchAddrPort(in, peers)
				must(t, err)
				if n < 1 || n > len(in) {
					t.Fatalf("read %d", n)
				}
				for i := range n {
					if !bytes.Equal(in[i], out[got]) || peers[i] != netip.MustParseAddrPort(at[0]) {
						t.Fatalf("datagram %d is %.20q of %d bytes from %v, want %.20q of %d", got, in[i], len(in[i]), peers[i], out[got], len(out[got]))
					}
					got++
				}
			}
		}
	}
}

// TestBatchAddrPortRingsOnce: many datagrams, few doorbells; all are counted.
func TestBatchAddrPortRingsOnce(t *testing.T) {
	r := newDirectRig(t, false)
	from, to, at := r.conns(t, "udp4", "192.0.2.1:7", "192.0.2.2:53")
	out, dst := make([][]byte, maxBatch), make([]netip.AddrPort, maxBatch)
	for i := range out {
		out[i], dst[i] = []byte("x"), at
	}
	bells := func() uint64 { return r.sender.device.Stats().Tx[0].Doorbells }
	for deadline := time.Now().Add(30 * time.Second); ; {
		send(t, from, to, at, []byte("ready"))
		must(t, to.SetReadDeadline(time.Now().Add(time.Minute)))
		before, sent := bells(), r.sender.Stats().UDPSent
		n, err := from.WriteBatchAddrPort(out, dst)
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
		if time.Now().After(deadline) { // headers are renewed every 100 ms, so one try may meet that
			t.Fatalf("%d datagrams, %d doorbells", n, rang)
		}
	}
}

// TestBatchAddrPortErrors stops at what cannot be sent, and says how far it came.
func TestBatchAddrPortErrors(t *testing.T) {
	r := newDirectRig(t, false)
	from, to, at := r.conns(t, "udp4", "192.0.2.1:7", "192.0.2.2:53")
	send(t, from, to, at, []byte("resolved"))
	x := []byte("x")
	for name, tt := range map[string]struct {
		bad  []byte
		to   netip.AddrPort
		want error
	}{
		"no port":      {x, netip.AddrPortFrom(at.Addr(), 0), syscall.EINVAL},
		"too long":     {make([]byte, 1<<16), at, syscall.EMSGSIZE},
		"no address":   {x, netip.AddrPort{}, nil},
		"other family": {x, netip.MustParseAddrPort("[2001:db8::2]:53"), nil},
	} {
		n, err := from.WriteBatchAddrPort([][]byte{x, x, tt.bad, x}, []netip.AddrPort{at, at, tt.to, at})
		if n != 2 || err == nil || tt.want != nil && !errors.Is(err, tt.want) {
			t.Errorf("%s: sent %d, %v", name, n, err)
		}
	}
	if n, err := from.WriteBatchAddrPort([][]byte{x, x}, []netip.AddrPort{at}); n != 1 || err != nil {
		t.Errorf("two buffers for one address: sent %d, %v", n, err)
	}
	if n, err := to.ReadBatchAddrPort(nil, nil); n != 0 || err != nil {
		t.Errorf("no buffers: read %d, %v", n, err)
	}
	connected, err := r.sender.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(at))
	must(t, err)
	if n, err := connected.WriteBatchAddrPort([][]byte{x}, []netip.AddrPort{at}); n != 0 || !errors.Is(err, net.ErrWriteToConnected) {
		t.Errorf("connected: sent %d, %v", n, err)
	}
	must(t, from.SetDeadline(time.Unix(1, 0)))
	if n, err := from.WriteBatchAddrPort([][]byte{x}, []netip.AddrPort{at}); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("deadline: sent %d, %v", n, err)
	}
	if n, err := from.ReadBatchAddrPort([][]byte{x}, make([]netip.AddrPort, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("deadline: read %d, %v", n, err)
	}
	must(t, from.Close())
	if n, err := from.WriteBatchAddrPort([][]byte{x}, []netip.AddrPort{at}); n != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed: sent %d, %v", n, err)
	}
	if n, err := from.ReadBatchAddrPort([][]byte{x}, make([]netip.AddrPort, 1)); n != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed: read %d, %v", n, err)
	}
}
