package stack

import (
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/sleep"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// moreRanges says how many ranges of what SACK reports a connection keeps besides netstack's 100:
// those of a window and queue of 4,200 packets of which each second one is lost.
const moreRanges = 2000

// fieldPlace tells where a struct keeps a field. The zero value stands for nowhere: it reads as 0.
type fieldPlace struct {
	index []int
	kind  reflect.Type
}

// pointsTo returns the type that the field points to; nil: there is no such field.
func (p fieldPlace) pointsTo() reflect.Type {
	if p.kind == nil {
		return nil
	}
	return p.kind.Elem()
}

// in returns the field of v, a struct; the zero Value where there is none.
func (p fieldPlace) in(v reflect.Value) reflect.Value {
	if p.index == nil || !v.IsValid() {
		return reflect.Value{}
	}
	field, err := v.FieldByIndexErr(p.index)
	if err != nil {
		return reflect.Value{}
	}
	return field
}

// target returns what the field of v points to; the zero Value where it is nil.
func (p fieldPlace) target(v reflect.Value) reflect.Value {
	if v = p.in(v); !v.IsValid() {
		return v
	}
	return v.Elem()
}

func (p fieldPlace) bool(v reflect.Value) bool {
	v = p.in(v)
	return v.IsValid() && v.Bool()
}

func (p fieldPlace) int(v reflect.Value) int {
	switch v = p.in(v); {
	case !v.IsValid():
		return 0
	case v.CanUint():
		return int(v.Uint())
	}
	return int(v.Int())
}

// tcpFields holds the places of netstack's fields that it has no option for. To look for one by its
// name takes a hundred times as long as to read it. Another version of gVisor than that of our
// go.mod may have named one differently: it then reads as 0.
type tcpFields struct {
	timestamps, sack, snd, rcv, queue fieldPlace // of tcp.Endpoint
	sndWscale, mss, outstanding       fieldPlace // of tcp.sender
	ssthresh, cwnd, cc, minRTO        fieldPlace // of tcp.sender
	finSent, sndUna, sndNxt, sndWnd   fieldPlace // of tcp.sender
	rcvWscale                         fieldPlace // of tcp.receiver
	used                              fieldPlace // of tcp.sndQueueInfo
	scoreboard                        fieldPlace // of tcp.Endpoint
	ranges                            fieldPlace // of tcp.SACKScoreboard
	rangeCount                        fieldPlace // of its btree.BTreeG
	recovery                          fieldPlace // of tcp.sender
	highRxt, active, last             fieldPlace // of tcp.TCPFastRecoveryState
	writeList, state                  fieldPlace // of tcp.sender
	segments, firstSegment            fieldPlace // of tcp.protectedWriteList, of its list
	packet, seq, sentTimes, lost      fieldPlace // of tcp.segment
	nextSegment                       fieldPlace // of tcp.segment
	received                          fieldPlace // of tcp.Endpoint
	receivedLock, receivedList        fieldPlace // of tcp.segmentQueue

	missing []string // type and name of those that are not there
}

// finAcked reports whether the peer has acknowledged a connection's FIN. False where a field that
// tells is missing.
func (f *tcpFields) finAcked(ep *tcp.Endpoint) bool {
	ep.LockUser()
	defer ep.UnlockUser()
	snd := f.snd.target(reflect.ValueOf(ep).Elem())
	return f.sndUna.index != nil && f.sndNxt.index != nil && f.finSent.bool(snd) &&
		f.sndUna.int(snd) == f.sndNxt.int(snd)
}

// keepRanges makes a connection keep moreRanges more of the ranges that SACK reports, until
// keepFewRanges or its next timeout. kept is what the call before returned, or nil. It lowers the
// count that netstack compares with its bound; with 2,000 ranges, where that is 0, SACK counts for
// nothing until there is one more or less.
//
// netstack keeps 100 ranges: of more it learns nothing, not even that one of those has grown. Where
// slow start has filled a queue each second frame is lost, a thousand of them. What is beyond those
// ranges counts as in flight, more than the window holds: nothing is sent until the timeout.
//
// Upstream: docs/upstream/38-sack-ranges.md. No longer needed when TestSACKRanges of
// tests/conformance/upstream fails.
func (f *tcpFields) keepRanges(ep *tcp.Endpoint, kept sackRanges) sackRanges {
	ep.LockUser()
	defer ep.UnlockUser()
	tree, count := f.rangesOf(ep)
	if !count.IsValid() || tree == kept {
		return kept
	}
	count.SetInt(count.Int() - moreRanges)
	return tree
}

// keepFewRanges undoes what keepRanges has done, which returned kept.
func (f *tcpFields) keepFewRanges(ep *tcp.Endpoint, kept sackRanges) {
	ep.LockUser()
	defer ep.UnlockUser()
	if tree, count := f.rangesOf(ep); count.IsValid() && tree == kept {
		count.SetInt(count.Int() + moreRanges)
	}
}

// growCubic gives a connection whose window is full, outside of slow start, the window that CUBIC
// has now.
func (f *tcpFields) growCubic(ep *tcp.Endpoint, now tcpip.MonotonicTime) {
	ep.LockUser()
	defer ep.UnlockUser()
	snd := f.snd.target(reflect.ValueOf(ep).Elem())
	at, cubic := f.cwnd.in(snd), f.cubicIn(snd)
	if !at.IsValid() || cubic == nil {
		return
	}
	if cwnd := int(at.Int()); f.outstanding.int(snd) >= cwnd && f.ssthresh.int(snd) <= cwnd {
		writable(at).SetInt(int64(cubicWindow(cubic, now.Sub(cubic.T), cwnd)))
	}
}

// beginEpoch lets CUBIC's window grow as after the last loss. netstack counts the time in which a
// connection rests, or has less to write than its window: CUBIC then has the window of minutes of
// growth, and all that there is to send goes at once.
//
// Upstream: docs/upstream/34-cubic-idle.md. No longer needed when TestCubicIdle of
// tests/conformance/upstream fails.
func (f *tcpFields) beginEpoch(ep *tcp.Endpoint, now tcpip.MonotonicTime) {
	ep.LockUser()
	defer ep.UnlockUser()
	if cubic := f.cubicIn(f.snd.target(reflect.ValueOf(ep).Elem())); cubic != nil {
		cubic.T = now
	}
}

// cubicIn returns the state of a sender's CUBIC; nil: it has none.
func (f *tcpFields) cubicIn(snd reflect.Value) *tcp.TCPCubicState {
	cc := f.cc.target(snd)
	if cc.Kind() != reflect.Pointer {
		return nil
	}
	state := fieldOf(cc.Elem(), "TCPCubicState", reflect.Struct)
	if !state.IsValid() {
		return nil
	}
	cubic, _ := writable(state).Addr().Interface().(*tcp.TCPCubicState)
	return cubic
}

// rangesOf returns the ranges that a connection keeps, and netstack's count of them, which is the
// zero Value where it has none. The connection's lock is held.
func (f *tcpFields) rangesOf(ep *tcp.Endpoint) (tree sackRanges, count reflect.Value) {
	at := f.ranges.in(f.scoreboard.target(reflect.ValueOf(ep).Elem()))
	if !at.IsValid() || at.IsNil() || f.rangeCount.index == nil {
		return nil, count
	}
	return writable(at).Interface(), writable(f.rangeCount.in(at.Elem()))
}

// report logs what is missing, in one line.
func (f *tcpFields) report(log *slog.Logger) {
	if len(f.missing) > 0 {
		log.Warn("this version of gVisor lacks fields of TCP connections: ss shows 0 for them, "+
			"a closed connection may wait for its peer's FIN longer, and slow start begins with "+
			"ten segments after a pause; use the version in the go.mod of rdma-netstack",
			"fields", strings.Join(f.missing, " "))
	}
}

// segmentSize returns how many bytes of payload a segment of a connection holds; 0 where that is
// not known.
func (f *tcpFields) segmentSize(e tcpip.Endpoint) int {
	ep, ok := e.(*tcp.Endpoint)
	if !ok {
		return 0
	}
	ep.LockUser()
	defer ep.UnlockUser()
	return f.mss.int(f.snd.target(reflect.ValueOf(ep).Elem()))
}

// setThreshold makes a connection grow its window by slow start up to so many segments. It reports
// whether the field is there.
func (f *tcpFields) setThreshold(ep *tcp.Endpoint, segments int) bool {
	ep.LockUser()
	defer ep.UnlockUser()
	at := f.ssthresh.in(f.snd.target(reflect.ValueOf(ep).Elem()))
	if at.IsValid() {
		writable(at).SetInt(int64(segments))
	}
	return at.IsValid()
}

// cubicOf returns the state of a connection's CUBIC; the zero value where it has none.
func (f *tcpFields) cubicOf(ep *tcp.Endpoint) (state tcp.TCPCubicState) {
	ep.LockUser()
	defer ep.UnlockUser()
	if cubic := f.cubicIn(f.snd.target(reflect.ValueOf(ep).Elem())); cubic != nil {
		state = *cubic
	}
	return state
}

// setCubic gives a connection's CUBIC the window of an earlier state and what that grows from.
func (f *tcpFields) setCubic(ep *tcp.Endpoint, as tcp.TCPCubicState) {
	ep.LockUser()
	defer ep.UnlockUser()
	if cubic := f.cubicIn(f.snd.target(reflect.ValueOf(ep).Elem())); cubic != nil && as.Beta != 0 {
		cubic.T, cubic.K, cubic.WMax, cubic.WLastMax = as.T, as.K, as.WMax, as.WLastMax
	}
}

// leastTimeout returns the least timeout that a connection has; 0: there is no such field.
func (f *tcpFields) leastTimeout(ep *tcp.Endpoint) time.Duration {
	ep.LockUser()
	defer ep.UnlockUser()
	return time.Duration(f.minRTO.int(f.snd.target(reflect.ValueOf(ep).Elem())))
}

// setLeastTimeout gives a connection another one, which counts from its next round trip on.
func (f *tcpFields) setLeastTimeout(ep *tcp.Endpoint, d time.Duration) {
	ep.LockUser()
	defer ep.UnlockUser()
	if at := f.minRTO.in(f.snd.target(reflect.ValueOf(ep).Elem())); at.IsValid() {
		writable(at).SetInt(int64(d))
	}
}

// unsent returns how many bytes a connection has been given and not sent yet; 0 where it lacks a
// field that tells.
func (f *tcpFields) unsent(e tcpip.Endpoint) int {
	ep, ok := e.(*tcp.Endpoint)
	if !ok || f.sndUna.index == nil || f.sndNxt.index == nil {
		return 0
	}
	ep.LockUser()
	defer ep.UnlockUser()
	v := reflect.ValueOf(ep).Elem()
	snd := f.snd.target(v)
	inFlight := int(uint32(f.sndNxt.int(snd) - f.sndUna.int(snd)))
	return max(0, f.used.int(f.queue.in(v))-inFlight)
}

// unsentBy returns how many bytes are written to a connection and not acknowledged.
func (f *tcpFields) unsentBy(e tcpip.Endpoint) int {
	ep, ok := e.(*tcp.Endpoint)
	if !ok {
		return 0
	}
	ep.LockUser()
	defer ep.UnlockUser()
	return max(0, f.used.int(f.queue.in(reflect.ValueOf(ep).Elem())))
}

// countUnread returns how many of the segments that a connection has received wait for netstack to
// look at them, at most most. 0: there are no such fields.
func (f *tcpFields) countUnread(ep *tcp.Endpoint, most int) (n int) {
	queue := f.received.in(reflect.ValueOf(ep).Elem())
	lock, list := f.receivedLock.in(queue), f.receivedList.in(queue)
	if !lock.IsValid() || !list.IsValid() || list.Type() != f.segments.kind {
		return 0
	}
	mu, ok := writable(lock).Addr().Interface().(sync.Locker)
	if !ok {
		return 0
	}
	mu.Lock()
	defer mu.Unlock()
	for at := f.firstSegment.in(list); n < most && at.IsValid() && !at.IsNil(); n++ {
		at = f.nextSegment.in(at.Elem())
	}
	return n
}

// findTCPFields looks for the fields of ep, which is the type of a tcp.Endpoint.
func findTCPFields(ep reflect.Type) (f tcpFields) {
	place := func(of reflect.Type, name string, kinds ...reflect.Kind) (at fieldPlace) {
		if of != nil && of.Kind() == reflect.Struct {
			if field, ok := of.FieldByName(name); ok && slices.Contains(kinds, field.Type.Kind()) {
				return fieldPlace{field.Index, field.Type}
			}
			name = of.Name() + "." + name
		}
		f.missing = append(f.missing, name)
		return at
	}
	number := []reflect.Kind{reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64}
	f.timestamps = place(ep, "SendTSOk", reflect.Bool)
	f.sack = place(ep, "SACKPermitted", reflect.Bool)
	f.snd = place(ep, "snd", reflect.Pointer)
	f.rcv = place(ep, "rcv", reflect.Pointer)
	f.queue = place(ep, "sndQueueInfo", reflect.Struct)
	snd := f.snd.pointsTo()
	f.sndWscale = place(snd, "SndWndScale", number...)
	f.mss = place(snd, "MaxPayloadSize", number...)
	f.outstanding = place(snd, "Outstanding", number...)
	f.ssthresh, f.cwnd = place(snd, "Ssthresh", reflect.Int), place(snd, "SndCwnd", reflect.Int)
	f.minRTO = place(snd, "minRTO", reflect.Int64)
	f.cc = place(snd, "cc", reflect.Interface)
	f.finSent = place(snd, "finSent", reflect.Bool)
	f.sndUna, f.sndNxt = place(snd, "SndUna", number...), place(snd, "SndNxt", number...)
	f.sndWnd = place(snd, "SndWnd", number...)
	f.rcvWscale = place(f.rcv.pointsTo(), "RcvWndScale", number...)
	f.used = place(f.queue.kind, "SndBufUsed", number...)
	f.scoreboard = place(ep, "scoreboard", reflect.Pointer)
	f.ranges = place(f.scoreboard.pointsTo(), "ranges", reflect.Pointer)
	f.rangeCount = place(f.ranges.pointsTo(), "length", reflect.Int)
	f.recovery = place(snd, "FastRecovery", reflect.Struct)
	f.highRxt = place(f.recovery.kind, "HighRxt", number...)
	f.active = place(f.recovery.kind, "Active", reflect.Bool)
	f.last = place(f.recovery.kind, "Last", number...)
	f.state = place(snd, "state", number...)
	f.writeList = place(snd, "writeList", reflect.Struct)
	f.segments = place(f.writeList.kind, "writeList", reflect.Struct)
	f.firstSegment = place(f.segments.kind, "head", reflect.Pointer)
	segment := f.firstSegment.pointsTo()
	f.packet = place(segment, "pkt", reflect.Pointer)
	f.seq = place(segment, "sequenceNumber", number...)
	f.sentTimes = place(segment, "xmitCount", number...)
	f.lost = place(segment, "lost", reflect.Bool)
	f.nextSegment = place(segment, "next", reflect.Pointer)
	f.received = place(ep, "segmentQueue", reflect.Struct)
	f.receivedLock = place(f.received.kind, "mu", reflect.Struct)
	f.receivedList = place(f.received.kind, "list", reflect.Struct)
	return f
}

// sackRanges identifies the ranges that a connection keeps: a timeout begins new ones.
type sackRanges any

// fieldOf returns the field of v of that name and kind; the zero Value where v is no struct that
// has one.
func fieldOf(v reflect.Value, name string, kind reflect.Kind) reflect.Value {
	if v.Kind() != reflect.Struct {
		return reflect.Value{}
	}
	if v = v.FieldByName(name); v.Kind() != kind {
		return reflect.Value{}
	}
	return v
}

// writable returns an unexported field as one that may be set. Its type stays what it is.
func writable(v reflect.Value) reflect.Value {
	return reflect.NewAt(v.Type(), v.Addr().UnsafePointer()).Elem()
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

// keepTCPWorkers ends all goroutines but n of those that handle received segments. netstack starts
// one for each processor, has no option for their number, and gives them segments by a hash modulo
// their number. A change of GOMAXPROCS while it starts them would stop the world, be seen by the
// program, and end Go's following of cgroups. protocol is netstack's TCP, which has received
// nothing yet; the error says what another version of it lacks.
func keepTCPWorkers(protocol any, n int) error {
	dispatcher := fieldOf(reflect.Indirect(reflect.ValueOf(protocol)), "dispatcher", reflect.Struct)
	workers := fieldOf(dispatcher, "processors", reflect.Slice)
	if !workers.IsValid() {
		return fmt.Errorf("%T has no dispatcher.processors", protocol)
	}
	if n >= workers.Len() {
		return nil
	}
	for i := n; i < workers.Len(); i++ {
		waker := fieldOf(workers.Index(i), "closeWaker", reflect.Struct)
		if !waker.IsValid() || waker.Type() != reflect.TypeFor[sleep.Waker]() {
			return fmt.Errorf("%s has no closeWaker", workers.Type().Elem())
		}
		writable(waker).Addr().Interface().(*sleep.Waker).Assert()
	}
	writable(workers).SetLen(n)
	return nil
}
