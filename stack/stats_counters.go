package stack

import (
	"iter"
	"reflect"
	"slices"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// gauges are the names of those values that can fall.
var gauges = []string{
	"TCP.CurrentEstablished", "TCP.CurrentConnected",
	"Link.RxWaiting", "Link.TxBacklog", "Link.TxBacklogMax",
	"ACK.Waiting", "ACK.WaitingBytes",
}

// Counters yields every counter of netstack as a dotted name, such as "TCP.Retransmits" or
// "IP.PacketsDelivered", and its value, and those of [Stack.LinkStats] and [Stack.ACKStats] as
// "Link." and "ACK.". None of them ever falls, but for what netstack counts as sent when an ACK
// is held: that is taken back when the ACK is not sent after all. What rises and falls is in
// [Stack.Gauges].
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
		acks := s.ACKStats()
		unsent := map[string]uint64{
			"NICs.Tx.Packets": acks.Saved + acks.Waiting, "NICs.Tx.Bytes": acks.SavedBytes + acks.WaitingBytes,
			"IP.PacketsSent": acks.Saved + acks.Waiting, "TCP.SegmentsSent": acks.Saved + acks.Waiting,
		}
		some := func(name string, n uint64) bool {
			return !wanted(name) || yield(name, less(n, unsent[name]))
		}
		_ = walk("", reflect.ValueOf(s.net.Stats()), some) &&
			walk("Link", reflect.ValueOf(s.LinkStats()), some) && walk("ACK", reflect.ValueOf(acks), some)
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
