package clocktest_test

import (
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
)

// TestSettleWaitsForWork: a goroutine that computes for long has not settled.
func TestSettleWaitsForWork(t *testing.T) {
	var done atomic.Bool
	go func() {
		for end := time.Now().Add(1200 * time.Millisecond); time.Now().Before(end); {
		}
		done.Store(true)
	}()
	if clocktest.Settle(); !done.Load() {
		t.Error("it has settled while a goroutine ran")
	}
}

// TestSettleWaitsForSystemCall: a system call that computes is not one that waits.
func TestSettleWaitsForSystemCall(t *testing.T) {
	f, err := os.Open("/dev/urandom")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var done atomic.Bool
	started := make(chan struct{})
	go func() {
		b := make([]byte, 16<<20)
		close(started)
		for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); {
			_, _ = f.Read(b)
		}
		done.Store(true)
	}()
	<-started
	if clocktest.Settle(); !done.Load() {
		t.Error("it has settled while a goroutine was in a system call")
	}
}

// TestSettlePassesSystemCallThatWaits: a goroutine may wait in a system call for good.
func TestSettlePassesSystemCallThatWaits(t *testing.T) {
	var p [2]int
	if err := syscall.Pipe(p[:]); err != nil {
		t.Fatal(err)
	}
	read := make(chan int, 1)
	go func() {
		n, _ := syscall.Read(p[0], make([]byte, 1)) // not by the poller: it is a descriptor
		read <- n
	}()
	clocktest.Settle()
	if len(read) > 0 {
		t.Error("the call has ended")
	}
	syscall.Close(p[1])
	if n := <-read; n != 0 {
		t.Errorf("read %d bytes", n)
	}
	syscall.Close(p[0])
}
