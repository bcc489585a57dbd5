package stack

import (
	"iter"
	"reflect"
	"slices"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// gauges are the names of those values that can fall.
var gauges = []string{
	"TCP.CurrentEstablished", "TCP.CurrentConnected",
	"Link.RxWaiting", "Link.TxBacklog", "Link.TxBacklogMax",
	"ACK.Waiting", "ACK.WaitingBytes",
	"Failover.LastFallbackMicroseconds", "Failover.LastOpenMilliseconds",
}

// Counters yields every counter of netstack as a dotted name, such as "TCP.Retransmits" or
// "IP.PacketsDelivered", and its value, and those of [Stack.LinkStats], [Stack.ACKStats] and
// [Stack.FailoverStats] as "Link.", "ACK." and "Failover.". None of them ever falls. What netstack
// counts as sent is without the ACKs that are held or were not sent after all. What rises
// and falls is in [Stack.Gauges].
func (s *Stack) Counters() iter.Seq2[string, uint64] {
	return s.values(func(name string) bool { return !slices.Contains(gauges, name) })
}

// Gauges yields every value that is as of now and can fall, such as "TCP.CurrentEstablished",
// named like those of [Stack.Counters].
func (s *Stack) Gauges() iter.Seq2[string, uint64] {
	return s.values(func(name string) bool { return slices.Contains(gauges, name) })
}

// values yields the counters and gauges that are wanted.
func (s *Stack) values(wanted func(name string) bool) iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		sent := s.sent()
		some := func(name string, n uint64) bool {
			if of, ok := sent[name]; ok {
				n = of
			}
			return !wanted(name) || yield(name, n)
		}
		_ = walk("", reflect.ValueOf(s.net.Stats()), some) &&
			walk("Link", reflect.ValueOf(s.LinkStats()), some) &&
			walk("ACK", reflect.ValueOf(s.ACKStats()), some) &&
			walk("Failover", reflect.ValueOf(s.FailoverStats()), some)
	}
}

// highWater is the highest value told of a counter. Any goroutine may use it.
type highWater struct{ told atomic.Uint64 }

// rise returns n, or what was told before if that is more.
func (h *highWater) rise(n uint64) uint64 {
	for told := h.told.Load(); n > told; told = h.told.Load() {
		if h.told.CompareAndSwap(told, n) {
			return n
		}
	}
	return h.told.Load()
}

// sentCounts are the counters that netstack counts held ACKs in.
type sentCounts struct{ packets, bytes, ip, segments highWater }

// sent returns those counters, by name, without the ACKs that are held or were never sent. netstack
// counts an ACK once it is held, so that with ACKs looked at last no difference is too high; one
// that is too low is not told.
func (s *Stack) sent() map[string]uint64 {
	c := s.net.Stats()
	packets, bytes := c.NICs.Tx.Packets.Value(), c.NICs.Tx.Bytes.Value()
	ip, segments := c.IP.PacketsSent.Value(), c.TCP.SegmentsSent.Value()
	acks := s.ACKStats()
	unsent := acks.Saved + acks.Waiting
	return map[string]uint64{
		"NICs.Tx.Packets":  s.told.packets.rise(less(packets, unsent)),
		"NICs.Tx.Bytes":    s.told.bytes.rise(less(bytes, acks.SavedBytes+acks.WaitingBytes)),
		"IP.PacketsSent":   s.told.ip.rise(less(ip, unsent)),
		"TCP.SegmentsSent": s.told.segments.rise(less(segments, unsent)),
	}
}

// walk visits the counters below v, whose path is prefix; it returns false when yield did.
func walk(prefix string, v reflect.Value, yield func(string, uint64) bool) bool {
	if c, ok := v.Interface().(*tcpip.StatCounter); ok {
		return yield(prefix, c.Value())
	}
	switch v.Kind() {
	case reflect.Uint64:
		return yield(prefix, v.Uint())
	case reflect.Struct:
	default:
		return true
	}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if !f.IsExported() {
			continue
		}
		name := f.Name
		switch {
		case f.Anonymous:
			name = prefix
		case prefix != "":
			name = prefix + "." + name
		}
		if !walk(name, v.Field(i), yield) {
			return false
		}
	}
	return true
}
