package dv_test

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// What is done wrong on purpose, against the software NIC and against a device for tests with the
// machine's own kernel driver (in tests/vm that is a stock kernel).

// wrongs is all of it.
var wrongs = map[string]func(t *testing.T, open func() (uverbs.Kernel, error)){
	"sends": wrongSends, "states": wrongStates, "buffers": wrongBuffers,
}

func TestWrong(t *testing.T) {
	onCards(t, func(t *testing.T, card simnic.Card) {
		for name, test := range wrongs {
			t.Run(name, func(t *testing.T) {
				test(t, newSim(t, simnic.Config{Card: card.Name}, kernel.Config{}).linux.OpenNode)
			})
		}
	})
}

func TestWrongOnDevice(t *testing.T) {
	node := deviceNode(t)
	for name, test := range wrongs {
		t.Run(name, func(t *testing.T) {
			test(t, func() (uverbs.Kernel, error) { return uverbs.OpenNode(node) })
		})
	}
}

// deviceNode is the node of the device that tests may use.
func deviceNode(t *testing.T) string {
	t.Helper()
	name := need.Hardware(t)
	infos, err := uverbs.Discover("")
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range infos {
		if i.IBDev == name {
			return i.Node
		}
	}
	t.Fatalf("%s has no node", name)
	return ""
}

var rawMAC = net.HardwareAddr{0x02, 0xaa, 0, 0, 0, 0x77}

// A send that must not be fails with its syndrome, those behind it are flushed, and a reset makes
// the queue as new.
func wrongSends(t *testing.T, open func() (uverbs.Kernel, error)) {
	r := newRawReceiver(t, open, rawMAC)
	if err := r.wq.Ready(); err != nil {
		t.Fatal(err)
	}
	s := newRawSender(t, open)
	if err := s.qp.ToReady(1); err != nil {
		t.Fatal(err)
	}
	other := must(must(s.ctx.AllocPD())(t).RegMR(s.mem.Sub(0, 4096), 0))(t)
	at := s.mem.Addr()
	for _, c := range []struct {
		name string
		lkey uint32
		addr uint64
	}{
		{"key of nothing", 0x12345600, at},
		{"key with another variant", s.mr.LKey ^ 1, at},
		{"key of another domain", other.LKey, at},
		{"address before the region", s.mr.LKey, at - 4096},
		{"address behind the region", s.mr.LKey, at + 0x1000},
		{"last bytes behind the region", s.mr.LKey, at + 0x1000 - 99},
	} {
		s.send(c.lkey, c.addr, 100)
		s.awaitSyndrome(c.name, mlx5.SynLocalProtection)
		s.sendFrame(rawMAC, 100)
		s.awaitSyndrome("send behind "+c.name, mlx5.SynFlushed)
		if err := s.qp.Reset(); err != nil {
			t.Fatal(err)
		}
		s.rewind()
		if err := s.qp.ToReady(1); err != nil {
			t.Fatal(err)
		}
		r.postGood()
		s.sendFrame(rawMAC, 100)
		if e := s.await("good send"); e.Opcode() != mlx5.CQEReq {
			t.Errorf("after %s: %v", c.name, e)
		}
		if e := r.await("reception"); e.Opcode() != mlx5.CQERecv || e.ByteCount() != 100 {
			t.Errorf("after %s: received %v", c.name, e)
		}
	}
}

// A queue sends when its queue pair is ready, and not before; the state the device is in is asked
// before it is left.
func wrongStates(t *testing.T, open func() (uverbs.Kernel, error)) {
	s := newRawSender(t, open)
	for _, state := range []uverbs.QPState{uverbs.QPReset, uverbs.QPInit, uverbs.QPRTR} {
		if state == uverbs.QPInit {
			if err := s.qp.Init(1); err != nil {
				t.Fatal(err)
			}
		} else if state != uverbs.QPReset {
			if err := s.qp.Modify(state); err != nil {
				t.Fatal(err)
			}
		}
		s.sendFrame(rawMAC, 100)
		if e := s.completion(); e != nil {
			t.Errorf("in %v: %v", state, e)
		}
		s.rewind()
	}
	if err := s.qp.Modify(uverbs.QPRTS); err != nil {
		t.Fatal(err)
	}
	s.sendFrame(rawMAC, 100)
	if e := s.await("good send"); e.Opcode() != mlx5.CQEReq {
		t.Errorf("in RTS: %v", e)
	}
	s.send(0x12345600, 0, 100)
	s.awaitSyndrome("key of nothing", mlx5.SynLocalProtection)
	if err := s.qp.Modify(uverbs.QPReset); !errors.Is(err, unix.EINVAL) {
		t.Errorf("reset without a look at what the device did: %v, want EINVAL", err)
	}
	if err := s.qp.Reset(); err != nil {
		t.Errorf("reset after a look: %v", err)
	}
}

// A frame that finds a bad buffer puts the receive queue in error; the queue recovers, its table
// and rules stay.
func wrongBuffers(t *testing.T, open func() (uverbs.Kernel, error)) {
	r := newRawReceiver(t, open, rawMAC)
	s := newRawSender(t, open)
	if err := errors.Join(r.wq.Ready(), s.qp.ToReady(1)); err != nil {
		t.Fatal(err)
	}
	readOnly := must(r.pd.RegMR(r.mem.Sub(0, 4096), 0))(t)
	at := r.mem.Addr()
	for _, c := range []struct {
		name     string
		lkey     uint32
		addr     uint64
		n        int
		syndrome mlx5.Syndrome
		state    uverbs.WQState // of the queue then
	}{
		{"key of nothing", 0x12345600, at, 2048, mlx5.SynLocalProtection, uverbs.WQErr},
		{"region that may not be written", readOnly.LKey, at, 2048,
			mlx5.SynLocalProtection, uverbs.WQErr},
		{"address behind the region", r.mr.LKey, at + 0x1000, 2048,
			mlx5.SynLocalProtection, uverbs.WQErr},
		{"buffer too short", r.mr.LKey, at, 60, mlx5.SynLocalLength, uverbs.WQReady},
	} {
		r.post(c.lkey, c.addr, c.n)
		s.sendFrame(rawMAC, 100)
		if e := s.await("send"); e.Opcode() != mlx5.CQEReq {
			t.Errorf("%s: the sender's completion is %v", c.name, e)
		}
		r.awaitSyndrome(c.name, c.syndrome)
		if err := r.wq.Modify(c.state, uverbs.WQReset); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		r.rewind()
		if err := r.wq.Ready(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		r.postGood()
		s.sendFrame(rawMAC, 100)
		if e := s.await("send"); e.Opcode() != mlx5.CQEReq {
			t.Errorf("after %s: the sender's completion is %v", c.name, e)
		}
		if e := r.await("reception"); e.Opcode() != mlx5.CQERecv || e.ByteCount() != 100 {
			t.Errorf("after %s: received %v", c.name, e)
		}
	}
}
