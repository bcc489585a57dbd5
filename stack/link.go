package stack

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"net"
	"sync"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/failover"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/link/uplink"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/hostmode"
)

// healthInterval says how often resets of queues are looked for, if anybody is to be told, and
// fragments that were dropped in host mode.
const healthInterval = time.Second

// macRetry says how long after a change of the netdev's MAC that could not be followed it is tried
// again.
const macRetry = time.Second

// watch follows the device: it acts on changes of the link, and ends the stack when the device
// fails for good.
func (s *Stack) watch() {
	defer close(s.life.watched)
	samples := s.clock.NewTimer(healthInterval)
	if s.cfg.HealthChanged == nil && s.host == nil {
		samples.Stop()
	}
	defer samples.Stop()
	for {
		select {
		case <-samples.C:
			s.health.sample(s.Devices())
			s.host.tellFragments()
			samples.Reset(healthInterval)
		case <-s.life.ctx.Done():
			return
		case <-s.host.netdevGone():
			endWithDevice(s, s.uplink.FirstInterface().Err())
			return
		case <-s.uplink.MTUChanged():
			s.mtu.follow()
		case <-s.uplink.LinkChanged():
			s.linkChanged(s.uplink.LinkUp())
		case <-s.uplink.Done():
			endWithDevice(s, s.uplink.Err())
			return
		}
	}
}

// endWithDevice ends a stack whose device has ended, which somebody else may have stopped.
func endWithDevice(s *Stack, err error) {
	if errors.Is(err, dv.ErrClosed) || errors.Is(err, packet.ErrClosed) {
		err = nil
	}
	s.end(err)
}

// uplinkConfig returns what the stack wants of its uplink.
func (s *Stack) uplinkConfig() uplink.Config {
	o := s.cfg.linkOptions()
	o.SpreadRefused = func(err error) {
		s.health.notice(reportRx, err)
		if err == nil {
			s.log.Info("the device spreads flows again", "interface", s.name)
			return
		}
		s.log.Warn("flows stay on the receive queues that they are on: the device refuses another "+
			"table, and is asked again after 1 s to 1 min", "interface", s.name, "error", err)
	}
	reportXDP := func(err error) {
		s.health.notice(reportRx, err)
		if err == nil {
			s.log.Info("every receive queue has an AF_XDP socket", "interface", s.name)
			return
		}
		s.log.Warn("frames come by packet sockets, not AF_XDP", "interface", s.name, "error", err)
	}
	u, nic := s.cfg.Uplink, s.health.dumped(s.cfg.driverConfig(), s.addrs.AnnounceLater)
	return uplink.Config{NIC: nic, Backend: u.Backend, XDP: u.XDP,
		Successor: s.cfg.Predecessor != nil, XDPReport: reportXDP,
		Fallback: u.Fallback, MaxOutage: u.MaxOutage, GracePeriod: u.GracePeriod,
		OpenInterface: u.OpenInterface, Options: o, Ended: s.life.ctx,
		HardwareAddr: s.HardwareAddr, UseDevice: s.handover.UseDevice, Changed: s.backendChanged,
		Logger: s.log, Clock: s.clock, Bond: s.cfg.bond}
}

// ZeroCopySend has devices that stacks of this process open from now on send what programs write
// to TCP in pieces of more than 32 KiB from where netstack keeps it until it is acknowledged,
// instead of copying it once more. Netstack's large buffers lie in 16 MiB of the process's own
// then, for good, which each such device may read and not write; what finds no room there is
// copied, as before. Call it before there are stacks: it stores to a variable of netstack's that
// they read.
//
// An error says what of this version of gVisor's is not as expected: everything is copied then. A
// device that may lock less memory has less of it, or none: [dv.Device.SendMemory], the health of
// tx and a line of the log say so.
func ZeroCopySend() error { return rdma.UseSendMemory() }

// SendMemoryStats holds what the memory that ZeroCopySend uses counts; package link/rdma says what.
type SendMemoryStats = rdma.SendMemoryStats

// SendMemory returns the counters of the memory that ZeroCopySend uses; the zero value without it.
func SendMemory() SendMemoryStats { return rdma.SendMemoryUsed() }

// linkChanged makes the stack known on a link that is there again, which may be another one than
// before.
func (s *Stack) linkChanged(up bool) {
	if !up {
		s.health.report(reportLink, errLinkDown)
		s.log.Warn("the link is down", "interface", s.name)
		return
	}
	s.log.Warn("the link is up", "interface", s.name)
	s.neighbours.Forget()
	s.linkIsUp()
}

// linkIsUp makes the stack known on a link that carries frames again, and has what was lost
// repeated.
func (s *Stack) linkIsUp() {
	s.health.report(reportLink, nil)
	s.conns.restartSlowStart()
	s.neighbours.AskAgain()
	if s.link != nil {
		s.link.Repeat()
	}
	s.addrs.LinkUp()
}

// Announce tells every neighbour that our addresses are at our hardware address: by gratuitous ARP
// (RFC 5227 section 2.3) and unsolicited neighbour advertisements (RFC 4861 section 7.2.6). It is
// done at start, when the device's link has come up again, and when a send queue was replaced; call
// it when an address has moved here from another host.
func (s *Stack) Announce() { s.addrs.AnnounceAll() }

// backendChanged acts on what has become of the device.
func (s *Stack) backendChanged(c failover.Change) {
	if c.Rerouted {
		s.addrs.AnnounceNow()
		if s.link != nil {
			s.link.Repeat()
		}
		return
	}
	switch c.State {
	case failover.Lost:
		if s.host != nil {
			s.host.HideIfGone()
		}
		s.health.report(reportDevice, c.Cause)
		return
	case failover.Up:
		s.health.report(reportDevice, nil)
	}
	switch {
	case c.Expired:
		s.outage.begin()
		s.health.report(reportStack, syscall.ENETDOWN)
		s.conns.abortAll()
	case c.Backend != rdma.BackendNone:
		s.outage.end()
		s.health.report(reportStack, nil)
	}
	s.mtu.follow()
	if s.host != nil {
		s.host.FollowAgain() // the kernel's sockets get the datagrams that rings do not take
	}
	if c.LinkUp {
		s.linkIsUp()
	} else {
		s.health.report(reportLink, errLinkDown)
	}
}

// abortAll ends all TCP connections, listeners stay. Their resets are lost.
func (o *openConns) abortAll() {
	for ep, state := range o.endpoints() {
		if state != tcp.StateListen {
			ep.Abort()
		}
	}
}

// restartSlowStart makes connections whose retransmission timer has expired begin as on a new path:
// with the initial window and threshold, which is what netstack does when the congestion control of
// a connection is set. Else it would keep the threshold of two segments that it has after two
// timeouts of one segment (RFC 5681 section 3.1 has it hold the first), and take a round trip for
// each further segment.
func (o *openConns) restartSlowStart() {
	for ep, state := range o.endpoints() {
		var info tcpip.TCPInfoOption
		if state == tcp.StateEstablished && ep.GetSockOpt(&info) == nil &&
			info.CcState == tcpip.RTORecovery {
			setControlAnew(ep)
		}
	}
}

// setControlAnew sets the congestion control that a connection has: netstack begins anew with it.
func setControlAnew(ep *tcp.Endpoint) {
	var control tcpip.CongestionControlOption
	if ep.GetSockOpt(&control) == nil {
		_ = ep.SetSockOpt(&control) // one that it has cannot be unknown
	}
}

const (
	// slowStartSweep says how often connections that write more than their window are looked at.
	slowStartSweep = 300 * time.Millisecond
	// maxSlowStarts says how often one begins slow start again, and maxSlowStarters how many are
	// looked at.
	maxSlowStarts   = 8
	maxVainStarts   = 1
	maxSlowStarters = 1024
	// sampledRound is the shortest round trip that HyStart is right about: netstack knows round
	// trips in milliseconds.
	sampledRound = 2 * time.Millisecond
	// pacedRound gives the shortest round trip of connections that are kept to the rate of their
	// window: within a rack no queue is shorter than a window.
	pacedRound = 5 * time.Millisecond
)

// slowStarts mends the windows of connections that have more to write than these: slow start goes
// on that was left for no loss, a threshold is held in timeouts, CUBIC grows by fractions, and
// after a loss writes are spread over the round trip.
//
// netstack's HyStart ends slow start for good when an acknowledgement is late, as after a pause of
// some ms of either host or of a radio link; RFC 9406 section 4.2 goes on more slowly, and back to
// slow start when the round trip is short again.
//
// Slow start goes on from the window that it has ended with, until HyStart ends it again.
//
// Upstream: docs/upstream/18-hystart-pause.md. No longer needed when the rows "pauses" of
// tests/conformance/roads pass without it. The threshold is that of 20-threshold.md, the fractions
// are those of 33-cubic-fraction.md, the rest is that of 34-cubic-idle.md.
type slowStarts struct {
	clock  clock.Clock
	net    *gstack.Stack
	fields *tcpFields // of netstack

	mu     sync.Mutex // guards what follows; held during a sweep
	all    map[*tcp.Endpoint]*slowStart
	timer  clock.Timer // set while there is something in all; nil: not needed yet
	closed bool
}

// slowStart follows the slow start of one connection.
type slowStart struct {
	conn     *TCPConn
	least    time.Duration // the shortest round trip
	times    int
	vain     int    // of these, after which the window was not larger by a quarter
	ended    uint32 // the window at which slow start ended last; 0: not yet
	over     bool   // it does not begin again
	window   uint32 // at the last look outside of a timeout, in segments
	quiet    bool   // it has not had more to write than its window since the sweep before
	timedOut bool
	answers  uint64 // segments received, at the sweep before
	// At the sweep before: segments sent again as a recovery began, and timeouts. spread: one began
	// since the last timeout.
	recoveries, timeouts uint64
	spread               bool
	ranges               sackRanges // see tcpFields.keepRanges
}

// noteFull notes that a connection has more to write than it may send.
func (o *slowStarts) noteFull(conn *TCPConn) {
	c, ok := conn.ep.(*tcp.Endpoint)
	if !ok {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if x := o.all[c]; x != nil {
		x.quiet = false
		return
	}
	if o.closed || len(o.all) == maxSlowStarters {
		return
	}
	if o.all == nil {
		o.all = make(map[*tcp.Endpoint]*slowStart)
	}
	switch {
	case o.timer == nil:
		o.timer = o.clock.AfterFunc(slowStartSweep, o.lookAtAll)
	case len(o.all) == 0:
		o.timer.Reset(slowStartSweep)
	}
	o.all[c] = &slowStart{conn: conn, ranges: o.fields.keepRanges(c, nil)}
	o.fields.beginEpoch(c, o.net.Clock().NowMonotonic())
	conn.recovery.countSent()
}

// lookAtAll looks at all connections, and forgets those that write no more.
func (o *slowStarts) lookAtAll() {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.net.Clock().NowMonotonic()
	for c, x := range o.all {
		x.ranges = o.fields.keepRanges(c, x.ranges)
		if x.lookAt(c, o.fields, now); x.quiet && !x.goesOn(c, o.fields) {
			delete(o.all, c)
			x.conn.setWindowPacing(0)
			o.fields.keepFewRanges(c, x.ranges)
		}
		x.quiet = true
	}
	if len(o.all) > 0 && !o.closed {
		o.timer.Reset(slowStartSweep)
	}
}

// goesOn reports whether a connection has more to write although its writer has not been told since
// the sweep before that it may go on: it is in a timeout, or the peer answers what fills a buffer.
func (x *slowStart) goesOn(c *tcp.Endpoint, fields *tcpFields) bool {
	before := x.answers
	x.answers = c.Stats().(*tcp.Stats).SegmentsReceived.Value()
	return x.timedOut || x.answers != before && fields.unsentBy(c) > 0
}

// lookAt begins slow start again where that is due, holds the threshold in timeouts, and lets the
// window grow.
func (x *slowStart) lookAt(c *tcp.Endpoint, fields *tcpFields, now tcpip.MonotonicTime) {
	var info tcpip.TCPInfoOption
	x.timedOut = false
	if c.GetSockOpt(&info) != nil || tcp.EndpointState(c.State()) != tcp.StateEstablished {
		return
	}
	x.timedOut = info.CcState == tcpip.RTORecovery
	if x.least == 0 || info.RTT < x.least {
		x.least = info.RTT
	}
	if x.noteLosses(&c.Stats().(*tcp.Stats).SendErrors) {
		if least := x.heldThreshold(&info); least > 0 {
			fields.setThreshold(c, int(least))
		} else if info.CcState == tcpip.Open {
			fields.growCubic(c, now)
			_ = c.GetSockOpt(&info) // which it has answered before
		}
		x.paceByWindow(&info)
		return
	}
	x.window = info.SndCwnd
	if x.over || !x.endedForNothing(&info) {
		return
	}
	x.times++
	if info.SndCwnd < x.ended+x.ended/4 {
		x.vain++
	}
	x.ended = info.SndCwnd
	if !fields.setThreshold(c, tcp.InitialSsthresh) {
		setControlAnew(c)
	}
	x.over = x.times == maxSlowStarts || x.vain == maxVainStarts
}

// noteLosses notes what was sent again since the sweep before, and reports whether anything was
// since the connection began.
func (x *slowStart) noteLosses(e *tcp.SendErrors) bool {
	recoveries, timeouts := e.FastRetransmit.Value(), e.Timeouts.Value()
	switch {
	case timeouts != x.timeouts:
		x.spread = false
	case recoveries != x.recoveries:
		x.spread = true
	}
	x.recoveries, x.timeouts = recoveries, timeouts
	return e.Retransmits.Value() > 0
}

// paceByWindow keeps what the program writes to a fifth more than a window in each round trip, once
// segments were lost and slow start is over, as Linux does with a paced socket
// (tcp_update_pacing_rate of net/ipv4/tcp_input.c). What acknowledgements make room for leaves in
// bursts else, which short queues drop. A timeout is a path that was gone, not a queue.
func (x *slowStart) paceByWindow(info *tcpip.TCPInfoOption) {
	switch {
	case !x.spread || x.least < pacedRound ||
		info.CcState == tcpip.Open && info.SndCwnd < info.SndSsthresh:
		x.conn.setWindowPacing(0)
	case info.CcState != tcpip.RTORecovery:
		payload, headers := x.conn.segmentSizes()
		window := float64(info.SndCwnd) * float64(payload+headers)
		x.conn.setWindowPacing(uint64(1.2 * window / x.least.Seconds()))
	}
}

// heldThreshold returns the threshold that a connection is to have whose timeouts have lowered it
// again and again: half of the window before the first (RFC 5681 section 3.1). 0: they have not.
func (x *slowStart) heldThreshold(info *tcpip.TCPInfoOption) uint32 {
	half, low := x.window/2, x.window/4
	switch {
	case info.CcState == tcpip.FastRecovery || info.CcState == tcpip.SACKRecovery:
		x.window = max(x.window, info.SndCwnd) // slow start may have gone on since the sweep before
	case info.SndSsthresh < low && info.SndCwnd < low:
		if info.CcState == tcpip.Open {
			x.window = half
		}
		return half
	case info.CcState == tcpip.Open:
		x.window = info.SndCwnd
	}
	return 0
}

// endedForNothing reports whether slow start has ended, and the round trip is short, so that no
// queue has built up.
func (x *slowStart) endedForNothing(info *tcpip.TCPInfoOption) bool {
	return info.CcState == tcpip.Open && info.SndSsthresh <= info.SndCwnd &&
		info.RTT >= sampledRound &&
		info.RTT < x.least+x.least/8
}

func (o *slowStarts) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed, o.all = true, nil
	if o.timer != nil {
		o.timer.Stop()
	}
}

// cubicWindow returns the window that CUBIC has (RFC 9438 section 4.2) so long after the last loss,
// where it is cwnd at present: at most half as large again.
//
// netstack leaves the fraction out at each acknowledgement, so that with one for two segments the
// window grows only where it is to become half as large again: it stays as it is for the seconds
// in which CUBIC comes back to what it was before a loss.
//
// Upstream: docs/upstream/33-cubic-fraction.md. No longer needed when TestCubicFraction of
// tests/conformance/upstream fails.
func cubicWindow(c *tcp.TCPCubicState, elapsed time.Duration, cwnd int) int {
	t := elapsed.Seconds() - c.K
	w := c.C*t*t*t + c.WMax
	return int(math.Max(float64(cwnd), math.Min(w, 1.5*float64(cwnd))))
}

// macFollower keeps the link's MAC address that of the netdev, for a stack that has that: on the
// host's own addresses, or with NIC.Steering.AllowNetdevMAC. One goroutine uses it.
type macFollower struct {
	s       *Stack
	refused string           // why the last change could not be followed; "": there is none
	source  uplink.MACSource // of the device; nil on the host's own addresses
}

// followNetdev compares the netdev's MAC with the link's whenever something has changed.
func (f *macFollower) followNetdev() {
	defer f.source.Close()
	late := f.s.clock.NewTimer(time.Hour)
	defer late.Stop()
	for {
		if name, mac, ok := f.source.Netdev(); ok {
			if wait := f.follow(name, mac); wait > 0 {
				late.Reset(wait)
			}
		}
		select {
		case <-f.s.life.ctx.Done():
			return
		case <-f.source.Changed():
		case <-late.C:
		}
		if f.s.clock.Sleep(f.s.life.ctx, hostmode.FollowPause) != nil {
			return
		}
	}
}

// follow makes mac, which the netdev has, the link's, and says when to try again; 0: it is done.
func (f *macFollower) follow(netdev string, mac net.HardwareAddr) (again time.Duration) {
	s := f.s
	before := s.HardwareAddr()
	if len(mac) != 6 || bytes.Equal(mac, before) {
		f.settle()
		return 0
	}
	if err := f.change(before, mac); err != nil {
		if s.life.ctx.Err() != nil {
			return 0
		}
		err = fmt.Errorf("netdev %s has the MAC %v now, which we cannot follow, and frames for it "+
			"do not come: %w", netdev, mac, err)
		s.health.report(reportLink, err)
		if f.refused != err.Error() {
			f.refused = err.Error()
			s.log.Error("the MAC of the netdev has changed", "interface", s.name, "error", err)
		}
		return macRetry
	}
	s.log.Warn("the MAC of the netdev has changed, and ours with it", "interface", s.name,
		"netdev", netdev, "before", before.String(), "now", mac.String())
	f.settle()
	s.addrs.AnnounceTwice()
	if s.link != nil {
		s.link.Repeat()
	}
	return 0
}

// settle ends what a change that could not be followed has made known.
func (f *macFollower) settle() {
	if f.refused == "" {
		return
	}
	f.refused = ""
	if f.s.uplink.LinkUp() {
		f.s.health.report(reportLink, nil)
	}
}

// change gives packet sockets, devices, link and netstack another MAC, or none of them.
func (f *macFollower) change(before, mac net.HardwareAddr) error {
	var port packet.Netdev
	if f.s.host != nil {
		port = f.s.host.Sockets()
		if err := port.SetMAC(mac); err != nil {
			return err
		}
	}
	if err := f.s.link.SetMAC(mac); err != nil {
		if port != nil {
			err = errors.Join(err, port.SetMAC(before))
		}
		return err
	}
	f.s.addrs.UseMAC(tcpip.LinkAddress(mac))
	return nil
}

// startMACFollower follows the netdev of the device, which is in the network namespace of the
// calling thread, until the stack ends. On the host's own addresses there is a goroutine that does
// so anyway, and a MAC of our own never changes.
func startMACFollower(s *Stack) {
	source, err := s.uplink.WatchMAC()
	if err != nil {
		s.log.Warn("changes of the netdev's MAC are not followed", "error", err)
	}
	if source == nil {
		return
	}
	f := &macFollower{s: s, source: source}
	s.life.background.Go(f.followNetdev)
}
