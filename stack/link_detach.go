package stack

import (
	"fmt"
	"log/slog"
	"time"

	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
)

// detachTime is how long a link may take to end its goroutines.
const detachTime = time.Second

// detachable is a link that netstack cannot make wait for itself. RemoveNIC calls Attach(nil) with
// netstack's lock held. A link that then waits for its receiving goroutine (fdbased does) never
// returns if that goroutine is handling a packet that needs the lock. Here it happens in Close,
// which netstack calls without a lock.
type detachable struct {
	gstack.LinkEndpoint
	log *slog.Logger
}

// detachableGSO is one that segments, which netstack asks a link for by this interface.
type detachableGSO struct {
	detachable
	gstack.GSOEndpoint
}

func makeDetachable(link gstack.LinkEndpoint, log *slog.Logger) gstack.LinkEndpoint {
	d := detachable{link, log}
	if gso, ok := link.(gstack.GSOEndpoint); ok {
		return &detachableGSO{d, gso}
	}
	return &d
}

// Attach implements gstack.NetworkLinkEndpoint. The link stays attached until Close; an interface
// that is removed drops what it delivers.
func (d *detachable) Attach(to gstack.NetworkDispatcher) {
	if to != nil {
		d.LinkEndpoint.Attach(to)
	}
}

// Close implements gstack.NetworkLinkEndpoint. A link that cannot be detached is left to itself,
// for Close of the stack has to return: AF_XDP's waits for a lock that it holds, and its two
// goroutines stay.
func (d *detachable) Close() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.LinkEndpoint.Attach(nil)
	}()
	timeout := time.NewTimer(detachTime)
	defer timeout.Stop()
	select {
	case <-done:
	case <-timeout.C:
		d.log.Warn("the link does not end; its goroutines are left behind", "link",
			fmt.Sprintf("%T", d.LinkEndpoint))
	}
	d.LinkEndpoint.Close()
}
