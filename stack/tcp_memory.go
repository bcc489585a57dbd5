package stack

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
)

// memoryLevel is how much of TCPOptions.MaxMemory connections hold.
//
//	         2/3 of it                 all of it
//	free ──────────────▶ pressure ───────────────▶ full
//	  ▲     1/2 of it      │  ▲     7/8 of it      │
//	  └────────────────────┘  └────────────────────┘
//
// These are the three values of Linux's tcp_mem. Under pressure buffers no longer grow, and new
// connections begin with small ones. While it is full, writes wait, receive buffers shrink to a
// fair share (netstack drops data beyond it, and the peer sends it again), and closed connections
// with much unsent data are reset.
type memoryLevel int32

const (
	memoryFree memoryLevel = iota
	memoryPressure
	memoryFull
)

const (
	// admittedWrite gives the most bytes of a write that are admitted at a time while memory is
	// watched.
	admittedWrite = 64 << 10
	// A look at all connections comes between these times after the one before, and at least
	// lookPause times its own duration.
	soonestLook, latestLook = 10 * time.Millisecond, 250 * time.Millisecond
	lookPause               = 20
)

// MemoryStats counts what the bounds on the memory of TCP have done.
type MemoryStats struct {
	// Used says how many bytes connections hold that are not read or not acknowledged, as of the
	// last look, and Limit TCPOptions.MaxMemory.
	Used, Limit uint64
	// Pressures says how often Used came to two thirds of Limit, Overflows how often to all of it.
	Pressures, Overflows uint64
	// WritesHeld are writes that had to wait for memory, BuffersShrunk receive buffers that became
	// smaller, OrphansReset closed connections that were reset for what they had not sent.
	WritesHeld, BuffersShrunk, OrphansReset uint64
	// TimeWait are connections in TIME-WAIT, TimeWaitMax TCPOptions.MaxTimeWait, and TimeWaitEnded
	// connections that did not stay there as there were too many (TCPTimeWaitOverflow of Linux).
	TimeWait, TimeWaitMax, TimeWaitEnded uint64
}

// tcpMemory bounds what the connections of a stack hold. It looks at them only while so many are
// open that they could hold half of the limit.
type tcpMemory struct {
	net     *gstack.Stack
	clock   clock.Clock
	log     *slog.Logger
	health  *health
	conns   *openConns
	orphans *orphans
	fields  *tcpFields
	options TCPOptions
	limit   int64

	watching atomic.Bool  // connections are looked at
	used     atomic.Int64 // bytes, as of the last look
	admitted atomic.Int64 // bytes of writes, ever: what netstack took and what it is yet to take
	taken    atomic.Int64 // bytes of those that netstack took, ever
	known    atomic.Int64 // of taken, when the last look began: used has what is left of them
	level    atomic.Int32 // memoryLevel
	held     atomic.Bool  // a write waits until the next look

	pressures, overflows, writesHeld, shrunk, orphansReset atomic.Uint64

	timeWait timeWaits

	telling sync.Mutex    // held while health and log are told
	limited env.RateLimit // of log lines; guarded by telling
	told    [2]bool       // pressure, TIME-WAIT; guarded by telling

	mu     sync.Mutex // guards what follows; held during a look
	timer  clock.Timer
	closed bool
	looked time.Time        // when the last look ended
	cost   time.Duration    // of the last look
	fixed  map[*TCPConn]int // sizes of receive buffers that do not grow by themselves
	moved  uint64           // segments received and sent when the last look began
}

// timeWaits counts connections in TIME-WAIT. netstack tells when one comes there before it asks how
// long it is to stay: where there are too many, that is no time, as on Linux
// (inet_twsk_alloc, net/ipv4/inet_timewait_sock.c).
type timeWaits struct {
	net  *gstack.Stack
	max  int64
	stay time.Duration // netstack's time in TIME-WAIT
	tell clock.Timer   // runs tcpMemory.tellTimeWait; nil in a test

	ended atomic.Uint64
	full  atomic.Bool // there were too many, and still are seven eighths

	mu    sync.Mutex // guards what follows; taken with netstack's locks held
	count int64
	short bool // netstack is told to keep none
}

func (m *tcpMemory) init(s *Stack) {
	o := s.cfg.TCP
	m.net, m.clock, m.log, m.health, m.conns, m.orphans = s.net, s.clock, s.log, &s.health,
		&s.conns, &s.orphans
	m.fields, m.options, m.limit = &s.fields, o, o.MaxMemory
	m.limited = env.RateLimit{Burst: 6, Period: time.Minute}
	m.timer = s.clock.NewStopped(m.look)
	stay := tcpip.TCPTimeWaitTimeoutOption(time.Minute)
	s.net.TransportProtocolOption(header.TCPProtocolNumber, &stay)
	m.timeWait = timeWaits{net: s.net, max: int64(max(o.MaxTimeWait, 0)),
		stay: time.Duration(stay), tell: s.clock.NewStopped(m.tellTimeWait)}
}

// perConnection returns how many bytes a connection can hold at most, if no program fixes more.
func (m *tcpMemory) perConnection() int64 {
	return int64(m.options.SendBuffer.Max) + int64(m.options.ReceiveBuffer.Max)
}

// couldOverflow reports whether n connections could hold half of the limit.
func (m *tcpMemory) couldOverflow(n int64) bool {
	return n*m.perConnection() >= m.limit/2
}

// noteConnection begins to look at connections if the one that is new makes them enough. That one
// begins with a fair share of the limit as its receive buffer: it grows as it is read.
func (m *tcpMemory) noteConnection(c *TCPConn) {
	n := int64(m.net.Stats().TCP.CurrentConnected.Value())
	if !m.watching.Load() {
		if !m.couldOverflow(n) {
			return
		}
		m.startWatching()
	}
	o, share := c.ep.SocketOptions(), m.share(n)
	if o.GetReceiveBufferSize() > share {
		o.SetReceiveBufferSize(share, false)
	}
}

func (m *tcpMemory) startWatching() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed && !m.watching.Swap(true) {
		m.timer.Reset(soonestLook)
	}
}

// share returns what each of n connections may receive, so that they do not hold more than half of
// the limit, in bytes.
func (m *tcpMemory) share(n int64) int64 {
	return max(m.limit/2/max(n, 1), int64(m.leastBuffer()))
}

// mayGrow reports whether receive buffers may grow.
func (m *tcpMemory) mayGrow() bool { return memoryLevel(m.level.Load()) == memoryFree }

// admission says what tcpMemory lets a write give to netstack.
type admission struct {
	bytes   int
	watched bool // tcpMemory counts them
}

// admitWrite returns how many of n bytes a connection may give to netstack now. With 0 it is to
// wait until it is told that it may write; else it calls finishWrite once netstack has them.
func (m *tcpMemory) admitWrite(c *TCPConn, n int) admission {
	if !m.watching.Load() || n == 0 {
		return admission{n, false}
	}
	n = min(n, admittedWrite)
	for try := range 2 {
		if m.used.Load()+m.admitted.Add(int64(n))-m.known.Load() <= m.limit {
			return admission{n, true}
		}
		m.admitted.Add(-int64(n))
		if try == 0 {
			m.lookSoon()
		}
	}
	// As on Linux, every connection has a little.
	if some := m.leastBuffer() - m.fields.unsentBy(c.ep); some > 0 {
		n = min(n, some)
		m.admitted.Add(int64(n))
		return admission{n, true}
	}
	m.held.Store(true)
	if !m.watching.Load() { // the last look may not have seen it
		return admission{n, false}
	}
	m.writesHeld.Add(1)
	m.lookSoon()
	return admission{}
}

// finishWrite takes note that netstack took so many of the bytes admitted. The order counts what
// a look sees meanwhile twice rather than never.
func (m *tcpMemory) finishWrite(a admission, took int) {
	if a.watched {
		m.taken.Add(int64(took))
		m.admitted.Add(int64(took - a.bytes))
	}
}

// lookSoon looks now, if the last look was long enough ago, and else as soon as it is.
func (m *tcpMemory) lookSoon() {
	if !m.mu.TryLock() { // a look is under way
		return
	}
	defer m.mu.Unlock()
	if pause := m.pause(soonestLook) - m.clock.Since(m.looked); pause > 0 {
		if !m.closed && m.watching.Load() {
			m.timer.Reset(pause)
		}
		return
	}
	m.lookLocked()
}

// pause returns how long no look comes after the last.
func (m *tcpMemory) pause(least time.Duration) time.Duration {
	return max(least, min(lookPause*m.cost, time.Second))
}

// leastBuffer returns what a receive buffer needs in any case: that a whole segment fits a window,
// which is half of what is free.
func (m *tcpMemory) leastBuffer() int {
	mtu := 1500
	if info, ok := m.net.SingleNICInfo(nicID); ok {
		mtu = int(info.MTU)
	}
	return max(m.options.ReceiveBuffer.Min, 4*(min(mtu, 9000)+tcp.SegOverheadSize))
}

// look adds up what connections hold, and does what the level asks for. Where nothing was sent,
// received or written since the last look they cannot hold more.
func (m *tcpMemory) look() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed && m.watching.Load() && m.admitted.Load() == m.known.Load() && !m.held.Load() &&
		m.level.Load() == int32(memoryFree) && m.moved == m.countSegments() {
		m.timer.Reset(m.pause(latestLook))
		return
	}
	m.lookLocked()
}

// countSegments returns how many segments the stack has received and sent.
func (m *tcpMemory) countSegments() uint64 {
	s := m.net.Stats().TCP
	return s.ValidSegmentsReceived.Value() + s.SegmentsSent.Value()
}

func (m *tcpMemory) lookLocked() {
	if m.closed || !m.watching.Load() {
		return
	}
	begin := m.clock.Now()
	m.moved = m.countSegments()
	taken := m.taken.Load()
	eps, used := m.measure()
	m.used.Store(used)
	m.known.Store(taken) // after used: what is written meanwhile counts twice rather than never
	level := m.levelOf(used)
	before := memoryLevel(m.level.Swap(int32(level)))
	if (level == memoryFree) != (before == memoryFree) {
		m.startSmall(level != memoryFree)
	}
	switch {
	case level == memoryFull:
		m.shrinkBuffers(eps)
		m.resetOrphans()
	case before == memoryFull:
		m.restoreFixed()
	}
	if level != before {
		m.tellLater(level, before)
	}
	if used < m.limit && m.held.Swap(false) {
		m.conns.wakeWriters()
	}
	m.looked = m.clock.Now()
	m.cost = m.looked.Sub(begin)
	if level == memoryFree && !m.held.Load() && !m.couldOverflow(int64(len(eps))) {
		if m.watching.Store(false); !m.held.Load() {
			return
		}
		m.watching.Store(true) // a write came to wait meanwhile
	}
	next := latestLook
	switch {
	case used >= m.limit/2 || m.held.Load():
		next = soonestLook
	case used >= m.limit/8:
		next = latestLook / 5
	}
	m.timer.Reset(m.pause(next))
}

// measure returns the connections there are, and how many bytes all of them hold.
func (m *tcpMemory) measure() (eps []*tcp.Endpoint, used int64) {
	seen := map[*tcp.Endpoint]struct{}{} // one of both versions of IP comes twice
	for _, te := range m.net.RegisteredEndpoints() {
		ep, ok := te.(*tcp.Endpoint)
		if !ok {
			continue
		}
		if state := ep.EndpointState(); state == tcp.StateListen || state == tcp.StateTimeWait {
			continue
		}
		if _, twice := seen[ep]; twice {
			continue
		}
		seen[ep] = struct{}{}
		eps = append(eps, ep)
		unread, _ := ep.GetSockOptInt(tcpip.ReceiveQueueSizeOption)
		used += int64(unread) + int64(m.fields.unsentBy(ep))
	}
	return eps, used
}

// levelOf returns the level with that many bytes, of which the present one is a part: see
// memoryLevel.
func (m *tcpMemory) levelOf(used int64) memoryLevel {
	now := memoryLevel(m.level.Load())
	switch {
	case used >= m.limit || now == memoryFull && used >= m.limit/8*7,
		m.held.Load() && used >= m.limit-admittedWrite: // there was no room for a write
		return memoryFull
	case used >= m.limit/3*2 || now != memoryFree && used >= m.limit/2:
		return memoryPressure
	}
	return memoryFree
}

// startSmall has new connections begin with small buffers, or with those of the options again.
func (m *tcpMemory) startSmall(small bool) {
	receive := tcpip.TCPReceiveBufferSizeRangeOption(m.options.ReceiveBuffer)
	send := tcpip.TCPSendBufferSizeRangeOption(m.options.SendBuffer)
	if small {
		receive.Default = min(receive.Default, m.leastBuffer())
		send.Default = min(send.Default, m.leastBuffer())
	}
	for _, option := range []tcpip.SettableTransportProtocolOption{&receive, &send} {
		_ = m.net.SetTransportProtocolOption(header.TCPProtocolNumber, option) // in its limits
	}
}

// shrinkBuffers makes each receive buffer a fair share of half of the limit, at most. They grow
// again as they are read, once there is memory. What is in them stays. mu is held.
func (m *tcpMemory) shrinkBuffers(eps []*tcp.Endpoint) {
	share := m.share(int64(len(eps)))
	conns := m.conns.streams()
	for _, ep := range eps {
		o := ep.SocketOptions()
		size := o.GetReceiveBufferSize()
		if size <= share {
			continue
		}
		if c := conns[ep]; c != nil && c.fixedRead.Load() {
			if m.fixed == nil {
				m.fixed = map[*TCPConn]int{}
			}
			if _, known := m.fixed[c]; !known {
				m.fixed[c] = int(size)
			}
		}
		o.SetReceiveBufferSize(share, false)
		m.shrunk.Add(1)
	}
}

// restoreFixed gives receive buffers that do not grow by themselves their size again. mu is held.
func (m *tcpMemory) restoreFixed() {
	for c, size := range m.fixed {
		if !c.closed.Load() {
			setReadBuffer(c.ep.SocketOptions(), size)
		}
	}
	m.fixed = nil
}

// resetOrphans resets closed connections that have not sent more than any connection may hold:
// nobody waits for them, and their peers do not read. mu is held.
func (m *tcpMemory) resetOrphans() {
	least := m.leastBuffer()
	n := m.orphans.resetThose(func(ep tcpip.Endpoint) bool { return m.fields.unsentBy(ep) > least })
	m.orphansReset.Add(uint64(n))
}

// tellLater counts a change of the level, and has health and log told.
func (m *tcpMemory) tellLater(level, before memoryLevel) {
	if before == memoryFree {
		m.pressures.Add(1)
	}
	if level == memoryFull {
		m.overflows.Add(1)
	}
	m.clock.AfterFunc(0, m.tellHealth) // calls others: not with mu held
}

// pressureError says that connections hold much memory. Nil: they do not.
func (m *tcpMemory) pressureError() error {
	if m.mayGrow() {
		return nil
	}
	return fmt.Errorf("TCP connections hold %d of %d bytes that are not read or not acknowledged: "+
		"buffers do not grow, and at the limit writes wait and data that nobody reads is dropped; "+
		"read faster, close connections, or raise Config.TCP.MaxMemory", m.used.Load(), m.limit)
}

// timeWaitError says that TIME-WAIT is cut short. Nil: it is not.
func (m *tcpMemory) timeWaitError() error {
	if !m.timeWait.full.Load() {
		return nil
	}
	return fmt.Errorf("%d connections are in TIME-WAIT, all there may be: further ones do not "+
		"stay there; let clients close first, or raise Config.TCP.MaxTimeWait", m.timeWait.max)
}

// tellTimeWait is tellHealth, for the timer of timeWaits.
func (m *tcpMemory) tellTimeWait() { m.tellHealth() }

// tellHealth tells health and the log what has changed, in a line for each.
func (m *tcpMemory) tellHealth() {
	m.telling.Lock()
	defer m.telling.Unlock()
	var first error
	for i, err := range [2]error{m.pressureError(), m.timeWaitError()} {
		if first == nil {
			first = err
		}
		if (err != nil) == m.told[i] {
			continue
		}
		m.told[i] = err != nil
		if ok, _ := m.limited.Allows(m.clock.Now()); !ok {
			continue
		}
		switch what := [2]string{"TCP memory", "TIME-WAIT"}[i]; {
		case err != nil:
			m.log.Warn(what+" is at its limit", "reason", err)
		default:
			m.log.Info(what + " is below its limit again")
		}
	}
	m.health.report(reportMemory, first)
}

// stats returns the present values.
func (m *tcpMemory) stats() MemoryStats {
	_, used := m.measure()
	m.timeWait.mu.Lock()
	count := m.timeWait.count
	m.timeWait.mu.Unlock()
	return MemoryStats{Used: uint64(used), Limit: uint64(m.limit),
		Pressures: m.pressures.Load(), Overflows: m.overflows.Load(),
		WritesHeld: m.writesHeld.Load(), BuffersShrunk: m.shrunk.Load(),
		OrphansReset: m.orphansReset.Load(), TimeWait: uint64(count),
		TimeWaitMax: uint64(m.timeWait.max), TimeWaitEnded: m.timeWait.ended.Load()}
}

// end ends all looks. None runs any more when it returns.
func (m *tcpMemory) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.timer.Stop()
	m.timeWait.tell.Stop()
}

// noteHangUp notes that a connection has come into TIME-WAIT, or has left it. netstack's locks are
// held.
func (t *timeWaits) noteHangUp(c *TCPConn) {
	waits := tcp.EndpointState(c.ep.State()) == tcp.StateTimeWait
	t.mu.Lock()
	defer t.mu.Unlock()
	if waits == c.timeWait {
		return
	}
	c.timeWait = waits
	if t.count--; waits {
		t.count += 2
	}
	over := t.count > t.max
	if waits && over {
		t.ended.Add(1)
	}
	if over != t.short {
		t.short = over
		stay := tcpip.TCPTimeWaitTimeoutOption(t.stay)
		if over {
			stay = 0
		}
		_ = t.net.SetTransportProtocolOption(header.TCPProtocolNumber, &stay) // any is accepted
	}
	if full := over || t.full.Load() && t.count > t.max/8*7; full != t.full.Load() {
		t.full.Store(full)
		t.tell.Reset(0)
	}
}
