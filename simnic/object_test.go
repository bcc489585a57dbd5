package simnic

import (
	"fmt"
	"sync"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// TestDestroyOrder checks which objects cannot be destroyed before others.
func TestDestroyOrder(t *testing.T) {
	n := newNIC(t, Config{})
	cq := newCQ(t, n, 4, nil)
	sq := newSQ(t, n, cq, 4, nil)
	rq := newRQ(t, n, cq, 4, 4, nil)
	table, err := n.CreateRQT(RQTAttr{RQs: []*RQ{rq.RQ, rq.RQ}})
	if err != nil {
		t.Fatal(err)
	}
	tir := newTIR(t, n, TIRAttr{Table: table})
	flow := flowTo(t, n, macTwo, tir)
	key := newKey(t, n, mem(t, 4096), nil)
	steps := []struct {
		name    string
		destroy func() error
	}{
		{"flow", flow.Destroy}, {"TIR", tir.Destroy}, {"RQT", table.Destroy},
		{"RQ", rq.Destroy}, {"SQ", sq.Destroy},
		{"CQ", cq.Destroy}, {"key", key.Destroy},
	}
	for _, s := range steps[1:4] {
		if err := s.destroy(); StatusOf(err) != StatusResBusy {
			t.Errorf("destroy %s first: %v", s.name, err)
		}
	}
	if err := cq.Destroy(); StatusOf(err) != StatusResBusy {
		t.Errorf("destroy CQ first: %v", err)
	}
	for _, s := range steps {
		if err := s.destroy(); err != nil {
			t.Errorf("destroy %s: %v", s.name, err)
		}
		if err := s.destroy(); StatusOf(err) != StatusBadRes {
			t.Errorf("destroy %s twice: %v", s.name, err)
		}
	}
	if len(n.numbers.used) != 0 || len(*n.keys.keys.Load()) != 0 {
		t.Errorf("left behind: %v", n.numbers.used)
	}
	if _, err := n.CreateTIR(TIRAttr{RQ: rq.RQ}); StatusOf(err) != StatusBadRes {
		t.Errorf("TIR on a destroyed queue: %v", err)
	}
	if _, err := n.CreateSQ(SQAttr{CQ: cq.CQ, Ring: NewMemory(sq.ring),
		Record: NewMemory(sq.rec)}); StatusOf(err) != StatusBadRes {
		t.Errorf("queue on a destroyed CQ: %v", err)
	}
	sq.nops(1) // a doorbell of a destroyed queue
	n.UARWrite(0, 0x800, sq.last)
}

func TestCreateRefusals(t *testing.T) {
	n := newNIC(t, Config{})
	ring, rec := NewMemory(mem(t, 4096)), NewMemory(record(t))
	cq := newCQ(t, n, 4, nil)
	rq := newRQ(t, n, cq, 4, 4, nil)
	cqErr := func(a CQAttr) error { _, err := n.CreateCQ(a); return err }
	sqErr := func(a SQAttr) error { _, err := n.CreateSQ(a); return err }
	rqErr := func(a RQAttr) error { _, err := n.CreateRQ(a); return err }
	keyErr := func(a MKeyAttr) error { _, err := n.CreateMKey(a); return err }
	rqtErr := func(a ...*RQ) error { _, err := n.CreateRQT(RQTAttr{RQs: a}); return err }
	tirErr := func(a TIRAttr) error { _, err := n.CreateTIR(a); return err }
	nicErr := func(c Config) error { _, err := New(c); return err }
	for name, err := range map[string]error{
		"CQ without ring":        cqErr(CQAttr{Record: rec}),
		"CQ without record":      cqErr(CQAttr{Ring: ring}),
		"CQ too large":           cqErr(CQAttr{Ring: ring, Record: rec, LogSize: 7}),
		"CQ beyond the device":   cqErr(CQAttr{Ring: ring, Record: rec, LogSize: 23}),
		"CQ of negative size":    cqErr(CQAttr{Ring: ring, Record: rec, LogSize: -1}),
		"CQ entries of 32 bytes": cqErr(CQAttr{Ring: ring, Record: rec, EntrySize: 32}),
		"CQ with mini format 9": cqErr(CQAttr{Ring: ring, Record: rec,
			Compress: true, MiniFormat: 9}),
		"SQ without CQ":     sqErr(SQAttr{Ring: ring, Record: rec}),
		"SQ too large":      sqErr(SQAttr{Ring: ring, Record: rec, CQ: cq.CQ, LogSize: 7}),
		"RQ without CQ":     rqErr(RQAttr{Ring: ring, Record: rec, LogStride: 4}),
		"RQ stride of 8":    rqErr(RQAttr{Ring: ring, Record: rec, CQ: cq.CQ, LogStride: 3}),
		"RQ stride of 1024": rqErr(RQAttr{Ring: ring, Record: rec, CQ: cq.CQ, LogStride: 10}),
		"RQ strides of 16 KiB": rqErr(RQAttr{Ring: ring, Record: rec, CQ: cq.CQ, LogStride: 5,
			Striding: &Striding{LogStrideBytes: 14, LogStrides: 4}}),
		"RQ striding, one entry": rqErr(RQAttr{Ring: ring, Record: rec, CQ: cq.CQ, LogStride: 4,
			Striding: &Striding{LogStrideBytes: 11, LogStrides: 4}}),
		"key without memory":      keyErr(MKeyAttr{}),
		"key longer than memory":  keyErr(MKeyAttr{Mem: ring, Len: 4097, Start: 1}),
		"key that wraps":          keyErr(MKeyAttr{Mem: ring, Len: 4096, Start: 1<<64 - 100}),
		"table of 3":              rqtErr(rq.RQ, rq.RQ, rq.RQ),
		"table of 0":              rqtErr(),
		"TIR without destination": tirErr(TIRAttr{}),
		"TIR with hash 3":         tirErr(TIRAttr{RQ: rq.RQ, Hash: 3}),
		"MTU of 10":               nicErr(Config{MTU: 10}),
		"multicast MAC":           nicErr(Config{MAC: []byte{1, 0, 0, 0, 0, 0}}),
	} {
		if StatusOf(err) != StatusBadParam || err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	n.FailDevice()
	if err := cqErr(CQAttr{Ring: ring, Record: rec}); StatusOf(err) != StatusBadSystem {
		t.Errorf("after a fatal error: %v", err)
	}
}

func TestNICEvents(t *testing.T) {
	n := newNIC(t, Config{})
	var got []EventType
	cancel := n.Subscribe(func(e Event) { got = append(got, e.Type) })
	n.SetLink(true)
	n.SetLink(false)
	n.SetLink(false)
	n.SetLink(true)
	n.FailDevice()
	n.FailDevice()
	if err := n.Usable(); StatusOf(err) != StatusBadSystem {
		t.Errorf("failed: %v", err)
	}
	n.RestoreDevice()
	if err := n.Usable(); err != nil {
		t.Errorf("restored: %v", err)
	}
	cancel()
	n.SetLink(false)
	if fmt.Sprint(got) != fmt.Sprint([]EventType{EventPortDown, EventPortUp, EventDeviceFatal}) {
		t.Errorf("events %v", got)
	}
}

// TestCloseConcurrently closes a NIC whose two neighbours keep sending.
func TestCloseConcurrently(t *testing.T) {
	r := newSendRig(t, Config{}, 0)
	copy(r.buf, frame60)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				r.wire.recv([]frame.Frame{{Data: frame60}})
			}
		}
	})
	for range 4 {
		wg.Go(func() {
			if err := r.nic.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	r.sq.nops(1)
	close(stop)
	wg.Wait()
	r.sq.nops(1)
	if err := r.nic.Close(); err != nil {
		t.Error(err)
	}
}

func TestPlugTwice(t *testing.T) {
	n := newNIC(t, Config{})
	if err := n.ConnectWire(&recorder{}); err != nil {
		t.Fatal(err)
	}
	if err := n.ConnectWire(&recorder{}); StatusOf(err) != StatusBadState {
		t.Errorf("second wire: %v", err)
	}
}
