package dv_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// dumps is what Config.Dumped was told.
type dumps struct {
	mu  sync.Mutex
	all []dv.Dump
}

func (d *dumps) add(dump dv.Dump) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, dump)
}

// take returns what was told since the last call.
func (d *dumps) take() []dv.Dump {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.all
	d.all = nil
	return all
}

// TestDumpOfSend: the failing send of a queue is in what is told, descriptor and completion.
func TestDumpOfSend(t *testing.T) {
	var told dumps
	s, d := usual(t, dv.Config{Dumped: told.add})
	s.nic.Inject(simnic.QueueFault{Kind: simnic.FaultSendError, Count: 1, Syndrome: 4})
	q := d.Tx(0)
	q.Lock()
	f := frame(peerMAC, ourMAC, 0x88b5, 1000)
	if err := q.Post(&dv.TxPacket{Bufs: [][]byte{f}}); err != nil {
		t.Fatal(err)
	}
	q.Flush()
	q.Unlock()
	eventually(t, "a reset", func() bool {
		q.Lock()
		defer q.Unlock()
		q.Reclaim()
		return q.Stats().Resets == 1
	})
	all := told.take()
	if len(all) != 1 || all[0].Queue != "tx0" {
		t.Fatalf("told %+v", all)
	}
	wqes, cqes := all[0].WQEs(), all[0].CQEs()
	if len(wqes) != 1 || wqes[0].State != "posted" || len(wqes[0].Segments) != 1 ||
		wqes[0].Segments[0].ByteCount == 0 {
		t.Errorf("descriptors %+v", wqes)
	}
	if len(cqes) != 1 || cqes[0].Syndrome != "local protection error" ||
		cqes[0].WQECounter != wqes[0].Index || cqes[0].QPN != wqes[0].QPN {
		t.Errorf("completions %+v", cqes)
	}
}

// TestDumpOfFailedDevice: when a device that failed is closed the rings of all its queues are told.
func TestDumpOfFailedDevice(t *testing.T) {
	var told dumps
	s, d := usual(t, dv.Config{NIC: dv.NIC{RxQueues: 2, TxQueues: 2}, Dumped: told.add})
	s.nic.FailDevice()
	<-d.Done()
	if all := told.take(); len(all) != 0 {
		t.Errorf("told %d dumps while queues may be in use", len(all))
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	all := told.take()
	names := ""
	for i := range all {
		names += all[i].Queue + " "
		if !errors.Is(all[i].Err, dv.ErrFailed) {
			t.Errorf("%s: %v", all[i].Queue, all[i].Err)
		}
	}
	if names != "tx0 tx1 rx0 rx1 " {
		t.Errorf("told %s", names)
	}
}

// TestDumpNow asks for dumps while frames come and go, whose owners poll and sleep, and once nobody
// polls, and after the end.
func TestDumpNow(t *testing.T) {
	s, d := usual(t, dv.Config{NIC: dv.NIC{RxQueues: 2, Rings: dv.Rings{RxQueueSize: 64,
		TxQueueSize: 64}}})
	var received atomic.Int64
	var running sync.WaitGroup
	stop := make(chan struct{})
	for i := range d.NumRx() {
		running.Go(func() { serve(d.Rx(i), &received) })
	}
	running.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			f := flows(i)["UDP over IPv4"]
			s.wire.send(t, packet(f.Src, f.Dst, 17, 10))
			q := d.Tx(0)
			q.Lock()
			q.Reclaim()
			_ = q.Post(&dv.TxPacket{Bufs: [][]byte{frame(peerMAC, ourMAC, 0x88b5, 200)}})
			q.Flush()
			q.Unlock()
		}
	})
	eventually(t, "frames", func() bool { return received.Load() > 200 })
	for range 50 {
		all, err := d.Dump(t.Context())
		if err != nil || len(all) != 3 {
			t.Fatalf("%d dumps, %v", len(all), err)
		}
		for i := range all {
			if all[i].Err != nil || len(all[i].WQEs()) == 0 || len(all[i].CQEs()) == 0 {
				t.Errorf("%s: %v, %d descriptors, %d completions", all[i].Queue, all[i].Err,
					len(all[i].WQEs()), len(all[i].CQEs()))
			}
		}
	}
	close(stop)
	d.Stop()
	running.Wait()
	if _, err := d.Dump(t.Context()); !errors.Is(err, dv.ErrClosed) {
		t.Errorf("after Stop: %v", err)
	}
}

// TestDumpOfIdleOwner: nobody polls the queue, and the wait is bounded.
func TestDumpOfIdleOwner(t *testing.T) {
	_, d := usual(t, dv.Config{})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := d.Dump(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	done := make(chan error, 1)
	go func() { _, err := d.Dump(t.Context()); done <- err }()
	eventually(t, "the dump", func() bool {
		poll(d.Rx(0))
		return len(done) == 1
	})
	if err := <-done; err != nil {
		t.Error(err)
	}
}
