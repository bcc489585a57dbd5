package backing

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// How many filters of sockets' own are freed in a period. Linux frees each in a work item of its
// own (bpf_prog_free in kernel/bpf/core.c), and those of Linux 6.18 wait for each other for ever
// when there are more than 1,024 of them.
const (
	pacerBurst  = 256
	pacerPeriod = 20 * time.Millisecond
)

// pacer lets a burst of filters be freed per period.
type pacer struct {
	clock  clock.Clock
	settle func() // waits until the kernel has begun to free what was given up before

	mu    sync.Mutex
	began time.Time // guarded by mu, as is what follows
	used  int       // since began
}

// waitForTurn returns when one more filter may be freed. It waits for a period at most for each
// burst of those who wait.
func (p *pacer) waitForTurn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	passed := p.clock.Since(p.began)
	switch {
	case passed >= pacerPeriod:
		p.began, p.used = p.clock.Now(), 0
	case p.used == pacerBurst:
		_ = p.clock.Sleep(context.Background(), pacerPeriod-passed)
		p.settle()
		p.began, p.used = p.clock.Now(), 0
	}
	p.used++
}

// waitForReaders waits until filters that were given up before are freed: for the end of all
// read-side critical sections of the kernel (MEMBARRIER_CMD_GLOBAL of membarrier(2)). Processors
// that keep the kernel from that would let more and more of them come together.
func waitForReaders() {
	const global = 1
	_, _, _ = unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0)
}
