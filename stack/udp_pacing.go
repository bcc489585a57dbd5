package stack

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/internal/pacing"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

// SetPacing limits what the socket sends to a rate in bytes per second, Ethernet, IP and UDP
// headers included, and of fragments and segments those of each: SO_MAX_PACING_RATE of Linux, with
// or without the qdisc fq. 0 and the largest uint64 are no limit. The error is that of a closed
// socket.
//
// Writes wait until the rate lets out their datagrams: they take turns, and end with
// os.ErrDeadlineExceeded and net.ErrClosed as those that wait for a buffer do. What a write sends
// as one, up to 64 KiB in segments, leaves whole, and the next waits the longer. In any time no
// more leaves than the rate sends in it, and in 200 us, and one write; after a timer that comes
// late that of up to 10 ms more. [UDPConn.WriteBatch] waits for its first datagram only, sends as
// many as the rate lets out by then, and returns how many. Another rate holds at once, for writes
// that wait too; what was sent before counts. The rate holds for what the kernel sends with
// [Config.Host], too.
//
// Replies of [UDPConn.ServePackets] leave without waiting and are not counted; its handler must
// not write on a socket with a rate.
func (c *UDPConn) SetPacing(bytesPerSecond uint64) error {
	return c.set(func() {
		c.setPacing(bytesPerSecond)
		if c.closed.Load() {
			c.setPacing(0)
		}
	})
}

// setPacing puts a rate in the place of the one before. A writer that waits takes it from there.
func (c *UDPConn) setPacing(bytesPerSecond uint64) {
	if !limited(bytesPerSecond) {
		bytesPerSecond = 0
	}
	p := c.pacing.Load()
	if p == nil {
		if bytesPerSecond == 0 {
			return
		}
		p = &socketPacing{begun: c.stack.clock.Now(), timer: c.stack.clock.NewStopped(c.wr.notify)}
		if !c.pacing.CompareAndSwap(nil, p) {
			p = c.pacing.Load()
		}
	}
	before := p.rate.Swap(bytesPerSecond)
	c.stack.udp.pacing.change(before, bytesPerSecond)
	c.wr.notify()
}

// socketPacing holds the rate of a socket, from the first SetPacing on.
type socketPacing struct {
	rate  atomic.Uint64 // bytes per second; 0: no limit
	begun time.Time
	timer clock.Timer // wakes the one who waits, who sets and stops it

	// turn goes to one writer at a time, from before it waits for the rate until its datagram is
	// sent and counted.
	turn      sync.Mutex
	datagrams pacing.Datagrams // guarded by turn
}

// patience says what becomes of a datagram that the rate does not let out yet.
type patience uint8

const (
	waitForRate patience = iota
	sendAtOnce           // EAGAIN
)

// paced returns the rate of the socket; nil: it has none.
func (c *UDPConn) paced() *socketPacing {
	if p := c.pacing.Load(); p != nil && p.rate.Load() != 0 {
		return p
	}
	return nil
}

// pacingRate returns the rate of the socket in bytes per second; 0: no limit.
func (c *UDPConn) pacingRate() uint64 {
	if p := c.pacing.Load(); p != nil {
		return p.rate.Load()
	}
	return 0
}

// admit returns for how long no datagram may leave; 0 or less: one may. turn is held.
func (p *socketPacing) admit(c clock.Clock) time.Duration {
	now := c.Since(p.begun)
	p.datagrams.SetRate(p.rate.Load(), now)
	return p.datagrams.Admit(now)
}

// admitNow reports whether a datagram may leave without a wait. turn is held.
func (p *socketPacing) admitNow(c clock.Clock) bool {
	allowed := p.admit(c) <= 0
	p.datagrams.Rest()
	return allowed
}

// sendPaced sends b when the socket's rate allows it.
func (c *UDPConn) sendPaced(p *socketPacing, b []byte, to tcpip.FullAddress, from tcpip.Address,
	call string, o *sendOptions) error {
	p.turn.Lock()
	defer p.turn.Unlock()
	if o.patience == sendAtOnce {
		if !p.admitNow(c.stack.clock) {
			return os.NewSyscallError(call, syscall.EAGAIN)
		}
	} else if err := c.awaitRate(p); err != nil {
		return err
	}
	n := c.wireBytes(len(b), to, o)
	err := c.sendNow(b, to, from, call, o)
	if err == nil {
		p.datagrams.Sent(n)
	}
	return err
}

// awaitRate returns when the rate of the socket lets out a datagram. The caller has the turn.
func (c *UDPConn) awaitRate(p *socketPacing) error {
	c.wr.mu.Lock()
	defer c.wr.mu.Unlock()
	for waited := false; ; waited = true {
		err := c.check(&c.wr)
		wait := p.admit(c.stack.clock)
		if err != nil || wait <= 0 {
			if waited {
				p.timer.Stop()
			}
			p.datagrams.Rest()
			return err
		}
		if !waited {
			c.stack.udp.pacing.waits.Add(1)
		}
		p.timer.Reset(wait)
		c.wr.park()
	}
}

// count notes a datagram that goes to the link. turn is held.
func (p *socketPacing) count(d *rdma.Datagram) {
	p.datagrams.Sent(len(d.Payload) + d.Count()*len(d.Headers))
}

// wireBytes returns how many bytes a write of n bytes of payload takes in frames, without FCS.
func (c *UDPConn) wireBytes(n int, to tcpip.FullAddress, o *sendOptions) int {
	ip := header.IPv6MinimumSize
	if to.Addr.Len() == header.IPv4AddressSize || c.family == inet4 {
		ip = header.IPv4MinimumSize
	}
	each := header.EthernetMinimumSize + ip
	if o.segment != 0 {
		segments := max(1, (n+o.segment-1)/o.segment)
		return n + segments*(each+header.UDPMinimumSize)
	}
	n += header.UDPMinimumSize
	if n <= header.IPv6MinimumMTU-ip { // which every link has room for
		return n + each
	}
	info, ok := c.stack.net.SingleNICInfo(nicID)
	room := int(info.MTU) - ip
	if !ok || n <= room {
		return n + each
	}
	if ip == header.IPv6MinimumSize {
		each += header.IPv6FragmentHeaderSize
		room -= header.IPv6FragmentHeaderSize
	}
	room = max(8, room&^7) // all fragments but the last (RFC 791, RFC 8200)
	return n + (n+room-1)/room*each
}

// pacedSockets counts sockets with a rate.
type pacedSockets struct {
	now   atomic.Int64
	waits atomic.Uint64 // of writes
}

// change notes that a socket has another rate; 0: none.
func (p *pacedSockets) change(before, after uint64) {
	if before != 0 {
		p.now.Add(-1)
	}
	if after != 0 {
		p.now.Add(1)
	}
}
