package dv_test

import (
	"bytes"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

// Carrier goes and comes: told, and nothing breaks.
func TestLink(t *testing.T) {
	s, d := usual(t, dv.Config{})
	s.nic.SetLink(false)
	told(t, d, false)
	q := d.Tx(0)
	q.Post(&dv.TxPacket{Bufs: [][]byte{frame(peerMAC, ourMAC, 0x88b5, 60)}})
	q.Flush()
	if q.Reclaim() != 1 || len(s.wire.drain()) != 0 {
		t.Error("a port that is down still completes, into nothing")
	}
	s.nic.SetLink(true)
	told(t, d, true)
	exchange(t, s, d, q)
	if st := d.Stats(); st.LinkChanges != 2 || !st.LinkUp {
		t.Errorf("stats: %d changes, up %v", st.LinkChanges, st.LinkUp)
	}
}

// The device dies: everybody is told, nobody hangs, everything is given back.
func TestDeviceFatal(t *testing.T) {
	before := resources(t)
	s := newSim(t, simnic.Config{}, kernel.Config{})
	d, err := dv.Open(t.Context(), s.config(dv.Config{NIC: dv.NIC{RxQueues: 3, TxQueues: 2}}))
	if err != nil {
		t.Fatal(err)
	}
	var received atomic.Int64
	var owners sync.WaitGroup
	for i := range d.NumRx() {
		owners.Go(func() { serve(d.Rx(i), &received) })
	}
	s.nic.FailDevice()
	<-d.Done()
	owners.Wait()
	if err := d.Err(); !errors.Is(err, dv.ErrFailed) || errors.Is(err, dv.ErrClosed) {
		t.Errorf("Err: %v", err)
	}
	if err := d.Rx(0).Wait(); !errors.Is(err, dv.ErrFailed) {
		t.Errorf("Wait: %v", err)
	}
	if err := d.Tx(0).Post(&dv.TxPacket{Bufs: [][]byte{make([]byte, 60)}}); !errors.Is(err,
		dv.ErrFailed) {
		t.Errorf("Post: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if err := d.Err(); !errors.Is(err, dv.ErrFailed) {
		t.Errorf("Err after Close: %v", err)
	}
	if _, err := dv.Open(t.Context(), s.config(dv.Config{})); err == nil {
		t.Error("a dead device was opened")
	}
	s.nic.Close()
	s.wire.wire.Close()
	s.netdev.wire.Close()
	sameResources(t, before)
}

// Frames that were received stay whole while the caller has them, whatever
// comes after.
func TestHeldFramesStay(t *testing.T) {
	s, d := usual(t, dv.Config{NIC: dv.NIC{Rings: dv.Rings{RxQueueSize: 64}},
		Tuning: dv.Tuning{SpareFrames: 64}})
	q := d.Rx(0)
	var held []dv.Packet
	var want [][]byte
	for i := range 60 {
		f := frame(ourMAC, peerMAC, 0x88b5, 60+i)
		s.wire.send(t, f)
		pkts := make([]dv.Packet, 2)
		n := q.Poll(pkts)
		held, want = append(held, pkts[:n]...), append(want, f)
	}
	for range 200 {
		s.wire.send(t, frame(ourMAC, peerMAC, 0x9999, 1000))
		poll(q)
	}
	for i := range held {
		if !bytes.Equal(held[i].Data, want[i]) {
			t.Fatalf("frame %d changed under its holder", i)
		}
	}
	q.Release(held)
}
