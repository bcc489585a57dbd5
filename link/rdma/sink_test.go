package rdma

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// recordingSink is a sink that records its calls.
type recordingSink struct {
	refuse bool
	done   bool     // nobody was made ready to run
	heard  []string // copies: the bytes are borrowed
}

func (b *recordingSink) Stamped() bool { return false }

func (b *recordingSink) Deliver(ip, udp []byte, _ time.Time) bool {
	b.heard = append(b.heard, fmt.Sprintf("%x %x", ip, udp))
	return !b.refuse
}

func (b *recordingSink) Flush() bool {
	b.heard = append(b.heard, "flush")
	return b.done
}

// useSinks gives IPv4 port 53 and IPv6 port 54 to sinks, unless they are nil.
func (j *judge) useSinks(v4, v6 *recordingSink) {
	j.worker.e.SetDatagramSinks(func(_ int, six bool, port uint16) DatagramSink {
		switch {
		case port == 53 && !six && v4 != nil:
			return v4
		case port == 54 && six && v6 != nil:
			return v6
		}
		return nil
	})
}

// query is a datagram to port 53 of the judge.
func query(change func(*tcpFrame)) []byte {
	f := segment(0)
	f.Ports = [2]uint16{4000, 53}
	change(&f)
	return udpFrame(f)
}

// TestDatagramSink: the datagrams delivered, their order, and one flush at the end of a batch.
func TestDatagramSink(t *testing.T) {
	j := newJudge(t, true)
	var v4, v6 recordingSink
	j.useSinks(&v4, &v6)
	one := query(func(f *tcpFrame) { f.Payload = []byte("one") })
	padded := query(func(f *tcpFrame) { f.Payload, f.Pad = []byte("2"), 17 })
	six := query(func(f *tcpFrame) { f.V6, f.Ports[1] = true, 54 })
	j.hear(one, padded, six, one)
	put := func(frame []byte, ip, end int) string {
		return fmt.Sprintf("%x %x", frame[hdr.EthLen:hdr.EthLen+ip], frame[hdr.EthLen+ip:end])
	}
	want := []string{put(one, hdr.IPv4Len, len(one)), put(padded, hdr.IPv4Len,
		hdr.EthLen+hdr.IPv4Len+hdr.UDPLen+1), put(one, hdr.IPv4Len, len(one)), "flush"}
	if got := slices.Compact(v4.heard); !slices.Equal(got, want) {
		t.Errorf("heard %q\nwant %q", got, want)
	}
	if want := []string{put(six, hdr.IPv6Len, len(six)), "flush"}; !slices.Equal(v6.heard, want) {
		t.Errorf("heard %q\nwant %q", v6.heard, want)
	}
	if got := j.read(t); len(got) != 0 {
		t.Errorf("the socket has %q", got)
	}
	v4.heard = nil
	j.hear(udpFrame(segment(0)))
	if len(v4.heard) != 0 {
		t.Errorf("a batch without anything for the sink: %q", v4.heard)
	}
}

// TestAnswered: a worker waits quietly behind batches that sinks took all of and are done with.
func TestAnswered(t *testing.T) {
	four := query(func(*tcpFrame) {})
	six := query(func(f *tcpFrame) { f.V6, f.Ports[1] = true, 54 })
	other := udpFrame(segment(0))
	for _, tt := range []struct {
		name         string
		done4, done6 bool
		refuse4      bool
		batch        [][]byte
		answered     bool
	}{
		{"done with all", true, true, false, [][]byte{four, six, four}, true},
		{"a sink has a reader", true, false, false, [][]byte{six, four}, false},
		{"the other one", false, true, false, [][]byte{six, four}, false},
		{"some for the stack", true, true, false, [][]byte{four, other}, false},
		{"all for the stack", true, true, false, [][]byte{other}, false},
		{"refused", true, true, true, [][]byte{six, four}, false},
	} {
		j := newJudge(t, true)
		v4 := recordingSink{done: tt.done4, refuse: tt.refuse4}
		v6 := recordingSink{done: tt.done6}
		j.useSinks(&v4, &v6)
		if j.hear(tt.batch...); j.worker.answered != tt.answered {
			t.Errorf("%s: answered %v", tt.name, j.worker.answered)
		}
	}
}

// TestSinkCounts compares the counters with those of the ordinary path. There UDP also counts a
// datagram as received; here the sink counts it.
func TestSinkCounts(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		direct, ordinary := newJudge(t, true), newJudge(t, false)
		var sink recordingSink
		direct.useSinks(&sink, &sink)
		for _, j := range []*judge{direct, ordinary} {
			j.hear(query(func(f *tcpFrame) {
				if f.V6 = v6; v6 {
					f.Ports[1] = 54
				}
			}))
		}
		got, want := direct.counts(t), ordinary.counts(t)
		for name, n := range got {
			of := func(part string) bool { return strings.Contains(name, part) }
			if n != want[name] && (of("Rx") || of("Received") || of("Delivered")) && !of("UDP") {
				t.Errorf("IPv6 %v: %s is %d, want %d", v6, name, n, want[name])
			}
		}
		w := direct.worker
		if w.count.packets.Load() != 1 || w.count.fastPath.Load() != 1 {
			t.Errorf("IPv6 %v: %d packets, %d on the fast path", v6,
				w.count.packets.Load(), w.count.fastPath.Load())
		}
	}
}

// TestSinkIsNotOffered: netstack gets datagrams that must not take the fast path, those for a port
// without a sink, and those that the sink refuses.
func TestSinkIsNotOffered(t *testing.T) {
	plain := func(*tcpFrame) {}
	for _, tt := range []struct {
		name    string
		frame   []byte
		refuse  bool
		offered bool
		read    int // by the stack's socket
		change  func(*judge)
	}{
		{name: "refused", frame: query(plain), refuse: true, offered: true, read: 1},
		{name: "options", frame: query(func(f *tcpFrame) { f.IPOpts = []byte{1, 1, 1, 0} }),
			read: 1},
		{name: "fragment", frame: query(func(f *tcpFrame) { f.Fragment = 8 })},
		{name: "to the subnet", frame: query(func(f *tcpFrame) { f.To = 255 }), read: 1},
		{name: "from ourselves", frame: query(func(f *tcpFrame) { f.From = 1 })},
		{name: "longer than its packet", frame: changed(query(plain), 24, 1, 0)},
		{name: "TCP",
			frame: func() []byte { f := segment(0); f.Ports[1] = 53; return f.Bytes() }()},
		{name: "another port", frame: query(func(f *tcpFrame) { f.Ports[1] = 54 })},
		{name: "no fast path", frame: query(plain), read: 1,
			change: func(j *judge) { j.worker.e.SetLocalAddresses(nil) }},
		{name: "no sinks", frame: query(plain), read: 1,
			change: func(j *judge) { j.worker.e.SetDatagramSinks(nil) }},
		{name: "no stack", frame: query(plain), read: 1,
			change: func(j *judge) { j.worker.attachment.networks.Store(nil) }},
		{name: "ended", frame: query(plain),
			change: func(j *judge) { j.worker.attachment.stopping.Store(true) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			j, sink := newJudge(t, true), &recordingSink{refuse: tt.refuse}
			j.useSinks(sink, nil)
			if tt.change != nil {
				tt.change(j)
			}
			j.hear(tt.frame)
			if got := len(sink.heard) > 0; got != tt.offered {
				t.Errorf("offered: %v", sink.heard)
			}
			if slices.Contains(sink.heard, "flush") {
				t.Error("flushed for nothing")
			}
			if got := j.read(t); len(got) != tt.read {
				t.Errorf("the socket has %q", got)
			}
		})
	}
}

// discardSink accepts everything.
type discardSink struct{ bytes int }

func (h *discardSink) Stamped() bool { return true }
func (h *discardSink) Flush() bool   { return true }

func (h *discardSink) Deliver(_, udp []byte, _ time.Time) bool {
	h.bytes += len(udp)
	return true
}

func TestSinkDoesNotAllocate(t *testing.T) {
	j, hole := newJudge(t, true), new(discardSink)
	j.worker.e.SetDatagramSinks(func(int, bool, uint16) DatagramSink { return hole })
	frame := query(func(*tcpFrame) {})
	batch := [][]byte{frame, frame, frame}
	j.hear(batch...)
	if n := testing.AllocsPerRun(100, func() { j.hear(batch...) }); n != 0 {
		t.Errorf("%v allocations for three datagrams", n)
	}
	if hole.bytes == 0 {
		t.Error("nothing was delivered")
	}
}

// TestSinkKeepsOrder: within a batch no datagram is delivered to a sink after one that goes to
// netstack's queue of the same socket.
func TestSinkKeepsOrder(t *testing.T) {
	plain, fragment := query(func(*tcpFrame) {}), query(func(f *tcpFrame) { f.Fragment = 8 })
	for _, tt := range []struct {
		name   string
		batch  [][]byte
		refuse bool
		want   int // offers and flushes
	}{
		{"before a fragment", [][]byte{plain, plain, fragment}, false, 3},
		{"behind a fragment", [][]byte{plain, fragment, plain}, false, 2},
		{"behind one that was refused", [][]byte{plain, plain}, true, 1},
	} {
		j, sink := newJudge(t, true), &recordingSink{refuse: tt.refuse}
		j.useSinks(sink, nil)
		if j.hear(tt.batch...); len(sink.heard) != tt.want {
			t.Errorf("%s: %q", tt.name, sink.heard)
		}
	}
}

// TestSinkOvertakesNothing: after a datagram to its port that netstack must process, the sink is
// offered no other of the batch.
func TestSinkOvertakesNothing(t *testing.T) {
	for _, tt := range []struct {
		name    string
		before  func(*tcpFrame)
		offered int
	}{
		{"options", func(f *tcpFrame) { f.IPOpts = []byte{1, 1, 1, 0} }, 0},
		{"to the subnet", func(f *tcpFrame) { f.To = 255 }, 0},
		{"options, to another port",
			func(f *tcpFrame) { f.IPOpts, f.Ports[1] = []byte{1, 1, 1, 0}, 55 }, 1},
	} {
		j, sink := newJudge(t, true), &recordingSink{}
		j.useSinks(sink, nil)
		j.hear(query(tt.before), query(func(*tcpFrame) {}))
		offered := len(slices.DeleteFunc(slices.Clone(sink.heard),
			func(s string) bool { return s == "flush" }))
		if read := len(j.read(t)); offered != tt.offered || tt.offered == 0 && read != 2 {
			t.Errorf("%s: %d offered, want %d; the socket has %d", tt.name,
				offered, tt.offered, read)
		}
	}
}
