package kernel_test

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

// descriptors is how many files this process has open.
func descriptors(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

// TestEventQueues: a node with event queues has no descriptors, and its channels do what those
// with descriptors do.
func TestEventQueues(t *testing.T) {
	nic, err := simnic.New(simnic.Config{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer nic.Close()
	before := descriptors(t)
	node, err := kernel.New(nic, kernel.Config{EventQueues: true}).OpenNode()
	if err != nil {
		t.Fatal(err)
	}
	ctx, err := uverbs.Open(node, uverbs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ch, err := ctx.CreateCompChannel()
	if err != nil {
		t.Fatal(err)
	}
	if n := descriptors(t); n != before {
		t.Errorf("%d descriptors, %d before", n, before)
	}
	ch.Wake()
	if n, err := ch.Wait(); n != 0 || err != nil {
		t.Errorf("Wait after Wake: %d, %v", n, err)
	}
	if n, err := ch.Drain(); n != 0 || err != nil {
		t.Errorf("Drain: %d, %v", n, err)
	}
	nic.SetLink(false)
	nic.FailDevice()
	for _, want := range []uverbs.EventType{uverbs.EventPortError, uverbs.EventDeviceFatal} {
		if e, err := ctx.AsyncEvents().ReadEvent(); e.Type != want || err != nil {
			t.Errorf("event %v, %v; want %v", e, err, want)
		}
	}
	if _, err := ctx.AsyncEvents().ReadEvent(); !errors.Is(err, unix.EIO) {
		t.Errorf("behind the last event: %v", err)
	}
	if _, err := ch.Wait(); !errors.Is(err, unix.EIO) {
		t.Errorf("Wait on a failed device: %v", err)
	}
	if err := ctx.Close(); err != nil {
		t.Error(err)
	}
	if _, err := ch.Wait(); !errors.Is(err, uverbs.ErrClosed) {
		t.Errorf("Wait after Close: %v", err)
	}
}

// TestEventQueueEndsWait: Close and Wake end a Wait that is going on.
func TestEventQueueEndsWait(t *testing.T) {
	nic, err := simnic.New(simnic.Config{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer nic.Close()
	node, err := kernel.New(nic, kernel.Config{EventQueues: true}).OpenNode()
	if err != nil {
		t.Fatal(err)
	}
	ctx, err := uverbs.Open(node, uverbs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer ctx.Close()
	ch, err := ctx.CreateCompChannel()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		do   func()
		want error
	}{{"wake", ch.Wake, nil}, {"close", func() { ch.Close() }, uverbs.ErrClosed}} {
		done := make(chan error)
		go func() {
			_, err := ch.Wait()
			done <- err
		}()
		tt.do()
		if err := <-done; !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
}
