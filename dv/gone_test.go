package dv_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// TestGoneOnDevice uses a device that somebody removes once the test has printed "removable", while
// frames for rawMAC arrive without end. What a driver may rely on (linux
// drivers/infiniband/core/uverbs_main.c, ib_uverbs_free_hw_resources; rdma_core.c,
// uverbs_destroy_ufile_hw):
//
//   - Verbs of every process answer EIO first. Then the objects of one process after the other are
//     destroyed, in the course of which it is told DEVICE_FATAL. Queues work until theirs is
//     destroyed: frames and completions are written after DEVICE_FATAL, and after EIO.
//   - Closing the context waits for that. From then on the device writes nothing, and not before
//     may memory that was registered be used for something else.
//   - The doorbell pages stay mapped until then: stores go to the device until it is gone, and to a
//     page of nobody's afterwards. They raise no SIGBUS.
func TestGoneOnDevice(t *testing.T) {
	node := deviceNode(t)
	if os.Getenv("DEVICE_LEAVES") == "" {
		need.That(t, "removal", errors.New("nobody removes the device: tests/vm does"))
	}
	open := func() (uverbs.Kernel, error) { return uverbs.OpenNode(node) }
	r, s := newRawReceiver(t, open, rawMAC), newRawSender(t, open)
	if err := errors.Join(r.wq.Ready(), s.qp.ToReady(1)); err != nil {
		t.Fatal(err)
	}
	fatal := make(chan error, 1)
	go func() { fatal <- awaitFatal(r.ctx) }()
	fmt.Println("removable")
	received, sent, err := useUntil(r, s, fatal)
	if err != nil || received == 0 || sent == 0 {
		t.Fatalf("%d received and %d sent before the end: %v", received, sent, err)
	}
	late, afterEIO := 0, 0
	eventually(t, "EIO from a verb", func() bool {
		late += use(r, s)
		_, err := r.ctx.AllocPD()
		return errors.Is(err, unix.EIO)
	})
	for range 1000 {
		afterEIO += use(r, s)
		time.Sleep(100 * time.Microsecond) // frames go on arriving
	}
	if err := errors.Join(r.ctx.Close(), s.ctx.Close()); err != nil {
		t.Errorf("close: %v", err)
	}
	before := append(bytes.Clone(r.mem.Bytes()), s.mem.Bytes()...)
	time.Sleep(100 * time.Millisecond) // as many frames as before
	if !bytes.Equal(before, append(bytes.Clone(r.mem.Bytes()), s.mem.Bytes()...)) {
		t.Error("the device writes after the context was closed")
	}
	t.Logf("%d received and %d sent before DEVICE_FATAL; completions after it %d, after EIO %d",
		received, sent, late, afterEIO)
}

// awaitFatal reads events until DEVICE_FATAL.
func awaitFatal(c *uverbs.Context) error {
	for {
		e, err := c.AsyncEvents().ReadEvent()
		if err != nil || e.Type == uverbs.EventDeviceFatal {
			return err
		}
	}
}

// useUntil receives and sends until fatal has something.
func useUntil(r *rawReceiver, s *rawSender, fatal <-chan error) (received, sent int, err error) {
	for range rawEntries - 1 {
		r.postGood()
	}
	for {
		select {
		case err := <-fatal:
			return received, sent, err
		default:
		}
		if c := r.completion(); c != nil {
			if c.Opcode() != mlx5.CQERecv {
				return received, sent, fmt.Errorf("reception: %v", c)
			}
			received++
			r.postGood()
		}
		s.sendFrame(netdevMAC, 100)
		for s.completion() == nil {
			select {
			case err := <-fatal:
				return received, sent, err
			default:
			}
		}
		sent++
	}
}

// use receives and sends once if it can, and returns how many completions there were.
func use(r *rawReceiver, s *rawSender) (completions int) {
	for r.completion() != nil {
		completions++
		r.postGood()
	}
	s.sendFrame(netdevMAC, 100)
	for s.completion() != nil {
		completions++
	}
	return completions
}
