package stack_test

import (
	"bytes"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// TestZeroCopyHandOver: a stack whose card reads what programs wrote from where netstack keeps it
// hands over in the middle of a transfer, which goes on beside one of the newcomer's, likewise in
// place. The stack before has given all memory back by the time that it has ended, whether its
// transfer ends by itself or is cut.
func TestZeroCopyHandOver(t *testing.T) {
	must(t, stack.ZeroCopySend())
	for name, cut := range map[string]bool{"the transfer ends": false, "it is cut": true} {
		t.Run(name, func(t *testing.T) { testZeroCopyHandOver(t, cut) })
	}
	eventually(t, "netstack has given all memory back", func() bool {
		runtime.GC() // pools let go of what they keep
		return stack.SendMemory().Used == 0
	})
}

func testZeroCopyHandOver(t *testing.T, cut bool) {
	h := &handoverWorld{t: t, nic: card(t, "sim", 1)}
	h.make()
	data := bytes.Repeat([]byte("0123456789abcdefg"), 32<<20/17)
	before := h.open("before", nil)
	serveData(t, before, data)
	handed := h.wait(before)
	old := h.dial("tcp", 8)
	must(t, old.(*net.TCPConn).SetReadBuffer(256<<10)) // so that most of it waits in the stack
	begun := make([]byte, 1<<20)
	_, err := io.ReadFull(old, begun)
	must(t, err)
	after := h.open("after", h.meet())
	serveData(t, after, data[:4<<20])
	must(t, after.TakeOver(t.Context()))
	must(t, result(t, "HandOver", handed))
	late := h.dial("tcp", 8)
	if got, err := io.ReadAll(late); err != nil || !bytes.Equal(got, data[:4<<20]) {
		t.Errorf("the newcomer's: %d bytes, or others: %v", len(got), err)
	}
	if cut { // with packets that the NIC, which is paused, has not read
		go io.Copy(io.Discard, old)
		eventually(t, "a send queue holds packets", func() bool {
			pause := h.nic.Inject(simnic.QueueFault{Kind: simnic.FaultPause})
			for began := time.Now(); time.Since(began) < 20*time.Millisecond; runtime.Gosched() {
				if _, held := inPlace(before.Device()); held > 0 {
					t.Cleanup(pause.Remove)
					return true
				}
			}
			pause.Remove()
			return false
		})
	} else {
		got, err := io.ReadAll(old)
		if got = append(begun, got...); err != nil || !bytes.Equal(got, data) {
			t.Errorf("the old one: %d of %d bytes, or others: %v", len(got), len(data), err)
		}
	}
	for _, s := range []*stack.Stack{before, after} {
		d := s.Device()
		must(t, s.Close())
		if sent, held := inPlace(d); sent == 0 || held != 0 {
			t.Errorf("a device has sent %d packets in place, and is closed with %d held", sent,
				held)
		}
	}
}

// inPlace says how many packets the queues of a device have sent in place, and how many of them
// they hold.
func inPlace(d *dv.Device) (sent, held uint64) {
	for i := range d.NumTx() {
		q := d.Tx(i)
		q.Lock()
		q.Check() // shows them
		q.Unlock()
	}
	for _, q := range d.Stats().Tx {
		sent, held = sent+q.InPlace, held+q.Held
	}
	return sent, held
}

// serveData sends data to each client of port 8, by writes that are large enough to be sent in
// place.
func serveData(t *testing.T, s *stack.Stack, data []byte) {
	t.Helper()
	ln, err := s.Listen("tcp", ":8")
	must(t, err)
	go func() {
		for c, err := ln.Accept(); err == nil; c, err = ln.Accept() {
			go func(c net.Conn) {
				defer c.Close()
				_, _ = c.Write(data) // the client finds out
			}(c)
		}
	}()
}
