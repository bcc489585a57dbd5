package stack

import (
	"cmp"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/internal/pacing"
)

// TCPConn is a TCP connection. It has the methods of net.TCPConn except SyscallConn, see the
// package comment, and more. Its methods may be called from any goroutine; concurrent reads take
// turns, and so do concurrent writes.
type TCPConn struct {
	connState
	ep           tcpip.Endpoint
	network      string
	laddr, raddr *net.TCPAddr
	outages      uint64      // Stack.outage.count when it was made
	timeWait     bool        // it is counted as such; guarded by the mutex of timeWaits
	fixedRead    atomic.Bool // SetReadBuffer was called
	next, prev   *TCPConn    // of openConns, whose mutex guards them

	pacing   atomic.Pointer[connPacing] // nil: no rate
	recovery *recoveryCount             // nil: netstack's own count

	rd, wr  ioSide
	events  waiter.Entry // of both sides
	untuned int          // bytes read since buffer tuning was last told; guarded by rd.mu

	// Bytes that netstack has taken from writes, and given to reads.
	written, received atomic.Uint64
}

var _ net.Conn = (*TCPConn)(nil)

// newTCPConn wraps a connected endpoint. laddr and raddr become the conn's and must not change.
func newTCPConn(s *Stack, ep tcpip.Endpoint, q *waiter.Queue, network string,
	laddr, raddr *net.TCPAddr, keepAlive net.KeepAliveConfig, rate uint64) *TCPConn {
	c := &TCPConn{ep: ep, network: network, laddr: laddr, raddr: raddr}
	c.stack, c.outages = s, s.outage.count.Load()
	register(q, &c.events, tcpEvents{c}, readEvents|writeEvents)
	c.keepAlive(keepAlive)
	c.recovery = newRecoveryCount(ep, &s.fields, s.net)
	c.setPacing(rate)
	s.conns.add(c)
	s.memory.noteConnection(c)
	return c
}

// tcpEvents is told by netstack what a connection is ready for.
type tcpEvents struct{ c *TCPConn }

// NotifyEvent implements waiter.EventListener. It is called with netstack's locks held.
func (e tcpEvents) NotifyEvent(mask waiter.EventMask) {
	if mask&waiter.EventHUp != 0 {
		e.c.stack.memory.timeWait.noteHangUp(e.c)
	}
	if mask&readEvents != 0 {
		e.c.rd.notify()
	}
	if mask&writeEvents != 0 {
		e.c.wr.notify()
	}
}

// LocalAddr returns our end, also after Close. It is a *net.TCPAddr that must not be changed.
func (c *TCPConn) LocalAddr() net.Addr { return c.laddr }

// RemoteAddr returns the peer's end, also after Close. It is a *net.TCPAddr that must not be
// changed.
func (c *TCPConn) RemoteAddr() net.Addr { return c.raddr }

// Close sends what was written and then a FIN, in the background; operations in progress fail with
// net.ErrClosed. Unread data makes it a reset, as on Linux. A peer that takes nothing, or
// little, of what is left is reset, see [TCPOptions].OrphanTimeout and [TCPConn.SetLinger].
func (c *TCPConn) Close() error {
	if c.closed.Swap(true) {
		return c.opError("close", net.ErrClosed)
	}
	c.rd.stop()
	c.wr.stop()
	c.setPacing(0)
	linger := c.ep.SocketOptions().GetLinger()
	orphan := tcpip.TCPUserTimeoutOption(c.stack.cfg.TCP.OrphanTimeout)
	c.ep.SetSockOpt(&orphan) // answers to zero window probes do not prolong it
	c.stack.conns.remove(c)
	c.ep.Close()
	if !c.stack.orphans.addClosed(c.ep, &c.stack.cfg) {
		endKeepAlive(c.ep)
	}
	if linger.Enabled && linger.Timeout > 0 {
		c.linger(linger.Timeout)
	}
	return nil
}

// linger waits until the peer has acknowledged everything, at most for d.
func (c *TCPConn) linger(d time.Duration) {
	s := c.stack
	for end := s.clock.Now().Add(d); unflushed(c.ep) && s.clock.Now().Before(end); {
		if s.clock.Sleep(s.life.ctx, flushPoll) != nil {
			return
		}
	}
}

// CloseRead makes reads return io.EOF once what has arrived is read.
func (c *TCPConn) CloseRead() error { return c.shutdown(tcpip.ShutdownRead) }

// CloseWrite sends a FIN after the data written so far; the peer reads io.EOF.
func (c *TCPConn) CloseWrite() error { return c.shutdown(tcpip.ShutdownWrite) }

func (c *TCPConn) shutdown(how tcpip.ShutdownFlags) error {
	if err := c.done(); err != nil {
		return c.opError("close", err)
	}
	if terr := c.ep.Shutdown(how); terr != nil {
		return c.opError("close", c.orClosedErr(syscallError("shutdown", terr)))
	}
	return nil
}

// SetDeadline sets both deadlines, see net.Conn.
func (c *TCPConn) SetDeadline(t time.Time) error { return c.setDeadline(t, &c.rd, &c.wr) }

// SetReadDeadline makes reads fail with os.ErrDeadlineExceeded from t on; the zero time means
// never.
func (c *TCPConn) SetReadDeadline(t time.Time) error { return c.setDeadline(t, &c.rd) }

// SetWriteDeadline makes writes fail with os.ErrDeadlineExceeded from t on; the zero time means
// never. A Write that fails may have sent part of its bytes.
func (c *TCPConn) SetWriteDeadline(t time.Time) error { return c.setDeadline(t, &c.wr) }

func (c *TCPConn) setDeadline(t time.Time, sides ...*ioSide) error {
	if err := c.done(); err != nil {
		return &net.OpError{Op: "set", Net: c.network, Addr: c.laddr, Err: err}
	}
	for _, d := range sides {
		d.setDeadline(c.stack.clock, t)
	}
	return nil
}

// File always fails with ErrNoDescriptor.
func (c *TCPConn) File() (*os.File, error) {
	return nil, &net.OpError{Op: "file", Net: c.network, Source: c.laddr,
		Addr: c.raddr, Err: ErrNoDescriptor}
}

func (c *TCPConn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: c.network, Source: c.laddr, Addr: c.raddr, Err: err}
}

const (
	// tuneThreshold says how many bytes are read between calls of netstack's receive buffer tuning.
	// It measures bytes per round trip against buffers of 1 MiB and more, and a call takes a lock.
	tuneThreshold = 64 << 10

	// largeWrite gives the size from which a write may be more than a packet. What is goes to
	// netstack in pieces of WriteSize, of which each is a packet of whole segments.
	largeWrite = 32 << 10

	// copySize gives the unit of WriteTo, and the most that ReadFrom sends at a time.
	copySize = 64 << 10
)

// Read implements net.Conn. io.EOF means that the peer has sent its FIN.
func (c *TCPConn) Read(b []byte) (int, error) {
	first := c.received.Load() == 0
	if first && c.ep.Readiness(waiter.ReadableEvents) != 0 {
		growStack(c)
	}
	n, err := c.read(b)
	if first && n > 0 {
		growStack(c)
	}
	if err != nil && err != io.EOF {
		err = c.opError("read", err)
	}
	return n, err
}

func (c *TCPConn) read(b []byte) (int, error) {
	c.rd.mu.Lock()
	defer c.rd.mu.Unlock()
	if len(b) == 0 {
		return 0, c.done()
	}
	for {
		n, err := c.readOnce(b)
		if err != syscall.EAGAIN {
			return n, err
		}
		c.rd.park()
	}
}

// TryRead reads what there is, without waiting, as read(2) of a descriptor that does not block.
// Its errors are bare: syscall.EAGAIN if nothing has arrived, or while another goroutine reads,
// io.EOF, net.ErrClosed, or the connection's *os.SyscallError. Deadlines count.
func (c *TCPConn) TryRead(b []byte) (int, error) {
	if !c.rd.mu.TryLock() {
		return 0, syscall.EAGAIN
	}
	defer c.rd.mu.Unlock()
	return c.readOnce(b)
}

// readOnce does the work of TryRead, with the mutex of reads held.
func (c *TCPConn) readOnce(b []byte) (int, error) {
	if err := c.check(&c.rd); err != nil {
		return 0, err
	}
	n, terr := c.readEndpoint(b)
	switch terr.(type) {
	case nil:
		c.received.Add(uint64(n))
		c.tune(n)
		return n, nil
	case *tcpip.ErrWouldBlock:
		return 0, syscall.EAGAIN
	case *tcpip.ErrClosedForReceive:
		return 0, c.orClosedErr(io.EOF)
	}
	return 0, c.orClosedErr(syscallError("read", terr))
}

// Buffered returns the number of bytes that can be read without waiting, also while the deadline of
// reads is over: what FIONREAD says of a socket of Linux (tcp(7), SIOCINQ).
func (c *TCPConn) Buffered() int {
	n, terr := c.ep.GetSockOptInt(tcpip.ReceiveQueueSizeOption)
	if terr != nil || c.done() != nil {
		return 0
	}
	return n
}

// transfer holds what netstack reads into and writes from. A connection has one only while it does.
type transfer struct {
	dst tcpip.SliceWriter
	src writeSource
}

var transfers = sync.Pool{New: func() any { return new(transfer) }}

// readEndpoint takes from netstack what there is. It is a function of its own because its frame is
// of 1 KiB, which a goroutine that waits need not keep.
func (c *TCPConn) readEndpoint(b []byte) (int, tcpip.Error) {
	t := transfers.Get().(*transfer)
	t.dst = b
	res, terr := c.ep.Read(&t.dst, tcpip.ReadOptions{})
	t.dst = nil
	transfers.Put(t)
	return res.Count, terr
}

// tune lets the receive buffer grow with the rate. rd.mu is held.
func (c *TCPConn) tune(n int) {
	c.untuned += n
	if c.untuned >= tuneThreshold && c.stack.memory.mayGrow() {
		c.ep.ModerateRecvBuf(c.untuned)
		c.untuned = 0
	}
}

// Write implements net.Conn. It returns when netstack has a copy of all of b, which it sends when
// the windows allow.
func (c *TCPConn) Write(b []byte) (int, error) {
	if c.written.Load() == 0 {
		growStack(c)
	}
	n, err := c.write(b)
	if err != nil {
		err = c.opError("write", err)
	}
	return n, err
}

func (c *TCPConn) write(b []byte) (n int, err error) {
	t := transfers.Get().(*transfer)
	t.src = writeSource{first: b, left: len(b)}
	m, err := c.writeAll("write", &t.src)
	t.src = writeSource{}
	transfers.Put(t)
	return int(m), err
}

// writeAll writes what is left of src, and takes it out.
func (c *TCPConn) writeAll(call string, src *writeSource) (n int64, err error) {
	c.wr.mu.Lock()
	defer c.wr.mu.Unlock()
	most, whole := src.left, src.left
	if src.left > largeWrite {
		most, whole = c.packetSizes()
	}
	var paced *connPacing
	defer func() { paced.rest() }()
	for {
		if err := c.check(&c.wr); err != nil {
			return n, err
		}
		piece := src.left
		if piece > most {
			piece = whole
		}
		paced = c.pacing.Load()
		if paced != nil && piece > 0 {
			if piece = min(piece, c.admitPaced(paced)); piece == 0 {
				c.wr.park()
				continue
			}
		}
		admitted := c.stack.memory.admitWrite(c, piece)
		if admitted.bytes == 0 && src.left > 0 {
			paced.rest()
			c.wr.park()
			continue
		}
		unsent := *src
		src.limit = admitted.bytes
		m, terr := c.ep.Write(src, tcpip.WriteOptions{})
		*src = unsent // netstack may have read more than it has taken
		src.skip(int(m))
		n += m
		c.stack.memory.finishWrite(admitted, int(m))
		c.written.Add(uint64(m))
		if paced != nil {
			paced.stream.Wrote(int(m))
		}
		switch {
		case terr != nil && !wouldBlock(terr):
			return n, c.orClosedErr(syscallError(call, terr))
		case src.left == 0:
			return n, nil
		case terr != nil:
			c.stack.conns.starts.noteFull(c)
			paced.rest()
			c.wr.park()
		}
	}
}

// WriteBuffers writes all of v as one stream, as writev does, and returns the number of bytes. It
// takes what is written out of v. [net.Buffers.WriteTo] cannot do so for a connection that is not
// package net's: it writes each slice by itself, which makes it a packet.
func (c *TCPConn) WriteBuffers(v *net.Buffers) (int64, error) {
	t := transfers.Get().(*transfer)
	t.src = sourceOf(*v)
	n, err := c.writeAll("writev", &t.src)
	*v = t.src.remainder(*v)
	t.src = writeSource{}
	transfers.Put(t)
	if err != nil {
		err = c.opError("writev", err)
	}
	return n, err
}

// writeSource holds what a write has not given to netstack yet: one slice, or several.
type writeSource struct {
	first []byte   // what is left of the first slice
	rest  [][]byte // the slices after it
	left  int      // bytes of all
	limit int      // bytes that netstack may take now
}

func sourceOf(v net.Buffers) (src writeSource) {
	src.rest = v
	for _, b := range v {
		src.left += len(b)
	}
	src.skip(0)
	return src
}

// Len implements tcpip.Payloader.
func (s *writeSource) Len() int { return s.limit }

// Read implements io.Reader.
func (s *writeSource) Read(b []byte) (n int, err error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	for n < len(b) && s.left > 0 {
		m := copy(b[n:], s.first)
		n += m
		s.skip(m)
	}
	return n, nil
}

// skip takes out n bytes, at most what is left, and empty slices behind them.
func (s *writeSource) skip(n int) {
	s.left -= n
	for n >= len(s.first) {
		if len(s.rest) == 0 {
			s.first = nil
			return
		}
		n -= len(s.first)
		s.first, s.rest = s.rest[0], s.rest[1:]
	}
	s.first = s.first[n:]
}

// remainder returns what is left of the slices that sourceOf was given, in their place.
func (s *writeSource) remainder(v net.Buffers) net.Buffers {
	gone := len(v) - len(s.rest)
	if s.left > 0 {
		gone--
		v[gone] = s.first
	}
	clear(v[:gone])
	return v[gone:]
}

// WriteSize returns how many bytes of this connection netstack makes one packet of: the whole
// segments that a packet holds. Writes of that size, or of a multiple, leave no small packet at
// their end, and no small frame at the end of each packet. It changes with the path's MTU only.
func (c *TCPConn) WriteSize() int {
	_, whole := c.packetSizes()
	return whole
}

// packetSizes returns how many bytes netstack puts into a packet: at most, and in whole segments.
func (c *TCPConn) packetSizes() (most, whole int) {
	var link gstack.LinkEndpoint = c.stack.link
	if f := c.stack.foreign; f != nil {
		link = f.LinkEndpoint
	}
	most = copySize
	const headers = header.TCPTotalHeaderMaximumSize + 1 // gVisor transport/tcp/snd.go, sendData
	if g, ok := link.(gstack.GSOEndpoint); ok && g.SupportedGSO() != gstack.GSONotSupported &&
		g.GSOMaxSize() > headers { // sharedmem has 0
		most = min(most, int(g.GSOMaxSize())-headers)
	}
	whole = most
	if mss := c.stack.fields.segmentSize(c.ep); mss > 0 && mss < most {
		whole -= most % mss
	}
	return most, whole
}

// copyBuffers are copySize long.
var copyBuffers = sync.Pool{New: func() any { return new([copySize]byte) }}

// ReadFrom implements io.ReaderFrom: it sends r until io.EOF, in pieces of WriteSize where r has as
// much, and without allocating. A *net.Buffers is sent as by WriteBuffers.
func (c *TCPConn) ReadFrom(r io.Reader) (n int64, err error) {
	if v, ok := r.(*net.Buffers); ok {
		n, err = c.WriteBuffers(v)
	} else {
		n, err = copyPieces(onlyWriter{c}, onlyReader{r}, c.WriteSize())
	}
	return n, c.copyError("readfrom", err)
}

// WriteTo implements io.WriterTo: it passes what is received to w until io.EOF.
func (c *TCPConn) WriteTo(w io.Writer) (int64, error) {
	size := copySize
	if to, ok := w.(*TCPConn); ok {
		size = to.WriteSize()
	}
	n, err := copyPieces(onlyWriter{w}, onlyReader{c}, size)
	return n, c.copyError("writeto", err)
}

// copyPieces copies in pieces of at most that size, which is copySize at most.
func copyPieces(w io.Writer, r io.Reader, size int) (int64, error) {
	buf := copyBuffers.Get().(*[copySize]byte)
	defer copyBuffers.Put(buf)
	return io.CopyBuffer(w, r, buf[:size])
}

// copyError wraps as package net does: the outer operation around the inner one's OpError.
func (c *TCPConn) copyError(op string, err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return c.opError(op, err)
}

// onlyReader and onlyWriter hide WriteTo and ReadFrom, which would call back here for ever.
type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)

// SetNoDelay, if false, lets small writes wait for the acknowledgement of earlier ones (Nagle's
// algorithm, RFC 896). The default is true, as in package net.
func (c *TCPConn) SetNoDelay(noDelay bool) error {
	return c.set(func() { c.ep.SocketOptions().SetDelayOption(!noDelay) })
}

// SetLinger says what Close does with data not yet acknowledged: negative, the default, sends it in
// the background; 0 throws it away and resets the connection; more than 0 makes Close wait for the
// acknowledgement for that many seconds.
func (c *TCPConn) SetLinger(sec int) error {
	return c.set(func() {
		c.ep.SocketOptions().SetLinger(tcpip.LingerOption{
			Enabled: sec >= 0,
			Timeout: time.Duration(max(sec, 0)) * time.Second,
		})
	})
}

// SetKeepAlive turns keep-alive probes on or off.
func (c *TCPConn) SetKeepAlive(keepAlive bool) error {
	return c.set(func() { c.ep.SocketOptions().SetKeepAlive(keepAlive) })
}

// SetKeepAlivePeriod sets how long the connection is idle before the first probe; 0 means 15 s and
// a negative d changes nothing.
func (c *TCPConn) SetKeepAlivePeriod(d time.Duration) error {
	return c.set(func() { c.keepAliveIdle(d) })
}

// SetKeepAliveConfig sets all of keep-alive. Zero fields mean 15 s, 15 s and 9; negative fields
// change nothing.
func (c *TCPConn) SetKeepAliveConfig(config net.KeepAliveConfig) error {
	return c.set(func() { c.keepAlive(config) })
}

// keepAlive sets the times first, so that turning it on starts the timer with them.
func (c *TCPConn) keepAlive(config net.KeepAliveConfig) {
	c.keepAliveIdle(config.Idle)
	if d := cmp.Or(config.Interval, keepAliveInterval); d > 0 {
		interval := tcpip.KeepaliveIntervalOption(d)
		c.ep.SetSockOpt(&interval)
	}
	if n := cmp.Or(config.Count, keepAliveCount); n > 0 {
		c.ep.SetSockOptInt(tcpip.KeepaliveCountOption, n)
	}
	c.ep.SocketOptions().SetKeepAlive(config.Enable)
}

func (c *TCPConn) keepAliveIdle(d time.Duration) {
	if d = cmp.Or(d, keepAliveIdle); d > 0 {
		idle := tcpip.KeepaliveIdleOption(d)
		c.ep.SetSockOpt(&idle)
	}
}

// SetUserTimeout sets for how long data that was sent may stay unacknowledged before the conn
// ends with ETIMEDOUT: TCP_USER_TIMEOUT of tcp(7), RFC 5482. 0 is the default, the time that
// retransmissions take; a negative d is EINVAL.
func (c *TCPConn) SetUserTimeout(d time.Duration) error {
	if d < 0 {
		return c.opError("set", os.NewSyscallError("setsockopt", syscall.EINVAL))
	}
	return c.set(func() {
		timeout := tcpip.TCPUserTimeoutOption(d)
		c.ep.SetSockOpt(&timeout)
	})
}

// SetPacing limits what the connection sends to a rate in bytes per second, Ethernet, IP and TCP
// headers included: SO_MAX_PACING_RATE of Linux. 0 and the largest uint64 are no limit. A Write
// waits until the rate has let out all of it, so that nothing waits below TCP, whose timers and
// round-trip times stay those of the network: deadlines count as ever. Within 10 ms the rate is
// kept to 2 % and a segment; up to 10 ms by which a timer comes late on a busy machine are made up
// for. Of what the windows hold up, 10 ms of the rate go at once when they open; the rest of that
// time is lost. The rate does not count what TCP sends again, acknowledgements and what was written
// before. It needs no queue of the NIC: it works with any device and backend.
func (c *TCPConn) SetPacing(bytesPerSecond uint64) error {
	return c.set(func() {
		c.setPacing(bytesPerSecond)
		if c.closed.Load() {
			c.setPacing(0)
		}
	})
}

// isLimit reports whether a rate of that many bytes per second is a limit.
func isLimit(bytesPerSecond uint64) bool {
	return bytesPerSecond != 0 && bytesPerSecond != math.MaxUint64
}

// connPacing holds a connection's rate.
type connPacing struct {
	rate     uint64    // bytes per second
	byWindow bool      // slowStarts has set it, and it gives way to one of the program
	begun    time.Time // when it was set
	timer    clock.Timer
	unsent   func() int // bytes that were written and have not left

	stream pacing.Stream // guarded by wr.mu
}

// rest says that nothing waits for the rate any more. A nil rate has nothing to do. wr.mu is held.
func (p *connPacing) rest() {
	if p != nil {
		p.stream.Rest()
	}
}

// setPacing puts a rate in the place of the one before.
func (c *TCPConn) setPacing(bytesPerSecond uint64) {
	var p *connPacing
	if isLimit(bytesPerSecond) {
		p = c.newPacing(bytesPerSecond, pacing.Fine)
	}
	c.endPacing(c.pacing.Swap(p), p)
}

// setWindowPacing sets a rate of the stack's own, 0 for none, unless the program has set one or the
// one there is differs by less than a sixteenth.
func (c *TCPConn) setWindowPacing(bytesPerSecond uint64) {
	before := c.pacing.Load()
	var p *connPacing
	switch {
	case before == nil && bytesPerSecond == 0 || before != nil && !before.byWindow:
		return
	case before != nil && max(before.rate, bytesPerSecond)-min(before.rate, bytesPerSecond) <
		before.rate/16:
		return
	case bytesPerSecond > 0:
		p = c.newPacing(bytesPerSecond, pacing.Coarse)
		p.byWindow = true
	}
	if !c.pacing.CompareAndSwap(before, p) {
		return
	}
	c.endPacing(before, p)
	if p != nil && c.closed.Load() && c.pacing.CompareAndSwap(p, nil) {
		c.endPacing(p, nil)
	}
}

func (c *TCPConn) newPacing(bytesPerSecond uint64, quantum time.Duration) *connPacing {
	segment, headers := c.segmentSizes()
	return &connPacing{rate: bytesPerSecond, begun: c.stack.clock.Now(),
		timer:  c.stack.clock.NewStopped(c.wr.notify),
		unsent: func() int { return c.stack.fields.unsent(c.ep) },
		stream: pacing.NewStream(bytesPerSecond, segment, headers, quantum)}
}

// segmentSizes returns the bytes of payload and of Ethernet, IP and TCP headers of full segments.
func (c *TCPConn) segmentSizes() (payload, headers int) {
	const unknown, timestamps = 1448, 12
	headers = header.EthernetMinimumSize + header.IPv4MinimumSize + header.TCPMinimumSize +
		timestamps
	if c.laddr.IP.To4() == nil {
		headers += header.IPv6MinimumSize - header.IPv4MinimumSize
	}
	return cmp.Or(c.stack.fields.segmentSize(c.ep), unknown), headers
}

// endPacing ends a rate that another has taken the place of; nil: none.
func (c *TCPConn) endPacing(before, now *connPacing) {
	c.stack.conns.paced.change(before, now)
	if before != nil {
		before.timer.Stop()
	}
	c.wr.notify()
}

// admitPaced returns how many bytes the rate allows now. After 0 the writer is to park: it is woken
// when to ask again. wr.mu is held.
func (c *TCPConn) admitPaced(p *connPacing) int {
	if n := p.stream.Allowed(); n > 0 {
		return n
	}
	n, wait := p.stream.Admit(c.stack.clock.Since(p.begun), p.unsent)
	if wait > 0 {
		if p.byWindow {
			c.stack.conns.starts.noteFull(c)
		}
		c.stack.conns.paced.noteWait(p.stream.Stalled())
		p.timer.Reset(wait)
		if c.pacing.Load() != p { // setPacing may have stopped it before, and told the writer
			p.timer.Stop()
		}
	}
	return n
}

// pacedConns counts connections with a rate.
type pacedConns struct {
	byProgram, byWindow atomic.Int64  // now
	waits, stalls       atomic.Uint64 // for the rate, and for windows that allow less
}

func (p *pacedConns) change(from, to *connPacing) {
	p.add(from, -1)
	p.add(to, 1)
}

func (p *pacedConns) add(c *connPacing, n int64) {
	switch {
	case c == nil:
	case c.byWindow:
		p.byWindow.Add(n)
	default:
		p.byProgram.Add(n)
	}
}

func (p *pacedConns) noteWait(stalled bool) {
	if stalled {
		p.stalls.Add(1)
	} else {
		p.waits.Add(1)
	}
}

// SetTTL sets the time to live, or hop limit, of what is sent from now on: 1 to 255, or -1 for the
// default of 64. Others are EINVAL.
func (c *TCPConn) SetTTL(ttl int) error {
	if ttl < -1 || ttl == 0 || ttl > 255 {
		return c.opError("set", os.NewSyscallError("setsockopt", syscall.EINVAL))
	}
	return c.set(func() {
		// The "default" of one is 0, of the other -1.
		c.ep.SetSockOptInt(tcpip.IPv4TTLOption, max(ttl, tcpip.UseDefaultIPv4TTL))
		c.ep.SetSockOptInt(tcpip.IPv6HopLimitOption, ttl)
	})
}

// SetReadBuffer fixes the receive buffer at the given number of bytes, within the limits of
// [TCPOptions], and stops it from being tuned.
func (c *TCPConn) SetReadBuffer(bytes int) error {
	c.fixedRead.Store(true)
	return c.setBuffer(bytes, setReadBuffer)
}

// SetWriteBuffer fixes the send buffer, see SetReadBuffer.
func (c *TCPConn) SetWriteBuffer(bytes int) error {
	return c.setBuffer(bytes, setWriteBuffer)
}

func (c *TCPConn) setBuffer(bytes int, set func(*tcpip.SocketOptions, int)) error {
	if err := c.done(); err != nil {
		return &net.OpError{Op: "set", Net: c.network, Addr: c.laddr, Err: err}
	}
	set(c.ep.SocketOptions(), bytes)
	return nil
}

// TCPSettings holds the options of a connection as they are, set or by default.
type TCPSettings struct {
	ReadBuffer, WriteBuffer int // bytes
	NoDelay                 bool
	KeepAlive               net.KeepAliveConfig
	UserTimeout             time.Duration // 0: the time that retransmissions take
	Pacing                  uint64        // bytes per second; 0: no limit
	TrafficClass            int
	TTL                     int // 0: the default
}

// Settings returns the options of the connection.
func (c *TCPConn) Settings() TCPSettings {
	o := c.ep.SocketOptions()
	var idle tcpip.KeepaliveIdleOption
	var interval tcpip.KeepaliveIntervalOption
	var timeout tcpip.TCPUserTimeoutOption
	c.ep.GetSockOpt(&idle) // every TCP endpoint has these
	c.ep.GetSockOpt(&interval)
	c.ep.GetSockOpt(&timeout)
	count, _ := c.ep.GetSockOptInt(tcpip.KeepaliveCountOption)
	class, _ := c.ep.GetSockOptInt(tcpip.IPv4TOSOption)
	ttl, _ := c.ep.GetSockOptInt(tcpip.IPv4TTLOption)
	var rate uint64
	if p := c.pacing.Load(); p != nil && !p.byWindow {
		rate = p.rate
	}
	return TCPSettings{Pacing: rate, ReadBuffer: int(o.GetReceiveBufferSize()),
		WriteBuffer: int(o.GetSendBufferSize()), NoDelay: !o.GetDelayOption(),
		KeepAlive: net.KeepAliveConfig{Enable: o.GetKeepAlive(), Idle: time.Duration(idle),
			Interval: time.Duration(interval), Count: count},
		UserTimeout: time.Duration(timeout), TrafficClass: class, TTL: ttl}
}

// MultipathTCP is always false: netstack has no RFC 8684.
func (c *TCPConn) MultipathTCP() (bool, error) {
	if err := c.done(); err != nil {
		return false, err
	}
	return false, nil
}

// set runs change unless the conn is closed.
func (c *TCPConn) set(change func()) error {
	if err := c.done(); err != nil {
		return c.opError("set", err)
	}
	change()
	return nil
}

// check returns what connState's does, and ENETDOWN once an outage has ended the connection.
func (c *TCPConn) check(d *ioSide) error {
	if err := c.connState.check(d); err != nil {
		return err
	}
	return c.stack.outage.since(c.outages)
}

// orClosedErr returns what connState's does, ENETDOWN once an outage has ended the connection, and
// ETIMEDOUT where the link has.
func (c *TCPConn) orClosedErr(err error) error {
	if call := (*os.SyscallError)(nil); c.recovery != nil && errors.As(err, &call) &&
		c.recovery.silent.Swap(false) {
		err = os.NewSyscallError(call.Syscall, syscall.ETIMEDOUT)
	}
	if down := c.stack.outage.since(c.outages); down != nil {
		err = down
	}
	return c.connState.orClosedErr(err)
}

// SetTrafficClass marks what is sent from now on with this traffic class (IPv6) or type of service
// (IPv4), 0 to 255: the DSCP times four. It takes the place of [Config.DSCP]. The two ECN bits
// below it are TCP's own.
func (c *TCPConn) SetTrafficClass(class int) error {
	if class < 0 || class > 255 {
		return c.opError("set", badClass(class))
	}
	return c.set(func() { mark(c.ep, class) })
}

// setReadBuffer sets a socket's receive buffer.
func setReadBuffer(o *tcpip.SocketOptions, bytes int) {
	lo, hi := o.ReceiveBufferLimits()
	o.SetReceiveBufferSize(clamp(bytes, lo, hi), true)
}

// setWriteBuffer sets a socket's send buffer.
func setWriteBuffer(o *tcpip.SocketOptions, bytes int) {
	lo, hi := o.SendBufferLimits()
	o.SetSendBufferSize(clamp(bytes, lo, hi), true)
}

// clamp brings a buffer size into its limits as Linux does, to whom a negative one is very large.
func clamp(bytes int, lo, hi int64) int64 {
	if bytes < 0 {
		return hi
	}
	return min(max(int64(bytes), lo), hi)
}
